// SPDX-License-Identifier: MIT OR Apache-2.0

//! A rank's board: what it shows the others of the plan that it runs.
//!
//! One block per rank, so that a team's boards grow with its ranks and not with their pairs. A rank
//! writes the [`CallLine`] when it begins a call: what it calls, and how the others reach its
//! buffers. While it goes on it writes the [`ProgressLine`], which is never reset: it counts on
//! from call to call. Who waits for a rank and is about to sleep notes that among the [`Watchers`]
//! of that rank, and is woken by its next progress. A [`RequestSlot`] has another rank copy from or
//! to its own memory, where no transport reaches that.

use super::sync::{AtomicU64, Ordering, fence};

/// Bits of a stage's number; above them is the number of the call.
const STAGE: u32 = 16;

/// How far a rank is: which stage of which call it is in, and how many bytes of that it has moved.
#[cfg_attr(not(loom), repr(C, align(128)))]
pub(crate) struct ProgressLine {
    position: AtomicU64,
    bytes: AtomicU64,
}

/// The place of a stage among those of all calls.
pub(crate) fn position(sequence: u64, stage: usize) -> u64 {
    sequence << STAGE | (stage as u64).min((1 << STAGE) - 1)
}

impl ProgressLine {
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        ProgressLine {
            position: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Says how far its owner is. What the owner has done before is seen by whoever sees this.
    pub(crate) fn tell(&self, position: u64, bytes: u64) {
        if self.position.load(Ordering::Relaxed) != position {
            // Bytes that are seen with a position are that position's, or those of a later one.
            self.bytes.store(0, Ordering::Relaxed);
            self.position.store(position, Ordering::Release);
        }
        if bytes > 0 {
            self.bytes.store(bytes, Ordering::Release);
        }
    }

    /// Whether its owner is so far, or further.
    pub(crate) fn has_come(&self, position: u64, bytes: u64) -> bool {
        let now = self.position.load(Ordering::Acquire);
        now > position
            || now == position && (bytes == 0 || self.bytes.load(Ordering::Acquire) >= bytes)
    }
}

/// Words of a rank's call: operation with root, and length.
const CALL_WORDS: usize = 2;
/// Words that say how one of its buffers is reached, and buffers that there are.
pub(crate) const PLACE_WORDS: usize = 3;
pub(crate) const BUFFERS: usize = 3;

/// Stands for a sequence while the line is written.
const WRITING: u64 = u64::MAX;

/// What a rank calls.
#[cfg_attr(not(loom), repr(C, align(128)))]
pub(crate) struct CallLine {
    sequence: AtomicU64,
    call: [AtomicU64; CALL_WORDS],
    places: [[AtomicU64; PLACE_WORDS]; BUFFERS],
}

impl CallLine {
    /// Shows the call with this number. Whoever needed the one before has had it.
    pub(crate) fn show(
        &self,
        sequence: u64,
        call: [u64; CALL_WORDS],
        places: [[u64; PLACE_WORDS]; BUFFERS],
    ) {
        self.sequence.store(WRITING, Ordering::Relaxed);
        fence(Ordering::Release);
        let words = self.call.iter().chain(self.places.iter().flatten());
        let values = call.into_iter().chain(places.into_iter().flatten());
        for (word, value) in words.zip(values) {
            word.store(value, Ordering::Relaxed);
        }
        self.sequence.store(sequence, Ordering::Release);
    }

    /// Whether its owner has begun the call with this number; it may have gone on since.
    pub(crate) fn has_begun(&self, sequence: u64) -> bool {
        let now = self.sequence.load(Ordering::Acquire);
        now != WRITING && now >= sequence
    }

    /// The call with this number, while its owner shows it.
    pub(crate) fn call(&self, sequence: u64) -> Option<[u64; CALL_WORDS]> {
        let words = || {
            self.call
                .each_ref()
                .map(|word| word.load(Ordering::Relaxed))
        };
        self.stable(sequence, words)
    }

    /// How one of the buffers is reached, while its owner shows the call with this number.
    pub(crate) fn place(&self, sequence: u64, buffer: usize) -> Option<[u64; PLACE_WORDS]> {
        let words = || {
            self.places[buffer]
                .each_ref()
                .map(|word| word.load(Ordering::Relaxed))
        };
        self.stable(sequence, words)
    }

    fn stable<T>(&self, sequence: u64, read: impl Fn() -> T) -> Option<T> {
        let is_shown = || self.sequence.load(Ordering::Acquire) == sequence;
        let value = is_shown().then(read)?;
        fence(Ordering::Acquire);
        is_shown().then_some(value)
    }
}

/// Words with a bit for each rank.
pub(crate) const RANK_WORDS: usize = 16;

/// A set of ranks: anybody adds, its owner takes.
#[cfg_attr(not(loom), repr(C, align(128)))]
pub(crate) struct RankSet([AtomicU64; RANK_WORDS]);

impl RankSet {
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        RankSet(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Adds a rank.
    pub(crate) fn add(&self, rank: usize) {
        self.0[rank / 64].fetch_or(1 << (rank % 64), Ordering::SeqCst);
    }

    /// Whether a rank below `size` is in it. What the others have done before they added themselves
    /// is seen then.
    pub(crate) fn has_any(&self, size: usize) -> bool {
        let mut words = self.0[..size.div_ceil(64)].iter();
        words.any(|word| word.load(Ordering::Acquire) != 0)
    }

    /// Takes the ranks below `size` out and hands each to `each`.
    pub(crate) fn take(&self, size: usize, mut each: impl FnMut(usize)) {
        for (index, word) in self.0[..size.div_ceil(64)].iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::SeqCst);
            while bits != 0 {
                let rank = 64 * index + bits.trailing_zeros() as usize;
                // Anybody may have written anything here.
                if rank < size {
                    each(rank);
                }
                bits &= bits - 1;
            }
        }
    }
}

/// Those who sleep until a rank has made progress.
#[cfg_attr(not(loom), repr(transparent))]
pub(crate) struct Watchers(RankSet);

impl Watchers {
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Watchers(RankSet::new())
    }

    /// Has a rank woken by the owner's next progress. The rank has said that it falls asleep
    /// before, as its note is taken once, and looks once more before it sleeps: this belongs into
    /// what [`Doorbell::park`](super::doorbell::Doorbell::park) asks.
    pub(crate) fn watch(&self, rank: usize) {
        self.0.add(rank);
        // What the rank looks at comes behind the note; see `wake`.
        fence(Ordering::SeqCst);
    }

    /// Hands those who watch to `ring`: the owner, after it has told its progress.
    pub(crate) fn wake(&self, size: usize, ring: impl FnMut(usize)) {
        // Either the watcher's last look comes behind this and sees the progress, or this sees it.
        fence(Ordering::SeqCst);
        self.0.take(size, ring);
    }
}

/// States of a copy request.
mod state {
    pub(super) const FREE: u64 = 0;
    pub(super) const ASKED: u64 = 1;
    pub(super) const DONE: u64 = 2;
}

/// A copy between a rank's memory and another one's room, which the owner of the memory does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyRequest {
    /// Whose memory, and in which call.
    pub(crate) owner: usize,
    pub(crate) sequence: u64,
    /// Where in its memory.
    pub(crate) buffer: usize,
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// Whether its memory is written to.
    pub(crate) is_write: bool,
}

/// A copy that a rank has another one do.
#[cfg_attr(not(loom), repr(C, align(64)))]
pub(crate) struct RequestSlot {
    state: AtomicU64,
    owner: AtomicU64,
    sequence: AtomicU64,
    buffer: AtomicU64,
    at: AtomicU64,
    len: AtomicU64,
    is_write: AtomicU64,
}

impl RequestSlot {
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        RequestSlot {
            state: zero(),
            owner: zero(),
            sequence: zero(),
            buffer: zero(),
            at: zero(),
            len: zero(),
            is_write: zero(),
        }
    }

    /// Asks for a copy. The one before is done.
    pub(crate) fn ask(&self, copy: CopyRequest) {
        self.owner.store(copy.owner as u64, Ordering::Relaxed);
        self.sequence.store(copy.sequence, Ordering::Relaxed);
        self.buffer.store(copy.buffer as u64, Ordering::Relaxed);
        self.at.store(copy.at, Ordering::Relaxed);
        self.len.store(copy.len, Ordering::Relaxed);
        self.is_write.store(copy.is_write.into(), Ordering::Relaxed);
        self.state.store(state::ASKED, Ordering::Release);
    }

    /// What `owner` is asked for in this call.
    pub(crate) fn asked(&self, owner: usize, sequence: u64) -> Option<CopyRequest> {
        if self.state.load(Ordering::Acquire) != state::ASKED {
            return None;
        }
        let copy = CopyRequest {
            owner: self.owner.load(Ordering::Relaxed) as usize,
            sequence: self.sequence.load(Ordering::Relaxed),
            buffer: self.buffer.load(Ordering::Relaxed) as usize,
            at: self.at.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
            is_write: self.is_write.load(Ordering::Relaxed) != 0,
        };
        ((copy.owner, copy.sequence) == (owner, sequence)).then_some(copy)
    }

    /// Says that it is done: its owner, who has copied.
    pub(crate) fn finish(&self) {
        self.state.store(state::DONE, Ordering::Release);
    }

    /// Whether it is done; then there may be another one.
    pub(crate) fn is_done(&self) -> bool {
        self.state.load(Ordering::Acquire) == state::DONE
    }

    /// Takes it back: whoever asked, in a new call, whatever became of the last one.
    pub(crate) fn clear(&self) {
        self.state.store(state::FREE, Ordering::Relaxed);
    }
}

/// Requests that a rank may have at a time: one is copied while the bytes of the other are used.
pub(crate) const REQUESTS: usize = 2;

/// All of it.
#[cfg_attr(not(loom), repr(C, align(128)))]
pub(crate) struct Board {
    pub(crate) call: CallLine,
    pub(crate) progress: ProgressLine,
    pub(crate) watchers: Watchers,
    /// Those who ask this rank for copies.
    pub(crate) asked_by: RankSet,
    /// What this rank asks others for.
    pub(crate) requests: [RequestSlot; REQUESTS],
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn zeroed<T>() -> Box<T> {
        // SAFETY: the types of this file are made of atomic words, for which zero is valid.
        unsafe { Box::new(std::mem::zeroed()) }
    }

    #[test]
    fn progress_counts_on_from_call_to_call() {
        let line: Box<ProgressLine> = zeroed();
        assert!(line.has_come(0, 0) && !line.has_come(position(1, 0), 0));
        line.tell(position(1, 0), 0);
        line.tell(position(1, 0), 100);
        assert!(line.has_come(position(1, 0), 100) && !line.has_come(position(1, 0), 101));
        line.tell(position(1, 1), 0);
        assert!(line.has_come(position(1, 0), 1000), "the stage has ended");
        assert!(
            !line.has_come(position(1, 1), 1),
            "bytes are those of the stage"
        );
        line.tell(position(2, 0), 0);
        assert!(line.has_come(position(1, 9), 5) && !line.has_come(position(2, 1), 0));
    }

    #[test]
    fn a_call_is_seen_while_it_is_shown() {
        let line: Box<CallLine> = zeroed();
        assert!(!line.has_begun(1));
        line.show(1, [5, 6], [[1; 3], [2; 3], [3; 3]]);
        assert_eq!(
            (line.call(1), line.place(1, 2)),
            (Some([5, 6]), Some([3; 3]))
        );
        assert_eq!((line.call(2), line.has_begun(2)), (None, false));
        line.show(2, [7, 8], [[0; 3]; 3]);
        assert_eq!((line.call(1), line.has_begun(1)), (None, true));
    }

    #[test]
    fn ranks_are_taken_once() {
        let set: Box<RankSet> = zeroed();
        assert!(!set.has_any(1024));
        for rank in [0, 63, 64, 1023] {
            set.add(rank);
        }
        let mut taken = Vec::new();
        set.take(1024, |rank| taken.push(rank));
        assert_eq!(taken, [0, 63, 64, 1023]);
        assert!(!set.has_any(1024));
        set.add(5);
        set.take(5, |rank| panic!("there is no rank {rank}"));
        assert!(!set.has_any(1024));
    }

    #[test]
    fn a_request_is_its_owners_in_its_call() {
        let request: Box<RequestSlot> = zeroed();
        let copy = CopyRequest {
            owner: 3,
            sequence: 9,
            buffer: 2,
            at: 1 << 40,
            len: 4096,
            is_write: true,
        };
        assert_eq!(request.asked(3, 9), None);
        request.ask(copy);
        assert_eq!((request.asked(2, 9), request.asked(3, 8)), (None, None));
        assert_eq!(request.asked(3, 9), Some(copy));
        request.finish();
        assert!(request.is_done() && request.asked(3, 9).is_none());
        request.clear();
        assert!(!request.is_done());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::shm::doorbell::Doorbell;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;
    use std::time::Duration;

    fn model(check: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(check);
    }

    /// Whoever sees progress sees the bytes, also where a stage has begun meanwhile.
    #[test]
    fn loom_bytes_are_there_when_progress_says_so() {
        model(|| {
            let shared = Arc::new((
                ProgressLine::new(),
                [UnsafeCell::new(0), UnsafeCell::new(0)],
            ));
            let writer = shared.clone();
            let writer = thread::spawn(move || {
                let (line, bytes) = &*writer;
                line.tell(position(1, 0), 0);
                bytes[0].with_mut(|byte| unsafe { *byte = 1 });
                line.tell(position(1, 0), 8);
                line.tell(position(1, 1), 0);
                bytes[1].with_mut(|byte| unsafe { *byte = 2 });
                line.tell(position(1, 1), 4);
            });
            let (line, bytes) = &*shared;
            if line.has_come(position(1, 0), 8) {
                bytes[0].with(|byte| assert_eq!(unsafe { *byte }, 1));
            }
            if line.has_come(position(1, 1), 4) {
                bytes[1].with(|byte| assert_eq!(unsafe { *byte }, 2));
            }
            writer.join().unwrap();
        });
    }

    /// Who watches and sleeps is woken by the next progress.
    #[test]
    fn loom_no_watcher_sleeps_on() {
        model(|| {
            let shared = Arc::new((ProgressLine::new(), Watchers::new(), Doorbell::new()));
            let owner = shared.clone();
            let owner = thread::spawn(move || {
                let (line, watchers, bell) = &*owner;
                for stage in 0..2 {
                    line.tell(position(1, stage), 0);
                    watchers.wake(2, |_| bell.ring());
                }
            });
            let (line, watchers, bell) = &*shared;
            let mut ready = || {
                watchers.watch(1);
                line.has_come(position(1, 1), 0).then_some(())
            };
            // Sleeps for ever if the wake-up is lost; loom reports that as a deadlock.
            while bell.park(Duration::MAX, &mut ready).is_none() {}
            owner.join().unwrap();
        });
    }

    /// The room of a request belongs to the one or to the other.
    #[test]
    fn loom_a_request_is_done_by_its_owner_before_the_room_is_used() {
        model(|| {
            let shared = Arc::new((RequestSlot::new(), RankSet::new(), UnsafeCell::new(0u64)));
            let owner = shared.clone();
            let owner = thread::spawn(move || {
                let (request, asked_by, room) = &*owner;
                let mut served = 0;
                while served < 2 {
                    if asked_by.has_any(2) {
                        asked_by.take(2, |_| {
                            if let Some(copy) = request.asked(0, 1) {
                                room.with_mut(|room| unsafe { *room = copy.at });
                                request.finish();
                                served += 1;
                            }
                        });
                    }
                    thread::yield_now();
                }
            });
            let (request, asked_by, room) = &*shared;
            for at in [7, 8] {
                request.ask(CopyRequest {
                    owner: 0,
                    sequence: 1,
                    buffer: 0,
                    at,
                    len: 1,
                    is_write: false,
                });
                asked_by.add(1);
                while !request.is_done() {
                    thread::yield_now();
                }
                room.with(|room| assert_eq!(unsafe { *room }, at));
            }
            owner.join().unwrap();
        });
    }
}
