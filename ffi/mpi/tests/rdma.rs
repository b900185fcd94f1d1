// SPDX-License-Identifier: MIT OR Apache-2.0

//! Typed messages between nodes that are network namespaces, without an RDMA device: all that is matched, announced and
//! handed back is as with one, and the bytes go through the MPI library. `scripts/rdma-in-guest` runs the same program
//! with devices in the virtual machine.

// Other tests use other parts of it.
#[allow(dead_code)]
mod common;

use std::process::Command;

use common::{BOTH, C, LIMIT, library, mpi, text, turn};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rdma.c");
const INCLUDE: &str = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
const NODES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/mpi-nodes");

/// Runs the program with some ranks on two nodes; what it printed and the report. `None` where there can be no
/// namespaces.
fn run(
    mpi: &common::Mpi,
    ranks: &str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Option<(String, String)> {
    let mut command = Command::new(NODES);
    command.args(["--mpi", mpi.name, "--ranks", ranks, "--timeout"]);
    command.arg(LIMIT.as_secs().to_string()).arg("--");
    command.arg(&mpi.program).args(arguments);
    command.env("LD_PRELOAD", library());
    command.envs([
        ("LIBCOPY_STATS", "1"),
        ("LIBCOPY_MPI_EVERYWHERE", "1"),
        ("LIBCOPY_RDMA", "commit"),
        ("LIBCOPY_RDMA_DEVICE", "none"),
    ]);
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

#[test]
fn committed_types_go_past_the_library_and_every_byte_is_right() {
    for (name, launcher) in BOTH {
        let _turn = turn();
        let flags = [C.1, &[INCLUDE]].concat();
        let Some(mpi) = mpi(name, launcher, SOURCE, (C.0, &flags)) else {
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
    let flags = [C.1, &[INCLUDE]].concat();
    let Some(mpi) = mpi(name, launcher, SOURCE, (C.0, &flags)) else {
        return;
    };
    let Some((_, report)) = run(&mpi, "1", &["4", "3", "barrier"], &[]) else {
        return;
    };
    assert_eq!(sum(&report, "through MPI"), 4, "{report}");
}
