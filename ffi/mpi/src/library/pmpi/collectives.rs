// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives of the MPI library, in both their forms.

use std::ffi::{c_int, c_void};

use crate::library::abi::{Word, complain, function};
use crate::library::count::Count;
use crate::library::neighbourhood::Neighbours;
use crate::library::pmpi::functions::{
    MISSING, comm_call_errhandler, comm_rank, comm_remote_size, comm_size, comm_test_inter,
};
use crate::library::{abi, async_guard};

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
        // SAFETY: the MPI standard says that it is this long.
        unsafe { narrowed_array($argument, $lengths.all, N::narrow) }
    };
    (places, $argument:ident, $lengths:ident) => {
        // SAFETY: the MPI standard says that it is this long.
        unsafe { narrowed_array($argument, $lengths.all, N::narrow_place) }
    };
    (sent_counts, $argument:ident, $lengths:ident) => {
        // SAFETY: the MPI standard says that it is this long.
        unsafe { narrowed_array($argument, $lengths.sent, N::narrow) }
    };
    (sent_places, $argument:ident, $lengths:ident) => {
        // SAFETY: the MPI standard says that it is this long.
        unsafe { narrowed_array($argument, $lengths.sent, N::narrow_place) }
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
        collectives!(@with address if_any known_address; $($all)*);

        pub mod $module {
            use super::*;

            collectives!(@with next next_if_any known_next; $($all)*);
        }
    };
    (@with $address:ident $if_any:ident $known:ident;
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
                function!(FUNCTION = $name);
                function!(LARGE = $large);
                /// The same where something is pending, or the function has not been looked for.
                #[cold]
                #[inline(never)]
                #[allow(clippy::too_many_arguments)]
                unsafe extern "C" fn unusual<N: Count>($($argument: kind!($kind),)* $comm: Word) -> c_int {
                    if let Err(code) = async_guard::before() {
                        return code;
                    }
                    let own = if N::LARGE { LARGE.$if_any() } else { FUNCTION.$address() };
                    if own != 0 {
                        // SAFETY: the MPI library's function of this name has this type.
                        return unsafe {
                            let call: unsafe extern "C" fn($(kind!($kind),)* Word) -> c_int =
                                std::mem::transmute(own);
                            call($($argument,)* $comm)
                        };
                    }
                    // SAFETY: the caller's promise.
                    unsafe { other::<N>($($argument,)* $comm) }
                }
                /// The same where only the form without large counts is there.
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
                // One call in any case, which is but a jump.
                let own = if N::LARGE { LARGE.$known() } else { FUNCTION.$known() };
                let call: unsafe extern "C" fn($(kind!($kind),)* Word) -> c_int = if own == 0 || async_guard::is_needed() {
                    unusual::<N>
                } else {
                    // SAFETY: the MPI library's function of this name has this type.
                    unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($(kind!($kind),)* Word) -> c_int>(own) }
                };
                // SAFETY: the caller's promise.
                unsafe { call($($argument,)* $comm) }
            }
        )*
    };
}

/// Has a communicator's error handler hear of a call that nobody can do.
#[cold]
pub fn refuse(why: &str, comm: Word) -> c_int {
    complain(why);
    // SAFETY: the caller's communicator, which the library checks.
    unsafe { comm_call_errhandler(comm, MISSING) };
    MISSING
}

/// What arrays a collective has.
pub enum Arrays {
    /// There are none.
    None,
    /// One element for each rank that is received from.
    PerPeer,
    /// One element for each neighbour that is sent to or received from.
    PerNeighbour,
    /// One for each rank that is received from, and for each that is sent to, unless this send
    /// buffer is the other one.
    Exchange(*const c_void),
    /// One for each rank of the caller's group.
    PerRank,
    /// One for each that the root sends to or receives from; nobody else has any.
    AtRoot(c_int),
}

/// How long these are; arrays that MPI ignores may be anything.
pub struct Lengths {
    /// All but those below.
    pub all: usize,
    /// Of what is sent, where something else is received.
    pub sent: usize,
}

impl Arrays {
    /// How long they are in a call on this communicator.
    pub fn lengths(self, comm: Word) -> Lengths {
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
            Arrays::AtRoot(this) if Some(this) == root => (peers, peers),
            Arrays::AtRoot(_) => (0, 0),
        };
        Lengths {
            all: usize::try_from(all).unwrap_or(0),
            sent: usize::try_from(sent).unwrap_or(0),
        }
    }
}

/// An array's copy in `int`s.
///
/// # Safety
///
/// It is null, or has `length` elements.
pub unsafe fn narrowed_array<T: Copy>(
    array: *const T,
    length: usize,
    narrow: impl Fn(T) -> Option<c_int>,
) -> Option<Vec<c_int>> {
    if array.is_null() || length == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the caller's promise.
    let values = unsafe { std::slice::from_raw_parts(array, length) };
    values.iter().map(|value| narrow(*value)).collect()
}

/// Where a copy is; nowhere if there is nothing in it.
pub fn pointer(copy: &[c_int]) -> *const c_int {
    if copy.is_empty() {
        std::ptr::null()
    } else {
        copy.as_ptr()
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
