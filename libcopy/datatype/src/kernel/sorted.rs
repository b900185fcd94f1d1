// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pieces of all lengths, without a branch that depends on one length.
//!
//! Where lengths follow each other without a rule, the processor guesses wrong about as many
//! branches as there are pieces, each of which takes as long as moving a hundred bytes. So the
//! pieces of a list are sorted once, in batches, by the power of two below their length; then they
//! are moved class by class. Within a class, each is two moves of that power of two, which overlap.
//!
//! ```text
//! lengths of a batch   8 24 40 16 8 8 56 32
//! order                8 8 8 | 24 16 | 40 56 32      moves of 8, 16 and 32 bytes
//! ```

use super::super::offsets::Offsets;
use super::caches::overflow_last;
use super::instructions::has_512;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use super::instructions::has_avx2;
use super::piece::{dense, several};
use super::prefetch::{prefetch, prefetch_to_write};
use super::profile::CpuProfile;
use super::short_blocks::ends;
use crate::room;

/// A listed number.
pub(super) trait Number: Copy {
    fn get(self) -> isize;
}

impl Number for i32 {
    #[inline(always)]
    fn get(self) -> isize {
        self as isize
    }
}

impl Number for i64 {
    #[inline(always)]
    fn get(self) -> isize {
        self as isize
    }
}

/// Pieces that are sorted at a time: an index of one takes a byte, and so does a number of them.
/// Both sides of a batch of short pieces stay in the first-level cache.
const BATCH: usize = 128;

/// By the power of two below the length: 1, 2, 4, 8, 16, 32, 64; then from 96 bytes on, and from
/// 128 on.
const CLASSES: usize = 9;

/// The class of a length.
#[inline(always)]
fn class_of(len: usize) -> u8 {
    (len | 1).ilog2().min(6) as u8 + u8::from(len >= 96) + u8::from(len >= 128)
}

/// What is asked for early.
pub(super) const NOTHING: u8 = 0;
/// The places of later pieces.
pub(super) const PLACES: u8 = 1;
/// Those, and where they are packed to.
pub(super) const BOTH: u8 = 2;

/// Shorter lists are not sorted, nor are those whose branches the processor remembers
/// ([`CpuProfile::remembered`]).
const FEWEST: usize = 64;

/// Nor are longer lists, of pieces of `STREAMED` bytes on average, whose data leaves the caches.
/// There the processor follows pieces in their own order ahead of their turn, and does not in
/// another: 1,000,000 pieces of 8 to 128 bytes took 19 ns each sorted on AMD's Zen 4, and 9 in
/// their own order, with a wrong guess for nearly each of them; of 8 and 16 bytes, 3.4 and 6.
/// `libcopy bench types --irregular` shows it.
const STREAMED: usize = 24;

/// What moves the pieces of a list in their own order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Moves {
    /// AVX-512's masks: no branch depends on a length up to 64 bytes.
    Masks,
    /// Vectors, of which the last one overlaps the one before: branches that depend on the length.
    Overlapping,
}

impl Moves {
    /// Which loop that is, for a person.
    pub(super) fn name(self) -> &'static str {
        match self {
            Moves::Masks => "with masked vectors",
            Moves::Overlapping => "each by its length",
        }
    }

    /// What is best for a list of `n` pieces.
    #[inline]
    pub(in super::super) fn of_list(n: usize) -> Moves {
        if !has_512() {
            return Moves::Overlapping;
        }
        // A few pieces are moved before a table is looked at.
        if n < FEWEST {
            return Moves::Masks;
        }
        let profile = CpuProfile::here();
        if profile.masked_lists || n > profile.remembered {
            Moves::Masks
        } else {
            Moves::Overlapping
        }
    }
}

/// In which order the pieces of a list are moved.
#[derive(Clone, Debug)]
pub(in super::super) struct Sorted {
    batches: Vec<Batch>,
    /// Batch by batch, and within one class by class and ascending: which of the batch's pieces.
    order: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Batch {
    /// Pieces of each class.
    counts: [u8; CLASSES],
    /// Whether no byte is in two pieces, so that it does not matter which is written last.
    is_apart: bool,
}

impl Sorted {
    /// The order of a list's pieces; `None` where sorting them does not pay.
    pub(in super::super) fn new(
        offsets: &Offsets,
        starts: &Offsets,
    ) -> room::Result<Option<Sorted>> {
        let n = offsets.len();
        // Masks guess wrong about pieces of more than 64 bytes only, which takes less than sorting
        // gains.
        let pays = n >= FEWEST
            && Moves::of_list(n) == Moves::Overlapping
            && n > CpuProfile::here().remembered
            && !is_streamed(n, starts.get(n) as usize);
        pays.then(|| Sorted::of_lists(offsets, starts)).transpose()
    }

    /// The order of a list's pieces, whether sorting them pays or not.
    pub(super) fn of_lists(offsets: &Offsets, starts: &Offsets) -> room::Result<Sorted> {
        match (offsets, starts) {
            (Offsets::Narrow(o), Offsets::Narrow(s)) => Sorted::of(o, s),
            (Offsets::Wide(o), Offsets::Narrow(s)) => Sorted::of(o, s),
            (Offsets::Narrow(o), Offsets::Wide(s)) => Sorted::of(o, s),
            (Offsets::Wide(o), Offsets::Wide(s)) => Sorted::of(o, s),
        }
    }

    fn of<O: Number, S: Number>(offsets: &[O], starts: &[S]) -> room::Result<Sorted> {
        let n = offsets.len();
        let mut sorted = Sorted {
            batches: room::list(n.div_ceil(BATCH))?,
            order: room::filled(0, n)?,
        };
        let batches = offsets.chunks(BATCH).zip(sorted.order.chunks_mut(BATCH));
        for (k, (offsets, order)) in batches.enumerate() {
            let starts = &starts[k * BATCH..][..=offsets.len()];
            let mut classes = [0u8; BATCH];
            let mut counts = [0u8; CLASSES];
            let (mut ascend, mut behind) = (true, isize::MIN);
            for ((class, offset), pair) in classes.iter_mut().zip(offsets).zip(starts.windows(2)) {
                let len = pair[1].get() - pair[0].get();
                *class = class_of(len as usize);
                counts[usize::from(*class)] += 1;
                ascend &= offset.get() >= behind;
                behind = offset.get().wrapping_add(len);
            }
            let mut next = [0u8; CLASSES];
            for class in 1..CLASSES {
                next[class] = next[class - 1] + counts[class - 1];
            }
            for (i, class) in (0u8..).zip(&classes[..offsets.len()]) {
                let at = &mut next[usize::from(*class)];
                order[usize::from(*at)] = i;
                *at += 1;
            }
            sorted.batches.push(Batch {
                counts,
                is_apart: ascend || is_apart(offsets, starts),
            });
        }
        Ok(sorted)
    }

    /// Bytes of memory beside the value itself, for a list of `n` pieces.
    pub(super) fn memory_of(n: usize) -> usize {
        n.div_ceil(BATCH) * size_of::<Batch>() + n
    }
}

/// Whether `n` pieces, `bytes` together, go through the caches without staying there: they, what
/// lies between them, and their copies.
fn is_streamed(n: usize, bytes: usize) -> bool {
    bytes / STREAMED >= n && overflow_last(2 * bytes)
}

/// Whether no byte is in two pieces.
fn is_apart<O: Number, S: Number>(offsets: &[O], starts: &[S]) -> bool {
    let pieces = offsets.iter().zip(starts.windows(2));
    let mut pieces: Vec<(isize, isize)> = pieces
        .map(|(offset, pair)| (offset.get(), offset.get() + (pair[1].get() - pair[0].get())))
        .collect();
    pieces.sort_unstable();
    pieces.windows(2).all(|pair| pair[0].1 <= pair[1].0)
}

/// Moves pieces `first` up to `end` of a list that is sorted so; `packed` is where the first of
/// them is. `ASK` says what of a batch later is asked for.
///
/// # Safety
///
/// As for [`super::indexed::pieces`]; `sorted` was made of these lists.
pub(super) unsafe fn in_order<const PACK: bool, const ASK: u8, O: Number, S: Number>(
    sorted: &Sorted,
    user: *mut u8,
    (offsets, starts): (&[O], &[S]),
    range: (usize, usize),
    packed: *mut u8,
) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if has_avx2() {
        /// # Safety
        ///
        /// As for [`in_order`]; the processor has AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn with_avx2<const PACK: bool, const ASK: u8, O: Number, S: Number>(
            sorted: &Sorted,
            user: *mut u8,
            lists: (&[O], &[S]),
            range: (usize, usize),
            packed: *mut u8,
        ) {
            // SAFETY: the caller's promise.
            unsafe { each_batch::<PACK, ASK, O, S>(sorted, user, lists, range, packed) }
        }
        // SAFETY: the caller's promise; the processor has AVX2.
        return unsafe {
            with_avx2::<PACK, ASK, O, S>(sorted, user, (offsets, starts), range, packed)
        };
    }
    // SAFETY: the caller's promise.
    unsafe { each_batch::<PACK, ASK, O, S>(sorted, user, (offsets, starts), range, packed) }
}

/// # Safety
///
/// As for [`in_order`].
#[inline(always)]
unsafe fn each_batch<const PACK: bool, const ASK: u8, O: Number, S: Number>(
    sorted: &Sorted,
    user: *mut u8,
    (offsets, starts): (&[O], &[S]),
    (first, end): (usize, usize),
    packed: *mut u8,
) {
    let n = offsets.len();
    assert!(starts.len() == n + 1 && sorted.order.len() == n && first < end && end <= n);
    let packed = packed.wrapping_offset(-starts[first].get());
    for which in first / BATCH..=(end - 1) / BATCH {
        let begin = which * BATCH;
        let batch = &sorted.batches[which];
        let order = &sorted.order[begin..n.min(begin + BATCH)];
        // Which of its pieces are moved.
        let (low, high) = (first.saturating_sub(begin), (end - begin).min(order.len()));
        // Both sides of one of the list's pieces, and its length.
        let sides = |i: usize| {
            // SAFETY: `i` is below `n`: the sorted indices are, and so is all of the range.
            let (offset, start, next) = unsafe {
                (
                    offsets.get_unchecked(i).get(),
                    starts.get_unchecked(i).get(),
                    starts.get_unchecked(i + 1).get(),
                )
            };
            let user = user.wrapping_offset(offset);
            let packed = packed.wrapping_offset(start);
            let (to, from) = if PACK { (packed, user) } else { (user, packed) };
            (to, from, (next - start) as usize)
        };
        if !PACK && !batch.is_apart {
            for i in begin + low..begin + high {
                let (to, from, len) = sides(i);
                // SAFETY: the caller's promise.
                unsafe { dense(to, from, len) };
            }
            continue;
        }
        let mut rest = order;
        macro_rules! classes {
            ($($class:literal $move:path;)*) => {
                $(
                    let (mut class, later) = rest.split_at(usize::from(batch.counts[$class]));
                    rest = later;
                    if high - low < order.len() {
                        class = part_of(class, low, high);
                    }
                    for i in class {
                        let i = begin + usize::from(*i);
                        if ASK != NOTHING {
                            ask::<PACK, ASK, O, S>(user, packed, (offsets, starts), i + BATCH);
                        }
                        let (to, from, len) = sides(i);
                        // SAFETY: the caller's promise; the length is one of the class.
                        unsafe { $move(to, from, len) };
                    }
                )*
            };
        }
        classes! {
            0 single;
            1 ends::<2>;
            2 ends::<4>;
            3 ends::<8>;
            4 ends::<16>;
            5 ends::<32>;
            6 ends_after::<32, 32>;
            7 ends_after::<64, 32>;
            8 several::<64>;
        }
        let _ = rest;
    }
}

/// Those of a class's ascending indices that are from `low` up to `high`.
///
/// Not inlined: only the first and the last batch of a range are moved in part, and each form of
/// [`each_batch`] would have nine copies.
#[cold]
#[inline(never)]
fn part_of(class: &[u8], low: usize, high: usize) -> &[u8] {
    let below = |bound: usize| class.partition_point(|i| usize::from(*i) < bound);
    &class[below(low)..below(high)]
}

/// Asks for what a later piece needs, if there is one.
#[inline(always)]
fn ask<const PACK: bool, const WHAT: u8, O: Number, S: Number>(
    user: *mut u8,
    packed: *mut u8,
    (offsets, starts): (&[O], &[S]),
    later: usize,
) {
    let (Some(offset), Some(start)) = (offsets.get(later), starts.get(later)) else {
        return;
    };
    let user = user.wrapping_offset(offset.get());
    if !PACK {
        return prefetch_to_write(user);
    }
    prefetch(user);
    if WHAT == BOTH {
        prefetch_to_write(packed.wrapping_offset(start.get()));
    }
}

/// Moves `BEFORE` bytes, and two overlapping moves of `LEN` bytes behind them.
///
/// # Safety
///
/// As for [`dense`], with `BEFORE + LEN <= len <= BEFORE + 2 * LEN`.
#[inline(always)]
unsafe fn ends_after<const BEFORE: usize, const LEN: usize>(
    to: *mut u8,
    from: *const u8,
    len: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, BEFORE);
        ends::<LEN>(to.add(BEFORE), from.add(BEFORE), len - BEFORE);
    }
}

/// Moves one byte.
///
/// # Safety
///
/// As for [`dense`].
#[inline(always)]
unsafe fn single(to: *mut u8, from: *const u8, _: usize) {
    // SAFETY: the caller's promise.
    unsafe { *to = *from }
}
