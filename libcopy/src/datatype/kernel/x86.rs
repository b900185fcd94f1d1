// SPDX-License-Identifier: MIT OR Apache-2.0

//! Loops for x86-64 with AVX2, where the compiler finds none as good.

use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;

use super::{Dim, LINE, tile};

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
    // What has left the caches before anybody can read it need not be read before it is written.
    let streamed = x.count.saturating_mul(y.count) >= STREAMED / len;
    // SAFETY: the caller's promise; the processor has AVX2.
    unsafe { transpose_by_squares(to, from, len, x, y, streamed) };
    true
}

/// From so many bytes on, a transposition writes past the caches. Measured with a last-level cache
/// of 36 MiB: 16 MiB take 0.6 of the time, 4 MiB twice as long.
const STREAMED: usize = 12 << 20;

/// # Safety
///
/// As for [`transpose`]: blocks of 16, 8 or 4 bytes, in the source dense along `x`, in the target
/// along `y`; at least a square of them; the processor has AVX2.
unsafe fn transpose_by_squares(
    to: *mut u8,
    from: *const u8,
    len: usize,
    x: Dim,
    y: Dim,
    streamed: bool,
) {
    let side = LINE / len;
    let at = |dim: Dim, i: usize| (i as isize * dim.to, i as isize * dim.from);
    let (mut to, mut from, mut y) = (to, from, y);
    // Whole lines of the target, or nothing, can be written past the caches.
    let mut streamed = streamed && x.to % LINE as isize == 0 && to.addr() % len == 0;
    if streamed {
        let count = to.addr().wrapping_neg() % LINE / len;
        streamed = y.count >= count + side;
        if streamed && count > 0 {
            // SAFETY: the first rows, up to a line's boundary.
            unsafe { tile::tiles(to, from, len, x, Dim { count, ..y }) };
            let (t, f) = at(y, count);
            (to, from) = (to.wrapping_offset(t), from.wrapping_offset(f));
            y.count -= count;
        }
    }
    let (columns, rows) = (x.count / side * side, y.count / side * side);
    // SAFETY: the caller's promise; the rest is the two borders.
    unsafe {
        match (len, streamed) {
            (16, false) => squares::<16, false>(to, from, columns, rows, x, y, square_16::<false>),
            (8, false) => squares::<8, false>(to, from, columns, rows, x, y, square_8::<false>),
            (_, false) => squares::<4, false>(to, from, columns, rows, x, y, square_4::<false>),
            (16, true) => squares::<16, true>(to, from, columns, rows, x, y, square_16::<true>),
            (8, true) => squares::<8, true>(to, from, columns, rows, x, y, square_8::<true>),
            (_, true) => squares::<4, true>(to, from, columns, rows, x, y, square_4::<true>),
        }
        if streamed {
            // Later stores, with which others are told that the data is there, do not wait for
            // these by themselves.
            _mm_sfence();
        }
        if columns < x.count {
            let count = x.count - columns;
            let (t, f) = at(x, columns);
            let (to, from) = (to.wrapping_offset(t), from.wrapping_offset(f));
            tile::tiles(to, from, len, Dim { count, ..x }, y);
        }
        if rows < y.count {
            let count = y.count - rows;
            let (t, f) = at(y, rows);
            let (to, from) = (to.wrapping_offset(t), from.wrapping_offset(f));
            let done = Dim {
                count: columns,
                ..x
            };
            tile::tiles(to, from, len, done, Dim { count, ..y });
        }
    }
}

/// How many rows ahead lines are asked for when the target's are not.
const ROWS_AHEAD: usize = 12;

/// Transposes squares of a line's length, some in a row along the source, so that a source line's
/// neighbours are used soon.
///
/// # Safety
///
/// As for [`super::nest`], for blocks of `LEN` bytes; if `STREAMED`, the target's lines are whole;
/// the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn squares<const LEN: usize, const STREAMED: bool>(
    to: *mut u8,
    from: *const u8,
    columns: usize,
    rows: usize,
    x: Dim,
    y: Dim,
    square: unsafe fn(*mut u8, isize, *const u8, isize),
) {
    let side = LINE / LEN;
    // More rows of the target in the cache at a time would be in each other's way.
    let in_a_row = if STREAMED && LEN == 16 { 8 } else { 4 };
    let mut strip = 0;
    while strip < columns {
        let end = columns.min(strip + in_a_row * side);
        for row in (0..rows).step_by(side) {
            if STREAMED {
                for ahead in row + ROWS_AHEAD..row + ROWS_AHEAD + side {
                    for column in (strip..end).step_by(side) {
                        let at = column as isize * x.from + ahead as isize * y.from;
                        super::prefetch(from.wrapping_offset(at));
                    }
                }
            }
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

/// Writes half a line.
///
/// # Safety
///
/// It is writable, and aligned if `STREAMED`; the processor has AVX2.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_256<const STREAMED: bool>(at: *mut __m256i, value: __m256i) {
    // SAFETY: the caller's promise.
    unsafe {
        if STREAMED {
            _mm256_stream_si256(at, value);
        } else {
            _mm256_storeu_si256(at, value);
        }
    }
}

/// Transposes 4 × 4 blocks of 16 bytes: rows of the source are `from_stride` apart, of the
/// target `to_stride`.
///
/// # Safety
///
/// 64 bytes of four rows are readable and writable, the latter aligned if `STREAMED`; the
/// processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn square_16<const STREAMED: bool>(
    to: *mut u8,
    to_stride: isize,
    from: *const u8,
    from_stride: isize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let load = |row: isize, half: usize| {
            let at = from.wrapping_offset(row * from_stride).cast::<__m256i>();
            _mm256_loadu_si256(at.wrapping_add(half))
        };
        let store = |row: isize, half: usize, value: __m256i| {
            let at = to.wrapping_offset(row * to_stride).cast::<__m256i>();
            store_256::<STREAMED>(at.wrapping_add(half), value);
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
unsafe fn square_8<const STREAMED: bool>(
    to: *mut u8,
    to_stride: isize,
    from: *const u8,
    from_stride: isize,
) {
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
                    store_256::<STREAMED>(at.wrapping_add(quarter), value);
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
unsafe fn square_4<const STREAMED: bool>(
    to: *mut u8,
    to_stride: isize,
    from: *const u8,
    from_stride: isize,
) {
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
                    if STREAMED {
                        _mm_stream_ps(at.cast(), value);
                    } else {
                        _mm_storeu_ps(at.cast(), value);
                    }
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

/// Blocks of more bytes than this are left to `memcpy`.
const LONGEST: usize = 512;

/// Blocks of 33 to 512 bytes along two dimensions, which are too short to call `memcpy` for each:
/// whole vectors, and a narrower one for the rest that overlaps the last of them.
///
/// # Safety
///
/// As for [`super::nest`].
#[inline]
pub(super) unsafe fn rows(to: *mut u8, from: *const u8, len: usize, a: Dim, b: Dim) -> bool {
    if len <= 32 || len > LONGEST || !is_x86_feature_detected!("avx2") {
        return false;
    }
    let (full, rest) = (len / 32, len % 32);
    macro_rules! pick {
        ($tail:literal: $($n:literal)*) => {
            match full {
                // SAFETY: the caller's promise; the processor has AVX2.
                $($n => unsafe { vectors::<$n, $tail>(to, from, len, a, b) },)*
                _ => return false,
            }
        };
    }
    // A narrow store crosses fewer cache lines than a wide one.
    match rest {
        0 => pick!(0: 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16),
        1..=8 => pick!(8: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15),
        9..=16 => pick!(16: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15),
        _ => pick!(32: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15),
    }
    true
}

/// What [`rows`] would do, for a person.
pub(super) fn name(len: usize) -> Option<&'static str> {
    let here = (33..=LONGEST).contains(&len) && is_x86_feature_detected!("avx2");
    here.then_some("AVX2 vectors")
}

/// # Safety
///
/// As for [`rows`]: a block is `N` vectors and at most `TAIL` bytes more; the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn vectors<const N: usize, const TAIL: usize>(
    to: *mut u8,
    from: *const u8,
    len: usize,
    a: Dim,
    b: Dim,
) {
    let last = len - TAIL;
    let (mut row_to, mut row_from) = (to, from);
    for _ in 0..b.count {
        let (mut to, mut from) = (row_to, row_from);
        for _ in 0..a.count {
            // Straight from memory to memory: of an array in between, the compiler makes a call
            // of `memcpy`.
            // SAFETY: the caller's promise; the tail overlaps the last vector.
            unsafe {
                for i in 0..N {
                    let value = _mm256_loadu_si256(from.add(32 * i).cast());
                    _mm256_storeu_si256(to.add(32 * i).cast(), value);
                }
                let (tail_from, tail_to) = (from.add(last), to.add(last));
                match TAIL {
                    8 => _mm_storel_epi64(tail_to.cast(), _mm_loadl_epi64(tail_from.cast())),
                    16 => _mm_storeu_si128(tail_to.cast(), _mm_loadu_si128(tail_from.cast())),
                    32 => _mm256_storeu_si256(tail_to.cast(), _mm256_loadu_si256(tail_from.cast())),
                    _ => {}
                }
            }
            to = to.wrapping_offset(a.to);
            from = from.wrapping_offset(a.from);
        }
        row_to = row_to.wrapping_offset(b.to);
        row_from = row_from.wrapping_offset(b.from);
    }
}

/// Packs blocks of 5 to 31 bytes with one vector each, that reaches beyond the block on both
/// sides; the next block overwrites what it left there. The last block is copied as it is.
///
/// # Safety
///
/// As for [`super::nest`]; the target is dense.
#[inline]
pub(super) unsafe fn packing(to: *mut u8, from: *const u8, len: usize, dim: Dim) -> bool {
    // What is read behind a block lies before the next one, in the page of one of the two.
    let room = if len <= 8 {
        8
    } else if len <= 16 {
        16
    } else {
        32
    };
    if !(5..32).contains(&len)
        || len == room
        || !(room as isize..=128).contains(&dim.from)
        || dim.count * len < room + len
        || !is_x86_feature_detected!("avx2")
    {
        return false;
    }
    // So many blocks at the end are copied exactly: the target has no room behind them.
    let tail = (room - len).div_ceil(len).max(1);
    let fast = dim.count - tail;
    // SAFETY: the caller's promise; the processor has AVX2.
    unsafe {
        match room {
            8 => overrun_8(to, from, len, fast, dim.from),
            16 => overrun_16(to, from, len, fast, dim.from),
            _ => overrun_32(to, from, len, fast, dim.from),
        }
        for i in fast..dim.count {
            let from = from.wrapping_offset(i as isize * dim.from);
            std::ptr::copy_nonoverlapping(from, to.add(i * len), len);
        }
    }
    true
}

macro_rules! overrun {
    ($name:ident, $kind:ty, $load:expr, $store:expr) => {
        /// # Safety
        ///
        /// As for [`packing`], for `count` blocks that have room behind them on both sides; the
        /// processor has AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn $name(to: *mut u8, from: *const u8, len: usize, count: usize, stride: isize) {
            let (mut to, mut from) = (to, from);
            for _ in 0..count {
                // SAFETY: the caller's promise.
                unsafe {
                    let value: $kind = $load(from);
                    $store(to, value);
                    to = to.add(len);
                }
                from = from.wrapping_offset(stride);
            }
        }
    };
}
overrun!(
    overrun_8,
    u64,
    |at: *const u8| at.cast::<u64>().read_unaligned(),
    |at: *mut u8, value| at.cast::<u64>().write_unaligned(value)
);
overrun!(
    overrun_16,
    __m128i,
    |at: *const u8| _mm_loadu_si128(at.cast()),
    |at: *mut u8, value| _mm_storeu_si128(at.cast(), value)
);
overrun!(
    overrun_32,
    __m256i,
    |at: *const u8| _mm256_loadu_si256(at.cast()),
    |at: *mut u8, value| _mm256_storeu_si256(at.cast(), value)
);

/// Whether blocks of this length are unpacked with one masked store each.
#[inline]
fn is_masked(len: usize) -> bool {
    (5..32).contains(&len)
        && !len.is_power_of_two()
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
}

/// Unpacks blocks of 5 to 31 bytes, none of a length that is a power of two, with one masked store
/// each: two narrower ones take twice as long.
///
/// # Safety
///
/// As for [`super::nest`]; the source is dense.
#[inline]
pub(super) unsafe fn unpacking(to: *mut u8, from: *const u8, len: usize, dim: Dim) -> bool {
    if dim.count < 8 || !is_masked(len) {
        return false;
    }
    // SAFETY: bytes outside the mask are neither read nor written, and cause no fault. Registers
    // above 15 do not slow down code that does not know AVX.
    unsafe {
        std::arch::asm!(
            "kmovq k1, {mask}",
            "2:",
            "vmovdqu8 ymm16 {{k1}} {{z}}, ymmword ptr [{from}]",
            "vmovdqu8 ymmword ptr [{to}] {{k1}}, ymm16",
            "add {from}, {len}",
            "add {to}, {stride}",
            "dec {count}",
            "jnz 2b",
            mask = in(reg) (1u64 << len) - 1,
            len = in(reg) len,
            stride = in(reg) dim.to,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            count = inout(reg) dim.count => _,
            out("k1") _,
            out("xmm16") _,
            options(nostack),
        );
    }
    true
}

/// As [`unpacking`], to listed offsets.
///
/// # Safety
///
/// As for [`super::scattered`].
#[inline]
pub(super) unsafe fn scatter(user: *mut u8, offsets: &[i32], from: *const u8, len: usize) -> bool {
    if offsets.len() < 8 || !is_masked(len) {
        return false;
    }
    // SAFETY: as above; the list is read within its bounds.
    unsafe {
        std::arch::asm!(
            "kmovq k1, {mask}",
            "2:",
            "movsxd {at}, dword ptr [{list}]",
            "vmovdqu8 ymm16 {{k1}} {{z}}, ymmword ptr [{from}]",
            "vmovdqu8 ymmword ptr [{user} + {at}] {{k1}}, ymm16",
            "add {from}, {len}",
            "add {list}, 4",
            "dec {count}",
            "jnz 2b",
            mask = in(reg) (1u64 << len) - 1,
            len = in(reg) len,
            user = in(reg) user,
            at = out(reg) _,
            from = inout(reg) from => _,
            list = inout(reg) offsets.as_ptr() => _,
            count = inout(reg) offsets.len() => _,
            out("k1") _,
            out("xmm16") _,
            options(nostack),
        );
    }
    true
}

/// One piece of a length for which the C library's `memcpy` uses string instructions that take
/// half as long again in the first and second level caches.
///
/// # Safety
///
/// As for [`super::dense`].
#[inline]
pub(super) unsafe fn piece(to: *mut u8, from: *const u8, len: usize) -> bool {
    if !(6 << 10..=256 << 10).contains(&len) || !is_x86_feature_detected!("avx2") {
        return false;
    }
    // SAFETY: the caller's promise; the processor has AVX2.
    unsafe { lines(to, from, len) };
    true
}

/// # Safety
///
/// As for [`piece`]; the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn lines(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise: the first and the last vector may overlap those between them.
    unsafe {
        let first = _mm256_loadu_si256(from.cast());
        let last = _mm256_loadu_si256(from.add(len - 32).cast());
        let mut at = 32 - to.addr() % 32;
        while at + 128 <= len {
            let (f, t) = (from.add(at).cast::<__m256i>(), to.add(at).cast::<__m256i>());
            let (a, b) = (_mm256_loadu_si256(f), _mm256_loadu_si256(f.add(1)));
            let (c, d) = (_mm256_loadu_si256(f.add(2)), _mm256_loadu_si256(f.add(3)));
            _mm256_store_si256(t, a);
            _mm256_store_si256(t.add(1), b);
            _mm256_store_si256(t.add(2), c);
            _mm256_store_si256(t.add(3), d);
            at += 128;
        }
        while at + 32 <= len {
            _mm256_store_si256(to.add(at).cast(), _mm256_loadu_si256(from.add(at).cast()));
            at += 32;
        }
        _mm256_storeu_si256(to.cast(), first);
        _mm256_storeu_si256(to.add(len - 32).cast(), last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of both kinds, borders on all sides, and targets that do not start with a line.
    #[test]
    fn squares_transpose_whatever_surrounds_them() {
        if !is_x86_feature_detected!("avx2") {
            return;
        }
        let places = [(16, 0), (16, 32), (8, 24), (8, 3), (4, 60), (4, 0), (4, 2)];
        for (len, skew) in places {
            let side = LINE / len;
            for (columns, rows) in [
                (side, side),
                (2 * side + 1, 3 * side - 1),
                (9 * side + 3, 2 * side),
            ] {
                // Rows of the target begin at lines, so that they may be streamed.
                let step = (rows * len).next_multiple_of(LINE) + LINE;
                let source_step = columns * len + 5;
                let source: Vec<u8> = (0..rows * source_step)
                    .map(|i| (i * 131 / 7) as u8)
                    .collect();
                let x = Dim {
                    count: columns,
                    to: step as isize,
                    from: len as isize,
                };
                let y = Dim {
                    count: rows,
                    to: len as isize,
                    from: source_step as isize,
                };
                let mut expected = vec![0xa5u8; columns * step + 2 * LINE];
                let start = expected.as_ptr().addr().wrapping_neg() % LINE;
                for streamed in [false, true] {
                    let mut target = vec![0xa5u8; expected.len()];
                    let begin = target.as_ptr().addr().wrapping_neg() % LINE + skew;
                    let to = target[begin..].as_mut_ptr();
                    // SAFETY: both buffers hold all blocks; the processor has AVX2.
                    unsafe {
                        transpose_by_squares(to, source.as_ptr(), len, x, y, streamed);
                    }
                    target.rotate_left(begin);
                    expected.fill(0xa5);
                    for column in 0..columns {
                        for row in 0..rows {
                            let from = row * source_step + column * len;
                            let to = start + column * step + row * len;
                            expected[to..to + len].copy_from_slice(&source[from..from + len]);
                        }
                    }
                    expected.rotate_left(start);
                    assert!(
                        target == expected,
                        "{len} {skew} {columns} {rows} {streamed}"
                    );
                }
            }
        }
    }
}
