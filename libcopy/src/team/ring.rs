// SPDX-License-Identifier: MIT OR Apache-2.0

//! Byte streams in shared memory: one writer, one or several readers, no locks.
//!
//! The writer owns `head`, the number of bytes ever written; each reader owns its `tail`, the
//! number of bytes it is done with. Bytes between the two belong to the readers, the rest of the
//! ring to the writer: `head` is stored with release after the bytes are in place, `tail` after
//! they have been read, and each is loaded with acquire before memory is touched. Counters that
//! peers write are checked: a damaged one must not lead us outside the ring.

use super::sync::{AtomicU64, Ordering};
use crate::error::{Error, Result};

/// A counter on a pair of cache lines of its own (processors fetch lines in pairs).
#[cfg_attr(not(loom), repr(C, align(128)))]
pub(crate) struct Counter(pub(crate) AtomicU64);

/// The writer's private view.
#[derive(Debug)]
pub(crate) struct WriterState {
    head: u64,
    published: u64,
    /// Smallest tail seen; the truth may be further.
    tail: u64,
    capacity: u64,
    unit: u64,
}

impl WriterState {
    /// A ring of `capacity` bytes that both sides use in multiples of `unit`, which divides it.
    pub(crate) fn new(capacity: usize, unit: usize) -> Self {
        WriterState {
            head: 0,
            published: 0,
            tail: 0,
            capacity: capacity as u64,
            unit: unit as u64,
        }
    }

    /// Where the next byte goes.
    pub(crate) fn position(&self) -> usize {
        (self.head % self.capacity) as usize
    }

    /// Bytes that are free from [`Self::position`] on without wrapping around. Looks at the tails
    /// only when fewer than `wanted` are known to be free.
    pub(crate) fn room<'a>(
        &mut self,
        wanted: usize,
        tails: impl IntoIterator<Item = &'a Counter>,
    ) -> Result<usize> {
        let straight = self.capacity - self.head % self.capacity;
        let mut free = self.capacity - (self.head - self.tail);
        if free < straight.min(wanted as u64) {
            let mut slowest = self.head;
            for tail in tails {
                let tail = tail.0.load(Ordering::Acquire);
                if tail < self.tail || tail > self.published {
                    return Err(Error::Corrupt {
                        what: "the tail of a ring",
                        value: tail,
                    });
                }
                slowest = slowest.min(tail);
            }
            self.tail = slowest;
            free = self.capacity - (self.head - self.tail);
        }
        // Rounded, so that a damaged tail cannot make the head run past it.
        let room = free.min(straight);
        Ok((room - room % self.unit) as usize)
    }

    /// Takes `n` bytes that were written; readers do not see them yet.
    pub(crate) fn advance(&mut self, n: usize) {
        self.head += n as u64;
    }

    /// Shows readers everything written so far.
    pub(crate) fn publish(&mut self, head: &Counter) {
        if self.published != self.head {
            self.published = self.head;
            head.0.store(self.head, Ordering::Release);
        }
    }
}

/// A reader's private view.
#[derive(Debug)]
pub(crate) struct ReaderState {
    tail: u64,
    /// Largest head seen.
    head: u64,
    capacity: u64,
    unit: u64,
}

impl ReaderState {
    /// The other side of [`WriterState::new`].
    pub(crate) fn new(capacity: usize, unit: usize) -> Self {
        ReaderState {
            tail: 0,
            head: 0,
            capacity: capacity as u64,
            unit: unit as u64,
        }
    }

    /// Where the next byte is.
    pub(crate) fn position(&self) -> usize {
        (self.tail % self.capacity) as usize
    }

    /// Bytes that can be read from [`Self::position`] on without wrapping around. Looks at the
    /// head only when fewer than `wanted` are known to be there.
    pub(crate) fn available(&mut self, wanted: usize, head: &Counter) -> Result<usize> {
        let straight = self.capacity - self.tail % self.capacity;
        if self.head - self.tail < straight.min(wanted as u64) {
            let seen = head.0.load(Ordering::Acquire);
            if seen < self.head || seen - self.tail > self.capacity {
                return Err(Error::Corrupt {
                    what: "the head of a ring",
                    value: seen,
                });
            }
            self.head = seen;
        }
        let available = (self.head - self.tail).min(straight);
        Ok((available - available % self.unit) as usize)
    }

    /// Takes `n` bytes that were read; the writer does not know yet.
    pub(crate) fn advance(&mut self, n: usize) {
        self.tail += n as u64;
    }

    /// Gives what was read back to the writer.
    pub(crate) fn release(&mut self, tail: &Counter) {
        tail.0.store(self.tail, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn counter(value: u64) -> Counter {
        Counter(AtomicU64::new(value))
    }

    #[test]
    fn room_and_bytes_wrap_around() {
        let (head, tail) = (counter(0), counter(0));
        let mut writer = WriterState::new(8, 1);
        let mut reader = ReaderState::new(8, 1);
        for step in 0..100 {
            let n = writer.room(5, [&tail]).unwrap().min(5);
            assert!(n > 0, "step {step}");
            writer.advance(n);
            assert_eq!(reader.available(1, &head).unwrap(), 0, "not yet published");
            writer.publish(&head);
            let mut read = 0;
            while read < n {
                let m = reader.available(1, &head).unwrap();
                reader.advance(m);
                read += m;
            }
            assert_eq!(read, n);
            reader.release(&tail);
        }
    }

    #[test]
    fn the_slowest_reader_counts() {
        let (head, slow, fast) = (counter(0), counter(0), counter(0));
        let mut writer = WriterState::new(8, 1);
        writer.advance(8);
        writer.publish(&head);
        fast.0.store(8, Ordering::Relaxed);
        assert_eq!(writer.room(1, [&slow, &fast]).unwrap(), 0);
        slow.0.store(3, Ordering::Relaxed);
        assert_eq!(writer.room(1, [&slow, &fast]).unwrap(), 3);
    }

    #[test]
    fn damaged_counters_are_errors() {
        let mut writer = WriterState::new(8, 1);
        writer.advance(8);
        assert!(writer.room(1, [&counter(9)]).is_err());
        assert!(writer.room(1, [&counter(u64::MAX)]).is_err());
        let mut reader = ReaderState::new(8, 1);
        assert!(reader.available(1, &counter(9)).is_err());
        assert_eq!(reader.available(1, &counter(8)).unwrap(), 8);
        assert!(reader.available(9, &counter(1)).is_ok(), "enough is known");
        reader.advance(8);
        assert!(
            reader.available(1, &counter(7)).is_err(),
            "a head never goes back"
        );
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::team::bell::Bell;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;
    use std::time::Duration;

    const CAPACITY: usize = 2;

    struct Shared {
        head: Counter,
        tails: Vec<Counter>,
        bytes: Vec<UnsafeCell<u8>>,
        bells: Vec<Bell>,
    }

    fn counter() -> Counter {
        Counter(AtomicU64::new(0))
    }

    fn model(readers: usize, messages: u8) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let shared = Arc::new(Shared {
                head: counter(),
                tails: (0..readers).map(|_| counter()).collect(),
                bytes: (0..CAPACITY).map(|_| UnsafeCell::new(0)).collect(),
                bells: (0..=readers).map(|_| Bell::new()).collect(),
            });
            let threads: Vec<_> = (0..readers)
                .map(|me| {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        let mut reader = ReaderState::new(CAPACITY, 1);
                        for expected in 1..=messages {
                            let bell = &shared.bells[me + 1];
                            let mut ready =
                                || (reader.available(1, &shared.head).unwrap() > 0).then_some(());
                            while bell.park(Duration::MAX, &mut ready).is_none() {}
                            let position = reader.position();
                            // loom reports a write by the other side at the same time.
                            let byte = shared.bytes[position].with(|p| unsafe { *p });
                            assert_eq!(byte, expected);
                            reader.advance(1);
                            reader.release(&shared.tails[me]);
                            shared.bells[0].ring();
                        }
                    })
                })
                .collect();
            let mut writer = WriterState::new(CAPACITY, 1);
            for message in 1..=messages {
                let mut ready = || (writer.room(1, &shared.tails).unwrap() > 0).then_some(());
                while shared.bells[0].park(Duration::MAX, &mut ready).is_none() {}
                let position = writer.position();
                shared.bytes[position].with_mut(|p| unsafe { *p = message });
                writer.advance(1);
                writer.publish(&shared.head);
                shared.bells[1..].iter().for_each(Bell::ring);
            }
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_mailbox_one_reader() {
        model(1, 3);
    }

    #[test]
    fn loom_broadcast_two_readers() {
        model(2, 3);
    }
}
