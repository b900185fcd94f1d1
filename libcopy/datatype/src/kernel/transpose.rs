// SPDX-License-Identifier: MIT OR Apache-2.0

//! Transpositions: the small stride of one side belongs to another dimension than that of the
//! other side. Square tiles read and write whole cache lines.

use super::caches::LINE;
use super::loop_nest::{Dim, Nest};
use super::tiles::tiles;

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
