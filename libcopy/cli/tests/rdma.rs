// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `libcopy rdma bench` writes.

use std::process::Command;

#[test]
fn counts_are_written_as_csv_and_are_the_papers() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("counts.csv");
    let output = Command::new(env!("CARGO_BIN_EXE_libcopy"))
        .args(["rdma", "bench", "--counts", "--software", "--csv"])
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
    // The paper's numbers, not those of the tool's own formulas.
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
    let output = Command::new(env!("CARGO_BIN_EXE_libcopy"))
        .args(["rdma", "bench", "--counts", "--devices", "none_0", "none_1"])
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
