// SPDX-License-Identifier: MIT OR Apache-2.0

//! The functions of the MPI library that we call, by their profiling names (MPI 4.1, section 15.2).

pub mod both_forms;
pub mod collectives;
pub mod forward;
pub mod functions;
pub mod messages;
pub mod packing;

pub use collectives::*;
pub use functions::*;
pub use messages::*;
pub use packing::*;
