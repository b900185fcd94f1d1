// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages between two processes of one machine.
//!
//! The ranks of a [`Team`](crate::Team) send each other messages with
//! [`Team::send`](crate::Team::send) and its relatives: bytes or elements of a layout, with tags,
//! received in the order in which they were sent.
//!
//! What moves the data is there for libraries as well that match messages on their own. A message
//! that is too long to be copied through a queue is announced by a [`header::Header`], which the
//! library that matches messages brings to its receiver: under `libcopy_mpi.so` that is the MPI
//! library. The data take the fastest way there is ([`Protocol`]): read out of the sender's memory,
//! copied out of memory that is mapped ([`Registration`]), streamed through a lane of the
//! [`Segment`], or copied by both sides at the same time. `docs/design/p2p-protocol.md` says why
//! nothing can be mistaken or left waiting.

pub(crate) mod buffer;
mod calls;
mod context;
pub mod events;
pub mod header;
mod incoming;
mod matching;
pub(crate) mod messenger;
mod outgoing;
mod path;
mod protocol;
pub(crate) mod registration;
pub mod segment;
mod view;

pub use buffer::{RecvBuffer, SendBuffer};
pub use calls::{Messages, Request};
pub use context::{Context, Owner};
pub use incoming::{Arriving, Copying, ReceiveError, reject};
pub use matching::{ANY_SOURCE, ANY_TAG};
pub use messenger::Status;
pub use outgoing::{Endpoint, Outgoing, Pause, Shared, any, any_on_device, is_quiet};
pub use protocol::Protocol;
pub use registration::Registration;
pub use segment::Segment;
pub use view::{
    Content, DescribedLayout, DeviceCopy, DeviceElements, DeviceHandle, HANDLE_WORDS,
    OpaqueElements, PackedBytes, View, hash,
};
