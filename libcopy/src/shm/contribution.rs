// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a rank contributes to a short collective that all ranks do in one step: each publishes its
//! bytes and reads those of the others, without a tree and without an answer.
//!
//! A rank has two places, which it uses in turn; their calls are counted. It may write to a place
//! again when those who were to read it have begun the call behind it: they were done with it
//! before. A rank that reads all others in each call knows that of them. One that reads nobody, as
//! the root of a broadcast does, comes as many calls ahead of its readers as it has places.

use std::sync::Arc;

use super::sync::{AtomicU64, Ordering, fence};
use crate::plan::{MOST_OF_DESCENT, MOST_OF_STEP};

/// Bytes that a rank contributes, at most; [`MOST_OF_STEP`] if that is one of several steps.
pub(crate) const MOST: usize = MOST_OF_DESCENT;

/// Places of a rank: for calls that take one step, and for each of several steps. With four, calls
/// of some hundred bytes took as long, and broadcasts of 8 KiB up to twice as long, as what is
/// written to is then no longer in the nearest cache.
pub(crate) const PLACES: usize = 2;

/// A place for calls that take one step, and for one of several steps.
pub(crate) type Whole = Contribution<{ MOST / 8 }>;
pub(crate) type OfStep = Contribution<{ MOST_OF_STEP / 8 }>;

/// Bytes of a chunk of a longer call: with two places of each rank they stay in its second-level
/// cache, and what ranks wait for each other is little beside copying them.
pub(crate) const CHUNK: usize = 32 << 10;

/// A place for a chunk, whose bytes are elsewhere.
pub(crate) type OfChunk = Contribution<0>;

/// In a place's number: the call that it had is no longer there, and the next one not yet.
const WRITING: u64 = 1 << 63;

/// One of a rank's places. A few bytes are on the line that says that they are there.
#[cfg_attr(not(loom), repr(C, align(128)))]
pub(crate) struct Contribution<const WORDS: usize> {
    /// Number of the call, from 1 on; written last. With [`WRITING`] while the next one is written.
    number: AtomicU64,
    call: [AtomicU64; 2],
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Contribution<WORDS> {
    #[cfg(loom)]
    fn new() -> Self {
        Contribution {
            number: AtomicU64::new(0),
            call: Default::default(),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// The bytes: their owner writes them before it publishes them.
    pub(crate) fn bytes(&self) -> *mut u8 {
        self.words.as_ptr().cast_mut().cast()
    }

    /// Publishes the bytes for the call with this number.
    pub(crate) fn publish(&self, number: u64, call: [u64; 2]) {
        self.show(call);
        self.is_there(number);
    }

    /// Shows the next call, instead of the one before.
    fn show(&self, call: [u64; 2]) {
        // Who reads no bytes of ours may look at our call at any time, to compare it with its own.
        let before = self.number.load(Ordering::Relaxed);
        self.number.store(before | WRITING, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in self.call.iter().zip(call) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// What was written for the call with this number is there.
    fn is_there(&self, number: u64) {
        self.number.store(number, Ordering::Release);
    }

    /// Whether its owner has come to the call with this number, or further. What it published for
    /// it is seen then.
    #[inline]
    pub(crate) fn has(&self, number: u64) -> bool {
        self.number.load(Ordering::Acquire) & !WRITING >= number
    }

    /// The call with this number, if its owner is not further, nor about to be.
    #[inline]
    pub(crate) fn call(&self, number: u64) -> Option<[u64; 2]> {
        let words = self.call.each_ref();
        let words = words.map(|word| word.load(Ordering::Relaxed));
        // Words of the next call come behind the mark.
        fence(Ordering::Acquire);
        (self.number.load(Ordering::Relaxed) == number).then_some(words)
    }
}

/// Who reads what a rank has published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Readers {
    /// All ranks.
    #[default]
    All,
    /// One of them; nobody if that is the rank itself.
    One(usize),
    /// Several of them.
    These(Arc<[usize]>),
}

/// What a rank published in a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Published {
    /// Its own call.
    pub(crate) call: [u64; 2],
    pub(crate) readers: Readers,
}

/// For whom a rank waits before it publishes something: they must have come to the call with this
/// number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    pub(crate) readers: Readers,
    pub(crate) number: u64,
    /// What we have called there.
    pub(crate) call: [u64; 2],
}

/// What a rank knows of its calls of one step, and of the others'.
#[derive(Debug, Default)]
pub(crate) struct Contributions {
    /// Calls so far.
    number: u64,
    /// All ranks are known to have begun the call with this number.
    begun: u64,
    /// The last ones.
    published: [Published; PLACES],
}

impl Contributions {
    /// The number of the next call, and for whom to wait before something is published in it.
    pub(crate) fn next(&self) -> (u64, Option<Unread>) {
        let number = self.number + 1;
        let behind = (number + 1).saturating_sub(PLACES as u64);
        let is_free = behind <= 1 || self.begun >= behind;
        let unread = (!is_free).then(|| Unread {
            readers: self.published[place(number)].readers.clone(),
            number: behind,
            call: self.published[place(behind)].call,
        });
        (number, unread)
    }

    /// Something was published in the next call.
    pub(crate) fn published(&mut self, call: [u64; 2], readers: Readers) {
        self.number += 1;
        self.published[place(self.number)] = Published { call, readers };
    }

    /// All ranks have begun the call that we are in.
    pub(crate) fn all_have_begun(&mut self) {
        self.begun = self.number;
    }
}

/// Which of a rank's places a call uses.
pub(crate) fn place(number: u64) -> usize {
    (number % PLACES as u64) as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn places_are_free_when_their_readers_are_past_them() {
        const MANY: u64 = PLACES as u64;
        let mut mine = Contributions::default();
        for number in 1..=MANY {
            assert_eq!(mine.next(), (number, None));
            let readers = if number % 2 == 0 {
                Readers::All
            } else {
                Readers::One(3)
            };
            mine.published([number, 0], readers);
        }
        let unread = |readers, number| Unread {
            readers,
            number,
            call: [number, 0],
        };
        // The root reads the first one; whether it has come to the second is to be seen.
        let expected = unread(Readers::One(3), 2);
        assert_eq!(mine.next(), (MANY + 1, Some(expected)));
        mine.all_have_begun();
        for number in MANY + 1..2 * MANY {
            assert_eq!(mine.next(), (number, None));
            mine.published([number, 0], Readers::All);
        }
        let expected = unread(Readers::All, MANY + 1);
        assert_eq!(mine.next(), (2 * MANY, Some(expected)));
    }

    /// A root compares the call of a leaf, which nobody reads and which goes on meanwhile, with its
    /// own: it must not take the next call for that one.
    #[test]
    fn a_call_is_not_taken_for_the_next() {
        // SAFETY: words, for which zero is valid.
        let place: Box<OfStep> = unsafe { Box::new(std::mem::zeroed()) };
        place.publish(1, [1, 10]);
        assert_eq!(place.call(1), Some([1, 10]));
        place.show([3, 30]);
        assert!(place.has(1) && !place.has(3));
        assert_eq!((place.call(1), place.call(3)), (None, None));
        place.is_there(3);
        assert_eq!((place.call(1), place.call(3)), (None, Some([3, 30])));
    }

    #[test]
    fn a_call_is_seen_until_the_place_is_used_again() {
        // SAFETY: words, for which zero is valid.
        let place: Box<OfStep> = unsafe { Box::new(std::mem::zeroed()) };
        assert!(place.has(0) && !place.has(1));
        place.publish(1, [7, 8]);
        assert!(place.has(1) && !place.has(2));
        assert_eq!((place.call(1), place.call(3)), (Some([7, 8]), None));
        place.publish(3, [0, 0]);
        assert!(place.has(2) && place.call(1).is_none());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    struct Shared {
        /// For each rank its places.
        places: [[Contribution<1>; PLACES]; 2],
        /// loom reports who reads one that is written.
        bytes: [[UnsafeCell<u64>; PLACES]; 2],
    }

    // SAFETY: the places say who may use the bytes; loom checks it.
    unsafe impl Sync for Shared {}

    /// A rank's calls; `reads` says in which it reads the other one.
    fn run(shared: &Shared, me: usize, reads: &[[bool; 2]]) {
        let mut mine = Contributions::default();
        for (index, reads) in reads.iter().enumerate() {
            let (number, unread) = mine.next();
            let wait = |number: u64| {
                while !shared.places[1 - me][place(number)].has(number) {
                    thread::yield_now();
                }
            };
            if let Some(unread) = unread.filter(|unread| unread.readers != Readers::One(me)) {
                wait(unread.number);
            }
            let at = place(number);
            let value = 10 * (index as u64 + 1) + me as u64;
            // SAFETY: nobody reads it.
            shared.bytes[me][at].with_mut(|byte| unsafe { *byte = value });
            shared.places[me][at].is_there(number);
            let readers = match reads {
                [true, true] => Readers::All,
                [_, _] => Readers::One(usize::from(reads[1])),
            };
            mine.published([0, 0], readers);
            if reads[me] {
                wait(number);
                let expected = 10 * (index as u64 + 1) + 1 - me as u64;
                // SAFETY: nobody writes to it.
                let seen = shared.bytes[1 - me][at].with(|byte| unsafe { *byte });
                assert_eq!(seen, expected);
                mine.all_have_begun();
            }
        }
    }

    fn model(reads: &'static [[bool; 2]]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let shared = Arc::new(Shared {
                places: std::array::from_fn(|_| std::array::from_fn(|_| Contribution::new())),
                bytes: Default::default(),
            });
            let other = shared.clone();
            let other = thread::spawn(move || run(&other, 1, reads));
            run(&shared, 0, reads);
            other.join().unwrap();
        });
    }

    /// Ranks 0 and 1 are a group, and 2 is beside it: in each call 0 and 1 read each other in a
    /// step of their own, and then 2, which reads 0. Nobody says who has read what.
    #[test]
    fn loom_steps_of_two_groups() {
        struct Steps {
            /// For each rank and level its places.
            places: [[[Contribution<1>; 2]; 2]; 3],
            bytes: [[[UnsafeCell<u64>; 2]; 2]; 3],
        }
        // SAFETY: as for `Shared`.
        unsafe impl Sync for Steps {}
        // Level and partner.
        let steps = [&[(1, 1), (0, 2)][..], &[(1, 0), (0, 2)], &[(0, 0)]];
        let calls = move |shared: &Steps, me: usize| {
            for number in 1..=3 {
                for (level, partner) in steps[me] {
                    let (at, level) = (place(number), *level);
                    // SAFETY: nobody reads it.
                    shared.bytes[me][level][at].with_mut(|byte| unsafe { *byte = number });
                    shared.places[me][level][at].is_there(number);
                    let has_come = || shared.places[*partner][level][at].has(number);
                    let mut looks = 0;
                    while !has_come() {
                        // There is no end of ways in which two ranks look in turn.
                        looks += 1;
                        if looks == 2 {
                            loom::skip_branch();
                        }
                        thread::yield_now();
                    }
                    // SAFETY: nobody writes to it.
                    let seen = shared.bytes[*partner][level][at].with(|byte| unsafe { *byte });
                    assert_eq!(seen, number);
                }
            }
        };
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(1);
        builder.check(move || {
            let three = || std::array::from_fn(|_| std::array::from_fn(|_| Contribution::new()));
            let shared = Arc::new(Steps {
                places: std::array::from_fn(|_| three()),
                bytes: Default::default(),
            });
            let others = [1, 2].map(|rank| {
                let shared = shared.clone();
                thread::spawn(move || calls(&shared, rank))
            });
            calls(&shared, 0);
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }

    #[test]
    fn loom_all_read_all() {
        model(&[[true, true]; 4]);
    }

    /// As in reduces to one root, and then to the other, and in broadcasts: who does not read runs
    /// ahead.
    #[test]
    fn loom_a_root_reads() {
        model(&[[true, false]; 4]);
        model(&[[true, false], [false, true], [true, false], [false, true]]);
        model(&[[true, false], [true, true], [false, true], [true, false]]);
    }
}
