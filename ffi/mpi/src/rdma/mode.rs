// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which messages the user wants to go over RDMA.

use std::sync::OnceLock;

use libcopy::config;

use crate::library::abi;

/// Which messages between machines go over RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// None.
    Off,
    /// Those of types that were committed with `MPIX_Type_commit_comm`.
    Commit,
    /// Those of all derived types.
    All,
}

/// What `LIBCOPY_RDMA` says.
pub fn mode() -> Mode {
    static MODE: OnceLock<Mode> = OnceLock::new();
    *MODE.get_or_init(|| match abi::asked_word(&config::RDMA) {
        Some("commit") => Mode::Commit,
        Some("all") => Mode::All,
        _ => Mode::Off,
    })
}
