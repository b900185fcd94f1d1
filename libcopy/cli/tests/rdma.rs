// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `libcopy tune --rdma` and `libcopy rdma probe` write.

mod common;

use std::path::Path;
use std::process::Output;

use common::text;

/// The tool with a profile file of its own.
fn tool(profile: &Path, words: &[&str]) -> Output {
    common::output(common::tool(words).env("LIBCOPY_PROFILE", profile))
}

#[test]
fn tuning_on_the_card_in_software_is_labelled_and_not_stored() {
    let place = tempfile::tempdir().expect("a directory");
    let profile = place.path().join("profile.toml");
    let output = tool(&profile, &["tune", "--rdma", "--software"]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    let label = "thresholds, measured on the card in software (emulated):";
    assert!(said.contains(label), "{said}");
    assert!(said.contains("\numr max_iovs=") && said.contains("\nsge max_iovs="));
    assert!(said.contains("not stored"), "{said}");
    assert!(!profile.exists());
}

#[test]
fn tuning_without_a_device_says_so() {
    let place = tempfile::tempdir().expect("a directory");
    let profile = place.path().join("profile.toml");
    let output = tool(&profile, &["tune", "--rdma", "--devices", "none_0"]);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(
        said.contains("none_0") || said.contains("libibverbs"),
        "{said}"
    );
    assert!(!profile.exists());
}

#[test]
fn probe_shows_the_thresholds_of_the_profile() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("profile.toml");
    let probe = || {
        let output = tool(&file, &["rdma", "probe", "--json"]);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let no_device = json["devices"].as_array().is_some_and(Vec::is_empty);
        assert_eq!(output.status.code(), Some(i32::from(no_device)), "{json}");
        if no_device {
            let output = tool(&file, &["rdma", "probe"]);
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains("no RDMA device: "), "{said}");
        }
        json
    };
    let before = probe();
    assert_eq!(before["thresholds"][0], "umr max_iovs=128 min_block=512");
    let machine = libcopy::topology::Topology::current().machine();
    let store = |thresholds: &str| {
        let text = format!(
            "[rdma.{machine:?}]\ndevices = \"rxe_a rxe_b\"\nis_emulated = true\nthresholds = {thresholds:?}\n"
        );
        std::fs::write(&file, text).expect("a file");
    };
    store("umr max_iovs=64 min_block=1024\nsge max_iovs=0 min_block=4096\n");
    let json = probe();
    assert_eq!(json["thresholds"][0], "umr max_iovs=64 min_block=1024");
    assert_eq!(json["thresholds"][1], "sge max_iovs=0 min_block=4096");
    assert_eq!(json["thresholds_are"], "measured on rxe_a rxe_b (emulated)");
    store("pack everything");
    let output = tool(&file, &["rdma", "probe"]);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("libcopy tune --rdma"), "{said}");
}
