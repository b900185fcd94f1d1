// SPDX-License-Identifier: MIT OR Apache-2.0

//! The C API as a C programmer meets it: headers, library, pkg-config file and an example.

#[path = "../../libcopy/gpu/tests/common/compile.rs"]
mod compile;

mod common;

use common::{built, compile, here, run, scratch};
use std::path::Path;
use std::process::Command;

#[test]
fn the_example_broadcasts_among_four_ranks() {
    let program = compile(&here("examples/bcast.c"), &scratch("bcast"));
    let output = run(Command::new(built().join("libcopy"))
        .args(["run", "-n", "4", "--"])
        .arg(program));
    let text = String::from_utf8_lossy(&output.stdout);
    for rank in 0..4 {
        assert!(text.contains(&format!("rank {rank} ends with x")), "{text}");
    }
}

#[test]
fn collectives_and_errors_of_a_team_of_one() {
    let program = compile(&here("tests/alone.c"), &scratch("alone"));
    run(&mut Command::new(program));
}

#[test]
fn every_collective_among_ranks() {
    let program = compile(&here("tests/collectives.c"), &scratch("collectives"));
    for ranks in ["1", "3", "5"] {
        let output = run(Command::new(built().join("libcopy"))
            .args(["run", "-n", ranks, "--"])
            .arg(&program));
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.matches("is done").count().to_string(), ranks, "{text}");
    }
}

#[test]
fn messages_among_ranks() {
    let program = compile(&here("tests/messages.c"), &scratch("messages"));
    for (ranks, transport) in [("1", ""), ("2", ""), ("5", ""), ("3", "shm")] {
        let output = run(Command::new(built().join("libcopy"))
            .args(["run", "-n", ranks, "--"])
            .arg(&program)
            .env("LIBCOPY_TRANSPORT", transport));
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.matches("is done").count().to_string(), ranks, "{text}");
    }
}

#[test]
fn datatypes_in_c() {
    let program = compile(&here("tests/types.c"), &scratch("types"));
    run(&mut Command::new(&program));
    with_valgrind(&program);
}

#[test]
fn cursors_external32_binary_forms_and_reductions_in_c() {
    let program = compile(&here("tests/exchange.c"), &scratch("exchange"));
    run(&mut Command::new(&program));
    with_valgrind(&program);
}

#[test]
fn plans_for_network_cards_in_c() {
    let program = compile(&here("tests/nic.c"), &scratch("nic"));
    run(&mut Command::new(&program));
    with_valgrind(&program);
}

#[test]
fn packing_in_the_order_of_a_cuda_stream_in_c() {
    let program = compile(&here("tests/gpu.c"), &scratch("gpu"));
    let driver = compile::driver();
    for is_delayed in ["0", "1"] {
        let output = run(Command::new(&program)
            .env("LD_LIBRARY_PATH", driver.parent().expect("a directory"))
            .env("FAKECUDA_DELAYED", is_delayed));
        assert_eq!(output.stdout, b"all packed\n");
    }
}

/// Runs a program once more, where valgrind looks for what is lost.
fn with_valgrind(program: &Path) {
    let valgrind = Command::new("valgrind").arg("--version").output();
    if valgrind.is_err() {
        eprintln!("valgrind is not installed: the same again without it is all there is");
        return;
    }
    // The library may keep what lives as long as the process: it is reachable, not lost. AVX-512
    // is beyond valgrind; the library asks the processor that valgrind shows it.
    run(Command::new("valgrind")
        .args(["--quiet", "--error-exitcode=9", "--leak-check=full"])
        .args(["--errors-for-leak-kinds=definite,indirect,possible"])
        .arg(program));
}

#[test]
fn headers_are_valid_cpp() {
    for header in ["libcopy.h", "libcopy_uapi.h"] {
        run(Command::new("gcc")
            .args([
                "-x",
                "c++",
                "-std=c++17",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fsyntax-only",
            ])
            .args(["-include", header, "-I"])
            .arg(here("include"))
            .arg("/dev/null"));
    }
}

#[test]
fn structures_in_c_have_the_sizes_that_the_commands_name() {
    run(Command::new("gcc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fsyntax-only",
            "-I",
        ])
        .arg(here("include"))
        .arg(here("tests/uapi.c")));
}
