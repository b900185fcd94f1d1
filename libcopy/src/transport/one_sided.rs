// SPDX-License-Identifier: MIT OR Apache-2.0

//! What every one-sided transport does: open memory to the peers, and copy between it and their
//! own.

use std::fmt;

use super::remote_key::RemoteKey;
use crate::error::Result;

/// One-sided copies between our memory and what a peer opened.
pub(crate) trait Transport: fmt::Debug {
    /// Opens memory to the peers: for reading, or for writing. It stays open until other memory
    /// is opened, or longer.
    ///
    /// # Safety
    ///
    /// `base` is readable for `len` bytes, and writable if `writable`; nothing else uses it
    /// until the peers are done.
    unsafe fn open(&mut self, base: *mut u8, len: usize, writable: bool) -> Result<RemoteKey>;

    /// Copies from byte `offset` of a peer's memory to ours.
    ///
    /// # Safety
    ///
    /// `to` is writable for `len` bytes.
    unsafe fn pull(
        &self,
        owner: usize,
        key: RemoteKey,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<()>;

    /// Copies from our memory to byte `offset` of a peer's.
    ///
    /// # Safety
    ///
    /// `from` is readable for `len` bytes.
    unsafe fn push(
        &self,
        owner: usize,
        key: RemoteKey,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<()>;

    /// A copy failed: what was opened before may not be there any more.
    fn invalidate(&mut self) {}
}
