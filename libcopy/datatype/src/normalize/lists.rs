// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lists of numbers: what of them is regular, and what is worth cutting.

use std::sync::Arc;

use super::super::form::Extent;
use super::super::kernel::CpuProfile;
use super::super::offsets::Offsets;
use crate::room;

/// From this many pieces on a list is a long one. Beyond the second-level cache, cutting pieces
/// gains little, and takes longer than all else at commit (see docs/performance/datatypes.md).
pub(super) const MANY: usize = 1 << 16;

/// Pieces of which most have one length or none: see above.
pub(super) const CHUNK: usize = 4096;

/// A number of a list: 32 bits where all fit, else 64.
pub(super) trait Number: Copy + Ord + Into<i64> + Default {
    /// The value, of which the high bits may be lost.
    fn of(value: i64) -> Self;
    /// `self + other`, modulo the width.
    fn plus(self, other: Self) -> Self;
    /// `self - other`, modulo the width.
    fn minus(self, other: Self) -> Self;
    /// The numbers as offsets.
    fn offsets(list: Vec<Self>) -> room::Result<Offsets>;
}

impl Number for i32 {
    #[inline(always)]
    fn of(value: i64) -> i32 {
        value as i32
    }
    #[inline(always)]
    fn plus(self, other: i32) -> i32 {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn minus(self, other: i32) -> i32 {
        self.wrapping_sub(other)
    }
    fn offsets(list: Vec<i32>) -> room::Result<Offsets> {
        Ok(Offsets::Narrow(Arc::new(list)))
    }
}

impl Number for i64 {
    #[inline(always)]
    fn of(value: i64) -> i64 {
        value
    }
    #[inline(always)]
    fn plus(self, other: i64) -> i64 {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn minus(self, other: i64) -> i64 {
        self.wrapping_sub(other)
    }
    fn offsets(list: Vec<i64>) -> room::Result<Offsets> {
        let wide = |sum, &at: &i64| sum | (i64::from(at as i32) != at);
        if list.chunks(CHUNK).any(|some| some.iter().fold(false, wide)) {
            Ok(Offsets::Wide(Arc::new(list)))
        } else {
            let narrow = room::gather(list.iter().map(|&at| at as i32))?;
            Ok(Offsets::Narrow(Arc::new(narrow)))
        }
    }
}

/// The stretches of a long list that become equal blocks.
pub(super) fn long_stretches<N: Number>(starts: &[N]) -> room::Result<Vec<Stretch>> {
    let n = starts.len() - 1;
    let mut stretches: Vec<Stretch> = Vec::new();
    let chunks = (n / CHUNK).max(1);
    for chunk in 0..chunks {
        let first = chunk * CHUNK;
        let end = if chunk + 1 == chunks {
            n
        } else {
            first + CHUNK
        };
        let Some((unit, units)) = unit_of(&starts[first..=end]) else {
            continue;
        };
        match stretches.last_mut() {
            Some(last) if last.end == first && last.unit == unit => {
                last.end = end;
                last.units += units;
            }
            _ => {
                let next = Stretch {
                    first,
                    end,
                    unit,
                    units,
                };
                room::push(&mut stretches, next)?;
            }
        }
    }
    Ok(stretches)
}

/// The shortest length of some pieces and how many of it they make together, if nearly all have
/// it and the others a multiple: at most five quarters of it on average.
fn unit_of<N: Number>(starts: &[N]) -> Option<(i64, i64)> {
    let n = starts.len() - 1;
    let (begin, end) = (&starts[..n], &starts[1..]);
    let mut shortest = end[0].minus(begin[0]);
    for i in 0..n {
        shortest = shortest.min(end[i].minus(begin[i]));
    }
    let unit: i64 = shortest.into();
    let total: i64 = end[n - 1].minus(begin[0]).into();
    if unit > Stretch::UNIT || total.saturating_mul(4) > 5 * unit * n as i64 {
        return None;
    }
    // Division by the unit as a product, which is exact for so few units.
    const SHIFT: u32 = 16;
    let reciprocal = (1u32 << SHIFT) / unit as u32 + 1;
    let mut other = 0;
    for i in 0..n {
        let len: i64 = end[i].minus(begin[i]).into();
        // The total is small, so all of this fits into 32 bits.
        let (len, most) = (len as u32, (Stretch::MULTIPLE * unit) as u32);
        let multiple = (len.min(most) * reciprocal) >> SHIFT;
        other |= u32::from(multiple * unit as u32 != len);
    }
    (other == 0).then_some((unit, total / unit))
}

/// How many pieces continue what the two before them began: the same length at the same distance.
/// `starts` is empty if all lengths are the same.
pub(super) fn turns<N: Number, S: Number>(offsets: &[N], starts: &[S]) -> usize {
    let Some(n) = offsets.len().checked_sub(2) else {
        return 0;
    };
    let (a, b, c) = (&offsets[..n], &offsets[1..n + 1], &offsets[2..n + 2]);
    let even = |i: usize| c[i].minus(b[i]) == b[i].minus(a[i]);
    if starts.is_empty() {
        return (0..n).map(|i| u32::from(even(i))).sum::<u32>() as usize;
    }
    let (s, t) = (&starts[..n], &starts[1..n + 1]);
    let (u, v) = (&starts[2..n + 2], &starts[3..n + 3]);
    let equal =
        |i: usize| (v[i].minus(u[i]) == u[i].minus(t[i])) & (u[i].minus(t[i]) == t[i].minus(s[i]));
    let both = (0..n).map(|i| u32::from(even(i) & equal(i)));
    both.sum::<u32>() as usize
}

/// How many pieces are in runs of at least three that [`Arena::extend`] would find.
pub(super) fn in_runs<N: Number, S: Number>(offsets: &[N], starts: &[S]) -> usize {
    let len = |i: usize| match starts {
        [] => S::default(),
        _ => starts[i + 1].minus(starts[i]),
    };
    let (mut all, mut count, mut stride) = (0, 1, N::default());
    for i in 1..offsets.len() {
        let step = offsets[i].minus(offsets[i - 1]);
        if len(i) == len(i - 1) && (count == 1 || step == stride) {
            stride = step;
            count += 1;
            continue;
        }
        if count >= 3 {
            all += count;
        }
        count = 1;
    }
    if count >= 3 { all + count } else { all }
}

/// Dense pieces in a row whose lengths are small multiples of one unit, usually the unit itself.
pub(super) struct Stretch {
    pub(super) first: usize,
    pub(super) end: usize,
    pub(super) unit: i64,
    pub(super) units: i64,
}

impl Stretch {
    /// Longest unit.
    const UNIT: i64 = 64;
    /// Most units in a piece.
    const MULTIPLE: i64 = 16;
    /// Fewest pieces.
    const PIECES: usize = 32;
    /// From this many pieces of the same other length on, they begin a stretch of their own.
    const ENOUGH: usize = 16;
}

/// The stretches that are worth cutting into blocks of their unit: long ones with a small unit, and
/// not too many of it in a piece on average ([`CpuProfile::cut_quarters`]).
pub(super) fn stretches<S: Number>(starts: &[S]) -> room::Result<Vec<Stretch>> {
    if starts.len() > MANY {
        return long_stretches(starts);
    }
    const UNIT: i64 = Stretch::UNIT;
    const MULTIPLE: i64 = Stretch::MULTIPLE;
    const PIECES: usize = Stretch::PIECES;
    const ENOUGH: usize = Stretch::ENOUGH;
    // Division by a unit as a product, which is exact for up to 16 units.
    const SHIFT: u32 = 32;
    const RECIPROCALS: [i64; UNIT as usize + 1] = {
        let mut reciprocals = [0; UNIT as usize + 1];
        let mut unit = 1;
        while unit < reciprocals.len() {
            reciprocals[unit] = (1 << SHIFT) / unit as i64 + 1;
            unit += 1;
        }
        reciprocals
    };
    let quarters = CpuProfile::here().cut_quarters(starts.len() - 1) as i64;
    let mut stretches = Vec::new();
    let mut close = |end: usize, (first, unit, units): (usize, i64, i64)| {
        let pieces = end - first;
        if pieces >= PIECES && 4 * units <= quarters * pieces as i64 {
            let next = Stretch {
                first,
                end,
                unit,
                units,
            };
            room::push(&mut stretches, next)?;
        }
        Ok(())
    };
    // The stretch so far. A unit of 0 stands for all that are too long: no piece of theirs is cut,
    // so their stretches may end with each piece.
    let (mut first, mut unit, mut units) = (0, 0, 0);
    let mut reciprocal = 0;
    let (mut same, mut other) = (0, 0);
    for (i, pair) in starts.windows(2).enumerate() {
        let len = pair[1].into() - pair[0].into();
        same = if len == other { same + 1 } else { 1 };
        other = len;
        if len <= MULTIPLE * unit {
            let multiple = (len * reciprocal) >> SHIFT;
            if multiple * unit == len {
                units += multiple;
                if same == ENOUGH && len != unit {
                    let enough = i + 1 - ENOUGH;
                    close(enough, (first, unit, units - ENOUGH as i64 * multiple))?;
                    unit = if len <= UNIT { len } else { 0 };
                    (first, units) = (enough, ENOUGH as i64);
                    reciprocal = RECIPROCALS[unit as usize];
                }
                continue;
            }
        }
        if i - first >= PIECES {
            close(i, (first, unit, units))?;
        }
        unit = if len <= UNIT { len } else { 0 };
        (first, units) = (i, 1);
        reciprocal = RECIPROCALS[unit as usize];
    }
    close(starts.len() - 1, (first, unit, units))?;
    Ok(stretches)
}

/// The offsets of all units of the pieces of a stretch, relative to the first one.
pub(super) fn cut<O: Copy + Into<i64>, S: Copy + Into<i64>>(
    offsets: &[O],
    starts: &[S],
    unit: i64,
    units: i64,
) -> room::Result<Offsets> {
    fn all<O: Copy + Into<i64>, S: Copy + Into<i64>, T>(
        offsets: &[O],
        starts: &[S],
        unit: i64,
        units: i64,
        number: impl Fn(i64) -> T,
    ) -> room::Result<Arc<Vec<T>>> {
        let base = offsets[0].into();
        let mut places = room::list(units)?;
        for (&offset, pair) in offsets.iter().zip(starts.windows(2)) {
            let mut at = offset.into() - base;
            let end = at + (pair[1].into() - pair[0].into());
            while at < end {
                places.push(number(at));
                at += unit;
            }
        }
        Ok(Arc::new(places))
    }
    let base = offsets[0].into();
    let is_narrow = offsets
        .iter()
        .zip(starts.windows(2))
        .all(|(&offset, pair)| {
            let at = offset.into() - base;
            let last = at + (pair[1].into() - pair[0].into()) - unit;
            i32::try_from(at).is_ok() & i32::try_from(last).is_ok()
        });
    Ok(if is_narrow {
        Offsets::Narrow(all(offsets, starts, unit, units, |at| at as i32)?)
    } else {
        Offsets::Wide(all(offsets, starts, unit, units, |at| at)?)
    })
}

/// The lowest and the highest offset.
pub(super) fn span<O: Copy + Ord + Into<i64>>(offsets: &[O]) -> (i64, i64) {
    let low = offsets.iter().copied().min().map_or(0, Into::into);
    (low, offsets.iter().copied().max().map_or(0, Into::into))
}

/// Finds the bounds of dense pieces.
pub(super) fn reach<O: Copy + Into<i64>, S: Copy + Into<i64>>(
    extent: &mut Extent,
    offsets: &[O],
    starts: &[S],
) {
    let (mut low, mut high) = (0i64, 0i64);
    for (&offset, pair) in offsets.iter().zip(starts.windows(2)) {
        let at: i64 = offset.into();
        low = low.min(at);
        high = high.max(at + (pair[1].into() - pair[0].into()));
    }
    (extent.low, extent.high) = (low, high);
}

/// The divisors of `n` up to its half, ascending.
pub(super) fn divisors(n: usize) -> Vec<usize> {
    let mut all: Vec<usize> = (1..)
        .take_while(|d| d * d <= n)
        .filter(|d| n % d == 0)
        .flat_map(|d| [d, n / d])
        .filter(|&d| d <= n / 2)
        .collect();
    all.sort_unstable();
    all
}

/// As [`period`], for a list of `n` entries that is given by the letters between neighbours (an
/// entry, and the distance to the next) and by whether two entries are equal.
pub(super) fn period_of<L: PartialEq>(
    n: usize,
    letter: impl Fn(usize) -> L,
    equal: impl Fn(usize, usize) -> bool,
) -> room::Result<Option<usize>> {
    let letters = n - 1;
    // Most divisors fail at the first comparisons. After `patience` equal ones the list goes to the
    // algorithm that is linear for every list, but slower for most.
    let mut patience = 4 * n;
    for period in divisors(n) {
        let same = (period..letters)
            .take_while(|&i| letter(i) == letter(i - period))
            .count();
        if same == letters - period && equal(n - 1, period - 1) {
            return Ok(Some(period));
        }
        patience = patience.saturating_sub(same);
        if patience == 0 {
            return by_borders(n, letter, equal);
        }
    }
    Ok(None)
}

/// As [`period_of`], with Knuth, Morris and Pratt's borders.
pub(super) fn by_borders<L: PartialEq>(
    n: usize,
    letter: impl Fn(usize) -> L,
    equal: impl Fn(usize, usize) -> bool,
) -> room::Result<Option<usize>> {
    let letters = n - 1;
    let mut border = room::filled(0usize, letters)?;
    let mut k = 0;
    for i in 1..letters {
        while k > 0 && letter(i) != letter(k) {
            k = border[k - 1];
        }
        if letter(i) == letter(k) {
            k += 1;
        }
        border[i] = k;
    }
    let mut k = border.last().copied().unwrap_or(0);
    loop {
        let period = letters - k;
        if period > n / 2 {
            return Ok(None);
        }
        if n % period == 0 && equal(n - 1, period - 1) {
            return Ok(Some(period));
        }
        if k == 0 {
            return Ok(None);
        }
        k = border[k - 1];
    }
}
