// SPDX-License-Identifier: MIT OR Apache-2.0

//! The ways to move bytes between two processes, one file each.
//!
//! `kind` names them. `one_sided` is the interface of those that reach the memory of a peer, for
//! which its owner hands out a `remote_key`: `kmod` and `cma`. `stream` is the third one, two
//! copies through the segment.

pub(crate) mod cma;
pub(crate) mod kind;
pub(crate) mod kmod;
mod machine;
pub(crate) mod mapped;
pub(crate) mod one_sided;
pub mod process_memory;
pub(crate) mod remote_key;
pub(crate) mod stream;

pub use kind::{TransportKind, TransportReport};
pub use machine::probe_machine;
