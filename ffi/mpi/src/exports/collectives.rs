// SPDX-License-Identifier: MIT OR Apache-2.0

//! The collectives as C programs call them, in both forms: with `int`s, and with `MPI_Count`s,
//! which MPICH has since 4.0 and Open MPI 4.1 has not; what is forwarded there goes to the other
//! form.

use std::ffi::{c_int, c_void};

use crate::collectives::small_calls::{are_small_parts, are_small_together, were_small};
use crate::collectives::{barrier, irregular, neighbours, reductions, regular};
use crate::decide::threshold::{is_small, is_special};
use crate::library::abi::Word;
use crate::library::count::{Count, Large};
use crate::library::pmpi::forward;
use crate::library::stats::Function;
use crate::messages::rdma_alltoallw;
use crate::packing::pack;
use crate::types::datatype;
use crate::{gpu, messages};

/// Exports both forms of a function. `N` counts elements, `P` says where they are. What is small
/// goes to the library at once. Behind the arguments are those that [`gpu::Collective`] replaces
/// where buffers are in device memory.
macro_rules! exports {
    ($($name:ident, $large:ident = $module:ident $body:ident, $small:expr, $arguments:tt, $gpu:tt;)*) => { $(
        exports!(@form c_int, $name = $module $body, $small, $arguments, $gpu);
        exports!(@form Large, $large = $module $body, $small, $arguments, $gpu);
    )* };
    (@form $count:ty, $name:ident = $module:ident $body:ident, $small:expr, ($($argument:ident: $kind:ty),*),
     $gpu:tt) => {
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
                gpu::staged_collective!($name, ($($argument: $kind),*), new, $body $gpu, block);
                /// The same where libraries or freed requests have to be looked at. Elsewhere, so
                /// that what is small needs no room on the stack.
                #[cold]
                #[inline(never)]
                #[allow(clippy::too_many_arguments)]
                unsafe extern "C" fn other($($argument: $kind),*) -> c_int {
                    // SAFETY: the caller's promise.
                    unsafe {
                        if gpu::is_loaded() && gpu::is_outside() {
                            return staged($($argument),*);
                        }
                        if messages::has_orphans() {
                            return messages::settle_orphans($module::$body($($argument),*));
                        }
                        if $small {
                            return forward::$body($($argument),*);
                        }
                        $module::$body($($argument),*)
                    }
                }
                // SAFETY: the caller's promise.
                unsafe {
                    if gpu::may_be_loaded() || messages::has_orphans() {
                        return other($($argument),*);
                    }
                    if $small {
                        return forward::$body($($argument),*);
                    }
                    $module::$body($($argument),*)
                }
            }
        };
    };
}

exports! {
    MPI_Bcast, MPI_Bcast_c = regular bcast,
        is_small(Function::Bcast, count, datatype),
        (buffer: *mut c_void, count: N, datatype: Word, root: c_int, comm: Word),
        (comm; &mut buffer, (&count, &mut datatype), root);
    MPI_Gather, MPI_Gather_c = regular gather,
        !is_special(send) && is_small(Function::Gather, send_count, send_type),
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word, root: c_int, comm: Word),
        (comm; (&mut send, (&send_count, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)), root);
    MPI_Scatter, MPI_Scatter_c = regular scatter,
        !is_special(recv) && is_small(Function::Scatter, recv_count, recv_type),
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word, root: c_int, comm: Word),
        (comm; (&mut send, (&send_count, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)), root);
    MPI_Allgather, MPI_Allgather_c = regular allgather,
        is_small(Function::Allgather, recv_count, recv_type),
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word, comm: Word),
        (comm; (&mut send, (&send_count, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)));
    MPI_Alltoall, MPI_Alltoall_c = regular alltoall,
        is_small(Function::Alltoall, recv_count, recv_type),
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word, comm: Word),
        (comm; (&mut send, (&send_count, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)));
    MPI_Gatherv, MPI_Gatherv_c = irregular gatherv,
        were_small(Function::Gatherv, comm),
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, counts: *const N, places: *const P, recv_type: Word,
         root: c_int, comm: Word),
        (comm; (&mut send, (&send_count, &mut send_type)), (&mut recv, (counts, &mut places, &mut recv_type)), root);
    MPI_Scatterv, MPI_Scatterv_c = irregular scatterv,
        were_small(Function::Scatterv, comm),
        (send: *const c_void, counts: *const N, places: *const P, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word, root: c_int, comm: Word),
        (comm; (&mut send, (counts, &mut places, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)), root);
    MPI_Allgatherv, MPI_Allgatherv_c = irregular allgatherv,
        are_small_parts(Function::Allgatherv, counts, recv_type, comm),
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, counts: *const N, places: *const P, recv_type: Word, comm: Word),
        (comm; (&mut send, (&send_count, &mut send_type)), (&mut recv, (counts, &mut places, &mut recv_type)));
    MPI_Alltoallv, MPI_Alltoallv_c = irregular alltoallv,
        were_small(Function::Alltoallv, comm),
        (send: *const c_void, send_counts: *const N, send_places: *const P, send_type: Word,
         recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_type: Word,
         comm: Word),
        (comm; (&mut send, (send_counts, &mut send_places, &mut send_type)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_type)));
    MPI_Alltoallw, MPI_Alltoallw_c = rdma_alltoallw alltoallw,
        !messages::is_joint() && were_small(Function::Alltoallw, comm),
        (send: *const c_void, send_counts: *const N, send_places: *const P,
         send_types: *const c_void,
         recv: *mut c_void, recv_counts: *const N, recv_places: *const P,
         recv_types: *const c_void, comm: Word),
        (comm; (&mut send, (send_counts, &mut send_places, &mut send_types)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_types)));
    MPI_Reduce, MPI_Reduce_c = reductions reduce,
        is_small(Function::Reduce, count, datatype),
        (send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word,
         root: c_int, comm: Word),
        (comm; &mut send, &mut recv, (count, datatype), root);
    MPI_Allreduce, MPI_Allreduce_c = reductions allreduce,
        is_small(Function::Allreduce, count, datatype),
        (send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word,
         comm: Word),
        (comm; &mut send, &mut recv, (count, datatype));
    MPI_Reduce_scatter, MPI_Reduce_scatter_c = reductions reduce_scatter,
        are_small_together(Function::ReduceScatter, counts, datatype, comm),
        (send: *const c_void, recv: *mut c_void, counts: *const N, datatype: Word, op: Word,
         comm: Word),
        (comm; &mut send, &mut recv, (counts, datatype));
    MPI_Reduce_scatter_block, MPI_Reduce_scatter_block_c = reductions reduce_scatter_block,
        is_small(Function::ReduceScatterBlock, count, datatype),
        (send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word,
         comm: Word),
        (comm; &mut send, &mut recv, (count, datatype));
    MPI_Neighbor_alltoall, MPI_Neighbor_alltoall_c = neighbours neighbor_alltoall,
        were_small(Function::NeighborAlltoall, comm),
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word, comm: Word),
        (comm; (&mut send, (&send_count, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)));
    MPI_Neighbor_alltoallv, MPI_Neighbor_alltoallv_c = neighbours neighbor_alltoallv,
        were_small(Function::NeighborAlltoallv, comm),
        (send: *const c_void, send_counts: *const N, send_places: *const P, send_type: Word,
         recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_type: Word,
         comm: Word),
        (comm; (&mut send, (send_counts, &mut send_places, &mut send_type)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_type)));
}

/// The MPI function of this name.
///
/// # Safety
///
/// As the MPI standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Barrier(comm: Word) -> c_int {
    if gpu::has_requests() {
        gpu::wait_for_others();
    }
    gpu::before_waiting();
    // SAFETY: the caller's promise.
    let code = unsafe { barrier::barrier(comm) };
    if messages::has_orphans() {
        messages::settle_orphans(code)
    } else {
        code
    }
}

/// The MPI function of this name.
///
/// # Safety
///
/// As the MPI standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn MPI_Type_free(datatype: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { datatype::free(datatype) }
}

/// Declares functions that are no collectives in both forms.
macro_rules! packs {
    ($($name:ident, $large:ident = $body:ident ($($argument:ident: $kind:ty),*);)*) => { $(
        packs!(@form c_int, $name = $body ($($argument: $kind),*));
        packs!(@form Large, $large = $body ($($argument: $kind),*));
    )* };
    (@form $count:ty, $name:ident = $body:ident ($($argument:ident: $kind:ty),*)) => {
        const _: () = {
            type N = $count;

            /// The MPI function of this name.
            ///
            /// # Safety
            ///
            /// As the MPI standard says.
            #[allow(clippy::too_many_arguments)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                // SAFETY: the caller's promise.
                unsafe {
                    if gpu::is_loaded() {
                        if let Some(code) = gpu::$body::<N>($($argument),*) {
                            return code;
                        }
                    }
                    pack::$body::<N>($($argument),*)
                }
            }
        };
    };
}

packs! {
    MPI_Pack, MPI_Pack_c = pack(
        input: *const c_void, count: N, datatype: Word, output: *mut c_void, size: N,
        position: *mut N, comm: Word);
    MPI_Unpack, MPI_Unpack_c = unpack(
        input: *const c_void, size: N, position: *mut N, output: *mut c_void, count: N,
        datatype: Word, comm: Word);
}

/// Both forms of a function whose places are as wide in either.
macro_rules! neighbor_alltoallw {
    ($($name:ident = $count:ty;)*) => { $(
        /// The MPI function of this name.
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[allow(clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            send: *const c_void,
            send_counts: *const $count,
            send_places: *const isize,
            send_types: *const c_void,
            recv: *mut c_void,
            recv_counts: *const $count,
            recv_places: *const isize,
            recv_types: *const c_void,
            comm: Word,
        ) -> c_int {
            /// The same with host memory in the place of what is in device memory.
            #[cold]
            #[inline(never)]
            #[allow(clippy::too_many_arguments)]
            unsafe extern "C" fn staged(
                mut send: *const c_void,
                send_counts: *const $count,
                mut send_places: *const isize,
                mut send_types: *const c_void,
                mut recv: *mut c_void,
                recv_counts: *const $count,
                mut recv_places: *const isize,
                mut recv_types: *const c_void,
                comm: Word,
            ) -> c_int {
                // SAFETY: the caller's promise.
                unsafe {
                    gpu::get_on();
                    let collective = gpu::Collective::new(comm).map(|mut collective| {
                        collective.neighbor_alltoallw(
                            (&mut send, (send_counts, &mut send_places, &mut send_types)),
                            (&mut recv, (recv_counts, &mut recv_places, &mut recv_types)),
                        );
                        collective
                    });
                    let call = || {
                        $name(
                            send, send_counts, send_places, send_types,
                            recv, recv_counts, recv_places, recv_types, comm,
                        )
                    };
                    match collective {
                        Some(collective) => collective.block(call),
                        None => gpu::inside(call),
                    }
                }
            }
            // SAFETY: the caller's promise.
            unsafe {
                if gpu::is_loaded() && gpu::is_outside() {
                    return staged(
                        send, send_counts, send_places, send_types,
                        recv, recv_counts, recv_places, recv_types, comm,
                    );
                }
                if messages::has_orphans() {
                    return messages::settle_orphans(rdma_alltoallw::neighbor_alltoallw(
                        send, send_counts, send_places, send_types,
                        recv, recv_counts, recv_places, recv_types, comm,
                    ));
                }
                if !messages::is_joint() && were_small(Function::NeighborAlltoallw, comm) {
                    return forward::neighbor_alltoallw(
                        send, send_counts, send_places.cast(), send_types,
                        recv, recv_counts, recv_places.cast(), recv_types, comm,
                    );
                }
                rdma_alltoallw::neighbor_alltoallw(
                    send, send_counts, send_places, send_types,
                    recv, recv_counts, recv_places, recv_types, comm,
                )
            }
        }
    )* };
}

neighbor_alltoallw! {
    MPI_Neighbor_alltoallw = c_int;
    MPI_Neighbor_alltoallw_c = Large;
}
