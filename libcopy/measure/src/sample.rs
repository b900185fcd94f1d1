// SPDX-License-Identifier: MIT OR Apache-2.0

//! What many timings say: the median and how far they spread.

use serde::Serialize;

/// Median, 10th and 90th percentile of some timings in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Half of the timings were shorter.
    pub median: f64,
    /// One in ten was shorter.
    pub p10: f64,
    /// One in ten was longer.
    pub p90: f64,
}

impl Spread {
    /// A time that does not spread.
    pub fn exactly(time: f64) -> Self {
        Self {
            median: time,
            p10: time,
            p90: time,
        }
    }

    /// Summarises timings; `None` if there are none.
    pub fn of(timings: &[f64]) -> Option<Self> {
        if timings.is_empty() {
            return None;
        }
        let mut sorted = timings.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (sorted.len() - 1) as f64;
            let (low, part) = (place.floor() as usize, place.fract());
            let high = (low + 1).min(sorted.len() - 1);
            sorted[low] * (1.0 - part) + sorted[high] * part
        };
        Some(Self {
            median: at(0.5),
            p10: at(0.1),
            p90: at(0.9),
        })
    }
}

/// Launches are in different modes if one takes this many times as long as another.
const MODES: f64 = 1.4;

/// The medians of launches in ascending order, if they differ so much that the launches were in
/// different modes: then only what was compared inside one launch says anything.
pub fn modes(mut medians: Vec<f64>) -> Option<Vec<f64>> {
    medians.sort_unstable_by(f64::total_cmp);
    let (first, last) = (medians.first()?, medians.last()?);
    (*last > first * MODES).then_some(medians)
}

/// The geometric mean; `None` of no values.
pub fn geometric_mean(values: &[f64]) -> Option<f64> {
    let sum: f64 = values.iter().map(|v| v.ln()).sum();
    (!values.is_empty()).then(|| (sum / values.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_interpolate() {
        let timings: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        assert_eq!(
            Spread::of(&timings),
            Some(Spread {
                median: 5.0,
                p10: 1.0,
                p90: 9.0
            })
        );
        assert_eq!(Spread::of(&[3.0]), Some(Spread::exactly(3.0)));
        assert_eq!(Spread::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn launches_far_apart_are_in_different_modes() {
        assert_eq!(modes(vec![10.0, 9.0, 12.0]), None);
        assert_eq!(modes(vec![10.0, 15.0]), Some(vec![10.0, 15.0]));
        assert_eq!(modes(vec![]), None);
    }
}
