// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a transfer gives back.

use crate::choice::Method;

/// What a message took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// How it was moved.
    pub method: Method,
    /// Work requests that moved its bytes; known to the sender alone.
    pub requests: u64,
    /// Whether another method had been chosen and could not be used.
    pub fell_back: bool,
    /// Whether the memory keys of this end, or its registered memory, are those of an earlier
    /// message.
    pub is_kept: bool,
    /// Bytes of the message.
    pub bytes: u64,
}
