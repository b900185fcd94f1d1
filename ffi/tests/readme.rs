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
        .replace(" target/", &format!(" {target}/"))
        .replace("=target/", &format!("={target}/"));
    if !built.ends_with("release") {
        commands = commands
            .replace(
                "scripts/install",
                "cargo build && scripts/install --debug --no-build",
            )
            // The features of the workspace's tests.
            .replace("cargo build", "cargo build --workspace --all-targets")
            .replace("cargo run", "cargo run --quiet")
            .replace(" --release", "");
    }
    let _alone = BUILDS.lock().unwrap_or_else(PoisonError::into_inner);
    // `libcopy` is in a reader's PATH, who is not root and has as many processors as ranks.
    let path = std::env::var("PATH").expect("there is a PATH");
    let output = Command::new("sh")
        .args(["-euc", &commands])
        .current_dir(ROOT)
        .env("CARGO_TARGET_DIR", target.to_string())
        .env("PATH", format!("{}:{path}", built.display()))
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
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
            "docs/rust-api.md",
            "## Datatypes",
            "rust",
            "libcopy/examples/column.rs",
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
fn commands_for_the_datatype_sample_work() {
    let text = run(&block("docs/rust-api.md", "## Datatypes", "sh"));
    assert_eq!(text, "[2.0, 12.0, 22.0, 32.0]\n");
    assert!(read("docs/rust-api.md").contains(&format!("It prints `{}`.", text.trim())));
}

#[test]
fn parts_of_examples_are_shown_and_run() {
    for (file, mark, says) in [
        ("sum", "## Teams", "4 ranks, the sum is 6\n"),
        ("messages", "## Messages", ""),
    ] {
        let part = block("docs/rust-api.md", mark, "rust");
        let indented: String = part.lines().map(|line| format!("    {line}\n")).collect();
        let source = read(&format!("libcopy/examples/{file}.rs"));
        assert!(source.contains(&indented), "{file}.rs has no\n{indented}");
        let text = run(&format!(
            "cargo build --release\nlibcopy run -n 4 target/release/examples/{file}"
        ));
        assert!(text.contains(says), "{file}: {text}");
    }
}

/// A package with the page's `Cargo.toml` and its sample, outside the workspace.
#[test]
#[ignore = "compiles libcopy once more, with the package's features: scripts/test --all"]
fn a_package_as_the_page_shows_it_builds_and_runs() {
    const PAGE: &str = "docs/rust-api.md";
    const MARK: &str = "## In a program of your own";
    let manifest = block(PAGE, MARK, "toml");
    let path = "path = \"../libcopy/libcopy\"";
    assert_eq!(manifest.matches(path).count(), 1, "{manifest}");
    let checkout = Path::new(ROOT).canonicalize().expect("the checkout");
    let manifest = manifest.replace(path, &format!("path = \"{}/libcopy\"", checkout.display()));

    let own = std::env::current_exe().expect("this test is a file");
    let target = own.ancestors().nth(3).expect("cargo's layout");
    // Outside: the package is no member of the workspace.
    let place = std::env::temp_dir().join(format!("libcopy-package-{}", std::process::id()));
    fs::create_dir_all(place.join("src")).expect("can create a directory");
    fs::write(place.join("Cargo.toml"), manifest).expect("can write");
    fs::write(
        place.join("src/main.rs"),
        block(PAGE, "## A program", "rust"),
    )
    .expect("can write");
    // The versions of this checkout, which are there.
    fs::copy(checkout.join("Cargo.lock"), place.join("Cargo.lock")).expect("can copy");

    let commands = block(PAGE, MARK, "sh");
    let (build, start) = commands.trim_end().split_once('\n').expect("two commands");
    assert_eq!(build, "cargo build --release");
    assert_eq!(start, "libcopy run -n 4 target/release/program");
    // The tool.
    run("cargo build --release");
    let _alone = BUILDS.lock().unwrap_or_else(PoisonError::into_inner);
    said(
        Command::new(env!("CARGO"))
            .args(["build", "--offline"])
            .current_dir(&place)
            .env("CARGO_TARGET_DIR", target.join("tmp/package"))
            // As the workspace has it.
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1"),
    );
    let tool = own
        .ancestors()
        .nth(2)
        .expect("cargo's layout")
        .join("libcopy");
    let text = said(
        Command::new(tool)
            .args(["run", "-n", "4"])
            .arg(target.join("tmp/package/debug/program")),
    );
    assert_eq!(text, "4 ranks, the last one is 3\n");
    fs::remove_dir_all(&place).expect("can remove a directory");
}

#[test]
fn commands_of_the_tutorial_work() {
    const PAGE: &str = "docs/tutorial.md";
    let found = Command::new("sh")
        .args(["-c", "command -v mpicc && command -v mpirun"])
        .output();
    if !found.is_ok_and(|found| found.status.success()) {
        eprintln!("no mpicc or mpirun: the tutorial's commands are not tested");
        return;
    }
    // The tool and the library.
    run("cargo build --release");
    let both = |mark| run(&format!("exec 2>&1\n{}", block(PAGE, mark, "sh")));

    let text = both("## 2. Run it once");
    let sums: Vec<&str> = text.lines().filter(|l| l.starts_with("the sum")).collect();
    assert!(sums.len() == 2 && sums[0] == sums[1], "{text}");
    // The head of the table that the page shows, and a row as it has them.
    let head = "function                        calls  intercepted";
    assert!(text.contains(head) && read(PAGE).contains(head), "{text}");
    let row = text.lines().find(|line| line.starts_with("MPI_Bcast "));
    let words: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
    assert_eq!(words.get(1), Some(&"800"), "{text}");
    let intercepted: u64 = words[2].parse().expect("a number");
    assert!(intercepted > 0, "{text}");

    let text = both("The reports can be kept");
    assert!(text.contains("\"MPI_Bcast\": {"), "{text}");
    assert!(text.matches(head).count() == 2, "{text}");

    let text = both("**It takes less time.**");
    assert!(
        text.starts_with("mpirun ") && text.contains("LD_PRELOAD"),
        "{text}"
    );
    assert!(text.contains("libcopy_mpi.so"), "{text}");
}

/// What a command that succeeds says.
fn said(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{command:?}: {text}");
    text
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
