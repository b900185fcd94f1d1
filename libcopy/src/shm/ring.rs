// SPDX-License-Identifier: MIT OR Apache-2.0

//! Byte streams in shared memory: one writer, one or several readers, no locks.
//!
//! The writer owns `head`, the number of bytes ever written; each reader owns its `tail`, the
//! number of bytes it is done with. Bytes between the two belong to the readers, the rest of the
//! ring to the writer: `head` is stored with release after the bytes are in place, `tail` after
//! they have been read, and each is loaded with acquire before memory is touched. Counters that
//! peers write are checked: a damaged one must not lead us outside the ring.

//!
//! A ring has little memory at first. When a writer needs more for a message and all readers are
//! done with what it has written, the ring gets a larger capacity, from the start of its memory
//! again: pages that no message needs are never touched. The writer stores `start` and `capacity`
//! before the next `written`, and cannot change them again until all readers have seen that.

use super::sync::{AtomicU64, Ordering};
use crate::error::{Error, Result};

/// A counter on a pair of cache lines of its own (processors fetch lines in pairs).
#[cfg_attr(not(loom), repr(C, align(128)))]
pub(crate) struct Counter(pub(crate) AtomicU64);

/// What a writer shows of its ring; on lines of its own, too.
#[cfg_attr(not(loom), repr(C, align(128)))]
pub(crate) struct Head {
    written: AtomicU64,
    /// Bytes that had been written when the ring got its capacity.
    start: AtomicU64,
    /// Bytes of the ring that are used, once they are more than at first.
    capacity: AtomicU64,
}

/// Capacities are multiples of this, in bytes, unless all memory of the ring is used.
const STEP: u64 = 64 << 10;

/// The writer's private view.
#[derive(Debug)]
pub(crate) struct WriterState {
    head: u64,
    published: u64,
    /// As in [`Head`].
    start: u64,
    /// The largest capacity.
    most: u64,
    /// Smallest tail seen; the truth may be further.
    tail: u64,
    capacity: u64,
    unit: u64,
}

impl WriterState {
    /// A ring of `capacity` bytes, and later of up to `most`, that both sides use in multiples of
    /// `unit`, which divides both.
    pub(crate) fn new(capacity: usize, most: usize, unit: usize) -> Self {
        WriterState {
            head: 0,
            published: 0,
            start: 0,
            most: most as u64,
            tail: 0,
            capacity: capacity as u64,
            unit: unit as u64,
        }
    }

    /// Where the next byte goes.
    pub(crate) fn position(&self) -> usize {
        ((self.head - self.start) % self.capacity) as usize
    }

    /// Bytes of the ring that are used, counted from its start.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// The capacity that [`Self::grow`] gives the ring for `wanted` bytes.
    pub(crate) fn capacity_for(&self, wanted: usize) -> usize {
        (wanted as u64).next_multiple_of(STEP).min(self.most) as usize
    }

    /// Whether the ring has too little memory for `wanted` bytes at a time, and there is more.
    #[inline]
    pub(crate) fn is_short(&self, wanted: usize) -> bool {
        (wanted as u64) > self.capacity && self.capacity < self.most
    }

    /// Takes more memory, for `wanted` bytes at a time, if all readers are done with what was
    /// written. Returns whether they are.
    pub(crate) fn grow<'a>(
        &mut self,
        wanted: usize,
        head: &Head,
        tails: impl IntoIterator<Item = &'a Counter>,
    ) -> Result<bool> {
        if !self.is_empty(tails)? {
            return Ok(false);
        }
        let capacity = self.capacity_for(wanted) as u64;
        if capacity > self.capacity {
            (self.start, self.capacity) = (self.head, capacity);
            // Readers look at these only behind a `written` that is stored later.
            head.start.store(self.start, Ordering::Relaxed);
            head.capacity.store(capacity, Ordering::Relaxed);
        }
        Ok(true)
    }

    /// Whether all readers are done with everything.
    pub(crate) fn is_empty<'a>(
        &mut self,
        tails: impl IntoIterator<Item = &'a Counter>,
    ) -> Result<bool> {
        self.look(tails)?;
        Ok(self.tail == self.head)
    }

    /// Looks how far the readers are.
    fn look<'a>(&mut self, tails: impl IntoIterator<Item = &'a Counter>) -> Result<()> {
        let mut slowest = self.head;
        for tail in tails {
            let tail = tail.0.load(Ordering::Acquire);
            if tail < self.tail || tail > self.published {
                return Err(Error::corrupt("the tail of a ring", tail));
            }
            slowest = slowest.min(tail);
        }
        self.tail = slowest;
        Ok(())
    }

    /// Bytes that are free from [`Self::position`] on without wrapping around. Looks at the tails
    /// only when fewer than `wanted` are known to be free.
    pub(crate) fn room<'a>(
        &mut self,
        wanted: usize,
        tails: impl IntoIterator<Item = &'a Counter>,
    ) -> Result<usize> {
        let straight = self.capacity - self.position() as u64;
        let mut free = self.capacity - (self.head - self.tail);
        if free < straight.min(wanted as u64) {
            self.look(tails)?;
            free = self.capacity - (self.head - self.tail);
        }
        // Rounded, so that a damaged tail cannot make the head run past it.
        let room = free.min(straight);
        Ok((room - room % self.unit) as usize)
    }

    /// Bytes that are free, also where they wrap around. Looks at the tails only when fewer than
    /// `wanted` are known to be free.
    pub(crate) fn free<'a>(
        &mut self,
        wanted: usize,
        tails: impl IntoIterator<Item = &'a Counter>,
    ) -> Result<usize> {
        let mut free = self.capacity - (self.head - self.tail);
        if free < wanted as u64 {
            self.look(tails)?;
            free = self.capacity - (self.head - self.tail);
        }
        Ok((free - free % self.unit) as usize)
    }

    /// Takes `n` bytes that were written; readers do not see them yet.
    pub(crate) fn advance(&mut self, n: usize) {
        self.head += n as u64;
    }

    /// Shows readers everything written so far.
    pub(crate) fn publish(&mut self, head: &Head) {
        if self.published != self.head {
            self.published = self.head;
            head.written.store(self.head, Ordering::Release);
        }
    }
}

/// A reader's private view.
#[derive(Debug)]
pub(crate) struct ReaderState {
    tail: u64,
    /// Largest head seen.
    head: u64,
    /// As in [`Head`].
    start: u64,
    /// The largest capacity.
    most: u64,
    capacity: u64,
    unit: u64,
}

impl ReaderState {
    /// The other side of [`WriterState::new`].
    pub(crate) fn new(capacity: usize, most: usize, unit: usize) -> Self {
        ReaderState {
            tail: 0,
            head: 0,
            start: 0,
            most: most as u64,
            capacity: capacity as u64,
            unit: unit as u64,
        }
    }

    /// Where the next byte is.
    pub(crate) fn position(&self) -> usize {
        ((self.tail - self.start) % self.capacity) as usize
    }

    /// Bytes of the ring that are used, counted from its start.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Bytes that can be read from [`Self::position`] on without wrapping around. Looks at the
    /// head only when fewer than `wanted` are known to be there.
    pub(crate) fn available(&mut self, wanted: usize, head: &Head) -> Result<usize> {
        let mut straight = self.capacity - self.position() as u64;
        if self.head - self.tail < straight.min(wanted as u64) {
            let seen = head.written.load(Ordering::Acquire);
            if seen > self.tail && head.capacity.load(Ordering::Relaxed) > self.capacity {
                self.adopt(head)?;
                straight = self.capacity;
            }
            if seen < self.head || seen - self.tail > self.capacity {
                return Err(Error::corrupt("the head of a ring", seen));
            }
            self.head = seen;
        }
        let available = (self.head - self.tail).min(straight);
        Ok((available - available % self.unit) as usize)
    }

    /// The ring's capacity and where in it the next `wanted` bytes begin, if they are there.
    /// Nothing is taken.
    pub(crate) fn peek(&self, wanted: usize, head: &Head) -> Option<(usize, usize)> {
        let seen = head.written.load(Ordering::Acquire);
        if seen.checked_sub(self.tail)? < wanted as u64 {
            return None;
        }
        // The ring may have got a larger capacity when we were done with everything.
        let capacity = head.capacity.load(Ordering::Relaxed);
        let is_first = capacity > self.capacity && head.start.load(Ordering::Relaxed) == self.tail;
        Some(if is_first {
            (capacity as usize, 0)
        } else {
            (self.capacity(), self.position())
        })
    }

    /// Uses the larger capacity that the writer has given the ring when we were done with
    /// everything.
    #[cold]
    fn adopt(&mut self, head: &Head) -> Result<()> {
        let start = head.start.load(Ordering::Relaxed);
        let capacity = head.capacity.load(Ordering::Relaxed);
        let larger = self.capacity < capacity && capacity <= self.most;
        if start != self.tail || !larger || capacity % self.unit != 0 {
            return Err(Error::corrupt("the capacity of a ring", capacity));
        }
        (self.start, self.capacity) = (start, capacity);
        Ok(())
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

    fn head(written: u64) -> Head {
        Head {
            written: AtomicU64::new(written),
            start: AtomicU64::new(0),
            capacity: AtomicU64::new(0),
        }
    }

    #[test]
    fn a_ring_grows_when_it_is_empty() {
        let (head, tail) = (head(0), counter(0));
        let most = 3 * STEP as usize;
        let mut writer = WriterState::new(8, most, 1);
        let mut reader = ReaderState::new(8, most, 1);
        writer.advance(5);
        writer.publish(&head);
        assert!(writer.is_short(9) && !writer.is_short(8));
        assert!(!writer.grow(9, &head, [&tail]).unwrap(), "bytes are unread");
        assert_eq!(reader.available(9, &head).unwrap(), 5);
        reader.advance(5);
        reader.release(&tail);
        assert!(writer.grow(9, &head, [&tail]).unwrap());
        assert!(!writer.is_short(STEP as usize), "in whole steps");
        assert_eq!(
            writer.position(),
            0,
            "pages that were used before are used again"
        );
        assert_eq!(writer.room(9, [&tail]).unwrap(), STEP as usize);
        assert_eq!(reader.available(9, &head).unwrap(), 0);
        assert_eq!(
            reader.position(),
            5,
            "nothing is new before there is a byte"
        );
        writer.advance(100);
        writer.publish(&head);
        assert_eq!(reader.available(9, &head).unwrap(), 100);
        assert_eq!(reader.position(), 0);
        reader.advance(100);
        reader.release(&tail);
        // Never more than there is.
        assert!(writer.grow(9 << 20, &head, [&tail]).unwrap());
        assert!(!writer.is_short(9 << 20));
        assert_eq!(writer.room(9 << 20, [&tail]).unwrap(), most);
    }

    #[test]
    fn a_ring_grows_before_its_first_byte() {
        let (head, tail) = (head(0), counter(0));
        let mut writer = WriterState::new(8, 1 << 20, 1);
        let mut reader = ReaderState::new(8, 1 << 20, 1);
        assert!(writer.grow(9, &head, [&tail]).unwrap());
        writer.advance(9);
        writer.publish(&head);
        assert_eq!(reader.available(9, &head).unwrap(), 9);
    }

    #[test]
    fn a_damaged_capacity_is_an_error() {
        for (start, capacity) in [(4, 16), (6, 16), (5, 1 << 20), (5, 17)] {
            let damaged = head(0);
            let mut reader = ReaderState::new(8, 64, 2);
            reader.advance(5);
            damaged.start.store(start, Ordering::Relaxed);
            damaged.capacity.store(capacity, Ordering::Relaxed);
            damaged.written.store(6, Ordering::Relaxed);
            reader.head = 5;
            assert!(reader.available(1, &damaged).is_err(), "{start} {capacity}");
        }
    }

    #[test]
    fn room_and_bytes_wrap_around() {
        let (head, tail) = (head(0), counter(0));
        let mut writer = WriterState::new(8, 8, 1);
        let mut reader = ReaderState::new(8, 8, 1);
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
        let (head, slow, fast) = (head(0), counter(0), counter(0));
        let mut writer = WriterState::new(8, 8, 1);
        writer.advance(8);
        writer.publish(&head);
        fast.0.store(8, Ordering::Relaxed);
        assert_eq!(writer.room(1, [&slow, &fast]).unwrap(), 0);
        slow.0.store(3, Ordering::Relaxed);
        assert_eq!(writer.room(1, [&slow, &fast]).unwrap(), 3);
    }

    #[test]
    fn damaged_counters_are_errors() {
        let mut writer = WriterState::new(8, 8, 1);
        writer.advance(8);
        assert!(writer.room(1, [&counter(9)]).is_err());
        assert!(writer.room(1, [&counter(u64::MAX)]).is_err());
        let mut reader = ReaderState::new(8, 8, 1);
        assert!(reader.available(1, &head(9)).is_err());
        assert_eq!(reader.available(1, &head(8)).unwrap(), 8);
        assert!(reader.available(9, &head(1)).is_ok(), "enough is known");
        reader.advance(8);
        assert!(
            reader.available(1, &head(7)).is_err(),
            "a head never goes back"
        );
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

    const CAPACITY: usize = 2;

    struct Shared {
        head: Head,
        tails: Vec<Counter>,
        bytes: Vec<UnsafeCell<u8>>,
        bells: Vec<Doorbell>,
    }

    fn counter() -> Counter {
        Counter(AtomicU64::new(0))
    }

    fn model(readers: usize, messages: u8, first: usize, grows_at: u8) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let shared = Arc::new(Shared {
                head: Head {
                    written: AtomicU64::new(0),
                    start: AtomicU64::new(0),
                    capacity: AtomicU64::new(0),
                },
                tails: (0..readers).map(|_| counter()).collect(),
                bytes: (0..CAPACITY).map(|_| UnsafeCell::new(0)).collect(),
                bells: (0..=readers).map(|_| Doorbell::new()).collect(),
            });
            let threads: Vec<_> = (0..readers)
                .map(|me| {
                    let shared = shared.clone();
                    thread::spawn(move || {
                        let mut reader = ReaderState::new(first, CAPACITY, 1);
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
            let mut writer = WriterState::new(first, CAPACITY, 1);
            for message in 1..=messages {
                if message >= grows_at && writer.is_short(CAPACITY) {
                    let _ = writer.grow(CAPACITY, &shared.head, &shared.tails).unwrap();
                }
                let mut ready = || (writer.room(1, &shared.tails).unwrap() > 0).then_some(());
                while shared.bells[0].park(Duration::MAX, &mut ready).is_none() {}
                let position = writer.position();
                shared.bytes[position].with_mut(|p| unsafe { *p = message });
                writer.advance(1);
                writer.publish(&shared.head);
                Doorbell::ring_all(&shared.bells[1..]);
            }
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_mailbox_one_reader() {
        model(1, 3, CAPACITY, 1);
    }

    #[test]
    fn loom_broadcast_two_readers() {
        model(2, 3, CAPACITY, 1);
    }

    #[test]
    fn loom_growing_ring() {
        for grows_at in [1, 2] {
            model(1, 3, 1, grows_at);
            model(2, 3, 1, grows_at);
        }
    }
}
