// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which of two ways is taken where both are open, by what they took.
//!
//! Messages of one class come out of the sender's memory, which is mapped, or through a lane. What
//! is faster depends on the machine and on what both sides do meanwhile, so the receiver, which
//! waits for either, goes by what they took.
//!
//! Dense bytes are written into a lane with or without leaving them in the writer's cache. What is
//! faster depends on how far the two processors are from each other: a line that another
//! processor's cache has modified comes slower than one from memory where the two share no cache,
//! and sooner where they do.

use std::sync::Mutex;
use std::time::Duration;

use libcopy_datatype::comparison::Comparison;

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
    const ALL: [DataPath; 2] = [DataPath::Pipelined, DataPath::Mapped];
}

/// Message classes that are remembered.
const MOST_CLASSES: usize = 256;

/// What messages took, by their classes.
#[derive(Debug, Default)]
pub struct PathLearner {
    classes: Mutex<LruMap<MessageClass, Comparison>>,
}

impl PathLearner {
    /// Which path a message takes for which both are open.
    pub fn choose(&self, class: MessageClass) -> DataPath {
        let known = lock(&self.classes).get(&class).copied();
        DataPath::ALL[known.unwrap_or_default().choose()]
    }

    /// A message took so long; returns how many more of its class will not be taken out of mapped
    /// memory even if they can be.
    pub fn note(&self, class: MessageClass, path: DataPath, time: Duration) -> u32 {
        let mut classes = lock(&self.classes);
        let known = classes.get_or_insert(class, MOST_CLASSES, Comparison::default);
        known.note(
            path as usize,
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        );
        match known.settled() {
            Some((best, left)) if DataPath::ALL[best] == DataPath::Pipelined => {
                u32::try_from(left).unwrap_or(u32::MAX)
            }
            _ => 0,
        }
    }
}

/// How dense bytes are written into a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneWrite {
    /// By ordinary stores.
    Cached,
    /// Past the caches.
    Streaming,
}

impl LaneWrite {
    const ALL: [LaneWrite; 2] = [LaneWrite::Cached, LaneWrite::Streaming];
}

/// What the dense messages of this process to the others took, by their receivers and powers of two
/// of bytes.
#[derive(Debug)]
pub(super) struct LaneWrites {
    /// For each receiver, once there is a message for it.
    receivers: Vec<Option<Box<[LaneClass; LANE_CLASSES]>>>,
}

/// Bytes below which messages have a class together.
const SHORTEST: u64 = 8192;
/// Classes of a receiver's: the last one has messages of 256 KiB and more.
const LANE_CLASSES: usize = 7;
/// One of so many messages is timed once both ways are known.
const TIMED: u32 = 16;

/// Messages of one power of two of bytes to one receiver.
#[derive(Clone, Copy, Debug, Default)]
struct LaneClass {
    ways: Comparison,
    /// Messages until the next one that is timed.
    left: u32,
}

impl LaneWrites {
    /// Nothing is known yet.
    pub(super) fn new(members: usize) -> LaneWrites {
        LaneWrites {
            receivers: (0..members).map(|_| None).collect(),
        }
    }

    fn class(&mut self, to: usize, bytes: u64) -> &mut LaneClass {
        let classes = self.receivers[to].get_or_insert_default();
        let power = (bytes / SHORTEST)
            .checked_ilog2()
            .map_or(0, |power| power + 1);
        &mut classes[(power as usize).min(LANE_CLASSES - 1)]
    }

    /// How the next message is written, and whether it is to be timed.
    pub(super) fn choose(&mut self, to: usize, bytes: u64) -> (LaneWrite, bool) {
        let class = self.class(to, bytes);
        match (class.left, class.ways.settled()) {
            (1.., Some((best, _))) => {
                class.left -= 1;
                (LaneWrite::ALL[best], false)
            }
            _ => {
                class.left = TIMED - 1;
                (LaneWrite::ALL[class.ways.choose()], true)
            }
        }
    }

    /// A message that was timed took so long: to write it, and to read it.
    pub(super) fn note(&mut self, to: usize, bytes: u64, write: LaneWrite, nanos: u64) {
        self.class(to, bytes).ways.note(write as usize, nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of which each way takes the given nanoseconds: how many went which way, and how
    /// many were timed.
    fn write(writes: &mut LaneWrites, bytes: u64, nanos: [u64; 2]) -> ([u32; 2], u32) {
        let (mut went, mut timed) = ([0; 2], 0);
        for _ in 0..10_000 {
            let (write, is_timed) = writes.choose(1, bytes);
            went[write as usize] += 1;
            if is_timed {
                timed += 1;
                writes.note(1, bytes, write, nanos[write as usize]);
            }
        }
        (went, timed)
    }

    #[test]
    fn lanes_are_written_in_the_way_that_is_faster_for_messages_of_that_length() {
        let mut writes = LaneWrites::new(2);
        for (bytes, nanos, slower) in [
            (4096, [400, 900], 1),
            (16 << 10, [2000, 2200], 1),
            (64 << 10, [8600, 5700], 0),
            (200 << 10, [60_000, 90_000], 1),
            (u64::MAX, [3, 2], 0),
        ] {
            let (went, timed) = write(&mut writes, bytes, nanos);
            assert!((2..100).contains(&went[slower]), "{bytes}: {went:?}");
            assert!((10_000 / TIMED..1000).contains(&timed), "{bytes}: {timed}");
        }
        // What shares a class goes the same way at once; the processes have moved apart.
        assert_eq!(writes.choose(1, 7000).0, LaneWrite::Cached);
        let (went, _) = write(&mut writes, 7000, [1900, 1100]);
        assert!(went[1] > 8000, "{went:?}");
    }

    const CLASS: MessageClass = MessageClass {
        sender: 1,
        layout: [2, 3],
        pieces: 4,
    };

    /// Some messages, of which each path takes the given microseconds.
    fn run(paths: &PathLearner, [pipelined, mapped]: [u64; 2]) {
        for _ in 0..20 {
            let path = paths.choose(CLASS);
            let micros = [pipelined, mapped][path as usize];
            paths.note(CLASS, path, Duration::from_micros(micros));
        }
    }

    #[test]
    fn senders_hear_when_to_ask_again() {
        let paths = PathLearner::default();
        run(&paths, [100, 300]);
        let left = paths.note(CLASS, DataPath::Pipelined, Duration::from_micros(100));
        assert!((100..=200).contains(&left), "{left}");
        for expected in (0..left).rev() {
            assert_eq!(paths.choose(CLASS), DataPath::Pipelined);
            let left = paths.note(CLASS, DataPath::Pipelined, Duration::from_micros(100));
            assert_eq!(left, expected);
        }
        assert_eq!(paths.choose(CLASS), DataPath::Mapped);
        let paths = PathLearner::default();
        run(&paths, [300, 100]);
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
