// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which of two paths messages of one class take where both are open: out of the sender's memory, which is
//! mapped, or through a lane. What is faster depends on the machine and on what both sides do
//! meanwhile, so the receiver, which waits for either, goes by what they took.

use std::sync::Mutex;
use std::time::Duration;

use crate::lock::lock;
use crate::lru::LruMap;

/// What messages have in common that are as long to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageClass {
    /// Who sends them.
    pub sender: usize,
    /// A hash of the sender's layout.
    pub layout: [u64; 2],
    /// Pieces of the receiver's layout.
    pub pieces: u64,
}

/// How a message gets here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPath {
    /// Through a lane, or packed.
    Pipelined,
    /// Out of memory that is mapped.
    Mapped,
}

impl DataPath {
    fn other(self) -> DataPath {
        match self {
            DataPath::Pipelined => DataPath::Mapped,
            DataPath::Mapped => DataPath::Pipelined,
        }
    }
}

/// Messages of either way before they are compared: the first one finds nothing in its place.
const SAMPLES: u32 = 2;
/// One in so many parts of the time may be lost by taking the slower way, to see whether it still is.
const BUDGET: u64 = 100;
/// Messages between two such looks, at least and at most.
const BETWEEN: [u64; 2] = [64, 1 << 16];
/// Message classes that are remembered.
const MOST_CLASSES: usize = 256;

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

/// What is known of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    taken: [Taken; 2],
    /// Messages since both ways have been known.
    since: u64,
}

impl Times {
    fn of(&self, way: DataPath) -> Taken {
        self.taken[way as usize]
    }

    /// The faster way and the messages until the other is tried again; `None` as long as both are not known.
    fn settled(&self) -> Option<(DataPath, u64)> {
        if self.taken.iter().any(|taken| taken.samples < SAMPLES) {
            return None;
        }
        let [streamed, attached] = self.taken.map(|taken| taken.nanos.max(1));
        let way = if attached <= streamed {
            DataPath::Mapped
        } else {
            DataPath::Pipelined
        };
        let (best, more) = (streamed.min(attached), streamed.abs_diff(attached));
        let [least, most] = BETWEEN;
        let between = more.saturating_mul(BUDGET).div_ceil(best);
        Some((way, between.clamp(least, most).saturating_sub(self.since)))
    }

    /// Which way the next message takes if both are open.
    fn choose(&self) -> DataPath {
        match self.settled() {
            Some((way, 0)) => way.other(),
            Some((way, _)) => way,
            None if self.of(DataPath::Mapped).samples < SAMPLES => DataPath::Mapped,
            None => DataPath::Pipelined,
        }
    }
}

/// What messages took, by their classes.
#[derive(Debug, Default)]
pub struct PathLearner {
    classes: Mutex<LruMap<MessageClass, Times>>,
}

impl PathLearner {
    /// Which way a message takes for which both are open.
    pub fn choose(&self, class: MessageClass) -> DataPath {
        let mut classes = lock(&self.classes);
        let times = classes.get(&class).copied();
        times.unwrap_or_default().choose()
    }

    /// A message took so long; returns how many more of its class will not be taken out of mapped memory
    /// even if they can be.
    pub fn note(&self, class: MessageClass, way: DataPath, time: Duration) -> u32 {
        let mut classes = lock(&self.classes);
        let times = classes.get_or_insert(class, MOST_CLASSES, Times::default);
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let looked = matches!(times.settled(), Some((best, _)) if best != way);
        times.taken[way as usize].note(nanos);
        times.since = if looked { 0 } else { times.since + 1 };
        match times.settled() {
            Some((DataPath::Pipelined, left)) => u32::try_from(left).unwrap_or(u32::MAX),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: MessageClass = MessageClass {
        sender: 1,
        layout: [2, 3],
        pieces: 4,
    };

    /// So many messages, of which each way takes so many microseconds: how many took which.
    fn run(paths: &PathLearner, messages: usize, [streamed, attached]: [u64; 2]) -> [usize; 2] {
        let mut count = [0; 2];
        for _ in 0..messages {
            let way = paths.choose(CLASS);
            let micros = [streamed, attached][way as usize];
            paths.note(CLASS, way, Duration::from_micros(micros));
            count[way as usize] += 1;
        }
        count
    }

    #[test]
    fn the_faster_way_is_taken() {
        for (times, slower) in [([28, 55], 1), ([55, 28], 0)] {
            let paths = PathLearner::default();
            let count = run(&paths, 5000, times);
            let lost = count[slower] as u64 * times[slower].abs_diff(times[1 - slower]);
            let all = 5000 * times[1 - slower];
            assert!(count[slower] > SAMPLES as usize, "{count:?}");
            assert!(lost <= all / 50, "{count:?}");
        }
    }

    #[test]
    fn what_changes_is_noticed() {
        let paths = PathLearner::default();
        run(&paths, 1000, [100, 150]);
        let [streamed, attached] = run(&paths, 1000, [400, 150]);
        assert!(attached > 900, "{streamed} {attached}");
        // The way that was slower has become the faster one: only a look can find that.
        let [streamed, attached] = run(&paths, 2000, [20, 150]);
        assert!(streamed > 1500, "{streamed} {attached}");
    }

    #[test]
    fn one_that_was_held_up_changes_nothing() {
        let paths = PathLearner::default();
        run(&paths, 20, [100, 150]);
        paths.note(CLASS, DataPath::Pipelined, Duration::from_millis(50));
        assert_eq!(paths.choose(CLASS), DataPath::Pipelined);
    }

    #[test]
    fn senders_hear_when_to_ask_again() {
        let paths = PathLearner::default();
        run(&paths, 20, [100, 300]);
        let left = paths.note(CLASS, DataPath::Pipelined, Duration::from_micros(100));
        assert!((100..=200).contains(&left), "{left}");
        for expected in (0..left).rev() {
            assert_eq!(paths.choose(CLASS), DataPath::Pipelined);
            let left = paths.note(CLASS, DataPath::Pipelined, Duration::from_micros(100));
            assert_eq!(left, expected);
        }
        assert_eq!(paths.choose(CLASS), DataPath::Mapped);
        let paths = PathLearner::default();
        run(&paths, 20, [300, 100]);
        assert_eq!(
            paths.note(CLASS, DataPath::Mapped, Duration::from_micros(100)),
            0
        );
    }

    #[test]
    fn few_classes_are_remembered() {
        let paths = PathLearner::default();
        for sender in 0..2 * MOST_CLASSES {
            let class = MessageClass { sender, ..CLASS };
            paths.note(class, DataPath::Mapped, Duration::from_micros(1));
        }
        assert_eq!(lock(&paths.classes).len(), MOST_CLASSES);
    }
}
