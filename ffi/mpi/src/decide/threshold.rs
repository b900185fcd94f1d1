// SPDX-License-Identifier: MIT OR Apache-2.0

//! The first question about a call: whether it is so small that it is forwarded in any case. It has
//! to cost next to nothing, so it looks at what was learnt before, and where that is not enough, it
//! says no. What it forwards, [`crate::collectives::intercept`] would forward, too.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::library::abi::Word;
use crate::library::count::Count;
use crate::library::predefined::Predefined;
use crate::library::stats::{FUNCTIONS, Function};

/// Messages of a function that are forwarded, in bytes.
#[repr(align(32))]
struct Forwarded {
    /// Those with fewer bytes. Zero as long as nothing is known, and where every call is to be
    /// counted.
    below: AtomicU64,
    /// Those that are longer than short ones and shorter than long ones: from how many bytes on,
    /// and for how many.
    between: [AtomicU64; 2],
}

#[unsafe(link_section = "libcopy_hot")]
static FORWARDED: [Forwarded; FUNCTIONS] = [const {
    Forwarded {
        below: AtomicU64::new(0),
        between: [const { AtomicU64::new(0) }; 2],
    }
}; FUNCTIONS];

/// The bits of a word that are a handle.
#[unsafe(link_section = "libcopy_hot_words")]
static HANDLE: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Sizes of predefined datatypes that were asked for.
#[unsafe(link_section = "libcopy_hot")]
static TYPES: Predefined = Predefined::new();

/// Learns from which size on calls may be intercepted, and between which sizes they are not.
pub fn learn(handle: usize, least: impl Fn(Function) -> (u64, Range<u64>)) {
    HANDLE.store(handle, Ordering::Relaxed);
    for function in Function::all() {
        let (least, between) = least(function);
        let forwarded = &FORWARDED[function as usize];
        forwarded.below.store(least, Ordering::Relaxed);
        let [start, length] = &forwarded.between;
        // Nothing is between while this changes.
        length.store(0, Ordering::Relaxed);
        start.store(between.start, Ordering::Release);
        length.store(between.end.saturating_sub(between.start), Ordering::Release);
    }
}

/// The bits of a word that are a handle, once that is known.
#[inline(always)]
pub fn handle_bits() -> usize {
    HANDLE.load(Ordering::Relaxed)
}

/// A handle of an array.
///
/// # Safety
///
/// The array has more handles than `index`.
#[inline(always)]
pub unsafe fn handle_at(handles: *const c_void, index: usize) -> Word {
    // SAFETY: the caller's promise; the library's handles are as wide as that mask.
    unsafe {
        match handle_bits() {
            usize::MAX => handles.cast::<usize>().add(index).read(),
            _ => handles.cast::<u32>().add(index).read() as usize,
        }
    }
}

/// Learns the size of a predefined datatype whose handle is as large as an address.
pub fn learn_size(datatype: Word, size: usize) {
    TYPES.put(datatype, size);
}

/// The size of a predefined datatype, if that is known.
#[inline(always)]
pub fn size(datatype: Word) -> Option<usize> {
    if HANDLE.load(Ordering::Relaxed) != usize::MAX {
        // Predefined types of MPICH: 0x4c, an index, and between them the size.
        return (datatype & 0xff00_0000 == 0x4c00_0000).then_some(datatype >> 8 & 0xff);
    }
    TYPES.get(datatype)
}

/// From how many bytes on calls of a function may be intercepted.
#[inline(always)]
pub fn least(function: Function) -> u64 {
    FORWARDED[function as usize].below.load(Ordering::Relaxed)
}

/// Whether a buffer may be `MPI_IN_PLACE`, or is `MPI_BOTTOM`.
#[inline(always)]
pub fn is_special<T>(buffer: *const T) -> bool {
    // 1 or -1.
    (buffer as usize).wrapping_add(1) <= 2
}

/// Whether `count` elements at `buffer` are to be forwarded in any case. Of a buffer that may be
/// `MPI_IN_PLACE` they say nothing.
#[inline(always)]
pub fn is_small_unless_special<T, N: Count>(
    function: Function,
    buffer: *const T,
    count: N,
    datatype: Word,
) -> bool {
    !is_special(buffer) && is_small(function, count, datatype)
}

/// Whether `count` elements are to be forwarded in any case.
#[inline(always)]
pub fn is_small<N: Count>(function: Function, count: N, datatype: Word) -> bool {
    let (Some(count), Some(size)) = (count.number(), size(datatype)) else {
        return false;
    };
    let bytes = (count as u64).checked_mul(size as u64);
    bytes.is_some_and(|bytes| is_below_or_between(function, bytes))
}

/// Whether calls of `bytes` bytes are to be forwarded in any case.
#[inline(always)]
pub fn is_below_or_between(function: Function, bytes: u64) -> bool {
    let [start, length] = &FORWARDED[function as usize].between;
    bytes < least(function)
        || bytes.wrapping_sub(start.load(Ordering::Relaxed)) < length.load(Ordering::Relaxed)
}

/// Tests that learn do so one after the other.
#[cfg(test)]
pub static LEARNING: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use std::ffi::c_int;

    use libcopy::lock::lock;

    use super::*;

    #[test]
    fn what_is_between_short_and_long_calls_is_small() {
        let _alone = lock(&LEARNING);
        let datatype = 0x5550_0000_8880;
        learn_size(datatype, 8);
        let is_small = |count: usize| is_small(Function::Bcast, count as c_int, datatype);
        learn(usize::MAX, |_| (1000, 3000..6000));
        let found = [124, 125, 374, 375, 749, 750].map(is_small);
        assert_eq!(found, [true, false, false, true, true, false]);
        learn(usize::MAX, |_| (1000, 0..0));
        assert_eq!([124, 125, 400].map(is_small), [true, false, false]);
        learn(usize::MAX, |_| (0, 0..0));
        assert!(!is_small(0));
    }
}
