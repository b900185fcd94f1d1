// SPDX-License-Identifier: MIT OR Apache-2.0

//! The names of the transports, and whether one can be used.

use std::fmt;

use serde::{Deserialize, Serialize};

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

    /// The number used in messages; never 0.
    pub(crate) fn number(self) -> u64 {
        match self {
            TransportKind::Kmod => 1,
            TransportKind::Cma => 2,
            TransportKind::Shm => 3,
        }
    }

    pub(crate) fn report(self, usable: bool, why: impl Into<String>) -> TransportReport {
        TransportReport {
            kind: self,
            usable,
            why: why.into(),
        }
    }

    pub(crate) fn from_number(number: u64) -> Option<Self> {
        TransportKind::ALL
            .into_iter()
            .find(|kind| kind.number() == number)
    }
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
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
