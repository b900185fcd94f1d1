// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives that libcopy does not do itself: they are forwarded, after what is pending is
//! settled ([`async_guard`]), and with host memory in the place of buffers in device memory
//! ([`gpu`]). In both forms: with `int`s, and for large counts where the library has that; where it
//! has not, these call the others ([`narrow`]). Persistent ones also under the names that Open MPI
//! 4.1 has for them, which begin with `MPIX_`.

use std::ffi::{c_int, c_void};

use crate::gpu;
use crate::library::abi::{Word, function};
use crate::library::async_guard::profiling_name;
use crate::library::count::{Count, Large};
use crate::library::fallback;
use crate::library::narrow_counts::Narrow;
use crate::library::pmpi::Arrays;
use crate::library::{async_guard, narrow_counts, pmpi};

/// A function that returns when its part is done.
macro_rules! blocking {
    ($($name:ident, $large:ident $arguments:tt, $arrays:expr, $body:ident $gpu:tt;)*) => { $(
        exported!($name [$name] [] c_int, $arguments, new, $body $gpu, block);
        exported!($large [$large] [$name $arrays] Large, $arguments, new, $body $gpu, block);
    )* };
}

/// A function that makes a request.
macro_rules! nonblocking {
    ($($name:ident, $large:ident $arguments:tt, $arrays:expr, $body:ident $gpu:tt;)*) => { $(
        exported!($name [$name] [] c_int, $arguments, new, $body $gpu, begin);
        exported!($large [$large] [$name $arrays] Large, $arguments, new, $body $gpu, begin);
    )* };
}

/// A function that makes a persistent request.
macro_rules! persistent {
    ($($name:ident, $large:ident, $before:ident $arguments:tt, $arrays:expr, $body:ident $gpu:tt;)*) => { $(
        exported!($name [$name $before] [] c_int, $arguments, persistent, $body $gpu, persist);
        exported!($before [$before $name] [] c_int, $arguments, persistent, $body $gpu, persist);
        exported!($large [$large] [$name $arrays] Large, $arguments, persistent, $body $gpu, persist);
    )* };
}

/// How many elements an argument has if it is an array: those of what is sent, if only that is told
/// apart.
macro_rules! length {
    ($lengths:ident, send_counts) => {
        $lengths.sent
    };
    ($lengths:ident, send_places) => {
        $lengths.sent
    };
    ($lengths:ident, $other:ident) => {
        $lengths.all
    };
}

/// Exports a function, which the library has under one of these names; or it calls another one, of
/// which the arrays have the lengths that [`Arrays`] says. `N` counts elements, `P` says where they
/// are.
macro_rules! exported {
    ($name:ident [$($found:ident)+] $narrow:tt $count:ty, ($($argument:ident: $kind:ty),*), $new:ident,
     $body:ident ($comm:expr $(, $request:expr)?; $($gpu:expr),*), $end:ident) => {
        #[allow(non_snake_case)]
        mod $name {
            use super::*;

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
                type Call = unsafe extern "C" fn($($kind),*) -> c_int;

                /// Zero if the library does not have it.
                fn address() -> usize {
                    $({
                        function!(FOUND = profiling_name!($found));
                        let found = FOUND.next_if_any();
                        if found != 0 {
                            return found;
                        }
                    })+
                    0
                }

                /// The same with host memory in the place of what is in device memory.
                #[cold]
                #[inline(never)]
                #[allow(clippy::too_many_arguments, unused_mut)]
                unsafe extern "C" fn staged(call: Call, $(mut $argument: $kind),*) -> c_int {
                    // SAFETY: the caller's promise.
                    #[allow(unused_unsafe)]
                    unsafe {
                        gpu::get_on();
                        let Some(mut collective) = gpu::Collective::$new($comm) else {
                            return call($($argument),*);
                        };
                        collective.goes_to_library();
                        collective.$body($($gpu),*);
                        exported!(@end $end collective, $($request)?, call($($argument),*))
                    }
                }

                /// What is done where the library does not have it.
                #[cold]
                #[inline(never)]
                #[allow(clippy::too_many_arguments, unused_variables)]
                unsafe fn absent($($argument: $kind),*) -> c_int {
                    exported!(@absent $name $narrow, ($comm $(, $request)?), $($argument)*)
                }
                // SAFETY: the MPI library's function of this name, which has this type; the
                // caller's promise.
                unsafe {
                    let call: Call = match address() {
                        0 => return absent($($argument),*),
                        address => std::mem::transmute::<usize, Call>(address),
                    };
                    if let Err(code) = async_guard::before() {
                        return code;
                    }
                    let code = if gpu::is_loaded() && gpu::is_outside() {
                        staged(call, $($argument),*)
                    } else {
                        call($($argument),*)
                    };
                    exported!(@after $end code $($request)?);
                    code
                }
            }
        }
    };
    (@absent $name:ident [], $call:tt, $($argument:ident)*) => {{
        function!(MISSING = profiling_name!($name));
        // It says what is missing.
        MISSING.next();
        pmpi::MISSING
    }};
    (@absent $name:ident [$narrow:ident $arrays:expr], ($comm:expr $(, $request:expr)?), $($argument:ident)*) => {{
        let lengths = $arrays.lengths($comm);
        let mut copies = narrow_counts::Copies::new();
        $(
            let length = length!(lengths, $argument);
            // SAFETY: the MPI standard says how long arrays are.
            let Some($argument) = (unsafe { Narrow::narrow($argument, length, &mut copies) }) else {
                return pmpi::refuse(concat!("no MPI library has ", stringify!($name), " for this"), $comm);
            };
        )*
        // SAFETY: the caller's promise; the library has written a request if it returns 0.
        unsafe {
            let code = super::$narrow::$narrow($($argument),*);
            $(if code == 0 {
                copies.keep($request);
            })?
            code
        }
    }};
    (@end block $collective:ident, , $call:expr) => {
        $collective.block(|| $call)
    };
    (@end $end:ident $collective:ident, $request:expr, $call:expr) => {
        $collective.begin($request, || $call)
    };
    (@after persist $code:ident $request:expr) => {
        if $code == 0 {
            fallback::note_persistent($request);
        }
    };
    (@after $end:ident $code:ident $($request:expr)?) => {};
}

blocking! {
    MPI_Scan, MPI_Scan_c(
        send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word, comm: Word), Arrays::None,
        allreduce(comm; &mut send, &mut recv, (count, datatype));
    MPI_Exscan, MPI_Exscan_c(
        send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word, comm: Word), Arrays::None,
        allreduce(comm; &mut send, &mut recv, (count, datatype));
    MPI_Neighbor_allgather, MPI_Neighbor_allgather_c(
        send: *const c_void, send_count: N, send_type: Word,
        recv: *mut c_void, recv_count: N, recv_type: Word, comm: Word), Arrays::None,
        neighbor_allgather(comm; (&mut send, (&send_count, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)));
    MPI_Neighbor_allgatherv, MPI_Neighbor_allgatherv_c(
        send: *const c_void, send_count: N, send_type: Word,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_type: Word, comm: Word), Arrays::PerNeighbour,
        neighbor_allgatherv(comm; (&mut send, (&send_count, &mut send_type)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_type)));
}

nonblocking! {
    MPI_Igatherv, MPI_Igatherv_c(
        send: *const c_void, send_count: N, send_type: Word,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_type: Word,
        root: c_int, comm: Word,
        request: *mut c_void), Arrays::AtRoot(root),
        gatherv(comm, request; (&mut send, (&send_count, &mut send_type)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_type)), root);
    MPI_Iscatterv, MPI_Iscatterv_c(
        send: *const c_void, send_counts: *const N, send_places: *const P, send_type: Word,
        recv: *mut c_void, recv_count: N, recv_type: Word,
        root: c_int, comm: Word,
        request: *mut c_void), Arrays::AtRoot(root),
        scatterv(comm, request; (&mut send, (send_counts, &mut send_places, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)), root);
    MPI_Iallgatherv, MPI_Iallgatherv_c(
        send: *const c_void, send_count: N, send_type: Word,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_type: Word, comm: Word,
        request: *mut c_void), Arrays::PerPeer,
        allgatherv(comm, request; (&mut send, (&send_count, &mut send_type)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_type)));
    MPI_Ialltoallv, MPI_Ialltoallv_c(
        send: *const c_void, send_counts: *const N, send_places: *const P, send_type: Word,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_type: Word, comm: Word,
        request: *mut c_void), Arrays::Exchange(send),
        alltoallv(comm, request; (&mut send, (send_counts, &mut send_places, &mut send_type)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_type)));
    MPI_Ialltoallw, MPI_Ialltoallw_c(
        send: *const c_void, send_counts: *const N, send_places: *const P, send_types: *const c_void,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_types: *const c_void, comm: Word,
        request: *mut c_void), Arrays::Exchange(send),
        alltoallw(comm, request; (&mut send, (send_counts, &mut send_places, &mut send_types)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_types)));
    MPI_Ireduce_scatter, MPI_Ireduce_scatter_c(
        send: *const c_void, recv: *mut c_void, counts: *const N, datatype: Word, op: Word, comm: Word,
        request: *mut c_void), Arrays::PerRank,
        reduce_scatter(comm, request; &mut send, &mut recv, (counts, datatype));
    MPI_Ireduce_scatter_block, MPI_Ireduce_scatter_block_c(
        send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word, comm: Word,
        request: *mut c_void), Arrays::None,
        reduce_scatter_block(comm, request; &mut send, &mut recv, (count, datatype));
    MPI_Iscan, MPI_Iscan_c(
        send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word, comm: Word,
        request: *mut c_void), Arrays::None,
        allreduce(comm, request; &mut send, &mut recv, (count, datatype));
    MPI_Iexscan, MPI_Iexscan_c(
        send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word, comm: Word,
        request: *mut c_void), Arrays::None,
        allreduce(comm, request; &mut send, &mut recv, (count, datatype));
    MPI_Ineighbor_allgather, MPI_Ineighbor_allgather_c(
        send: *const c_void, send_count: N, send_type: Word,
        recv: *mut c_void, recv_count: N, recv_type: Word, comm: Word,
        request: *mut c_void), Arrays::None,
        neighbor_allgather(comm, request; (&mut send, (&send_count, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)));
    MPI_Ineighbor_allgatherv, MPI_Ineighbor_allgatherv_c(
        send: *const c_void, send_count: N, send_type: Word,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_type: Word, comm: Word,
        request: *mut c_void), Arrays::PerNeighbour,
        neighbor_allgatherv(comm, request; (&mut send, (&send_count, &mut send_type)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_type)));
    MPI_Ineighbor_alltoall, MPI_Ineighbor_alltoall_c(
        send: *const c_void, send_count: N, send_type: Word,
        recv: *mut c_void, recv_count: N, recv_type: Word, comm: Word,
        request: *mut c_void), Arrays::None,
        neighbor_alltoall(comm, request; (&mut send, (&send_count, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)));
    MPI_Ineighbor_alltoallv, MPI_Ineighbor_alltoallv_c(
        send: *const c_void, send_counts: *const N, send_places: *const P, send_type: Word,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_type: Word, comm: Word,
        request: *mut c_void), Arrays::PerNeighbour,
        neighbor_alltoallv(comm, request; (&mut send, (send_counts, &mut send_places, &mut send_type)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_type)));
    MPI_Ineighbor_alltoallw, MPI_Ineighbor_alltoallw_c(
        send: *const c_void, send_counts: *const N, send_places: *const isize, send_types: *const c_void,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const isize, recv_types: *const c_void, comm: Word,
        request: *mut c_void), Arrays::PerNeighbour,
        neighbor_alltoallw(comm, request; (&mut send, (send_counts, &mut send_places, &mut send_types)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_types)));
}

persistent! {
    MPI_Gatherv_init, MPI_Gatherv_init_c, MPIX_Gatherv_init(
        send: *const c_void, send_count: N, send_type: Word,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_type: Word,
        root: c_int, comm: Word,
        info: Word, request: *mut c_void), Arrays::AtRoot(root),
        gatherv(comm, request; (&mut send, (&send_count, &mut send_type)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_type)), root);
    MPI_Scatterv_init, MPI_Scatterv_init_c, MPIX_Scatterv_init(
        send: *const c_void, send_counts: *const N, send_places: *const P, send_type: Word,
        recv: *mut c_void, recv_count: N, recv_type: Word,
        root: c_int, comm: Word,
        info: Word, request: *mut c_void), Arrays::AtRoot(root),
        scatterv(comm, request; (&mut send, (send_counts, &mut send_places, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)), root);
    MPI_Allgatherv_init, MPI_Allgatherv_init_c, MPIX_Allgatherv_init(
        send: *const c_void, send_count: N, send_type: Word,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_type: Word, comm: Word,
        info: Word, request: *mut c_void), Arrays::PerPeer,
        allgatherv(comm, request; (&mut send, (&send_count, &mut send_type)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_type)));
    MPI_Alltoallv_init, MPI_Alltoallv_init_c, MPIX_Alltoallv_init(
        send: *const c_void, send_counts: *const N, send_places: *const P, send_type: Word,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_type: Word, comm: Word,
        info: Word, request: *mut c_void), Arrays::Exchange(send),
        alltoallv(comm, request; (&mut send, (send_counts, &mut send_places, &mut send_type)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_type)));
    MPI_Alltoallw_init, MPI_Alltoallw_init_c, MPIX_Alltoallw_init(
        send: *const c_void, send_counts: *const N, send_places: *const P, send_types: *const c_void,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_types: *const c_void, comm: Word,
        info: Word, request: *mut c_void), Arrays::Exchange(send),
        alltoallw(comm, request; (&mut send, (send_counts, &mut send_places, &mut send_types)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_types)));
    MPI_Reduce_scatter_init, MPI_Reduce_scatter_init_c, MPIX_Reduce_scatter_init(
        send: *const c_void, recv: *mut c_void, counts: *const N, datatype: Word, op: Word, comm: Word,
        info: Word, request: *mut c_void), Arrays::PerRank,
        reduce_scatter(comm, request; &mut send, &mut recv, (counts, datatype));
    MPI_Reduce_scatter_block_init, MPI_Reduce_scatter_block_init_c, MPIX_Reduce_scatter_block_init(
        send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word, comm: Word,
        info: Word, request: *mut c_void), Arrays::None,
        reduce_scatter_block(comm, request; &mut send, &mut recv, (count, datatype));
    MPI_Scan_init, MPI_Scan_init_c, MPIX_Scan_init(
        send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word, comm: Word,
        info: Word, request: *mut c_void), Arrays::None,
        allreduce(comm, request; &mut send, &mut recv, (count, datatype));
    MPI_Exscan_init, MPI_Exscan_init_c, MPIX_Exscan_init(
        send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word, comm: Word,
        info: Word, request: *mut c_void), Arrays::None,
        allreduce(comm, request; &mut send, &mut recv, (count, datatype));
    MPI_Neighbor_allgather_init, MPI_Neighbor_allgather_init_c, MPIX_Neighbor_allgather_init(
        send: *const c_void, send_count: N, send_type: Word,
        recv: *mut c_void, recv_count: N, recv_type: Word, comm: Word,
        info: Word, request: *mut c_void), Arrays::None,
        neighbor_allgather(comm, request; (&mut send, (&send_count, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)));
    MPI_Neighbor_allgatherv_init, MPI_Neighbor_allgatherv_init_c, MPIX_Neighbor_allgatherv_init(
        send: *const c_void, send_count: N, send_type: Word,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_type: Word, comm: Word,
        info: Word, request: *mut c_void), Arrays::PerNeighbour,
        neighbor_allgatherv(comm, request; (&mut send, (&send_count, &mut send_type)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_type)));
    MPI_Neighbor_alltoall_init, MPI_Neighbor_alltoall_init_c, MPIX_Neighbor_alltoall_init(
        send: *const c_void, send_count: N, send_type: Word,
        recv: *mut c_void, recv_count: N, recv_type: Word, comm: Word,
        info: Word, request: *mut c_void), Arrays::None,
        neighbor_alltoall(comm, request; (&mut send, (&send_count, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)));
    MPI_Neighbor_alltoallv_init, MPI_Neighbor_alltoallv_init_c, MPIX_Neighbor_alltoallv_init(
        send: *const c_void, send_counts: *const N, send_places: *const P, send_type: Word,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const P, recv_type: Word, comm: Word,
        info: Word, request: *mut c_void), Arrays::PerNeighbour,
        neighbor_alltoallv(comm, request; (&mut send, (send_counts, &mut send_places, &mut send_type)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_type)));
    MPI_Neighbor_alltoallw_init, MPI_Neighbor_alltoallw_init_c, MPIX_Neighbor_alltoallw_init(
        send: *const c_void, send_counts: *const N, send_places: *const isize, send_types: *const c_void,
        recv: *mut c_void, recv_counts: *const N, recv_places: *const isize, recv_types: *const c_void, comm: Word,
        info: Word, request: *mut c_void), Arrays::PerNeighbour,
        neighbor_alltoallw(comm, request; (&mut send, (send_counts, &mut send_places, &mut send_types)), (&mut recv, (recv_counts, &mut recv_places, &mut recv_types)));
}
