// SPDX-License-Identifier: GPL-2.0

//! [`Changed`]: addresses that the memory manager has announced changes of.
//!
//! It is used under a spin lock while somebody waits for memory, so it has a fixed size and nothing
//! here is longer than [`RANGES`] steps.

/// Ranges that are told apart; a buffer that is guarded changes at its two ends.
const RANGES: usize = 4;

/// Addresses that may show other pages than before.
#[derive(Clone, Copy, Default)]
pub(crate) struct Changed {
    /// Start and end; the first `count` are in use.
    ranges: [(u64, u64); RANGES],
    count: usize,
}

impl Changed {
    /// Adds `start..end`. Called with a spin lock held: bounded by [`RANGES`].
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        let used = &mut self.ranges[..self.count];
        let known = used
            .iter()
            .position(|&(low, high)| start <= high && low <= end);
        // What is one too many makes the last one larger.
        let index = match known {
            Some(index) => index,
            None if self.count < RANGES => {
                self.ranges[self.count] = (start, end);
                self.count += 1;
                return;
            }
            None => RANGES - 1,
        };
        let (low, high) = self.ranges[index];
        self.ranges[index] = (u64::min(low, start), u64::max(high, end));
    }

    /// The first of them in `start..end`: where it starts and ends. Bounded by [`RANGES`].
    pub(crate) fn first(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        self.ranges[..self.count]
            .iter()
            .map(|&(low, high)| (u64::max(low, start), u64::min(high, end)))
            .filter(|(low, high)| low < high)
            .min()
    }
}
