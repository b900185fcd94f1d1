// SPDX-License-Identifier: MIT OR Apache-2.0

//! The loops that move bytes.

/// Copies `count` blocks of `len` bytes from `from`, `from_stride` apart, to `to`, `to_stride`
/// apart.
///
/// # Safety
///
/// All blocks are readable and writable, and no source block overlaps a target block.
#[inline]
pub(super) unsafe fn blocks(
    to: *mut u8,
    to_stride: isize,
    from: *const u8,
    from_stride: isize,
    len: usize,
    count: usize,
) {
    macro_rules! sizes {
        ($($size:literal)*) => {
            match len {
                // SAFETY: the caller's promise, with the length as a constant.
                $($size => unsafe { fixed::<$size>(to, to_stride, from, from_stride, count) },)*
                // SAFETY: the caller's promise.
                _ => unsafe { any(to, to_stride, from, from_stride, len, count) },
            }
        };
    }
    sizes!(1 2 3 4 6 8 12 16 20 24 32 40 48 56 64)
}

/// # Safety
///
/// As for [`blocks`].
unsafe fn fixed<const LEN: usize>(
    to: *mut u8,
    to_stride: isize,
    from: *const u8,
    from_stride: isize,
    count: usize,
) {
    let (mut to, mut from) = (to, from);
    for _ in 0..count {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, LEN) };
        to = to.wrapping_offset(to_stride);
        from = from.wrapping_offset(from_stride);
    }
}

/// # Safety
///
/// As for [`blocks`].
unsafe fn any(
    to: *mut u8,
    to_stride: isize,
    from: *const u8,
    from_stride: isize,
    len: usize,
    count: usize,
) {
    let (mut to, mut from) = (to, from);
    for _ in 0..count {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        to = to.wrapping_offset(to_stride);
        from = from.wrapping_offset(from_stride);
    }
}
