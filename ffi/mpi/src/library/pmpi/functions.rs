// SPDX-License-Identifier: MIT OR Apache-2.0

//! Functions of the MPI library with one form, by their profiling names (MPI 4.1, section 15.2).

use std::ffi::{c_char, c_int, c_void};

use crate::library::abi::{Word, function, profiling_name};
use crate::library::count::Large;

/// Declares functions that are called through the library's address. One that is missing answers
/// with an error code that no library uses for success. With a module's name in front, that module
/// has the same functions for calls of the program that are forwarded, which a tool may stand in
/// front of.
macro_rules! functions {
    (mod $module:ident: $($all:tt)*) => {
        functions!(@with address known_address; $($all)*);

        pub mod $module {
            use super::*;

            functions!(@with next known_next; $($all)*);
        }
    };
    (@with $address:ident $known:ident;
     $($rust:ident = $name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`")]
            ///
            /// # Safety
            ///
            /// As the MPI standard says.
            #[allow(clippy::too_many_arguments)]
            // Not every function is called both for the program and by us.
            #[allow(dead_code)]
            pub unsafe fn $rust($($argument: $kind),*) -> c_int {
                function!(FUNCTION = profiling_name!($name));
                type Call = unsafe extern "C-unwind" fn($($kind),*) -> c_int;
                /// The same where the function has not been looked for. Elsewhere, so that there is
                /// but a jump.
                #[cold]
                #[inline(never)]
                #[allow(clippy::too_many_arguments)]
                unsafe extern "C-unwind" fn first($($argument: $kind),*) -> c_int {
                    match FUNCTION.$address() {
                        0 => MISSING,
                        // SAFETY: the MPI library's function of this name has this type.
                        address => unsafe {
                            std::mem::transmute::<usize, Call>(address)($($argument),*)
                        },
                    }
                }
                let call: Call = match FUNCTION.$known() {
                    0 => first,
                    // SAFETY: the MPI library's function of this name has this type.
                    address => unsafe { std::mem::transmute::<usize, Call>(address) },
                };
                // SAFETY: the caller's promise.
                unsafe { call($($argument),*) }
            }
        )*
    };
    ($($all:tt)*) => {
        functions!(@with address known_address; $($all)*);
    };
}

/// Handles of Open MPI's Fortran as C's, and back. Where the library lacks a conversion, the result
/// is 0, which is no handle.
macro_rules! conversions {
    ($($rust:ident = $name:ident($from:ty) -> $to:ty;)*) => { $(
        #[doc = concat!("`", stringify!($name), "`")]
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        pub unsafe fn $rust(handle: $from) -> $to {
            function!(FUNCTION = profiling_name!($name));
            match FUNCTION.address() {
                0 => 0,
                address => {
                    // SAFETY: the MPI library's function of this name has this type.
                    unsafe {
                        let call: unsafe extern "C-unwind" fn($from) -> $to =
                            std::mem::transmute(address);
                        call(handle)
                    }
                }
            }
        }
    )* };
}

conversions! {
    comm_f2c = MPI_Comm_f2c(c_int) -> Word;
    type_f2c = MPI_Type_f2c(c_int) -> Word;
    op_f2c = MPI_Op_f2c(c_int) -> Word;
    request_f2c = MPI_Request_f2c(c_int) -> Word;
    message_f2c = MPI_Message_f2c(c_int) -> Word;
    info_f2c = MPI_Info_f2c(c_int) -> Word;
    request_c2f = MPI_Request_c2f(Word) -> c_int;
    message_c2f = MPI_Message_c2f(Word) -> c_int;
    type_c2f = MPI_Type_c2f(Word) -> c_int;
}

/// What a function that is not there answers: `MPI_ERR_OTHER` of Open MPI.
pub const MISSING: c_int = 16;

/// `MPI_Comm_copy_attr_function`
pub type CopyAttribute = unsafe extern "C-unwind" fn(
    Word,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_int,
) -> c_int;
/// `MPI_Comm_delete_attr_function`
pub type DeleteAttribute =
    unsafe extern "C-unwind" fn(Word, c_int, *mut c_void, *mut c_void) -> c_int;

/// `MPI_Grequest_query_function`
pub type GrequestQuery = unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int;
/// `MPI_Grequest_free_function`
pub type GrequestFree = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;
/// `MPI_Grequest_cancel_function`
pub type GrequestCancel = unsafe extern "C-unwind" fn(*mut c_void, c_int) -> c_int;

functions! {
    reduce_local = MPI_Reduce_local(
        from: *const c_void, to: *mut c_void, count: c_int, datatype: Word, op: Word
    );
    initialized = MPI_Initialized(flag: *mut c_int);
    finalized = MPI_Finalized(flag: *mut c_int);
    comm_rank = MPI_Comm_rank(comm: Word, rank: *mut c_int);
    comm_size = MPI_Comm_size(comm: Word, size: *mut c_int);
    comm_remote_size = MPI_Comm_remote_size(comm: Word, size: *mut c_int);
    comm_test_inter = MPI_Comm_test_inter(comm: Word, flag: *mut c_int);
    comm_split_type = MPI_Comm_split_type(
        comm: Word, kind: c_int, key: c_int, info: Word, new: *mut Word
    );
    comm_split = MPI_Comm_split(comm: Word, color: c_int, key: c_int, new: *mut Word);
    ibarrier = MPI_Ibarrier(comm: Word, request: *mut c_void);
    comm_free = MPI_Comm_free(comm: *mut Word);
    comm_create_keyval = MPI_Comm_create_keyval(
        copy: CopyAttribute, delete: DeleteAttribute, keyval: *mut c_int, extra: *mut c_void
    );
    comm_get_attr = MPI_Comm_get_attr(
        comm: Word, keyval: c_int, value: *mut *mut c_void, flag: *mut c_int
    );
    comm_set_attr = MPI_Comm_set_attr(comm: Word, keyval: c_int, value: *mut c_void);
    error_class = MPI_Error_class(code: c_int, class: *mut c_int);
    add_error_class = MPI_Add_error_class(class: *mut c_int);
    add_error_string = MPI_Add_error_string(code: c_int, text: *const c_char);
    comm_call_errhandler = MPI_Comm_call_errhandler(comm: Word, code: c_int);
    type_size = MPI_Type_size_x(datatype: Word, size: *mut i64);
    type_get_extent = MPI_Type_get_extent(
        datatype: Word, lower_bound: *mut isize, extent: *mut isize
    );
    type_get_true_extent = MPI_Type_get_true_extent(
        datatype: Word, lower_bound: *mut isize, extent: *mut isize
    );
    // A variable of a handle's width.
    type_contiguous = MPI_Type_contiguous(count: c_int, old: Word, new: *mut Word);
    type_get_envelope = MPI_Type_get_envelope(
        datatype: Word, integers: *mut c_int, addresses: *mut c_int, types: *mut c_int,
        combiner: *mut c_int
    );
    type_create_hindexed = MPI_Type_create_hindexed(
        count: c_int, lengths: *const c_int, places: *const isize, old: Word, new: *mut Word
    );
    type_vector = MPI_Type_vector(
        count: c_int, length: c_int, stride: c_int, old: Word, new: *mut Word
    );
    type_commit = MPI_Type_commit(datatype: *mut Word);
    pack_size = MPI_Pack_size(
        count: c_int, datatype: Word, comm: Word, size: *mut c_int
    );
    pack_external_size = MPI_Pack_external_size(
        name: *const c_char, count: c_int, datatype: Word, size: *mut isize
    );
}

functions! {
    // A variable of a handle's width.
    comm_get_errhandler = MPI_Comm_get_errhandler(comm: Word, handler: *mut c_void);
    comm_set_errhandler = MPI_Comm_set_errhandler(comm: Word, handler: Word);
    errhandler_free = MPI_Errhandler_free(handler: *mut c_void);
    topo_test = MPI_Topo_test(comm: Word, kind: *mut c_int);
    cartdim_get = MPI_Cartdim_get(comm: Word, dimensions: *mut c_int);
    cart_shift = MPI_Cart_shift(
        comm: Word, dimension: c_int, steps: c_int, before: *mut c_int, after: *mut c_int
    );
    graph_neighbors_count = MPI_Graph_neighbors_count(
        comm: Word, rank: c_int, count: *mut c_int
    );
    graph_neighbors = MPI_Graph_neighbors(
        comm: Word, rank: c_int, most: c_int, neighbors: *mut c_int
    );
    dist_graph_neighbors_count = MPI_Dist_graph_neighbors_count(
        comm: Word, sources: *mut c_int, destinations: *mut c_int, weighted: *mut c_int
    );
    dist_graph_neighbors = MPI_Dist_graph_neighbors(
        comm: Word, most_sources: c_int, sources: *mut c_int, source_weights: *mut c_int,
        most_destinations: c_int, destinations: *mut c_int, destination_weights: *mut c_int
    );
    query_thread = MPI_Query_thread(provided: *mut c_int);
    comm_group = MPI_Comm_group(comm: Word, group: *mut Word);
    comm_create_group = MPI_Comm_create_group(
        comm: Word, group: Word, tag: c_int, new: *mut Word);
    group_incl = MPI_Group_incl(group: Word, n: c_int, ranks: *const c_int, new: *mut Word);
    group_free = MPI_Group_free(group: *mut Word);
    group_translate_ranks = MPI_Group_translate_ranks(
        group: Word, count: c_int, ranks: *const c_int, other: Word, translated: *mut c_int
    );
    type_create_keyval = MPI_Type_create_keyval(
        copy: CopyAttribute, delete: DeleteAttribute, keyval: *mut c_int, extra: *mut c_void
    );
    type_get_attr = MPI_Type_get_attr(
        datatype: Word, keyval: c_int, value: *mut *mut c_void, flag: *mut c_int
    );
    type_set_attr = MPI_Type_set_attr(datatype: Word, keyval: c_int, value: *mut c_void);
    type_get_name = MPI_Type_get_name(datatype: Word, name: *mut c_char, length: *mut c_int);
    type_dup = MPI_Type_dup(datatype: Word, new: *mut Word);
    // Types are an array of handles.
    type_get_contents = MPI_Type_get_contents(
        datatype: Word, most_integers: c_int, most_addresses: c_int, most_types: c_int,
        integers: *mut c_int, addresses: *mut isize, types: *mut c_void
    );
    // The standard ABI has this function.
    get_count_c = MPI_Get_count_c(status: *const c_void, datatype: Word, count: *mut i64);
    // The standard ABI has this function.
    status_set_elements_c = MPI_Status_set_elements_c(
        status: *mut c_void, datatype: Word, count: i64
    );
    test_cancelled = MPI_Test_cancelled(status: *const c_void, flag: *mut c_int);
    status_set_cancelled = MPI_Status_set_cancelled(status: *mut c_void, flag: c_int);
    grequest_start = MPI_Grequest_start(
        query: GrequestQuery, free: GrequestFree, cancel: GrequestCancel, extra: *mut c_void,
        request: *mut c_void
    );
    grequest_complete = MPI_Grequest_complete(request: Word);
    pack = MPI_Pack(
        input: *const c_void, count: c_int, datatype: Word,
        output: *mut c_void, size: c_int, position: *mut c_int, comm: Word
    );
    unpack = MPI_Unpack(
        input: *const c_void, size: c_int, position: *mut c_int,
        output: *mut c_void, count: c_int, datatype: Word, comm: Word
    );
}

// Those that the program calls and we forward.
functions! { mod forwarded_functions:
    finalize = MPI_Finalize();
    init = MPI_Init(argc: *mut c_int, argv: *mut c_void);
    init_thread = MPI_Init_thread(
        argc: *mut c_int, argv: *mut c_void, required: c_int, provided: *mut c_int
    );
    barrier = MPI_Barrier(comm: Word);
    type_free = MPI_Type_free(datatype: *mut Word);
    wait = MPI_Wait(request: *mut c_void, status: *mut c_void);
    test = MPI_Test(request: *mut c_void, flag: *mut c_int, status: *mut c_void);
    waitall = MPI_Waitall(count: c_int, requests: *mut c_void, statuses: *mut c_void);
    testall = MPI_Testall(
        count: c_int, requests: *mut c_void, flag: *mut c_int, statuses: *mut c_void
    );
    waitany = MPI_Waitany(
        count: c_int, requests: *mut c_void, index: *mut c_int, status: *mut c_void
    );
    testany = MPI_Testany(
        count: c_int, requests: *mut c_void, index: *mut c_int, flag: *mut c_int,
        status: *mut c_void
    );
    waitsome = MPI_Waitsome(
        count: c_int, requests: *mut c_void, done: *mut c_int, indices: *mut c_int,
        statuses: *mut c_void
    );
    testsome = MPI_Testsome(
        count: c_int, requests: *mut c_void, done: *mut c_int, indices: *mut c_int,
        statuses: *mut c_void
    );
    request_get_status = MPI_Request_get_status(
        request: Word, flag: *mut c_int, status: *mut c_void
    );
    // Since MPI 4.1.
    request_get_status_any = MPI_Request_get_status_any(
        count: c_int, requests: *mut c_void, index: *mut c_int, flag: *mut c_int,
        status: *mut c_void
    );
    // Since MPI 4.1.
    request_get_status_all = MPI_Request_get_status_all(
        count: c_int, requests: *mut c_void, flag: *mut c_int, statuses: *mut c_void
    );
    // Since MPI 4.1.
    request_get_status_some = MPI_Request_get_status_some(
        count: c_int, requests: *mut c_void, done: *mut c_int, indices: *mut c_int,
        statuses: *mut c_void
    );
    request_free = MPI_Request_free(request: *mut c_void);
    cancel = MPI_Cancel(request: *mut c_void);
    // The caller has settled what is pending.
    start_settled = MPI_Start(request: *mut c_void);
    // The caller has settled what is pending.
    startall_settled = MPI_Startall(count: c_int, requests: *mut c_void);
    probe = MPI_Probe(source: c_int, tag: c_int, comm: Word, status: *mut c_void);
    iprobe = MPI_Iprobe(
        source: c_int, tag: c_int, comm: Word, flag: *mut c_int, status: *mut c_void
    );
    mprobe = MPI_Mprobe(
        source: c_int, tag: c_int, comm: Word, message: *mut c_void, status: *mut c_void
    );
    improbe = MPI_Improbe(
        source: c_int, tag: c_int, comm: Word, flag: *mut c_int, message: *mut c_void,
        status: *mut c_void
    );
}

/// Whether the library has functions of MPI 5, whatever its ABI, as MPICH has from 5.0 on.
pub fn is_mpi_5() -> bool {
    function!(FUNCTION = c"PMPI_Abi_get_version");
    FUNCTION.if_any() != 0
}

/// How a datatype was made: with which constructor, and with how many arguments of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct Envelope {
    pub integers: Large,
    pub addresses: Large,
    /// Of these a type has some that was made by a function for large counts.
    pub large: Large,
    pub types: Large,
    pub combiner: c_int,
}

/// The combiner of a datatype.
///
/// # Safety
///
/// As the MPI standard says of `MPI_Type_get_envelope`.
pub unsafe fn type_combiner(datatype: Word, combiner: *mut c_int) -> c_int {
    let mut envelope = Envelope::default();
    // SAFETY: the caller's promise.
    unsafe {
        let code = type_envelope(datatype, &mut envelope);
        combiner.write(envelope.combiner);
        code
    }
}

/// `MPI_Type_get_envelope_c`, or `MPI_Type_get_envelope` of a library without large counts. A
/// library that has them refuses to describe types that were made with them in `int`s; MPICH calls
/// the error handler, which ends the program.
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn type_envelope(datatype: Word, envelope: &mut Envelope) -> c_int {
    function!(FUNCTION = c"PMPI_Type_get_envelope_c");
    let Envelope {
        integers,
        addresses,
        large,
        types,
        combiner,
    } = envelope;
    match FUNCTION.if_any() {
        0 => {
            let mut counts = [0 as c_int; 3];
            let [a, b, c] = &mut counts;
            // SAFETY: writable outputs; the caller's promise.
            let code = unsafe { type_get_envelope(datatype, a, b, c, combiner) };
            [*integers, *addresses, *types] = counts.map(Large::from);
            *large = 0;
            code
        }
        address => {
            type Call = unsafe extern "C-unwind" fn(
                Word,
                *mut Large,
                *mut Large,
                *mut Large,
                *mut Large,
                *mut c_int,
            ) -> c_int;
            // SAFETY: the MPI library's function of this name has this type; writable outputs; the
            // caller's promise.
            unsafe {
                let call: Call = std::mem::transmute(address);
                call(datatype, integers, addresses, large, types, combiner)
            }
        }
    }
}

/// The arguments that a datatype was made with: `MPI_Type_get_contents_c` if there are large counts
/// among them, else `MPI_Type_get_contents`. Types are an array of handles.
///
/// # Safety
///
/// As the MPI standard says; the arrays are as long as `envelope`, which is the datatype's, says.
pub unsafe fn type_contents(
    datatype: Word,
    envelope: &Envelope,
    (integers, addresses, large, types): (*mut c_int, *mut isize, *mut Large, *mut c_void),
) -> c_int {
    function!(FUNCTION = c"PMPI_Type_get_contents_c");
    let most = [envelope.integers, envelope.addresses, envelope.types];
    if envelope.large == 0 {
        let [a, b, c] = most.map(|count| c_int::try_from(count).unwrap_or(0));
        // SAFETY: the caller's promise.
        return unsafe { type_get_contents(datatype, a, b, c, integers, addresses, types) };
    }
    type Call = unsafe extern "C-unwind" fn(
        Word,
        Large,
        Large,
        Large,
        Large,
        *mut c_int,
        *mut isize,
        *mut Large,
        *mut c_void,
    ) -> c_int;
    match FUNCTION.if_any() {
        0 => MISSING,
        address => {
            let [a, b, d] = most;
            // SAFETY: the MPI library's function of this name has this type; the caller's promise.
            unsafe {
                let call: Call = std::mem::transmute(address);
                call(
                    datatype,
                    a,
                    b,
                    envelope.large,
                    d,
                    integers,
                    addresses,
                    large,
                    types,
                )
            }
        }
    }
}
