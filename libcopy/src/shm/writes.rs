// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether a rank writes what others read through its caches or past them.
//!
//! A line that another processor has read is taken back from its caches before it is written. Where
//! the two share a cache that takes as long as reading from memory what was written past the
//! caches; where they do not, several times as long. Which of both holds here the machine may not
//! say (a virtual one), and it changes when ranks move, so some of the writes are timed.

use std::time::{Duration, Instant};

/// Bytes of a line.
const LINE: usize = 64;

/// Shorter writes go through the caches: their lines are read in no time there.
const SHORTEST: usize = 4 << 10;

/// Nanoseconds for a line from which on the others are far. Of 8 KiB a line took 5 to 7 where two
/// processors share a cache, and 15 to 26 where they do not (EPYC of Zen 3 and Zen 4).
const FAR: f32 = 10.0;

/// What a line takes longer says nothing about the caches.
const LONGEST: f32 = 3.0 * FAR;

/// One of so many writes is timed; where others are far, one of so many goes through the caches to
/// be timed.
const TIMED: u32 = 16;
const LOOK: u32 = 32;

/// What writes through the caches have taken.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    /// Nanoseconds for a line, once there was a write that was timed.
    line: Option<f32>,
    /// Writes until the next one that is timed.
    left: u32,
}

/// A write.
#[derive(Debug)]
pub(crate) struct Write {
    /// Whether it goes past the caches.
    pub(crate) is_streamed: bool,
    started: Option<Instant>,
}

impl Writes {
    /// The next write has `len` bytes.
    #[inline]
    pub(crate) fn begin(&mut self, len: usize) -> Write {
        let (is_streamed, is_timed) = if len < SHORTEST {
            (false, false)
        } else {
            self.next()
        };
        Write {
            is_streamed,
            started: is_timed.then(Instant::now),
        }
    }

    /// Whether the next one goes past the caches, and whether it is timed.
    fn next(&mut self) -> (bool, bool) {
        let is_far = self.line.is_some_and(|line| line > FAR);
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                (is_far, false)
            }
            None => {
                self.left = if is_far { LOOK } else { TIMED } - 1;
                (false, true)
            }
        }
    }

    /// It has written `len` bytes.
    #[inline]
    pub(crate) fn end(&mut self, write: &Write, len: usize) {
        if let Some(started) = write.started {
            self.note(started.elapsed(), len);
        }
    }

    fn note(&mut self, time: Duration, len: usize) {
        let line = time.as_nanos() as f32 / (len / LINE).max(1) as f32;
        let line = line.min(LONGEST);
        // One that was interrupted does not turn it over.
        self.line = Some(self.line.map_or(line, |known| known + (line - known) / 8.0));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Writes of 8 KiB that take so long through the caches: how many went past them.
    fn streamed(writes: &mut Writes, count: u32, nanos: impl Fn(u32) -> u64) -> u32 {
        let mut streamed = 0;
        for number in 0..count {
            let (is_streamed, is_timed) = writes.next();
            assert!(!(is_streamed && is_timed));
            streamed += u32::from(is_streamed);
            if is_timed {
                writes.note(Duration::from_nanos(nanos(number)), 8 << 10);
            }
        }
        streamed
    }

    #[test]
    fn bytes_for_others_that_are_far_go_past_the_caches() {
        let mut writes = Writes::default();
        assert_eq!(streamed(&mut writes, 1000, |_| 800), 0);
        // One of them was interrupted.
        let one_was = |number| if number < 16 { 50_000 } else { 700 };
        assert_eq!(streamed(&mut writes, 1000, one_was), 0);
        // A rank has moved away, and comes back.
        assert!(streamed(&mut writes, 1000, |_| 2400) > 800);
        assert!(streamed(&mut writes, 2000, |_| 800) < 1000);
        assert_eq!(streamed(&mut writes, 1000, |_| 800), 0);
    }

    #[test]
    fn short_writes_stay_in_the_caches() {
        let mut writes = Writes {
            line: Some(LONGEST),
            left: 5,
        };
        assert!(!writes.begin(SHORTEST - 1).is_streamed);
        assert!(writes.begin(SHORTEST).is_streamed);
    }
}
