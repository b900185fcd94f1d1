// SPDX-License-Identifier: MIT OR Apache-2.0

//! Typed messages between machines over RDMA, with [`libcopy_rdma`].
//!
//! Matching stays with the MPI library: in place of its data a message carries a [`header`], the request to send, and the
//! receiver of that answers over a communicator of ours ([`control`]) with a clear to send. `docs/rdma.md` says what
//! becomes of a message when something fails.

mod control;
mod counts;
mod engine;
mod header;
mod link;
mod meet;
mod mode;
mod peer;
mod wire;

pub use counts::report;
pub use engine::{
    Elements, Receive, Route, Send, finish, header_of, is_on, notice_own, progress, reaches,
    true_length,
};
pub use header::{BYTES, SLOT};
pub use meet::{Own, meet};
pub use mode::{Mode, mode};
pub use wire::Envelope;
