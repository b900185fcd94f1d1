// SPDX-License-Identifier: MIT OR Apache-2.0

//! The confidence interval of a median. tests/xtask compiles this file too, so it uses nothing of
//! its neighbours.

/// A median with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The median.
    pub median: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// By order statistics, whatever the distribution: the k-th lowest and k-th highest value,
    /// where k is the largest number for which fewer than k of n fair coins show heads with a
    /// probability of at most 2.5 %. With fewer than six values, their extremes. `None` without
    /// values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let n = sorted.len();
        let median = (sorted.get(n.checked_sub(1)? / 2)? + sorted[n / 2]) / 2.0;
        // Terms of the binomial distribution, summed up from the lowest; in logarithms, for large
        // n.
        let (mut k, mut sum, mut term) = (0, 0.0, -(n as f64) * 2f64.ln());
        while k < n / 2 {
            sum += term.exp();
            if sum > 0.025 {
                break;
            }
            term += ((n - k) as f64 / (k + 1) as f64).ln();
            k += 1;
        }
        let k = k.max(1);
        Some(Self {
            median,
            low: sorted[k - 1],
            high: sorted[n - k],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_sign_test() {
        let values = |n: usize| (1..=n).map(|v| v as f64).collect::<Vec<_>>();
        let ends = |n| {
            let interval = Interval::of(&values(n)).unwrap();
            (interval.low, interval.high)
        };
        // Conover, Practical Nonparametric Statistics: ranks for 95 %.
        assert_eq!(ends(6), (1.0, 6.0));
        assert_eq!(ends(9), (2.0, 8.0));
        assert_eq!(ends(20), (6.0, 15.0));
        assert_eq!(ends(100), (40.0, 61.0));
        assert_eq!(ends(1), (1.0, 1.0));
        assert_eq!(Interval::of(&[]), None);
        assert_eq!(Interval::of(&values(2000)).unwrap().median, 1000.5);
    }
}
