// SPDX-License-Identifier: MIT OR Apache-2.0

//! From which call on the ranks of a team that a disagreement has broken go on without it.
//!
//! Ranks that called different lengths live on, and an MPI program may make correct calls afterwards. But
//! the ranks hear of it in different calls: one may have ended a call in the team that another one had to
//! fail. So each rank reports once the number of the last call that it has ended, in the team or with an
//! error. When all have reported, the calls after the largest of these numbers go past the team on every
//! rank, and none before does.
//!
//! A rank reports when a call of it fails ([`Resumption::failed`]), not when it makes the next one: it may be
//! waiting then, in whatever function, for a rank that is only now coming to the call that failed. A rank
//! that was able to end that call reports with its next one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::segment::Segment;
use super::sync::{AtomicU64, Ordering};

/// Bits of the number of a call; above them is the number of ranks that have reported.
const CALLS: u32 = 48;

/// The reports of all ranks, as one word: how many ranks have reported, and the largest number of a call.
#[cfg_attr(not(loom), repr(transparent))]
pub(crate) struct Reports(AtomicU64);

impl Reports {
    #[cfg(loom)]
    fn new() -> Self {
        Reports(AtomicU64::new(0))
    }

    /// The word, the ranks that have reported, and the largest number.
    fn read(&self) -> (u64, u64, u64) {
        let word = self.0.load(Ordering::Acquire);
        (word, word >> CALLS, word & ((1 << CALLS) - 1))
    }

    /// Whether call `number` goes past the team; `None` as long as that is open. The largest number never
    /// becomes less, and when all ranks have reported the word stays the same, so the answer is the same on
    /// all ranks.
    fn goes_past(&self, number: u64, size: u64) -> Option<bool> {
        let (_, ranks, last) = self.read();
        match number > last {
            false => Some(false),
            true => (ranks >= size).then_some(true),
        }
    }

    /// A rank's only report: it has ended call `number`, and none after it. No call up to this one goes past
    /// the team until then, as that takes all reports.
    fn report(&self, number: u64) {
        loop {
            let (word, ranks, last) = self.read();
            let next = (ranks + 1) << CALLS | last.max(number);
            if self.replace(word, next) {
                return;
            }
        }
    }

    /// Has call `number` of a rank that has reported fail on all ranks; `false` if all have reported
    /// meanwhile, which decides about the call.
    fn fail(&self, number: u64, size: u64) -> bool {
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

/// One rank's view of it. See [`super::Team::resumption`].
#[derive(Debug)]
pub struct Resumption {
    segment: Arc<Segment>,
    rank: usize,
    size: usize,
    /// Whether we have reported.
    reported: AtomicBool,
    /// Whether we wait for the others' reports no more.
    hopeless: AtomicBool,
}

impl Resumption {
    pub(super) fn new(segment: Arc<Segment>, rank: usize, size: usize) -> Self {
        Resumption {
            segment,
            rank,
            size,
            reported: AtomicBool::new(false),
            hopeless: AtomicBool::new(false),
        }
    }

    fn reports(&self) -> &Reports {
        &self.segment.preamble().reports
    }

    fn report(&self, number: u64) {
        if !self.reported.swap(true, Ordering::AcqRel) {
            self.reports().report(number);
        }
    }

    /// Call `number` of this team has failed here, since a disagreement has broken the team.
    pub fn failed(&self, number: u64) {
        self.report(number);
    }

    /// Whether call `number` of this team, counted from 1 and alike by all ranks, goes past it: all ranks
    /// that call it get the same answer. Asked when a disagreement has broken the team. The first time, this
    /// waits up to `patience` for ranks that have not made the call yet, and has `chore` called meanwhile; if
    /// one does not come, or has ended, the call fails in the team.
    pub fn goes_past(&self, number: u64, patience: Duration, chore: impl Fn()) -> bool {
        let (reports, size) = (self.reports(), self.size as u64);
        self.report(number - 1);
        let started = Instant::now();
        loop {
            if let Some(goes_past) = reports.goes_past(number, size) {
                return goes_past;
            }
            let hopeless = self.hopeless.load(Ordering::Relaxed);
            if hopeless || started.elapsed() > patience || self.is_anybody_gone() {
                self.hopeless.store(true, Ordering::Relaxed);
                if reports.fail(number, size) {
                    return false;
                }
                continue;
            }
            chore();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn is_anybody_gone(&self) -> bool {
        let mut others = (0..self.size).filter(|rank| *rank != self.rank);
        others.any(|rank| {
            let left = self.segment.block(rank).left.load(Ordering::Acquire) != 0;
            left || !matches!(self.segment.holder(rank), Ok(Some(_)))
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use crate::{Team, TeamKey};

    const LONG: Duration = Duration::from_secs(60);

    fn pair() -> [Team; 2] {
        let key = TeamKey::random().unwrap();
        let other = std::thread::spawn(move || Team::join(&key, 1, 2).unwrap());
        [Team::join(&key, 0, 2).unwrap(), other.join().unwrap()]
    }

    /// The one has ended call 5 when it hears of it, the other call 7: 6 and 7 fail, 8 goes past.
    #[test]
    fn all_go_past_from_the_same_call_on() {
        let teams = pair();
        let [late, early] = teams.each_ref().map(Team::resumption);
        let other = std::thread::spawn(move || early.goes_past(8, LONG, || {}));
        let past = [6, 7, 8, 9].map(|number| late.goes_past(number, LONG, || {}));
        assert_eq!(past, [false, false, true, true]);
        assert!(other.join().unwrap());
    }

    /// A call that has failed for want of the other rank does not go past on that rank either.
    #[test]
    fn what_failed_without_the_others_fails_there_too() {
        let teams = pair();
        let [one, other] = teams.each_ref().map(Team::resumption);
        assert!(!one.goes_past(6, Duration::ZERO, || {}));
        assert!(!other.goes_past(6, LONG, || {}));
        assert!(one.goes_past(7, LONG, || {}) && other.goes_past(7, LONG, || {}));
    }

    /// A rank that comes late to the call that failed does not wait for those that were able to end it: they may
    /// make no further call before it returns.
    #[test]
    fn a_call_that_one_rank_has_failed_fails_at_once() {
        let reports = super::Reports(super::AtomicU64::new(0));
        reports.report(0);
        assert_eq!(reports.goes_past(1, 3), None);
        reports.report(1);
        assert_eq!(
            [1, 2].map(|number| reports.goes_past(number, 3)),
            [Some(false), None]
        );
        reports.report(1);
        assert_eq!(reports.goes_past(2, 3), Some(true));
    }

    /// Nor for those that have failed it.
    #[test]
    fn nobody_waits_for_a_rank_that_has_failed_the_same_call() {
        let teams = pair();
        let [one, late] = teams.each_ref().map(Team::resumption);
        one.failed(1);
        assert!(!late.goes_past(1, Duration::MAX, || {}));
        assert!(one.goes_past(2, Duration::MAX, || {}) && late.goes_past(2, Duration::MAX, || {}));
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

    /// What became of each call of a rank. `breaks`: its first call fails. `patience`: how often it looks for the
    /// others' reports in a call before it has the call fail. Whether a rank hears of the broken team in the call
    /// that breaks it, or in a later one, depends on the interleaving.
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
