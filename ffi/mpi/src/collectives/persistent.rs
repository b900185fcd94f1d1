// SPDX-License-Identifier: MIT OR Apache-2.0

//! Persistent collectives as C programs make and free them ([`nonblocking::persistent`]), in both
//! forms. Open MPI 4.1 has them under the names that they had before MPI 4.0, which begin with
//! `MPIX_`.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::collectives::nonblocking;
use crate::collectives::nonblocking::calls;
use crate::collectives::nonblocking::calls::{about_init, place};
use crate::comm::processes::world;
use crate::decide::threshold::{is_small, is_special};
use crate::gpu;
use crate::library::abi;
use crate::library::abi::Word;
use crate::library::count::Large;
use crate::library::fallback;
use crate::library::pmpi::forward;
use crate::library::stats::Function;

/// The library has made a persistent request: `keep` decides whether its starts may be ours. They
/// are completed where messages are, so not without these; all ranks find that alike.
///
/// # Safety
///
/// The library has written a handle there.
unsafe fn made(request: *mut c_void, is_small: bool, keep: impl FnOnce(Word)) {
    // SAFETY: the caller's promise.
    unsafe { fallback::note_persistent(request) };
    let Some(world) = world().filter(|_| !is_small) else {
        return;
    };
    // SAFETY: the caller's promise.
    let handle = unsafe { world.abi.handle_at(request, 0) } & world.abi.handle;
    let _ = catch_unwind(AssertUnwindSafe(|| keep(handle)));
}

/// The program frees a request.
///
/// # Safety
///
/// The program's variable, unless there is none.
pub unsafe fn forget(request: *const c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        fallback::forget_persistent(request);
        if nonblocking::persistent::any() {
            let _ = abi::get().map(|abi| nonblocking::persistent::forget(abi, request));
        }
    }
}

/// `MPI_Request_free`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn request_free(request: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        forget(request);
        forward::request_free(request)
    }
}

/// Exports all forms of a function; `$made` comes after the library's has succeeded. Last come the
/// method of [`gpu::Collective`] for buffers in device memory, and its arguments.
macro_rules! exports {
    ($($name:ident, $large:ident, $before:ident = $pass:ident, $made:expr, $arguments:tt, $body:ident $gpu:tt;)*) => { $(
        exports!(@form c_int, $name = $pass, $made, $arguments, $body $gpu);
        exports!(@form Large, $large = $pass, $made, $arguments, $body $gpu);
        exports!(@form c_int, $before = $pass, $made, $arguments, $body $gpu);
    )* };
    (@form $count:ty, $name:ident = $pass:ident, $made:expr, ($($argument:ident: $kind:ty),*),
     $body:ident $gpu:tt) => {
        gpu::begins_collective! {
            $count, $name, ($($argument: $kind),*),
            {
                let code = forward::$pass($($argument),*);
                if code == 0 {
                    $made;
                }
                code
            },
            persistent, $body $gpu
        }
    };
}

exports! {
    MPI_Bcast_init, MPI_Bcast_init_c, MPIX_Bcast_init = bcast_init,
        made(request, is_small(Function::BcastInit, count, datatype), |handle| {
            let about = about_init(Function::BcastInit, root, comm, handle);
            calls::bcast(about, place(buffer, count, datatype));
        }),
        (buffer: *mut c_void, count: N, datatype: Word, root: c_int,
         comm: Word, info: Word, request: *mut c_void),
        bcast (comm, request; &mut buffer, (&count, &mut datatype), root);
    MPI_Gather_init, MPI_Gather_init_c, MPIX_Gather_init = gather_init,
        made(request, !is_special(send) && is_small(Function::GatherInit, send_count, send_type), |handle| {
            let about = about_init(Function::GatherInit, root, comm, handle);
            calls::gather(about, place(send, send_count, send_type),
                place(recv, recv_count, recv_type));
        }),
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word, root: c_int,
         comm: Word, info: Word, request: *mut c_void),
        gather (comm, request; (&mut send, (&send_count, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)), root);
    MPI_Scatter_init, MPI_Scatter_init_c, MPIX_Scatter_init = scatter_init,
        made(request, !is_special(recv) && is_small(Function::ScatterInit, recv_count, recv_type), |handle| {
            let about = about_init(Function::ScatterInit, root, comm, handle);
            calls::scatter(about, place(send, send_count, send_type),
                place(recv, recv_count, recv_type));
        }),
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word, root: c_int,
         comm: Word, info: Word, request: *mut c_void),
        scatter (comm, request; (&mut send, (&send_count, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)), root);
    MPI_Allgather_init, MPI_Allgather_init_c, MPIX_Allgather_init = allgather_init,
        made(request, is_small(Function::AllgatherInit, recv_count, recv_type), |handle| {
            let about = about_init(Function::AllgatherInit, 0, comm, handle);
            calls::allgather(about, place(send, send_count, send_type),
                place(recv, recv_count, recv_type));
        }),
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word,
         comm: Word, info: Word, request: *mut c_void),
        allgather (comm, request; (&mut send, (&send_count, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)));
    MPI_Alltoall_init, MPI_Alltoall_init_c, MPIX_Alltoall_init = alltoall_init,
        made(request, is_small(Function::AlltoallInit, recv_count, recv_type), |handle| {
            let about = about_init(Function::AlltoallInit, 0, comm, handle);
            calls::alltoall(about, place(send, send_count, send_type),
                place(recv, recv_count, recv_type));
        }),
        (send: *const c_void, send_count: N, send_type: Word,
         recv: *mut c_void, recv_count: N, recv_type: Word,
         comm: Word, info: Word, request: *mut c_void),
        alltoall (comm, request; (&mut send, (&send_count, &mut send_type)), (&mut recv, (&recv_count, &mut recv_type)));
    MPI_Reduce_init, MPI_Reduce_init_c, MPIX_Reduce_init = reduce_init,
        made(request, is_small(Function::ReduceInit, count, datatype), |handle| {
            let about = about_init(Function::ReduceInit, root, comm, handle);
            calls::reduce(about, send, place(recv, count, datatype), op);
        }),
        (send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word,
         root: c_int,
         comm: Word, info: Word, request: *mut c_void),
        reduce (comm, request; &mut send, &mut recv, (count, datatype), root);
    MPI_Allreduce_init, MPI_Allreduce_init_c, MPIX_Allreduce_init = allreduce_init,
        made(request, is_small(Function::AllreduceInit, count, datatype), |handle| {
            let about = about_init(Function::AllreduceInit, 0, comm, handle);
            calls::reduce(about, send, place(recv, count, datatype), op);
        }),
        (send: *const c_void, recv: *mut c_void, count: N, datatype: Word, op: Word,
         comm: Word, info: Word, request: *mut c_void),
        allreduce (comm, request; &mut send, &mut recv, (count, datatype));
}
