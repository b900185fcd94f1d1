// SPDX-License-Identifier: MIT OR Apache-2.0

//! Moves bytes between the processes of one machine.
//!
//! Processes form a [`Team`]; its collective operations move data the fastest way there is on
//! this machine: through the kernel module `/dev/libcopy` (the root's buffer is pinned once, every
//! leaf copies from it at the same time), through `process_vm_readv`, or through shared memory.
//! [`policy`] decides which, `libcopy tune` measures for it, `LIBCOPY_TRANSPORT` overrules it.
//!
//! # A broadcast
//!
//! A program that starts itself again, once per rank:
//!
//! ```no_run
//! use std::process::Command;
//!
//! use libcopy::{Result, Team, team};
//!
//! fn main() -> Result<()> {
//!     if std::env::var_os("LIBCOPY_KEY").is_none() {
//!         // Or let `libcopy run -n 4 PROGRAM` do this.
//!         let program = std::env::current_exe().expect("a program has a path");
//!         let statuses = team::launch(4, |_rank| Command::new(&program))?;
//!         assert!(statuses.iter().all(|status| status.success()));
//!         return Ok(());
//!     }
//!     let mut team = Team::from_env()?;
//!     let mut bytes = vec![0u8; 8 << 20];
//!     if team.rank() == 0 {
//!         bytes.fill(42);
//!     }
//!     team.bcast(&mut bytes, 0)?;
//!     assert!(bytes.iter().all(|byte| *byte == 42));
//!
//!     let mine = [team.rank() as u8; 16];
//!     let mut all = vec![0u8; 16 * team.size()];
//!     let is_root = team.rank() == 0;
//!     team.gather(&mine, is_root.then_some(&mut all[..]), 0)?;
//!     Ok(())
//! }
//! ```
//!
//! # Layers
//!
//! [`device`] wraps the module's ioctls and can be used alone. [`team`] brings processes together;
//! [`transport`] moves bytes between two of them; [`collective`] between all. Errors are one enum,
//! [`Error`]; an operation that fails on one rank fails on all of them, also if a rank is killed.
//!
//! What is public and has no page here is for crates of the same version: the C library, the one
//! that MPI programs preload, and the tool.

pub mod calibration;
pub mod collective;
pub mod config;
pub mod device;
pub mod error;
#[doc(hidden)]
pub mod lock;
#[doc(hidden)]
pub mod lru;
mod mapping;
mod memcpy;
pub mod offload;
mod op;
pub mod p2p;
#[doc(hidden)]
pub mod plan;
pub mod policy;
#[doc(hidden)]
pub mod process;
/// What the kernel refuses, for statistics.
#[doc(hidden)]
pub mod refusal;
#[doc(hidden)]
pub mod scratch;
#[doc(hidden)]
pub mod shm;
pub mod team;
pub mod topology;
pub mod transport;
pub mod tune;

pub use collective::Parts;
pub use error::{Allowed, Error, Result, Value};
#[doc(inline)]
pub use libcopy_datatype as datatype;
#[cfg(feature = "nic")]
#[doc(inline)]
pub use libcopy_nic as nic;
#[doc(inline)]
pub use libcopy_uapi as uapi;
pub use p2p::{ANY_SOURCE, ANY_TAG, RecvBuffer, SendBuffer, Status};
pub use team::{Team, TeamKey};
pub use transport::TransportKind;
