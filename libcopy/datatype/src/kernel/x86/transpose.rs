// SPDX-License-Identifier: MIT OR Apache-2.0

//! Transpositions in vector registers.

use std::arch::x86_64::*;

use super::super::caches::LINE;
use super::super::caches::{first_level, overflow_last, within_second};
use super::super::instructions::has_avx2;
use super::super::loop_nest::Dim;
use super::super::prefetch::{prefetch, prefetch_to_write};
use super::super::tiles::tiles;

/// Transposes in registers if one side is dense along `a` and the other along `b`.
///
/// # Safety
///
/// As for [`super::super::Nest::run`].
pub(in super::super) unsafe fn transpose(
    to: *mut u8,
    from: *const u8,
    len: usize,
    a: Dim,
    b: Dim,
) -> bool {
    let Some((x, y)) = axes(len, a, b) else {
        return false;
    };
    // What has left the caches before anybody can read it need not be read before it is written.
    let bytes = x.count.saturating_mul(y.count).saturating_mul(len);
    let way = if overflow_last(bytes) {
        Way::Streamed
    } else if bytes > first_level() {
        Way::Asked
    } else {
        Way::Plain
    };
    // SAFETY: the caller's promise; the processor has AVX2.
    unsafe { transpose_by_squares(to, from, len, x, y, way) };
    true
}

/// Whether [`transpose`] does it.
pub(in super::super) fn transposes(len: usize, a: Dim, b: Dim) -> bool {
    axes(len, a, b).is_some()
}

/// The dimension along which the source is dense, and the other one, along which the target is, if
/// there is at least a square of blocks that fit into registers.
fn axes(len: usize, a: Dim, b: Dim) -> Option<(Dim, Dim)> {
    let unit = len as isize;
    let (x, y) = if a.to == unit && b.from == unit {
        (b, a)
    } else if a.from == unit && b.to == unit {
        (a, b)
    } else {
        return None;
    };
    let side = match len {
        16 | 8 | 4 => LINE / len,
        _ => return None,
    };
    let is_square = x.count >= side && y.count >= side;
    (is_square && has_avx2()).then_some((x, y))
}

/// How lines come and go.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// All are in the first-level cache.
    Plain,
    /// They are asked for, on both sides: the next ones are in other pages, and the hardware
    /// guesses within a page only. Measured with 2 MiB of second-level cache: 0.7 to 0.8 of the
    /// time for 64 KiB to 16 MiB, no more than a tenth above that of `memcpy`.
    Asked,
    /// Those of the target go past the caches. Measured with a last-level cache of 36 MiB: 16 MiB
    /// take 0.6 of the time, 4 MiB twice as long.
    Streamed,
}

const PLAIN: u8 = Way::Plain as u8;
const ASKED: u8 = Way::Asked as u8;
const STREAMED: u8 = Way::Streamed as u8;

/// # Safety
///
/// As for [`transpose`]: blocks of 16, 8 or 4 bytes, in the source dense along `x`, in the target
/// along `y`; at least a square of them; the processor has AVX2.
unsafe fn transpose_by_squares(to: *mut u8, from: *const u8, len: usize, x: Dim, y: Dim, way: Way) {
    let side = LINE / len;
    let at = |dim: Dim, i: usize| (i as isize * dim.to, i as isize * dim.from);
    let (mut to, mut from, mut y) = (to, from, y);
    // Whole lines of the target, or nothing, can be written past the caches.
    let mut streamed = way == Way::Streamed && x.to % LINE as isize == 0 && to.addr() % len == 0;
    if streamed {
        let count = to.addr().wrapping_neg() % LINE / len;
        streamed = y.count >= count + side;
        if streamed && count > 0 {
            // SAFETY: the first rows, up to a line's boundary.
            unsafe { tiles(to, from, len, x, Dim { count, ..y }) };
            let (t, f) = at(y, count);
            (to, from) = (to.wrapping_offset(t), from.wrapping_offset(f));
            y.count -= count;
        }
    }
    let (columns, rows) = (x.count / side * side, y.count / side * side);
    // SAFETY: the caller's promise; the rest is the two borders.
    unsafe {
        let way = match way {
            Way::Streamed if !streamed => Way::Asked,
            way => way,
        };
        macro_rules! all {
            ($len:literal, $square:ident) => {
                match way {
                    Way::Plain => {
                        squares::<$len, PLAIN>(to, from, columns, rows, x, y, $square::<false>)
                    }
                    Way::Asked => {
                        squares::<$len, ASKED>(to, from, columns, rows, x, y, $square::<false>)
                    }
                    Way::Streamed => {
                        squares::<$len, STREAMED>(to, from, columns, rows, x, y, $square::<true>)
                    }
                }
            };
        }
        match len {
            16 => all!(16, square_16),
            8 => all!(8, square_8),
            _ => all!(4, square_4),
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
            tiles(to, from, len, Dim { count, ..x }, y);
        }
        if rows < y.count {
            let count = y.count - rows;
            let (t, f) = at(y, rows);
            let (to, from) = (to.wrapping_offset(t), from.wrapping_offset(f));
            let done = Dim {
                count: columns,
                ..x
            };
            tiles(to, from, len, done, Dim { count, ..y });
        }
    }
}

/// How many rows ahead lines of the source are asked for when the target's are not, and when they
/// are.
const ROWS_AHEAD: usize = 12;
const ROWS_BESIDE: isize = 8;

/// Transposes squares of a line's length, some in a row along the source, so that a source line's
/// neighbours are used soon.
///
/// # Safety
///
/// As for [`super::super::Nest::run`], for blocks of `LEN` bytes; if the `WAY` is [`STREAMED`], the
/// target's lines are whole; the processor has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn squares<const LEN: usize, const WAY: u8>(
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
    let in_a_row = match (WAY, LEN) {
        (STREAMED, 16) => 8,
        (ASKED, 16) if !within_second(columns * rows * LEN / LINE) => 3,
        (ASKED, _) => 2,
        _ => 4,
    };
    let mut strip = 0;
    while strip < columns {
        let end = columns.min(strip + in_a_row * side);
        for row in (0..rows).step_by(side) {
            if WAY == STREAMED {
                for ahead in row + ROWS_AHEAD..row + ROWS_AHEAD + side {
                    for column in (strip..end).step_by(side) {
                        let at = column as isize * x.from + ahead as isize * y.from;
                        prefetch(from.wrapping_offset(at));
                    }
                }
            }
            for column in (strip..end).step_by(side) {
                let (c, r) = (column as isize, row as isize);
                let to = to.wrapping_offset(c * x.to + r * y.to);
                let from = from.wrapping_offset(c * x.from + r * y.from);
                if WAY == ASKED {
                    for i in 0..side as isize {
                        prefetch(from.wrapping_offset((ROWS_BESIDE + i) * y.from));
                        prefetch_to_write(to.wrapping_offset(i * x.to + LINE as isize));
                    }
                }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of both kinds, borders on all sides, and targets that do not start with a line.
    #[test]
    fn squares_transpose_whatever_surrounds_them() {
        if !has_avx2() {
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
                for way in [Way::Plain, Way::Asked, Way::Streamed] {
                    let mut target = vec![0xa5u8; expected.len()];
                    let begin = target.as_ptr().addr().wrapping_neg() % LINE + skew;
                    let to = target[begin..].as_mut_ptr();
                    // SAFETY: both buffers hold all blocks; the processor has AVX2.
                    unsafe {
                        transpose_by_squares(to, source.as_ptr(), len, x, y, way);
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
                    assert!(target == expected, "{len} {skew} {columns} {rows} {way:?}");
                }
            }
        }
    }
}
