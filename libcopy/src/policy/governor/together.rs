// SPDX-License-Identifier: MIT OR Apache-2.0

//! Classes about which all ranks decide together.

use super::paced::{LONGEST_STRETCH, Stretch};
use super::trials::{BUDGET, Decision, Governor, MOST, Step, Times};

/// The sums of all ranks' times, without those that a rank has not measured.
pub fn sums(ranks: impl IntoIterator<Item = Times>) -> Times {
    let (mut sums, mut missing) = (Times::default(), [[false; MOST]; 2]);
    for times in ranks {
        let ways = sums.iter_mut().zip(&mut missing).zip(times);
        for ((sums, missing), times) in ways {
            for ((sum, missing), time) in sums.iter_mut().zip(missing).zip(times) {
                *missing |= time == 0;
                *sum = if *missing {
                    0
                } else {
                    sum.saturating_add(time)
                };
            }
        }
    }
    sums
}

/// What a rank says when the ranks decide about a class of nonblocking collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Times of its trial.
    pub times: Times,
    /// Calls of the class that were under way together, at most.
    pub under_way: u64,
}

/// How many times as many calls a stretch of these has as are under way together: so at most half
/// of its time was spent on calls that began before it, and went another way.
const WINDOWS: u64 = 2;

/// Calls of a class of nonblocking collectives until the ranks ask again whether all have done the
/// trial; from the fifth time in vain on twice as many each time. So a rank that starts any number
/// of operations before the others start theirs asks only some tens of times more than they have,
/// as many as are answered without waiting for them.
const LATER: u64 = 8;

/// A class of nonblocking collectives, about which all ranks decide together though none waits for
/// another.
///
/// What such a call costs is spent wherever a rank waits or tests, on all ranks. So as for messages
/// ([`super::Paced`]) it is the pace of the program that is compared: the sum over the ranks of the
/// time from one call to the next. The stretches of a trial have as many calls on all ranks, which
/// the ranks agree on: twice as many as were under way together.
#[derive(Clone, Debug)]
pub struct Together {
    governor: Governor,
    times: Times,
    stretch: Option<Stretch>,
    /// Calls of a stretch; 0: the ranks have not agreed on that yet.
    length: u64,
    under_way: u64,
    /// Calls until the ranks ask again.
    later: u64,
    /// How often they have asked in vain.
    in_vain: u32,
}

impl Together {
    /// A class of which nothing is known but what the thresholds say. All ranks have the same
    /// `seed`.
    pub fn new(prior: Decision, seed: u64) -> Self {
        Together {
            governor: Governor::paced(prior, seed),
            times: Times::default(),
            stretch: None,
            length: 0,
            under_way: 0,
            later: 0,
            in_vain: 0,
        }
    }

    /// The way of the next call, at the time `now` and while `under_way` others are; nothing if the
    /// ranks are asked first ([`Together::decide`]).
    pub fn next(
        &mut self,
        now: impl FnOnce() -> u64,
        under_way: impl FnOnce() -> u64,
    ) -> Option<Decision> {
        if self.length == 0 || self.stretch.is_some() {
            self.under_way = self.under_way.max(under_way());
        }
        if let Some(stretch) = self
            .stretch
            .as_mut()
            .filter(|stretch| stretch.messages < self.length)
        {
            stretch.messages += 1;
            self.governor.repeat(stretch.decision);
            return Some(stretch.decision);
        }
        if self.governor.pass(1) == 1 {
            return Some(self.governor.leader());
        }
        let now = now();
        if let Some(Stretch {
            started,
            messages,
            slot: Some(slot),
            ..
        }) = self.stretch.take()
        {
            slot.put(&mut self.times, now.saturating_sub(started) / messages);
        }
        if self.length == 0 || self.governor.is_due() {
            self.later = self.later.checked_sub(1)?;
            let leader = self.governor.leader();
            self.governor.repeat(leader);
            return Some(leader);
        }
        let Step { decision, slot } = self.governor.step();
        self.stretch = Some(Stretch {
            decision,
            started: now,
            messages: 1,
            slot,
        });
        Some(decision)
    }

    /// Counts up to `most` calls in advance, which come while there is no trial and are all
    /// forwarded; returns how many.
    pub fn forward_ahead(&mut self, most: u64) -> u64 {
        let is_trial = self.length == 0 || self.stretch.is_some();
        if is_trial || self.governor.leader() != Decision::Forward {
            return 0;
        }
        self.governor.pass(most)
    }

    /// What this rank says when the ranks are asked.
    pub fn account(&self) -> Account {
        Account {
            times: self.times,
            under_way: self.under_way,
        }
    }

    /// What all ranks have said, or nothing if some have not yet. `classes` share what trials may
    /// cost.
    pub fn decide(&mut self, said: Option<&[Account]>, classes: usize) {
        let Some(said) = said else {
            self.later = LATER
                << self
                    .in_vain
                    .saturating_sub(4)
                    .min(LATER.leading_zeros() - 1);
            self.in_vain += 1;
            return;
        };
        self.in_vain = 0;
        let is_first = self.length == 0;
        let under_way = said.iter().map(|rank| rank.under_way).max().unwrap_or(0);
        self.length = match under_way {
            0 => 1,
            more => (WINDOWS * (more + 1)).min(LONGEST_STRETCH),
        };
        self.governor.stretch = self.length;
        if !is_first {
            self.governor.budget = BUDGET / classes.max(1) as f64;
            let sums = sums(said.iter().map(|rank| rank.times));
            self.governor.decide(&sums, 0);
            self.times = Times::default();
        }
    }

    /// The governor, to read.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }
}
