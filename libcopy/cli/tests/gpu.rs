// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy gpu` with the stand-in for the CUDA driver (`tests/fakecuda`), and without a driver.

mod common;
#[path = "../../gpu/tests/common/compile.rs"]
mod compile;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{json, text, tool};
use serde_json::Value;

/// The directory with the stand-in as `libcuda.so.1`.
fn driver() -> PathBuf {
    compile::driver().parent().unwrap().to_owned()
}

/// An empty directory of a test.
fn directory(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

fn command(words: &[&str], driver: &Path, cache: &Path) -> Command {
    let mut command = tool(words);
    command
        .env("LD_LIBRARY_PATH", driver)
        .env("XDG_CACHE_HOME", cache);
    command
}

fn libcopy(words: &[&str], driver: &Path, cache: &Path) -> Output {
    common::output(&mut command(words, driver, cache))
}

#[test]
fn without_a_driver_the_reason_is_given() {
    // Where there is a driver this says nothing.
    let nowhere = directory("gpu-nowhere");
    let output = libcopy(&["gpu", "info", "--json"], &nowhere, &nowhere);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    if json["usable"] == true {
        return;
    }
    assert_eq!(output.status.code(), Some(1));
    assert!(
        json["why"].as_str().unwrap().contains("libcuda.so.1"),
        "{json}"
    );
    for words in [["gpu", "info"], ["gpu", "measure"]] {
        let output = libcopy(&words, &nowhere, &nowhere);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("no CUDA driver: libcuda.so.1"), "{error}");
    }
}

#[test]
fn info_says_what_there_is_and_measure_stores_a_profile() {
    let cache = directory("gpu-cache");
    let info = |cache: &Path| json(&mut command(&["gpu", "info", "--json"], &driver(), cache));
    let before = info(&cache);
    assert_eq!(before["driver"], 12_000);
    let devices = before["devices"].as_array().unwrap();
    assert_eq!(devices.len(), 2);
    for (ordinal, device) in devices.iter().enumerate() {
        assert_eq!(device["ordinal"], ordinal);
        assert_eq!(device["stand_in"], true);
        assert_eq!(device["profile"]["origin"], "assumed");
        assert_eq!(device["methods"].as_array().unwrap().len(), 6);
    }
    let pairs = before["ipc"].as_array().unwrap();
    assert_eq!(pairs.len(), 4);
    assert!(pairs.iter().all(|pair| pair["usable"] == true), "{before}");

    let output = libcopy(&["gpu", "measure"], &driver(), &cache);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("stand-in"));
    let after = info(&cache);
    let uuid = after["devices"][0]["uuid"].as_str().unwrap();
    let path = cache.join("libcopy").join(format!("{uuid}-12000"));
    assert_eq!(
        text(&output.stdout),
        format!("profile: {}\n", path.display())
    );
    assert_eq!(after["devices"][0]["profile"]["origin"], "measured");
    assert_eq!(after["devices"][1]["profile"]["origin"], "assumed");
    let times = &after["devices"][0]["profile"]["times_us"];
    assert_eq!(times["peer"].as_array().unwrap().len(), 81);
    assert_eq!(times["d2h"].as_array().unwrap().len(), 24);

    // IPC that is refused is said, and is no failure.
    let mut refused = command(&["gpu", "info"], &driver(), &cache);
    let shown = common::said(refused.env("FAKECUDA_IPC", "0"));
    assert!(
        shown.contains("GPU 0 read from GPU 1: no: ") && shown.contains("STAND-IN"),
        "{shown}"
    );
}

#[test]
fn a_gpu_that_is_not_there_is_named() {
    let cache = directory("gpu-errors");
    let output = libcopy(&["gpu", "measure", "--device", "7"], &driver(), &cache);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("there is no GPU 7"), "{said}");
}
