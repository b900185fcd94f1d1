// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a rank contributes to a short collective that all ranks do in one step: each publishes its
//! bytes and reads those of the others, without a tree and without an answer.
//!
//! A rank's calls are counted, and it shows the last ones that it has [`Begun`]. It has two places,
//! which it uses in turn, and some more for few bytes. It may write to a place again when those who
//! were to read it have begun the call behind it: they were done with it before. A rank that reads
//! all others in each call knows that of them. One that reads nobody, as the root of a broadcast
//! does, comes as many calls ahead of its readers as it has places, and then sees how far they are.

use std::sync::Arc;

use super::sync::{AtomicU64, Ordering, fence};
use crate::op::{Call, UNSAID};
use crate::plan::{MOST_IN_CHUNKS, MOST_MEMBERS, MOST_OF_DESCENT, MOST_OF_STEP};

/// Bytes that a rank contributes, at most; [`MOST_OF_STEP`] if that is one of several steps.
pub(crate) const MOST: usize = MOST_OF_DESCENT;

/// Places of a rank: for calls that take one step, and for each of several steps. With four, calls
/// of some hundred bytes took as long, and broadcasts of 8 KiB up to twice as long, as what is
/// written to is then no longer in the nearest cache.
pub(crate) const PLACES: usize = 2;

/// Places for at most [`MOST_OF_SHORT`] bytes of calls with a root, four lines each. A root that is
/// so many calls ahead looks at a line of its readers in every seventh call instead of each: a
/// broadcast of 8 bytes took 55 ns where it took 84 with two places, and one of 128 bytes 80 where
/// it took 110. Calls in which all read all gain nothing, and with these places an alltoall of 16
/// KiB behind a barrier took a tenth longer (EPYC of Zen 4, two ranks in a loop).
pub(crate) const SHORT_PLACES: usize = if cfg!(loom) { 2 } else { 8 };
pub(crate) const MOST_OF_SHORT: usize = 232;

/// A place for calls that take one step, one for few bytes, and one of several steps.
pub(crate) type Whole = Contribution<{ MOST / 8 }>;
pub(crate) type Short = Contribution<{ MOST_OF_SHORT / 8 }>;
pub(crate) type OfStep = Contribution<{ MOST_OF_STEP / 8 }>;

/// Bytes of a chunk of a longer call: with two places of each rank they stay in its second-level
/// cache, and what ranks wait for each other is little beside copying them.
pub(crate) const CHUNK: usize = 32 << 10;

/// Bytes of a chunk where ranks share processors, in which each chunk has every rank wait for its
/// turn on one: of 256 KiB an allreduce took there 113 us in chunks of 32 KiB and 55 in these with
/// four ranks, and 301 and 102 with eight (two processors of an EPYC of Zen 4).
pub(crate) const LARGE_CHUNK: usize = 256 << 10;

/// The most bytes that a chunk of each of `ranks` ranks has: [`LARGE_CHUNK`] of up to
/// [`MOST_MEMBERS`]. All chunks of more have as many bytes together, as far as there are any
/// ([`MOST_IN_CHUNKS`]).
pub(crate) fn largest_chunk(ranks: usize) -> usize {
    if ranks > MOST_IN_CHUNKS {
        return 0;
    }
    let share = MOST_MEMBERS * LARGE_CHUNK / ranks.max(MOST_MEMBERS);
    (share + 1).next_power_of_two() / 2
}

/// A place for a chunk, whose bytes are elsewhere.
pub(crate) type OfChunk = Contribution<0>;

/// In a place's number: the call that it had is no longer there, and the next one not yet.
const WRITING: u64 = 1 << 63;

/// One of a rank's places. A few bytes are on the line that says that they are there.
#[cfg_attr(not(loom), repr(C, align(128)))]
pub(crate) struct Contribution<const WORDS: usize> {
    label: Label,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Contribution<WORDS> {
    #[cfg(loom)]
    fn new() -> Self {
        Contribution {
            label: Label {
                number: AtomicU64::new(0),
                call: Default::default(),
            },
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Says which call the bytes are for.
    #[inline]
    pub(crate) fn label(&self) -> &Label {
        &self.label
    }

    /// The bytes: their owner writes them before it publishes them.
    pub(crate) fn bytes(&self) -> *mut u8 {
        self.words.as_ptr().cast_mut().cast()
    }
}

/// Which call a place has bytes for.
#[cfg_attr(not(loom), repr(C))]
pub(crate) struct Label {
    /// Number of the call, from 1 on; written last. With [`WRITING`] while the next one is written.
    number: AtomicU64,
    call: [AtomicU64; 2],
}

impl Label {
    /// Publishes the bytes for the call with this number.
    pub(crate) fn publish(&self, number: u64, call: [u64; 2]) {
        self.show(call);
        self.is_there(number);
    }

    /// Shows the next call, instead of the one before.
    fn show(&self, call: [u64; 2]) {
        // A rank that waits for another call than we have called may still look at this one.
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

/// The last calls that a rank has begun, each in a word. It is done with what it has read in those
/// before.
#[cfg_attr(not(loom), repr(C, align(128)))]
pub(crate) struct Begun([AtomicU64; SHORT_PLACES]);

/// Bits of a word that say operation and root; above them is the number of the call.
const CALL: u32 = 20;

impl Begun {
    #[cfg(loom)]
    fn new() -> Self {
        Begun(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    fn word(&self, number: u64) -> &AtomicU64 {
        &self.0[(number % SHORT_PLACES as u64) as usize]
    }

    /// Its owner begins the call with this number.
    #[inline]
    pub(crate) fn show(&self, number: u64, call: Call) {
        let word = number << CALL | call.to_words()[0] & ((1 << CALL) - 1);
        self.word(number).store(word, Ordering::Release);
    }

    /// Whether its owner has begun the call with this number, or a later one.
    #[inline]
    pub(crate) fn has(&self, number: u64) -> bool {
        is_past(self.word(number).load(Ordering::Acquire), number)
    }

    /// The last call that the rank is seen to have begun, whose words `theirs` are; it had begun
    /// `known`, and we `last`. Fails with the first call behind `known` that is theirs and another
    /// one than ours.
    ///
    /// # Errors
    ///
    /// Their call and ours.
    fn newest(&self, theirs: &Begun, known: u64, last: u64) -> Result<u64, [Call; 2]> {
        let first = (known + 1).max((last + 1).saturating_sub(SHORT_PLACES as u64));
        let mut newest = known;
        for number in first..=last {
            let ours = self.word(number).load(Ordering::Relaxed);
            let theirs = theirs.word(number).load(Ordering::Acquire);
            if !is_past(theirs, number) {
                break;
            }
            // If theirs is further, it is no longer known what it has called here.
            if theirs >> CALL == ours >> CALL && theirs != ours {
                let call = |word| Call::from_words([word & ((1 << CALL) - 1), UNSAID as u64]);
                return Err([theirs, ours].map(call));
            }
            newest = number;
        }
        Ok(newest)
    }
}

/// Whether the number of a word is this one, or a later one.
fn is_past(word: u64, number: u64) -> bool {
    word.wrapping_sub(number << CALL) as i64 >= 0
}

/// Who reads what a rank has published.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Readers {
    /// All ranks.
    #[default]
    All,
    /// One of them.
    One(usize),
    /// Several of them.
    These(Arc<[usize]>),
}

/// For whom a rank waits before it publishes something in a place: they must have begun the call
/// with this number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unread {
    pub(crate) readers: Readers,
    pub(crate) number: u64,
}

/// A call of one step: its number, and which of its places each rank uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) number: u64,
    /// Those for few bytes come behind the [`PLACES`] others.
    place: usize,
}

impl Turn {
    /// The same, where those who publish something publish `len` bytes, and not all read all others
    /// before they end it.
    #[inline]
    pub(crate) fn with(self, len: usize) -> Self {
        let place = if len <= MOST_OF_SHORT {
            PLACES + (self.number % SHORT_PLACES as u64) as usize
        } else {
            self.place
        };
        Turn { place, ..self }
    }

    /// Which of the places it uses, or else which of those for few bytes.
    #[inline]
    pub(crate) fn place(self) -> Result<usize, usize> {
        match self.place.checked_sub(PLACES) {
            None => Ok(self.place),
            Some(short) => Err(short),
        }
    }
}

/// What a rank knows of its calls of one step, and of the others'.
#[derive(Debug)]
pub(crate) struct Contributions {
    /// Calls so far.
    number: u64,
    /// All ranks are known to have begun the call with this number, and each this one.
    begun: u64,
    each: Vec<u64>,
    /// For whom to wait for each place.
    unread: [Unread; PLACES + SHORT_PLACES],
}

impl Contributions {
    /// Of a team of `size` ranks.
    pub(crate) fn new(size: usize) -> Self {
        Contributions {
            number: 0,
            begun: 0,
            each: vec![0; size],
            unread: Default::default(),
        }
    }

    /// Begins the next call.
    #[inline]
    pub(crate) fn begin(&mut self) -> Turn {
        self.number += 1;
        Turn {
            number: self.number,
            place: place(self.number),
        }
    }

    /// For whom to wait before something is published in this turn.
    #[inline]
    pub(crate) fn unread(&self, turn: Turn) -> Option<&Unread> {
        let unread = &self.unread[turn.place];
        (unread.number > self.begun).then_some(unread)
    }

    /// Something was published in this turn.
    pub(crate) fn published(&mut self, turn: Turn, readers: Readers) {
        let number = turn.number + 1;
        self.unread[turn.place] = Unread { readers, number };
    }

    /// All ranks have begun the call that we are in.
    pub(crate) fn all_have_begun(&mut self) {
        self.begun = self.number;
    }

    /// The last call that this rank is known to have begun.
    pub(crate) fn known(&self, rank: usize) -> u64 {
        self.each[rank].max(self.begun)
    }

    /// How far a rank is seen to be, from its words and ours.
    ///
    /// # Errors
    ///
    /// The first call in which the two differ: theirs and ours.
    pub(crate) fn newest(
        &self,
        rank: usize,
        ours: &Begun,
        theirs: &Begun,
    ) -> Result<u64, [Call; 2]> {
        ours.newest(theirs, self.known(rank), self.number)
    }

    /// A rank has begun the call with this number.
    pub(crate) fn has_begun(&mut self, rank: usize, number: u64) {
        self.each[rank] = number;
    }

    /// Notes what is known of all others than us.
    pub(crate) fn all_were_seen(&mut self, me: usize) {
        let others = (0..self.each.len()).filter(|rank| *rank != me);
        let begun = others.map(|rank| self.known(rank)).min();
        self.begun = begun.unwrap_or(self.number);
    }
}

/// Which of a rank's places a call uses that has one for each step, or for each chunk.
pub(crate) fn place(number: u64) -> usize {
    (number % PLACES as u64) as usize
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::op::Op;

    fn call(op: Op, root: usize) -> Call {
        Call::new(op, root, 8)
    }

    fn begun() -> Box<Begun> {
        // SAFETY: words, for which zero is valid.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    #[test]
    fn places_are_free_when_their_readers_are_past_them() {
        for (len, places) in [(MOST_OF_SHORT, SHORT_PLACES as u64), (MOST, PLACES as u64)] {
            let mut mine = Contributions::new(4);
            let publish = |mine: &mut Contributions, readers| {
                let turn = mine.begin().with(len);
                let unread = mine.unread(turn).cloned();
                mine.published(turn, readers);
                (turn.number, unread)
            };
            for number in 1..=places {
                let readers = if number % 2 == 0 {
                    Readers::All
                } else {
                    Readers::One(3)
                };
                assert_eq!(publish(&mut mine, readers), (number, None));
            }
            let unread = |readers, number| Some(Unread { readers, number });
            // Rank 3 reads the first one; whether it has begun the second is to be seen.
            let expected = unread(Readers::One(3), 2);
            assert_eq!(publish(&mut mine, Readers::All), (places + 1, expected));
            mine.all_have_begun();
            for number in places + 2..=2 * places {
                assert_eq!(publish(&mut mine, Readers::All), (number, None));
            }
            let expected = unread(Readers::All, places + 2);
            assert_eq!(publish(&mut mine, Readers::All), (2 * places + 1, expected));
        }
    }

    /// A place of few bytes was used long ago, and one of many in the call before.
    #[test]
    fn places_of_both_kinds_are_kept_apart() {
        let mut mine = Contributions::new(2);
        for number in 1..=20 {
            let turn = mine.begin();
            assert_eq!(turn.number, number);
            let at = turn.with(if number == 1 { 8 } else { MOST });
            assert_eq!(at == turn, number > 1);
            let behind = match number {
                1..=3 => None,
                _ => Some(number - 1),
            };
            assert_eq!(mine.unread(at).map(|unread| unread.number), behind);
            mine.published(at, Readers::One(1));
        }
        let at = Turn {
            number: 17,
            place: 0,
        };
        let at = at.with(8);
        assert_eq!(at.place(), Err(1));
        assert_eq!(mine.unread(at).unwrap().number, 2);
        mine.has_begun(1, 2);
        assert_eq!((mine.known(1), mine.known(0)), (2, 0));
        mine.all_were_seen(0);
        assert_eq!(mine.unread(at), None);
    }

    #[test]
    fn how_far_a_rank_is_is_seen_in_one_look() {
        let (ours, theirs) = (begun(), begun());
        for number in 1..=6 {
            ours.show(number, call(Op::Bcast, 0));
        }
        assert!(theirs.has(0) && !theirs.has(1));
        assert_eq!(ours.newest(&theirs, 0, 6), Ok(0));
        for number in 1..=4 {
            theirs.show(number, call(Op::Bcast, 0));
        }
        assert!(theirs.has(4) && !theirs.has(5));
        assert_eq!(ours.newest(&theirs, 0, 6), Ok(4));
        assert_eq!(ours.newest(&theirs, 3, 6), Ok(4));
        // Further than we are, which is not seen.
        for number in 5..=30 {
            theirs.show(number, call(Op::Reduce, 1 << 9));
        }
        assert!(theirs.has(2) && theirs.has(30) && !theirs.has(31));
        assert_eq!(ours.newest(&theirs, 4, 6), Ok(6));
        // We were far behind what we know of it.
        for number in 7..=30 {
            ours.show(number, call(Op::Reduce, 1 << 9));
        }
        assert_eq!(ours.newest(&theirs, 2, 30), Ok(30));
    }

    /// The first call in which two ranks differ is found, whichever came after it.
    #[test]
    fn two_that_take_themselves_for_the_root_are_found() {
        for wrong in 1..=5 {
            let (ours, theirs) = (begun(), begun());
            for number in 1..=5 {
                ours.show(number, call(Op::Bcast, 0));
                let root = usize::from(number >= wrong);
                theirs.show(number, call(Op::Bcast, root));
            }
            let [theirs, ours] = ours.newest(&theirs, 0, 5).unwrap_err();
            assert_eq!((theirs.op, theirs.root), (Op::Bcast, 1));
            assert_eq!((ours.op, ours.root), (Op::Bcast, 0));
        }
    }

    /// Numbers are cut off in a word.
    #[test]
    fn calls_are_counted_on() {
        let (ours, theirs) = (begun(), begun());
        let last = (1 << (64 - CALL)) + 3;
        for number in last - 14..last - 6 {
            theirs.show(number, call(Op::Bcast, 0));
        }
        for number in last - 6..=last {
            ours.show(number, call(Op::Bcast, 0));
            assert!(!theirs.has(number));
            theirs.show(number, call(Op::Bcast, 0));
            assert!(theirs.has(number) && !theirs.has(number + 1));
        }
        assert_eq!(ours.newest(&theirs, last - 5, last), Ok(last));
    }

    /// A rank that waits for something else compares what it finds with its own call, while the
    /// owner goes on: it must not take the next call for that one.
    #[test]
    fn a_call_is_not_taken_for_the_next() {
        // SAFETY: words, for which zero is valid.
        let place: Box<OfStep> = unsafe { Box::new(std::mem::zeroed()) };
        place.label.publish(1, [1, 10]);
        assert_eq!(place.label.call(1), Some([1, 10]));
        place.label.show([3, 30]);
        assert!(place.label.has(1) && !place.label.has(3));
        assert_eq!((place.label.call(1), place.label.call(3)), (None, None));
        place.label.is_there(3);
        assert_eq!(
            (place.label.call(1), place.label.call(3)),
            (None, Some([3, 30]))
        );
    }

    #[test]
    fn a_call_is_seen_until_the_place_is_used_again() {
        // SAFETY: words, for which zero is valid.
        let place: Box<OfStep> = unsafe { Box::new(std::mem::zeroed()) };
        assert!(place.label.has(0) && !place.label.has(1));
        place.label.publish(1, [7, 8]);
        assert!(place.label.has(1) && !place.label.has(2));
        assert_eq!(
            (place.label.call(1), place.label.call(3)),
            (Some([7, 8]), None)
        );
        place.label.publish(3, [0, 0]);
        assert!(place.label.has(2) && place.label.call(1).is_none());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::op::Op;

    const ALL: usize = PLACES + SHORT_PLACES;

    struct Shared {
        /// For each rank its places.
        places: [[Contribution<1>; ALL]; 2],
        begun: [Begun; 2],
        /// loom reports who reads one that is written.
        bytes: [[UnsafeCell<u64>; ALL]; 2],
    }

    /// Who reads what in a call, and of how many bytes it is: rank 0 what 1 publishes, and the
    /// other way round. A rank that nobody reads publishes nothing.
    type Reads = ([bool; 2], usize);

    // SAFETY: the places say who may use the bytes; loom checks it.
    unsafe impl Sync for Shared {}

    /// A rank's calls.
    fn run(shared: &Shared, me: usize, calls: &[Reads]) {
        let mut mine = Contributions::new(2);
        for (reads, len) in calls {
            let other = 1 - me;
            let turn = mine.begin().with(*len);
            let (number, at) = (turn.number, turn.place);
            let (ours, theirs) = (&shared.begun[me], &shared.begun[other]);
            ours.show(number, Call::new(Op::Bcast, 0, *len));
            if reads[other] {
                if let Some(unread) = mine.unread(turn) {
                    while !theirs.has(unread.number) {
                        thread::yield_now();
                    }
                    let newest = mine.newest(other, ours, theirs).unwrap();
                    assert!(newest >= unread.number);
                    mine.has_begun(other, newest);
                    mine.all_were_seen(me);
                    assert_eq!(mine.unread(turn), None);
                }
                let value = 10 * number + me as u64;
                // SAFETY: nobody reads it.
                shared.bytes[me][at].with_mut(|byte| unsafe { *byte = value });
                shared.places[me][at].label.is_there(number);
                mine.published(turn, Readers::One(other));
            }
            if reads[me] {
                while !shared.places[other][at].label.has(number) {
                    thread::yield_now();
                }
                let expected = 10 * number + other as u64;
                // SAFETY: nobody writes to it.
                let seen = shared.bytes[other][at].with(|byte| unsafe { *byte });
                assert_eq!(seen, expected);
                mine.all_have_begun();
            }
        }
    }

    fn model(calls: &'static [Reads]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let shared = Arc::new(Shared {
                places: std::array::from_fn(|_| std::array::from_fn(|_| Contribution::new())),
                begun: std::array::from_fn(|_| Begun::new()),
                bytes: Default::default(),
            });
            let other = shared.clone();
            let other = thread::spawn(move || run(&other, 1, calls));
            run(&shared, 0, calls);
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
                    shared.places[me][level][at].label.is_there(number);
                    let has_come = || shared.places[*partner][level][at].label.has(number);
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
        model(&[([true, true], 8); 4]);
        model(&[([true, true], 8), ([true, true], 500), ([true, true], 8)]);
    }

    /// As in reduces to one root, and then to the other, and in broadcasts: who does not read runs
    /// ahead.
    #[test]
    fn loom_a_root_reads() {
        const TO_0: Reads = ([true, false], 8);
        const TO_1: Reads = ([false, true], 8);
        const MANY_TO_0: Reads = ([true, false], 500);
        model(&[TO_0; 4]);
        model(&[MANY_TO_0; 4]);
        model(&[TO_0, TO_1, TO_0, TO_1]);
        model(&[TO_0, MANY_TO_0, MANY_TO_0, TO_0, MANY_TO_0]);
        model(&[TO_0, ([true, true], 8), TO_1, TO_0]);
    }
}
