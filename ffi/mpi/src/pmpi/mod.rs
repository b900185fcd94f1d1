// SPDX-License-Identifier: MIT OR Apache-2.0

//! The functions of the MPI library that we call, by their profiling names (MPI 4.1, section 15.2).

mod collectives;
pub mod forward;
mod functions;
mod messages;
mod packing;

pub use collectives::*;
pub use functions::*;
pub use messages::*;
pub use packing::*;
