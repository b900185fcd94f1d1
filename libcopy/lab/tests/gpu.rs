// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy-lab gpu` with the stand-in for the CUDA driver (`tests/fakecuda`),
//! and without a driver.

#[path = "../../gpu/tests/common/compile.rs"]
mod compile;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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

fn lab(words: &[&str], driver: &Path, cache: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_libcopy-lab"))
        .args(words)
        .env("LD_LIBRARY_PATH", driver)
        .env("XDG_CACHE_HOME", cache)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn without_a_driver_the_reason_is_given() {
    // Where there is a driver this says nothing.
    let nowhere = directory("gpu-nowhere");
    if libcopy_gpu::Driver::load().is_ok() {
        return;
    }
    let output = lab(&["gpu"], &nowhere, &nowhere);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("no CUDA driver: libcuda.so.1"), "{error}");
}

#[test]
fn all_experiments_run_and_all_bytes_are_right() {
    let directory = directory("gpu-bench");
    let [csv, plot] = ["cells.csv", "figure"].map(|name| directory.join(name));
    let words = [
        "gpu",
        "--quick",
        "--csv",
        csv.to_str().unwrap(),
        "--plot",
        plot.to_str().unwrap(),
    ];
    let output = lab(&words, &driver(), &directory);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("STAND-IN DRIVER"));
    // Those with an MPI program are tested with MPI programs.
    assert!(text(&output.stdout).contains("E4 left out: it needs an MPI program"));
    let table = std::fs::read_to_string(&csv).unwrap();
    let mut lines = table.lines();
    assert_eq!(
        lines.next(),
        Some("experiment,case,bytes,block,method,median_us,bound_us,verified")
    );
    let cells: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    for cell in &cells {
        assert_eq!(cell.len(), 8, "{cell:?}");
        assert_eq!(cell[7], "true", "{cell:?}");
        assert!(cell[5].parse::<f64>().unwrap() > 0.0, "{cell:?}");
        assert!(cell[6].parse::<f64>().unwrap() > 0.0, "{cell:?}");
    }
    for (experiment, methods) in [
        ("E1", &["libcopy"][..]),
        (
            "E2",
            &[
                "libcopy",
                "per-block",
                "one batch",
                "TEMPI mapping",
                "yaksa mapping",
            ],
        ),
        ("E3", &["batch", "separate", "per-block"]),
        ("E5", &["peer", "naive", "one batch", "engine"]),
        ("E6", &["one-shot", "contiguous copy"]),
        (
            "E7",
            &[
                "alone",
                "bulk on 8",
                "strided on 8",
                "bulk on 16",
                "strided on 16",
            ],
        ),
        ("E8", &["kernel", "naive", "one batch"]),
    ] {
        for method in methods {
            let found = cells.iter().any(|c| c[0] == experiment && c[4] == *method);
            assert!(found, "{experiment} by {method}:\n{table}");
        }
    }
    for name in ["figure", "figure-gains"] {
        for ending in ["png", "svg"] {
            let drawn = directory.join(name).with_extension(ending);
            assert!(drawn.metadata().unwrap().len() > 1000, "{drawn:?}");
        }
    }
}

#[test]
fn what_is_asked_for_in_vain_is_said() {
    let cache = directory("gpu-errors");
    for (words, why) in [
        (["gpu", "--only", "E9"], "there is no experiment \"E9\""),
        (
            ["gpu", "--device", "7"],
            "there is no GPU 7: this process sees 2",
        ),
    ] {
        let output = lab(&words, &driver(), &cache);
        assert!(!output.status.success());
        assert!(
            text(&output.stderr).contains(why),
            "{}",
            text(&output.stderr)
        );
    }
}
