// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which of two paths messages of one class take where both are open: out of the sender's memory,
//! which is mapped, or through a lane. What is faster depends on the machine and on what both sides
//! do meanwhile, so the receiver, which waits for either, goes by what they took.

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

#[cfg(test)]
mod tests {
    use super::*;

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
