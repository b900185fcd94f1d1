// SPDX-License-Identifier: MIT OR Apache-2.0

//! `MPI_Pack` and `MPI_Unpack` under the governor ([`libcopy::policy::governor`]). A class is a
//! number of elements of a datatype, packed or unpacked; no other rank takes part in it, so each
//! process decides alone.
//!
//! Only what the thresholds intercept has a class. Between trials a call costs one comparison more:
//! a thread takes up to [`AHEAD`] calls from the governor at once.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use libcopy::lock::lock;
use libcopy::policy::governor::{Decision, Moment, Next, Slot, Timed};

use crate::decide::classes::{Decided, clock};
use crate::decide::{classes, environment};
use crate::library::buffers::Side;
use crate::library::stats::{self, Function};
use crate::types::datatype::Prepared;

/// Calls that a thread decides about in advance.
const AHEAD: u64 = 64;

/// What a thread knows of a class.
#[derive(Debug)]
pub struct Governed {
    prepared: Arc<Prepared>,
    side: Side,
    /// Calls before the governor is asked again.
    decided: Decided,
}

impl Governed {
    /// Nothing is known yet.
    pub fn new(prepared: Arc<Prepared>, side: Side) -> Self {
        let decided = Decided::default();
        // Tests that intercept everything leave nothing to decide.
        if environment::least().is_some() || !environment::is_governed() {
            decided.set(Decision::Intercept, Decided::ALL);
        }
        Governed {
            prepared,
            side,
            decided,
        }
    }

    /// The layout.
    #[inline]
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// The way of the next call, and where its time goes if it belongs to a trial.
    #[inline]
    pub fn next(&self) -> (Decision, Option<Trial>) {
        match self.decided.take() {
            Some(decision) => (decision, None),
            None => self.ask(),
        }
    }

    #[cold]
    fn ask(&self) -> (Decision, Option<Trial>) {
        let class = self.prepared.governors[self.side as usize]
            .get_or_init(|| Box::new(Mutex::new(Timed::new(Decision::Intercept))));
        let mut class = lock(class);
        let before = stats::are_wanted().then(|| class.governor().clone());
        let next = class.next_alone(AHEAD, &Moment::NONE, (clock(), 1));
        if let Some(before) = before {
            let function = match self.side {
                Side::Packs => Function::Pack,
                Side::Unpacks => Function::Unpack,
            };
            let bytes = self.prepared.layout.size();
            classes::add_alone(function, bytes, &before, class.governor());
        }
        let slot = match next {
            Next::Pass(leader, calls) => {
                self.decided.set(leader, calls - 1);
                None
            }
            Next::Sample(_, slot) => slot,
        };
        let trial = |slot| Trial {
            prepared: self.prepared.clone(),
            side: self.side,
            slot,
        };
        (next.decision(), slot.map(trial))
    }
}

/// A call that is measured.
#[derive(Debug)]
pub struct Trial {
    prepared: Arc<Prepared>,
    side: Side,
    slot: Slot,
}

impl Trial {
    /// Does the call, and keeps its time if it succeeds.
    #[cold]
    pub fn measure<R>(self, call: impl FnOnce() -> (R, bool)) -> R {
        let started = Instant::now();
        let (result, succeeds) = call();
        if succeeds {
            self.keep(started.elapsed().as_nanos() as u64);
        }
        result
    }

    fn keep(self, time: u64) {
        if let Some(class) = self.prepared.governors[self.side as usize].get() {
            lock(class).put(self.slot, time);
        }
    }
}

#[cfg(test)]
mod tests {
    use libcopy::datatype::{Datatype, Named};

    use super::*;
    use crate::types::datatype;

    #[test]
    fn calls_go_the_way_that_takes_less() {
        for (side, better) in [
            (Side::Packs, Decision::Forward),
            (Side::Unpacks, Decision::Intercept),
        ] {
            let datatype = Datatype::named(Named::Byte)
                .vector(40, 1, 3)
                .expect("a vector");
            let prepared = datatype::layout(&datatype, 1).expect("a layout");
            // As two threads that pack the same elements.
            let governed = [(); 2].map(|()| Governed::new(prepared.clone(), side));
            let (mut ways, mut measured) = ([0; 2], 0);
            for call in 0..2000 {
                let (decision, trial) = governed[call % 2].next();
                ways[decision as usize] += 1;
                if let Some(trial) = trial {
                    measured += 1;
                    // So long that reading the clock takes nothing of it on any machine.
                    trial.keep(if decision == better { 1 } else { 5 } << 40);
                }
            }
            assert!(ways[better as usize] > 1800, "{side:?}: {ways:?}");
            assert!((4..100).contains(&measured), "{side:?}: {measured}");
        }
    }
}
