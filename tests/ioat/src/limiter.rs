// SPDX-License-Identifier: MIT OR Apache-2.0

//! Holds an engine to a bandwidth in virtual time.

use std::time::{Duration, Instant};

/// How much lateness of this machine's clock is made up for: an engine that was woken too late goes
/// faster until it is where it should be, but never by more than this.
pub const ALLOWANCE: Duration = Duration::from_millis(10);

/// The time that an engine lives in: it passes with the bytes that are copied, stands still while
/// there is nothing to do, and is never further behind ours than [`ALLOWANCE`].
pub struct Limiter {
    rate: Option<u64>,
    clock: Instant,
    idle_since: Option<Instant>,
}

impl Limiter {
    /// A limit in bytes per second; `None` does not limit.
    pub fn new(rate: Option<u64>, now: Instant) -> Self {
        Self {
            rate,
            clock: now,
            idle_since: Some(now),
        }
    }

    /// Bytes per second.
    pub fn rate(&self) -> Option<u64> {
        self.rate
    }

    /// Sets another limit for what begins from now on.
    pub fn set_rate(&mut self, rate: Option<u64>) {
        self.rate = rate;
    }

    /// There is nothing to do: idle time is not saved up for a burst later.
    pub fn idle(&mut self, now: Instant) {
        self.idle_since.get_or_insert(now);
    }

    /// Begins to copy `bytes` and says when that is finished.
    pub fn begin(&mut self, bytes: u64, now: Instant) -> Instant {
        if let Some(since) = self.idle_since.take() {
            self.clock += now.saturating_duration_since(since);
        }
        let Some(rate) = self.rate else {
            self.clock = now;
            return now;
        };
        if let Some(earliest) = now.checked_sub(ALLOWANCE) {
            self.clock = self.clock.max(earliest);
        }
        self.clock += cost(bytes, rate);
        self.clock
    }

    /// Takes back [`Limiter::begin`]: nothing was copied after all.
    pub fn cancel(&mut self, bytes: u64) {
        if let Some(clock) = self
            .rate
            .and_then(|rate| self.clock.checked_sub(cost(bytes, rate)))
        {
            self.clock = clock;
        }
    }
}

fn cost(bytes: u64, rate: u64) -> Duration {
    let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: u64 = 64 << 10;
    const RATE: u64 = 100_000_000;

    /// Copies `slices` slices back to back, each finished `late` too late; returns when the last
    /// one is.
    fn run(limiter: &mut Limiter, mut now: Instant, slices: u32, late: Duration) -> Instant {
        for _ in 0..slices {
            now = limiter.begin(SLICE, now).max(now) + late;
        }
        now
    }

    #[test]
    fn the_rate_holds_although_every_wake_up_is_late() {
        let begin = Instant::now();
        for late in [0, 50, 300] {
            let mut limiter = Limiter::new(Some(RATE), begin);
            let took = run(&mut limiter, begin, 1000, Duration::from_micros(late)) - begin;
            let ideal = 1000.0 * SLICE as f64 / RATE as f64;
            let ratio = took.as_secs_f64() / ideal;
            assert!((0.999..1.01).contains(&ratio), "late {late} us: {ratio}");
        }
    }

    #[test]
    fn lateness_beyond_the_allowance_is_lost() {
        let begin = Instant::now();
        let mut limiter = Limiter::new(Some(RATE), begin);
        let now = begin + Duration::from_millis(1);
        limiter.begin(SLICE, begin);
        // One long stall of a second; then no more than the allowance is made up for.
        let stalled = now + Duration::from_secs(1);
        let end = run(&mut limiter, stalled, 100, Duration::ZERO);
        let ideal = Duration::from_secs_f64(100.0 * SLICE as f64 / RATE as f64);
        assert_eq!(end - stalled, ideal - ALLOWANCE);
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let begin = Instant::now();
        let mut limiter = Limiter::new(Some(RATE), begin);
        let end = run(&mut limiter, begin, 1, Duration::ZERO);
        limiter.idle(end);
        limiter.idle(end + Duration::from_secs(1));
        let later = end + Duration::from_secs(5);
        let ideal = Duration::from_nanos(SLICE * 1_000_000_000 / RATE);
        assert_eq!(limiter.begin(SLICE, later), later + ideal);
        limiter.cancel(SLICE);
        assert_eq!(limiter.begin(SLICE, later), later + ideal);
    }

    #[test]
    fn without_a_limit_everything_is_finished_at_once() {
        let begin = Instant::now();
        let mut limiter = Limiter::new(None, begin);
        let now = begin + Duration::from_secs(1);
        assert_eq!(limiter.begin(u64::MAX, now), now);
        limiter.set_rate(Some(RATE));
        let ideal = Duration::from_nanos(SLICE * 1_000_000_000 / RATE);
        assert_eq!(limiter.begin(SLICE, now), now + ideal);
    }
}
