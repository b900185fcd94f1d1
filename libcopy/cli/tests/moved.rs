// SPDX-License-Identifier: MIT OR Apache-2.0

//! Commands that went to `libcopy-lab` say so.

use std::process::Command;

#[test]
fn commands_that_moved_say_where_in_one_line() {
    for (old, new) in [
        (&["nic", "plan", "double"][..], "libcopy-lab nic"),
        (&["nic", "--help"], "libcopy-lab nic"),
        (&["bench", "gpu", "--quick"], "libcopy-lab gpu"),
        (&["bench", "paper003"], "libcopy-lab offload"),
        (&["bench", "speedup", "file"], "libcopy-lab speedup"),
        (&["rdma", "bench", "--counts"], "libcopy-lab rdma counts"),
        (&["rdma", "model"], "libcopy-lab rdma model"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_libcopy"))
            .args(old)
            .output()
            .expect("the tool starts");
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{old:?}: {said}");
        assert!(output.stdout.is_empty(), "{old:?}");
        assert_eq!(said.lines().count(), 1, "{old:?}: {said}");
        assert!(said.contains(&format!("`{new}`")), "{old:?}: {said}");
    }
}

/// What stays begins with the same words.
#[test]
fn commands_that_stay_are_no_such_commands() {
    for words in [
        &["bench"][..],
        &["rdma"],
        &["rdma", "probe"],
        &["bench", "types"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_libcopy"))
            .args(words)
            .arg("--help")
            .output()
            .expect("the tool starts");
        assert!(output.status.success(), "{words:?}: {output:?}");
    }
}
