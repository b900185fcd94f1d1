// SPDX-License-Identifier: MIT OR Apache-2.0

//! The README's samples are the example files, and its commands work as they stand there.

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

/// The contents of the first block of `language` behind the heading.
fn block(readme: &str, heading: &str, language: &str) -> String {
    let (_, section) = readme
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("no section {heading:?}"));
    let section = section.split("\n## ").next().unwrap_or_default();
    let (_, block) = section
        .split_once(&format!("```{language}\n"))
        .unwrap_or_else(|| panic!("no {language} in {heading:?}"));
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
        .replace(" target/", &format!(" {target}/"));
    if !built.ends_with("release") {
        commands = commands.replace(" --release", "");
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
    let readme = read("README.md");
    for (heading, language, file) in [
        ("Thirty lines of Rust", "rust", "libcopy/examples/bcast.rs"),
        ("Thirty lines of C", "c", "ffi/examples/bcast.c"),
    ] {
        let sample = block(&readme, heading, language);
        assert!(sample == read(file), "README.md, {heading}: not {file}");
        let lines = sample.lines().count();
        assert!((20..=36).contains(&lines), "{heading} has {lines}");
    }
}

#[test]
fn commands_for_the_rust_sample_work() {
    let text = run(&block(&read("README.md"), "Thirty lines of Rust", "sh"));
    assert_eq!(text, "4 ranks, the last one is 3\n");
}

#[test]
fn commands_for_the_c_sample_work() {
    let text = run(&block(&read("README.md"), "Thirty lines of C", "sh"));
    for rank in 0..4 {
        assert!(
            text.contains(&format!("rank {rank} ends with x\n")),
            "{text}"
        );
    }
}
