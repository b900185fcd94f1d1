// SPDX-License-Identifier: MIT OR Apache-2.0

//! The pace of the program: the time from one call of a class to the next one.
//!
//! What a message costs is spent by two processes, in the call that sends, in that which receives,
//! and wherever either waits for the other; what a nonblocking collective costs is spent wherever a
//! rank waits or tests. A caller sees only a part of that, so it does not compare that: it compares
//! how fast the *program* goes on. That has all that every side spends as far as it holds up the
//! caller, and all that the program does otherwise, which is the same for both ways on average,
//! since their order is pseudo-random.
//!
//! Where several calls are under way together, the time between two of them says nothing. So a
//! trial is made of *stretches* of calls that go the same way, whose time is divided by their
//! number.

use super::class::{Before, Class, Moment, Sampler};
use super::trials::{Decision, Governor, MOST, Slot, Step, Times};

/// Most calls of a stretch.
const LONGEST_STRETCH: u64 = 512;

/// Calls of a class that go the same way.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    decision: Decision,
    started: u64,
    calls: u64,
    slot: Option<Slot>,
}

impl Stretch {
    fn new(step: Step, now: u64) -> Stretch {
        Stretch {
            decision: step.decision,
            started: now,
            calls: 1,
            slot: step.slot,
        }
    }

    /// What a call finds of the stretch before it, which has `length` calls.
    fn before(stretch: &mut Option<Stretch>, length: u64, moment: &Moment<'_>) -> Before {
        match stretch {
            Some(under_way) if under_way.calls < length => {
                under_way.calls += 1;
                Before::GoesOn(under_way.decision)
            }
            _ => Before::Over(stretch.take().and_then(|over| {
                let time = (moment.now)().saturating_sub(over.started) / over.calls;
                over.slot.map(|slot| (slot, time))
            })),
        }
    }
}

/// A class of messages, about which their sender decides alone.
pub type Paced = Class<Pace>;

/// Stretches that begin with a message while no other one of the class is under way, go on as long
/// as one is, and end when the next one begins. In a program in which some message is always under
/// way, they end when these are few among all.
///
/// A trial begins with a stretch that is not measured, since messages may be under way of which
/// nobody has taken note.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    stretch: Option<Stretch>,
    /// Whether all messages that are under way are taken note of.
    is_watched: bool,
}

impl Paced {
    /// A class of which nothing is known but what the thresholds say. `seed` is the same for
    /// classes that are to be tried at the same time, and another one for those that are not.
    pub fn new(prior: Decision, seed: u64) -> Self {
        Class::with(Governor::paced(prior, seed), Pace::default())
    }
}

impl Sampler for Pace {
    fn end(&mut self, moment: &Moment<'_>) -> Before {
        /// How many times as many messages a stretch has as are under way at its end.
        const STRETCHES: u64 = 8;
        let length = (STRETCHES * (moment.under_way)()).min(LONGEST_STRETCH);
        Stretch::before(&mut self.stretch, length, moment)
    }

    fn start(&mut self, governor: &mut Governor, moment: &Moment<'_>) -> Step {
        let step = if self.is_watched {
            governor.step()
        } else {
            self.is_watched = true;
            governor.lead()
        };
        self.stretch = Some(Stretch::new(step, (moment.now)()));
        step
    }

    fn rest(&mut self) {
        self.is_watched = false;
    }
}

/// The sums of all ranks' times, without those that a rank has not measured.
pub fn sums(ranks: impl IntoIterator<Item = Times>) -> Times {
    let (mut sums, mut missing) = (Times::default(), [[false; MOST]; 2]);
    for times in ranks {
        let ways = sums.iter_mut().flatten().zip(missing.iter_mut().flatten());
        for ((sum, missing), time) in ways.zip(times.iter().flatten()) {
            *missing |= *time == 0;
            *sum = if *missing {
                0
            } else {
                sum.saturating_add(*time)
            };
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

/// A class of nonblocking collectives, about which all ranks decide together though none waits for
/// another, by the sums of their times.
pub type Together = Class<SharedPace>;

/// Stretches of as many calls on all ranks, which the ranks agree on: twice as many as were under
/// way together, so at most half of their time was spent on calls that began before them, and went
/// another way.
#[derive(Clone, Debug, Default)]
pub struct SharedPace {
    stretch: Option<Stretch>,
    /// Calls of a stretch; 0: the ranks have not agreed on that yet.
    length: u64,
    under_way: u64,
    /// Calls until the ranks ask again.
    later: u64,
    /// How often they have asked in vain.
    in_vain: u32,
}

impl Sampler for SharedPace {
    fn end(&mut self, moment: &Moment<'_>) -> Before {
        if self.length == 0 || self.stretch.is_some() {
            self.under_way = self.under_way.max((moment.under_way)());
        }
        Stretch::before(&mut self.stretch, self.length, moment)
    }

    fn start(&mut self, governor: &mut Governor, moment: &Moment<'_>) -> Step {
        let step = governor.step();
        self.stretch = Some(Stretch::new(step, (moment.now)()));
        step
    }

    fn is_ready(&self) -> bool {
        self.length > 0
    }

    fn waits(&mut self) -> bool {
        let waits = self.later > 0;
        self.later = self.later.saturating_sub(1);
        waits
    }
}

impl Together {
    /// A class of which nothing is known but what the thresholds say. All ranks have the same
    /// `seed`.
    pub fn new(prior: Decision, seed: u64) -> Self {
        Class::with(Governor::paced(prior, seed), SharedPace::default())
    }

    /// What this rank says when the ranks are asked.
    pub fn account(&self) -> Account {
        Account {
            times: self.times,
            under_way: self.sampler.under_way,
        }
    }

    /// What all ranks have said, or nothing if some have not yet. `classes` share what trials may
    /// cost.
    pub fn agree(&mut self, said: Option<&[Account]>, classes: usize) {
        /// Calls until the ranks ask again; from the fifth time in vain on twice as many each
        /// time. So a rank that starts any number of operations before the others start theirs
        /// asks only some tens of times more than they have, as many as are answered without
        /// waiting for them.
        const LATER: u64 = 8;
        /// How many times as many calls a stretch has as were under way together.
        const WINDOWS: u64 = 2;
        let known = &mut self.sampler;
        let Some(said) = said else {
            let doublings = known.in_vain.saturating_sub(4);
            known.later = LATER << doublings.min(LATER.leading_zeros() - 1);
            known.in_vain += 1;
            return;
        };
        known.in_vain = 0;
        let is_first = known.length == 0;
        let under_way = said.iter().map(|rank| rank.under_way).max().unwrap_or(0);
        known.length = match under_way {
            0 => 1,
            more => (WINDOWS * (more + 1)).min(LONGEST_STRETCH),
        };
        self.governor.stretch = known.length;
        if !is_first {
            self.decide(&sums(said.iter().map(|rank| rank.times)), 0, classes);
        }
    }
}
