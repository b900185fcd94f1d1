// SPDX-License-Identifier: MIT OR Apache-2.0

//! Commands that went to `libcopy-lab` say so.

mod common;

use common::{output, said, tool};

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
        let output = output(&mut tool(old));
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
        said(tool(words).arg("--help"));
    }
}
