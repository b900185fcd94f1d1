// SPDX-License-Identifier: MIT OR Apache-2.0

//! Who looks after whom: all who wait look at all others together, each at a few.
//!
//! A look costs a system call. If each of N waiting ranks looked at all others in each period, that
//! would be N² calls. So they draw from one word in shared memory: it says up to when all have been
//! looked at, and who comes next. Who draws gets as many as time has passed for since the last one
//! has drawn, and everybody at most. So all together make N calls in a period, however many wait: a
//! rank that waits alone looks at everybody, one of N at one other. Who draws and dies before it
//! has looked costs a period.

use std::ops::Range;
use std::time::Duration;

use super::sync::{AtomicU64, Ordering};

/// Bits of who comes next; above them are microseconds of `CLOCK_MONOTONIC`.
const NEXT: u32 = 16;
const TIME: u64 = u64::MAX >> NEXT;

/// The word. All zeros at first.
#[cfg_attr(not(loom), repr(transparent))]
#[derive(Debug)]
pub struct Turns(AtomicU64);

/// Some of `members`, in a circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drawn {
    first: usize,
    count: usize,
    members: usize,
}

impl Drawn {
    /// Who they are.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let range: Range<usize> = self.first..self.first + self.count;
        range.map(move |at| at % self.members)
    }
}

impl Turns {
    /// Whom the caller looks at now, so that all of `members` are looked at once in a `period`.
    pub fn draw(&self, members: usize, period: Duration) -> Drawn {
        self.draw_at(now(), members, period)
    }

    fn draw_at(&self, now: u64, members: usize, period: Duration) -> Drawn {
        let now = now & TIME;
        let all = members.min(1 << NEXT) as u64;
        let period = period.as_micros() as u64;
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (then, next) = (word >> NEXT, word & ((1 << NEXT) - 1));
            let first = if next < all { next } else { 0 };
            // A clock of another time namespace may be behind.
            let passed = now.checked_sub(then).unwrap_or(period).min(period);
            let count = passed * all / period.max(1);
            let none = Drawn {
                first: 0,
                count: 0,
                members,
            };
            if count == 0 {
                return none;
            }
            // What is left of the time that has passed counts next time.
            let until = if count == all {
                now
            } else {
                then + (count * period).div_ceil(all)
            };
            let next = (first + count) % all;
            let drawn = until << NEXT | next;
            let order = Ordering::Relaxed;
            match self.0.compare_exchange(word, drawn, order, order) {
                Ok(_) => {
                    return Drawn {
                        first: first as usize,
                        count: count as usize,
                        members,
                    };
                }
                Err(other) => word = other,
            }
        }
    }
}

/// Microseconds of the clock that all processes of a machine have.
fn now() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a writable output; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(200);

    fn turns() -> Turns {
        Turns(AtomicU64::new(0))
    }

    #[test]
    fn who_is_alone_looks_at_everybody() {
        let turns = turns();
        for round in 1..5 {
            let drawn = turns.draw_at(round * 200_000, 100, PERIOD);
            let mut all: Vec<_> = drawn.iter().collect();
            all.sort_unstable();
            assert_eq!(all, (0..100).collect::<Vec<_>>());
        }
        assert_eq!(turns.draw_at(800_000, 100, PERIOD).count, 0);
    }

    /// Each of many draws once in a period, at times of its own: together they look at each other
    /// once.
    #[test]
    fn many_look_at_one_each() {
        for members in [2, 3, 64, 128, 1000, 1024] {
            let turns = turns();
            let mut looks = vec![0; members];
            let start = 1_000_000;
            turns.draw_at(start, members, PERIOD);
            for round in 0..10u64 {
                for member in 0..members as u64 {
                    let now = start + round * 200_000 + (member + 1) * 200_000 / members as u64;
                    let drawn = turns.draw_at(now, members, PERIOD);
                    assert!(drawn.count <= 2, "{members} {drawn:?}");
                    drawn.iter().for_each(|member| looks[member] += 1);
                }
            }
            let range = (looks.iter().min(), looks.iter().max());
            assert!(
                matches!(range, (Some(9..=10), Some(10))),
                "{members}: {range:?}"
            );
        }
    }

    /// In time namespaces clocks differ. Nobody is forgotten for that.
    #[test]
    fn clocks_that_differ_cost_looks_and_no_more() {
        let turns = turns();
        let mut looks = [0; 8];
        for round in 0..100 {
            let now = if round % 2 == 0 { 9_000_000 } else { 1_000_000 } + round * 100_000;
            turns
                .draw_at(now, 8, PERIOD)
                .iter()
                .for_each(|member| looks[member] += 1);
        }
        assert!(looks.iter().all(|looks| *looks >= 25), "{looks:?}");
    }
}
