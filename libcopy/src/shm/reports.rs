// SPDX-License-Identifier: MIT OR Apache-2.0

//! The reports of a team's ranks after a disagreement, as one word of the segment: see
//! `team/resumption.rs`.

use super::sync::{AtomicU64, Ordering};

/// Bits of the number of a call; above them is the number of ranks that have reported.
const CALLS: u32 = 48;

/// The reports of all ranks, as one word: how many ranks have reported, and the largest number of a
/// call.
#[cfg_attr(not(loom), repr(transparent))]
pub(crate) struct Reports(AtomicU64);

impl Reports {
    #[cfg(test)]
    pub(crate) fn new() -> Self {
        Reports(AtomicU64::new(0))
    }

    /// The word, the ranks that have reported, and the largest number.
    fn read(&self) -> (u64, u64, u64) {
        let word = self.0.load(Ordering::Acquire);
        (word, word >> CALLS, word & ((1 << CALLS) - 1))
    }

    /// Whether call `number` goes past the team; `None` as long as that is open. The largest number
    /// never becomes less, and when all ranks have reported the word stays the same, so the answer
    /// is the same on all ranks.
    pub(crate) fn goes_past(&self, number: u64, size: u64) -> Option<bool> {
        let (_, ranks, last) = self.read();
        if number > last {
            (ranks >= size).then_some(true)
        } else {
            Some(false)
        }
    }

    /// A rank's only report: it has ended call `number`, and none after it. No call up to this one
    /// goes past the team until then, as that takes all reports.
    pub(crate) fn report(&self, number: u64) {
        loop {
            let (word, ranks, last) = self.read();
            let next = (ranks + 1) << CALLS | last.max(number);
            if self.replace(word, next) {
                return;
            }
        }
    }

    /// Has call `number` of a rank that has reported fail on all ranks; `false` if all have
    /// reported meanwhile, which decides about the call.
    pub(crate) fn fail(&self, number: u64, size: u64) -> bool {
        loop {
            let (word, ranks, last) = self.read();
            if ranks >= size {
                return false;
            }
            if self.replace(word, ranks << CALLS | last.max(number)) {
                return true;
            }
        }
    }

    fn replace(&self, word: u64, next: u64) -> bool {
        self.0
            .compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;

    /// What became of a call.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Fate {
        InTeam,
        Past,
    }

    /// What the ranks share: whether the team is broken, how many have left, and the reports.
    type Shared = (AtomicBool, AtomicU64, Reports);

    /// What became of each call of a rank. `breaks`: its first call fails. `patience`: how often it
    /// looks for the others' reports in a call before it has the call fail. Whether a rank hears of
    /// the broken team in the call that breaks it, or in a later one, depends on the interleaving.
    fn rank(
        shared: &Shared,
        (size, calls): (u64, u64),
        breaks: bool,
        patience: usize,
    ) -> Vec<Fate> {
        let (broken, left, reports) = shared;
        let mut reported = false;
        let mut report = |number| {
            if !std::mem::replace(&mut reported, true) {
                reports.report(number);
            }
        };
        let mut fates = Vec::new();
        for number in 1..=calls {
            if broken.load(Ordering::Acquire) {
                report(number - 1);
                let mut looks = 0;
                let past = loop {
                    looks += 1;
                    if let Some(past) = reports.goes_past(number, size) {
                        break past;
                    }
                    // One that has left may have made all its calls in the team.
                    let hopeless = looks > patience || left.load(Ordering::Acquire) != 0;
                    if hopeless && reports.fail(number, size) {
                        break false;
                    }
                    thread::yield_now();
                };
                fates.push(if past { Fate::Past } else { Fate::InTeam });
                continue;
            }
            // In the team: it fails if this rank breaks it, or hears that another one has.
            if breaks && number == 1 {
                broken.store(true, Ordering::Release);
            }
            if broken.load(Ordering::Acquire) {
                report(number);
            }
            fates.push(Fate::InTeam);
        }
        left.fetch_add(1, Ordering::AcqRel);
        fates
    }

    fn model(size: usize, calls: u64, patience: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let shared = Arc::new((AtomicBool::new(false), AtomicU64::new(0), Reports::new()));
            let others: Vec<_> = (1..size)
                .map(|_| {
                    let shared = shared.clone();
                    thread::spawn(move || rank(&shared, (size as u64, calls), false, patience))
                })
                .collect();
            let mut all = vec![rank(&shared, (size as u64, calls), true, patience)];
            all.extend(others.into_iter().map(|other| other.join().unwrap()));
            // Nobody forwards a call that another rank has ended or failed.
            for number in 0..calls as usize {
                let fates: Vec<Fate> = all.iter().map(|fates| fates[number]).collect();
                assert!(fates.iter().all(|fate| *fate == fates[0]), "{all:?}");
            }
        });
    }

    /// It ends, too: nobody waits for a report that does not come.
    #[test]
    fn loom_patient_ranks_go_past_together() {
        model(2, 3, usize::MAX);
    }

    #[test]
    fn loom_impatient_ranks_fail_alike() {
        model(2, 3, 1);
    }

    #[test]
    fn loom_three_ranks_go_past_together() {
        model(3, 2, 0);
    }
}
