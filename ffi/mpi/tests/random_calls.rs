// SPDX-License-Identifier: MIT OR Apache-2.0

//! Random messages and collectives, plain and with `libcopy_mpi.so`: every call gives the same.
//!
//! Steps depend on the seed and their number alone, so they are run in blocks. Where a plain run
//! crashes, hangs, or differs from another plain run, the MPI library is at fault: the steps are
//! named on standard error and left out, and those before them are compared. A difference ends the
//! test, with the arguments that make it again: its step alone, if that suffices.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `LIBCOPY_TEST_CALLS` | calls per library that are to be compared | 2000 |
//! | `LIBCOPY_TEST_SEED` | the first seed; each number of ranks and threads has the next one | 1 |
//!
//! With `LIBCOPY_TEST_CALLS` set, 2 to 5 ranks and two threads are tried, otherwise the first three
//! of `SHAPES`.

#[allow(dead_code)]
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use common::{BOTH, C, Mpi, intercepted, library, mpi, noted, text, turn};

const FORTRAN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/random_calls.f90");
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/random_calls.c");

/// So long a block may take: beyond what it needs, since Open MPI 5.0's launcher sometimes does not
/// see that its program ended.
const LIMIT: Duration = Duration::from_secs(150);

/// Seconds in which a rank of a plain run writes nothing after which it hangs, and its step is left
/// out.
const SILENT: u64 = 6;

/// Seconds that a rank may write nothing with the library: what is said to hang does, on a busy
/// machine, too.
const SILENT_OURS: u64 = 60;

/// Steps of a block, at most.
const LONGEST: u64 = 1000;

/// Times that a plain run is repeated before a difference is ours.
const REPEATS: usize = 5;

/// What `timeout` ends with when it has ended a program.
const TIMEOUT: i32 = 124;

/// Differences after which a run ends.
const DIFFERENCES: usize = 4;

/// Ranks and threads, and whether all that can be intercepted is.
const SHAPES: [(usize, usize, bool); 7] = [
    (4, 1, true),
    (3, 1, false),
    (2, 1, false),
    // Open MPI's own runs with threads hang often.
    (2, 2, true),
    (5, 1, true),
    (3, 1, true),
    (2, 1, true),
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
        ("LIBCOPY_STATS", "ranks"),
        ("LIBCOPY_GOVERNOR", "0"),
        ("LIBCOPY_MPI_MIN", "512"),
    ]
}

/// Some steps of a program.
#[derive(Clone, Copy)]
struct Block<'a> {
    mpi: &'a Mpi,
    ranks: usize,
    threads: usize,
    seed: u64,
    from: u64,
    until: u64,
    /// Whether it is run with the library a second time, in which nobody counts calls: they take a
    /// shorter way then, where small ones are forwarded at once.
    also_uncounted: bool,
}

/// What a run has written, rank by rank, thread by thread.
type Log = BTreeMap<(usize, usize), String>;

/// A run that did not end well, or well.
struct Run {
    log: Log,
    output: Output,
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
            || text(&self.output.stderr).contains("random_calls hangs")
    }

    /// Keeps what it has said of steps before this one.
    fn keep_before(&mut self, step: u64) {
        for text in self.log.values_mut() {
            let is_before = |line: &&str| step_of(line).is_some_and(|number| number < step);
            let kept = text.lines().filter(is_before);
            *text = kept.map(|line| line.to_owned() + "\n").collect();
        }
    }

    /// The first and the last step that a thread of a rank had come to.
    fn reached(&self) -> Option<(u64, u64)> {
        let last = self.log.values();
        let last = last.filter_map(|text| step_of(text.lines().next_back()?));
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

    /// The first step of which another run says something else, and what.
    fn difference(&self, other: &Run) -> Option<(u64, String)> {
        let differences = self.log.iter().filter_map(|(place, expected)| {
            let got = other.log.get(place).map_or("", String::as_str);
            let lines = expected.lines().count().max(got.lines().count());
            let expected = expected.lines().chain(std::iter::repeat("nothing"));
            let got = got.lines().chain(std::iter::repeat("nothing"));
            let mut pairs = expected.zip(got).take(lines);
            let (expected, got) = pairs.find(|(expected, got)| expected != got)?;
            let steps = [expected, got].into_iter().filter_map(step_of);
            let what = format!("rank and thread {place:?}\n    plain {expected}\n    ours  {got}");
            Some((steps.min()?, what))
        });
        differences.min()
    }
}

/// The step that a line of a log is of.
fn step_of(line: &str) -> Option<u64> {
    line.split(' ').next()?.parse().ok()
}

impl Block<'_> {
    fn plain(&self) -> Run {
        self.run(&[], SILENT)
    }

    fn ours(&self, environment: &[(&str, &str)]) -> Run {
        self.run(environment, SILENT_OURS)
    }

    fn run(&self, environment: &[(&str, &str)], silent: u64) -> Run {
        let place = self.mpi.program.with_extension("log");
        let arguments = [
            u64::from(u32::MAX).to_string(),
            self.seed.to_string(),
            place.display().to_string(),
            self.threads.to_string(),
            (4 << 20).to_string(),
            self.from.to_string(),
            self.until.to_string(),
            silent.to_string(),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let launcher = self.mpi.launch(LIMIT);
        let (_, output) = self
            .mpi
            .output_of(launcher, self.ranks, &arguments, environment);
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
        }
    }

    /// Between the logs, or in the end of ours.
    fn difference(&self, plain: &Run, ours: &Run) -> Option<Difference> {
        if ours.is_well() {
            let (step, what) = plain.difference(ours)?;
            return Some(Difference {
                from: step,
                until: step + 1,
                ends: false,
                what,
            });
        }
        let last = self.until - 1;
        let (least, most) = ours.reached().unwrap_or((self.from, last));
        let what = format!(
            "ours ends with {}\n{}",
            ours.end(),
            text(&ours.output.stderr)
        );
        Some(Difference {
            from: least.min(last),
            until: most.min(last) + 1,
            ends: true,
            what,
        })
    }

    fn name(&self) -> String {
        let (ranks, threads) = (self.ranks, self.threads);
        let (name, seed, from, until) = (self.mpi.name, self.seed, self.from, self.until);
        format!("{name}, {ranks} ranks, {threads} threads, seed {seed}, steps {from} to {until}")
    }
}

/// Steps that give something else with the library.
struct Difference {
    from: u64,
    until: u64,
    /// Our run has crashed or hung.
    ends: bool,
    what: String,
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
        let mut plain = block.plain();
        let (mut equal, mut next) = (*block, block.until);
        if !plain.is_well() {
            self.is_own(format!("{}: {}", block.name(), plain.end()));
            let (least, most) = plain.reached().unwrap_or((block.from, block.from));
            let length = block.until - block.from;
            if !plain.hangs() && least + 1 >= block.until && length > 1 {
                // It has come to its end before it crashed, so any of its steps may be why.
                let middle = block.from + length / 2;
                for (from, until) in [(block.from, middle), (middle, block.until)] {
                    self.compare(
                        &Block {
                            from,
                            until,
                            ..*block
                        },
                        environment,
                    );
                }
                return block.until;
            }
            next = most.max(block.from) + 1;
            if least <= block.from {
                return next;
            }
            // What comes before can be compared.
            equal.until = least;
            plain.keep_before(least);
        }
        let ours = equal.ours(environment);
        if let Some(difference) = equal.difference(&plain, &ours) {
            self.look_into(&equal, &difference, environment);
            return difference.until;
        }
        if equal.also_uncounted {
            // Teams are made at once, or few calls would come to one.
            let environment = &[environment[0], ("LIBCOPY_GOVERNOR", "0")];
            let ours = equal.ours(environment);
            if let Some(difference) = equal.difference(&plain, &ours) {
                equal.also_uncounted = false;
                self.look_into(&equal, &difference, environment);
                return difference.until;
            }
        }
        self.calls += ours.calls();
        let report = text(&ours.output.stderr);
        self.received += noted(&report, "received");
        for (function, count) in intercepted(&report) {
            *self.functions.entry(function.to_owned()).or_insert(0) += count;
        }
        next
    }

    /// Whose fault a difference in a block is.
    fn look_into(&mut self, block: &Block<'_>, found: &Difference, environment: &[(&str, &str)]) {
        let (from, until) = (found.from, found.until);
        if from > block.from {
            // What comes before is compared, and then the steps alone.
            for (from, until) in [(block.from, from), (from, until)] {
                let known = self.own + self.differences.len() as u64;
                let part = Block {
                    from,
                    until,
                    ..*block
                };
                self.compare(&part, environment);
                if self.own + self.differences.len() as u64 > known && from == found.from {
                    return;
                }
            }
        }
        let block = Block { until, ..*block };
        let what = format!("{}: {}", block.name(), found.what);
        let plain = block.plain();
        let mut again = (0..REPEATS).map(|_| block.plain());
        let comes_again =
            || (0..2).any(|_| block.difference(&plain, &block.ours(environment)).is_some());
        if !plain.is_well() || again.any(|again| block.difference(&plain, &again).is_some()) {
            self.is_own(format!("{what}; plain runs differ"));
        } else if found.ends && !comes_again() {
            // The libraries have such crashes and hangs, plain as well. Bytes that differ are never
            // excused.
            self.is_own(format!("{what}; once in three runs"));
        } else {
            eprintln!("difference: {what}");
            self.differences.push(what);
        }
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
        &SHAPES[..3]
    };
    let calls = long.unwrap_or(2000);
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
            // What a shape has not come to, the next ones make up for.
            let goal = calls * (i as u64 + 1) / shapes.len() as u64;
            let (mut from, mut blocks) = (0, 0);
            // Where a library is at fault again and again, this has an end, too.
            let most = 10 + calls.div_ceil(500);
            while result.calls < goal && result.differences.len() < DIFFERENCES && blocks < most {
                let steps = goal.saturating_sub(result.calls) / 3;
                let block = Block {
                    mpi: &mpi,
                    ranks,
                    threads,
                    seed: seed + i as u64,
                    from,
                    until: from + steps.clamp(8, LONGEST),
                    also_uncounted: !is_forced,
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
