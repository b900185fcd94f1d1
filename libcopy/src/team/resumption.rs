// SPDX-License-Identifier: MIT OR Apache-2.0

//! From which call on the ranks of a team that a disagreement has broken go on without it.
//!
//! Ranks that called different lengths live on, and an MPI program may make correct calls afterwards. But
//! the ranks hear of it in different calls: one may have ended a call in the team that another one had to
//! fail. So each says once how many calls it has ended, in the team or with an error; when all have said
//! that, the calls after the largest of these numbers go past the team on every rank, and none before does.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::segment::Segment;
use super::sync::{AtomicU64, Ordering};

/// Bits of the number of calls; above them is the number of ranks that have said theirs.
const CALLS: u32 = 48;

/// The ranks that have said how many calls they have ended, and the largest of these numbers.
fn split(word: u64) -> (u64, u64) {
    (word >> CALLS, word & ((1 << CALLS) - 1))
}

fn join(ranks: u64, most: u64) -> u64 {
    ranks << CALLS | most
}

/// One rank's view of it. See [`super::Team::resumption`].
#[derive(Debug)]
pub struct Resumption {
    segment: Arc<Segment>,
    rank: usize,
    size: usize,
    /// Whether we have said how many calls we have ended.
    said: AtomicBool,
    /// Whether we wait for the others no more.
    hopeless: AtomicBool,
}

impl Resumption {
    pub(super) fn new(segment: Arc<Segment>, rank: usize, size: usize) -> Self {
        Resumption {
            segment,
            rank,
            size,
            said: AtomicBool::new(false),
            hopeless: AtomicBool::new(false),
        }
    }

    /// Whether call `number` of this team, counted from 1 and alike by all ranks, goes past it: all ranks
    /// that call it get the same answer. The first time, this waits up to `patience` for ranks that have
    /// not heard of the disagreement, and has `chore` called meanwhile; if one does not come, or has
    /// ended, the call fails in the team.
    pub fn goes_past(&self, number: u64, patience: Duration, chore: impl Fn()) -> bool {
        let word = &self.segment.preamble().ended;
        if !self.said.swap(true, Ordering::AcqRel) {
            change(word, |(ranks, most)| (ranks + 1, most.max(number - 1)));
        }
        let started = Instant::now();
        loop {
            let now = word.load(Ordering::Acquire);
            let (ranks, most) = split(now);
            // From then on nobody changes it.
            if ranks >= self.size as u64 {
                return number > most;
            }
            let hopeless = self.hopeless.load(Ordering::Relaxed);
            if hopeless || started.elapsed() > patience || self.is_anybody_gone() {
                self.hopeless.store(true, Ordering::Relaxed);
                let failed = join(ranks, most.max(number));
                if word
                    .compare_exchange(now, failed, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
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

fn change(word: &AtomicU64, to: impl Fn((u64, u64)) -> (u64, u64)) {
    let mut now = word.load(Ordering::Acquire);
    loop {
        let (ranks, most) = to(split(now));
        let next = join(ranks, most);
        match word.compare_exchange(now, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(other) => now = other,
        }
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
}
