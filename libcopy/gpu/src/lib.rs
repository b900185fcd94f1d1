// SPDX-License-Identifier: MIT OR Apache-2.0

//! Derived datatypes in GPU memory.
//!
//! [`Plan`] turns a [`Layout`](libcopy_datatype::Layout) into what kernels can do; [`Placed`] puts it at an address and
//! says which [`Launch`]es pack it, unpack it, or copy it to another layout.

pub mod job;
mod launch;
mod plan;
mod ptx;

pub use launch::{Kernel, Launch, Placed, THREADS};
pub use plan::Plan;
pub use ptx::ptx;
