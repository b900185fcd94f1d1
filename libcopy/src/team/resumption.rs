// SPDX-License-Identifier: MIT OR Apache-2.0

//! From which call on the ranks of a team that a disagreement has broken go on without it.
//!
//! Ranks that called different lengths live on, and an MPI program may make correct calls
//! afterwards. But the ranks hear of it in different calls: one may have ended a call in the team
//! that another one had to fail. So each rank reports once the number of the last call that it has
//! ended, in the team or with an error. When all have reported, the calls after the largest of
//! these numbers go past the team on every rank, and none before does.
//!
//! A rank reports when a call of it fails ([`Resumption::failed`]), not when it makes the next one:
//! it may be waiting then, in whatever function, for a rank that is only now coming to the call
//! that failed. A rank that was able to end that call reports with its next one.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::shm::reports::Reports;
use crate::shm::segment::Segment;
use crate::shm::sync::Ordering;

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
        if self.segment.home().is_here() && !self.reported.swap(true, Ordering::AcqRel) {
            self.reports().report(number);
        }
    }

    /// Call `number` of this team has failed here, since a disagreement has broken the team.
    pub fn failed(&self, number: u64) {
        self.report(number);
    }

    /// Whether call `number` of this team, counted from 1 and alike by all ranks, goes past it: all
    /// ranks that call it get the same answer. Asked when a disagreement has broken the team. The
    /// first time, this waits up to `patience` for ranks that have not made the call yet, and has
    /// `progress` called meanwhile; if one does not come, or has ended, the call fails in the team.
    pub fn goes_past(&self, number: u64, patience: Duration, progress: impl Fn()) -> bool {
        if !self.segment.home().is_here() {
            return false;
        }
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
            progress();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn is_anybody_gone(&self) -> bool {
        let is_blind = self.segment.look_around().is_err();
        let mut others = (0..self.size).filter(|rank| *rank != self.rank);
        is_blind
            || others.any(|rank| {
                let left = self.segment.block(rank).left.load(Ordering::Acquire) != 0;
                left || self.segment.has_died(rank)
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

    /// A rank that comes late to the call that failed does not wait for those that were able to end
    /// it: they may make no further call before it returns.
    #[test]
    fn a_call_that_one_rank_has_failed_fails_at_once() {
        let reports = crate::shm::reports::Reports::new();
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
