// SPDX-License-Identifier: MIT OR Apache-2.0

//! Transpositions: the small stride of one side belongs to another dimension than that of the
//! other side. Square tiles read and write whole cache lines.

use super::caches::LINE;
use super::loop_nest::{Dim, Nest};
use super::strip::by_length;

/// The dimension to transpose with the innermost one, if that is worth it: it has a small stride
/// where the innermost one has a large stride, on one of the sides.
pub(super) fn partner(len: usize, dims: &[Dim]) -> Option<usize> {
    let near = |stride: isize| stride.unsigned_abs() < 2 * LINE.max(len);
    let inner = &dims[0];
    if inner.count < 4 || near(inner.to) && near(inner.from) {
        return None;
    }
    let better = |dim: &Dim| {
        dim.count >= 2
            && (near(dim.from) && dim.from.unsigned_abs() < inner.from.unsigned_abs()
                || near(dim.to) && dim.to.unsigned_abs() < inner.to.unsigned_abs())
    };
    (1..dims.len())
        .filter(|&i| better(&dims[i]))
        .min_by_key(|&i| dims[i].from.unsigned_abs() + dims[i].to.unsigned_abs())
}

/// Copies blocks along the first two dimensions tile by tile.
///
/// # Safety
///
/// As for [`Nest::run`]; the length is at most [`SMALL`](super::loop_nest::SMALL).
pub(super) unsafe fn run(to: *mut u8, from: *const u8, nest: &Nest) {
    let [a, b, c] = nest.dims;
    let (mut to, mut from) = (to, from);
    for _ in 0..c.count {
        // SAFETY: the caller's promise.
        unsafe { plane(to, from, nest.len, a, b) };
        to = to.wrapping_offset(c.to);
        from = from.wrapping_offset(c.from);
    }
}

/// # Safety
///
/// As for [`run`], for two dimensions.
unsafe fn plane(to: *mut u8, from: *const u8, len: usize, a: Dim, b: Dim) {
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if super::x86::transpose(to, from, len, a, b) {
            return;
        }
        tiles(to, from, len, a, b);
    }
}

/// # Safety
///
/// As for [`run`], for two dimensions.
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
/// As for [`run`].
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
/// As for [`run`].
unsafe fn any(mut to: *mut u8, mut from: *const u8, len: usize, a: Dim, b: Dim) {
    for _ in 0..b.count {
        let (mut t, mut f) = (to, from);
        for _ in 0..a.count {
            // SAFETY: the caller's promise.
            unsafe { super::strip::short(t, f, len) };
            t = t.wrapping_offset(a.to);
            f = f.wrapping_offset(a.from);
        }
        to = to.wrapping_offset(b.to);
        from = from.wrapping_offset(b.from);
    }
}
