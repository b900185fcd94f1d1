// SPDX-License-Identifier: MIT OR Apache-2.0

//! A class of calls, and how the times of its trials are taken.

use super::trials::{BUDGET, Decision, Governor, Slot, Step, Times};

/// What to do with the next calls of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// As many go this way, and are counted.
    Pass(Decision, u64),
    /// One goes this way. It is part of a trial: the caller notes until when it is under way, where
    /// that matters, and where the time of the call itself is asked for, it goes into the slot.
    Sample(Decision, Option<Slot>),
}

impl Next {
    /// The way.
    pub fn decision(self) -> Decision {
        match self {
            Next::Pass(decision, _) | Next::Sample(decision, _) => decision,
        }
    }
}

/// When a call comes, as far as its class asks.
pub struct Moment<'a> {
    /// The time.
    pub now: &'a dyn Fn() -> u64,
    /// Calls of the class that are under way, as far as that is known.
    pub under_way: &'a dyn Fn() -> u64,
}

impl Moment<'_> {
    /// Where neither matters.
    pub const NONE: Moment<'static> = Moment {
        now: &|| 0,
        under_way: &|| 0,
    };
}

/// What a call finds of the sample before it.
pub enum Before {
    /// It belongs to that, and goes the same way.
    GoesOn(Decision),
    /// That is over, and has taken so long.
    Over(Option<(Slot, u64)>),
}

/// How the times of a class are taken.
pub trait Sampler {
    /// Of the sample under way, when the next call comes.
    fn end(&mut self, moment: &Moment<'_>) -> Before;

    /// The next sample begins with this call.
    fn start(&mut self, governor: &mut Governor, moment: &Moment<'_>) -> Step;

    /// Calls go by that nobody takes note of.
    fn rest(&mut self) {}

    /// Whether trials can begin.
    fn is_ready(&self) -> bool {
        true
    }

    /// Whether this call is not the one to ask whether all have done the trial.
    fn waits(&mut self) -> bool {
        false
    }
}

/// A class of calls.
#[derive(Clone, Debug)]
pub struct Class<S> {
    pub(super) governor: Governor,
    /// Of the trial under way.
    pub(super) times: Times,
    pub(super) sampler: S,
}

impl<S: Sampler> Class<S> {
    pub(super) fn with(governor: Governor, sampler: S) -> Self {
        Class {
            governor,
            times: Times::default(),
            sampler,
        }
    }

    /// What to do with the next calls, of which at most `most` are decided in advance; nothing if a
    /// trial is over, and is decided on first ([`Class::decide`]).
    pub fn next(&mut self, most: u64, moment: &Moment<'_>) -> Option<Next> {
        match self.sampler.end(moment) {
            Before::GoesOn(decision) => {
                self.governor.repeat(decision);
                return Some(Next::Sample(decision, None));
            }
            Before::Over(Some((slot, time))) => self.put(slot, time),
            Before::Over(None) => {}
        }
        let leader = self.governor.leader();
        if self.governor.is_due() || self.governor.has_rested() && !self.sampler.is_ready() {
            if !self.sampler.waits() {
                return None;
            }
            self.governor.repeat(leader);
            return Some(Next::Sample(leader, None));
        }
        Some(match self.governor.pass(most) {
            0 => {
                let step = self.sampler.start(&mut self.governor, moment);
                Next::Sample(step.decision, step.slot)
            }
            calls => {
                self.sampler.rest();
                Next::Pass(leader, calls)
            }
        })
    }

    /// The same for a class about which one process decides alone, where a look at the clock takes
    /// `clock`; `classes` have the program's time in common, and share what trials may cost.
    pub fn next_alone(
        &mut self,
        most: u64,
        moment: &Moment<'_>,
        (clock, classes): (u64, usize),
    ) -> Next {
        let next = self.next(most, moment).or_else(|| {
            let measured = 2 * self.governor.each as u64;
            let times = self.times;
            self.decide(&times, measured * clock, classes);
            self.next(most, moment)
        });
        next.unwrap_or(Next::Sample(self.governor.leader(), None))
    }

    /// Ends a trial: `times` are the sums over all that decide, and `exchange` is what it takes
    /// these to agree on them, in the same unit.
    pub fn decide(&mut self, times: &Times, exchange: u64, classes: usize) {
        self.governor.budget = BUDGET / classes.max(1) as f64;
        self.governor.decide(times, exchange);
        self.times = Times::default();
    }

    /// A call took so long.
    pub fn put(&mut self, slot: Slot, time: u64) {
        slot.put(&mut self.times, time);
    }

    /// The times of the trial.
    pub fn times(&self) -> &Times {
        &self.times
    }

    /// The governor, to read.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// Counts up to `most` calls in advance, which come while there is no trial and all go this
    /// way; returns how many.
    #[inline]
    pub fn ahead(&mut self, decision: Decision, most: u64) -> u64 {
        self.governor.ahead(decision, most)
    }
}

/// A class whose calls' own time is taken, by the caller.
pub type Timed = Class<OwnTime>;

/// The own time of each call.
#[derive(Clone, Debug)]
pub struct OwnTime;

impl Sampler for OwnTime {
    fn end(&mut self, _: &Moment<'_>) -> Before {
        Before::Over(None)
    }

    fn start(&mut self, governor: &mut Governor, _: &Moment<'_>) -> Step {
        governor.step()
    }
}

impl Timed {
    /// A class of which nothing is known but what the thresholds say.
    pub fn new(prior: Decision) -> Self {
        Class::with(Governor::new(prior), OwnTime)
    }
}
