// SPDX-License-Identifier: GPL-2.0

//! [`UserNamespace`]: the user namespace of a process, only to be compared.

use crate::abstractions::declarations as raw;
use kernel::bindings;

/// A reference to a user namespace.
///
/// # Invariants
///
/// The pointer is valid and owns one reference.
pub(crate) struct UserNamespace(*mut bindings::user_namespace);

// SAFETY: User namespaces are reference counted and may be released from any thread.
unsafe impl Send for UserNamespace {}
// SAFETY: Only the address is ever read through a shared reference.
unsafe impl Sync for UserNamespace {}

impl UserNamespace {
    /// The namespace of the calling process.
    pub(crate) fn current() -> Self {
        // INVARIANT: The function takes a reference for us.
        // SAFETY: No preconditions; `current` always has a user namespace.
        Self(unsafe { raw::libcopy_get_current_user_ns() })
    }
}

impl PartialEq for UserNamespace {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Drop for UserNamespace {
    fn drop(&mut self) {
        // SAFETY: By the invariant this releases the reference that `current` took.
        unsafe { raw::libcopy_put_user_ns(self.0) };
    }
}
