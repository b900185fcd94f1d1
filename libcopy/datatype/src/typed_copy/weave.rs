// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two regular layouts by a pattern of pieces that repeats.

use std::cell::Cell;

use super::super::kernel::{Piece, Repeats, Weave};
use super::bounce::gcd;
use super::regular::Regular;
use super::zip::{Side, go_on};

/// Most pieces of a pattern.
const WOVEN: i64 = 1024;

/// A pattern that repeats, and which parts of layouts it is for, however often.
struct Woven {
    from: Regular,
    to: Regular,
    /// Bytes of the stream.
    period: i64,
    /// How far apart the repetitions are.
    apart: (i64, i64),
    weave: Option<Weave>,
}

thread_local! {
    /// The pattern of the last copy that looked for one: finding it takes as long as moving some
    /// ten thousand bytes.
    static PATTERN: Cell<Option<Box<Woven>>> = const { Cell::new(None) };
}

impl Woven {
    /// The pattern of two parts of layouts of `size` bytes, if it comes often there.
    fn of(from: &Regular, to: &Regular, size: i64) -> Option<Box<Woven>> {
        let (from, to) = (from.endless()?, to.endless()?);
        let (from_step, to_step) = (from.step(), to.step());
        let common = gcd(from_step.0 as u64, to_step.0 as u64) as i64;
        let period = (from_step.0 / common).saturating_mul(to_step.0);
        if size / period < OFTEN {
            return None;
        }
        let kept = PATTERN.try_with(Cell::take).ok().flatten();
        if let Some(kept) = kept.filter(|kept| kept.from == from && kept.to == to) {
            return Some(kept);
        }
        let few = period / from.len + period / to.len <= WOVEN;
        Some(Box::new(Woven {
            from,
            to,
            period,
            apart: (
                period / from_step.0 * from_step.1,
                period / to_step.0 * to_step.1,
            ),
            weave: few
                .then(|| Weave::new(&pieces(&from, &to, period)))
                .flatten(),
        }))
    }
}

/// The pieces of one period of two layouts.
fn pieces(from: &Regular, to: &Regular, period: i64) -> Vec<Piece> {
    let (mut list, mut done) = (Vec::new(), 0);
    let cluster = from.cluster();
    let (mut a, mut b) = (Side::new(from), Side::new(to));
    while done < period {
        let len = (from.len - a.done).min(to.len - b.done);
        let at = a.block + a.done;
        let (low, high) = match cluster {
            Some((bytes, extent)) => {
                let start = from.offset(done / bytes * bytes);
                (start, start.saturating_add(extent))
            }
            None => (i64::MIN, i64::MAX),
        };
        list.push(Piece {
            to: b.block + b.done,
            from: at,
            len,
            low,
            high,
        });
        done += len;
        a.advance(len);
        b.advance(len);
    }
    list
}

/// Fewer repetitions along the outermost dimension are looked at one by one.
const REPEATED: i64 = 8;

/// Copies by a pattern of pieces that repeats, if there is one that is worth it; whether so.
///
/// # Safety
///
/// As for [`zip`]; both have `size` bytes.
pub(super) unsafe fn weave(
    from: &Regular,
    source: *const u8,
    to: &Regular,
    target: *mut u8,
    size: i64,
) -> bool {
    // The one with fewer dimensions is cut where the other one's planes end.
    for (planes, rows, is_source) in [(from, to, true), (to, from, false)] {
        let Some((&(count, stride), inner)) = planes.dims[..planes.n].split_last() else {
            return false;
        };
        if inner.is_empty() || count > REPEATED {
            continue;
        }
        let mut plane = *planes;
        plane.n -= 1;
        plane.dims[plane.n] = (0, 0);
        let bytes = size / count;
        for i in 0..count {
            let Some(row) = rows.slice(i * bytes, (i + 1) * bytes) else {
                return false;
            };
            let (a, b) = ((i * stride) as isize, row.at as isize);
            // SAFETY: the caller's promise, for a plane.
            let done = unsafe {
                if is_source {
                    let (source, target) = (source.wrapping_offset(a), target.wrapping_offset(b));
                    weave_plane(&plane, source, &row.regular, target, bytes)
                } else {
                    let (source, target) = (source.wrapping_offset(b), target.wrapping_offset(a));
                    weave_plane(&row.regular, source, &plane, target, bytes)
                }
            };
            // All planes are alike.
            if !done {
                return false;
            }
        }
        return true;
    }
    // SAFETY: the caller's promise.
    unsafe { weave_plane(from, source, to, target, size) }
}

/// As [`weave`], by repetitions along the outermost dimensions.
///
/// # Safety
///
/// As for [`weave`].
unsafe fn weave_plane(
    from: &Regular,
    source: *const u8,
    to: &Regular,
    target: *mut u8,
    size: i64,
) -> bool {
    let Some(woven) = Woven::of(from, to, size) else {
        return false;
    };
    let is_woven = match &woven.weave {
        Some(weave) => {
            let count = size / woven.period;
            let repeats = Repeats {
                count: count as usize,
                to: woven.apart.1 as isize,
                from: woven.apart.0 as isize,
            };
            let done = count * woven.period;
            // SAFETY: the pieces are those of both streams, whose places repeat, and what is left
            // of them.
            unsafe {
                weave.run(target, source, repeats);
                if done < size {
                    go_on(Side::at(from, done), source, Side::at(to, done), target);
                }
            }
            true
        }
        None => false,
    };
    let _ = PATTERN.try_with(|kept| kept.set(Some(woven)));
    is_woven
}

/// A pattern that comes less often is not worth it.
const OFTEN: i64 = 4;
