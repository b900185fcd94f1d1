// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether something is done that is not always of use: the more often it was of none, the less
//! often.

use std::sync::atomic::{AtomicU32, Ordering};

/// How often the number of times that it is left out is doubled, once for each time that it was of
/// no use.
const MOST_DOUBLINGS: u32 = 7;

/// Whether something that is not always of use is done.
#[derive(Debug, Default)]
pub struct Backoff {
    /// Times one after the other that it was of none.
    useless: AtomicU32,
    /// Times that it is left out from now on.
    left_out: AtomicU32,
}

impl Backoff {
    /// Whether it is done this time.
    pub fn admits(&self) -> bool {
        let less = |times: u32| times.checked_sub(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.left_out.fetch_update(set, fetch, less).is_err()
    }

    /// Leaves it out `times` times.
    pub fn skip(&self, times: u32) {
        self.left_out.store(times, Ordering::Relaxed);
    }

    /// What was admitted was of use, or not.
    pub fn note(&self, useful: bool) {
        if useful {
            self.useless.store(0, Ordering::Relaxed);
        } else {
            let before = self.useless.fetch_add(1, Ordering::Relaxed);
            self.skip((1 << before.min(MOST_DOUBLINGS)) - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_no_use_is_done_less_and_less() {
        let backoff = Backoff::default();
        // How many times it is left out after each time.
        let left_out = |useful| {
            backoff.note(useful);
            (0..).take_while(|_| !backoff.admits()).count()
        };
        assert!(backoff.admits());
        let useless: Vec<usize> = (0..10).map(|_| left_out(false)).collect();
        assert_eq!(useless, [0, 1, 3, 7, 15, 31, 63, 127, 127, 127]);
        assert_eq!(
            [left_out(true), left_out(false), left_out(false)],
            [0, 0, 1]
        );
    }
}
