// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives of the MPI library: a function for each line of the table
//! ([`crate::library::functions`]).

use std::ffi::c_int;

use crate::library::abi::{function, profiling_name};
use crate::library::async_guard;
use crate::library::count::Count;
use crate::library::functions::{argument_type, collectives};
use crate::library::pmpi::both_forms::{Arrays, Copies, both_forms, narrowed, refuse};

/// Declares the functions of all rows twice: for ourselves, and for the program.
macro_rules! declare {
    (@with $ways:tt
     $($op:ident $arguments:tt {
         operation $operation:ident;
         arrays $arrays:tt;
         device $device:ident $buffers:tt $root:tt;
         small $small:tt;
         $($form:ident $rust:ident = $names:tt $fortran:tt $(=> $function:ident $module:ident)?;)*
     })*) => {
        $($( declare!(@$form $ways $rust = $names $arguments $arrays); )*)*
    };
    (@blocking $ways:tt $rust:ident = $names:tt ($($argument:ident: $kind:ident),*; $comm:ident) [$($arrays:tt)*]) => {
        both_forms!($ways $rust = $names ($($argument: $kind,)* $comm: comm) [$comm] [] Arrays::$($arrays)*);
    };
    (@nonblocking $ways:tt $rust:ident = $names:tt ($($argument:ident: $kind:ident),*; $comm:ident) [$($arrays:tt)*]) => {
        both_forms!($ways $rust = $names ($($argument: $kind,)* $comm: comm, request: request) [$comm] [request] Arrays::$($arrays)*);
    };
    (@persistent $ways:tt $rust:ident = $names:tt ($($argument:ident: $kind:ident),*; $comm:ident) [$($arrays:tt)*]) => {
        both_forms!($ways $rust = $names ($($argument: $kind,)* $comm: comm, info: info, request: request) [$comm] [request] Arrays::$($arrays)*);
    };
    ($($rows:tt)*) => {
        declare!(@with [address if_any known_address] $($rows)*);

        pub mod forwarded_collectives {
            use super::*;

            declare!(@with [next next_if_any known_next] $($rows)*);
        }
    };
}

collectives!(declare);
