// SPDX-License-Identifier: GPL-2.0

//! [`EventFd`]: an eventfd that hears of the end of a request.

use core::ptr::NonNull;
use kernel::bindings;
use kernel::prelude::*;

/// A reference to an eventfd.
///
/// # Invariants
///
/// The pointer owns one reference.
pub(crate) struct EventFd(NonNull<bindings::eventfd_ctx>);

// SAFETY: Event counters are reference counted and may be used from any thread.
unsafe impl Send for EventFd {}
// SAFETY: As above.
unsafe impl Sync for EventFd {}

impl EventFd {
    /// The eventfd behind a file descriptor of the caller.
    pub(crate) fn get(fd: i32) -> Result<Self> {
        // SAFETY: Any number is allowed.
        let context = kernel::error::from_err_ptr(unsafe { bindings::eventfd_ctx_fdget(fd) })?;
        // INVARIANT: The call took a reference for us.
        NonNull::new(context).map(Self).ok_or(EBADF)
    }

    /// Adds one. Does not sleep.
    pub(crate) fn signal(&self) {
        // SAFETY: Valid by the invariant.
        unsafe { bindings::eventfd_signal_mask(self.0.as_ptr(), 0) };
    }
}

impl Drop for EventFd {
    fn drop(&mut self) {
        // SAFETY: Releases our reference.
        unsafe { bindings::eventfd_ctx_put(self.0.as_ptr()) };
    }
}
