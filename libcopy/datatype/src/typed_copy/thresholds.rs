// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers of bytes that more than one way to copy asks for.

/// Copies of at most this many bytes are done before the best way is found.
pub(super) const FEW: u64 = 4096;

/// Regular layouts whose blocks have at least this many bytes are walked side by side.
pub(super) const SHORT: i64 = 64;

/// With fewer bytes, what goes through a buffer is still in the cache: two loops that need not
/// decide anything are faster than a walk that looks for the end of a block on each side.
pub(super) const MUCH: u64 = 64 << 10;

/// Blocks this many times longer than the other side's are the packed form of a part of that side.
pub(super) const RATIO: i64 = 16;
