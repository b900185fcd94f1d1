// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs with buffers in device memory, run by Open MPI and by MPICH with a stand-in for the CUDA driver
//! (`tests/fakecuda`), in whose device memory a processor dies.

// Other tests use other parts of it.
#[allow(dead_code)]
mod common;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use common::{BOTH, C, Mpi, library, mpi, text, turn};

const COLLECTIVES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/device_collectives.c");
const DEVICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/device.c");

/// The stand-in for the driver.
fn driver() -> &'static str {
    static DRIVER: OnceLock<PathBuf> = OnceLock::new();
    let path = DRIVER.get_or_init(|| {
        let source = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fakecuda/fakecuda.cc"
        );
        // A directory of this process: the name has to be the driver's.
        let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("driver.{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory for tests");
        let made = directory.join("libcuda.so.1");
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
        let output = Command::new(&compiler)
            .args(["-std=c++17", "-O2", "-shared", "-fPIC"])
            .args(["-fno-strict-aliasing", "-Wl,-soname,libcuda.so.1"])
            .args([source, "-o"])
            .arg(&made)
            .output()
            .unwrap_or_else(|error| panic!("{compiler}: {error}"));
        assert!(output.status.success(), "{}", text(&output.stderr));
        made
    });
    path.to_str().expect("a plain path")
}

/// Runs a program with this environment besides the library; its report.
fn run(program: &Mpi, ranks: usize, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let library = library().to_str().expect("a plain path");
    let mut all = vec![
        ("LD_PRELOAD", library),
        ("LIBCOPY_STATS", "1"),
        ("FAKECUDA", driver()),
    ];
    all.extend(environment);
    let (_, output) = program.output(ranks, arguments, &all);
    let said = text(&output.stderr);
    assert!(
        output.status.success(),
        "{} {arguments:?} {environment:?}: {}\n{said}",
        program.name,
        text(&output.stdout)
    );
    said
}

/// The numbers of a report's lines about device memory, added up.
fn numbers(report: &str, name: &str) -> u64 {
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

/// What is run in all variants.
fn messages(cases: &str, environment: &[(&str, &str)]) {
    let _turn = turn();
    for (name, launcher) in BOTH {
        let Some(program) = mpi(name, launcher, DEVICE, C) else {
            continue;
        };
        let report = run(&program, 2, &[cases], environment);
        for what in [
            "buffers sent",
            "buffers received",
            "calls that packed or unpacked",
        ] {
            assert!(numbers(&report, what) > 0, "{name}: no {what}:\n{report}");
        }
    }
}

/// Collectives of four ranks, each with buffers in other spaces.
fn collectives(arguments: &[&str], environment: &[(&str, &str)]) {
    let _turn = turn();
    for (name, launcher) in BOTH {
        let Some(program) = mpi(name, launcher, COLLECTIVES, C) else {
            continue;
        };
        let report = run(&program, 4, arguments, environment);
        for what in ["buffers sent", "buffers received"] {
            assert!(numbers(&report, what) > 0, "{name}: no {what}:\n{report}");
        }
    }
}

#[test]
fn collectives_between_all_spaces() {
    collectives(&["300"], &[]);
}

#[test]
fn collectives_that_are_all_intercepted() {
    collectives(&["200"], &[("LIBCOPY_MPI_MIN", "1")]);
}

#[test]
fn collectives_that_are_always_forwarded() {
    collectives(&["100", "26", "43"], &[]);
}

#[test]
fn persistent_collectives() {
    collectives(&["100", "44", "64"], &[]);
}

#[test]
fn persistent_collectives_that_are_all_intercepted() {
    collectives(&["60", "58", "64"], &[("LIBCOPY_MPI_MIN", "1")]);
}

#[test]
fn messages_between_all_spaces() {
    messages("600", &[]);
}

#[test]
fn messages_one_shot() {
    messages("200", &[("LIBCOPY_GPU_METHOD", "one-shot")]);
}

#[test]
fn messages_staged_with_streams_that_are_late() {
    let environment = [("LIBCOPY_GPU_METHOD", "staged"), ("FAKECUDA_DELAYED", "1")];
    messages("200", &environment);
}

#[test]
fn messages_that_the_library_moves() {
    messages("200", &[("LIBCOPY_MPI_MESSAGES", "0")]);
}

#[test]
fn messages_that_are_all_intercepted() {
    messages("200", &[("LIBCOPY_MPI_MIN", "1")]);
}
