// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy bench many`: what it prints and writes, with few ranks and sizes.

mod common;

use std::process::Output;

use common::{TOOL, output, text, tool, word};

fn many(words: &[&str]) -> Output {
    let mut command = tool(&["bench", "many", "--quick"]);
    output(command.args(words).env("LIBCOPY_PROFILE", "none"))
}

#[test]
fn everything_is_measured_predicted_and_drawn() {
    let place = tempfile::tempdir().expect("a directory");
    let [csv, figure] = ["many.csv", "many"].map(|name| place.path().join(name));
    // Another libcopy stands for an MPI library.
    let peer = format!("other@3='{TOOL}' run -n 3 -- '{TOOL}' bench rank");
    let output = many(&[
        "--ranks",
        "2,3",
        "--sizes",
        "8,64K",
        "--launches",
        "1",
        // More than a busy machine takes: cells are left out when the time is up.
        "--time",
        "30",
        "--rounds",
        "1",
        "--csv",
        word(&csv),
        "--plot",
        word(&figure),
        "--peer",
        &peer,
    ]);
    let (errors, text) = (text(&output.stderr), text(&output.stdout));
    assert!(output.status.success(), "{errors}\n{text}");
    assert!(text.is_ascii(), "{text}");
    let rows = std::fs::read_to_string(&csv).expect("a file");
    let has = |ranks: usize, variant: &str| {
        let operations = ["bcast", "allgather", "alltoall", "reduce", "allreduce"];
        for (operation, bytes) in operations
            .iter()
            .flat_map(|operation| [8, 65536].map(|bytes| (*operation, bytes)))
            .chain([("barrier", 0)])
        {
            let row = format!("{operation},{bytes},{ranks},{variant},");
            assert!(rows.contains(&row), "{row}\n{rows}");
        }
    };
    for variant in ["libcopy", "flat"] {
        has(2, variant);
        has(3, variant);
    }
    // What a peer does not know fails, and this one knows all.
    has(3, "other");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    for ranks in [2, 3] {
        let is_simulated = rows.contains(&format!(",{ranks},simulated,"));
        assert_eq!(is_simulated, ranks <= cpus, "{rows}");
        if ranks <= cpus {
            has(ranks, "simulated");
        } else {
            let said = format!("{ranks} ranks on {cpus} processors: oversubscribed");
            assert!(text.contains(&said), "{text}");
        }
    }
    assert!(!rows.contains("simulated") || rows.contains(",simulated\n"));
    assert!(place.path().join("many-2-ranks.svg").exists());
    assert!(place.path().join("many-3-ranks.svg").exists());
    if cpus > 1 {
        let curve = std::fs::read_to_string(place.path().join("many-contention.csv"));
        assert!(curve.expect("a file").contains(",shm,apart,"));
    }
}

#[test]
fn what_cannot_be_is_named() {
    for (words, part) in [
        (&["--ranks", "1"][..], "--ranks 1"),
        (
            &["--ranks", "2", "--peer", "openmpi=mpirun"],
            "NAME@RANKS=COMMAND",
        ),
        (
            &["--ranks", "2", "--csv", "/proc/none/a.csv"],
            "there is no folder",
        ),
        (&[], "--ranks"),
    ] {
        let output = many(words);
        let errors = text(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(part),
            "{words:?}: {errors}"
        );
    }
}
