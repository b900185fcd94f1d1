// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `libcopy-lab rdma` writes.

use std::process::Command;

#[test]
fn counts_are_written_as_csv_and_are_the_papers() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("counts.csv");
    let output = Command::new(env!("CARGO_BIN_EXE_libcopy-lab"))
        .args(["rdma", "counts", "--software", "--csv"])
        .arg(&file)
        .output()
        .expect("the tool starts");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(said.contains("Card in software"), "{said}");
    assert!(said.contains("Not over RDMA devices: --software"), "{said}");
    let text = std::fs::read_to_string(&file).expect("the tool has written it");
    let mut lines = text.lines();
    assert_eq!(
        lines.next(),
        Some("case,method,keys,cts_bytes,writes,hits,expected,right")
    );
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == 8), "{text}");
    assert!(rows.iter().all(|row| row[7] == "yes"), "{text}");
    let row = |case: &str| {
        let found = rows.iter().find(|row| row[0] == case);
        found.unwrap_or_else(|| panic!("{case} in {text}"))[1..6].join(" ")
    };
    // The paper's numbers, not those of the program's own formulas.
    assert_eq!(row("blocks-4096-first"), "umr 1024 4096 1024 0");
    assert_eq!(row("blocks-4096-again"), "umr 0 0 1024 1");
    assert_eq!(row("vector-1024x16"), "umr 1 4 110 109");
    assert_eq!(row("vector-2048x64"), "umr 4 16 440 109");
    assert_eq!(row("vector-4096x128"), "umr 8 32 880 109");
    assert_eq!(row("sw4lite-x"), "umr 1 4 2 1");
    assert_eq!(row("sw4lite-y"), "pack 0 0 2 0");
    assert_eq!(row("milc-D"), "umr 1 4 2 1");
    assert_eq!(row("nas-mg-C"), "umr 2 8 4 1");
    assert_eq!(row("specfem3d-mt-C"), "umr 2 8 4 1");
    // 8 x 7 pairs of 4 keys.
    assert_eq!(row("fft-alltoallw-8"), "umr 224 896 672 112");
    assert_eq!(rows.len(), 2 + 12 + 13 + 7);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_libcopy-lab"))
        .args(["rdma", "counts", "--devices", "none_0", "none_1"])
        .output()
        .expect("the tool starts");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // Without libibverbs that is what it names.
    assert!(
        said.contains("none_0") || said.contains("libibverbs"),
        "{said}"
    );
}

/// Where the paper has a speedup of 2, and where it packs.
#[test]
fn the_model_says_where_keys_are_faster() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_libcopy-lab"))
            .args(["rdma", "model"])
            .args(arguments)
            .output()
            .expect("the tool starts");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let all: serde_json::Value = serde_json::from_str(&run(&["--json"])).expect("JSON");
    let speedup = |layout: &str, keys: &str| {
        let rows = all["layouts"].as_array().expect("a list");
        let row = rows.iter().find(|row| row["layout"] == layout);
        row.and_then(|row| row[keys].as_f64())
            .unwrap_or_else(|| panic!("{layout} {keys} in {all}"))
    };
    assert!(speedup("16 x 1024 bytes", "speedup_cached") > 2.0);
    assert!(speedup("16 x 1024 bytes", "speedup_create") < 0.1);
    assert!(speedup("sw4lite-x", "speedup_cached") > 1.0);
    assert!(speedup("sw4lite-y", "speedup_cached") < 1.0);
    let table = run(&["--pieces", "4"]);
    assert!(table.contains("Modelled"), "{table}");
    let row = table.lines().find(|line| line.contains("128 x 1024 bytes"));
    let words: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
    assert_eq!(words.get(4), Some(&"32"), "{table}");
}
