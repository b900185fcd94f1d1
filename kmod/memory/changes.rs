// SPDX-License-Identifier: GPL-2.0

//! [`Changes`]: the changes of an address space that the memory manager has announced: which are
//! under way, and the last ones, by number.
//!
//! It is used under a spin lock while somebody waits for memory, so it has a fixed size, and a
//! change is noted in a time that depends on nothing but [`UNDER_WAY`]. Who wants to know whether
//! its memory is among what has changed reads on from the change that it has read last; who comes
//! too late for that hears so.

/// Changes that are remembered.
const REMEMBERED: u64 = 64;

/// Changes under way that are told apart: threads of a process that unmap memory at the same time.
const UNDER_WAY: usize = 16;

/// Start and end.
type Range = (u64, u64);

/// The changes of one address space.
pub(crate) struct Changes {
    /// The change `number` is at `number % REMEMBERED`.
    last: [Range; REMEMBERED as usize],
    /// Number of the last change.
    count: u64,
    /// Empty ranges are free places.
    under_way: [Range; UNDER_WAY],
    /// Changes under way for which there was no place.
    unlisted: usize,
}

/// A number from which nobody can read on: whoever has read no further must look at its memory.
pub(crate) const NEVER: u64 = 0;

impl Changes {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self {
            last: [(0, 0); REMEMBERED as usize],
            count: REMEMBERED + 1,
            under_way: [(0, 0); UNDER_WAY],
            unlisted: 0,
        }
    }

    /// Number of the last change.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// A change of `range` begins.
    pub(crate) fn begin(&mut self, range: Range) {
        match self.under_way.iter_mut().find(|known| known.0 == known.1) {
            Some(free) if range.0 < range.1 => *free = range,
            _ => self.unlisted += 1,
        }
    }

    /// It is over. Changes of equal ranges need not be told apart.
    pub(crate) fn end(&mut self, range: Range) {
        match self.under_way.iter_mut().find(|known| **known == range) {
            Some(known) if range.0 < range.1 => *known = (0, 0),
            _ => self.unlisted = self.unlisted.saturating_sub(1),
        }
    }

    /// Remembers a change, which gets the next number.
    pub(crate) fn note(&mut self, range: Range) {
        self.count += 1;
        self.last[(self.count % REMEMBERED) as usize] = range;
    }

    /// Whether a change may be under way for whose range `test` holds.
    pub(crate) fn any_under_way(&self, mut test: impl FnMut(Range) -> bool) -> bool {
        let listed = self.under_way.iter().filter(|range| range.0 != range.1);
        self.unlisted != 0 || listed.into_iter().any(|range| test(*range))
    }

    /// The changes behind that of a number; none if not all of them are remembered.
    pub(crate) fn since(&self, number: u64) -> Option<impl Iterator<Item = Range> + '_> {
        let missed = self.count.checked_sub(number)?;
        let last = |number: u64| self.last[(number % REMEMBERED) as usize];
        (missed <= REMEMBERED).then(|| (number + 1..=self.count).map(last))
    }
}
