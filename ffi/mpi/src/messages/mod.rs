// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages between two processes of one machine, past the MPI library's own copying.
//!
//! Matching stays with the MPI library: in place of its data a message carries a [`libcopy::p2p::header`], and
//! the receiver of that fetches the data. `docs/design/p2p-protocol.md` says why nothing can be reordered,
//! mistaken or left waiting.

mod arguments;
mod calls;
mod choice;
mod committed;
mod device;
pub mod exchange;
mod exports;
mod fortran;
mod governed;
mod handle;
mod incoming;
mod init;
mod lengths;
mod offering;
mod pack_memory;
mod packed;
mod panics;
mod peers;
mod probes;
mod probing;
mod protocol;
mod reach;
mod receiving;
mod remote;
mod report;
mod request_exports;
mod requests;
mod sending;
mod short;
mod start;
pub mod status;
mod truncation;
mod view;
mod waiting;
pub mod world;

pub use device::pack_all;
pub use governed::{json as classes, report_classes};
pub use lengths::is_special;
pub use peers::Peers;
pub use protocol::are_asked;
pub use receiving::{arrived_elsewhere, may_be_header};
pub use remote::is_joint;
pub use report::{numbers, report};
pub use requests::{has_orphans, register, settle_orphans};
pub use start::{announce, finish, leave, start};
pub use waiting::progress_all;
pub use world::{has_lost_rights, lose_rights, stop_counting};
