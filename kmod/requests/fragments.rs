// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0

//! [`Fragments`]: who works on which part of a request, without a lock.
//!
//! A request is cut into fragments by arithmetic alone. One atomic counts how many have been
//! claimed (in order), so that no fragment is claimed twice; finished ones are marked in a bitmap,
//! from which follows how much is in place from the front without a gap. A fragment is finished in
//! two steps: it is marked, which tells what is to be published, and counted, after which the
//! request may end. This file depends on nothing but [`Word`], and is checked with loom by the
//! library's tests.

use super::atomic::Word;

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

/// What became of the gapless front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Front {
    /// Bytes that the caller's call added to it.
    pub(crate) advanced: u64,
    /// Whether there is more to add: call [`Fragments::advance`] again.
    pub(crate) more: bool,
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

/// Words of a bitmap for `count` fragments.
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

    /// Records that a claimed fragment is in place, and advances the front as [`Self::advance`]
    /// does. Called once per claim; [`Self::settle`] comes after it.
    pub(crate) fn mark(&self, fragment: u64, steps: u32) -> Front {
        self.word(fragment).add(1 << (fragment % 64));
        self.advance(steps)
    }

    /// Advances the front over what is in place behind it, bounded by `steps` words of the bitmap.
    pub(crate) fn advance(&self, steps: u32) -> Front {
        let mut advanced = 0;
        for _ in 0..steps {
            let (front, ready) = self.ready();
            if ready == 0 {
                return Front {
                    advanced,
                    more: false,
                };
            }
            if self.front.replace(front, front + ready).is_ok() {
                advanced += self.range(front, ready).1;
            }
        }
        Front {
            advanced,
            more: self.ready().1 != 0,
        }
    }

    /// The front, and how many fragments behind it are in place in the same word of the bitmap.
    fn ready(&self) -> (u64, u64) {
        // Both looks are changes of the words that they look at: of two workers that finish
        // neighbours at the same time, the later one sees what the earlier one did.
        let front = self.front.latest();
        if front == self.count {
            return (front, 0);
        }
        let rest = self.word(front).latest() >> (front % 64);
        (front, rest.trailing_ones().into())
    }

    fn word(&self, fragment: u64) -> &Word {
        &self.bitmap[(fragment / 64) as usize]
    }

    /// Counts marked fragments as finished; returns whether the request is settled. More than one
    /// caller may hear that it is.
    ///
    /// Called when what [`Self::mark`] returned has been published: the request may end at once,
    /// and nothing of it changes after its end.
    pub(crate) fn settle(&self, many: u64) -> bool {
        self.finished.add(many);
        self.settled()
    }
}
