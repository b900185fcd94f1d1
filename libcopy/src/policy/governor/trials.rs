// SPDX-License-Identifier: MIT OR Apache-2.0

//! The trials of one class, and what follows from them.

use super::estimate::{Cost, Estimate};

/// One of the two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// This library does it.
    Intercept,
    /// The MPI library does it.
    Forward,
}

impl Decision {
    /// Both, in the order of sums.
    pub const BOTH: [Decision; 2] = [Decision::Intercept, Decision::Forward];

    fn other(self) -> Self {
        match self {
            Decision::Intercept => Decision::Forward,
            Decision::Forward => Decision::Intercept,
        }
    }
}

/// Calls before the first trial.
pub const FIRST: u64 = 32;

/// Most calls of each way in a trial.
pub const MOST: usize = 16;

/// Part of the calls' time that trials may cost.
pub(super) const BUDGET: f64 = 0.01;

/// A way that costs at most this part more is as good.
const ALIKE: f64 = 0.005;

/// Standard errors by which the ways have to differ before trials become rare.
const SURE: f64 = 3.0;

/// Standard errors between earlier trials and one with the opposite result, from which on it is
/// repeated at once.
const SUSPICIOUS: f64 = 2.0;

/// Most calls between the first trial and the second: the only call of the other way that the first
/// one has may find connections to be made and memory never touched, or have been interrupted.
const SECOND: u64 = 128;

/// Trials of messages after which the next one comes soon as well, each time four times later: the
/// time from message to message varies more than that of a call.
const EARLY: u64 = 3;

/// How much more these may cost if they have stretches of several calls.
const EARLY_BUDGET: f64 = 4.0;

/// A difference in the mean time from message to message counts half if it is this many of its
/// standard errors, and less if it is fewer.
const UNSURE: f64 = 2.0;

/// Most calls between two trials, unless the budget asks for more.
const LONGEST_REST: u64 = 4096;

/// Greatest weight of an estimate, in calls.
const HEAVIEST: f64 = 1024.0;

/// Times of one trial: of each way, by the order of calls. Zero: not measured.
pub type Times = [[u64; MOST]; 2];

/// What to do with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The way to take.
    pub decision: Decision,
    /// Where its time goes, if it is to be measured.
    pub slot: Option<Slot>,
}

/// A place among [`Times`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    way: usize,
    index: usize,
}

impl Slot {
    /// Puts a time there.
    pub fn put(self, times: &mut Times, time: u64) {
        times[self.way][self.index] = time.max(1);
    }
}

/// Decides about the calls of one class.
#[derive(Clone, Debug)]
pub struct Governor {
    leader: Decision,
    known: [Estimate; 2],
    /// The first times of each way, from which the estimates follow while they are few: so one call
    /// that was interrupted does not stay in them.
    first: Option<[Vec<u64>; 2]>,
    /// Calls until the next trial.
    rest: u64,
    /// How long the last rest was.
    rested: u64,
    /// Calls of each way in the trial that comes next or is under way.
    pub(super) each: usize,
    /// Of them, those that have begun.
    begun: [usize; 2],
    /// Calls of the leader, and trials of the other way, since the leader became one.
    led: f64,
    tried: f64,
    /// The last trial had the opposite result of the earlier ones; the next one decides.
    doubt: bool,
    /// Orders trials.
    random: u64,
    calls: [u64; 2],
    trials: u64,
    /// Part of the calls' time that trials may cost.
    pub(super) budget: f64,
    /// Whether the times are those of stretches ([`super::pace`]), which have in them what else the
    /// program does.
    is_paced: bool,
    /// Calls of a stretch, where the ranks have agreed on that ([`super::Together`]).
    pub(super) stretch: u64,
}

impl Governor {
    /// One whose times are those of stretches. `seed` is the same for classes that are to be tried
    /// at the same time, and another one for those that are not.
    pub(super) fn paced(prior: Decision, seed: u64) -> Self {
        let mut governor = Governor::new(prior);
        governor.random ^= seed;
        governor.is_paced = true;
        governor.rest += seed % FIRST;
        governor
    }

    /// A class of which nothing is known but what the thresholds say.
    pub fn new(prior: Decision) -> Self {
        Governor {
            budget: BUDGET,
            is_paced: false,
            stretch: 1,
            leader: prior,
            known: [Estimate::default(); 2],
            first: Some([Vec::new(), Vec::new()]),
            rest: FIRST,
            rested: FIRST,
            each: 1,
            begun: [0; 2],
            led: 0.0,
            tried: 0.0,
            doubt: false,
            random: 0x9e37_79b9_7f4a_7c15,
            calls: [0; 2],
            trials: 0,
        }
    }

    /// Whether a trial is over, and the ranks have to decide before the next call.
    pub fn is_due(&self) -> bool {
        self.rest == 0 && self.begun == [self.each; 2]
    }

    /// Whether the first rest is over: a trial comes next, or is under way.
    pub fn has_rested(&self) -> bool {
        self.rest == 0
    }

    /// [`Governor::pass`] where the calls go this way, and none elsewhere.
    #[inline]
    pub(super) fn ahead(&mut self, decision: Decision, most: u64) -> u64 {
        if self.leader == decision {
            self.pass(most)
        } else {
            0
        }
    }

    /// Counts up to `most` calls in advance, which come while there is no trial and go the way of
    /// [`Governor::leader`]; returns how many.
    #[inline]
    pub fn pass(&mut self, most: u64) -> u64 {
        let passed = self.rest.min(most);
        self.rest -= passed;
        self.led += passed as f64;
        self.calls[self.leader as usize] += passed;
        passed
    }

    /// Counts a call that goes the way of the last one whatever is next.
    pub(super) fn repeat(&mut self, decision: Decision) {
        self.calls[decision as usize] += 1;
        if decision == self.leader {
            self.led += 1.0;
        } else {
            self.tried += 1.0;
        }
    }

    /// Counts a call of a trial that is not measured.
    pub(super) fn lead(&mut self) -> Step {
        self.repeat(self.leader);
        Step {
            decision: self.leader,
            slot: None,
        }
    }

    /// What to do with the next call. Not when [`Governor::is_due`].
    pub fn step(&mut self) -> Step {
        if self.pass(1) == 1 {
            let decision = self.leader;
            return Step {
                decision,
                slot: None,
            };
        }
        let left = self.begun.map(|begun| self.each.saturating_sub(begun));
        // Xorshift (Marsaglia 2003): any order that the program's own does not follow will do.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let all = (left[0] + left[1]).max(1) as u64;
        let way = usize::from((self.random >> 32) % all >= left[0] as u64);
        let index = self.begun[way].min(MOST - 1);
        self.begun[way] += 1;
        self.repeat(Decision::BOTH[way]);
        Step {
            decision: Decision::BOTH[way],
            slot: Some(Slot { way, index }),
        }
    }

    /// Ends a trial: `times` are sums over all ranks, `exchange` is what all ranks' agreeing on
    /// them takes, in the same unit.
    pub fn decide(&mut self, times: &Times, exchange: u64) {
        self.begun = [0; 2];
        self.trials += 1;
        let found = [Estimate::of(&times[0]), Estimate::of(&times[1])];
        let [Some(first), Some(second)] = found else {
            // Nothing was measured: calls failed.
            self.rest = LONGEST_REST;
            return;
        };
        let found = [first, second];
        let contrary = self.is_contrary(&found);
        if contrary && self.doubt {
            // Twice in a row: what was known before is no longer true.
            (self.known, self.first) = (found, None);
        } else if !self.add_to_first(times) {
            let most = self.heaviest();
            for (known, found) in self.known.iter_mut().zip(&found) {
                known.add(found, most);
            }
        }
        self.doubt = contrary && !self.doubt;
        self.follow();
        self.plan(exchange as f64);
    }

    /// Estimates from all times so far, as long as they are few.
    fn add_to_first(&mut self, times: &Times) -> bool {
        let Some(first) = &mut self.first else {
            return false;
        };
        for ((first, times), known) in first.iter_mut().zip(times).zip(&mut self.known) {
            first.extend(times.iter().filter(|time| **time > 0));
            *known = Estimate::of(first).unwrap_or_default();
        }
        if first.iter().all(|first| first.len() >= MOST / 2) {
            self.first = None;
        }
        true
    }

    fn mean(&self, way: Decision) -> f64 {
        self.known[way as usize].mean
    }

    /// By how much the other way costs more, as a part of what the leader costs.
    fn gap(&self) -> f64 {
        self.mean(self.leader.other()) / self.mean(self.leader) - 1.0
    }

    /// Whether a trial has the opposite result of the earlier ones, by more than chance explains.
    fn is_contrary(&self, found: &[Estimate; 2]) -> bool {
        if self.known[0].weight < 4.0 {
            return false;
        }
        let known = (self.known[1].mean / self.known[0].mean).ln();
        let new = (found[1].mean / found[0].mean).ln();
        let error = (found[0].variance() + found[1].variance()).sqrt();
        (known > 0.0) != (new > 0.0)
            && (known - new).abs() > if self.doubt { SURE } else { SUSPICIOUS } * error
    }

    /// The weight that earlier trials may have: three times what telling the ways apart needs.
    fn heaviest(&self) -> f64 {
        if self.known[0].weight == 0.0 {
            return HEAVIEST;
        }
        let gap = self.gap().abs().max(1e-3);
        let spread = self.known[0].spread.max(self.known[1].spread);
        (6.0 * (SURE * spread / gap).powi(2)).clamp(MOST as f64, HEAVIEST)
    }

    /// Follows the way that costs less.
    fn follow(&mut self) {
        let weight = self.known[0].weight;
        let error = (self.known[0].variance() + self.known[1].variance()).sqrt();
        let doubtful = if weight < MOST as f64 { error } else { 0.0 };
        if weight >= 3.0 && self.gap() < -doubtful.max(0.005) {
            self.leader = self.leader.other();
            (self.led, self.tried) = (0.0, 0.0);
            self.rested = FIRST;
        }
    }

    /// Says when the next trial comes, and how long it is.
    fn plan(&mut self, exchange: f64) {
        let weight = self.known[0].weight.min(self.known[1].weight);
        let gap = self.gap().max(0.0);
        let error = (self.known[0].variance() + self.known[1].variance()).sqrt();
        let settled = gap + ALIKE > SURE * error * (1.0 + gap) || weight >= HEAVIEST;
        self.each = match weight {
            _ if self.doubt => MOST / 2,
            ..8.0 if gap > 1.0 => 1,
            ..8.0 => (2 * self.each).clamp(2, 4),
            _ => ((0.5 / gap.max(1e-3)).ceil() as usize).clamp(2, MOST),
        };
        if self.doubt {
            self.rest = 0;
            return;
        }
        let agreeing = exchange / self.mean(self.leader).max(1.0);
        let mut cost = (self.tried + self.each as f64 * self.stretch as f64) * gap;
        if self.is_paced {
            // Much of a gap that is not many times its error is the program's.
            let square = (gap / (1.0 + gap)).powi(2);
            cost *= square / (square + (UNSURE * error).powi(2)).max(f64::MIN_POSITIVE);
        }
        cost += agreeing;
        self.rest = (cost / self.budget - self.led).max(agreeing / self.budget) as u64;
        let early = if self.is_paced { EARLY } else { 1 };
        if (1..=early).contains(&self.trials) {
            let mut most = SECOND << (2 * (self.trials - 1));
            if self.stretch > 1 {
                most = most.max((cost / (EARLY_BUDGET * self.budget)) as u64);
            }
            self.rest = self.rest.min(most);
        }
        if settled {
            let longer = (2 * self.rested).min(LONGEST_REST).min(self.led as u64 / 4);
            self.rest = self.rest.max(longer);
        }
        self.rested = self.rest;
        // Calls of long ago count less and less.
        if self.led > 4.0 * LONGEST_REST as f64 {
            self.led /= 2.0;
            self.tried /= 2.0;
        }
    }

    /// The way that calls take between trials.
    pub fn leader(&self) -> Decision {
        self.leader
    }

    /// Calls that were intercepted, and that were forwarded.
    pub fn calls(&self) -> [u64; 2] {
        self.calls
    }

    /// Trials that were decided on.
    pub fn trials(&self) -> u64 {
        self.trials
    }

    /// What a call takes intercepted and forwarded, once it was tried.
    pub fn costs(&self) -> Option<[Cost; 2]> {
        (self.known[0].weight > 0.0).then(|| self.known.map(|known| known.cost()))
    }
}
