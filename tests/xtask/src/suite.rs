// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/mpi4py-suite` and `scripts/build-mpi`: programs beside the same ones with
//! `libcopy_mpi.so`.

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
    /// Messages whose bytes were moved by a device, by method.
    by_device: [u64; 3],
    /// Messages that were matched like these, and whose bytes the MPI library moved.
    through_mpi: u64,
    /// Connections that were given up.
    links_lost: u64,
}

/// What a run has to show beside tests that pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shows {
    /// Calls or messages that were intercepted.
    Interception,
    /// Messages over RDMA, and no connection that has failed.
    Rdma,
    /// The same messages without a device.
    NoDevice,
}

impl Shows {
    fn of(kind: &str) -> Shows {
        match kind {
            "rdma" => Shows::Rdma,
            "no-device" => Shows::NoDevice,
            _ => Shows::Interception,
        }
    }
}

impl Run {
    fn of(log: &str) -> Run {
        let mut run = Run::default();
        for line in log.lines() {
            // Each rank says how it ended, perhaps behind what another one is just saying.
            run.passed +=
                line.matches("OK (skipped").count() as u64 + u64::from(line.ends_with("OK"));
            run.failed += u64::from(is_failure(line));
            run.links_lost += u64::from(line.contains("do not go over RDMA any more"));
            if let Some((_, counts)) = line.split_once("libcopy_mpi: rdma: ") {
                run.count_rdma(counts);
            }
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

    /// Adds what a rank's report says behind `rdma: `.
    fn count_rdma(&mut self, counts: &str) {
        for part in counts.split(", ") {
            let Some((name, number)) = part.rsplit_once(' ') else {
                continue;
            };
            let number: u64 = number.parse().unwrap_or(0);
            match name {
                "umr" => self.by_device[0] += number,
                "sge" => self.by_device[1] += number,
                "pack" => self.by_device[2] += number,
                "through MPI" => self.through_mpi += number,
                _ => {}
            }
        }
    }

    /// Whether a preloaded run is worse than the plain one, or does not show what it has to.
    fn is_bad(&self, plain: &Run, shows: Shows) -> bool {
        let by_device: u64 = self.by_device.iter().sum();
        let is_shown = match shows {
            Shows::Interception => self.intercepted + self.sent > 0,
            Shows::Rdma => by_device > 0 && self.links_lost == 0,
            Shows::NoDevice => self.through_mpi > 0 && by_device == 0,
        };
        self.passed < plain.passed || self.failed > plain.failed || !is_shown
    }

    /// What it did, for people.
    fn summary(&self, shows: Shows) -> String {
        let [umr, sge, pack] = self.by_device;
        match shows {
            Shows::Interception => format!(
                "{} calls intercepted, {} messages",
                self.intercepted, self.sent
            ),
            Shows::Rdma | Shows::NoDevice => format!(
                "{} messages over RDMA (umr {umr}, sge {sge}, pack {pack}), {} that were to and went through MPI, \
                 {} links lost",
                umr + sge + pack,
                self.through_mpi,
                self.links_lost
            ),
        }
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

/// Compares the log `plain` of a directory with others, which have the names of their kinds. A
/// plain run without a passing rank is no measure.
pub fn mpi4py(mpi: &str, ranks: &str, directory: &Path, kinds: &[&str]) -> Verdict {
    let mut plain = None;
    let mut is_good = true;
    for kind in ["plain"].iter().chain(kinds) {
        let log = read(&directory.join(kind))?;
        let run = Run::of(&log);
        let shows = Shows::of(kind);
        println!(
            "{mpi} {kind}: {} tests on each of {ranks} ranks, {} ranks passed, {} failures, {}",
            run.tests,
            run.passed,
            run.failed,
            run.summary(shows)
        );
        let is_bad = match &plain {
            Some(plain) => run.is_bad(plain, shows),
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
        assert!(!ours.is_bad(&plain, Shows::Interception));
        // Nothing was preloaded.
        for shows in [Shows::Interception, Shows::Rdma, Shows::NoDevice] {
            assert!(plain.is_bad(&plain, shows));
        }
    }

    #[test]
    fn a_run_that_was_killed_is_bad() {
        let plain = Run::of(PLAIN);
        let cut = OURS.split_once("OK").unwrap().0;
        assert!(Run::of(cut).is_bad(&plain, Shows::Interception));
        assert!(Run::of("").is_bad(&plain, Shows::Interception));
        let failed = format!("{OURS}FAIL: testBcast (test_cco_buf.TestCCOBufWorld)\nwhy\n");
        assert!(Run::of(&failed).is_bad(&plain, Shows::Interception));
        assert_eq!(
            excerpt(&failed)[0],
            "FAIL: testBcast (test_cco_buf.TestCCOBufWorld)"
        );
        assert_eq!(excerpt("one\ntwo\n"), ["one", "two"]);
    }

    #[test]
    fn messages_over_rdma_are_counted() {
        let plain = Run::of(PLAIN);
        let report = |through: u64, sge: u64| {
            let line = format!(
                "libcopy_mpi: rdma: umr 0, sge {sge}, pack 28, through MPI {through}, bytes 11, received 448"
            );
            format!("{PLAIN}{line}\nOK (skipped=1){line}\n")
        };
        let run = Run::of(&report(3, 320));
        assert_eq!((run.by_device, run.through_mpi), ([0, 640, 56], 6));
        assert!(!run.is_bad(&plain, Shows::Rdma));
        assert!(run.is_bad(&plain, Shows::NoDevice) && run.is_bad(&plain, Shows::Interception));
        let lost = "libcopy_mpi: messages from and to rank 0 do not go over RDMA any more: why\n";
        assert!(Run::of(&(report(3, 320) + lost)).is_bad(&plain, Shows::Rdma));
        let without = report(9, 0).replace("pack 28", "pack 0") + lost;
        assert!(!Run::of(&without).is_bad(&plain, Shows::NoDevice));
        assert!(Run::of(&without).is_bad(&plain, Shows::Rdma));
        assert!(
            Run::of(&without.replace("through MPI 9", "through MPI 0"))
                .is_bad(&plain, Shows::NoDevice)
        );
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
