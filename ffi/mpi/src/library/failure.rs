// SPDX-License-Identifier: MIT OR Apache-2.0

//! Failures of intercepted calls.

use crate::library::panics::caught;
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

/// What became of a call.
pub type Done = std::thread::Result<Result<(), Box<Failure>>>;

/// Runs what a call does; no panic of it goes any further. What goes in and comes out is a word
/// each: more is written in words and read in pairs of them, which takes as long as some of the
/// shortest calls' steps.
#[inline]
pub fn attempt(mut work: impl FnMut() -> Result<(), Failure>) -> Done {
    let work = &mut work;
    caught(move || work().map_err(Box::new))
}
