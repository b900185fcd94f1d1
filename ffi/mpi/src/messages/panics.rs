// SPDX-License-Identifier: MIT OR Apache-2.0

//! Panics end here: none gets into the program that called an MPI function.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::collectives::nonblocking;
use crate::comm::processes::world;

/// Does what a function does. A panic of ours becomes an error of the MPI library's; where no
/// messages are intercepted, nothing of ours runs.
#[inline(always)]
pub fn guarded(work: impl FnOnce() -> c_int) -> c_int {
    if world().is_none() && !nonblocking::any() {
        return work();
    }
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(code) => code,
        Err(_) => crate::library::abi::get().map_or(16, |abi| abi.error),
    }
}

/// Does what may be left to another function instead, to which a panic of ours leaves it as well.
pub fn caught<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(None)
}
