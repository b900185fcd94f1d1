// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the parts share: functions of scripts/lib, where cargo builds, and commands whose status is
//! all that matters.

use std::env;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A call of functions that a file of scripts/lib defines; `$1` and so on are the arguments,
/// `$root` is the checkout.
pub fn function<S: AsRef<OsStr>>(
    root: &Path,
    library: &str,
    call: &str,
    arguments: &[S],
) -> Command {
    let mut bash = Command::new("bash");
    bash.arg("-c")
        .arg(format!(". \"$root/scripts/lib/{library}.sh\" && {call}"));
    bash.env("root", root).arg("bash").args(arguments);
    bash
}

/// Where cargo builds, if it is called in the root of the checkout.
pub fn target(root: &Path) -> PathBuf {
    let directory = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root.join(directory)
}

pub fn succeeds_loudly(command: &mut Command) -> bool {
    let _ = io::stdout().flush();
    command.status().is_ok_and(|status| status.success())
}

pub fn succeeds(command: &mut Command) -> bool {
    succeeds_loudly(command.stdout(Stdio::null()).stderr(Stdio::null()))
}

pub fn is_command(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(name).is_file())
}
