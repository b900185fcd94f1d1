// SPDX-License-Identifier: MIT OR Apache-2.0

//! Short blocks one after the other, along up to three dimensions.

use std::cell::Cell;

use super::far::{
    CONFLICTING_WRITES, READ_AHEAD, WRITE_AHEAD, asks_ahead, is_source_far, waits, writes_few,
};
#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::loop_nest::blocks;
use super::loop_nest::{Dim, Nest, Run, SMALL};
use super::prefetch::{prefetch, prefetch_to_write};
use super::profile::CpuProfile;

/// A function for blocks of this length, which is a constant in it if it is a common one. What
/// comes behind the length are more constants.
macro_rules! by_length {
    ($len:expr, $name:ident $(, $more:expr)*; $other:expr) => {{
        macro_rules! at {
            ($size:literal) => {
                $name::<$size $(, { $more })*>
            };
        }
        match $len {
            1 => at!(1),
            2 => at!(2),
            3 => at!(3),
            4 => at!(4),
            5 => at!(5),
            6 => at!(6),
            8 => at!(8),
            10 => at!(10),
            12 => at!(12),
            16 => at!(16),
            20 => at!(20),
            24 => at!(24),
            28 => at!(28),
            32 => at!(32),
            36 => at!(36),
            40 => at!(40),
            48 => at!(48),
            56 => at!(56),
            64 => at!(64),
            _ => $other,
        }
    }};
}
pub(super) use by_length;

/// Which side is dense along the innermost dimension: none, the target, or the source.
const NEITHER: u8 = 0;
const TARGET: u8 = 1;
const SOURCE: u8 = 2;

/// The kernel for blocks of at most [`SMALL`] bytes.
pub(super) fn select(profile: &CpuProfile, len: usize, dims: &[Dim; 3]) -> Run {
    let a = dims[0];
    if writes_few(profile, len, dims) {
        return by_length!(len, few_written, SOURCE; few_written_any);
    }
    let far = asks_ahead(profile, dims);
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if !(far && dims[1].count == 1) {
        let total = blocks(dims).saturating_mul(len);
        if let Some(run) = super::x86::rows(profile, len, total, dims)
            .or_else(|| super::x86::strip(profile, len, dims, far))
        {
            return run;
        }
    }
    let unit = len as isize;
    match (far, a.to == unit, a.from == unit) {
        (true, true, _) if waits(profile, dims) => {
            by_length!(len, few_at_a_time, TARGET; far_apart_any)
        }
        (true, true, _) => by_length!(len, far_apart, TARGET; far_apart_any),
        (true, _, true) => by_length!(len, far_apart, SOURCE; far_apart_any),
        (true, ..) => by_length!(len, far_apart, NEITHER; far_apart_any),
        _ if a.count < LONG_ROW => by_length!(len, strip, NEITHER; any),
        (_, true, _) => by_length!(len, strip, TARGET; any),
        (_, _, true) => by_length!(len, strip, SOURCE; any),
        _ => by_length!(len, strip, NEITHER; any),
    }
}

/// The kernel for any number of blocks of at most [`SMALL`] bytes.
pub(super) fn plain(len: usize) -> Run {
    by_length!(len, strip, NEITHER; any)
}

/// Shorter rows are not worth a loop of four blocks at a time.
const LONG_ROW: usize = 32;

/// Whether a step leaves the lines that the hardware is already fetching.
pub(super) fn is_far(dim: Dim) -> bool {
    dim.from.unsigned_abs().max(dim.to.unsigned_abs()) >= FAR
}

/// From this stride on, the hardware does not guess the next lines well.
const FAR: usize = 512;

/// How many blocks [`few_at_a_time`] reads before the first of them has come: up to a stride of 2
/// KiB, seven take 5 to 10 % less time than ten, and from 4 KiB on 5 to 30 % more.
const FEW: usize = 10;
const FEWER: usize = 7;
const NEAR_SOURCE: usize = 2048;

/// # Safety
///
/// As for [`Nest::run`], for blocks of `LEN` bytes that are dense on the side that `DENSE` says.
unsafe fn strip<const LEN: usize, const DENSE: u8>(to: *mut u8, from: *const u8, nest: &Nest) {
    let row = nest.dims[0];
    // SAFETY: the caller's promise.
    unsafe { nest.each_row(to, from, |to, from| one::<LEN, DENSE>(to, from, row)) }
}

/// # Safety
///
/// As for [`strip`], for one row.
#[inline(always)]
unsafe fn one<const LEN: usize, const DENSE: u8>(to: *mut u8, from: *const u8, dim: Dim) {
    // SAFETY: the caller's promise.
    unsafe {
        match DENSE {
            TARGET => packing::<LEN>(to, from, dim),
            SOURCE => unpacking::<LEN>(to, from, dim),
            _ => fixed::<LEN>(to, from, dim),
        }
    }
}

/// As [`strip`], for blocks that are far apart: asks for the lines of later blocks early. Measured
/// to halve the time for strides of one and two KiB once the data is larger than the second-level
/// cache.
///
/// # Safety
///
/// As for [`strip`].
unsafe fn far_apart<const LEN: usize, const DENSE: u8>(to: *mut u8, from: *const u8, nest: &Nest) {
    ahead(to, from, nest, |to, from, some| {
        // SAFETY: the caller's promise.
        unsafe { one::<LEN, DENSE>(to, from, some) }
    });
}

/// As [`strip`], for blocks that are far apart at a distance of which the caches keep few lines:
/// the place of [`FEW`] blocks depends on what the first of those before holds, so that no more
/// than twice as many are on their way. With a hundred of them on their way, which is what the
/// processor would do, 15 % more time was measured where the second-level cache has as many lines
/// (strides of 1 to 4 KiB), with or without asking for them.
///
/// # Safety
///
/// As for [`strip`].
unsafe fn few_at_a_time<const LEN: usize, const DENSE: u8>(
    to: *mut u8,
    from: *const u8,
    nest: &Nest,
) {
    // The compiler does not know that the sum changes nothing.
    let (nothing, held) = (std::hint::black_box(0), Cell::new(0));
    let row = nest.dims[0];
    let is_near = row.from.unsigned_abs() <= NEAR_SOURCE;
    let few = if is_near { FEWER } else { FEW };
    // SAFETY: the caller's promise.
    unsafe {
        nest.each_row(to, from, |to, from| {
            let (mut to, mut from, mut left) = (to, from, row.count);
            while left > 0 {
                let count = left.min(few);
                from = from.wrapping_add(held.get());
                held.set(usize::from(from.read()) & nothing);
                one::<LEN, DENSE>(to, from, Dim { count, ..row });
                to = to.wrapping_offset(count as isize * row.to);
                from = from.wrapping_offset(count as isize * row.from);
                left -= count;
            }
        });
    }
}

/// As [`few_at_a_time`], for blocks that are written far apart: each time as many as fit into the
/// sets of the first-level cache that they share.
///
/// # Safety
///
/// As for [`strip`].
unsafe fn few_written<const LEN: usize, const DENSE: u8>(
    to: *mut u8,
    from: *const u8,
    nest: &Nest,
) {
    // SAFETY: the caller's promise.
    unsafe {
        written(to, from, nest, |to, from, some| {
            one::<LEN, DENSE>(to, from, some)
        })
    }
}

/// # Safety
///
/// As for [`Nest::run`].
unsafe fn few_written_any(to: *mut u8, from: *const u8, nest: &Nest) {
    // SAFETY: the caller's promise.
    unsafe {
        written(to, from, nest, |to, from, some| {
            each(to, from, nest.len, some)
        })
    }
}

/// Of lines 512 bytes apart, the first-level cache has eight sets (64 sets), of those 1 KiB and
/// more apart one to four. Half as many at a time, since those of the next group are on their way,
/// too.
const WRITTEN: usize = 4;
const WRITTEN_FARTHER: usize = 2;

/// Calls `some` for a few blocks at a time; where they go depends on what the first of those before
/// held.
///
/// # Safety
///
/// As for [`Nest::run`], which `some` relies on for a few blocks of a row.
#[inline(always)]
unsafe fn written(
    to: *mut u8,
    from: *const u8,
    nest: &Nest,
    some: impl Fn(*mut u8, *const u8, Dim),
) {
    // The compiler does not know that the sum changes nothing.
    let (nothing, held) = (std::hint::black_box(0), Cell::new(0));
    let row = nest.dims[0];
    let few = if row.to % (2 * CONFLICTING_WRITES) == 0 {
        WRITTEN_FARTHER
    } else {
        WRITTEN
    };
    // SAFETY: the first byte of each block that is read is one that will be written.
    unsafe {
        nest.each_row(to, from, |to, from| {
            let (mut to, mut from, mut left) = (to, from, row.count);
            while left > 0 {
                let count = left.min(few);
                to = to.wrapping_add(held.get());
                held.set(usize::from(to.read()) & nothing);
                some(to, from, Dim { count, ..row });
                to = to.wrapping_offset(count as isize * row.to);
                from = from.wrapping_offset(count as isize * row.from);
                left -= count;
            }
        });
    }
}

/// # Safety
///
/// As for [`Nest::run`].
unsafe fn far_apart_any(to: *mut u8, from: *const u8, nest: &Nest) {
    ahead(to, from, nest, |to, from, some| {
        // SAFETY: the caller's promise.
        unsafe { each(to, from, nest.len, some) }
    });
}

/// Calls `some` for a few blocks of a row at a time, and asks for the lines of later ones, those of
/// the next row among them.
#[inline(always)]
fn ahead(to: *mut u8, from: *const u8, nest: &Nest, some: impl Fn(*mut u8, *const u8, Dim)) {
    const GROUP: usize = 8;
    let [a, b, c] = nest.dims;
    let by_source = is_source_far(a);
    let (stride, distance) = if by_source {
        (a.from, READ_AHEAD)
    } else {
        (a.to, WRITE_AHEAD)
    };
    let side = |to: *mut u8, from: *const u8| if by_source { from } else { to.cast_const() };
    let ask = |at: *const u8| {
        if by_source {
            prefetch(at);
        } else {
            prefetch_to_write(at);
        }
    };
    let (mut plane_to, mut plane_from) = (to, from);
    for k in 0..c.count {
        let (mut row_to, mut row_from) = (plane_to, plane_from);
        plane_to = plane_to.wrapping_offset(c.to);
        plane_from = plane_from.wrapping_offset(c.from);
        for j in 0..b.count {
            let (mut to, mut from) = (row_to, row_from);
            (row_to, row_from) = if j + 1 < b.count {
                (
                    row_to.wrapping_offset(b.to),
                    row_from.wrapping_offset(b.from),
                )
            } else {
                (plane_to, plane_from)
            };
            let next = side(row_to, row_from);
            let last = j + 1 == b.count && k + 1 == c.count;
            let mut left = a.count;
            while left > 0 {
                let count = left.min(GROUP);
                let here = side(to, from);
                let within = left.saturating_sub(distance).min(count);
                let first = here.wrapping_offset(distance as isize * stride);
                for i in 0..within as isize {
                    ask(first.wrapping_offset(i * stride));
                }
                if within < count && !last {
                    // As many blocks behind the row's end as the place ahead is.
                    let past = (distance + within - left) as isize;
                    let first = next.wrapping_offset(past * stride);
                    for i in 0..(count - within) as isize {
                        ask(first.wrapping_offset(i * stride));
                    }
                }
                some(to, from, Dim { count, ..a });
                to = to.wrapping_offset(count as isize * a.to);
                from = from.wrapping_offset(count as isize * a.from);
                left -= count;
            }
        }
    }
}

/// # Safety
///
/// As for [`strip`], for one row.
#[inline(always)]
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
/// As for [`strip`], for one row.
#[inline(always)]
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
/// As for [`strip`], for one row.
#[inline(always)]
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

/// Any length up to [`SMALL`].
///
/// # Safety
///
/// As for [`Nest::run`].
unsafe fn any(to: *mut u8, from: *const u8, nest: &Nest) {
    debug_assert!(nest.len <= SMALL);
    let row = nest.dims[0];
    // SAFETY: the caller's promise.
    unsafe { nest.each_row(to, from, |to, from| each(to, from, nest.len, row)) }
}

/// # Safety
///
/// As for [`any`], for one row.
#[inline(always)]
unsafe fn each(mut to: *mut u8, mut from: *const u8, len: usize, dim: Dim) {
    for _ in 0..dim.count {
        // SAFETY: the caller's promise.
        unsafe { short(to, from, len) };
        to = to.wrapping_offset(dim.to);
        from = from.wrapping_offset(dim.from);
    }
}

/// One piece of at least `STEP` bytes: that many at a time, and the last of them.
///
/// # Safety
///
/// As for [`super::piece::dense`].
#[inline(always)]
pub(super) unsafe fn lines<const STEP: usize>(to: *mut u8, from: *const u8, len: usize) {
    let mut at = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while at + STEP < len {
            let line = read::<STEP>(from.add(at));
            to.add(at).cast::<[u8; STEP]>().write_unaligned(line);
            at += STEP;
        }
        let last = read::<STEP>(from.add(len - STEP));
        let end = to.add(len - STEP);
        end.cast::<[u8; STEP]>().write_unaligned(last);
    }
}

/// Two overlapping moves of `LEN` bytes.
///
/// # Safety
///
/// As for [`super::piece::dense`], with `LEN <= len <= 2 * LEN`.
#[inline(always)]
pub(super) unsafe fn ends<const LEN: usize>(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise. Both ends are read before anything is written.
    unsafe {
        let first = read::<LEN>(from);
        let last = read::<LEN>(from.add(len - LEN));
        to.cast::<[u8; LEN]>().write_unaligned(first);
        to.add(len - LEN).cast::<[u8; LEN]>().write_unaligned(last);
    }
}

/// One piece of at most 128 bytes: two overlapping moves of the largest power of two that fits.
///
/// # Safety
///
/// As for [`super::piece::dense`].
#[inline(always)]
pub(super) unsafe fn short(to: *mut u8, from: *const u8, len: usize) {
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
