// SPDX-License-Identifier: MIT OR Apache-2.0

//! The collectives as C programs call them, in both forms: with `int`s, and with `MPI_Count`s,
//! which MPICH has since 4.0 and Open MPI 4.1 has not; what is passed on there goes to the other form.

use std::ffi::{c_int, c_void};

use crate::abi::Word;
use crate::count::{Count, Large};
use crate::{irregular, reductions, regular};

/// Exports both forms of a function. `N` counts elements, `P` says where they are.
macro_rules! exports {
    ($($name:ident, $large:ident = $body:path, $arguments:tt;)*) => { $(
        exports!(@form c_int, $name = $body, $arguments);
        exports!(@form Large, $large = $body, $arguments);
    )* };
    (@form $count:ty, $name:ident = $body:path, ($($argument:ident: $kind:ty),*)) => {
        const _: () = {
            #[allow(dead_code)]
            type N = $count;
            #[allow(dead_code)]
            type P = <$count as Count>::Place;

            /// The MPI function of this name.
            ///
            /// # Safety
            ///
            /// As the MPI standard says.
            #[allow(clippy::too_many_arguments)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                // SAFETY: the caller's promise.
                unsafe { $body($($argument),*) }
            }
        };
    };
}

exports! {
    MPI_Bcast, MPI_Bcast_c = regular::bcast,
        (buffer: *mut c_void, count: N, datatype: Word, root: c_int, comm: Word);
    MPI_Gather, MPI_Gather_c = regular::gather,
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word, root: c_int, comm: Word);
    MPI_Scatter, MPI_Scatter_c = regular::scatter,
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word, root: c_int, comm: Word);
    MPI_Allgather, MPI_Allgather_c = regular::allgather,
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word, comm: Word);
    MPI_Alltoall, MPI_Alltoall_c = regular::alltoall,
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word, comm: Word);
    MPI_Gatherv, MPI_Gatherv_c = irregular::gatherv,
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, counts: *const N, places: *const P, recv_type: Word,
         root: c_int, comm: Word);
    MPI_Scatterv, MPI_Scatterv_c = irregular::scatterv,
        (send: *const c_void, counts: *const N, places: *const P, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word, root: c_int, comm: Word);
    MPI_Allgatherv, MPI_Allgatherv_c = irregular::allgatherv,
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, counts: *const N, places: *const P, recv_type: Word, comm: Word);
    MPI_Alltoallv, MPI_Alltoallv_c = irregular::alltoallv,
        (send: *const c_void, send_counts: *const N, send_places: *const P, send_type: Word,
         recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_type: Word,
         comm: Word);
    MPI_Alltoallw, MPI_Alltoallw_c = irregular::alltoallw,
        (send: *const c_void, send_counts: *const N, send_places: *const P,
         send_types: *const c_void,
         recv: *mut c_void, recv_counts: *const N, recv_places: *const P,
         recv_types: *const c_void, comm: Word);
    MPI_Reduce, MPI_Reduce_c = reductions::reduce,
        (send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word,
         root: c_int, comm: Word);
    MPI_Allreduce, MPI_Allreduce_c = reductions::allreduce,
        (send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word,
         comm: Word);
    MPI_Reduce_scatter, MPI_Reduce_scatter_c = reductions::reduce_scatter,
        (send: *const c_void, recv: *mut c_void, counts: *const N, datatype: Word, op: Word,
         comm: Word);
    MPI_Reduce_scatter_block, MPI_Reduce_scatter_block_c = reductions::reduce_scatter_block,
        (send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word,
         comm: Word);
}
