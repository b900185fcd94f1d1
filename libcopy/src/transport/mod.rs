// SPDX-License-Identifier: MIT OR Apache-2.0

//! The ways to move bytes between two processes, one file each.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A way to move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportKind {
    /// The kernel module: the owner's pages are pinned once, peers copy from or to them.
    Kmod,
    /// Cross memory attach: `process_vm_readv` and `process_vm_writev`.
    Cma,
    /// Two copies through a shared segment, overlapped.
    Shm,
}

impl TransportKind {
    /// All of them, in the order in which they are preferred where nothing was measured.
    pub const ALL: [TransportKind; 3] =
        [TransportKind::Kmod, TransportKind::Cma, TransportKind::Shm];

    /// The name used in options and tables.
    pub fn name(self) -> &'static str {
        match self {
            TransportKind::Kmod => "kmod",
            TransportKind::Cma => "cma",
            TransportKind::Shm => "shm",
        }
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TransportKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        TransportKind::ALL
            .into_iter()
            .find(|kind| kind.name().eq_ignore_ascii_case(text.trim()))
            .ok_or_else(|| Error::argument("transport", text, "kmod, cma or shm"))
    }
}

/// Whether a transport can be used, and why or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportReport {
    /// Which.
    pub kind: TransportKind,
    /// Whether all ranks can use it.
    pub usable: bool,
    /// The reason in words.
    pub why: String,
}

/// What can be said about the transports without a team: for `libcopy info`.
pub fn probe_machine() -> Vec<TransportReport> {
    Vec::new()
}
