// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy plan`: what it prints, draws and refuses.

mod common;

use std::process::Command;

use common::{output, text, tool};
use serde_json::Value;

/// `libcopy plan` with words that have no blanks in them.
fn plan(words: &str) -> Command {
    let mut command = tool(&["plan"]);
    command.args(words.split(' '));
    command
}

#[track_caller]
fn said(words: &str) -> String {
    common::said(&mut plan(words))
}

#[track_caller]
fn json(words: &str) -> Value {
    common::json(&mut plan(words))
}

#[test]
fn a_plan_is_printed_checked_and_drawn() {
    let directory = tempfile::tempdir().expect("a directory");
    let svg = directory.path().join("plan.svg");
    let svg = svg.to_str().expect("text");
    let text = said(&format!("bcast --machine epyc-7742 --rank 5 --svg {svg}"));
    for part in [
        "bcast of 1M, 128 ranks",
        "simulated us",
        "32 groups of 4 ranks",
        "every byte arrives once",
        "of rank 4 (receive buffer at 0) to receive buffer of rank 5 at 0, following 4:0+1048576",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let drawing = std::fs::read_to_string(svg).expect("a drawing");
    assert!(
        drawing.starts_with("<svg") && drawing.matches("<rect").count() >= 127,
        "{drawing}"
    );
}

#[test]
fn all_operations_have_plans() {
    let operations = "barrier bcast reduce allreduce reduce_scatter allgather gather scatter \
                      alltoall scan exscan";
    for operation in operations.split_whitespace() {
        let json = json(&format!("{operation} --machine desktop --bytes 64K --json"));
        assert_eq!(json["ranks"], 16, "{json}");
        let ways = json["ways"].as_array().expect("a list");
        let taken: Vec<&Value> = ways.iter().filter(|way| way["taken"] == true).collect();
        assert_eq!(taken.len(), 1, "{operation}: {json}");
        assert!(
            taken[0]["simulated_us"].as_f64() > Some(0.0),
            "{operation}: {json}"
        );
        assert!(json["fan_out"].as_u64() <= Some(16), "{operation}: {json}");
    }
}

/// Tens of thousands of pieces for each way, and more elements than are checked.
#[test]
fn what_is_left_out_is_said() {
    let text = said("allgather --machine epyc-9654 --bytes 64K");
    for part in [
        "-: not simulated, as those with smaller estimates have",
        "Checked in 4 orders with 8K instead of 64K",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let ways = text.lines().filter(|line| line.contains(" leaders "));
    let taken: Vec<&str> = text.lines().filter(|line| line.starts_with("* ")).collect();
    assert!(
        ways.clone().count() > 4 && ways.clone().all(|line| line.ends_with('-')),
        "{text}"
    );
    assert!(taken.len() == 1 && taken[0].ends_with('%'), "{text}");
}

/// Where each rank waits for the one before, a scatter takes longer.
#[test]
fn ranks_take_turns() {
    let seconds = |more: &str| {
        let json = json(&format!(
            "scatter --machine desktop --bytes 64K --json{more}"
        ));
        let ways = json["ways"].as_array().expect("a list").clone();
        let taken = ways.into_iter().find(|way| way["taken"] == true);
        taken.expect("a way")["simulated_us"]
            .as_f64()
            .expect("a time")
    };
    assert!(seconds(" --at-once 1") > 2.0 * seconds(""));
}

/// Real bytes, moved by threads.
#[test]
fn plans_run_on_this_machine() {
    let operations = "barrier bcast reduce allreduce reduce_scatter allgather gather scatter \
                      alltoall scan exscan";
    for operation in operations.split_whitespace() {
        for ranks in ["1", "3", "20"] {
            let arguments = format!("{operation} -n {ranks} --bytes 12K --measure 2");
            let text = said(&arguments);
            assert!(text.contains("Measured here"), "{arguments}: {text}");
        }
    }
    // In segments.
    let text = said("allreduce -n 8 --bytes 1M --measure 1");
    assert!(text.contains("Measured here"), "{text}");
}

#[test]
fn levels_can_be_given() {
    for (levels, ranks, groups) in [
        ("node,package", "192", "1 group of 2 groups, 192 ranks"),
        ("none", "40", "1 group of 3 groups, 40 ranks"),
    ] {
        let text = said(&format!(
            "bcast --machine epyc-9654 --levels {levels} -n {ranks}"
        ));
        assert!(text.contains(groups), "{text}");
    }
}

#[test]
fn what_cannot_be_is_named() {
    for (arguments, part) in [
        ("bcost", "is none of barrier, bcast"),
        (
            "bcast --machine cray-1",
            "--machine cray-1 is none of epyc-9654",
        ),
        (
            "bcast --topology /proc",
            "no sys/devices/system/cpu is in it",
        ),
        ("bcast -n 0", "--ranks 0: from 1 to 1024"),
        ("bcast -n 4 --root 4", "--root 4: there are ranks 0 to 3"),
        ("allreduce -n 4 --bytes 1001", "--bytes 1001"),
        ("bcast -n 4 --bytes many", "size \"many\" is not a number"),
    ] {
        let output = output(&mut plan(arguments));
        let errors = text(&output.stderr);
        assert!(
            !output.status.success() && errors.contains(part),
            "{arguments}: {errors}"
        );
    }
}
