// SPDX-License-Identifier: MIT OR Apache-2.0

//! Square tiles of two dimensions, so that every cache line is used up while it is there.

use super::caches::LINE;
use super::loop_nest::Dim;
use super::short_blocks::{by_length, short};

/// Copies blocks along two dimensions tile by tile.
///
/// # Safety
///
/// Both places have room for blocks of `len` bytes along both dimensions, and do not overlap.
pub(super) unsafe fn tiles(to: *mut u8, from: *const u8, len: usize, a: Dim, b: Dim) {
    type Tile = unsafe fn(*mut u8, *const u8, usize, Dim, Dim);
    let one: Tile = by_length!(len, tile; any);
    let side = (LINE / len).clamp(2, 16);
    let mut j = 0;
    while j < b.count {
        let columns = side.min(b.count - j);
        let mut i = 0;
        while i < a.count {
            let rows = side.min(a.count - i);
            let (i_, j_) = (i as isize, j as isize);
            let to = to.wrapping_offset(i_ * a.to + j_ * b.to);
            let from = from.wrapping_offset(i_ * a.from + j_ * b.from);
            let (a, b) = (
                Dim { count: rows, ..a },
                Dim {
                    count: columns,
                    ..b
                },
            );
            // SAFETY: the tile lies within the nest.
            unsafe { one(to, from, len, a, b) };
            i += rows;
        }
        j += columns;
    }
}

/// # Safety
///
/// As for [`tiles`].
unsafe fn tile<const LEN: usize>(
    mut to: *mut u8,
    mut from: *const u8,
    _len: usize,
    a: Dim,
    b: Dim,
) {
    for _ in 0..b.count {
        let (mut t, mut f) = (to, from);
        for _ in 0..a.count {
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(f, t, LEN) };
            t = t.wrapping_offset(a.to);
            f = f.wrapping_offset(a.from);
        }
        to = to.wrapping_offset(b.to);
        from = from.wrapping_offset(b.from);
    }
}

/// # Safety
///
/// As for [`tiles`].
unsafe fn any(mut to: *mut u8, mut from: *const u8, len: usize, a: Dim, b: Dim) {
    for _ in 0..b.count {
        let (mut t, mut f) = (to, from);
        for _ in 0..a.count {
            // SAFETY: the caller's promise.
            unsafe { short(t, f, len) };
            t = t.wrapping_offset(a.to);
            f = f.wrapping_offset(a.from);
        }
        to = to.wrapping_offset(b.to);
        from = from.wrapping_offset(b.from);
    }
}
