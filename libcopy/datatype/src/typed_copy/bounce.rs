// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies through a buffer: packed and unpacked a part at a time.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::layout::Layout;
use super::buffer::Buffer;

/// Bytes that go through the buffer at once: with fewer, starting anew costs more than the smaller
/// buffer saves.
pub(super) const ONCE: u64 = 256 << 10;

/// What goes through a buffer of at most this many bytes goes through the stack.
const STACK: u64 = 16 << 10;

/// Packs and unpacks a range of the stream, at most `most` bytes at a time.
///
/// # Safety
///
/// As for [`copy`]; the range lies in the stream.
pub(super) unsafe fn bounce(
    from: &Layout,
    source: *const u8,
    to: &Layout,
    target: *mut u8,
    range: Range<u64>,
    most: u64,
) {
    let size = range.end - range.start;
    let most = if size <= ONCE { most.max(size) } else { most };
    // On the heap: the caller's stack may be a small one.
    let buffer = match size {
        0..=STACK => None,
        _ => Buffer::of_thread(size.min(most) as usize),
    };
    // SAFETY: the caller's promise; the buffer has room for `most`.
    unsafe {
        match buffer {
            Some(mut buffer) => through(from, source, to, target, range, (buffer.start(), most)),
            // Few bytes, or no memory for more at a time.
            None => over_stack(from, source, to, target, range),
        }
    }
}

/// As [`bounce`], with as many bytes at a time as the stack is used for.
///
/// # Safety
///
/// As for [`bounce`].
unsafe fn over_stack(
    from: &Layout,
    source: *const u8,
    to: &Layout,
    target: *mut u8,
    range: Range<u64>,
) {
    let mut few = [MaybeUninit::<u8>::uninit(); STACK as usize];
    let few = few.as_mut_ptr().cast::<u8>();
    // SAFETY: the layouts and their memory are the caller's promise; `few` has `STACK` bytes.
    unsafe { through(from, source, to, target, range, (few, STACK)) }
}

/// Packs to the buffer and unpacks from it, at most `most` bytes at a time.
///
/// # Safety
///
/// As for [`bounce`]; the buffer has room for `most`.
#[inline]
unsafe fn through(
    from: &Layout,
    source: *const u8,
    to: &Layout,
    target: *mut u8,
    range: Range<u64>,
    (chunk, most): (*mut u8, u64),
) {
    let size = range.end - range.start;
    let step = if size <= most {
        size
    } else {
        // Whole blocks of both sides, if they are all alike.
        let first = |layout: &Layout| layout.segment(0).map_or(1, |segment| segment.len);
        let (a, b) = (first(from), first(to));
        let unit = (a / gcd(a, b)).saturating_mul(b);
        most - most.checked_rem(unit).filter(|_| unit <= most).unwrap_or(0)
    };
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at + step);
        // SAFETY: the caller's promise; the chunk has room for the range, and the same range is
        // written before it is read.
        unsafe {
            from.pack_raw(source, at..end, chunk);
            to.unpack_raw(chunk, at..end, target);
        }
        at = end;
    }
}

/// The greatest common divisor, at least 1.
pub(super) fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Datatype;

    /// What is copied where there is no memory for a buffer.
    #[test]
    fn without_a_buffer_the_stack_is_enough() {
        let layout = |text: &str| {
            let datatype: Datatype = text.parse().unwrap();
            Layout::new(&datatype, 1).unwrap()
        };
        let n = 10_000;
        let from = layout("vector(10000,1,2,double)");
        let to = layout("vector(5000,16,19,byte)");
        let source: Vec<u8> = (0..16 * n).map(|i| (i * 167 / 5) as u8).collect();
        let (mut target, mut expected) = (vec![0xa5; 19 * n / 2], vec![0xa5; 19 * n / 2]);
        for i in 0..8 * n {
            expected[i / 16 * 19 + i % 16] = source[i / 8 * 16 + i % 8];
        }
        // SAFETY: both layouts lie in their buffers and have as many bytes.
        unsafe {
            let target = target.as_mut_ptr();
            over_stack(&from, source.as_ptr(), &to, target, 0..from.size());
        }
        assert!(target == expected);
    }
}
