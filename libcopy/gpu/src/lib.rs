// SPDX-License-Identifier: MIT OR Apache-2.0

//! Derived datatypes in GPU memory.
//!
//! [`Plan`] turns a [`Layout`](libcopy_datatype::Layout) into what kernels can do; [`Placed`] puts it at an address and
//! says which [`Launch`]es pack it, unpack it, or copy it to another layout. [`pack()`] and [`unpack()`] launch them in the
//! context that the memory belongs to, with the CUDA driver that the program has loaded.

mod buffer;
mod driver;
mod error;
mod gpu;
pub mod job;
mod launch;
mod memory;
mod plan;
mod ptx;

pub use buffer::{Buffer, copy};
pub use driver::Driver;
pub use error::{Error, Result};
pub use gpu::{GpuLayout, pack, unpack};
pub use launch::{Kernel, Launch, Placed, THREADS};
pub use memory::{Pointer, Space};
pub use plan::Plan;
pub use ptx::ptx;
