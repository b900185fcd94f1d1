// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0

//! [`Fragments`]: who works on which part of a request, without a lock.
//!
//! A request is cut into fragments by arithmetic alone. One atomic counts how many have been claimed
//! (in order), so that no fragment is claimed twice; finished ones are marked in a bitmap, from which
//! follows how much is in place from the front without a gap. This file depends on nothing but
//! [`Word`], and is checked with loom by the library's tests.

use super::word::Word;

/// [`Fragments::claims`]: no more claims by engines.
const NO_ENGINE: u64 = 1 << 62;
/// [`Fragments::claims`]: no more claims by anybody.
const CLOSED: u64 = 1 << 63;
/// [`Fragments::claims`]: fragments claimed.
const CLAIMED: u64 = NO_ENGINE - 1;

/// Who claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Worker {
    /// An engine.
    Engine,
    /// A CPU that helps.
    Cpu,
}

/// What a finished fragment changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Finished {
    /// Bytes that became part of the gapless front.
    pub(crate) advanced: u64,
    /// Whether nothing is being worked on any more and nothing can be claimed. More than one caller
    /// may see this.
    pub(crate) settled: bool,
}

/// The fragments of one request.
pub(crate) struct Fragments<B> {
    length: u64,
    /// Bytes per fragment.
    size: u64,
    /// Bytes by which the first fragment is shorter, so that the others start at page boundaries.
    phase: u64,
    count: u64,
    claims: Word,
    finished: Word,
    /// Fragments in place from the front.
    front: Word,
    /// One bit per fragment in place.
    bitmap: B,
}

/// Number of fragments of `size` bytes, the first of them `phase` bytes shorter.
pub(crate) fn count(length: u64, size: u64, phase: u64) -> u64 {
    match (length + phase).saturating_sub(1).checked_div(size) {
        Some(last) if length != 0 => last + 1,
        _ => 0,
    }
}

/// Words of a bitmap for so many fragments.
pub(crate) fn bitmap_words(count: u64) -> usize {
    (count as usize).div_ceil(64)
}

impl<B: core::ops::Deref<Target = [Word]>> Fragments<B> {
    /// Nothing claimed. `phase < size`; the bitmap has [`bitmap_words`] zero words.
    pub(crate) fn new(length: u64, size: u64, phase: u64, bitmap: B) -> Self {
        Self {
            length,
            size,
            phase,
            count: count(length, size, phase),
            claims: Word::new(0),
            finished: Word::new(0),
            front: Word::new(0),
            bitmap,
        }
    }

    /// Bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Fragments.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Bytes per fragment.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    fn start(&self, fragment: u64) -> u64 {
        let end = (fragment * self.size).saturating_sub(self.phase);
        u64::min(end, self.length)
    }

    /// Offset and length of `many` fragments from `first` on, in bytes.
    pub(crate) fn range(&self, first: u64, many: u64) -> (u64, u64) {
        let from = self.start(first);
        (from, self.start(first + many) - from)
    }

    /// Claims up to `most` fragments: the first, and how many.
    pub(crate) fn claim(&self, worker: Worker, most: u64) -> Option<(u64, u64)> {
        let refused = match worker {
            Worker::Engine => CLOSED | NO_ENGINE,
            Worker::Cpu => CLOSED,
        };
        let mut now = self.claims.read();
        loop {
            let first = now & CLAIMED;
            if now & refused != 0 || first >= self.count {
                return None;
            }
            let left = self.count - first;
            let many = if most < left { most } else { left };
            match self.claims.replace(now, now + many) {
                Ok(_) => return Some((first, many)),
                Err(other) => now = other,
            }
        }
    }

    /// Whether `worker` might still get something.
    pub(crate) fn open(&self, worker: Worker) -> bool {
        let refused = match worker {
            Worker::Engine => CLOSED | NO_ENGINE,
            Worker::Cpu => CLOSED,
        };
        let now = self.claims.read();
        now & refused == 0 && now & CLAIMED < self.count
    }

    /// Refuses engines from now on; returns whether this is new.
    pub(crate) fn close_to_engines(&self) -> bool {
        self.close_with(NO_ENGINE)
    }

    /// Refuses everybody from now on; returns whether the request is settled thereby.
    pub(crate) fn close(&self) -> bool {
        self.close_with(CLOSED);
        self.settled()
    }

    fn close_with(&self, bit: u64) -> bool {
        let mut now = self.claims.read();
        loop {
            if now & bit != 0 {
                return false;
            }
            match self.claims.replace(now, now | bit) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
    }

    /// Whether engines are refused.
    pub(crate) fn closed_to_engines(&self) -> bool {
        self.claims.read() & (CLOSED | NO_ENGINE) != 0
    }

    /// Whether nothing is being worked on and nothing can be claimed.
    pub(crate) fn settled(&self) -> bool {
        // In this order: what is claimed after the first look was not refused, and is not finished
        // before it is claimed.
        let claims = self.claims.latest();
        let finished = self.finished.latest();
        finished == self.count || (claims & CLOSED != 0 && finished == claims & CLAIMED)
    }

    /// Whether every byte is in place.
    pub(crate) fn complete(&self) -> bool {
        self.finished.read() == self.count
    }

    /// Bytes in place from the front without a gap.
    pub(crate) fn front(&self) -> u64 {
        self.start(self.front.latest())
    }

    /// Records that a claimed fragment is in place. Called once per claim.
    pub(crate) fn finish(&self, fragment: u64) -> Finished {
        let word = |at: u64| &self.bitmap[(at / 64) as usize];
        word(fragment).add(1 << (fragment % 64));
        let mut advanced = 0;
        loop {
            // Both looks are changes of the words that they look at: of two workers that finish
            // neighbours at the same time, the later one sees what the earlier one did.
            let front = self.front.latest();
            if front == self.count || word(front).latest() >> (front % 64) & 1 == 0 {
                break;
            }
            if self.front.replace(front, front + 1).is_ok() {
                advanced += self.range(front, 1).1;
            }
        }
        self.finished.add(1);
        Finished {
            advanced,
            settled: self.settled(),
        }
    }
}
