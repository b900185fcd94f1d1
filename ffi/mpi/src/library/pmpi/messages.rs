// SPDX-License-Identifier: MIT OR Apache-2.0

//! Point-to-point functions of the MPI library, in both their forms, and what starts requests.

use std::ffi::{c_int, c_void};

use crate::library::abi::{function, profiling_name};
use crate::library::async_guard;
use crate::library::count::Count;
use crate::library::functions::{argument_type, messages};
use crate::library::pmpi::both_forms::{Arrays, Copies, both_forms, narrowed, refuse};
use crate::library::pmpi::functions::start_settled;

/// `MPI_Start`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn start(request: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    async_guard::with_buffers(|| unsafe { start_settled(request) })
}

/// Declares the functions of the table twice: for ourselves, and for the program.
macro_rules! declare {
    (@with $ways:tt $($rust:ident $arguments:tt $comm:tt = $names:tt $fortran:tt;)*) => {
        $( both_forms!($ways $rust = $names $arguments $comm [] Arrays::None); )*
    };
    ($($rows:tt)*) => {
        declare!(@with [address if_any known_address] $($rows)*);

        pub mod forwarded_messages {
            use super::*;

            declare!(@with [next next_if_any known_next] $($rows)*);
        }
    };
}

messages!(declare);
