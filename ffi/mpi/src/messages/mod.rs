// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages between two processes of one machine, past the MPI library's own copying.
//!
//! Matching stays with the MPI library: in place of its data a message carries a [`header`], and
//! whoever receives that fetches the data. `docs/design/p2p-protocol.md` says why nothing can be reordered,
//! mistaken or left waiting.

mod arguments;
mod attach;
mod board;
mod calls;
mod choice;
mod committed;
mod events;
mod exports;
mod fortran;
mod handle;
mod header;
mod incoming;
pub mod memory;
mod outgoing;
mod pack_memory;
mod packed;
mod peers;
mod probes;
mod protocol;
mod reach;
mod receiving;
mod report;
mod requests;
mod roads;
mod sending;
mod short;
mod start;
pub mod status;
mod view;
mod world;

pub use outgoing::progress_all;
pub use peers::Peers;
pub use protocol::are_asked;
pub use report::{numbers, report};
pub use requests::{has_orphans, register, settle_orphans};
pub use start::{announce, finish, leave, start};
pub use world::{has_lost_rights, lose_rights, world};
