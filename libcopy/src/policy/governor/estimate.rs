// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is known of the cost of one way.

/// The standard deviation of single calls as a part of their time, as long as it is not known.
const SPREAD: f64 = 0.3;

/// Times the lower quartile beyond which a time says nothing about the way. Of times that scatter
/// by 30 %, three in a thousand are longer.
const OUTLIER: f64 = 3.0;

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

/// What a call takes one way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The mean, in the unit of the times.
    pub mean: f64,
    /// The standard error of the mean, in the same unit.
    pub error: f64,
    /// Calls that were measured, as far as they still count.
    pub calls: f64,
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
        // Of the lower quartile: what takes much longer was interrupted, or waited for something
        // else in the program.
        let most = OUTLIER * sorted.get(sorted.len() / 4)?;
        let usual = &sorted[..sorted.partition_point(|time| *time <= most)];
        let count = usual.len() as f64;
        let mean = usual.iter().sum::<f64>() / count;
        let squares: f64 = usual.iter().map(|time| (time - mean).powi(2)).sum();
        let spread = match usual.len() {
            ..8 => SPREAD,
            _ => ((squares / (count - 1.0)).sqrt() / mean).clamp(0.02, 2.0),
        };
        Some(Estimate {
            mean,
            weight: count,
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

    /// What is told of it.
    pub(super) fn cost(&self) -> Cost {
        Cost {
            mean: self.mean,
            error: self.mean * self.variance().sqrt(),
            calls: self.weight,
        }
    }

    /// The variance of the mean, as a part of it. Without outliers it is a little less exact than
    /// of all times.
    pub(super) fn variance(&self) -> f64 {
        1.2 * self.spread * self.spread / self.weight
    }
}
