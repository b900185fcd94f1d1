// SPDX-License-Identifier: MIT OR Apache-2.0

//! Failures of intercepted calls.

use std::ffi::c_int;

/// Why a call that was intercepted failed.
pub enum Failure {
    /// The team is broken, usually because a rank died.
    Team(libcopy::Error),
    /// An error code of the MPI library's, which could not pack, unpack or combine.
    Code(c_int),
}

impl From<libcopy::Error> for Failure {
    fn from(error: libcopy::Error) -> Self {
        Failure::Team(error)
    }
}

impl From<c_int> for Failure {
    fn from(code: c_int) -> Self {
        Failure::Code(code)
    }
}
