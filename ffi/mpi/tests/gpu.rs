// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs with buffers in device memory, run by Open MPI and by MPICH with a stand-in for the
//! CUDA driver (`tests/fakecuda`), in whose device memory a processor dies.

// Other tests use other parts of it.
#[allow(dead_code)]
mod common;
#[path = "../../../libcopy/gpu/tests/common/compile.rs"]
mod compile;
#[path = "common/device.rs"]
mod device;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use common::{LIMIT, library, text, turn};
use device::{driver, environment, numbers, programs, run};

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/device_cases.c");
const COLLECTIVES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/device_collectives.c");
const DEVICE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/device.c");

const PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/peers/mpi_gpu.c");

/// Random messages of the long test: `PROPTEST_CASES`, as in the other tests with random cases, or
/// 2,000.
fn most_messages() -> String {
    std::env::var("PROPTEST_CASES").unwrap_or_else(|_| "2000".to_owned())
}

/// Random messages of two ranks; the first seed packs before.
fn messages(cases: &str, seed: &str, environment: &[(&str, &str)]) {
    let _turn = turn();
    let packs = seed == "1";
    let arguments = [cases, seed, "messages"];
    for program in programs(DEVICE) {
        let arguments = if packs { &arguments[..2] } else { &arguments };
        let (_, report) = run(&program, 2, arguments, environment);
        let name = program.name;
        for what in ["buffers sent", "buffers received"] {
            assert!(numbers(&report, what) > 0, "{name}: no {what}:\n{report}");
        }
        let packed = numbers(&report, "calls that packed or unpacked");
        assert_eq!(packed > 0, packs, "{name}: {report}");
    }
}

/// Collectives of four ranks, each with buffers in other spaces.
fn collectives(arguments: &[&str], environment: &[(&str, &str)]) {
    let _turn = turn();
    for program in programs(COLLECTIVES) {
        let (_, report) = run(&program, 4, arguments, environment);
        let name = program.name;
        for what in ["buffers sent", "buffers received"] {
            assert!(numbers(&report, what) > 0, "{name}: no {what}:\n{report}");
        }
    }
}

/// Cases of `device_cases.c`, each of which every rank says to be right.
fn cases(names: &[&str], environment: &[(&str, &str)]) {
    const RANKS: usize = 3;
    let _turn = turn();
    for program in programs(CASES) {
        let (printed, _) = run(&program, RANKS, names, environment);
        for name in names {
            let right = printed
                .lines()
                .filter(|line| line.ends_with(&format!(": {name}")));
            let library = program.name;
            assert_eq!(right.count(), RANKS, "{library}, {name}: {printed}");
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
    collectives(&["100", "forwarded"], &[]);
}

#[test]
fn persistent_collectives() {
    collectives(&["100", "persistent"], &[]);
}

#[test]
fn persistent_collectives_that_are_all_intercepted() {
    collectives(
        &["60", "persistent-intercepted"],
        &[("LIBCOPY_MPI_MIN", "1")],
    );
}

#[test]
fn messages_between_all_spaces() {
    messages(&most_messages(), "1", &[]);
}

#[test]
fn messages_by_each_method() {
    for (seed, method) in ["device", "one-shot", "staged", "peer", "engine"]
        .iter()
        .enumerate()
    {
        let seed = (seed + 2).to_string();
        messages("150", &seed, &[("LIBCOPY_GPU_METHOD", method)]);
    }
}

#[test]
fn messages_where_ipc_is_refused() {
    let environment = [("LIBCOPY_GPU_METHOD", "peer"), ("FAKECUDA_IPC", "0")];
    messages("150", "7", &environment);
}

#[test]
fn messages_staged_with_streams_that_are_late() {
    let environment = [("LIBCOPY_GPU_METHOD", "staged"), ("FAKECUDA_DELAYED", "1")];
    messages("200", "8", &environment);
}

#[test]
fn messages_that_the_library_moves() {
    messages("200", "9", &[("LIBCOPY_MPI_MESSAGES", "0")]);
}

#[test]
fn messages_that_are_all_intercepted() {
    messages("200", "10", &[("LIBCOPY_MPI_MIN", "1")]);
}

#[test]
fn truncation_cancel_freed_requests_wildcards_recycled_addresses_fork() {
    let all = [
        "truncated",
        "cancelled",
        "freed",
        "wildcards",
        "recycled",
        "forked",
    ];
    cases(&all, &[]);
}

#[test]
fn threads() {
    cases(&["threads"], &[]);
    cases(&["threads"], &[("FAKECUDA_DELAYED", "1")]);
}

#[test]
fn truncation_cancel_freed_requests_where_all_messages_are_intercepted() {
    cases(
        &["truncated", "cancelled", "freed"],
        &[("LIBCOPY_MPI_MIN", "1")],
    );
}

#[test]
fn truncation_cancel_recycled_addresses_fork_with_peer_copies_and_late_streams() {
    let environment = [("LIBCOPY_GPU_METHOD", "peer"), ("FAKECUDA_DELAYED", "1")];
    cases(
        &["truncated", "cancelled", "recycled", "forked"],
        &environment,
    );
}

#[test]
fn a_rank_that_is_killed_ends_the_program() {
    let _turn = turn();
    for program in programs(CASES) {
        let started = Instant::now();
        let (_, output) = program.output(2, &["killed"], &environment(&[]));
        let (name, printed) = (program.name, text(&output.stdout));
        assert!(printed.contains("rank 0: received"), "{name}: {printed}");
        assert!(!output.status.success(), "{name}: {printed}");
        assert!(started.elapsed() < LIMIT, "{name} hung");
    }
}

/// `libcopy-lab gpu` starts this program for messages by each method, and for a stencil.
#[test]
fn messages_and_the_stencil_of_the_benchmark_run() {
    let _turn = turn();
    let tool = library().with_file_name("libcopy-lab");
    for program in programs(PEER) {
        let mut launch = program.launch(LIMIT);
        launch.args(["-n", "2", "env"]);
        launch.arg(format!("LD_PRELOAD={}", library().display()));
        launch.arg(&program.program);
        let words = [launch.get_program()].into_iter().chain(launch.get_args());
        let words: Vec<String> = words
            .map(|word| format!("'{}'", word.to_string_lossy()))
            .collect();
        let csv = program.program.with_extension("csv");
        let output = Command::new(&tool)
            .args(["gpu", "--quick", "--only", "E4,E8", "--csv"])
            .arg(&csv)
            .args([
                "--program",
                &format!("{}={}", program.name, words.join(" ")),
            ])
            .env("LD_LIBRARY_PATH", Path::new(driver()).parent().unwrap())
            .output()
            .expect("the tool starts");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(output.status.success(), "{}: {said}", program.name);
        assert!(said.contains("STAND-IN DRIVER"), "{said}");
        let cells = std::fs::read_to_string(&csv).expect("a CSV");
        let _ = std::fs::remove_file(&csv);
        for line in cells.lines() {
            assert_eq!(line.split(',').count(), 8, "{line}");
        }
        for (experiment, methods) in [
            (
                "E4",
                &["auto", "device", "one-shot", "staged", "peer", "engine"][..],
            ),
            (
                "E8",
                &[
                    "kernel",
                    "naive",
                    "one batch",
                    "typed",
                    "hand-staged",
                    "compute",
                ],
            ),
        ] {
            for method in methods {
                let of = |cell: &&str| {
                    cell.starts_with(experiment) && cell.contains(&format!(",{method},"))
                };
                let mut found = cells.lines().filter(of).peekable();
                assert!(found.peek().is_some(), "{experiment}, {method}: {cells}");
                assert!(found.all(|cell| cell.ends_with(",true")), "{cells}");
            }
        }
    }
}
