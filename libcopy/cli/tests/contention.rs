// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `libcopy tune --contention` measures, prints and stores.

use std::path::Path;
use std::process::{Command, Output};

fn tune(words: &[&str], profile: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_libcopy"));
    command.args(["tune", "--contention", "--quick"]);
    for name in ["LIBCOPY_TRANSPORT", "LIBCOPY_TOPOLOGY"] {
        command.env_remove(name);
    }
    command.args(words).env("LIBCOPY_PROFILE", profile);
    command.output().expect("the tool starts")
}

fn said(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Readers that share processors say nothing of the machine, but do everything.
#[test]
fn every_distance_and_transport_is_measured() {
    let place = tempfile::tempdir().expect("a directory");
    let [profile, csv, figure] = ["profile.toml", "a.csv", "a"].map(|name| place.path().join(name));
    let output = tune(
        &[
            "--oversubscribe",
            "3",
            "--csv",
            csv.to_str().expect("text"),
            "--plot",
            figure.to_str().expect("text"),
        ],
        &profile,
    );
    let text = said(&output);
    assert!(text.contains("not stored") && !profile.exists(), "{text}");
    let rows = std::fs::read_to_string(&csv).expect("a file");
    for distance in ["cache", "node", "package", "machine"] {
        for pieces in ["same", "apart"] {
            for readers in 1..=3 {
                let row = format!("{distance},shm,{pieces},65536,{readers},");
                assert!(rows.contains(&row), "{row}\n{rows}");
            }
        }
    }
    for row in ["cache,shm,memory,", "machine,shm,pairs,"] {
        assert!(rows.contains(row), "{row}\n{rows}");
    }
    let drawing = std::fs::read_to_string(figure.with_extension("svg")).expect("a figure");
    assert!(drawing.contains("far: another package"));
}

/// What is measured is kept beside the policy, and the policy's table and plans tell of it.
#[test]
fn what_is_measured_is_stored_and_used() {
    let place = tempfile::tempdir().expect("a directory");
    let profile = place.path().join("profile.toml");
    let text = said(&tune(&["--readers", "1"], &profile));
    let tool = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_libcopy"));
        command.args(words).env("LIBCOPY_PROFILE", &profile);
        said(&command.output().expect("the tool starts"))
    };
    if text.contains("nothing was measured") {
        // One processor.
        assert!(!profile.exists(), "{text}");
        return;
    }
    assert!(text.contains("one reader only"), "{text}");
    assert!(text.contains("shm") && text.contains('*'), "{text}");
    let stored = std::fs::read_to_string(&profile).expect("a profile");
    assert!(
        stored.contains("[contention.") && stored.contains("core_mbs"),
        "{stored}"
    );
    assert!(tool(&["info"]).contains("as measured for plans"));
    assert!(tool(&["plan", "bcast", "-n", "2", "--bytes", "64K"]).contains("as measured with"));
    // A team that has the profile's costs moves the right bytes.
    let coll = [
        "bench", "coll", "-n", "3", "--ops", "bcast", "--sizes", "64K,1M",
    ];
    tool(&[&coll[..], &["--rounds", "1", "--time", "0.2"]].concat());
}

#[test]
fn a_table_that_no_machine_has_is_refused() {
    let place = tempfile::tempdir().expect("a directory");
    let profile = place.path().join("profile.toml");
    let machine = libcopy::topology::Topology::read().machine();
    let text = format!("[contention.\"{machine}\"]\nline_ns = 0\n");
    std::fs::write(&profile, text).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_libcopy"));
    command.args(["run", "-n", "2", "true"]);
    command.env("LIBCOPY_PROFILE", &profile);
    assert!(command.output().expect("the tool starts").status.success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_libcopy"));
    command.args([
        "bench", "coll", "-n", "2", "--sizes", "1K,2K", "--ops", "bcast",
    ]);
    let output = command.env("LIBCOPY_PROFILE", &profile).output();
    let output = output.expect("the tool starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("line_ns"),
        "{errors}"
    );
}
