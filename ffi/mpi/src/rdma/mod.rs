// SPDX-License-Identifier: MIT OR Apache-2.0

//! Typed messages between machines over RDMA, with [`libcopy_rdma`].
//!
//! Matching stays with the MPI library: in place of its data a message carries a [`header`], the
//! request to send, and the receiver of that answers over a communicator of ours ([`control`]) with
//! a clear to send. `docs/rdma.md` says what becomes of a message when something fails.

pub mod control;
pub mod counts;
pub mod engine;
pub mod finish;
pub mod header;
pub mod incoming;
pub mod link;
pub mod meet;
pub mod memory;
pub mod mode;
pub mod outgoing;
pub mod peer;
pub mod state;
pub mod wire;

pub use counts::report;
pub use engine::progress;
pub use finish::finish;
pub use header::{BYTES, SLOT};
pub use incoming::{Receive, header_of, matched, refuse, refuse_cut, refuse_oldest, true_length};
pub use meet::{Own, meet};
pub use mode::{Mode, mode};
pub use outgoing::{Patience, Send};
pub use state::{Elements, Route, forget, is_on, notice_own, reaches};
pub use wire::Envelope;
