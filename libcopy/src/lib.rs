// SPDX-License-Identifier: MIT OR Apache-2.0

//! Moves bytes between the processes of one machine.
//!
//! Processes form a [`team::Team`]; its collective operations move data the fastest way there is
//! on this machine: through the kernel module `/dev/libcopy` (the root's buffer is pinned once,
//! every leaf copies from it concurrently), through `process_vm_readv`, or through shared memory.

#[path = "../../kmod/uapi.rs"]
pub mod uapi;

pub mod collective;
pub mod config;
mod copy;
pub mod device;
pub mod error;
pub mod policy;
pub mod team;
pub mod topology;
pub mod transport;
pub mod tune;

pub use collective::Parts;
pub use error::{Error, Result};
pub use team::{Team, TeamKey};
pub use transport::TransportKind;
