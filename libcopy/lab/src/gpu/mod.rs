// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy-lab gpu`: the experiments on datatypes in GPU memory (docs/gpu.md).
//!
//! A bound is (packed bytes + touched 32-byte sectors) divided by the rate at which this GPU copies
//! within its memory, measured at the start. With the stand-in driver of the tests everything runs,
//! and the times say nothing about GPUs.

mod cell;
mod command;
mod contention;
mod experiments;
mod messages;
mod program;
mod setup;

pub use command::{GpuArgs, run};
