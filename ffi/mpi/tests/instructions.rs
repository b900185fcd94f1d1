// SPDX-License-Identifier: MIT OR Apache-2.0

//! How many instructions of `libcopy_mpi.so` a call takes that is left to the MPI library, counted
//! by valgrind: what programs that poll, and those with many short messages, pay for being
//! preloaded. Times say too little here; a call of 20 ns that takes 60 makes a program three times
//! slower.

#[allow(dead_code)]
mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{BOTH, C, library, mpi, text, turn};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/overhead.c");

/// Calls that are counted.
const CALLS: u64 = 200;

/// Functions of the program, in its order, and most instructions of one call in the build that
/// tests use, which takes some times as many as a release: one and a half times what was counted
/// under the library that needs more (30 November 2026).
const MOST: [(&str, u64); 8] = [
    ("send_recv", 1770),
    ("sendrecv", 1330),
    ("test", 1320),
    ("testany", 2290),
    ("sendrecv_512", 2300),
    ("waitall_512", 8500),
    ("iprobe", 390),
    ("test_beside_send", 2960),
];

#[test]
fn forwarded_calls_take_few_instructions() {
    let valgrind = Command::new("valgrind").arg("--version").output();
    if valgrind.is_err() {
        eprintln!("skipped: valgrind is not installed");
        return;
    }
    let _turn = turn();
    let names = MOST.map(|(name, _)| name);
    for (name, launcher) in BOTH {
        let Some(mpi) = mpi(name, launcher, SOURCE, C) else {
            continue;
        };
        let place = mpi.program.with_extension("counted");
        fs::create_dir_all(&place).expect("a directory of the test's own");
        let mut command = mpi.launch(Duration::from_secs(300));
        command.args(["-n", "2", "env"]);
        command.arg(format!("LD_PRELOAD={}", library().display()));
        command.args(["valgrind", "--tool=callgrind", "--collect-atstart=no"]);
        command.args(["--toggle-collect=counted", "--dump-after=counted"]);
        command.args(["--compress-strings=no", "--compress-pos=no"]);
        command.arg(format!("--callgrind-out-file={}/%p", place.display()));
        command.arg(&mpi.program);
        command.args(["count", &names.join(","), &CALLS.to_string()]);
        let output = command.output().expect("the launcher starts");
        assert!(
            output.status.success(),
            "{command:?}\n{}",
            text(&output.stderr)
        );
        let counted = counted(&place);
        fs::remove_dir_all(&place).expect("the test's own directory");
        eprintln!("{name}: {counted:?}");
        assert_eq!(counted.len(), names.len(), "{name}: functions");
        for ((function, most), (part, [least, highest])) in MOST.iter().zip(&counted) {
            assert!(
                *least > 0 && *highest <= CALLS * most,
                "{name}: {function} (part {part}) takes {} instructions, at most {most} are expected",
                highest / CALLS
            );
        }
    }
}

/// Instructions of the library in each part of what both ranks were counted at, of the rank with
/// fewer and the one with more. Files are `PID.PART`.
fn counted(place: &Path) -> BTreeMap<u64, [u64; 2]> {
    let mut parts = BTreeMap::new();
    for entry in fs::read_dir(place).expect("a directory").flatten() {
        let path = entry.path();
        let part = path
            .extension()
            .and_then(|part| part.to_str()?.parse().ok());
        // One without a part is what came behind the last.
        let Some(part) = part else {
            continue;
        };
        let count = instructions(&fs::read_to_string(&path).expect("a text"));
        let [least, most] = parts.entry(part).or_insert([u64::MAX, 0]);
        (*least, *most) = (count.min(*least), count.max(*most));
    }
    parts
}

/// Instructions of the library's own functions in a file of callgrind's: lines of a position and a
/// number of instructions, behind one that names the object. The line behind `calls=` is what was
/// called.
fn instructions(file: &str) -> u64 {
    let (mut sum, mut is_ours, mut is_called) = (0, false, false);
    for line in file.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            is_ours = object.ends_with("libcopy_mpi.so");
        } else if line.starts_with("calls=") {
            is_called = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            let count = line.split(' ').nth(1);
            let count = count.and_then(|count| count.parse::<u64>().ok());
            if is_ours && !is_called {
                sum += count.unwrap_or(0);
            }
            is_called = false;
        }
    }
    sum
}
