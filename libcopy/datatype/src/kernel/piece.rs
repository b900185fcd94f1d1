// SPDX-License-Identifier: MIT OR Apache-2.0

//! One piece of any length.

use super::loop_nest::SMALL;
use super::short_blocks;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::x86;
use crate::memcpy;

/// Copies one piece.
///
/// # Safety
///
/// `len` bytes are readable at `from` and writable at `to`, and they do not overlap.
#[inline]
pub(in super::super) unsafe fn dense(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if len > 2 * SMALL {
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            if x86::piece(to, from, len) {
                return;
            }
            memcpy::copy(to, from, len);
        } else {
            short_blocks::short(to, from, len);
        }
    }
}

/// Longer pieces are worth a call each.
const LONGEST: usize = 512;

/// Copies one piece of a list, in moves of `STEP` bytes and without a call if it is short.
///
/// # Safety
///
/// As for [`dense`].
#[inline(always)]
pub(super) unsafe fn several<const STEP: usize>(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if len < STEP {
            short_blocks::short(to, from, len);
        } else if len <= LONGEST {
            short_blocks::lines::<STEP>(to, from, len);
        } else {
            dense(to, from, len);
        }
    }
}

/// Copies one piece of a list in vectors of 16 bytes: two at a time, then one or two of which the
/// last one ends with the piece.
///
/// # Safety
///
/// As for [`dense`].
#[inline(always)]
pub(super) unsafe fn halves(to: *mut u8, from: *const u8, len: usize) {
    const STEP: usize = 16;
    // SAFETY: the caller's promise.
    unsafe {
        if len < STEP {
            return short_blocks::short(to, from, len);
        }
        if len > LONGEST {
            return dense(to, from, len);
        }
        let mut at = 0;
        while at + 2 * STEP < len {
            std::ptr::copy_nonoverlapping(from.add(at), to.add(at), 2 * STEP);
            at += 2 * STEP;
        }
        if at + STEP < len {
            std::ptr::copy_nonoverlapping(from.add(at), to.add(at), STEP);
        }
        let last = len - STEP;
        std::ptr::copy_nonoverlapping(from.add(last), to.add(last), STEP);
    }
}

/// Copies one of many pieces whose lengths vary; most have at least [`SMALL`] bytes.
///
/// # Safety
///
/// As for [`dense`]; `len` is at least 1.
#[inline(always)]
pub(in super::super) unsafe fn fragment(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if len < SMALL {
            short_blocks::short(to, from, len)
        } else {
            short_blocks::lines::<64>(to, from, len)
        }
    }
}
