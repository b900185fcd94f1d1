// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory that the ranks of a team share, and what goes through it: rings, messages, a barrier,
//! waiting.
//!
//! [`segment`] lays the memory out. [`ring`], [`doorbell`], [`barrier`], [`board`],
//! [`contribution`], [`claims`], [`puts`] and [`reports`] are protocols on words in it, which
//! `loom` checks through [`sync`]. [`leading`] is how all learn from rank 0 which of two ways is
//! faster. [`wait`] waits for peers and notices who died, by [`turns`]; [`cause`] is why a team is
//! broken. [`mailbox`] sends and receives messages. [`meeting`] is how ranks that do not see one
//! file meet. [`anonymous`] is memory of processes that are no team. [`writes`] decides whether
//! bytes for others go past the caches.

pub mod anonymous;
pub(crate) mod barrier;
pub(crate) mod board;
pub(crate) mod cause;
pub mod claims;
pub(crate) mod contribution;
pub(crate) mod doorbell;
pub(crate) mod leading;
pub(crate) mod mailbox;
pub(crate) mod meeting;
pub(crate) mod message_segment;
pub(crate) mod puts;
pub(crate) mod reports;
pub(crate) mod ring;
pub(crate) mod segment;
pub(crate) mod sync;
pub mod turns;
pub(crate) mod wait;
pub(crate) mod writes;
