// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies of plain memory that a peer may look at, with or without leaving the bytes in the cache.

/// Copies bytes; both sides are raw because one of them is memory shared with peers.
///
/// # Safety
///
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
#[inline]
pub(crate) unsafe fn cached(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { libcopy_datatype::memcpy::copy(to, from, len) }
}

/// As [`cached`], but the bytes written bypass the cache: for destinations that are larger than
/// it, where reading a line only to overwrite it wastes a third of the memory's bandwidth.
///
/// # Safety
///
/// As for [`cached`].
pub(crate) unsafe fn streaming(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        if len < 4096 {
            cached(to, from, len);
        } else {
            streaming_unfenced(to, from, len);
            fence();
        }
    }
}

/// [`streaming`] of any length, which is not ordered by a release store before there was a
/// [`fence`].
///
/// # Safety
///
/// As for [`cached`].
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn streaming_unfenced(to: *mut u8, from: *const u8, len: usize) {
    let head = to.align_offset(64).min(len);
    let lines = (len - head) / 64;
    // SAFETY: the three parts cover exactly `len` bytes; `streaming_*` gets an aligned `to`, and
    // AVX is only used where the processor has it.
    unsafe {
        cached(to, from, head);
        if std::arch::is_x86_feature_detected!("avx") {
            streaming_avx(to.add(head), from.add(head), lines);
        } else {
            streaming_sse2(to.add(head), from.add(head), lines);
        }
        let done = head + lines * 64;
        cached(to.add(done), from.add(done), len - done);
    }
}

/// [`streaming`] if the bytes written are to bypass the cache, else [`cached`].
///
/// # Safety
///
/// As for [`cached`].
#[inline]
pub(crate) unsafe fn either(to: *mut u8, from: *const u8, len: usize, bypass: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        if bypass {
            streaming(to, from, len)
        } else {
            cached(to, from, len)
        }
    }
}

/// Places of a source that [`interleaved`] reads in turns.
const INTERLEAVED: usize = 4;
/// Bytes of each at a time: a cache line.
const LINE: usize = 64;
/// Shorter sources are read from their beginning to their end.
const LEAST_INTERLEAVED: usize = 4096;

/// As [`cached`], for bytes that another processor has written past the caches: reads four places
/// in turns, as prefetchers follow each, and so more lines are under way. 32 KiB took 1.5 us where
/// `memcpy` took 2.1 (EPYC of Zen 4).
///
/// # Safety
///
/// As for [`cached`].
pub(crate) unsafe fn interleaved(to: *mut u8, from: *const u8, len: usize) {
    let part = len / INTERLEAVED / LINE * LINE;
    let done = if len < LEAST_INTERLEAVED {
        0
    } else {
        INTERLEAVED * part
    };
    // SAFETY: all lines of the parts, and what is behind them, are within `len` bytes.
    unsafe {
        for line in (0..done / INTERLEAVED).step_by(LINE) {
            for place in 0..INTERLEAVED {
                let at = place * part + line;
                cached(to.add(at), from.add(at), LINE);
            }
        }
        cached(to.add(done), from.add(done), len - done);
    }
}

/// # Safety
///
/// As for [`cached`] with `64 * lines` bytes; `to` is aligned to 64; the processor has AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn streaming_avx(to: *mut u8, from: *const u8, lines: usize) {
    use std::arch::x86_64::*;
    for line in 0..lines {
        // SAFETY: `line` is below `lines`.
        unsafe {
            let from = from.add(line * 64).cast::<__m256i>();
            let to = to.add(line * 64).cast::<__m256i>();
            let a = _mm256_loadu_si256(from);
            let b = _mm256_loadu_si256(from.add(1));
            _mm256_stream_si256(to, a);
            _mm256_stream_si256(to.add(1), b);
        }
    }
}

/// Has a release store after it order the streaming stores before it.
pub(crate) fn fence() {
    // SAFETY: every x86-64 processor has it. Rust 1.85 asks for the block, later ones do not.
    #[cfg(target_arch = "x86_64")]
    #[allow(unused_unsafe)]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// # Safety
///
/// As for [`cached`] with `64 * lines` bytes; `to` is aligned to 64.
#[cfg(target_arch = "x86_64")]
unsafe fn streaming_sse2(to: *mut u8, from: *const u8, lines: usize) {
    use std::arch::x86_64::*;
    for piece in 0..4 * lines {
        // SAFETY: `piece` is within the lines, and x86-64 always has SSE2.
        unsafe {
            let value = _mm_loadu_si128(from.add(piece * 16).cast());
            _mm_stream_si128(to.add(piece * 16).cast(), value);
        }
    }
}

/// As [`cached`]: this architecture has no streaming stores that stable Rust can name.
///
/// # Safety
///
/// As for [`cached`].
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn streaming_unfenced(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { cached(to, from, len) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_reads_copy_every_byte() {
        let source: Vec<u8> = (0..70_000u32).map(|i| (i % 251) as u8).collect();
        for len in [0, 1, 4095, 4096, 4097, 4351, 8192, 32 << 10, 65_537] {
            let mut target = vec![0xEEu8; len + 1];
            // SAFETY: both have these bytes, and do not overlap.
            unsafe { interleaved(target.as_mut_ptr(), source.as_ptr().add(5), len) };
            assert_eq!(&target[..len], &source[5..][..len]);
            assert_eq!(target[len], 0xEE);
        }
    }

    #[test]
    fn streaming_copies_every_byte_at_any_alignment() {
        let source: Vec<u8> = (0..20_000u32).map(|i| (i % 251) as u8).collect();
        for offset in [0, 1, 15, 31, 63, 64] {
            for len in [0, 1, 63, 64, 4095, 4096, 4097, 9000, 16384 + 1] {
                let mut target = vec![0xEEu8; 20_000];
                // SAFETY: both ranges are within their vectors, which do not overlap.
                unsafe { streaming(target.as_mut_ptr().add(offset), source.as_ptr().add(7), len) };
                assert_eq!(&target[offset..offset + len], &source[7..7 + len]);
                assert!(target[..offset].iter().all(|b| *b == 0xEE));
                assert!(target[offset + len..].iter().all(|b| *b == 0xEE));
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_path_without_avx_copies_too() {
        let source: Vec<u8> = (0..8192u32).map(|i| (i % 253) as u8).collect();
        let mut target = vec![0u8; 8192 + 64];
        let skip = target.as_ptr().align_offset(64);
        // SAFETY: 100 lines fit behind the aligned start.
        unsafe { streaming_sse2(target.as_mut_ptr().add(skip), source.as_ptr(), 100) };
        assert_eq!(&target[skip..skip + 6400], &source[..6400]);
    }
}
