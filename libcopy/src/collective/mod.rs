// SPDX-License-Identifier: MIT OR Apache-2.0

//! Operations that all ranks of a team call together, with the same root and fitting lengths.
//!
//! Small messages go through the mailboxes without asking. For others the root's buffer is opened
//! once and all leaves copy from it (or into it) at the same time, or the bytes flow through shared
//! memory. What cannot be opened (a limit, memory that cannot be pinned) takes the next way; the
//! root tells. Everything said between ranks names the operation, so that none goes on with
//! another.
//!
//! An error on one rank is an error on every rank: those that still wait get it at once, those
//! that already have what they need get it from their next call.

mod allgather;
mod alltoall;
mod bcast;
mod calls;
mod chunked;
mod cooperative;
mod direct;
mod division;
mod exchange;
mod gather;
#[doc(hidden)]
pub mod nonblocking;
mod offloaded;
mod planned;
mod reduce;
mod scatter;

pub use crate::op::Op;
pub use division::Parts;
