// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which of two ways a call of all ranks goes, where only time can tell which is faster: one rank
//! measures, and tells the others some calls ahead, as all must go the same way.
//!
//! These calls are counted. Each waits for all ranks, so that none is further than a call or two
//! behind another one: what that rank says about a call [`AHEAD`] of its own all have seen when
//! they come to that call.

use libcopy_datatype::comparison::Comparison;

use super::sync::{AtomicU64, Ordering};

/// Kinds of calls, and powers of two of their bytes, that are told apart.
pub(crate) const KINDS: usize = 14;
const SIZES: usize = 9;

/// Shorter calls have a class together, and so have those of [`SIZES`] powers of two and more.
const SHORTEST: usize = 32 << 10;

/// One of so many calls is timed once both ways are known.
const TIMED: u32 = 16;

/// By how many calls the rank that measures is ahead with what it says.
const AHEAD: u64 = 4;

/// What is said about a class of calls: a number of a call, and what becomes of it.
#[cfg_attr(not(loom), repr(transparent))]
pub(crate) struct Choice(AtomicU64);

/// Calls of a look at the other way, of which the last is timed: in the first its memory may be
/// new, or in no cache any more.
const LOOK: u64 = 2;

/// From which call on, or in which [`LOOK`] alone, the way is another one than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    number: u64,
    /// Whether it is another one in these calls alone.
    is_look: bool,
    way: usize,
}

impl Change {
    fn to_word(self) -> u64 {
        self.number << 2 | u64::from(self.is_look) << 1 | self.way as u64
    }

    fn from_word(word: u64) -> Self {
        Change {
            number: word >> 2,
            is_look: word & 2 != 0,
            way: (word & 1) as usize,
        }
    }

    fn way_of(self, number: u64) -> usize {
        let end = if self.is_look {
            self.number + LOOK
        } else {
            u64::MAX
        };
        let is_changed = (self.number..end).contains(&number);
        if is_changed { self.way } else { 1 - self.way }
    }
}

impl Choice {
    #[cfg(loom)]
    fn new() -> Self {
        Choice(AtomicU64::new(0))
    }

    /// The way of the call with this number: 0 before anything was said.
    pub(crate) fn way(&self, number: u64) -> usize {
        Change::from_word(self.0.load(Ordering::Acquire)).way_of(number)
    }
}

/// What is said about all classes.
#[cfg_attr(not(loom), repr(C))]
pub(crate) struct Choices([[Choice; SIZES]; KINDS]);

/// The class of a call: its kind, and the power of two of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class {
    kind: usize,
    size: usize,
}

impl Class {
    pub(crate) fn new(kind: usize, bytes: usize) -> Self {
        let power = (bytes / SHORTEST).max(1).ilog2() as usize;
        Class {
            kind: kind.min(KINDS - 1),
            size: power.min(SIZES - 1),
        }
    }
}

impl Choices {
    pub(crate) fn of(&self, class: Class) -> &Choice {
        &self.0[class.kind][class.size]
    }
}

/// What the rank that measures knows.
#[derive(Debug, Default)]
pub(crate) struct Leader {
    classes: [[Known; SIZES]; KINDS],
}

/// What it knows about a class.
#[derive(Debug, Default)]
struct Known {
    times: Comparison,
    /// The way, but for looks at the other one.
    way: usize,
    /// The call that was spoken about, and whether it is the last of a look.
    said: u64,
    is_look: bool,
    /// Calls until the next one that is timed.
    left: u32,
}

impl Leader {
    /// Whether the call with this number is to be timed.
    pub(crate) fn wants_time(&mut self, class: Class, number: u64) -> bool {
        self.classes[class.kind][class.size].wants_time(number)
    }

    /// The call with this number went this way, and took so long.
    pub(crate) fn note(
        &mut self,
        choices: &Choices,
        class: Class,
        (number, way): (u64, usize),
        nanos: u64,
    ) {
        let known = &mut self.classes[class.kind][class.size];
        if let Some(change) = known.note((number, way), nanos) {
            let choice = &choices.of(class).0;
            choice.store(change.to_word(), Ordering::Release);
        }
    }
}

impl Known {
    fn wants_time(&mut self, number: u64) -> bool {
        if self.is_look && (self.said + 1 - LOOK..self.said).contains(&number) {
            return false;
        }
        let is_look = self.is_look && number == self.said;
        if self.left == 0 || is_look || self.times.settled().is_none() {
            self.left = TIMED - 1;
            return true;
        }
        self.left -= 1;
        false
    }

    fn note(&mut self, (number, way): (u64, usize), nanos: u64) -> Option<Change> {
        self.times.note(way, nanos);
        if number < self.said {
            return None;
        }
        let is_look = match self.times.settled() {
            Some((best, _)) if best != self.way => false,
            Some((_, 1..)) => return None,
            Some(_) => true,
            None if self.times.choose() == self.way => return None,
            None => true,
        };
        let change = Change {
            number: number + AHEAD,
            is_look,
            way: 1 - self.way,
        };
        (self.said, self.is_look) = (change.number, is_look);
        if is_look {
            self.said += LOOK - 1;
        } else {
            self.way = change.way;
        }
        Some(change)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Calls of which each way takes the given nanoseconds: how many went which way.
    fn run(leader: &mut Leader, choices: &Choices, from: u64, nanos: [u64; 2]) -> [usize; 2] {
        let class = Class::new(1, 100 << 10);
        let mut went = [0; 2];
        for number in from..from + 20_000 {
            let way = choices.of(class).way(number);
            if leader.wants_time(class, number) {
                leader.note(choices, class, (number, way), nanos[way]);
            }
            went[way] += 1;
        }
        went
    }

    #[test]
    fn the_faster_way_is_taken_and_the_other_looked_at() {
        // SAFETY: words, for which zero is valid.
        let choices: Box<Choices> = unsafe { Box::new(std::mem::zeroed()) };
        let mut leader = Leader::default();
        let [first, second] = run(&mut leader, &choices, 1, [100, 300]);
        assert!((2..60).contains(&second), "{first} {second}");
        // The machine has changed.
        let [first, second] = run(&mut leader, &choices, 20_001, [100, 30]);
        assert!((1..5000).contains(&first), "{first} {second}");
        let [first, second] = run(&mut leader, &choices, 40_001, [100, 200]);
        assert!(first > 18_000 && second > 1, "{first} {second}");
        let other = choices.of(Class::new(1, 1 << 20)).way(60_000);
        assert_eq!(other, 0, "classes know nothing of each other");
    }

    #[test]
    fn what_is_said_holds_from_its_call_on() {
        for (is_look, expected) in [(false, [1, 1, 0, 0, 0]), (true, [1, 1, 0, 0, 1])] {
            let change = Change {
                number: 7,
                is_look,
                way: 0,
            };
            assert_eq!(Change::from_word(change.to_word()), change);
            let numbers = [1, 6, 7, 8, 9];
            assert_eq!(numbers.map(|number| change.way_of(number)), expected);
        }
    }

    #[test]
    fn classes_are_powers_of_two() {
        let class = |bytes| Class::new(2, bytes).size;
        let bytes = [0, 1, 65_535, 65_536, 1 << 20, 1 << 23, usize::MAX];
        assert_eq!(bytes.map(class), [0, 0, 0, 1, 5, 8, 8]);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Two ranks, each of which begins a call when the other one has begun the call before: both
    /// go the same way in each, whatever rank 0 has said meanwhile.
    #[test]
    fn loom_all_go_the_same_way() {
        struct Shared {
            choice: Choice,
            begun: [AtomicU64; 2],
            went: [[AtomicU64; 6]; 2],
        }
        let calls = |shared: &Shared, me: usize| {
            for number in 1..=6 {
                let way = shared.choice.way(number);
                shared.begun[me].store(number, Ordering::Release);
                let mut looks = 0;
                while shared.begun[1 - me].load(Ordering::Acquire) < number {
                    looks += 1;
                    if looks == 2 {
                        loom::skip_branch();
                    }
                    thread::yield_now();
                }
                let went = &shared.went[me][number as usize - 1];
                went.store(way as u64, Ordering::Relaxed);
                if me == 0 && number == 1 {
                    let change = Change {
                        number: number + AHEAD,
                        is_look: false,
                        way: 1,
                    };
                    shared.choice.0.store(change.to_word(), Ordering::Release);
                }
            }
        };
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let shared = Arc::new(Shared {
                choice: Choice::new(),
                begun: [AtomicU64::new(0), AtomicU64::new(0)],
                went: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(9))),
            });
            let other = shared.clone();
            let other = thread::spawn(move || calls(&other, 1));
            calls(&shared, 0);
            other.join().unwrap();
            for number in 0..6 {
                let [one, two] = [0, 1].map(|rank: usize| {
                    let went = &shared.went[rank][number];
                    went.load(Ordering::Relaxed)
                });
                assert_eq!(one, two, "call {}", number + 1);
            }
        });
    }
}
