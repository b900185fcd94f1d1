// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages between two processes of one machine.
//!
//! A message that is too long to be copied through a queue is announced by a [`header::Header`], which whoever
//! matches messages brings to its receiver: `libcopy_mpi.so` has the MPI library do that. The data take the
//! fastest way there is ([`Protocol`]): read out of the sender's memory, copied out of memory that is mapped
//! ([`Registration`]), streamed through a lane of the [`Segment`], or copied by both sides at the same time.
//! `docs/design/p2p-protocol.md` says why nothing can be mistaken or left waiting.

mod context;
pub mod events;
pub mod header;
mod incoming;
mod outgoing;
mod path;
mod protocol;
mod registration;
pub mod segment;
mod view;

pub use context::{Context, Owner};
pub use incoming::{ReceiveError, reject};
pub use outgoing::{Endpoint, Outgoing, Pause, Shared, any, is_quiet};
pub use protocol::Protocol;
pub use registration::Registration;
pub use segment::Segment;
pub use view::{DescribedLayout, OpaqueElements, View, hash};
