// SPDX-License-Identifier: MIT OR Apache-2.0

//! Derived datatypes in GPU memory.
//!
//! [`Plan`] turns a [`Layout`](libcopy_datatype::Layout) into what kernels can do; [`Placed`] puts
//! it at an address and says which [`Launch`]es pack it, unpack it, or copy it to another layout.
//! [`pack()`] and [`unpack()`] launch them in the context that the memory belongs to, with the CUDA
//! driver that the program has loaded.

mod baseline;
mod buffer;
mod context;
mod device;
mod driver;
mod engine;
mod error;
mod gpu;
pub mod job;
mod launch;
mod mapping;
mod measure;
mod memory;
mod model;
pub mod peer;
mod pending;
mod plan;
mod ptx;

pub use baseline::{Gemm, pack_with};
pub use buffer::{Buffer, copy, copy_after, start_copy};
pub use device::{Device, PrimaryContext, Uuid};
pub use driver::Driver;
pub use engine::{copy_batch, copy_blocks, copy_planes};
pub use error::{Error, Result};
pub use gpu::{
    GpuLayout, Message, copy_layout, limit_multiprocessors, pack, pack_all, pack_on,
    start_copy_layout, start_pack, start_unpack, unpack, unpack_after, unpack_all, unpack_on,
    use_copy_units,
};
pub use launch::{Batch, Kernel, Launch, Placed};
pub use mapping::{Mapping, Shaped};
pub use measure::{Effort, grid_layout, measure, profile_path};
pub use memory::{Pointer, Space};
pub use model::{Ask, Curve, GRID_STRIDE, Grid, Method, Origin, Profile};
pub use pending::Pending;
pub use plan::Plan;
pub use ptx::Ptx;
