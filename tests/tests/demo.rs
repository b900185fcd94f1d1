// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/demo`: what a person sees is short, whatever builds and benchmarks print, and figures
//! that were not verified are refused. Cargo and the tool are stand-ins; the script is the real
//! one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The most lines that a run without a terminal may print.
const MOST_LINES: usize = 12;

/// Stands in for cargo: says much, and makes a tool that says much and writes a CSV file. What the
/// script needs of this checkout is built by cargo itself.
const CARGO: &str = r#"#!/bin/sh
case "$*" in
--version) exec "$REAL_CARGO" --version ;;
*libcopy-xtask*) exec env CARGO_TARGET_DIR="$REAL_TARGET" PATH="$REAL_PATH" "$REAL_CARGO" "$@" ;;
esac
seq 500
seq 500 >&2
[ -z "$FAILS" ] || { echo "error: this is why" >&2; exit 101; }
mkdir -p "$CARGO_TARGET_DIR/release" "$CARGO_TARGET_DIR/debug"
ln -sf "$REAL_TARGET/debug/xtask" "$CARGO_TARGET_DIR/debug/xtask"
cp "$TOOL" "$CARGO_TARGET_DIR/release/libcopy"
"#;

const TOOL: &str = r#"#!/bin/sh
seq 500
seq 500 >&2
while [ $# -gt 1 ]; do
    [ "$1" != --csv ] || csv=$2
    shift
done
{
    echo op,bytes,ranks,variant,median_us,p10_us,p90_us,verified
    for op in bcast gather; do
        for bytes in 4096 16777216; do
            echo "$op,$bytes,4,libcopy-kmod,345.6,1,2,yes"
            echo "$op,$bytes,4,libcopy-cma,1234.5,1,2,yes"
            echo "$op,$bytes,4,libcopy-shm,2345.6,1,2,$VERIFIED"
        done
    done
} >"$csv"
"#;

/// A directory with the stand-ins.
fn scratch(name: &str) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("demo")
        .join(name);
    let _ = fs::remove_dir_all(&place);
    fs::create_dir_all(place.join("bin")).expect("can create a directory");
    for (file, text) in [("bin/cargo", CARGO), ("tool", TOOL)] {
        let path = place.join(file);
        fs::write(&path, text).expect("can write");
        let all = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&path, all).expect("can be executed");
    }
    place
}

/// Runs the script without a terminal and without a virtual machine.
fn demo(place: &Path, verified: &str, fails: &str) -> Output {
    let own = std::env::current_exe().expect("this test is a file");
    let target = own.ancestors().nth(3).expect("cargo's layout");
    let path = std::env::var("PATH").expect("there is a PATH");
    Command::new(Path::new(ROOT).join("scripts/demo"))
        .args(["--host", "--out"])
        .arg(place.join("out"))
        .env("PATH", format!("{}:{path}", place.join("bin").display()))
        .env("REAL_PATH", &path)
        .env("REAL_CARGO", env!("CARGO"))
        .env("REAL_TARGET", target)
        .env("CARGO_TARGET_DIR", place.join("target"))
        .env("TOOL", place.join("tool"))
        .env("VERIFIED", verified)
        .env("FAILS", fails)
        .output()
        .expect("the script is there")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_run_prints_a_dozen_lines_at_most() {
    let place = scratch("short");
    let output = demo(&place, "yes", "");
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}{errors}");
    let lines = said.lines().count() + errors.lines().count();
    // Three more are those of the virtual machine.
    assert!(lines + 3 <= MOST_LINES, "{lines} lines: {said}{errors}");
    for words in [
        "1 of 2  building the tool",
        "2 of 2  4 ranks",
        "Less is better",
        "Every byte was verified",
        " 0.35 ",
        " 1.23 ",
        " 2.35",
    ] {
        assert!(said.contains(words), "no {words:?}: {said}");
    }
    let log = place.join("out/log.txt");
    assert!(said.contains(log.to_str().expect("a plain path")), "{said}");
    let log = fs::read_to_string(log).expect("a log");
    assert!(log.lines().count() > 1000, "{log}");
}

#[test]
fn what_is_not_verified_or_does_not_build_fails() {
    let place = scratch("unverified");
    let output = demo(&place, "no", "");
    let errors = text(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    assert!(errors.contains("lines that are not verified"), "{errors}");
    assert!(!text(&output.stdout).contains("Every byte"), "{output:?}");

    let place = scratch("unbuilt");
    let output = demo(&place, "yes", "1");
    let errors = text(&output.stderr);
    assert!(!output.status.success(), "{output:?}");
    assert!(errors.contains("error: this is why"), "{errors}");
    assert!(errors.contains("log.txt"), "{errors}");
}
