// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies through a buffer: packed and unpacked a part at a time.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::super::layout::Layout;
use super::buffer::Buffer;

/// Bytes that go through the buffer at once: with fewer, starting anew costs more than the smaller buffer saves.
pub(super) const ONCE: u64 = 256 << 10;

/// What goes through a buffer of at most this many bytes goes through the stack.
const STACK: usize = 16 << 10;

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
    if size <= STACK as u64 {
        let mut few = [MaybeUninit::<u8>::uninit(); STACK];
        let few = few.as_mut_ptr().cast::<u8>();
        // SAFETY: the caller's promise; there is room for everything, and what is read was
        // written before.
        unsafe {
            from.pack_raw(source, range.clone(), few);
            to.unpack_raw(few, range, target);
        }
        return;
    }
    // On the heap: the caller's stack may be a small one.
    let mut buffer = Buffer::of_thread(size.min(most) as usize);
    let chunk = buffer.start();
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
