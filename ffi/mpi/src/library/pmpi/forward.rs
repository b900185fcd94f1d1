// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls of the program that are forwarded: to a tool between us and the MPI library where there is
//! one.

use std::ffi::{c_int, c_void};

use crate::library::async_guard;
use crate::library::pmpi::functions::forwarded_functions;

pub use crate::library::pmpi::collectives::forwarded_collectives::*;
pub use crate::library::pmpi::functions::forwarded_functions::*;
pub use crate::library::pmpi::messages::forwarded_messages::*;

/// `MPI_Start`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn start(request: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    async_guard::with_buffers(|| unsafe { forwarded_functions::start_settled(request) })
}

/// `MPI_Startall`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn startall(count: c_int, requests: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    async_guard::with_buffers(|| unsafe { forwarded_functions::startall_settled(count, requests) })
}
