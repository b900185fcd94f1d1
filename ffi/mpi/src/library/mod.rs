// SPDX-License-Identifier: MIT OR Apache-2.0

//! The MPI library and this process: constants, functions, tools, errors, what is counted.

pub mod abi;
pub mod async_guard;
pub mod attributes;
pub mod buffers;
pub mod count;
pub mod errors;
pub mod failure;
pub mod fallback;
pub mod forked;
pub mod functions;
pub mod loaded;
pub mod neighbourhood;
pub mod panics;
pub mod per_thread;
pub mod pmpi;
pub mod predefined;
pub mod profile;
pub mod progress;
pub mod relocations;
pub mod requests;
pub mod stats;
pub mod status;
pub mod threads;
pub mod times;
pub mod tools;
pub mod unusual;
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod unwinder;
pub mod world_model;
