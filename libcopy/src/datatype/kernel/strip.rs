// SPDX-License-Identifier: MIT OR Apache-2.0

//! Blocks one after the other, along one or two dimensions.

use super::{Dim, SMALL, dense};

/// Calls a function with the length as a constant if it is a common small one.
macro_rules! by_length {
    ($len:expr, $fixed:ident, $other:expr, ($($arg:expr),*)) => {
        match $len {
            1 => $fixed::<1>($($arg),*),
            2 => $fixed::<2>($($arg),*),
            3 => $fixed::<3>($($arg),*),
            4 => $fixed::<4>($($arg),*),
            5 => $fixed::<5>($($arg),*),
            6 => $fixed::<6>($($arg),*),
            8 => $fixed::<8>($($arg),*),
            10 => $fixed::<10>($($arg),*),
            12 => $fixed::<12>($($arg),*),
            16 => $fixed::<16>($($arg),*),
            20 => $fixed::<20>($($arg),*),
            24 => $fixed::<24>($($arg),*),
            28 => $fixed::<28>($($arg),*),
            32 => $fixed::<32>($($arg),*),
            36 => $fixed::<36>($($arg),*),
            40 => $fixed::<40>($($arg),*),
            48 => $fixed::<48>($($arg),*),
            56 => $fixed::<56>($($arg),*),
            64 => $fixed::<64>($($arg),*),
            _ => $other,
        }
    };
}
pub(super) use by_length;

/// One dimension.
///
/// # Safety
///
/// As for [`super::nest`].
#[inline]
pub(super) unsafe fn one(to: *mut u8, from: *const u8, len: usize, dim: Dim) {
    // SAFETY: the caller's promise.
    unsafe {
        if len > SMALL {
            return long(to, from, len, dim);
        }
        if is_far(dim) && dim.count >= MANY {
            return far(to, from, len, dim);
        }
        near(to, from, len, dim)
    }
}

/// One dimension of short blocks, without asking for lines ahead.
///
/// # Safety
///
/// As for [`super::nest`].
#[inline(always)]
unsafe fn near(to: *mut u8, from: *const u8, len: usize, dim: Dim) {
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            if super::x86::strip(to, from, len, dim) || super::x86::rows(to, from, len, dim, ONCE) {
                return;
            }
            if dim.to == len as isize && super::x86::packing(to, from, len, dim) {
                return;
            }
            if dim.from == len as isize && super::x86::unpacking(to, from, len, dim) {
                return;
            }
        }
        if dim.to == len as isize {
            by_length!(len, packing, any(to, from, len, dim), (to, from, dim))
        } else if dim.from == len as isize {
            by_length!(len, unpacking, any(to, from, len, dim), (to, from, dim))
        } else {
            by_length!(len, fixed, any(to, from, len, dim), (to, from, dim))
        }
    }
}

/// A dimension that repeats nothing.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const ONCE: Dim = Dim {
    count: 1,
    to: 0,
    from: 0,
};

/// Whether a step leaves the lines that the hardware is already fetching.
pub(super) fn is_far(dim: Dim) -> bool {
    dim.from.unsigned_abs().max(dim.to.unsigned_abs()) >= FAR
}

/// From this stride on, the hardware does not guess the next lines well.
const FAR: usize = 512;

/// So many blocks are more than the first-level cache is likely to hold already.
pub(super) const MANY: usize = 1024;

/// How many blocks ahead lines are asked for.
const AHEAD: usize = 12;

/// Blocks that are far apart: asks for the lines of later blocks early. Measured to halve the time
/// for strides of one and two KiB once the data is larger than the second-level cache.
///
/// # Safety
///
/// As for [`super::nest`].
unsafe fn far(to: *mut u8, from: *const u8, len: usize, dim: Dim) {
    let group = 8;
    let (mut t, mut f) = (to, from);
    let mut left = dim.count;
    while left > 0 {
        let count = left.min(group);
        let ahead = (AHEAD as isize)
            * if dim.from.unsigned_abs() >= FAR {
                dim.from
            } else {
                dim.to
            };
        let side = if dim.from.unsigned_abs() >= FAR {
            (f, dim.from)
        } else {
            (t.cast_const(), dim.to)
        };
        if left > AHEAD {
            for i in 0..count as isize {
                super::prefetch(side.0.wrapping_offset(ahead + i * side.1));
            }
        }
        let some = Dim { count, ..dim };
        // SAFETY: the blocks are next in the strip.
        unsafe {
            if dim.to == len as isize {
                by_length!(len, packing, any(t, f, len, some), (t, f, some));
            } else if dim.from == len as isize {
                by_length!(len, unpacking, any(t, f, len, some), (t, f, some));
            } else {
                by_length!(len, fixed, any(t, f, len, some), (t, f, some));
            }
        }
        t = t.wrapping_offset(count as isize * dim.to);
        f = f.wrapping_offset(count as isize * dim.from);
        left -= count;
    }
}

/// Two dimensions, the first one innermost.
///
/// # Safety
///
/// As for [`super::nest`].
#[inline]
pub(super) unsafe fn two(to: *mut u8, from: *const u8, len: usize, a: Dim, b: Dim) {
    // SAFETY: the caller's promise.
    unsafe {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if super::x86::rows(to, from, len, a, b) {
            return;
        }
        // A short row is not worth asking ahead for, nor are few blocks.
        let ahead = len <= SMALL && is_far(a) && a.count >= 2 * AHEAD && a.count * b.count >= MANY;
        if len > SMALL || a.count >= 32 || ahead {
            let (mut to, mut from) = (to, from);
            for _ in 0..b.count {
                if ahead {
                    far(to, from, len, a);
                } else {
                    one(to, from, len, a);
                }
                to = to.wrapping_offset(b.to);
                from = from.wrapping_offset(b.from);
            }
            return;
        }
        by_length!(
            len,
            fixed_two,
            {
                let (mut to, mut from) = (to, from);
                for _ in 0..b.count {
                    any(to, from, len, a);
                    to = to.wrapping_offset(b.to);
                    from = from.wrapping_offset(b.from);
                }
            },
            (to, from, a, b)
        )
    }
}

/// # Safety
///
/// As for [`super::nest`].
unsafe fn fixed<const LEN: usize>(mut to: *mut u8, mut from: *const u8, dim: Dim) {
    for _ in 0..dim.count {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, LEN) };
        to = to.wrapping_offset(dim.to);
        from = from.wrapping_offset(dim.from);
    }
}

/// The target is dense: four blocks at a time, at constant distances.
///
/// # Safety
///
/// As for [`super::nest`].
unsafe fn packing<const LEN: usize>(mut to: *mut u8, mut from: *const u8, dim: Dim) {
    for _ in 0..dim.count / 4 {
        for i in 0..4 {
            let from = from.wrapping_offset(i * dim.from);
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from, to.add(i as usize * LEN), LEN) };
        }
        to = to.wrapping_add(4 * LEN);
        from = from.wrapping_offset(4 * dim.from);
    }
    let rest = Dim {
        count: dim.count % 4,
        ..dim
    };
    // SAFETY: the caller's promise.
    unsafe { fixed::<LEN>(to, from, rest) }
}

/// The source is dense.
///
/// # Safety
///
/// As for [`super::nest`].
unsafe fn unpacking<const LEN: usize>(mut to: *mut u8, mut from: *const u8, dim: Dim) {
    for _ in 0..dim.count / 4 {
        for i in 0..4 {
            let to = to.wrapping_offset(i * dim.to);
            // SAFETY: the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(from.add(i as usize * LEN), to, LEN) };
        }
        to = to.wrapping_offset(4 * dim.to);
        from = from.wrapping_add(4 * LEN);
    }
    let rest = Dim {
        count: dim.count % 4,
        ..dim
    };
    // SAFETY: the caller's promise.
    unsafe { fixed::<LEN>(to, from, rest) }
}

/// # Safety
///
/// `LEN` bytes are readable.
#[inline(always)]
unsafe fn read<const LEN: usize>(from: *const u8) -> [u8; LEN] {
    // SAFETY: the caller's promise.
    unsafe { from.cast::<[u8; LEN]>().read_unaligned() }
}

/// # Safety
///
/// As for [`super::nest`].
unsafe fn fixed_two<const LEN: usize>(mut to: *mut u8, mut from: *const u8, a: Dim, b: Dim) {
    for _ in 0..b.count {
        // SAFETY: the caller's promise.
        unsafe { fixed::<LEN>(to, from, a) };
        to = to.wrapping_offset(b.to);
        from = from.wrapping_offset(b.from);
    }
}

/// Any length up to [`SMALL`].
///
/// # Safety
///
/// As for [`super::nest`].
unsafe fn any(mut to: *mut u8, mut from: *const u8, len: usize, dim: Dim) {
    for _ in 0..dim.count {
        // SAFETY: the caller's promise.
        unsafe { short(to, from, len) };
        to = to.wrapping_offset(dim.to);
        from = from.wrapping_offset(dim.from);
    }
}

/// Lengths above [`SMALL`].
///
/// # Safety
///
/// As for [`super::nest`].
unsafe fn long(mut to: *mut u8, mut from: *const u8, len: usize, dim: Dim) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise.
    if unsafe { super::x86::rows(to, from, len, dim, ONCE) } {
        return;
    }
    for _ in 0..dim.count {
        // SAFETY: the caller's promise.
        unsafe { dense(to, from, len) };
        to = to.wrapping_offset(dim.to);
        from = from.wrapping_offset(dim.from);
    }
}

/// One piece of at most 128 bytes: two overlapping moves of the largest power of two that fits.
///
/// # Safety
///
/// As for [`super::dense`].
#[inline(always)]
pub(super) unsafe fn short(to: *mut u8, from: *const u8, len: usize) {
    /// # Safety
    ///
    /// As for [`super::dense`], with `LEN <= len <= 2 * LEN`.
    #[inline(always)]
    unsafe fn ends<const LEN: usize>(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's promise. Both ends are read before anything is written.
        unsafe {
            let first = read::<LEN>(from);
            let last = read::<LEN>(from.add(len - LEN));
            to.cast::<[u8; LEN]>().write_unaligned(first);
            to.add(len - LEN).cast::<[u8; LEN]>().write_unaligned(last);
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        match len {
            0 => {}
            1 => *to = *from,
            2..=3 => ends::<2>(to, from, len),
            4..=7 => ends::<4>(to, from, len),
            8..=15 => ends::<8>(to, from, len),
            16..=31 => ends::<16>(to, from, len),
            32..=63 => ends::<32>(to, from, len),
            _ => ends::<64>(to, from, len),
        }
    }
}
