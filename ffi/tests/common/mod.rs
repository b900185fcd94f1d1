// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the tests of the shared libraries share: building them, compiling C programs against them.

#![allow(dead_code, reason = "each test that includes this uses a part of it")]

#[path = "../../../tests/tests/common/workspace.rs"]
mod workspace;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The directory with `libcopy.so`, `libcopy_async.so` and the tool, all built: two above this
/// test's own file. Cargo itself builds none of them for a test of this crate. The libraries are
/// there under the names that programs ask for, too.
pub fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let own = std::env::current_exe().expect("this test is a file");
        let directory = own.ancestors().nth(2).expect("cargo's layout").to_owned();
        workspace::build(&directory);
        for library in ["libcopy.so", "libcopy_async.so"] {
            let link = directory.join(format!("{library}.0"));
            if link.read_link().is_ok_and(|to| to == Path::new(library)) {
                continue;
            }
            // Another test may do the same now.
            let made = directory.join(format!("{library}.{}", std::process::id()));
            std::os::unix::fs::symlink(library, &made).expect("can make a link");
            std::fs::rename(&made, &link).expect("can rename a link");
        }
        directory
    })
}

pub fn run(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Compiles a C file against the header and the shared libraries that `libraries` link.
pub fn compile_with(source: &Path, into: &Path, libraries: &[&str]) -> PathBuf {
    let program = into.join("program");
    run(Command::new("gcc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-I")
        .arg(here("include"))
        .arg("-L")
        .arg(built())
        .arg(format!("-Wl,-rpath,{}", built().display()))
        .args(libraries));
    program
}

/// Compiles a C file against the header and the shared library.
pub fn compile(source: &Path, into: &Path) -> PathBuf {
    compile_with(source, into, &["-lcopy"])
}

/// A new directory for one test.
pub fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("can create a directory");
    path
}
