// SPDX-License-Identifier: MIT OR Apache-2.0

//! An MPI program that is run plain and with `libcopy_mpi.so` in turns: what the times of the pairs
//! say, and whether the outputs are the same.

use anyhow::{Context, Result, bail};
use libcopy_measure::interval::Interval;
use libcopy_measure::progress;
use libcopy_report::seconds;
use serde::Serialize;
use std::collections::HashMap;

/// One run: seconds, and what was printed.
pub struct Run {
    /// From the start to the end.
    pub wall: f64,
    /// Of all processors.
    pub cpu: f64,
    /// What was printed.
    pub output: Vec<u8>,
}

/// Seconds plain and preloaded: medians, and the 95 % interval of what a pair differs by.
#[derive(Serialize, Debug)]
struct Times {
    plain_s: f64,
    preloaded_s: f64,
    /// Plain less preloaded: what was saved.
    saved_s: f64,
    low_s: f64,
    high_s: f64,
}

impl Times {
    fn of(pairs: &[[f64; 2]]) -> Option<Times> {
        let medians = [0, 1].map(|way| {
            let all: Vec<f64> = pairs.iter().map(|pair| pair[way]).collect();
            Interval::of(&all).map(|interval| interval.median)
        });
        let saved: Vec<f64> = pairs.iter().map(|[plain, own]| plain - own).collect();
        let interval = Interval::of(&saved)?;
        Some(Times {
            plain_s: medians[0]?,
            preloaded_s: medians[1]?,
            saved_s: interval.median,
            low_s: interval.low,
            high_s: interval.high,
        })
    }
}

/// How the outputs of two runs compare.
#[derive(Serialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Outputs {
    Equal,
    /// The same lines, in another order: ranks print as they get on.
    EqualButForOrder,
    /// The first line that only one of them has.
    Differ(String),
    /// Two plain runs differ as well: times, for example.
    DifferPlain(String),
}

/// What was found.
#[derive(Serialize, Debug)]
pub struct Comparison {
    pairs: usize,
    wall: Times,
    cpu: Times,
    outputs: Outputs,
}

/// Runs a program plain (way 0) and preloaded (way 1) in turns, each pair in the other order than
/// the one before, after one run of either that is not counted.
///
/// # Errors
///
/// Those of a run.
pub fn compare(pairs: u32, mut run: impl FnMut(usize) -> Result<Run>) -> Result<Comparison> {
    let bar = progress::bar(2 * (u64::from(pairs) + 1));
    let mut run = |way: usize, number: u32| {
        let name = ["plain", "preloaded"][way];
        bar.set_message(name);
        let result = run(way);
        bar.inc(1);
        result.with_context(|| format!("run {number}, {name}"))
    };
    // Files and pages are read for the first time in these.
    let first = [run(0, 0)?, run(1, 0)?];
    let mut outputs = compared(&first[0].output, &first[1].output);
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    for pair in 1..=pairs {
        let order = if pair % 2 == 0 { [1, 0] } else { [0, 1] };
        let mut runs = [None, None];
        for way in order {
            runs[way] = Some(run(way, pair)?);
        }
        let [Some(plain), Some(own)] = runs else {
            bail!("a pair has two runs");
        };
        wall.push([plain.wall, own.wall]);
        cpu.push([plain.cpu, own.cpu]);
        outputs = outputs.and(
            || compared(&plain.output, &own.output),
            || compared(&first[0].output, &plain.output),
        );
    }
    bar.finish_and_clear();
    Ok(Comparison {
        pairs: wall.len(),
        wall: Times::of(&wall).context("there was no pair")?,
        cpu: Times::of(&cpu).context("there was no pair")?,
        outputs,
    })
}

/// How two outputs compare.
fn compared(plain: &[u8], own: &[u8]) -> Outputs {
    if plain == own {
        return Outputs::Equal;
    }
    let mut lines: HashMap<&[u8], i64> = HashMap::new();
    for line in plain.split(|byte| *byte == b'\n') {
        *lines.entry(line).or_default() += 1;
    }
    for line in own.split(|byte| *byte == b'\n') {
        *lines.entry(line).or_default() -= 1;
    }
    let first = |outputs: &[&[u8]]| {
        let mut all = outputs
            .iter()
            .flat_map(|output| output.split(|byte| *byte == b'\n'));
        let line = all.find(|line| lines.get(line).is_some_and(|times| *times != 0));
        line.map(|line| String::from_utf8_lossy(line).into_owned())
    };
    match first(&[own, plain]) {
        None => Outputs::EqualButForOrder,
        Some(line) => Outputs::Differ(line),
    }
}

impl Outputs {
    /// With another pair: what is worse of both. Where a plain run differs from another plain one,
    /// that is said instead.
    fn and(self, pair: impl FnOnce() -> Outputs, plain: impl FnOnce() -> Outputs) -> Outputs {
        if let Outputs::DifferPlain(_) = self {
            return self;
        }
        let pair = pair();
        let worse = match (self, pair) {
            (Outputs::Differ(line), _) | (_, Outputs::Differ(line)) => Outputs::Differ(line),
            (Outputs::Equal, Outputs::Equal) => Outputs::Equal,
            _ => Outputs::EqualButForOrder,
        };
        match (worse, plain()) {
            (_, Outputs::Differ(line)) => Outputs::DifferPlain(line),
            (worse, _) => worse,
        }
    }
}

impl Comparison {
    /// Whether the outputs differ, and plain runs do not.
    pub fn differs(&self) -> bool {
        matches!(self.outputs, Outputs::Differ(_))
    }

    /// The verdict, and the times as a table.
    pub fn text(&self) -> String {
        let wall = &self.wall;
        let share = |time: f64| 100.0 * time / wall.plain_s;
        let pairs = self.pairs;
        let certain = wall.low_s > 0.0 || wall.high_s < 0.0;
        let verdict = if pairs < 6 {
            format!("{pairs} pairs are too few for a verdict (6 or more are needed)")
        } else if !certain {
            format!(
                "no difference that can be told: between {} lost and {} saved of {}",
                seconds(-wall.low_s),
                seconds(wall.high_s),
                seconds(wall.plain_s)
            )
        } else {
            let word = if wall.low_s > 0.0 { "saves" } else { "costs" };
            let mut ends = [wall.low_s, wall.high_s].map(f64::abs);
            ends.sort_by(f64::total_cmp);
            format!(
                "libcopy {word} {} to {} of {} ({:.1} to {:.1} %)",
                seconds(ends[0]),
                seconds(ends[1]),
                seconds(wall.plain_s),
                share(ends[0]),
                share(ends[1])
            )
        };
        let row = |name: &str, times: &Times| {
            format!(
                "{name:<10} {:>10} {:>10} {:>10}   {} to {}\n",
                seconds(times.plain_s),
                seconds(times.preloaded_s),
                seconds(times.saved_s),
                seconds(times.low_s),
                seconds(times.high_s)
            )
        };
        let outputs = match &self.outputs {
            Outputs::Equal => "the outputs are equal".to_owned(),
            Outputs::EqualButForOrder => {
                "the outputs are equal but for the order of their lines".to_owned()
            }
            Outputs::Differ(line) => {
                format!("THE OUTPUTS DIFFER; the first line that only one has: {line}")
            }
            Outputs::DifferPlain(line) => format!(
                "outputs were not compared, since plain runs differ among themselves, first in: \
                 {line}"
            ),
        };
        format!(
            "{verdict}\n\n{:<10} {:>10} {:>10} {:>10}   95 % interval of {pairs} pairs\n{}{}\n\
             {outputs}\n",
            "",
            "plain",
            "preloaded",
            "saved",
            row("wall time", &self.wall),
            row("CPU time", &self.cpu)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_compared_by_their_lines() {
        assert_eq!(compared(b"a\nb\n", b"a\nb\n"), Outputs::Equal);
        assert_eq!(compared(b"a\nb\n", b"b\na\n"), Outputs::EqualButForOrder);
        let differ = |line: &str| Outputs::Differ(line.to_owned());
        assert_eq!(compared(b"a\nb\n", b"a\nc\n"), differ("c"));
        assert_eq!(compared(b"a\nb\nb\n", b"a\nb\n"), differ("b"));
    }

    /// What differs anyway is not held against the library.
    #[test]
    fn plain_runs_that_differ_are_said() {
        let differ = || Outputs::Differ("1.2 s".to_owned());
        assert_eq!(
            Outputs::Equal.and(differ, || Outputs::Equal),
            Outputs::Differ("1.2 s".to_owned())
        );
        assert_eq!(
            Outputs::Equal.and(differ, differ),
            Outputs::DifferPlain("1.2 s".to_owned())
        );
    }

    #[test]
    fn a_verdict_needs_six_pairs() {
        let comparison = |pairs: &[[f64; 2]]| Comparison {
            pairs: pairs.len(),
            wall: Times::of(pairs).unwrap(),
            cpu: Times::of(pairs).unwrap(),
            outputs: Outputs::Equal,
        };
        let few = comparison(&[[2.0, 1.0]; 5]).text();
        assert!(few.starts_with("5 pairs are too few"), "{few}");
        let saved = comparison(&[[2.0, 1.0]; 6]).text();
        assert!(
            saved.starts_with("libcopy saves 1.0 s to 1.0 s of 2.0 s (50.0 to 50.0 %)"),
            "{saved}"
        );
        let lost = comparison(&[[1.0, 1.25]; 6]).text();
        assert!(lost.starts_with("libcopy costs 0.25 s"), "{lost}");
        let mut mixed = [[1.0, 1.25]; 6];
        mixed[3] = [1.0, 0.5];
        let mixed = comparison(&mixed).text();
        assert!(mixed.starts_with("no difference"), "{mixed}");
    }
}
