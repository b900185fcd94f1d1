// SPDX-License-Identifier: MIT OR Apache-2.0

//! `MPI_Init` and `MPI_Init_thread` as C programs call them.

use crate::library::panics::caught;
use std::ffi::{c_char, c_int};

use crate::library::pmpi::forward;
use crate::messages::{announce, start};

/// `MPI_Init`
///
/// # Safety
///
/// As the MPI standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Init(argc: *mut c_int, argv: *mut *mut *mut c_char) -> c_int {
    let _ = caught(announce);
    // SAFETY: the caller's promise.
    let code = unsafe { forward::init(argc, argv.cast()) };
    let _ = caught(|| start(code));
    code
}

/// `MPI_Init_thread`
///
/// # Safety
///
/// As the MPI standard says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn MPI_Init_thread(
    argc: *mut c_int,
    argv: *mut *mut *mut c_char,
    required: c_int,
    provided: *mut c_int,
) -> c_int {
    let _ = caught(announce);
    // SAFETY: the caller's promise.
    let code = unsafe { forward::init_thread(argc, argv.cast(), required, provided) };
    let _ = caught(|| start(code));
    code
}
