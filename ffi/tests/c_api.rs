// SPDX-License-Identifier: MIT OR Apache-2.0

//! The C API as a C programmer meets it: headers, library, pkg-config file and an example.

#[path = "../../libcopy/gpu/tests/common/compile.rs"]
mod compile;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The directory with `libcopy.so` and the tool, both built: two above this test's own file.
/// Cargo itself builds neither for a test of this crate.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let own = std::env::current_exe().expect("this test is a file");
        let directory = own.ancestors().nth(2).expect("cargo's layout").to_owned();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", "libcopy", "-p", "libcopy-ffi"]);
        build.arg("--manifest-path").arg(here("../Cargo.toml"));
        if directory.ends_with("release") {
            build.arg("--release");
        }
        run(&mut build);
        directory
    })
}

fn run(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Compiles a C file against the header and the shared library.
fn compile(source: &Path, into: &Path) -> PathBuf {
    let program = into.join("program");
    run(Command::new("gcc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-I")
        .arg(here("include"))
        .arg("-L")
        .arg(built())
        .arg(format!("-Wl,-rpath,{}", built().display()))
        .arg("-lcopy"));
    program
}

/// A new directory for one test.
fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("can create a directory");
    path
}

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
