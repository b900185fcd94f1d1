// SPDX-License-Identifier: MIT OR Apache-2.0

//! Blocks of calls that alternate inside one launch, plain and intercepted
//! (`tests/peers/mpi_paired.h`): the paired ratio, its confidence interval, and the control of
//! plain against plain.

use anyhow::{Result, ensure};
use libcopy_measure::interval::Interval;
use libcopy_measure::sample::{Spread, modes};

/// How far the control may be from 1.
pub const CONTROL: f64 = 0.03;

/// Four blocks that follow each other: microseconds per call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// Of the plain library, the first and the last of the four.
    pub plain: [f64; 2],
    /// Intercepted.
    pub intercepted: [f64; 2],
}

impl Round {
    /// Reads `PLAIN:INTERCEPTED:INTERCEPTED:PLAIN`.
    ///
    /// # Errors
    ///
    /// Names the text, if it is not four positive numbers.
    pub fn parse(text: &str) -> Result<Self> {
        let numbers: Vec<f64> = text.split(':').filter_map(|n| n.parse().ok()).collect();
        let fine = numbers.len() == 4 && numbers.iter().all(|n| n.is_finite() && *n > 0.0);
        ensure!(
            fine && text.split(':').count() == 4,
            "round {text:?} is not four positive times separated by colons"
        );
        Ok(Self {
            plain: [numbers[0], numbers[3]],
            intercepted: [numbers[1], numbers[2]],
        })
    }

    /// How many times as fast the intercepted calls were.
    fn gain(&self) -> f64 {
        self.plain.iter().sum::<f64>() / self.intercepted.iter().sum::<f64>()
    }

    fn control(&self) -> f64 {
        self.plain[0] / self.plain[1]
    }
}

/// A case: the rounds of all launches.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    launches: Vec<Vec<Round>>,
}

impl Pairs {
    /// Adds the rounds of a launch.
    pub fn add(&mut self, rounds: Vec<Round>) {
        self.launches.push(rounds);
    }

    fn rounds(&self) -> impl Iterator<Item = &Round> {
        self.launches.iter().flatten()
    }

    /// How many times as fast intercepted calls were.
    pub fn gain(&self) -> Option<Interval> {
        Interval::of(&self.rounds().map(Round::gain).collect::<Vec<_>>())
    }

    /// How many times as fast plain calls were as plain ones: the control.
    pub fn control(&self) -> Option<Interval> {
        Interval::of(&self.rounds().map(Round::control).collect::<Vec<_>>())
    }

    /// Microseconds of plain and of intercepted calls.
    pub fn times(&self) -> Option<[Spread; 2]> {
        let plain: Vec<f64> = self.rounds().flat_map(|r| r.plain).collect();
        let intercepted: Vec<f64> = self.rounds().flat_map(|r| r.intercepted).collect();
        Some([Spread::of(&plain)?, Spread::of(&intercepted)?])
    }

    /// The plain library's median of each launch, if launches were in different [`modes`].
    pub fn modes(&self) -> Option<Vec<f64>> {
        let median = |rounds: &Vec<Round>| {
            let plain: Vec<f64> = rounds.iter().flat_map(|r| r.plain).collect();
            Some(Spread::of(&plain)?.median)
        };
        modes(self.launches.iter().filter_map(median).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_read_and_what_is_none_is_named() {
        let round = Round::parse("4:1:3:12").unwrap();
        assert_eq!((round.gain(), round.control()), (4.0, 1.0 / 3.0));
        for wrong in ["", "1:2:3", "1:2:3:4:5", "1:2:x:4", "1:2:0:4", "1:2:inf:4"] {
            let error = Round::parse(wrong).unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }

    #[test]
    fn gains_are_paired_whatever_mode_a_launch_is_in() {
        let mut pairs = Pairs::default();
        for speed in [1.0, 5.0, 1.0] {
            let round = |noise: f64| Round {
                plain: [12.0 * speed, 12.0 * speed * noise],
                intercepted: [10.0 * speed, 10.0 * speed * noise],
            };
            pairs.add([0.99, 1.0, 1.01].map(round).to_vec());
        }
        let gain = pairs.gain().unwrap();
        assert!((gain.low - 1.2).abs() < 1e-9 && (gain.high - 1.2).abs() < 1e-9);
        let control = pairs.control().unwrap();
        assert!((control.median - 1.0).abs() < CONTROL, "{control:?}");
        let modes = pairs.modes().unwrap();
        assert_eq!(modes.len(), 3);
        assert!((modes[0] - 12.0).abs() < 0.2 && (modes[2] - 60.0).abs() < 1.0);
        assert!(pairs.times().unwrap()[0].median < 13.0);
    }
}
