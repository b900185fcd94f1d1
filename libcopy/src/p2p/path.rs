// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which of two roads messages of one kind take where both are open: out of the sender's memory, which is
//! mapped, or through a lane. What is faster depends on the machine and on what both sides do
//! meanwhile, so the receiver, which waits for either, goes by what they took.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::sync::lock;

/// What messages have in common that are as long to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind {
    /// Who sends them.
    pub sender: usize,
    /// A hash of the sender's layout.
    pub layout: [u64; 2],
    /// Pieces of the receiver's layout.
    pub pieces: u64,
}

/// How a message gets here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through a lane, or packed.
    Streamed,
    /// Out of memory that is mapped.
    Attached,
}

impl Way {
    fn other(self) -> Way {
        match self {
            Way::Streamed => Way::Attached,
            Way::Attached => Way::Streamed,
        }
    }
}

/// Messages of either way before they are compared: the first one finds nothing in its place.
const SAMPLES: u32 = 2;
/// One in so many parts of the time may be lost by taking the slower way, to see whether it still is.
const BUDGET: u64 = 100;
/// Messages between two such looks, at least and at most.
const BETWEEN: [u64; 2] = [64, 1 << 16];
/// Kinds that are remembered.
const MOST_KINDS: usize = 256;

/// What a way takes, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    nanos: u64,
    samples: u32,
}

impl Taken {
    /// A message took so long. What is quicker than all before is believed at once, what is slower little
    /// by little, since it may have been the machine.
    fn note(&mut self, nanos: u64) {
        self.nanos = match self.samples {
            0 => nanos,
            _ if nanos < self.nanos => nanos,
            _ => self.nanos + (nanos - self.nanos).min(self.nanos) / 8,
        };
        self.samples = self.samples.saturating_add(1);
    }
}

/// What is known of a kind.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    taken: [Taken; 2],
    /// Messages since both ways have been known.
    since: u64,
    used: u64,
}

impl Times {
    fn of(&self, way: Way) -> Taken {
        self.taken[way as usize]
    }

    /// The faster way and the messages until the other is tried again; `None` as long as both are not known.
    fn settled(&self) -> Option<(Way, u64)> {
        if self.taken.iter().any(|taken| taken.samples < SAMPLES) {
            return None;
        }
        let [streamed, attached] = self.taken.map(|taken| taken.nanos.max(1));
        let way = if attached <= streamed {
            Way::Attached
        } else {
            Way::Streamed
        };
        let (best, more) = (streamed.min(attached), streamed.abs_diff(attached));
        let [least, most] = BETWEEN;
        let between = more.saturating_mul(BUDGET).div_ceil(best);
        Some((way, between.clamp(least, most).saturating_sub(self.since)))
    }

    /// Which way the next message takes if both are open.
    fn choose(&self) -> Way {
        match self.settled() {
            Some((way, 0)) => way.other(),
            Some((way, _)) => way,
            None if self.of(Way::Attached).samples < SAMPLES => Way::Attached,
            None => Way::Streamed,
        }
    }
}

/// What messages took, by their kinds.
#[derive(Debug, Default)]
pub struct Roads {
    kinds: Mutex<(HashMap<Kind, Times>, u64)>,
}

impl Roads {
    /// Which way a message takes for which both are open.
    pub fn choose(&self, kind: Kind) -> Way {
        let kinds = lock(&self.kinds);
        kinds.0.get(&kind).copied().unwrap_or_default().choose()
    }

    /// A message took so long; returns how many more of its kind will not be taken out of mapped memory
    /// even if they can be.
    pub fn note(&self, kind: Kind, way: Way, time: Duration) -> u32 {
        let mut kinds = lock(&self.kinds);
        let (kinds, clock) = &mut *kinds;
        *clock += 1;
        if kinds.len() >= MOST_KINDS && !kinds.contains_key(&kind) {
            let oldest = kinds.iter().min_by_key(|(_, times)| times.used);
            let oldest = oldest.map(|(kind, _)| *kind);
            oldest.map(|kind| kinds.remove(&kind));
        }
        let times = kinds.entry(kind).or_default();
        times.used = *clock;
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let looked = matches!(times.settled(), Some((best, _)) if best != way);
        times.taken[way as usize].note(nanos);
        times.since = if looked { 0 } else { times.since + 1 };
        match times.settled() {
            Some((Way::Streamed, left)) => u32::try_from(left).unwrap_or(u32::MAX),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind {
        sender: 1,
        layout: [2, 3],
        pieces: 4,
    };

    /// So many messages, of which each way takes so many microseconds: how many took which.
    fn run(roads: &Roads, messages: usize, [streamed, attached]: [u64; 2]) -> [usize; 2] {
        let mut count = [0; 2];
        for _ in 0..messages {
            let way = roads.choose(KIND);
            let micros = [streamed, attached][way as usize];
            roads.note(KIND, way, Duration::from_micros(micros));
            count[way as usize] += 1;
        }
        count
    }

    #[test]
    fn the_faster_way_is_taken() {
        for (times, slower) in [([28, 55], 1), ([55, 28], 0)] {
            let roads = Roads::default();
            let count = run(&roads, 5000, times);
            let lost = count[slower] as u64 * times[slower].abs_diff(times[1 - slower]);
            let all = 5000 * times[1 - slower];
            assert!(count[slower] > SAMPLES as usize, "{count:?}");
            assert!(lost <= all / 50, "{count:?}");
        }
    }

    #[test]
    fn what_changes_is_noticed() {
        let roads = Roads::default();
        run(&roads, 1000, [100, 150]);
        let [streamed, attached] = run(&roads, 1000, [400, 150]);
        assert!(attached > 900, "{streamed} {attached}");
        // The way that was slower has become the faster one: only a look can find that.
        let [streamed, attached] = run(&roads, 2000, [20, 150]);
        assert!(streamed > 1500, "{streamed} {attached}");
    }

    #[test]
    fn one_that_was_held_up_changes_nothing() {
        let roads = Roads::default();
        run(&roads, 20, [100, 150]);
        roads.note(KIND, Way::Streamed, Duration::from_millis(50));
        assert_eq!(roads.choose(KIND), Way::Streamed);
    }

    #[test]
    fn senders_hear_when_to_ask_again() {
        let roads = Roads::default();
        run(&roads, 20, [100, 300]);
        let left = roads.note(KIND, Way::Streamed, Duration::from_micros(100));
        assert!((100..=200).contains(&left), "{left}");
        for expected in (0..left).rev() {
            assert_eq!(roads.choose(KIND), Way::Streamed);
            let left = roads.note(KIND, Way::Streamed, Duration::from_micros(100));
            assert_eq!(left, expected);
        }
        assert_eq!(roads.choose(KIND), Way::Attached);
        let roads = Roads::default();
        run(&roads, 20, [300, 100]);
        assert_eq!(
            roads.note(KIND, Way::Attached, Duration::from_micros(100)),
            0
        );
    }

    #[test]
    fn few_kinds_are_remembered() {
        let roads = Roads::default();
        for sender in 0..2 * MOST_KINDS {
            let kind = Kind { sender, ..KIND };
            roads.note(kind, Way::Attached, Duration::from_micros(1));
        }
        assert_eq!(lock(&roads.kinds).0.len(), MOST_KINDS);
    }
}
