// SPDX-License-Identifier: MIT OR Apache-2.0

//! What tests of scripts have in common: directories, commands that have to succeed, lists of
//! files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The checkout.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A new directory for one test.
pub fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("can create a directory");
    path
}

/// Runs a command, which has to start.
pub fn said(command: &mut Command) -> Output {
    let output = command.output();
    output.unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

/// Runs a command that has to succeed; what it printed.
pub fn run(command: &mut Command) -> String {
    let output = said(command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}{errors}",
        output.status
    );
    text
}

/// A file name as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

/// All files and directories below a directory, relative to it.
pub fn all_below(directory: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).expect("a directory") {
            let entry = entry.expect("an entry");
            let path = entry.path();
            if entry.file_type().expect("a type").is_dir() {
                open.push(path.clone());
            }
            found.insert(path.strip_prefix(directory).expect("below").to_owned());
        }
    }
    found
}
