// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which of two ways moves the pieces of one list: first the one that the processor's table says,
//! then the one that took less time.
//!
//! What is faster depends on how many branches the processor remembers, on how much of its caches
//! others use, and on where the data is: a wrong guess costs up to two and a half times the time
//! (see docs/performance/datatypes.md, "Irregular lists"). Each list therefore measures both ways
//! while it is used, packing and unpacking apart. Both move the same bytes: pieces that overlap are
//! written in the order of the list by either.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use super::super::comparison::Comparison;
use super::super::offsets::Offsets;
use super::instructions::has_512;
use super::sorted::{Moves, Sorted};
use crate::room;

/// Lists of fewer pieces are not measured: reading the clock takes as long as moving some of them.
const MEASURED: usize = 512;

/// With masks, no branch depends on a length up to 64 bytes: longer lists, whose branches no
/// processor remembers, have one way only.
const MASKED: usize = 1 << 16;

/// Calls before a list is measured: what is used once or twice pays nothing.
const FIRST: u32 = 2;

/// Times that the list is moved before the clock counts: the processor learns the branches from
/// them, and data comes into the caches.
const UNTIMED: usize = 2;

/// Times that the list is moved in one way without a break, with those before.
const RUN: usize = 4;

/// One of the ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Sorted by length, a batch at a time.
    Sorted,
    /// In the list's own order.
    Own(Moves),
}

/// How the pieces of a list are moved.
#[derive(Debug)]
pub(in super::super) struct PieceOrder {
    pieces: usize,
    /// What the processor's table says, and the other.
    ways: [Way; 2],
    /// Made when the list is, or when that way is first tried.
    sorted: OnceLock<Option<Sorted>>,
    /// Packing and unpacking; `None` if nothing is measured.
    learned: Option<[Learned; 2]>,
}

/// What is known of one direction.
#[derive(Debug)]
struct Learned {
    /// The way that is taken, as an index.
    way: AtomicU8,
    /// Calls until both ways are measured again.
    left: AtomicU32,
    trial: Mutex<Trial>,
}

impl Default for Learned {
    fn default() -> Learned {
        Learned {
            way: AtomicU8::new(0),
            left: AtomicU32::new(FIRST),
            trial: Mutex::default(),
        }
    }
}

/// Runs of both ways.
#[derive(Debug, Default)]
struct Trial {
    ways: Comparison,
    /// The way of the run.
    way: usize,
    /// Pieces that were moved in the run.
    moved: usize,
    /// Those of them that the clock counted, and nanoseconds.
    timed: (usize, u64),
}

impl Trial {
    /// So many pieces of a list of `n` took so long. Answers how to go on, once both ways are
    /// known: the faster one and the calls until the next trial.
    fn note(&mut self, n: usize, pieces: usize, nanos: u64) -> Option<(usize, u32)> {
        if self.moved >= UNTIMED * n {
            self.timed.0 += pieces;
            self.timed.1 += nanos;
        }
        self.moved += pieces;
        if self.moved < RUN * n || self.timed.0 == 0 {
            return None;
        }
        // Nanoseconds per piece are too coarse.
        let each = self.timed.1.saturating_mul(1024) / self.timed.0 as u64;
        let way = self.way;
        self.ways.note(way, each);
        (self.moved, self.timed) = (0, (0, 0));
        let Some((best, between)) = self.ways.settled() else {
            self.way = self.ways.choose();
            return None;
        };
        if way == best {
            // Its figure is new now: the other one's is next.
            self.way = 1 - best;
            return None;
        }
        self.way = best;
        let calls = between.saturating_mul(RUN as u64);
        Some((best, u32::try_from(calls).unwrap_or(u32::MAX)))
    }
}

impl PieceOrder {
    /// How a list's pieces are moved; `None` if there is nothing to choose.
    pub(in super::super) fn new(
        offsets: &Offsets,
        starts: &Offsets,
    ) -> room::Result<Option<PieceOrder>> {
        let n = offsets.len();
        let sorted = Sorted::new(offsets, starts)?;
        let own = Moves::of_list(n);
        let is_measured = n >= MEASURED && !(has_512() && n > MASKED);
        if sorted.is_none() && !is_measured {
            return Ok(None);
        }
        let ways = match (&sorted, own) {
            (Some(_), _) => [Way::Sorted, Way::Own(own)],
            (None, Moves::Masks) => [Way::Own(own), Way::Own(Moves::Overlapping)],
            (None, Moves::Overlapping) if has_512() => [Way::Own(own), Way::Own(Moves::Masks)],
            (None, Moves::Overlapping) => [Way::Own(own), Way::Sorted],
        };
        let made = OnceLock::new();
        if sorted.is_some() {
            let _ = made.set(sorted);
        }
        Ok(Some(PieceOrder {
            pieces: n,
            ways,
            sorted: made,
            learned: is_measured.then(Default::default),
        }))
    }

    /// Calls `each`, which moves some pieces of the lists, with the order and the moves to use.
    pub(super) fn with<const PACK: bool>(
        &self,
        (offsets, starts): (&Offsets, &Offsets),
        pieces: usize,
        each: impl FnOnce(Option<&Sorted>, Moves),
    ) {
        let with = |way: usize| {
            let sorted = match self.ways[way] {
                Way::Own(moves) => return each(None, moves),
                // Without room for it, the list is moved in its own order.
                Way::Sorted => self
                    .sorted
                    .get_or_init(|| Sorted::of_lists(offsets, starts).ok()),
            };
            each(sorted.as_ref(), Moves::of_list(self.pieces))
        };
        let Some(learned) = &self.learned else {
            return with(0);
        };
        let learned = &learned[usize::from(PACK)];
        let taken = || usize::from(learned.way.load(Relaxed));
        let left = learned.left.load(Relaxed);
        if left > 0 {
            // Threads that count at once lose a count, which does no harm.
            learned.left.store(left - 1, Relaxed);
            return with(taken());
        }
        // Another thread measures, or this one was interrupted while it did.
        let Ok(mut trial) = learned.trial.try_lock() else {
            return with(taken());
        };
        let start = Instant::now();
        with(trial.way);
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if let Some((best, calls)) = trial.note(self.pieces, pieces, nanos) {
            learned.way.store(best as u8, Relaxed);
            learned.left.store(calls, Relaxed);
        }
    }

    /// Which loop packs, for a person.
    pub(in super::super) fn name(&self) -> &'static str {
        let learned = self.learned.as_ref().map_or(0, |known| {
            usize::from(known[usize::from(true)].way.load(Relaxed))
        });
        match self.ways[learned] {
            Way::Sorted => "sorted by length, a batch at a time",
            Way::Own(moves) => moves.name(),
        }
    }

    /// Bytes of memory beside the value itself, whether it is used already or not.
    pub(in super::super) fn memory(&self) -> usize {
        match self.ways {
            [Way::Sorted, _] | [_, Way::Sorted] => Sorted::memory_of(self.pieces),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::instructions::InstructionSet;
    use super::*;
    use std::cell::Cell;
    use std::sync::Arc;
    use std::time::Duration;

    fn lists(n: usize) -> (Offsets, Offsets) {
        let offsets: Vec<i32> = (0..n as i32).map(|i| 40 * i + 8 * (i % 3)).collect();
        let starts: Vec<i32> = (0..=n as i32).map(|i| 8 * i + 8 * (i / 2)).collect();
        (
            Offsets::Narrow(Arc::new(offsets)),
            Offsets::Narrow(Arc::new(starts)),
        )
    }

    /// Moves the list `calls` times, where a way takes so many microseconds; the share of calls
    /// that was sorted.
    fn sorted_share<const PACK: bool>(
        order: &PieceOrder,
        lists: (&Offsets, &Offsets),
        calls: u32,
        micros: [u64; 2],
    ) -> f64 {
        let sorted = Cell::new(0);
        for _ in 0..calls {
            order.with::<PACK>(lists, lists.0.len(), |by, _| {
                let way = usize::from(by.is_some());
                sorted.set(sorted.get() + way as u32);
                let begin = Instant::now();
                while begin.elapsed() < Duration::from_micros(micros[way]) {}
            });
        }
        f64::from(sorted.get()) / f64::from(calls)
    }

    /// The way that takes less time is found, whatever the table says, in each direction by itself.
    #[test]
    #[cfg_attr(miri, ignore = "measures")]
    fn each_direction_learns_the_faster_way() {
        InstructionSet::Portable.limit();
        for n in [MEASURED, 40_000] {
            let (offsets, starts) = lists(n);
            let order = PieceOrder::new(&offsets, &starts).unwrap().unwrap();
            let lists = (&offsets, &starts);
            let packed = sorted_share::<true>(&order, lists, 600, [200, 20]);
            let unpacked = sorted_share::<false>(&order, lists, 600, [20, 200]);
            assert!(packed > 0.8 && unpacked < 0.2, "{n}: {packed} {unpacked}");
        }
    }

    /// Uses of a list that is used a few times are those of the table, and so are those of who is
    /// interrupted while it measures.
    #[test]
    fn the_table_decides_at_first() {
        InstructionSet::Portable.limit();
        let (offsets, starts) = lists(MEASURED);
        let order = PieceOrder::new(&offsets, &starts).unwrap().unwrap();
        let first = order.sorted.get().is_some();
        for _ in 0..FIRST + RUN as u32 {
            order.with::<true>((&offsets, &starts), offsets.len(), |by, _| {
                assert_eq!(by.is_some(), first);
            });
        }
        let learned = order.learned.as_ref().unwrap();
        let guard = learned[1].trial.lock().unwrap();
        for _ in 0..100 {
            order.with::<true>((&offsets, &starts), offsets.len(), |by, _| {
                assert_eq!(by.is_some(), first);
            });
        }
        drop(guard);
        assert_eq!(order.memory(), Sorted::memory_of(MEASURED));
    }

    /// Lists that are moved in parts are measured, too: a run is as many pieces as some lists.
    #[test]
    fn parts_count_as_what_they_are() {
        let mut trial = Trial::default();
        let (n, part) = (1000, 100);
        let mut calls = 0;
        let (best, left) = loop {
            calls += 1;
            let nanos = if trial.way == 0 { 900 } else { 300 };
            if let Some(found) = trial.note(n, part, nanos) {
                break found;
            }
        };
        assert_eq!(best, 1);
        // Two runs of each way, the table's first and last.
        assert_eq!(calls, 4 * RUN * n / part);
        assert!(left >= 64 * RUN as u32);
        // The next trial begins with the faster one.
        assert_eq!(trial.way, 1);
    }

    #[test]
    fn short_lists_and_those_with_masks_have_one_way() {
        InstructionSet::Portable.limit();
        let (offsets, starts) = lists(63);
        assert!(PieceOrder::new(&offsets, &starts).unwrap().is_none());
        if InstructionSet::Avx512.limit() == InstructionSet::Avx512 {
            let (offsets, starts) = lists(MASKED + 1);
            assert!(PieceOrder::new(&offsets, &starts).unwrap().is_none());
        }
    }
}
