// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tool, started by tests.

#![allow(dead_code)] // Each test uses a part.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

pub const TOOL: &str = env!("CARGO_BIN_EXE_libcopy");

/// A command of the tool with nothing of ours in its environment.
pub fn tool(words: &[&str]) -> Command {
    cleared(Command::new(TOOL), words)
}

/// The same of a program that starts the tool.
pub fn cleared(mut command: Command, words: &[&str]) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LIBCOPY_") {
            command.env_remove(name);
        }
    }
    command
        .env_remove("LD_PRELOAD")
        .env_remove("LD_LIBRARY_PATH");
    command.args(words);
    command
}

pub fn output(command: &mut Command) -> Output {
    let output = command.output();
    output.unwrap_or_else(|why| panic!("{command:?}: {why}"))
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a command prints that succeeds.
#[track_caller]
pub fn said(command: &mut Command) -> String {
    let output = output(command);
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What a command prints that succeeds, and prints nothing but JSON.
#[track_caller]
pub fn json(command: &mut Command) -> Value {
    serde_json::from_str(&said(command)).expect("JSON and nothing else")
}

/// What a command says that fails with a status.
#[track_caller]
pub fn mistake(command: &mut Command, status: i32) -> String {
    let output = output(command);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{command:?}: {errors}");
    errors
}

/// A path as a word of a command.
pub fn word(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

/// `PATH` with a directory before all others.
pub fn path_before(directory: &Path) -> String {
    let path = std::env::var("PATH").expect("a PATH");
    format!("{}:{path}", directory.display())
}
