// SPDX-License-Identifier: GPL-2.0

//! [`UserAccount`]: the pages that the kernel counts as locked by a user.
//!
//! The counts are atomic and take no lock, so that they may change in any context (see
//! [`crate::memory::account`] for why not those of an address space).

use crate::abstractions::declarations as raw;
use kernel::bindings;
use kernel::prelude::*;

/// A reference to the kernel's account of a user.
///
/// # Invariants
///
/// The pointer is valid and owns one reference.
pub(crate) struct UserAccount(*mut bindings::user_struct);

// SAFETY: Accounts of users are reference counted and may be released from any thread.
unsafe impl Send for UserAccount {}
// SAFETY: What is changed through a shared reference is atomic.
unsafe impl Sync for UserAccount {}

impl UserAccount {
    /// The calling process's.
    pub(crate) fn current() -> Self {
        // INVARIANT: The function takes a reference for us.
        // SAFETY: No preconditions; `current` always has a user.
        Self(unsafe { raw::libcopy_get_current_user() })
    }

    /// No other user's is there as long as this one is referred to.
    pub(crate) fn address(&self) -> usize {
        self.0.addr()
    }

    /// Counts pages as locked by the user.
    ///
    /// - `ENOMEM`: that would be more than the caller's `RLIMIT_MEMLOCK`.
    pub(crate) fn charge(&self, pages: u64) -> Result {
        // SAFETY: Valid by the invariant.
        let charged = unsafe { raw::libcopy_charge_user(self.0, pages as usize) };
        charged.then_some(()).ok_or(ENOMEM)
    }

    /// Counts pages as locked by the user, whatever its limit.
    pub(crate) fn add(&self, pages: u64) {
        // SAFETY: Valid by the invariant.
        unsafe { raw::libcopy_add_to_user(self.0, pages as isize) }
    }

    /// Takes pages back that were counted.
    pub(crate) fn sub(&self, pages: u64) {
        // SAFETY: Valid by the invariant.
        unsafe { raw::libcopy_add_to_user(self.0, -(pages as isize)) }
    }
}

impl Drop for UserAccount {
    fn drop(&mut self) {
        // SAFETY: By the invariant this releases the reference that `current` took.
        unsafe { raw::libcopy_put_user(self.0) };
    }
}
