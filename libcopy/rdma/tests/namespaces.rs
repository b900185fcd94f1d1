// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the tests over soft RoCE make in the virtual machine is removed when a test program ends,
//! however it does. A program of its own: it has no devices while it looks.

mod common;
#[path = "common/link.rs"]
mod link;

use std::process::Command;

/// How the program that this test starts is to end.
const END: &str = "RDMA_TEST_END";

#[test]
fn devices_and_namespaces_are_removed_however_a_test_ends() {
    if let Ok(end) = std::env::var(END) {
        let devices = link::devices().unwrap();
        println!("open: {} {}", devices[0].name(), devices[1].name());
        match end.as_str() {
            "passes" => return,
            "fails" => panic!("as asked"),
            _ => std::process::abort(),
        }
    }
    if std::env::var_os("LIBCOPY_VM").is_none() {
        eprintln!("skipped: not in the virtual machine (scripts/vm)");
        return;
    }
    for end in ["passes", "fails", "is killed"] {
        let ended = Command::new(std::env::current_exe().unwrap())
            .arg("--exact")
            .arg("devices_and_namespaces_are_removed_however_a_test_ends")
            .arg("--nocapture")
            .env(END, end)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        assert!(said.contains("open: rxe_a rxe_b"), "{end}: {ended:?}");
        assert_eq!(ended.status.success(), end == "passes", "{end}: {ended:?}");
        // A program that was killed has not waited: the lock is free when all is removed.
        let look = "ip netns list; rdma link show; ip -oneline link show";
        let left = Command::new("flock")
            .args([link::LOCK, "sh", "-c", look])
            .output()
            .unwrap();
        assert!(left.status.success(), "{left:?}");
        let left = String::from_utf8(left.stdout).unwrap();
        assert!(left.contains("lo:"), "{left}");
        for name in ["libcopy", "rxe_", "rdma0"] {
            assert!(!left.contains(name), "a test that {end} has left {left}");
        }
    }
}
