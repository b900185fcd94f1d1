// SPDX-License-Identifier: MIT OR Apache-2.0

//! The samples of README.md and of the pages on the APIs are the example files, and the commands
//! beside them work as they stand there.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// One list of commands at a time: each may build, and so replace what another one is running.
static BUILDS: Mutex<()> = Mutex::new(());

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

fn read(path: &str) -> String {
    let path = Path::new(ROOT).join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The contents of the first block of `language` behind the line that begins with `mark`.
fn block(page: &str, mark: &str, language: &str) -> String {
    let text = read(page);
    let (_, section) = text
        .split_once(&format!("\n{mark}"))
        .unwrap_or_else(|| panic!("{page}: no {mark:?}"));
    let (_, block) = section
        .split_once(&format!("```{language}\n"))
        .unwrap_or_else(|| panic!("{page}: no {language} behind {mark:?}"));
    let (block, _) = block.split_once("```").expect("the block ends");
    block.to_owned()
}

/// Runs a list of commands in the checkout, as a reader would; only the profile and the directory
/// are those of this test, so that nothing is built a second time.
fn run(commands: &str) -> String {
    let own = std::env::current_exe().expect("this test is a file");
    let built = own.ancestors().nth(2).expect("cargo's layout");
    let target = built.parent().expect("cargo's layout").display();
    let mut commands = commands
        .replace("$PWD/target/release", &built.display().to_string())
        .replace("target/release", &built.display().to_string())
        .replace("$PWD/target/installed", &format!("{target}/tmp/installed"))
        .replace("target/installed", &format!("{target}/tmp/installed"))
        .replace(" target/", &format!(" {target}/"));
    if !built.ends_with("release") {
        commands = commands
            .replace(
                "scripts/install",
                "cargo build && scripts/install --debug --no-build",
            )
            // The features of the workspace's tests.
            .replace("cargo build", "cargo build --workspace --all-targets")
            .replace(" --release", "");
    }
    let _alone = BUILDS.lock().unwrap_or_else(PoisonError::into_inner);
    let output = Command::new("sh")
        .args(["-euc", &commands])
        .current_dir(ROOT)
        .env("CARGO_TARGET_DIR", target.to_string())
        .output()
        .expect("there is a shell");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{commands}\n{}: {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

#[test]
fn samples_are_the_example_files() {
    for (page, mark, language, file, most) in [
        (
            "README.md",
            "**Rust**",
            "rust",
            "libcopy/examples/quick_start.rs",
            15,
        ),
        (
            "docs/rust-api.md",
            "## A program",
            "rust",
            "libcopy/examples/bcast.rs",
            36,
        ),
        (
            "docs/c-api.md",
            "## A program",
            "c",
            "ffi/examples/bcast.c",
            36,
        ),
    ] {
        let sample = block(page, mark, language);
        assert!(sample == read(file), "{page}, {mark}: not {file}");
        let lines = sample.lines().count();
        assert!((10..=most).contains(&lines), "{file} has {lines} lines");
    }
}

#[test]
fn commands_for_the_quick_start_work() {
    let text = run(&block("README.md", "**Rust**", "sh"));
    for rank in 0..4 {
        assert!(
            text.contains(&format!("rank {rank} of 4 has it\n")),
            "{text}"
        );
    }
}

#[test]
fn commands_for_the_rust_sample_work() {
    let text = run(&block("docs/rust-api.md", "## A program", "sh"));
    assert_eq!(text, "4 ranks, the last one is 3\n");
}

#[test]
fn commands_for_the_c_sample_work() {
    let text = run(&block("docs/c-api.md", "## A program", "sh"));
    for rank in 0..4 {
        assert!(
            text.contains(&format!("rank {rank} ends with x\n")),
            "{text}"
        );
    }
}
