// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy-lab nic`, as a user calls it.

use serde_json::Value;
use std::process::{Command, Output};

fn nic(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_libcopy-lab"))
        .arg("nic")
        .args(arguments)
        .output()
        .unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = nic(arguments);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn error(arguments: &[&str]) -> String {
    let output = nic(arguments);
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_plan_says_whether_a_type_runs_at_line_rate_and_why() {
    let plan = json(&["plan", "vector(4096,16,32,double)", "--json"]);
    assert_eq!(plan["strategy"], "specialized");
    assert_eq!(plan["line_rate"], true);
    assert_eq!(plan["simulated"], true);
    assert_eq!(plan["bytes"], 4096 * 16 * 8);
    let twice = json(&[
        "plan",
        "vector(4096,16,32,double)",
        "--count",
        "2",
        "--json",
    ]);
    assert_eq!(twice["bytes"], 2 * 4096 * 16 * 8);
    let slow = json(&["plan", "vector(65536,1,2,float)", "--hpus", "1", "--json"]);
    assert_eq!(slow["line_rate"], false);
    let nested = [
        "plan",
        "hvector(9,1,100000,vector(100,1,7,double))",
        "--strategy",
        "rw-cp",
        "--json",
    ];
    let nested = json(&nested);
    assert_eq!(nested["strategy"], "rw-cp");
    assert!(nested["interval_packets"].as_u64().unwrap() >= 1);
    let host = json(&["plan", "vector(8,4,2,double)", "--json"]);
    assert_eq!(host["offload"], false);
    assert!(host["why"].as_str().unwrap().contains("two of its pieces"));
    let text = nic(&["plan", "vector(4096,16,32,double)"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.contains("line rate") && text.contains("not measured"),
        "{text}"
    );
}

#[test]
fn a_simulation_has_all_ways_and_repeats_itself() {
    let arguments = [
        "simulate",
        "vector(4096,16,32,double)",
        "--window",
        "9",
        "--seed",
        "4",
        "--json",
    ];
    let first = json(&arguments);
    let names: Vec<&str> = first["ways"]
        .as_array()
        .unwrap()
        .iter()
        .map(|way| way["way"].as_str().unwrap())
        .collect();
    let all = [
        "host",
        "unexpected",
        "iovec",
        "specialized",
        "hpu-local",
        "ro-cp",
        "rw-cp",
        "seek",
    ];
    assert_eq!(names, all);
    assert_eq!(first, json(&arguments));
}

#[test]
fn wrong_arguments_are_errors_with_the_way_out() {
    let unknown = error(&["plan", "double", "--strategy", "fast"]);
    assert!(
        unknown.contains("rw-cp") && unknown.contains("seek"),
        "{unknown}"
    );
    let none = error(&["plan", "double", "--hpus", "0"]);
    assert!(
        none.contains("--hpus") && none.contains("between 1"),
        "{none}"
    );
    let epsilon = error(&["plan", "double", "--epsilon=-1"]);
    assert!(epsilon.contains("epsilon"), "{epsilon}");
    let empty = error(&["simulate", "contiguous(0,double)"]);
    assert!(empty.contains("--count"), "{empty}");
    let type_error = error(&["plan", "vector(3"]);
    assert!(!type_error.contains("panicked"), "{type_error}");
}

#[test]
fn help_says_that_there_is_no_card() {
    for command in ["plan", "simulate", "figures"] {
        let output = nic(&[command, "--help"]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("modelled or simulated"), "{text}");
    }
}

/// The file is opened first: without that the table would be on standard output.
#[test]
fn a_file_that_cannot_be_written_is_an_error_before_the_simulation() {
    let output = nic(&["figures", "--quick", "--csv", "/nonexistent/claims.csv"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && output.stdout.is_empty(),
        "{error}"
    );
    assert!(error.contains("/nonexistent/claims.csv"), "{error}");
}

#[test]
fn types_give_way_in_nic_memory_unless_a_receive_is_posted() {
    let list = |count: u64| {
        // Without a pattern, so that the description is a list.
        let noise = |i: u64| ((i * 2_654_435_761) >> 7) % 3;
        let offsets: Vec<String> = (0..count).map(|i| (4 * i + noise(i)).to_string()).collect();
        format!("indexed_block(1, [{}], double)", offsets.join(", "))
    };
    let (own, other) = (list(200), list(300));
    let simulate = |option: &str, memory: &str| {
        let all = [
            "simulate", &own, option, &other, "--memory", memory, "--json",
        ];
        json(&all)
    };
    let way = |all: &Value, name: &str| {
        let ways = all["ways"].as_array().unwrap();
        ways.iter().find(|way| way["way"] == name).cloned()
    };
    // Room for one of them, or for both.
    let small = simulate("--before", "2000");
    let seek = way(&small, "seek").unwrap();
    assert_eq!(seek["evicted"].as_array().unwrap().len(), 1);
    assert_eq!(seek["evicted"][0], other.as_str());
    let large = way(&simulate("--before", "4000"), "seek").unwrap();
    assert_eq!(large["evicted"].as_array().unwrap().len(), 0);
    let posted = simulate("--posted", "2000");
    assert!(way(&posted, "seek").is_none());
    assert!(posted.to_string().contains("the host unpacks"), "{posted}");
}

#[test]
fn a_simulation_sends_and_has_unexpected_messages() {
    let all = json(&["simulate", "vector(32768,16,32,double)", "--json"]);
    let sent = |name: &str| all["sent_us"][name].as_f64().unwrap();
    assert!(sent("process_put") < sent("pack_and_put"));
    assert!(sent("streaming_put") < sent("pack_and_put"));
    let time = |at: usize| all["ways"][at]["us"].as_f64().unwrap();
    assert!(time(1) < time(0), "an unexpected message waits for nobody");
}
