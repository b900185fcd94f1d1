// SPDX-License-Identifier: MIT OR Apache-2.0

//! The barrier: a counter of arrivals and an epoch (the "sense") that the last to arrive moves on.
//!
//! One counter serves a single machine's worth of ranks: every rank is scheduled once to arrive
//! and once to go on, which is what counts when ranks outnumber cores; a tree would add a round
//! of context switches per level.

use super::ring::Counter;
#[cfg(loom)]
use super::sync::AtomicU64;
use super::sync::Ordering;

#[cfg_attr(not(loom), repr(C))]
pub(crate) struct Barrier {
    arrived: Counter,
    epoch: Counter,
}

impl Barrier {
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Barrier {
            arrived: Counter(AtomicU64::new(0)),
            epoch: Counter(AtomicU64::new(0)),
        }
    }

    /// Arrives for the `epoch`-th time (counted from 1). Returns true if everybody is here; the
    /// caller then rings the others.
    pub(crate) fn arrive(&self, epoch: u64, size: usize) -> bool {
        // The counter is never reset: its value alone says whether the round is complete.
        // AcqRel: the last one has seen what the others did before, and passes it on below.
        let arrived = self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1;
        if arrived == epoch.wrapping_mul(size as u64) {
            self.epoch.0.store(epoch, Ordering::Release);
            return true;
        }
        false
    }

    /// Whether everybody has arrived for the `epoch`-th time.
    pub(crate) fn passed(&self, epoch: u64) -> bool {
        self.epoch.0.load(Ordering::Acquire) >= epoch
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::shm::doorbell::Doorbell;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;
    use std::time::Duration;

    fn model(size: usize, rounds: u64) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let shared = Arc::new((
                Barrier::new(),
                (0..size).map(|_| Doorbell::new()).collect::<Vec<_>>(),
                (0..size).map(|_| UnsafeCell::new(0u64)).collect::<Vec<_>>(),
            ));
            let rank = move |me: usize, shared: &(Barrier, Vec<Doorbell>, Vec<UnsafeCell<u64>>)| {
                let (barrier, bells, cells) = shared;
                for epoch in 1..=2 * rounds {
                    if epoch % 2 == 1 {
                        cells[me].with_mut(|p| unsafe { *p = epoch });
                    } else {
                        for cell in cells {
                            assert_eq!(cell.with(|p| unsafe { *p }), epoch - 1);
                        }
                    }
                    if barrier.arrive(epoch, size) {
                        Doorbell::ring_all(bells.iter());
                    } else {
                        let mut ready = || barrier.passed(epoch).then_some(());
                        while bells[me].park(Duration::MAX, &mut ready).is_none() {}
                    }
                }
            };
            let threads: Vec<_> = (1..size)
                .map(|me| {
                    let shared = shared.clone();
                    thread::spawn(move || rank(me, &shared))
                })
                .collect();
            rank(0, &shared);
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_barrier_of_two() {
        model(2, 2);
    }

    #[test]
    fn loom_barrier_of_three() {
        model(3, 1);
    }
}
