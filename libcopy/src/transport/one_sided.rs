// SPDX-License-Identifier: MIT OR Apache-2.0

//! What every one-sided transport does: open memory to the peers, and copy between it and their own.

use std::fmt;

use crate::error::Result;

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
    fn invalidate(&mut self) {}
}
