// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is pending on the memory of this process, and waiting for it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::guard;
use crate::device::request::{self, RequestId};
use crate::error::Result;
use crate::shm::wait::Helper;

/// Waits until nothing is pending on the `len` bytes at `address`.
///
/// Memory that a collective still moves may be read and written like any other: a thread that
/// touches it is held for as long as it takes. A system call cannot be held, and fails with
/// `EFAULT` instead; call this before you pass such memory to one. Costs a few nanoseconds if
/// nothing is pending. Async-signal-safe, except for the error that it makes.
///
/// # Errors
///
/// [`crate::Error::System`]: a peer died, and the bytes will never arrive. The memory can be used
/// again; its content is a mix of old and new.
pub fn settle<T>(address: *const T, len: usize) -> Result<()> {
    let address = address as usize;
    guard::settle_range(address, address.saturating_add(len)).map_err(guard::loss)
}

/// Whether the `len` bytes at `address` can be used without anybody being held; never waits.
///
/// For those who have something else to do as long as it is not so. What a peer's death has taken
/// is not settled: [`settle`] tells.
pub fn is_settled<T>(address: *const T, len: usize) -> bool {
    let address = address as usize;
    guard::lift_arrived(address, address.saturating_add(len))
}

/// [`settle`] for wrappers and signal handlers: async-signal-safe, and the error is an errno.
///
/// # Errors
///
/// The errno of what took the bytes: a peer died, and they will never arrive.
pub fn settle_raw(address: usize, len: usize) -> std::result::Result<(), i32> {
    guard::settle_range(address, address.saturating_add(len))
}

/// [`settle`] for everything that is pending in this process.
///
/// # Errors
///
/// As for [`settle`].
pub fn settle_all() -> Result<()> {
    guard::settle_range(0, usize::MAX).map_err(guard::loss)
}

/// Whether anything may be pending in this process: a look at one word.
#[inline(always)]
pub fn any_pending() -> bool {
    guard::any()
}

/// The word that [`any_pending`] looks at, an `AtomicUsize` that is there for good, for wrappers in
/// another library: 0 where nothing is pending. To be read only.
pub fn pending_word() -> *const AtomicUsize {
    guard::word()
}

/// As long as one of these is there, nothing of this process is guarded, and no collective returns
/// here before its bytes have arrived: for a time in which others get at memory past every guard,
/// like another process through a window of MPI's, or the threads of another library.
#[derive(Debug)]
pub struct NoGuards(());

impl NoGuards {
    /// Settles everything that is pending.
    ///
    /// # Errors
    ///
    /// As for [`settle`]; nothing is guarded from then on, nor after an error.
    pub fn new() -> (Self, Result<()>) {
        let settled = guard::refuse_guards().map_err(guard::loss);
        (NoGuards(()), settled)
    }
}

impl Drop for NoGuards {
    fn drop(&mut self) {
        guard::admit_guards();
    }
}

/// Buffers of this process with which a collective returned early, and how often somebody had to
/// wait for one of them afterwards.
pub fn counts() -> (u64, u64) {
    guard::counts()
}

/// [`settle`] for a slice, by its address: nothing is read.
pub(crate) fn settle_bytes(bytes: &[u8]) -> Result<()> {
    settle(bytes.as_ptr(), bytes.len())
}

/// Buffers of this process that are guarded now.
pub fn pending() -> usize {
    guard::pending()
}

/// Bytes that this process has copied for peers that touched their buffers too early, while it
/// waited for something itself.
pub fn helped() -> u64 {
    HELPED.load(Ordering::Relaxed)
}

static HELPED: AtomicU64 = AtomicU64::new(0);

/// What a rank that waits for something does for its peers through `device`.
pub(crate) fn helper(device: OwnedFd) -> Helper {
    Helper { device, help }
}

/// Copies what nobody has begun of a peer's request, by its number. Whatever goes wrong is the
/// peer's to find out.
fn help(device: BorrowedFd<'_>, id: u64) {
    let id = u32::try_from(id)
        .ok()
        .and_then(|id| RequestId::new(id).ok());
    if let Some(Ok(copied)) = id.map(|id| request::help(device, id)) {
        HELPED.fetch_add(copied, Ordering::Relaxed);
    }
}
