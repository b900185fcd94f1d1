// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/mpi4py-suite` and `scripts/build-mpi`: programs beside the same ones with `libcopy_mpi.so`.

use std::path::Path;

use crate::statistics::Statistics;
use crate::{Verdict, read};

/// What a run of mpi4py's tests has said.
#[derive(Debug, Default, PartialEq, Eq)]
struct Run {
    tests: u64,
    /// Ranks that say OK.
    passed: u64,
    failed: u64,
    intercepted: u64,
    sent: u64,
}

impl Run {
    fn of(log: &str) -> Run {
        let mut run = Run::default();
        for line in log.lines() {
            // Each rank says how it ended, perhaps behind what another one is just saying.
            run.passed +=
                line.matches("OK (skipped").count() as u64 + u64::from(line.ends_with("OK"));
            run.failed += u64::from(is_failure(line));
            let mut words = line.split_whitespace();
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some("Ran"), Some(number), Some("test" | "tests"), _) => {
                    run.tests = run.tests.max(number.parse().unwrap_or(0));
                }
                (Some("libcopy_mpi:"), Some("messages:"), Some("sent"), Some(number)) => {
                    run.sent += number.trim_end_matches(',').parse().unwrap_or(0);
                }
                (Some("libcopy_mpi:"), Some(name), Some(number), _) if name.starts_with("MPI_") => {
                    run.intercepted += number.parse().unwrap_or(0);
                }
                _ => {}
            }
        }
        run
    }

    /// Whether a preloaded run is worse than the plain one, or shows nothing.
    fn is_bad(&self, plain: &Run) -> bool {
        self.passed < plain.passed
            || self.failed > plain.failed
            || self.intercepted + self.sent == 0
    }
}

fn is_failure(line: &str) -> bool {
    line.starts_with("FAIL: ") || line.starts_with("ERROR: ")
}

/// The failures in a log and some lines behind each, or its end.
fn excerpt(log: &str) -> Vec<&str> {
    const BEHIND: usize = 12;
    let lines: Vec<&str> = log.lines().collect();
    let mut left = 0;
    let failures = lines.iter().copied().filter(|line| {
        left = if is_failure(line) { BEHIND + 1 } else { left };
        left = left.saturating_sub(1);
        left > 0 || is_failure(line)
    });
    let failures: Vec<&str> = failures.take(60).collect();
    if failures.is_empty() {
        lines[lines.len().saturating_sub(20)..].to_vec()
    } else {
        failures
    }
}

/// Compares the logs `plain`, `collectives` and `messages` of a directory. A plain run without a passing rank
/// is no measure.
pub fn mpi4py(mpi: &str, ranks: &str, directory: &Path) -> Verdict {
    let mut plain = None;
    let mut is_good = true;
    for kind in ["plain", "collectives", "messages"] {
        let log = read(&directory.join(kind))?;
        let run = Run::of(&log);
        println!(
            "{mpi} {kind}: {} tests on each of {ranks} ranks, {} ranks passed, {} failures, {} calls intercepted, \
             {} messages",
            run.tests, run.passed, run.failed, run.intercepted, run.sent
        );
        let is_bad = match &plain {
            Some(plain) => run.is_bad(plain),
            None => run.tests == 0,
        };
        if is_bad {
            excerpt(&log).iter().for_each(|line| println!("{line}"));
            is_good = false;
        }
        plain.get_or_insert(run);
    }
    Ok(is_good)
}

/// What a run with an MPI says of it: `works`, `refuses` or `FAILED`.
pub fn build_mpi(compiler: &str, real: &str, log: &Path, statistics: &Path) -> Verdict {
    let (line, is_good) = verdict(&read(log)?, &Statistics::read(statistics), real);
    println!("{compiler}: {line}");
    Ok(is_good)
}

fn verdict(log: &str, statistics: &Statistics, real: &str) -> (String, bool) {
    let why = log.lines().find_map(|line| {
        let why = line.strip_prefix("libcopy_mpi: ")?;
        why.strip_suffix("; all calls are forwarded")
    });
    let calls: u64 = statistics.functions().values().sum();
    match (why, calls) {
        (Some(why), _) => (format!("refuses: {why}"), true),
        (None, 0) => ("FAILED: nothing was intercepted".to_owned(), false),
        (None, calls) => {
            let library = statistics.library().unwrap_or("unknown library");
            (
                format!("works: {library} ({real}), {calls} calls intercepted"),
                true,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = include_str!("samples/mpi4py-plain.txt");
    const OURS: &str = include_str!("samples/mpi4py-ours.txt");

    #[test]
    fn both_ranks_of_a_run_are_counted() {
        let plain = Run::of(PLAIN);
        assert_eq!(
            (plain.passed, plain.failed, plain.intercepted, plain.sent),
            (2, 0, 0, 0)
        );
        assert!(plain.tests > 0, "{plain:?}");
        let ours = Run::of(OURS);
        assert_eq!((ours.tests, ours.passed, ours.failed), (plain.tests, 2, 0));
        assert!(ours.intercepted > 0 && ours.sent > 0, "{ours:?}");
        assert!(!ours.is_bad(&plain));
        // Nothing was preloaded.
        assert!(plain.is_bad(&plain));
    }

    #[test]
    fn a_run_that_was_killed_is_bad() {
        let plain = Run::of(PLAIN);
        let cut = OURS.split_once("OK").unwrap().0;
        assert!(Run::of(cut).is_bad(&plain));
        assert!(Run::of("").is_bad(&plain));
        let failed = format!("{OURS}FAIL: testBcast (test_cco_buf.TestCCOBufWorld)\nwhy\n");
        assert!(Run::of(&failed).is_bad(&plain));
        assert_eq!(
            excerpt(&failed)[0],
            "FAIL: testBcast (test_cco_buf.TestCCOBufWorld)"
        );
        assert_eq!(excerpt("one\ntwo\n"), ["one", "two"]);
    }

    #[test]
    fn outputs_of_several_ranks_may_share_a_line() {
        let run = Run::of(
            "Ran 3 tests in 0.1sOK (skipped=2)OK (skipped=2)\nsomethingOK\nRan 5 tests in 0.2s\n",
        );
        assert_eq!((run.tests, run.passed), (5, 3));
    }

    #[test]
    fn a_library_works_if_calls_were_intercepted() {
        let some = Statistics::of(include_str!("samples/statistics.json"));
        let none = Statistics::of("");
        let (line, is_good) = verdict("", &some, "/usr/bin/mpicc.mpich");
        assert!(
            is_good && line.starts_with("works: MPICH (/usr/bin/mpicc.mpich), "),
            "{line}"
        );
        assert_eq!(
            verdict("", &none, "x"),
            ("FAILED: nothing was intercepted".to_owned(), false)
        );
        let log = "noise\nlibcopy_mpi: MPI 9 is not known; all calls are forwarded\n";
        assert_eq!(
            verdict(log, &none, "x"),
            ("refuses: MPI 9 is not known".to_owned(), true)
        );
    }
}
