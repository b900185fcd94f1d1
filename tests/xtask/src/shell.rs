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

#[cfg(test)]
mod tests {
    use super::*;

    /// What `may_install` says of an apt-get that would do `lines`, and whether it may.
    fn may_install(lines: &str) -> (bool, String) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let call = "apt-get() { echo \"$lines\"; } && may_install openmpi";
        let output = function(&root, "packages", call, &[""; 0])
            .env("lines", lines)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.success(), said)
    }

    #[test]
    fn packages_get_security_updates_and_no_other_upstream_version() {
        let new = "Inst openmpi (4.1.4-3 Debian:12.15/oldstable [amd64])";
        assert_eq!(may_install(new), (true, String::new()));

        let update = "Inst libevent [2.1.12-stable-8] (2.1.12-stable-8+deb12u1 Debian [amd64])";
        let (may, said) = may_install(&format!("{update}\n{new}"));
        assert!(may, "{said}");
        let expected = "updates libevent from 2.1.12-stable-8 to 2.1.12-stable-8+deb12u1";
        assert!(said.contains(expected), "{said}");

        let rebuilt = "Inst base [12.4+deb12u1] (12.4+deb12u2+b1 Debian [amd64])";
        assert!(may_install(rebuilt).0);

        let upgrade = "Inst libssl3 [3.0.19-1~deb12u2] (3.0.22-1~deb12u2 Debian [amd64]) []";
        let (may, said) = may_install(&format!("{update}\n{upgrade}"));
        assert!(!may, "{said}");
        let expected = "would upgrade libssl3 from 3.0.19-1~deb12u2 to 3.0.22-1~deb12u2;";
        assert!(said.contains(expected), "{said}");
    }
}
