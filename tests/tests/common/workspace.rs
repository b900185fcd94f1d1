// SPDX-License-Identifier: MIT OR Apache-2.0

//! Has cargo build what tests of other crates start: libraries and tools. Tests of several crates
//! use this file.

use std::path::Path;
use std::process::Command;

/// Builds the workspace, the `built` directory of which (`target/debug` or `target/release`) this
/// test is in. Cargo does not build it for a test of one crate; with all of the workspace it has
/// the features that the workspace's tests have, so that nothing is compiled a second time.
///
/// Tests run in many processes, and each would ask cargo, which looks at all files of the
/// workspace: of those of one run of nextest only the first one does.
pub fn build(built: &Path) {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let run = std::env::var("NEXTEST_RUN_ID").ok();
    let profile = built.file_name().unwrap_or_default().to_string_lossy();
    let prefix = format!("built.{profile}.");
    let mark = run.map(|run| directory.join(format!("{prefix}{run}")));
    if mark.as_ref().is_some_and(|mark| mark.exists()) {
        return;
    }
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--workspace", "--all-targets"]);
    build.args([
        "--manifest-path",
        concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
    ]);
    if profile == "release" {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo starts").success());
    let Some(mark) = mark else {
        return;
    };
    // Those of runs before.
    for entry in directory.read_dir().into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    std::fs::write(mark, "").expect("the directory of tests");
}
