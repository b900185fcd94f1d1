// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which of two ways to do the same is faster, by what one process sees each of them take.
//!
//! For work that is measured every time and whose parties learn nothing from each other: one
//! running estimate per way, and looks at the slower one, which together may cost one part in
//! [`BUDGET`] of the time. Where the ranks have to agree, or measuring costs as much as the work,
//! `libcopy::policy::governor` decides; where the program's own work is in what is measured,
//! `libcopy::policy::monitor` does. It is in this crate since lists of pieces are moved by it, and
//! messages in `libcopy` are, too.
//!
//! The three do not share an estimator: the [`Estimate`] here is made of one sample at a time,
//! without memory of earlier ones, since it stands in a message's path. The mean of the middle half
//! that the governor takes needs all times of a trial at once, and the monitor's median needs the
//! last intervals. `docs/design/architecture.md` compares them.

/// Samples of either way before they are compared: the first one finds nothing in its place.
pub const SAMPLES: u32 = 2;
/// The part of the time, as a divisor, that may be lost by taking the slower way, to see whether it
/// still is.
const BUDGET: u64 = 100;
/// Samples between two such looks, at least and at most.
const BETWEEN: [u64; 2] = [64, 1 << 16];
/// Samples of a way below which it is not believed to take more than [`DOUBTED`] times as long as
/// the other. Where ranks share processors, the process may lose its processor in each of the first
/// samples: a way that took a third of the other's time seemed to take a hundred times as long, and
/// was tried again after 10,000 samples (four ranks on two processors).
const FEW: u32 = 8;
const DOUBTED: u64 = 4;

/// What a way takes, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    nanos: u64,
    samples: u32,
}

impl Estimate {
    /// It took so long. What is quicker than all before is believed at once, what is slower little
    /// by little, since it may have been the machine.
    fn note(&mut self, nanos: u64) {
        self.nanos = match self.samples {
            0 => nanos,
            _ if nanos < self.nanos => nanos,
            _ => self.nanos + (nanos - self.nanos).min(self.nanos) / 8,
        };
        self.samples = self.samples.saturating_add(1);
    }
}

/// What is known of two ways, which have the numbers 0 and 1.
#[derive(Clone, Copy, Debug, Default)]
pub struct Comparison {
    estimates: [Estimate; 2],
    /// Samples since both ways have been known, or since the last look at the slower one.
    since: u64,
}

impl Comparison {
    /// The faster way and how often it is taken until the other is tried again; `None` as long as
    /// both are not known.
    pub fn settled(&self) -> Option<(usize, u64)> {
        if self.estimates.iter().any(|known| known.samples < SAMPLES) {
            return None;
        }
        let [first, second] = self.estimates.map(|known| known.nanos.max(1));
        let way = usize::from(second <= first);
        let (best, mut more) = (first.min(second), first.abs_diff(second));
        if self.estimates[1 - way].samples < FEW {
            more = more.min(best.saturating_mul(DOUBTED - 1));
        }
        let [least, most] = BETWEEN;
        let between = more.saturating_mul(BUDGET).div_ceil(best);
        let left = between.clamp(least, most).saturating_sub(self.since);
        Some((way, left))
    }

    /// The way to take next.
    pub fn choose(&self) -> usize {
        match self.settled() {
            Some((way, 0)) => 1 - way,
            Some((way, _)) => way,
            None => usize::from(self.estimates[1].samples < SAMPLES),
        }
    }

    /// A way took so long.
    pub fn note(&mut self, way: usize, nanos: u64) {
        let is_look = matches!(self.settled(), Some((best, _)) if best != way);
        self.estimates[way].note(nanos);
        self.since = if is_look { 0 } else { self.since + 1 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `work` samples, of which each way takes the given nanoseconds: how much took which way.
    fn run(ways: &mut Comparison, work: usize, nanos: [u64; 2]) -> [usize; 2] {
        let mut count = [0; 2];
        for _ in 0..work {
            let way = ways.choose();
            ways.note(way, nanos[way]);
            count[way] += 1;
        }
        count
    }

    #[test]
    fn the_faster_way_is_taken() {
        for (nanos, slower) in [([28, 55], 1), ([55, 28], 0)] {
            let count = run(&mut Comparison::default(), 5000, nanos);
            let lost = count[slower] as u64 * nanos[slower].abs_diff(nanos[1 - slower]);
            let all = 5000 * nanos[1 - slower];
            assert!(count[slower] > SAMPLES as usize, "{count:?}");
            assert!(lost <= all / 50, "{count:?}");
        }
    }

    #[test]
    fn what_changes_is_noticed() {
        let mut ways = Comparison::default();
        run(&mut ways, 1000, [100, 150]);
        let [first, second] = run(&mut ways, 1000, [400, 150]);
        assert!(second > 900, "{first} {second}");
        // The way that was slower has become the faster one: only a look can find that.
        let [first, second] = run(&mut ways, 2000, [20, 150]);
        assert!(first > 1500, "{first} {second}");
    }

    #[test]
    fn a_way_that_was_held_up_each_time_is_tried_again() {
        let mut ways = Comparison::default();
        for nanos in [100, 100, 50_000, 50_000] {
            ways.note(ways.choose(), nanos);
        }
        let [first, second] = run(&mut ways, 1000, [100, 33]);
        assert!(second > 600, "{first} {second}");
        // One that does take so long costs little all the same.
        let [_, slow] = run(&mut Comparison::default(), 20_000, [100, 50_000]);
        assert!(slow <= FEW as usize, "{slow}");
    }

    #[test]
    fn one_that_was_held_up_changes_nothing() {
        let mut ways = Comparison::default();
        run(&mut ways, 20, [100, 150]);
        ways.note(0, 50_000);
        assert_eq!(ways.choose(), 0);
    }
}
