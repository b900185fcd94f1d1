// SPDX-License-Identifier: MIT OR Apache-2.0

//! Loops for x86-64 with AVX2, where the compiler finds none as good.

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;

use super::{Dim, tile};

/// Runs a strip if there is a vector loop for it: blocks of four or eight bytes, every other one.
///
/// # Safety
///
/// As for [`super::nest`].
#[inline]
pub(super) unsafe fn strip(to: *mut u8, from: *const u8, len: usize, dim: Dim) -> bool {
    let every_other = dim.to == len as isize && dim.from == 2 * len as isize;
    if !every_other || dim.count < 16 || !is_x86_feature_detected!("avx2") {
        return false;
    }
    // SAFETY: the caller's promise; the processor has AVX2.
    unsafe {
        match len {
            8 => every_other_eight(to, from, dim.count),
            4 => every_other_four(to, from, dim.count),
            _ => return false,
        }
    }
    true
}

/// # Safety
///
/// `count` blocks of 8 bytes are readable, 16 bytes apart, the bytes between them are in pages
/// that are; the target is writable. The processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn every_other_eight(mut to: *mut u8, mut from: *const u8, count: usize) {
    // The last block is left to the end: what follows it may not be readable.
    let groups = (count - 1) / 8;
    for _ in 0..groups {
        // SAFETY: 8 blocks and the bytes behind each, which is not the last one.
        unsafe {
            let at = from.cast::<__m256i>();
            let (a, b) = (_mm256_loadu_si256(at), _mm256_loadu_si256(at.add(1)));
            let (c, d) = (_mm256_loadu_si256(at.add(2)), _mm256_loadu_si256(at.add(3)));
            let first = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_unpacklo_epi64(a, b));
            let second = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_unpacklo_epi64(c, d));
            _mm256_storeu_si256(to.cast(), first);
            _mm256_storeu_si256(to.cast::<__m256i>().add(1), second);
        }
        to = to.wrapping_add(64);
        from = from.wrapping_add(128);
    }
    for _ in 0..count - groups * 8 {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, 8) };
        to = to.wrapping_add(8);
        from = from.wrapping_add(16);
    }
}

/// # Safety
///
/// As for [`every_other_eight`], with blocks of 4 bytes, 8 bytes apart.
#[target_feature(enable = "avx2")]
unsafe fn every_other_four(mut to: *mut u8, mut from: *const u8, count: usize) {
    let groups = (count - 1) / 8;
    for _ in 0..groups {
        // SAFETY: 8 blocks and the bytes behind each, which is not the last one.
        unsafe {
            let at = from.cast::<f32>();
            let (a, b) = (_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8)));
            let mixed = _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
            let ordered = _mm256_permute4x64_epi64::<0b11_01_10_00>(mixed);
            _mm256_storeu_si256(to.cast(), ordered);
        }
        to = to.wrapping_add(32);
        from = from.wrapping_add(64);
    }
    for _ in 0..count - groups * 8 {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from, to, 4) };
        to = to.wrapping_add(4);
        from = from.wrapping_add(8);
    }
}

/// Transposes in registers if one side is dense along `a` and the other along `b`.
///
/// # Safety
///
/// As for [`super::nest`].
pub(super) unsafe fn transpose(to: *mut u8, from: *const u8, len: usize, a: Dim, b: Dim) -> bool {
    let unit = len as isize;
    // Call the dimension along which the source is dense `x`, the other one `y`.
    let (x, y) = if a.to == unit && b.from == unit {
        (b, a)
    } else if a.from == unit && b.to == unit {
        (a, b)
    } else {
        return false;
    };
    let side = match len {
        16 | 8 | 4 => 64 / len,
        _ => return false,
    };
    if x.count < side || y.count < side || !is_x86_feature_detected!("avx2") {
        return false;
    }
    let (columns, rows) = (x.count / side * side, y.count / side * side);
    // SAFETY: the caller's promise; the processor has AVX2; the rest is the two borders.
    unsafe {
        match len {
            16 => squares::<16>(to, from, columns, rows, x, y, square_16),
            8 => squares::<8>(to, from, columns, rows, x, y, square_8),
            _ => squares::<4>(to, from, columns, rows, x, y, square_4),
        }
        if columns < x.count {
            let at = columns as isize;
            let rest = Dim {
                count: x.count - columns,
                ..x
            };
            let (to, from) = (
                to.wrapping_offset(at * x.to),
                from.wrapping_offset(at * x.from),
            );
            tile::tiles(to, from, len, rest, y);
        }
        if rows < y.count {
            let at = rows as isize;
            let rest = Dim {
                count: y.count - rows,
                ..y
            };
            let done = Dim {
                count: columns,
                ..x
            };
            let (to, from) = (
                to.wrapping_offset(at * y.to),
                from.wrapping_offset(at * y.from),
            );
            tile::tiles(to, from, len, done, rest);
        }
    }
    true
}

/// Squares in a row along the source, so that a source line's neighbours are used soon.
const ROW: usize = 4;

/// # Safety
///
/// As for [`super::nest`], for blocks of `LEN` bytes; the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn squares<const LEN: usize>(
    to: *mut u8,
    from: *const u8,
    columns: usize,
    rows: usize,
    x: Dim,
    y: Dim,
    square: unsafe fn(*mut u8, isize, *const u8, isize),
) {
    let side = 64 / LEN;
    let mut strip = 0;
    while strip < columns {
        let end = columns.min(strip + ROW * side);
        for row in (0..rows).step_by(side) {
            for column in (strip..end).step_by(side) {
                let (c, r) = (column as isize, row as isize);
                let to = to.wrapping_offset(c * x.to + r * y.to);
                let from = from.wrapping_offset(c * x.from + r * y.from);
                // SAFETY: the caller's promise.
                unsafe { square(to, x.to, from, y.from) };
            }
        }
        strip = end;
    }
}

/// Transposes 4 × 4 blocks of 16 bytes: rows of the source are `from_stride` apart, of the
/// target `to_stride`.
///
/// # Safety
///
/// 64 bytes of four rows are readable and writable; the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn square_16(to: *mut u8, to_stride: isize, from: *const u8, from_stride: isize) {
    // SAFETY: the caller's promise.
    unsafe {
        let load = |row: isize, half: usize| {
            let at = from.wrapping_offset(row * from_stride).cast::<__m256i>();
            _mm256_loadu_si256(at.wrapping_add(half))
        };
        let store = |row: isize, half: usize, value: __m256i| {
            let at = to.wrapping_offset(row * to_stride).cast::<__m256i>();
            _mm256_storeu_si256(at.wrapping_add(half), value);
        };
        for half in 0..2 {
            let (a, b) = (load(0, half), load(1, half));
            let (c, d) = (load(2, half), load(3, half));
            let row = 2 * half as isize;
            store(row, 0, _mm256_permute2x128_si256::<0x20>(a, b));
            store(row, 1, _mm256_permute2x128_si256::<0x20>(c, d));
            store(row + 1, 0, _mm256_permute2x128_si256::<0x31>(a, b));
            store(row + 1, 1, _mm256_permute2x128_si256::<0x31>(c, d));
        }
    }
}

/// Transposes 8 × 8 blocks of 8 bytes.
///
/// # Safety
///
/// As for [`square_16`], with eight rows.
#[target_feature(enable = "avx2")]
unsafe fn square_8(to: *mut u8, to_stride: isize, from: *const u8, from_stride: isize) {
    // SAFETY: the caller's promise.
    unsafe {
        for half in 0..2usize {
            for quarter in 0..2usize {
                let load = |row: isize| {
                    let row = row + 4 * quarter as isize;
                    let at = from.wrapping_offset(row * from_stride).cast::<__m256i>();
                    _mm256_loadu_si256(at.wrapping_add(half))
                };
                let (a, b, c, d) = (load(0), load(1), load(2), load(3));
                let (ab0, ab1) = (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
                let (cd0, cd1) = (_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d));
                let store = |row: isize, value: __m256i| {
                    let row = row + 4 * half as isize;
                    let at = to.wrapping_offset(row * to_stride).cast::<__m256i>();
                    _mm256_storeu_si256(at.wrapping_add(quarter), value);
                };
                store(0, _mm256_permute2x128_si256::<0x20>(ab0, cd0));
                store(1, _mm256_permute2x128_si256::<0x20>(ab1, cd1));
                store(2, _mm256_permute2x128_si256::<0x31>(ab0, cd0));
                store(3, _mm256_permute2x128_si256::<0x31>(ab1, cd1));
            }
        }
    }
}

/// Transposes 16 × 16 blocks of 4 bytes, 4 × 4 at a time.
///
/// # Safety
///
/// As for [`square_16`], with sixteen rows.
#[target_feature(enable = "avx2")]
unsafe fn square_4(to: *mut u8, to_stride: isize, from: *const u8, from_stride: isize) {
    // SAFETY: the caller's promise.
    unsafe {
        for column in 0..4isize {
            for row in 0..4isize {
                let load = |i: isize| {
                    let at = from.wrapping_offset((4 * row + i) * from_stride + 16 * column);
                    _mm_castsi128_ps(_mm_loadu_si128(at.cast()))
                };
                let (mut a, mut b, mut c, mut d) = (load(0), load(1), load(2), load(3));
                _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
                for (i, value) in [a, b, c, d].into_iter().enumerate() {
                    let i = i as isize;
                    let at = to.wrapping_offset((4 * column + i) * to_stride + 16 * row);
                    _mm_storeu_si128(at.cast(), _mm_castps_si128(value));
                }
            }
        }
    }
}

/// Whether [`masked`] may be used.
#[inline]
pub(super) fn has_masks() -> bool {
    is_x86_feature_detected!("avx512bw")
}

/// Copies one piece without a decision that depends on its length, as long as that is at most
/// 64: lists of short pieces of all lengths would mispredict nearly every one.
///
/// Written in assembly because the intrinsics are newer than the oldest supported compiler.
///
/// # Safety
///
/// As for [`super::dense`]; `len` is at least 1; the processor has AVX-512BW.
#[inline(always)]
pub(super) unsafe fn masked(to: *mut u8, from: *const u8, len: usize) {
    let (mut to, mut from, mut len) = (to, from, len);
    if len > 64 {
        if len > 512 {
            // SAFETY: the caller's promise.
            return unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
        }
        while len > 64 {
            // SAFETY: 64 of the bytes that the caller promises; registers above 15 do not slow
            // down code that does not know AVX.
            unsafe {
                std::arch::asm!(
                    "vmovdqu64 zmm16, zmmword ptr [{from}]",
                    "vmovdqu64 zmmword ptr [{to}], zmm16",
                    from = in(reg) from,
                    to = in(reg) to,
                    out("xmm16") _,
                    options(nostack, preserves_flags),
                );
                (to, from) = (to.add(64), from.add(64));
            }
            len -= 64;
        }
    }
    let mask = u64::MAX >> (64 - len);
    // SAFETY: bytes outside the mask are neither read nor written, and cause no fault.
    unsafe {
        std::arch::asm!(
            "kmovq k1, {mask}",
            "vmovdqu8 zmm16 {{k1}} {{z}}, zmmword ptr [{from}]",
            "vmovdqu8 zmmword ptr [{to}] {{k1}}, zmm16",
            mask = in(reg) mask,
            from = in(reg) from,
            to = in(reg) to,
            out("k1") _,
            out("xmm16") _,
            options(nostack, preserves_flags),
        );
    }
}

/// Blocks of more than 64 and at most 128 bytes, which are too short to call `memcpy` for each.
///
/// # Safety
///
/// As for [`super::nest`].
#[inline]
pub(super) unsafe fn long(to: *mut u8, from: *const u8, len: usize, dim: Dim) -> bool {
    if len > 128 || !is_x86_feature_detected!("avx2") {
        return false;
    }
    // SAFETY: the caller's promise; the processor has AVX2.
    unsafe { two_lines(to, from, len, dim) };
    true
}

/// # Safety
///
/// As for [`long`]; the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn two_lines(mut to: *mut u8, mut from: *const u8, len: usize, dim: Dim) {
    // The second two moves may overlap the first two.
    let places = [0, 32, len - 64, len - 32];
    for _ in 0..dim.count {
        // SAFETY: the caller's promise.
        unsafe {
            let values = places.map(|at| _mm256_loadu_si256(from.add(at).cast()));
            for (at, value) in places.into_iter().zip(values) {
                _mm256_storeu_si256(to.add(at).cast(), value);
            }
        }
        to = to.wrapping_offset(dim.to);
        from = from.wrapping_offset(dim.from);
    }
}
