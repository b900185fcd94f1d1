// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs of programs with buffers in device memory, with the stand-in for the CUDA driver
//! (`tests/fakecuda`).

use std::path::PathBuf;
use std::sync::OnceLock;

use super::common::{Mpi, library, text};
use super::compile;

/// The stand-in for the driver.
pub fn driver() -> &'static str {
    static DRIVER: OnceLock<PathBuf> = OnceLock::new();
    let path = DRIVER.get_or_init(compile::driver);
    path.to_str().expect("a plain path")
}

/// Each MPI library's build of a program; those that are not installed are left out.
pub fn programs(source: &str) -> Vec<Mpi> {
    super::common::programs(source, &[])
}

/// The environment of a program: the library with its report, the stand-in, and what is given here.
pub fn environment<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all = vec![
        ("LD_PRELOAD", library().to_str().expect("a plain path")),
        ("LIBCOPY_STATS", "ranks"),
        ("FAKECUDA", driver()),
    ];
    all.extend(more);
    all
}

/// Runs a program with this environment besides the library; what it prints, and its report.
pub fn run(
    program: &Mpi,
    ranks: usize,
    arguments: &[&str],
    more: &[(&str, &str)],
) -> (String, String) {
    let (_, output) = program.output(ranks, arguments, &environment(more));
    let [printed, said] = [&output.stdout, &output.stderr].map(|bytes| text(bytes));
    assert!(
        output.status.success(),
        "{} {arguments:?} {more:?}: {printed}\n{said}",
        program.name,
    );
    (printed, said)
}

/// The numbers of a report's lines about device memory, added up.
pub fn numbers(report: &str, name: &str) -> u64 {
    let lines = report
        .lines()
        .filter_map(|line| line.split_once("device memory:"));
    let number = |line: &str| {
        let rest = line
            .split(',')
            .find_map(|part| part.trim().strip_prefix(name))?;
        rest.trim().parse::<u64>().ok()
    };
    lines.filter_map(|(_, line)| number(line)).sum()
}
