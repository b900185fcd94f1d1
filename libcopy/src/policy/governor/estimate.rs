// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is known of the cost of one way.

/// The standard deviation of single calls as a part of their time, as long as it is not known.
const SPREAD: f64 = 0.3;

/// What is known of one way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Estimate {
    /// Time of a call.
    pub(super) mean: f64,
    /// Calls that it is the mean of.
    pub(super) weight: f64,
    /// Standard deviation of a call, as a part of the mean.
    pub(super) spread: f64,
}

impl Estimate {
    /// From the times of one trial; `None` without any.
    pub(super) fn of(times: &[u64]) -> Option<Estimate> {
        let mut sorted: Vec<f64> = times
            .iter()
            .filter(|n| **n > 0)
            .map(|n| *n as f64)
            .collect();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        // Of few, those that took least: with one that was interrupted, there is no middle half.
        let middle = match count {
            0 => return None,
            1..=3 => &sorted[(count - 1) / 2..=(count - 1) / 2],
            _ => &sorted[count / 4..count - count / 4],
        };
        let mean = middle.iter().sum::<f64>() / middle.len() as f64;
        // Of a normal distribution, the quartiles are 1.35 standard deviations apart.
        let quartiles = sorted[(3 * count / 4).min(count - 1)] - sorted[count / 4];
        let spread = match count {
            ..8 => SPREAD,
            _ => (quartiles / 1.35 / mean).clamp(0.02, 2.0),
        };
        Some(Estimate {
            mean,
            weight: count as f64,
            spread,
        })
    }

    /// Adds what a trial found; what was known before weighs at most `most` calls.
    pub(super) fn add(&mut self, found: &Estimate, most: f64) {
        let old = self.weight.min(most);
        let all = old + found.weight;
        self.mean = (self.mean * old + found.mean * found.weight) / all;
        self.spread = (self.spread * old + found.spread * found.weight) / all;
        self.weight = all;
    }

    /// The variance of the mean, as a part of it. The mean of the middle half is a little less exact than that of all.
    pub(super) fn variance(&self) -> f64 {
        1.2 * self.spread * self.spread / self.weight
    }
}
