// SPDX-License-Identifier: MIT OR Apache-2.0

//! Random messages and collectives, plain and with `libcopy_mpi.so`: every call gives the same.
//!
//! Steps depend on the seed and their number alone, so they are run in blocks. Where a plain run
//! crashes, hangs, or differs from another plain run, the MPI library is at fault: the steps are
//! named on standard error and left out. A difference ends the test, with the arguments that make
//! it again.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `LIBCOPY_TEST_CALLS` | calls per library that are to be compared | 400 |
//! | `LIBCOPY_TEST_SEED` | the first seed; each number of ranks and threads has the next one | 1 |
//!
//! With `LIBCOPY_TEST_CALLS` set, 2 to 5 ranks and two threads are tried, otherwise the first two
//! of `SHAPES`.

#[allow(dead_code)]
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant};

use common::{BOTH, C, Mpi, intercepted, library, mpi, noted, text, turn};

const FORTRAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/random_calls.f90");
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/random_calls.c");

/// So long a plain block may take, and ours beyond what plain has taken.
const LIMIT: Duration = Duration::from_secs(60);

/// What `timeout` ends with when it has ended a program.
const TIMEOUT: i32 = 124;

/// After so many differences it is enough.
const DIFFERENCES: usize = 4;

/// Ranks and threads, and whether all that can be intercepted is.
const SHAPES: [(usize, usize, bool); 6] = [
    (4, 1, true),
    (3, 1, false),
    (2, 1, true),
    (3, 1, true),
    (5, 1, true),
    // Open MPI's own runs with threads hang often.
    (2, 2, true),
];

/// A number from the environment, for longer runs.
fn asked(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok();
    value.map(|value| value.parse().expect("a number"))
}

/// The environment of a run with the library, in which all that can be intercepted is; the first
/// two alone leave it to the library's own limits.
fn preloaded() -> [(&'static str, &'static str); 4] {
    [
        ("LD_PRELOAD", library().to_str().expect("a plain path")),
        ("LIBCOPY_STATS", "1"),
        ("LIBCOPY_GOVERNOR", "0"),
        ("LIBCOPY_MPI_MIN", "512"),
    ]
}

/// Some steps of a program.
struct Block<'a> {
    mpi: &'a Mpi,
    ranks: usize,
    threads: usize,
    seed: u64,
    from: u64,
    until: u64,
}

/// What a run has written, rank by rank, thread by thread.
type Log = BTreeMap<(usize, usize), String>;

/// A run that did not end well, or well.
struct Run {
    log: Log,
    output: Output,
    took: Duration,
}

impl Run {
    fn calls(&self) -> u64 {
        let said = text(&self.output.stdout);
        let first = |line: &str| line.split(' ').next()?.parse::<u64>().ok();
        said.lines()
            .filter(|line| line.contains(" calls in "))
            .filter_map(first)
            .sum()
    }

    fn is_well(&self) -> bool {
        self.output.status.success()
    }

    /// Whether it was ended after its limit.
    fn hangs(&self) -> bool {
        self.output.status.code() == Some(TIMEOUT)
    }

    /// The first and the last step that a thread of a rank had come to.
    fn reached(&self) -> Option<(u64, u64)> {
        let last = self.log.values().filter_map(|text| {
            let line = text.lines().next_back()?;
            line.split(' ').next()?.parse().ok()
        });
        let last: Vec<u64> = last.collect();
        Some((*last.iter().min()?, *last.iter().max()?))
    }

    /// How it ended, and what each thread did last.
    fn end(&self) -> String {
        let last = self.log.iter().map(|(place, text)| {
            format!(
                "\n    {place:?}: {}",
                text.lines().next_back().unwrap_or("")
            )
        });
        format!("{}{}", self.output.status, last.collect::<String>())
    }

    /// Where another run says something else first.
    fn difference(&self, other: &Run) -> Option<String> {
        for (place, expected) in &self.log {
            let got = other.log.get(place).map_or("", String::as_str);
            let mut pairs = expected.lines().zip(got.lines());
            if let Some((expected, got)) = pairs.find(|(expected, got)| expected != got) {
                return Some(format!(
                    "rank and thread {place:?}\n    plain {expected}\n    ours  {got}"
                ));
            }
            if expected.lines().count() != got.lines().count() {
                return Some(format!("rank and thread {place:?} says more or less"));
            }
        }
        None
    }
}

impl Block<'_> {
    fn run(&self, environment: &[(&str, &str)], limit: Duration) -> Run {
        let place = self.mpi.program.with_extension("log");
        let arguments = [
            u64::from(u32::MAX).to_string(),
            self.seed.to_string(),
            place.display().to_string(),
            self.threads.to_string(),
            (4 << 20).to_string(),
            self.from.to_string(),
            self.until.to_string(),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let start = Instant::now();
        let launcher = self.mpi.launch(limit);
        let (_, output) = self
            .mpi
            .output_of(launcher, self.ranks, &arguments, environment);
        let took = start.elapsed();
        let threads = 0..self.threads;
        let all =
            (0..self.ranks).flat_map(|rank| threads.clone().map(move |thread| (rank, thread)));
        let log = all.map(|(rank, thread)| {
            let path = PathBuf::from(format!("{}.{rank}.{thread}", place.display()));
            let text = fs::read(&path).unwrap_or_default();
            let _ = fs::remove_file(&path);
            ((rank, thread), String::from_utf8_lossy(&text).into_owned())
        });
        Run {
            log: log.collect(),
            output,
            took,
        }
    }

    fn name(&self) -> String {
        let (ranks, threads) = (self.ranks, self.threads);
        let (name, seed, from, until) = (self.mpi.name, self.seed, self.from, self.until);
        format!("{name}, {ranks} ranks, {threads} threads, seed {seed}, steps {from} to {until}")
    }
}

/// What comparing came to.
#[derive(Default)]
struct Outcome {
    calls: u64,
    /// Blocks in which the library is at fault.
    own: u64,
    differences: Vec<String>,
    received: u64,
    functions: BTreeMap<String, u64>,
}

impl Outcome {
    fn is_own(&mut self, what: String) {
        eprintln!("plain: {what}");
        self.own += 1;
    }

    /// Compares a block; the step to go on from.
    fn compare(&mut self, block: &Block<'_>, environment: &[(&str, &str)]) -> u64 {
        let plain = block.run(&[], LIMIT);
        if !plain.is_well() {
            self.is_own(format!("{}: {}", block.name(), plain.end()));
            let (least, most) = plain.reached().unwrap_or((block.from, block.from));
            let length = block.until - block.from;
            if !plain.hangs() && least + 1 >= block.until && length > 1 {
                // It has come to its end before it crashed, so any of its steps may be why.
                let middle = block.from + length / 2;
                for (from, until) in [(block.from, middle), (middle, block.until)] {
                    let half = Block {
                        from,
                        until,
                        ..*block
                    };
                    self.compare(&half, environment);
                }
                return block.until;
            }
            // What comes before can be compared.
            if least > block.from {
                self.compare(
                    &Block {
                        until: least,
                        ..*block
                    },
                    environment,
                );
            }
            return most.max(block.from) + 1;
        }
        let ours = block.run(environment, LIMIT + 5 * plain.took);
        let what = if ours.is_well() {
            plain.difference(&ours)
        } else {
            Some(format!(
                "ours ends with {}\n{}",
                ours.end(),
                text(&ours.output.stderr)
            ))
        };
        if let Some(what) = what {
            let what = format!("{}: {what}", block.name());
            let again = (0..3).map(|_| block.run(&[], LIMIT));
            let mut unsteady =
                again.filter(|again| !again.is_well() || plain.difference(again).is_some());
            // A crash or a hang that does not come again: the libraries have such ones, plain as
            // well. Bytes that differ are never excused.
            let again = || block.run(environment, LIMIT + 5 * plain.took);
            let comes_again = ours.is_well() || (0..2).any(|_| !again().is_well());
            match unsteady.next() {
                Some(_) => self.is_own(format!("{what}; plain runs differ")),
                None if !comes_again => self.is_own(format!("{what}; once in three runs")),
                None => {
                    eprintln!("difference: {what}");
                    self.differences.push(what);
                }
            }
            return block.until;
        }
        self.calls += plain.calls();
        let report = text(&ours.output.stderr);
        self.received += noted(&report, "received");
        for (function, count) in intercepted(&report) {
            *self.functions.entry(function.to_owned()).or_insert(0) += count;
        }
        block.until
    }
}

#[test]
fn random_calls_give_the_same() {
    let preloaded = preloaded();
    let long = asked("LIBCOPY_TEST_CALLS");
    let seed = asked("LIBCOPY_TEST_SEED").unwrap_or(1);
    let shapes = if long.is_some() {
        &SHAPES[..]
    } else {
        &SHAPES[..2]
    };
    let calls = long.unwrap_or(400);
    let steps = if long.is_some() { 64 } else { 40 };
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(mpi) = mpi(
            name,
            launcher,
            SOURCE,
            (C.0, &["-Wall", "-Werror", "-pthread"]),
        ) else {
            continue;
        };
        let mut result = Outcome::default();
        for (i, (ranks, threads, is_forced)) in shapes.iter().copied().enumerate() {
            let environment = if is_forced {
                &preloaded[..]
            } else {
                &preloaded[..2]
            };
            let start = result.calls;
            let goal = start + calls / shapes.len() as u64;
            let (mut from, mut blocks) = (0, 0);
            // Where a library is at fault again and again, this has an end, too.
            let most = 4 + calls.div_ceil(50);
            while result.calls < goal && result.differences.len() < DIFFERENCES && blocks < most {
                let block = Block {
                    mpi: &mpi,
                    ranks,
                    threads,
                    seed: seed + i as u64,
                    from,
                    until: from + steps,
                };
                from = result.compare(&block, environment);
                blocks += 1;
            }
            eprintln!(
                "{name}, {ranks} ranks, {threads} threads, seed {}: {} calls are equal",
                seed + i as u64,
                result.calls - start
            );
        }
        eprintln!(
            "{name}: {} calls are equal, {} blocks fail plain",
            result.calls, result.own
        );
        assert!(
            result.differences.is_empty(),
            "{}",
            result.differences.join("\n")
        );
        let functions = result.functions.values().filter(|count| **count > 0);
        let functions = functions.count();
        // A comparison of the library with itself shows nothing.
        assert!(
            result.calls >= calls && result.received > calls / 20 && functions >= 5,
            "{name}: {} calls, {} messages received, {:?}",
            result.calls,
            result.received,
            result.functions
        );
    }
}

#[test]
fn random_calls_of_fortran_give_the_same() {
    let preloaded = preloaded();
    let steps = asked("LIBCOPY_TEST_CALLS").map_or(40, |calls| calls / 20);
    let steps = steps.to_string();
    for (name, launcher) in BOTH {
        let _turn = turn();
        for (binding, ranks, seed) in [("-DBINDING=1", 3, "1"), ("-DBINDING=2", 2, "2")] {
            let flags = ["-cpp", "-w", "-fallow-argument-mismatch", binding];
            let Some(mpi) = mpi(name, launcher, FORTRAN, ("mpifort", &flags)) else {
                continue;
            };
            let run = |environment: &[(&str, &str)]| {
                let output = mpi.run(ranks, &[&steps, seed], environment);
                let said = text(&output.stdout);
                let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
                lines.sort();
                (lines, text(&output.stderr))
            };
            let (plain, _) = run(&[]);
            let (ours, report) = run(&preloaded);
            let what = format!("{name}, {ranks} ranks, {binding}, seed {seed}");
            for (expected, got) in plain.iter().zip(&ours) {
                assert_eq!(expected, got, "{what}");
            }
            assert_eq!(plain.len(), ours.len(), "{what}");
            // MPICH's Fortran library has functions that go past us.
            let taken = match name {
                "openmpi" => noted(&report, " sent"),
                _ => intercepted(&report).iter().map(|(_, count)| count).sum(),
            };
            assert!(taken > 0, "{what}: {report}");
        }
    }
}
