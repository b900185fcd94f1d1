// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `libcopy tune --contention` measures, prints and stores.

mod common;

use std::path::Path;

use common::{output, said, text, tool, word};

/// What the tool measures with few rounds, and says.
fn tune(words: &[&str], profile: &Path) -> String {
    let mut command = tool(&["tune", "--contention", "--quick"]);
    said(command.args(words).env("LIBCOPY_PROFILE", profile))
}

/// Readers that share processors say nothing of the machine, but do everything.
#[test]
fn every_distance_and_transport_is_measured() {
    let place = tempfile::tempdir().expect("a directory");
    let [profile, csv, figure] = ["profile.toml", "a.csv", "a"].map(|name| place.path().join(name));
    let files = ["--csv", word(&csv), "--plot", word(&figure)];
    let text = tune(&[&["--oversubscribe", "3"], &files[..]].concat(), &profile);
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
    let text = tune(&["--readers", "1"], &profile);
    let tool = |words: &[&str]| said(tool(words).env("LIBCOPY_PROFILE", &profile));
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
    let table = format!("[contention.\"{machine}\"]\nline_ns = 0\n");
    std::fs::write(&profile, table).expect("a file");
    said(tool(&["run", "-n", "2", "true"]).env("LIBCOPY_PROFILE", &profile));
    let mut command = tool(&[
        "bench", "coll", "-n", "2", "--sizes", "1K,2K", "--ops", "bcast",
    ]);
    let output = output(command.env("LIBCOPY_PROFILE", &profile));
    let errors = text(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("line_ns"),
        "{errors}"
    );
}
