// SPDX-License-Identifier: MIT OR Apache-2.0

//! Persistent collectives when C programs make and free them ([`nonblocking::persistent`]).

use crate::library::panics::caught;
use std::ffi::{c_int, c_void};

use crate::collectives::nonblocking;
use crate::comm::processes::world;
use crate::library::abi;
use crate::library::abi::Word;
use crate::library::fallback;
use crate::library::pmpi::forward;
use crate::library::requests::Roles;

/// The library has made a persistent request: `keep` decides whether its starts may be ours. They
/// are completed where messages are, so not without these; all ranks find that alike.
///
/// # Safety
///
/// The library has written a handle there.
pub unsafe fn made(request: *mut c_void, is_small: bool, keep: impl FnOnce(Word)) {
    // SAFETY: the caller's promise.
    unsafe { fallback::note_persistent(request) };
    let Some(world) = world().filter(|_| !is_small) else {
        return;
    };
    // SAFETY: the caller's promise.
    let handle = unsafe { world.abi.handle_at(request, 0) } & world.abi.handle;
    let _ = caught(|| keep(handle));
}

/// The program frees a request.
///
/// # Safety
///
/// The program's variable, unless there is none.
pub unsafe fn forget(request: *const c_void) {
    if request.is_null() || Roles::FORGOTTEN.now().are_none() {
        return;
    }
    if let Ok(abi) = abi::get() {
        // SAFETY: the caller's promise.
        let handle = unsafe { abi.handle_at(request, 0) } & abi.handle;
        fallback::forget_persistent(handle);
        nonblocking::persistent::forget(handle);
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
