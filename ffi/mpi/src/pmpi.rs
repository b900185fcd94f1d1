// SPDX-License-Identifier: MIT OR Apache-2.0

//! The functions of the MPI library that we call, by their profiling names (MPI 4.1, section 15.2).

use std::ffi::{c_char, c_int, c_void};

use crate::abi::{self, Function, Word, complain};
use crate::count::{Count, Large};
use crate::early;
use crate::neighbours::Neighbours;

/// Declares functions that are called through the library's address. One that is missing answers
/// with an error code that no library uses for success. With a module's name in front, that module has
/// the same functions for calls of the program that are forwarded, which a tool may stand in front of.
macro_rules! functions {
    (mod $module:ident: $($all:tt)*) => {
        functions!(@with address; $($all)*);

        mod $module {
            use super::*;

            functions!(@with next; $($all)*);
        }
    };
    (@with $address:ident;
     $($(#[$doc:meta])* $rust:ident = $name:literal ($($argument:ident: $kind:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As the MPI standard says.
            #[allow(clippy::too_many_arguments)]
            // Not every function is called both for the program and by us.
            #[allow(dead_code)]
            pub unsafe fn $rust($($argument: $kind),*) -> c_int {
                static FUNCTION: Function = Function::new($name);
                match FUNCTION.$address() {
                    0 => MISSING,
                    address => {
                        // SAFETY: the MPI library's function of this name has this type.
                        unsafe {
                            let call: unsafe extern "C" fn($($kind),*) -> c_int =
                                std::mem::transmute(address);
                            call($($argument),*)
                        }
                    }
                }
            }
        )*
    };
    ($($all:tt)*) => {
        functions!(@with address; $($all)*);
    };
}

/// What an argument of a collective is.
macro_rules! kind {
    (input) => { *const c_void };
    (output) => { *mut c_void };
    (count) => { N };
    (counts) => {
        *const N
    };
    (sent_counts) => {
        *const N
    };
    (sent_places) => {
        *const N::Place
    };
    (places) => { *const N::Place };
    (handle) => { Word };
    (root) => { c_int };
}

/// What the same argument is where `int`s count.
macro_rules! narrow_kind {
    (count) => {
        c_int
    };
    (counts) => {
        *const c_int
    };
    (places) => {
        *const c_int
    };
    (sent_counts) => {
        *const c_int
    };
    (sent_places) => {
        *const c_int
    };
    ($other:ident) => {
        kind!($other)
    };
}

/// An argument as that; `None` if it does not fit. Arrays are copied.
macro_rules! narrowed {
    (count, $argument:ident, $lengths:ident) => {
        $argument.narrow()
    };
    (counts, $argument:ident, $lengths:ident) => {
        narrowed_array($argument, $lengths.all, N::narrow)
    };
    (places, $argument:ident, $lengths:ident) => {
        narrowed_array($argument, $lengths.all, N::narrow_place)
    };
    (sent_counts, $argument:ident, $lengths:ident) => {
        narrowed_array($argument, $lengths.sent, N::narrow)
    };
    (sent_places, $argument:ident, $lengths:ident) => {
        narrowed_array($argument, $lengths.sent, N::narrow_place)
    };
    ($other:ident, $argument:ident, $lengths:ident) => {
        Some($argument)
    };
}

/// That copy as an argument.
macro_rules! passed {
    (counts, $argument:ident) => {
        pointer(&$argument)
    };
    (places, $argument:ident) => {
        pointer(&$argument)
    };
    (sent_counts, $argument:ident) => {
        pointer(&$argument)
    };
    (sent_places, $argument:ident) => {
        pointer(&$argument)
    };
    ($other:ident, $argument:ident) => {
        $argument
    };
}

/// Declares collectives in both their forms; `N` counts elements. Programs find the form for large
/// counts here even if the library does not have it, and may have their own way without it (mpi4py
/// has), so then the other form does what it can. What nobody can do, the communicator's error
/// handler hears of.
macro_rules! collectives {
    (mod $module:ident: $($all:tt)*) => {
        collectives!(@with address if_any; $($all)*);

        mod $module {
            use super::*;

            collectives!(@with next next_if_any; $($all)*);
        }
    };
    (@with $address:ident $if_any:ident;
     $($(#[$doc:meta])* $rust:ident = $name:literal, $large:literal, $arrays:expr =>
       ($($argument:ident: $kind:ident),*; $comm:ident);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As the MPI standard says.
            #[allow(clippy::too_many_arguments)]
            #[inline(always)]
            // Not every function is called both for the program and by us.
            #[allow(dead_code)]
            pub unsafe fn $rust<N: Count>($($argument: kind!($kind),)* $comm: Word) -> c_int {
                if let Err(code) = early::before() {
                    return code;
                }
                static FUNCTION: Function = Function::new($name);
                static LARGE: Function = Function::new($large);
                let own = if N::LARGE { LARGE.$if_any() } else { FUNCTION.$address() };
                if own != 0 {
                    // SAFETY: the MPI library's function of this name has this type.
                    return unsafe {
                        let call: unsafe extern "C" fn($(kind!($kind),)* Word) -> c_int =
                            std::mem::transmute(own);
                        call($($argument,)* $comm)
                    };
                }
                // Not inlined, so that what is there is but a jump.
                #[cold]
                #[inline(never)]
                #[allow(clippy::too_many_arguments)]
                unsafe fn other<N: Count>($($argument: kind!($kind),)* $comm: Word) -> c_int {
                    let narrow = || {
                        let address = FUNCTION.$address();
                        if !N::LARGE || address == 0 {
                            return None;
                        }
                        let _lengths = $arrays.lengths($comm);
                        $(let $argument = narrowed!($kind, $argument, _lengths)?;)*
                        // SAFETY: the MPI library's function of this name has this type.
                        Some(unsafe {
                            let call: unsafe extern "C" fn($(narrow_kind!($kind),)* Word) -> c_int =
                                std::mem::transmute(address);
                            call($(passed!($kind, $argument),)* $comm)
                        })
                    };
                    narrow().unwrap_or_else(|| {
                        refuse(concat!("no MPI library has ", stringify!($rust), " for this"), $comm)
                    })
                }
                // SAFETY: the caller's promise.
                unsafe { other::<N>($($argument,)* $comm) }
            }
        )*
    };
}

/// Has a communicator's error handler hear of a call that nobody can do.
#[cold]
fn refuse(why: &str, comm: Word) -> c_int {
    complain(why);
    // SAFETY: the caller's communicator, which the library checks.
    unsafe { comm_call_errhandler(comm, MISSING) };
    MISSING
}

/// What arrays a collective has.
enum Arrays {
    /// There are none.
    None,
    /// One element for each rank that is received from.
    PerPeer,
    /// One element for each neighbour that is sent to or received from.
    PerNeighbour,
    /// One for each rank that is received from, and for each that is sent to, unless this send buffer is the other one.
    Exchange(*const c_void),
    /// One for each rank of the caller's group.
    PerRank,
    /// One for each that the root sends to or receives from; nobody else has any.
    AtRoot(c_int),
}

/// How long these are; arrays that MPI ignores may be anything.
struct Lengths {
    all: usize,
    sent: usize,
}

impl Arrays {
    fn lengths(self, comm: Word) -> Lengths {
        let (mut inter, mut rank, mut size, mut remote) = (0, 0, 0, 0);
        // SAFETY: writable outputs; the library checks the communicator.
        unsafe {
            comm_test_inter(comm, &mut inter);
            comm_rank(comm, &mut rank);
            comm_size(comm, &mut size);
            if inter != 0 {
                comm_remote_size(comm, &mut remote);
            }
        }
        let abi = abi::get().ok();
        let peers = if inter != 0 { remote } else { size };
        let root = if inter != 0 {
            abi.map(|abi| abi.root)
        } else {
            Some(rank)
        };
        let (all, sent) = match self {
            Arrays::None => (0, 0),
            Arrays::PerPeer => (peers, 0),
            Arrays::Exchange(send) => {
                let in_place = abi.is_some_and(|abi| send as usize == abi.in_place);
                (peers, if in_place { 0 } else { peers })
            }
            Arrays::PerRank => (size, 0),
            Arrays::PerNeighbour => {
                let neighbours = abi.and_then(|abi| Neighbours::of(abi, comm));
                let count = |side: &[c_int]| c_int::try_from(side.len()).unwrap_or(0);
                let both = neighbours.map(|n| (count(&n.sources), count(&n.destinations)));
                both.unwrap_or((0, 0))
            }
            Arrays::AtRoot(this) if Some(this) == root => (peers, 0),
            Arrays::AtRoot(_) => (0, 0),
        };
        Lengths {
            all: usize::try_from(all).unwrap_or(0),
            sent: usize::try_from(sent).unwrap_or(0),
        }
    }
}

/// An array's copy in `int`s.
fn narrowed_array<T: Copy>(
    array: *const T,
    length: usize,
    narrow: impl Fn(T) -> Option<c_int>,
) -> Option<Vec<c_int>> {
    if array.is_null() || length == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the MPI standard says that it is this long.
    let values = unsafe { std::slice::from_raw_parts(array, length) };
    values.iter().map(|value| narrow(*value)).collect()
}

/// Where a copy is; nowhere if there is nothing in it.
fn pointer(copy: &[c_int]) -> *const c_int {
    match copy.is_empty() {
        true => std::ptr::null(),
        false => copy.as_ptr(),
    }
}

/// Handles of Open MPI's Fortran as C's. No handle that is not one becomes one.
macro_rules! conversions {
    ($($(#[$doc:meta])* $rust:ident = $name:literal;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        pub unsafe fn $rust(handle: c_int) -> Word {
            static FUNCTION: Function = Function::new($name);
            match FUNCTION.address() {
                0 => 0,
                address => {
                    // SAFETY: the MPI library's function of this name has this type.
                    unsafe {
                        let call: unsafe extern "C" fn(c_int) -> Word =
                            std::mem::transmute(address);
                        call(handle)
                    }
                }
            }
        }
    )* };
}

conversions! {
    /// `MPI_Comm_f2c`
    comm_f2c = c"PMPI_Comm_f2c";
    /// `MPI_Type_f2c`
    type_f2c = c"PMPI_Type_f2c";
    /// `MPI_Op_f2c`
    op_f2c = c"PMPI_Op_f2c";
    /// `MPI_Request_f2c`
    request_f2c = c"PMPI_Request_f2c";
    /// `MPI_Message_f2c`
    message_f2c = c"PMPI_Message_f2c";
}

/// Handles of C's as Open MPI's Fortran has them.
macro_rules! conversions_back {
    ($($(#[$doc:meta])* $rust:ident = $name:literal;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        pub unsafe fn $rust(handle: Word) -> c_int {
            static FUNCTION: Function = Function::new($name);
            match FUNCTION.address() {
                0 => 0,
                address => {
                    // SAFETY: the MPI library's function of this name has this type.
                    unsafe {
                        let call: unsafe extern "C" fn(Word) -> c_int =
                            std::mem::transmute(address);
                        call(handle)
                    }
                }
            }
        }
    )* };
}

conversions_back! {
    /// `MPI_Request_c2f`
    request_c2f = c"PMPI_Request_c2f";
    /// `MPI_Message_c2f`
    message_c2f = c"PMPI_Message_c2f";
    /// `MPI_Type_c2f`
    type_c2f = c"PMPI_Type_c2f";
}

/// What a function that is not there answers: `MPI_ERR_OTHER` of Open MPI.
pub const MISSING: c_int = 16;

/// `MPI_Comm_copy_attr_function`
pub type CopyAttribute =
    unsafe extern "C" fn(Word, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
/// `MPI_Comm_delete_attr_function`
pub type DeleteAttribute = unsafe extern "C" fn(Word, c_int, *mut c_void, *mut c_void) -> c_int;

/// `MPI_Grequest_query_function`
pub type GrequestQuery = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
/// `MPI_Grequest_free_function`
pub type GrequestFree = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `MPI_Grequest_cancel_function`
pub type GrequestCancel = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;

functions! {
    /// `MPI_Reduce_local`
    reduce_local = c"PMPI_Reduce_local"(
        from: *const c_void, to: *mut c_void, count: c_int, datatype: Word, op: Word
    );
    /// `MPI_Initialized`
    initialized = c"PMPI_Initialized"(flag: *mut c_int);
    /// `MPI_Finalized`
    finalized = c"PMPI_Finalized"(flag: *mut c_int);
    /// `MPI_Comm_rank`
    comm_rank = c"PMPI_Comm_rank"(comm: Word, rank: *mut c_int);
    /// `MPI_Comm_size`
    comm_size = c"PMPI_Comm_size"(comm: Word, size: *mut c_int);
    /// `MPI_Comm_remote_size`
    comm_remote_size = c"PMPI_Comm_remote_size"(comm: Word, size: *mut c_int);
    /// `MPI_Comm_test_inter`
    comm_test_inter = c"PMPI_Comm_test_inter"(comm: Word, flag: *mut c_int);
    /// `MPI_Comm_split_type`
    comm_split_type = c"PMPI_Comm_split_type"(
        comm: Word, kind: c_int, key: c_int, info: Word, new: *mut Word
    );
    /// `MPI_Comm_split`
    comm_split = c"PMPI_Comm_split"(comm: Word, color: c_int, key: c_int, new: *mut Word);
    /// `MPI_Comm_free`
    comm_free = c"PMPI_Comm_free"(comm: *mut Word);
    /// `MPI_Comm_create_keyval`
    comm_create_keyval = c"PMPI_Comm_create_keyval"(
        copy: CopyAttribute, delete: DeleteAttribute, keyval: *mut c_int, extra: *mut c_void
    );
    /// `MPI_Comm_get_attr`
    comm_get_attr = c"PMPI_Comm_get_attr"(
        comm: Word, keyval: c_int, value: *mut *mut c_void, flag: *mut c_int
    );
    /// `MPI_Comm_set_attr`
    comm_set_attr = c"PMPI_Comm_set_attr"(comm: Word, keyval: c_int, value: *mut c_void);
    /// `MPI_Add_error_class`
    add_error_class = c"PMPI_Add_error_class"(class: *mut c_int);
    /// `MPI_Add_error_string`
    add_error_string = c"PMPI_Add_error_string"(code: c_int, text: *const c_char);
    /// `MPI_Comm_call_errhandler`
    comm_call_errhandler = c"PMPI_Comm_call_errhandler"(comm: Word, code: c_int);
    /// `MPI_Type_size_x`
    type_size = c"PMPI_Type_size_x"(datatype: Word, size: *mut i64);
    /// `MPI_Type_get_extent`
    type_get_extent = c"PMPI_Type_get_extent"(
        datatype: Word, lower_bound: *mut isize, extent: *mut isize
    );
    /// `MPI_Type_get_envelope`
    type_get_envelope = c"PMPI_Type_get_envelope"(
        datatype: Word, integers: *mut c_int, addresses: *mut c_int, types: *mut c_int,
        combiner: *mut c_int
    );
    /// `MPI_Type_create_hindexed`
    type_create_hindexed = c"PMPI_Type_create_hindexed"(
        count: c_int, lengths: *const c_int, places: *const isize, old: Word, new: *mut Word
    );
    /// `MPI_Type_vector`
    type_vector = c"PMPI_Type_vector"(
        count: c_int, length: c_int, stride: c_int, old: Word, new: *mut Word
    );
    /// `MPI_Type_commit`
    type_commit = c"PMPI_Type_commit"(datatype: *mut Word);
    /// `MPI_Pack_size`
    pack_size = c"PMPI_Pack_size"(
        count: c_int, datatype: Word, comm: Word, size: *mut c_int
    );
}

functions! {
    /// `MPI_Comm_get_errhandler`; a variable of a handle's width.
    comm_get_errhandler = c"PMPI_Comm_get_errhandler"(comm: Word, handler: *mut c_void);
    /// `MPI_Comm_set_errhandler`
    comm_set_errhandler = c"PMPI_Comm_set_errhandler"(comm: Word, handler: Word);
    /// `MPI_Errhandler_free`
    errhandler_free = c"PMPI_Errhandler_free"(handler: *mut c_void);
    /// `MPI_Topo_test`
    topo_test = c"PMPI_Topo_test"(comm: Word, kind: *mut c_int);
    /// `MPI_Cartdim_get`
    cartdim_get = c"PMPI_Cartdim_get"(comm: Word, dimensions: *mut c_int);
    /// `MPI_Cart_shift`
    cart_shift = c"PMPI_Cart_shift"(
        comm: Word, dimension: c_int, steps: c_int, before: *mut c_int, after: *mut c_int
    );
    /// `MPI_Graph_neighbors_count`
    graph_neighbors_count = c"PMPI_Graph_neighbors_count"(
        comm: Word, rank: c_int, count: *mut c_int
    );
    /// `MPI_Graph_neighbors`
    graph_neighbors = c"PMPI_Graph_neighbors"(
        comm: Word, rank: c_int, most: c_int, neighbors: *mut c_int
    );
    /// `MPI_Dist_graph_neighbors_count`
    dist_graph_neighbors_count = c"PMPI_Dist_graph_neighbors_count"(
        comm: Word, sources: *mut c_int, destinations: *mut c_int, weighted: *mut c_int
    );
    /// `MPI_Dist_graph_neighbors`
    dist_graph_neighbors = c"PMPI_Dist_graph_neighbors"(
        comm: Word, most_sources: c_int, sources: *mut c_int, source_weights: *mut c_int,
        most_destinations: c_int, destinations: *mut c_int, destination_weights: *mut c_int
    );
    /// `MPI_Query_thread`
    query_thread = c"PMPI_Query_thread"(provided: *mut c_int);
    /// `MPI_Comm_group`
    comm_group = c"PMPI_Comm_group"(comm: Word, group: *mut Word);
    /// `MPI_Group_free`
    group_free = c"PMPI_Group_free"(group: *mut Word);
    /// `MPI_Group_translate_ranks`
    group_translate_ranks = c"PMPI_Group_translate_ranks"(
        group: Word, count: c_int, ranks: *const c_int, other: Word, translated: *mut c_int
    );
    /// `MPI_Type_create_keyval`
    type_create_keyval = c"PMPI_Type_create_keyval"(
        copy: CopyAttribute, delete: DeleteAttribute, keyval: *mut c_int, extra: *mut c_void
    );
    /// `MPI_Type_get_attr`
    type_get_attr = c"PMPI_Type_get_attr"(
        datatype: Word, keyval: c_int, value: *mut *mut c_void, flag: *mut c_int
    );
    /// `MPI_Type_set_attr`
    type_set_attr = c"PMPI_Type_set_attr"(datatype: Word, keyval: c_int, value: *mut c_void);
    /// `MPI_Type_get_name`
    type_get_name = c"PMPI_Type_get_name"(datatype: Word, name: *mut c_char, length: *mut c_int);
    /// `MPI_Type_dup`
    type_dup = c"PMPI_Type_dup"(datatype: Word, new: *mut Word);
    /// `MPI_Type_get_contents`; types are an array of handles.
    type_get_contents = c"PMPI_Type_get_contents"(
        datatype: Word, most_integers: c_int, most_addresses: c_int, most_types: c_int,
        integers: *mut c_int, addresses: *mut isize, types: *mut c_void
    );
    /// `MPI_Get_count_c`, which the standard ABI has
    get_count_c = c"PMPI_Get_count_c"(status: *const c_void, datatype: Word, count: *mut i64);
    /// `MPI_Status_set_elements_c`, which the standard ABI has
    status_set_elements_c = c"PMPI_Status_set_elements_c"(
        status: *mut c_void, datatype: Word, count: i64
    );
    /// `MPI_Test_cancelled`
    test_cancelled = c"PMPI_Test_cancelled"(status: *const c_void, flag: *mut c_int);
    /// `MPI_Status_set_cancelled`
    status_set_cancelled = c"PMPI_Status_set_cancelled"(status: *mut c_void, flag: c_int);
    /// `MPI_Grequest_start`
    grequest_start = c"PMPI_Grequest_start"(
        query: GrequestQuery, free: GrequestFree, cancel: GrequestCancel, extra: *mut c_void,
        request: *mut c_void
    );
    /// `MPI_Grequest_complete`
    grequest_complete = c"PMPI_Grequest_complete"(request: Word);
}

functions! { mod forwarded_packing:
    /// `MPI_Pack`
    pack = c"PMPI_Pack"(
        input: *const c_void, count: c_int, datatype: Word,
        output: *mut c_void, size: c_int, position: *mut c_int, comm: Word
    );
    /// `MPI_Unpack`
    unpack = c"PMPI_Unpack"(
        input: *const c_void, size: c_int, position: *mut c_int,
        output: *mut c_void, count: c_int, datatype: Word, comm: Word
    );
}

// Those that the program calls and we forward.
functions! { mod forwarded_functions:
    /// `MPI_Finalize`
    finalize = c"PMPI_Finalize"();
    /// `MPI_Init`
    init = c"PMPI_Init"(argc: *mut c_int, argv: *mut c_void);
    /// `MPI_Init_thread`
    init_thread = c"PMPI_Init_thread"(
        argc: *mut c_int, argv: *mut c_void, required: c_int, provided: *mut c_int
    );
    /// `MPI_Barrier`
    barrier = c"PMPI_Barrier"(comm: Word);
    /// `MPI_Type_free`
    type_free = c"PMPI_Type_free"(datatype: *mut Word);
    /// `MPI_Wait`
    wait = c"PMPI_Wait"(request: *mut c_void, status: *mut c_void);
    /// `MPI_Test`
    test = c"PMPI_Test"(request: *mut c_void, flag: *mut c_int, status: *mut c_void);
    /// `MPI_Waitall`
    waitall = c"PMPI_Waitall"(count: c_int, requests: *mut c_void, statuses: *mut c_void);
    /// `MPI_Testall`
    testall = c"PMPI_Testall"(
        count: c_int, requests: *mut c_void, flag: *mut c_int, statuses: *mut c_void
    );
    /// `MPI_Waitany`
    waitany = c"PMPI_Waitany"(
        count: c_int, requests: *mut c_void, index: *mut c_int, status: *mut c_void
    );
    /// `MPI_Testany`
    testany = c"PMPI_Testany"(
        count: c_int, requests: *mut c_void, index: *mut c_int, flag: *mut c_int,
        status: *mut c_void
    );
    /// `MPI_Waitsome`
    waitsome = c"PMPI_Waitsome"(
        count: c_int, requests: *mut c_void, done: *mut c_int, indices: *mut c_int,
        statuses: *mut c_void
    );
    /// `MPI_Testsome`
    testsome = c"PMPI_Testsome"(
        count: c_int, requests: *mut c_void, done: *mut c_int, indices: *mut c_int,
        statuses: *mut c_void
    );
    /// `MPI_Request_get_status`
    request_get_status = c"PMPI_Request_get_status"(
        request: Word, flag: *mut c_int, status: *mut c_void
    );
    /// `MPI_Request_get_status_any`, since MPI 4.1
    request_get_status_any = c"PMPI_Request_get_status_any"(
        count: c_int, requests: *mut c_void, index: *mut c_int, flag: *mut c_int,
        status: *mut c_void
    );
    /// `MPI_Request_get_status_all`, since MPI 4.1
    request_get_status_all = c"PMPI_Request_get_status_all"(
        count: c_int, requests: *mut c_void, flag: *mut c_int, statuses: *mut c_void
    );
    /// `MPI_Request_get_status_some`, since MPI 4.1
    request_get_status_some = c"PMPI_Request_get_status_some"(
        count: c_int, requests: *mut c_void, done: *mut c_int, indices: *mut c_int,
        statuses: *mut c_void
    );
    /// `MPI_Request_free`
    request_free = c"PMPI_Request_free"(request: *mut c_void);
    /// `MPI_Cancel`
    cancel = c"PMPI_Cancel"(request: *mut c_void);
    /// `MPI_Start`, with nothing pending
    start_settled = c"PMPI_Start"(request: *mut c_void);
    /// `MPI_Startall`, with nothing pending
    startall_settled = c"PMPI_Startall"(count: c_int, requests: *mut c_void);
    /// `MPI_Probe`
    probe = c"PMPI_Probe"(source: c_int, tag: c_int, comm: Word, status: *mut c_void);
    /// `MPI_Iprobe`
    iprobe = c"PMPI_Iprobe"(
        source: c_int, tag: c_int, comm: Word, flag: *mut c_int, status: *mut c_void
    );
    /// `MPI_Mprobe`
    mprobe = c"PMPI_Mprobe"(
        source: c_int, tag: c_int, comm: Word, message: *mut c_void, status: *mut c_void
    );
    /// `MPI_Improbe`
    improbe = c"PMPI_Improbe"(
        source: c_int, tag: c_int, comm: Word, flag: *mut c_int, message: *mut c_void,
        status: *mut c_void
    );
}

/// `MPI_Start`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn start(request: *mut c_void) -> c_int {
    match early::before() {
        // SAFETY: the caller's promise.
        Ok(()) => unsafe { start_settled(request) },
        Err(code) => code,
    }
}

/// Calls of the program that are forwarded: to a tool between us and the MPI library where there is one.
pub mod forward {
    use super::{c_int, c_void, early, forwarded_functions};

    pub use super::forwarded_collectives::*;
    pub use super::forwarded_functions::*;
    pub use super::forwarded_messages::*;
    pub use super::forwarded_packing::*;

    /// `MPI_Start`
    ///
    /// # Safety
    ///
    /// As the MPI standard says.
    pub unsafe fn start(request: *mut c_void) -> c_int {
        match early::before() {
            // SAFETY: the caller's promise.
            Ok(()) => unsafe { forwarded_functions::start_settled(request) },
            Err(code) => code,
        }
    }

    /// `MPI_Startall`
    ///
    /// # Safety
    ///
    /// As the MPI standard says.
    pub unsafe fn startall(count: c_int, requests: *mut c_void) -> c_int {
        match early::before() {
            // SAFETY: the caller's promise.
            Ok(()) => unsafe { forwarded_functions::startall_settled(count, requests) },
            Err(code) => code,
        }
    }
}

/// Declares point-to-point functions in both their forms; where a library has no form for large
/// counts, the other one does what it can.
macro_rules! messages {
    (mod $module:ident: $($all:tt)*) => {
        messages!(@with address if_any; $($all)*);

        mod $module {
            use super::*;

            messages!(@with next next_if_any; $($all)*);
        }
    };
    (@with $address:ident $if_any:ident;
     $($(#[$doc:meta])* $rust:ident = $name:literal, $large:literal
       ($($argument:ident: $kind:ident),*);)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[allow(clippy::too_many_arguments)]
        #[inline]
        // Not every function is called both for the program and by us.
        #[allow(dead_code)]
        pub unsafe fn $rust<N: Count>($($argument: message_kind!($kind)),*) -> c_int {
            if let Err(code) = early::before() {
                return code;
            }
            static FUNCTION: Function = Function::new($name);
            static LARGE: Function = Function::new($large);
            let own = if N::LARGE { LARGE.$if_any() } else { FUNCTION.$address() };
            if own != 0 {
                // SAFETY: the MPI library's function of this name has this type.
                return unsafe {
                    let call: unsafe extern "C" fn($(message_kind!($kind)),*) -> c_int =
                        std::mem::transmute(own);
                    call($($argument),*)
                };
            }
            let narrow = || {
                let address = FUNCTION.$address();
                if !N::LARGE || address == 0 {
                    return None;
                }
                $(let $argument = message_narrowed!($kind, $argument)?;)*
                // SAFETY: the MPI library's function of this name has this type.
                Some(unsafe {
                    let call: unsafe extern "C" fn($(narrow_message_kind!($kind)),*) -> c_int =
                        std::mem::transmute(address);
                    call($($argument),*)
                })
            };
            narrow().unwrap_or_else(|| {
                complain(concat!("no MPI library has ", stringify!($rust), " for this"));
                MISSING
            })
        }
    )* };
}

/// What an argument of a point-to-point function is.
macro_rules! message_kind {
    (input) => { *const c_void };
    (output) => { *mut c_void };
    (count) => { N };
    (handle) => { Word };
    (number) => { c_int };
}

/// What the same argument is where `int`s count.
macro_rules! narrow_message_kind {
    (count) => {
        c_int
    };
    ($other:ident) => {
        message_kind!($other)
    };
}

/// An argument as that; `None` if it does not fit.
macro_rules! message_narrowed {
    (count, $argument:ident) => {
        $argument.narrow()
    };
    ($other:ident, $argument:ident) => {
        Some($argument)
    };
}

messages! { mod forwarded_messages:
    /// `MPI_Send`
    send = c"PMPI_Send", c"PMPI_Send_c"(
        buffer: input, count: count, datatype: handle, dest: number, tag: number, comm: handle
    );
    /// `MPI_Ssend`
    ssend = c"PMPI_Ssend", c"PMPI_Ssend_c"(
        buffer: input, count: count, datatype: handle, dest: number, tag: number, comm: handle
    );
    /// `MPI_Isend`
    isend = c"PMPI_Isend", c"PMPI_Isend_c"(
        buffer: input, count: count, datatype: handle, dest: number, tag: number, comm: handle,
        request: output
    );
    /// `MPI_Issend`
    issend = c"PMPI_Issend", c"PMPI_Issend_c"(
        buffer: input, count: count, datatype: handle, dest: number, tag: number, comm: handle,
        request: output
    );
    /// `MPI_Recv`
    recv = c"PMPI_Recv", c"PMPI_Recv_c"(
        buffer: output, count: count, datatype: handle, source: number, tag: number,
        comm: handle, status: output
    );
    /// `MPI_Irecv`
    irecv = c"PMPI_Irecv", c"PMPI_Irecv_c"(
        buffer: output, count: count, datatype: handle, source: number, tag: number,
        comm: handle, request: output
    );
    /// `MPI_Sendrecv`
    sendrecv = c"PMPI_Sendrecv", c"PMPI_Sendrecv_c"(
        send: input, send_count: count, send_type: handle, dest: number, send_tag: number,
        recv: output, recv_count: count, recv_type: handle, source: number, recv_tag: number,
        comm: handle, status: output
    );
    /// `MPI_Sendrecv_replace`
    sendrecv_replace = c"PMPI_Sendrecv_replace", c"PMPI_Sendrecv_replace_c"(
        buffer: output, count: count, datatype: handle, dest: number, send_tag: number,
        source: number, recv_tag: number, comm: handle, status: output
    );
    /// `MPI_Isendrecv`
    isendrecv = c"PMPI_Isendrecv", c"PMPI_Isendrecv_c"(
        send: input, send_count: count, send_type: handle, dest: number, send_tag: number,
        recv: output, recv_count: count, recv_type: handle, source: number, recv_tag: number,
        comm: handle, request: output
    );
    /// `MPI_Isendrecv_replace`
    isendrecv_replace = c"PMPI_Isendrecv_replace", c"PMPI_Isendrecv_replace_c"(
        buffer: output, count: count, datatype: handle, dest: number, send_tag: number,
        source: number, recv_tag: number, comm: handle, request: output
    );
    /// `MPI_Send_init`
    send_init = c"PMPI_Send_init", c"PMPI_Send_init_c"(
        buffer: input, count: count, datatype: handle, dest: number, tag: number, comm: handle,
        request: output
    );
    /// `MPI_Ssend_init`
    ssend_init = c"PMPI_Ssend_init", c"PMPI_Ssend_init_c"(
        buffer: input, count: count, datatype: handle, dest: number, tag: number, comm: handle,
        request: output
    );
    /// `MPI_Recv_init`
    recv_init = c"PMPI_Recv_init", c"PMPI_Recv_init_c"(
        buffer: output, count: count, datatype: handle, source: number, tag: number,
        comm: handle, request: output
    );
    /// `MPI_Ibcast`
    ibcast = c"PMPI_Ibcast", c"PMPI_Ibcast_c"(
        buffer: output, count: count, datatype: handle, root: number, comm: handle, request: output
    );
    /// `MPI_Igather`
    igather = c"PMPI_Igather", c"PMPI_Igather_c"(
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, root: number, comm: handle,
        request: output
    );
    /// `MPI_Iscatter`
    iscatter = c"PMPI_Iscatter", c"PMPI_Iscatter_c"(
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, root: number, comm: handle,
        request: output
    );
    /// `MPI_Iallgather`
    iallgather = c"PMPI_Iallgather", c"PMPI_Iallgather_c"(
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, comm: handle, request: output
    );
    /// `MPI_Ialltoall`
    ialltoall = c"PMPI_Ialltoall", c"PMPI_Ialltoall_c"(
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, comm: handle, request: output
    );
    /// `MPI_Ireduce`
    ireduce = c"PMPI_Ireduce", c"PMPI_Ireduce_c"(
        send: input, recv: output, count: count, datatype: handle, op: handle, root: number,
        comm: handle, request: output
    );
    /// `MPI_Iallreduce`
    iallreduce = c"PMPI_Iallreduce", c"PMPI_Iallreduce_c"(
        send: input, recv: output, count: count, datatype: handle, op: handle, comm: handle,
        request: output
    );
    /// `MPI_Mrecv`
    mrecv = c"PMPI_Mrecv", c"PMPI_Mrecv_c"(
        buffer: output, count: count, datatype: handle, message: output, status: output
    );
    /// `MPI_Imrecv`
    imrecv = c"PMPI_Imrecv", c"PMPI_Imrecv_c"(
        buffer: output, count: count, datatype: handle, message: output, request: output
    );
}

/// Whether the library has functions of MPI 5, whatever its ABI, as MPICH has from 5.0 on.
pub fn is_mpi_5() -> bool {
    static FUNCTION: Function = Function::new(c"PMPI_Abi_get_version");
    FUNCTION.if_any() != 0
}

/// The combiner of a datatype. A library that has large counts has them in datatypes, too, and then
/// refuses to describe these with `int`s.
///
/// # Safety
///
/// As the MPI standard says of `MPI_Type_get_envelope`.
pub unsafe fn type_combiner(datatype: Word, combiner: *mut c_int) -> c_int {
    let mut large = 0;
    // SAFETY: a writable output; the caller's promise.
    unsafe { type_origin(datatype, combiner, &mut large) }
}

/// The combiner of a datatype, and how many large counts it was made with: with any, only the form for
/// large counts describes it.
///
/// # Safety
///
/// As the MPI standard says of `MPI_Type_get_envelope_c`.
pub unsafe fn type_origin(datatype: Word, combiner: *mut c_int, large: *mut Large) -> c_int {
    static FUNCTION: Function = Function::new(c"PMPI_Type_get_envelope_c");
    match FUNCTION.if_any() {
        0 => {
            let (mut a, mut b, mut c) = (0, 0, 0);
            // SAFETY: writable outputs; the caller's promise.
            unsafe {
                large.write(0);
                type_get_envelope(datatype, &mut a, &mut b, &mut c, combiner)
            }
        }
        address => {
            let (mut a, mut b, mut d) = (0, 0, 0);
            // SAFETY: the MPI library's function of this name has this type; writable outputs; the
            // caller's promise.
            unsafe {
                let call: unsafe extern "C" fn(
                    Word,
                    *mut Large,
                    *mut Large,
                    *mut Large,
                    *mut Large,
                    *mut c_int,
                ) -> c_int = std::mem::transmute(address);
                call(datatype, &mut a, &mut b, large, &mut d, combiner)
            }
        }
    }
}

collectives! { mod forwarded_collectives:
    /// `MPI_Bcast`
    bcast = c"PMPI_Bcast", c"PMPI_Bcast_c", Arrays::None => (
        buffer: output, count: count, datatype: handle, root: root; comm
    );
    /// `MPI_Gather`
    gather = c"PMPI_Gather", c"PMPI_Gather_c", Arrays::None => (
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, root: root; comm
    );
    /// `MPI_Scatter`
    scatter = c"PMPI_Scatter", c"PMPI_Scatter_c", Arrays::None => (
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, root: root; comm
    );
    /// `MPI_Allgather`
    allgather = c"PMPI_Allgather", c"PMPI_Allgather_c", Arrays::None => (
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle; comm
    );
    /// `MPI_Gatherv`
    gatherv = c"PMPI_Gatherv", c"PMPI_Gatherv_c", Arrays::AtRoot(root) => (
        send: input, send_count: count, send_type: handle,
        recv: output, counts: counts, places: places, recv_type: handle,
        root: root; comm
    );
    /// `MPI_Scatterv`
    scatterv = c"PMPI_Scatterv", c"PMPI_Scatterv_c", Arrays::AtRoot(root) => (
        send: input, counts: counts, places: places, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, root: root; comm
    );
    /// `MPI_Allgatherv`
    allgatherv = c"PMPI_Allgatherv", c"PMPI_Allgatherv_c", Arrays::PerPeer => (
        send: input, send_count: count, send_type: handle,
        recv: output, counts: counts, places: places, recv_type: handle;
        comm
    );
    /// `MPI_Alltoall`
    alltoall = c"PMPI_Alltoall", c"PMPI_Alltoall_c", Arrays::None => (
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle; comm
    );
    /// `MPI_Alltoallv`
    alltoallv = c"PMPI_Alltoallv", c"PMPI_Alltoallv_c", Arrays::Exchange(send) => (
        send: input, send_counts: sent_counts, send_places: sent_places,
        send_type: handle,
        recv: output, recv_counts: counts, recv_places: places,
        recv_type: handle; comm
    );
    /// `MPI_Alltoallw`; arrays of datatypes are arrays of handles, whatever these are.
    alltoallw = c"PMPI_Alltoallw", c"PMPI_Alltoallw_c", Arrays::Exchange(send) => (
        send: input, send_counts: sent_counts, send_places: sent_places,
        send_types: input,
        recv: output, recv_counts: counts, recv_places: places,
        recv_types: input; comm
    );
    /// `MPI_Reduce`
    reduce = c"PMPI_Reduce", c"PMPI_Reduce_c", Arrays::None => (
        send: input, recv: output, count: count, datatype: handle, op: handle,
        root: root; comm
    );
    /// `MPI_Allreduce`
    allreduce = c"PMPI_Allreduce", c"PMPI_Allreduce_c", Arrays::None => (
        send: input, recv: output, count: count, datatype: handle, op: handle;
        comm
    );
    /// `MPI_Reduce_scatter`
    reduce_scatter = c"PMPI_Reduce_scatter", c"PMPI_Reduce_scatter_c", Arrays::PerRank => (
        send: input, recv: output, counts: counts, datatype: handle, op: handle;
        comm
    );
    /// `MPI_Reduce_scatter_block`
    reduce_scatter_block = c"PMPI_Reduce_scatter_block", c"PMPI_Reduce_scatter_block_c", Arrays::None => (
        send: input, recv: output, count: count, datatype: handle, op: handle;
        comm
    );
    /// `MPI_Neighbor_alltoall`
    neighbor_alltoall = c"PMPI_Neighbor_alltoall", c"PMPI_Neighbor_alltoall_c", Arrays::None => (
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle; comm
    );
    /// `MPI_Neighbor_alltoallv`
    neighbor_alltoallv = c"PMPI_Neighbor_alltoallv", c"PMPI_Neighbor_alltoallv_c",
        Arrays::PerNeighbour => (
        send: input, send_counts: sent_counts, send_places: sent_places, send_type: handle,
        recv: output, recv_counts: counts, recv_places: places, recv_type: handle; comm
    );
    /// `MPI_Neighbor_alltoallw`; places are as wide in both forms.
    neighbor_alltoallw = c"PMPI_Neighbor_alltoallw", c"PMPI_Neighbor_alltoallw_c",
        Arrays::PerNeighbour => (
        send: input, send_counts: sent_counts, send_places: input, send_types: input,
        recv: output, recv_counts: counts, recv_places: input, recv_types: input; comm
    );
}

/// A function that moves a position, in the form in which it is called if the library has that; the
/// other one does what it can.
///
/// # Safety
///
/// The position is the caller's variable.
unsafe fn moving<N: Count>(
    (own, position): (usize, *mut N),
    (name, comm): (&str, Word),
    call: impl FnOnce(usize) -> c_int,
    narrow: impl FnOnce(*mut c_int) -> Option<c_int>,
) -> c_int {
    if own != 0 {
        return call(own);
    }
    let moved = || {
        if position.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let mut place = position.read().narrow()?;
            let code = narrow(&raw mut place)?;
            position.write(N::of(usize::try_from(place).ok()?)?);
            Some(code)
        }
    };
    moved().unwrap_or_else(|| refuse(&format!("no MPI library has {name} for this"), comm))
}

/// `MPI_Pack` in both its forms.
///
/// # Safety
///
/// As the MPI standard says.
#[allow(clippy::too_many_arguments)]
pub unsafe fn pack_any<N: Count>(
    input: *const c_void,
    count: N,
    datatype: Word,
    output: *mut c_void,
    size: N,
    position: *mut N,
    comm: Word,
) -> c_int {
    type Call<N> =
        unsafe extern "C" fn(*const c_void, N, Word, *mut c_void, N, *mut N, Word) -> c_int;
    static FUNCTION: Function = Function::new(c"PMPI_Pack");
    static LARGE: Function = Function::new(c"PMPI_Pack_c");
    let own = match N::LARGE {
        true => LARGE.next_if_any(),
        false => FUNCTION.next(),
    };
    // SAFETY: the MPI library's function of this name has this type; the caller's promise.
    unsafe {
        moving(
            (own, position),
            ("MPI_Pack_c", comm),
            |own| {
                let call: Call<N> = std::mem::transmute(own);
                call(input, count, datatype, output, size, position, comm)
            },
            |place| {
                let (count, size) = (count.narrow()?, size.narrow()?);
                Some(forward::pack(
                    input, count, datatype, output, size, place, comm,
                ))
            },
        )
    }
}

/// `MPI_Unpack` in the same way.
///
/// # Safety
///
/// As the MPI standard says.
#[allow(clippy::too_many_arguments)]
pub unsafe fn unpack_any<N: Count>(
    input: *const c_void,
    size: N,
    position: *mut N,
    output: *mut c_void,
    count: N,
    datatype: Word,
    comm: Word,
) -> c_int {
    type Call<N> =
        unsafe extern "C" fn(*const c_void, N, *mut N, *mut c_void, N, Word, Word) -> c_int;
    static FUNCTION: Function = Function::new(c"PMPI_Unpack");
    static LARGE: Function = Function::new(c"PMPI_Unpack_c");
    let own = match N::LARGE {
        true => LARGE.next_if_any(),
        false => FUNCTION.next(),
    };
    // SAFETY: the MPI library's function of this name has this type; the caller's promise.
    unsafe {
        moving(
            (own, position),
            ("MPI_Unpack_c", comm),
            |own| {
                let call: Call<N> = std::mem::transmute(own);
                call(input, size, position, output, count, datatype, comm)
            },
            |place| {
                let (count, size) = (count.narrow()?, size.narrow()?);
                Some(forward::unpack(
                    input, size, place, output, count, datatype, comm,
                ))
            },
        )
    }
}

/// `MPI_Pack_external` in both its forms, whose sizes are as wide.
///
/// # Safety
///
/// As the MPI standard says.
#[allow(clippy::too_many_arguments)]
pub unsafe fn pack_external_any<N: Count>(
    name: *const c_char,
    input: *const c_void,
    count: N,
    datatype: Word,
    output: *mut c_void,
    size: isize,
    position: *mut isize,
) -> c_int {
    type Call<N> = unsafe extern "C" fn(
        *const c_char,
        *const c_void,
        N,
        Word,
        *mut c_void,
        isize,
        *mut isize,
    ) -> c_int;
    static FUNCTION: Function = Function::new(c"PMPI_Pack_external");
    static LARGE: Function = Function::new(c"PMPI_Pack_external_c");
    // SAFETY: the MPI library's functions of these names have these types; the caller's promise.
    unsafe {
        if N::LARGE && LARGE.next_if_any() != 0 {
            let call: Call<N> = std::mem::transmute(LARGE.next());
            return call(name, input, count, datatype, output, size, position);
        }
        match (FUNCTION.next(), count.narrow()) {
            (0, _) | (_, None) => refuse_anywhere("no MPI library has MPI_Pack_external for this"),
            (own, Some(count)) => {
                let call: Call<c_int> = std::mem::transmute(own);
                call(name, input, count, datatype, output, size, position)
            }
        }
    }
}

/// `MPI_Unpack_external` in the same way.
///
/// # Safety
///
/// As the MPI standard says.
#[allow(clippy::too_many_arguments)]
pub unsafe fn unpack_external_any<N: Count>(
    name: *const c_char,
    input: *const c_void,
    size: isize,
    position: *mut isize,
    output: *mut c_void,
    count: N,
    datatype: Word,
) -> c_int {
    type Call<N> = unsafe extern "C" fn(
        *const c_char,
        *const c_void,
        isize,
        *mut isize,
        *mut c_void,
        N,
        Word,
    ) -> c_int;
    static FUNCTION: Function = Function::new(c"PMPI_Unpack_external");
    static LARGE: Function = Function::new(c"PMPI_Unpack_external_c");
    // SAFETY: the MPI library's functions of these names have these types; the caller's promise.
    unsafe {
        if N::LARGE && LARGE.next_if_any() != 0 {
            let call: Call<N> = std::mem::transmute(LARGE.next());
            return call(name, input, size, position, output, count, datatype);
        }
        match (FUNCTION.next(), count.narrow()) {
            (0, _) | (_, None) => {
                refuse_anywhere("no MPI library has MPI_Unpack_external for this")
            }
            (own, Some(count)) => {
                let call: Call<c_int> = std::mem::transmute(own);
                call(name, input, size, position, output, count, datatype)
            }
        }
    }
}

/// Has the error handler of `MPI_COMM_WORLD` hear of a call without a communicator that nobody can do.
#[cold]
fn refuse_anywhere(why: &str) -> c_int {
    match abi::get() {
        Ok(abi) if crate::world_model::is_active() => refuse(why, abi.world),
        _ => {
            complain(why);
            MISSING
        }
    }
}
