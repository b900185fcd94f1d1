// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy_async.so`, for C programs whose collectives return early: with it, linked or preloaded,
//! the functions of the C library that hand memory to the kernel first wait for what is pending
//! there (`libcopy_interpose` has them).
//!
//! The guards are in libcopy.so, or in libcopy.a: when a program makes its first team, that looks
//! for the function below among the libraries that were loaded with the program.

use libcopy_interpose::Settle;
use std::ffi::c_int;
use std::sync::atomic::AtomicUsize;

/// For libcopy.so of the same version: has the functions here look at `pending`, and call `settle`
/// where it is not 0. Returns 0, or -1 where another copy of libcopy has them already.
///
/// # Safety
///
/// `pending` points to a word that is there as long as the process, as is `settle`, which is
/// async-signal-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_async_attach(
    pending: *const AtomicUsize,
    settle: Settle,
) -> c_int {
    // SAFETY: the caller's promise.
    let is_attached = libcopy_interpose::attach(unsafe { &*pending }, settle);
    if is_attached { 0 } else { -1 }
}
