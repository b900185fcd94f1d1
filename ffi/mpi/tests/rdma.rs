// SPDX-License-Identifier: MIT OR Apache-2.0

//! Typed messages between nodes that are network namespaces, without an RDMA device: all that is
//! matched, announced and handed back is as with one, and the bytes go through the MPI library.
//! `scripts/rdma-in-guest` runs the same program with devices in the virtual machine.

// Other tests use other parts of it.
#[allow(dead_code)]
mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::{BOTH, C, LIMIT, library, mpi, text, turn};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rdma.c");
const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rdma_cases.c");
const END: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rdma_end.c");
const EXCHANGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rdma_exchange.c");
const INCLUDE: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
const NODES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/mpi-nodes");

/// Compiles a program for one of the MPI libraries.
fn compiled(source: &str, (name, launcher): (&'static str, &'static str)) -> Option<common::Mpi> {
    let flags = [C.1, &[INCLUDE]].concat();
    mpi(name, launcher, source, (C.0, &flags))
}

/// The program with some ranks on two nodes, which is killed after `limit` seconds.
fn command(
    mpi: &common::Mpi,
    ranks: &str,
    arguments: &[&str],
    (options, limit): (&[&str], Duration),
) -> Command {
    let mut command = Command::new(NODES);
    command.args(options);
    command.args(["--mpi", mpi.name, "--ranks", ranks, "--timeout"]);
    command.arg(limit.as_secs().to_string()).arg("--");
    command.arg(&mpi.program).args(arguments);
    command.env("LD_PRELOAD", library());
    command.envs([
        ("LIBCOPY_STATS", "ranks"),
        ("LIBCOPY_MPI_EVERYWHERE", "1"),
        ("LIBCOPY_RDMA_DEVICE", "none"),
    ]);
    command
}

/// Runs it; what it printed and the report. `None` where there can be no namespaces.
fn run(
    mpi: &common::Mpi,
    ranks: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Option<(String, String)> {
    let mut command = command(mpi, ranks, arguments, (&[], LIMIT));
    command.envs(environment.iter().copied());
    let output = command.output().expect("a shell");
    let (said, report) = (text(&output.stdout), text(&output.stderr));
    if output.status.code() == Some(3) {
        eprintln!("skipped: {report}");
        return None;
    }
    assert!(
        output.status.success(),
        "{}: {command:?}: {said}{report}",
        mpi.name
    );
    let wanted = format!(
        "{} rounds, 0 bytes wrong, 0 statuses wrong",
        arguments.first().unwrap_or(&"100")
    );
    let total: usize = ranks
        .split(',')
        .map(|n| n.parse::<usize>().expect("a number"))
        .sum();
    let all = if ranks.contains(',') {
        total
    } else {
        2 * total
    };
    assert_eq!(
        said.matches(&wanted).count(),
        all,
        "{}: {said}{report}",
        mpi.name
    );
    Some((said, report))
}

/// The sum over all ranks of a number of the report's lines about RDMA.
fn sum(report: &str, name: &str) -> u64 {
    let lines = report.lines().filter(|line| line.contains(": rdma: "));
    let number = |line: &str| {
        let (_, rest) = line.split_once(name)?;
        let digits: String = rest
            .trim_start()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse::<u64>().ok()
    };
    lines.filter_map(number).sum()
}

/// How many calls of a function all ranks have done past the library, as their reports say: the
/// second column.
fn calls_by_nodes(report: &str, function: &str) -> u64 {
    let calls = common::counted(report, 2);
    let its = calls.iter().filter(|(name, _)| *name == function);
    its.map(|(_, count)| count).sum()
}

#[test]
fn committed_types_go_past_the_library_and_every_byte_is_right() {
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(mpi) = compiled(SOURCE, (name, launcher)) else {
            continue;
        };
        for (ranks, seed) in [("1", "1"), ("2,1", "2")] {
            let least = ("LIBCOPY_MPI_MIN", "16384");
            let Some((_, report)) = run(&mpi, ranks, &["200", seed], &[least]) else {
                return;
            };
            let (sent, received) = (sum(&report, "through MPI"), sum(&report, "received"));
            assert!(sent > 50 && sent == received, "{name}: {report}");
            let Some((_, report)) = run(
                &mpi,
                ranks,
                &["40", seed],
                &[least, ("LIBCOPY_RDMA", "off")],
            ) else {
                return;
            };
            assert!(!report.contains(": rdma: "), "{name}: {report}");
        }
    }
}

#[test]
fn receivers_that_wait_elsewhere_do_not_stop_senders() {
    let (name, launcher) = BOTH[0];
    let _turn = turn();
    let Some(mpi) = compiled(SOURCE, (name, launcher)) else {
        return;
    };
    let Some((_, report)) = run(&mpi, "1", &["4", "3", "barrier"], &[]) else {
        return;
    };
    assert_eq!(sum(&report, "through MPI"), 4, "{report}");
}

#[test]
fn headers_are_not_mistaken_for_others() {
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(mpi) = compiled(CASES, (name, launcher)) else {
            continue;
        };
        let Some((_, report)) = run(&mpi, "1", &["1"], &[]) else {
            return;
        };
        assert!(sum(&report, "through MPI") > 5, "{name}: {report}");
    }
}

#[test]
fn no_rank_leaves_before_the_others_have_what_it_has_sent() {
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(mpi) = compiled(END, (name, launcher)) else {
            continue;
        };
        for ranks in ["1", "2,1"] {
            let Some((_, report)) = run(&mpi, ranks, &["1"], &[]) else {
                return;
            };
            // At least the one that nobody receives.
            assert!(sum(&report, "through MPI") >= 1, "{name}: {report}");
        }
    }
}

/// A rank that does not wait for one that has died has ended long before, on a busy machine too.
const SHORT_LIMIT: Duration = Duration::from_secs(180);

#[test]
fn a_rank_that_has_died_is_not_waited_for() {
    let nobody_ends_others: &[&str] = &["--launcher-option", "-disable-auto-cleanup"];
    // What becomes of the receiver, and options: MPICH's launcher ends the other ranks here only if
    // a signal has ended one, and Open MPI's always.
    let endings: [(&str, &[&str]); 3] = [
        ("killed", &[]),
        ("aborted", &[]),
        ("aborted", nobody_ends_others),
    ];
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(mpi) = compiled(END, (name, launcher)) else {
            continue;
        };
        let endings = match name {
            "mpich" => &endings[..],
            _ => &[("killed", &[][..]), ("dead", &[])],
        };
        for (ending, options) in endings {
            let mut command = command(&mpi, "1", &["1", ending], (options, SHORT_LIMIT));
            let started = Instant::now();
            let output = command.output().expect("a shell");
            let (status, said) = (output.status, text(&output.stdout));
            let report = text(&output.stderr);
            if status.code() == Some(3) && report.contains("scripts/mpi-nodes: ") {
                eprintln!("skipped: {report}");
                return;
            }
            let is_late = started.elapsed() >= SHORT_LIMIT;
            let what = format!("{name} {ending} {options:?}: {status}: {said}{report}");
            assert!(!is_late && !status.success(), "{what}");
            if name == "mpich" && *ending == "aborted" {
                // It has sent everything, and called MPI_Abort.
                assert_eq!(status.code(), Some(3), "{what}");
            }
        }
    }
}

#[test]
fn exchanges_and_nonblocking_sends_go_past_the_library_and_every_byte_is_right() {
    for (name, launcher) in BOTH {
        let _turn = turn();
        let Some(mpi) = compiled(EXCHANGE, (name, launcher)) else {
            continue;
        };
        for (ranks, mode) in [("1", "commit"), ("2", "all")] {
            let Some((_, report)) = run(&mpi, ranks, &["16", "1"], &[("LIBCOPY_RDMA", mode)])
            else {
                return;
            };
            let (sent, received) = (sum(&report, "through MPI"), sum(&report, "received"));
            // Alone by exchanges between all, of which three in four parts have a type.
            assert!(sent >= 8 && sent == received, "{name}: {report}");
            assert!(
                calls_by_nodes(&report, "MPI_Alltoallw") >= 16,
                "{name}: {report}"
            );
            assert!(
                calls_by_nodes(&report, "MPI_Neighbor_alltoallw") >= 8,
                "{name}: {report}"
            );
        }
    }
}
