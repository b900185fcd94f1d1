// SPDX-License-Identifier: MIT OR Apache-2.0

//! Classes of messages, about which their sender decides alone, by the pace of the program.

use super::trials::{BUDGET, Decision, Governor, Slot, Times};

/// What to do with the next messages of a class that one process sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextMessages {
    /// As many go this way, and are counted.
    Pass(Decision, u64),
    /// One goes this way, and the caller notes until when it is under way.
    Watch(Decision),
}

/// How many times as many messages a stretch has to have as are under way at its end, for programs
/// in which some always are.
const STRETCHES: u64 = 8;
/// Most messages of a stretch.
pub(super) const LONGEST_STRETCH: u64 = 512;

/// Messages that are sent while none of their class was complete, or one that was sent alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) decision: Decision,
    pub(super) started: u64,
    pub(super) messages: u64,
    pub(super) slot: Option<Slot>,
}

/// A class of messages about which their sender decides alone, by the time from message to message.
///
/// What a message costs is spent by two processes, in the call that sends, in that which receives,
/// and wherever either waits for the other. The sender sees only the first of these, so it does not
/// compare that: it compares how fast the *program* goes on, by the time from one message of the
/// class to the next. That has all that both sides spend as far as it holds up the sender, and all
/// that the program does otherwise, which is the same for both ways on average, since their order
/// is pseudo-random.
///
/// Where several messages are under way together, the time between two of them says nothing. So a
/// trial is made of *stretches*: a stretch begins with a message while no other one of the class is
/// under way, goes on as long as one is, and ends when the next one begins. All its messages go the
/// same way. Its time is divided by their number. In a program in which some message is always
/// under way, it ends when these are few among all.
///
/// A trial begins with a stretch that is not measured, since messages may be under way of which
/// nobody has taken note.
#[derive(Clone, Debug)]
pub struct Paced {
    governor: Governor,
    times: Times,
    stretch: Option<Stretch>,
    /// Whether all messages that are under way are taken note of.
    is_watched: bool,
}

impl Paced {
    /// A class of which nothing is known but what the thresholds say. `seed` is the same for
    /// classes that are to be tried at the same time, and another one for those that are not.
    pub fn new(prior: Decision, seed: u64) -> Self {
        Paced {
            governor: Governor::paced(prior, seed),
            times: Times::default(),
            stretch: None,
            is_watched: false,
        }
    }

    /// What to do with the next messages, of which at most `most` are decided in advance. `now` is
    /// the time, of which a look at the clock takes `clock`. `under_way` are the messages of the
    /// class that are, as far as that is known. `classes` have the program's time in common, and
    /// share what trials may cost.
    pub fn next(
        &mut self,
        most: u64,
        (now, clock): (u64, u64),
        under_way: u64,
        classes: usize,
    ) -> NextMessages {
        if let Some(stretch) = &mut self.stretch {
            if stretch.messages < (STRETCHES * under_way).min(LONGEST_STRETCH) {
                stretch.messages += 1;
                self.governor.repeat(stretch.decision);
                return NextMessages::Watch(stretch.decision);
            }
            if let Some(slot) = stretch.slot {
                let time = now.saturating_sub(stretch.started) / stretch.messages;
                slot.put(&mut self.times, time);
            }
            self.stretch = None;
        }
        if self.governor.is_due() {
            self.governor.budget = BUDGET / classes.max(1) as f64;
            let measured = 2 * self.governor.each as u64;
            self.governor.decide(&self.times, measured * clock);
            self.times = Times::default();
        }
        let passed = self.governor.pass(most);
        if passed > 0 {
            self.is_watched = false;
            return NextMessages::Pass(self.governor.leader(), passed);
        }
        let (decision, slot) = if self.is_watched {
            let step = self.governor.step();
            (step.decision, step.slot)
        } else {
            self.is_watched = true;
            let leader = self.governor.leader();
            self.governor.repeat(leader);
            (leader, None)
        };
        self.stretch = Some(Stretch {
            decision,
            started: now,
            messages: 1,
            slot,
        });
        NextMessages::Watch(decision)
    }

    /// The governor, to read.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }
}
