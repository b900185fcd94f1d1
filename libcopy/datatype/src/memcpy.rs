// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies of bytes by the C library's `memcpy`, which uses string instructions (`rep movsb`) for
//! some KiB and more.
//!
//! On AMD processors of Zen 3 and Zen 4 these copy a byte at a time where the destination is 1 to
//! 31 bytes behind the source within a page: 16 KiB take 6 us instead of 0.2. A long array that
//! `malloc` has returned begins 16 bytes behind the beginning of a page, and shared memory at one,
//! so what a program receives comes to just that distance. The GNU C library does without string
//! instructions there since 2.40 (its bug 30994).

/// Bytes of a page of x86-64.
const PAGE: usize = 4096;

/// Below this length no `memcpy` that we know uses string instructions.
const SHORTEST: usize = 2048;

/// Bytes of a piece: whole lines, and shorter than [`SHORTEST`].
const PIECE: usize = SHORTEST - 64;

/// Whether string instructions are slow between these places.
#[inline(always)]
fn is_close_behind(to: *mut u8, from: *const u8) -> bool {
    let distance = to.addr().wrapping_sub(from.addr()) % PAGE;
    cfg!(target_arch = "x86_64") && (1..32).contains(&distance)
}

/// How many bytes are copied at a time of `len` between these places.
#[inline(always)]
fn piece(to: *mut u8, from: *const u8, len: usize) -> usize {
    if len >= SHORTEST && is_close_behind(to, from) {
        PIECE
    } else {
        len
    }
}

/// Copies bytes, piece by piece where string instructions are slow.
///
/// # Safety
///
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
#[inline(always)]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match piece(to, from, len) {
            whole if whole == len => std::ptr::copy_nonoverlapping(from, to, len),
            piece => copy_pieces(to, from, len, piece),
        }
    }
}

/// [`copy`], `piece` bytes at a time.
///
/// # Safety
///
/// As for [`copy`].
#[inline(never)]
unsafe fn copy_pieces(to: *mut u8, from: *const u8, len: usize, piece: usize) {
    for at in (0..len).step_by(piece) {
        // SAFETY: the piece is within the caller's bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.add(at), to.add(at), piece.min(len - at)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places with these distances from the beginning of a page.
    fn places(memory: &mut [u8], to: usize, from: usize) -> (*mut u8, *const u8) {
        let base = memory.as_mut_ptr();
        let start = base.align_offset(PAGE);
        (
            base.wrapping_add(start + to),
            base.wrapping_add(start + 4 * PAGE + from),
        )
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn what_malloc_returned_gets_pages_in_pieces() {
        let mut memory = vec![0; 16 * PAGE];
        let mut piece_at = |to, from, len| {
            let (to, from) = places(&mut memory, to, from);
            piece(to, from, len)
        };
        assert_eq!(piece_at(16, 0, 16 << 10), PIECE);
        assert_eq!(piece_at(16, 0, SHORTEST - 1), SHORTEST - 1);
        // Only the distance counts, and its direction.
        assert_eq!(piece_at(0, PAGE - 8, SHORTEST), PIECE);
        for (to, from) in [(0, 0), (0, 16), (16, 16), (32, 0), (PAGE / 2, 0)] {
            assert_eq!(piece_at(to, from, 16 << 10), 16 << 10, "{to}, {from}");
        }
    }

    #[test]
    fn every_byte_is_copied_once() {
        for distance in [0, 1, 16, 31, 32, 100] {
            for len in [0, 1, 2047, 2048, PIECE + 1, 2 * PIECE, 3 * PAGE + 5] {
                let mut memory: Vec<u8> = (0..12 * PAGE).map(|at| (at % 251) as u8).collect();
                let (to, from) = places(&mut memory, distance, 0);
                let behind = to.wrapping_add(len);
                // SAFETY: both are within the vector, and the places are four pages apart.
                unsafe {
                    let expected = std::slice::from_raw_parts(from, len).to_vec();
                    let next = behind.read();
                    copy(to, from, len);
                    assert!(std::slice::from_raw_parts(to, len) == expected);
                    assert_eq!(behind.read(), next, "{distance}, {len}");
                }
            }
        }
    }
}
