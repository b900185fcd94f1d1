// SPDX-License-Identifier: MIT OR Apache-2.0

//! Classes about which one process decides alone, by the time of its calls.

use super::trials::{Decision, Governor, Slot, Times};

/// What to do with the next calls of a class about which one process decides alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// As many calls go this way, and are counted.
    Pass(Decision, u64),
    /// One call goes this way, and [`Alone::put`] gets its time.
    Measure(Decision, Slot),
}

/// A class about which one process decides alone, with the times of the trial under way.
#[derive(Clone, Debug)]
pub struct Alone {
    governor: Governor,
    times: Times,
}

impl Alone {
    /// A class of which nothing is known but what the thresholds say.
    pub fn new(prior: Decision) -> Self {
        Alone {
            governor: Governor::new(prior),
            times: Times::default(),
        }
    }

    /// What to do with the next calls, of which at most `most` are decided in advance. `clock` is
    /// what measuring a call takes, in the unit of the times.
    pub fn next(&mut self, most: u64, clock: u64) -> Next {
        if self.governor.is_due() {
            let measured = 2 * self.governor.each as u64;
            self.governor.decide(&self.times, measured * clock);
            self.times = Times::default();
        }
        match self.governor.pass(most) {
            0 => {
                let step = self.governor.step();
                match step.slot {
                    Some(slot) => Next::Measure(step.decision, slot),
                    None => Next::Pass(step.decision, 1),
                }
            }
            calls => Next::Pass(self.governor.leader(), calls),
        }
    }

    /// A measured call took so long.
    pub fn put(&mut self, slot: Slot, time: u64) {
        slot.put(&mut self.times, time);
    }

    /// The governor, to read.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }
}
