// SPDX-License-Identifier: MIT OR Apache-2.0

//! The ways to move bytes between two processes, one file each.

pub(crate) mod cma;
pub(crate) mod kmod;
pub(crate) mod shm;

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

    /// The number used in messages; never 0.
    pub(crate) fn number(self) -> u64 {
        match self {
            TransportKind::Kmod => 1,
            TransportKind::Cma => 2,
            TransportKind::Shm => 3,
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
    vec![kmod::probe(), cma::probe(), shm::report()]
}

/// Where a peer finds the memory that a rank opened to it; its meaning is the transport's.
pub(crate) type Window = [u64; 2];

/// One-sided copies between our memory and a window of a peer's.
pub(crate) trait Transport: fmt::Debug {
    /// Opens memory to the peers: for reading, or for writing. The window stays open until the
    /// next one is opened, or longer.
    ///
    /// # Safety
    ///
    /// `base` is readable for `len` bytes, and writable if the window is; nothing else uses it
    /// until the peers are done.
    unsafe fn open_window(&mut self, base: *mut u8, len: usize, writable: bool) -> Result<Window>;

    /// Copies from byte `offset` of a peer's window to our memory.
    ///
    /// # Safety
    ///
    /// `to` is writable for `len` bytes.
    unsafe fn pull(
        &self,
        owner: usize,
        window: Window,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<()>;

    /// Copies from our memory to byte `offset` of a peer's window.
    ///
    /// # Safety
    ///
    /// `from` is readable for `len` bytes.
    unsafe fn push(
        &self,
        owner: usize,
        window: Window,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<()>;

    /// A copy through a window failed: what was opened before may not be there any more.
    fn doubt(&mut self) {}
}
