// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two regular layouts walked side by side.

use super::super::kernel;
use super::regular::{DIMS, Regular};

/// One side of two regular layouts that are walked together.
pub(super) struct Side<'a> {
    regular: &'a Regular,
    /// Where the current block is, from the layout's first byte.
    pub(super) block: i64,
    /// Blocks left along each dimension, this one included.
    left: [i64; DIMS],
    /// Bytes of the block that are done.
    pub(super) done: i64,
}

impl<'a> Side<'a> {
    pub(super) fn new(regular: &'a Regular) -> Side<'a> {
        Side {
            regular,
            block: 0,
            left: regular.dims.map(|dim| dim.0),
            done: 0,
        }
    }

    /// At a position of the stream, which is not its end.
    pub(super) fn at(regular: &'a Regular, position: i64) -> Side<'a> {
        let mut side = Side::new(regular);
        side.done = position % regular.len;
        side.block = regular.offset(position) - side.done;
        let mut index = position / regular.len;
        for (left, &(count, _)) in side.left.iter_mut().zip(&regular.dims[..regular.n]) {
            *left = count - index % count;
            index /= count;
        }
        side
    }

    /// Goes on within the block, or to the next one; whether there is more.
    #[inline(always)]
    pub(super) fn advance(&mut self, bytes: i64) -> bool {
        self.done += bytes;
        if self.done < self.regular.len {
            return true;
        }
        self.done = 0;
        for (left, &(count, stride)) in self
            .left
            .iter_mut()
            .zip(&self.regular.dims[..self.regular.n])
        {
            *left -= 1;
            if *left > 0 {
                self.block += stride;
                return true;
            }
            *left = count;
            self.block -= (count - 1) * stride;
        }
        false
    }
}

/// Copies between two regular layouts whose blocks do not fit each other.
///
/// # Safety
///
/// As for [`copy`]; the pointers are where the first bytes of the streams are.
pub(super) unsafe fn zip(from: &Regular, source: *const u8, to: &Regular, target: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if kernel::has_avx2() {
        /// # Safety
        ///
        /// As for [`zip`]; the processor has AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn with_avx2(from: &Regular, source: *const u8, to: &Regular, target: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe { fragments(from, source, to, target) }
        }
        // SAFETY: the caller's promise; the processor has AVX2.
        return unsafe { with_avx2(from, source, to, target) };
    }
    // SAFETY: the caller's promise.
    unsafe { fragments(from, source, to, target) }
}

/// # Safety
///
/// As for [`zip`].
#[inline(always)]
unsafe fn fragments(from: &Regular, source: *const u8, to: &Regular, target: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { go_on(Side::new(from), source, Side::new(to), target) }
}

/// The rest of [`fragments`], from where both sides are.
///
/// # Safety
///
/// As for [`zip`].
#[inline(always)]
pub(super) unsafe fn go_on(mut a: Side, source: *const u8, mut b: Side, target: *mut u8) {
    let (from, to) = (a.regular, b.regular);
    loop {
        let len = (from.len - a.done).min(to.len - b.done);
        let read = source.wrapping_offset((a.block + a.done) as isize);
        let write = target.wrapping_offset((b.block + b.done) as isize);
        // SAFETY: both sides are at the same position of the stream, with `len` bytes left.
        unsafe { kernel::fragment(write, read, len as usize) };
        // Streams of the same size end together.
        if !(a.advance(len) & b.advance(len)) {
            return;
        }
    }
}
