// SPDX-License-Identifier: MIT OR Apache-2.0

//! The C++ compiler: the kernels for the processor, the stand-in driver. Tests of the tool and of
//! the C API use this file as well.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The stand-in for the CUDA driver.
// Not all tests that compile something need it.
#[allow(dead_code)]
pub fn driver() -> PathBuf {
    let options = ["-O2", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
    compile("../../tests/fakecuda/fakecuda.cc", "libcuda.so.1", &options)
}

/// Compiles a C++ file of the repository, named from the directory of libcopy-gpu, to `name`,
/// unless that has been done since the sources changed. Tests run in many processes: the first one
/// compiles.
pub fn compile(source: &str, name: &str, options: &[&str]) -> PathBuf {
    // Tests of several crates use this file.
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|directory| directory.join("libcopy/gpu"))
        .find(|directory| directory.is_dir())
        .expect("the repository");
    let source = root.join(source);
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let lock = File::create(made.with_extension("lock")).expect("the directory of tests");
    // SAFETY: an open file. The lock goes with it.
    assert_eq!(unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) }, 0);
    let changed = |path: &Path| path.metadata().and_then(|data| data.modified()).ok();
    let kernels = [
        "kernels/pack.cu",
        "kernels/emulate.h",
        "kernels/kernels.h",
        "tests/common/compile.rs",
    ]
    .map(|file| root.join(file));
    let newest = kernels
        .iter()
        .chain([&source])
        .map(|file| changed(file))
        .max();
    if changed(&made).is_some_and(|at| Some(Some(at)) > newest) {
        return made;
    }
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let unfinished = made.with_extension("unfinished");
    let output = Command::new(&compiler)
        .args([
            "-std=c++17",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fno-strict-aliasing",
        ])
        .args(options)
        .arg(source)
        .arg("-o")
        .arg(&unfinished)
        .output()
        .unwrap_or_else(|error| {
            panic!("{compiler}: {error}; these tests need a C++ compiler (Debian: g++)")
        });
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    std::fs::rename(unfinished, &made).expect("the file that was made");
    made
}
