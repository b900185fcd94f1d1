// SPDX-License-Identifier: MIT OR Apache-2.0

//! A repeating pattern of pieces that lie differently on both sides.

/// A piece on both sides.
#[derive(Clone, Copy)]
pub(in super::super) struct Piece {
    pub(in super::super) to: i64,
    pub(in super::super) from: i64,
    pub(in super::super) len: i64,
    /// The bytes around it on the side that is read, of which all may be read: what lies between
    /// two blocks that are at most two cache lines apart may be.
    #[cfg_attr(not(all(target_arch = "x86_64", not(miri))), allow(dead_code))]
    pub(in super::super) low: i64,
    #[cfg_attr(not(all(target_arch = "x86_64", not(miri))), allow(dead_code))]
    pub(in super::super) high: i64,
}

/// How often a pattern comes, and how far apart it is on both sides.
#[derive(Clone, Copy)]
pub(in super::super) struct Repeats {
    pub(in super::super) count: usize,
    pub(in super::super) to: isize,
    pub(in super::super) from: isize,
}
