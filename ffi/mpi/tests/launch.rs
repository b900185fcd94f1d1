// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy mpi run` with real launchers: all ranks have the library, no process of the launcher
//! has it, and nothing is left.

// Other tests use other parts of it.
#[allow(dead_code)]
mod common;

use std::path::Path;
use std::process::Command;

use common::{BOTH, C, library, mpi, text, turn};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/differential.c");

/// How often the parent of a rank maps the library, and then the rank itself: `$0` is the program.
const RANK: &str = "grep -c libcopy_mpi /proc/$PPID/maps >\"$0.parent.$$\"; exec \"$0\" \"$@\"";

#[test]
fn ranks_have_the_library_and_their_launcher_does_not() {
    let _turn = turn();
    let library = library();
    let tool = library.with_file_name("libcopy");
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, SOURCE, C) else {
            continue;
        };
        let place = mpi.program.with_extension("place");
        std::fs::create_dir_all(&place).expect("a directory of the test's own");
        let program = place.join("program");
        std::fs::copy(&mpi.program, &program).expect("a copy");
        let run = |options: &[&str], ranks: &[&str]| {
            let mut command = Command::new(&tool);
            command.args(["mpi", "run"]).args(options).arg(launcher);
            if name == "openmpi" {
                command.args(["--oversubscribe", "--allow-run-as-root"]);
            }
            command.args(ranks).env("LIBCOPY_GOVERNOR", "0");
            command.current_dir(&place).env_remove("LD_PRELOAD");
            let output = command.output().expect("the tool starts");
            assert!(output.status.success(), "{name}: {}", text(&output.stderr));
            (text(&output.stdout), text(&output.stderr))
        };
        let path = program.to_str().expect("a plain path");
        let shell = ["sh", "-c", RANK, path, "10", "1", "200000"];
        // The library lies beside the tool.
        let stats = format!("--stats={}", place.join("reports").display());
        for (options, parts) in [
            (&["--stats"][..], &[&["-n", "3"][..]][..]),
            (&[stats.as_str()], &[&["-n", "2"], &["-n", "1"]]),
        ] {
            let parts: Vec<_> = parts.iter().map(|part| [*part, &shell].concat()).collect();
            let (said, report) = run(options, &parts.join(&":"));
            assert_eq!(said.lines().count(), 10, "{name}: {said}{report}");
            assert!(
                report.contains("3 reports of 3 ranks, "),
                "{name}: {report}"
            );
            let parents = maps(&place);
            assert_eq!(
                parents, ["0"; 3],
                "{name}: times that a parent maps the library"
            );
        }
        let left = std::fs::read_dir(&place).expect("a directory").count();
        assert_eq!(
            left, 2,
            "{name}: the program and the reports that were asked for"
        );
        std::fs::remove_dir_all(&place).expect("the test's own directory");
    }
}

/// What the ranks have written of their parents, which is removed.
fn maps(place: &Path) -> Vec<String> {
    let files = std::fs::read_dir(place).expect("a directory").flatten();
    let files = files.map(|file| file.path());
    let files = files.filter(|path| path.to_string_lossy().contains(".parent."));
    files
        .map(|path| {
            let said = std::fs::read_to_string(&path).expect("what a rank wrote");
            std::fs::remove_file(&path).expect("the test's own file");
            said.trim().to_owned()
        })
        .collect()
}
