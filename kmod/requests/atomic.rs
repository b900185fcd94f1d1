// SPDX-License-Identifier: GPL-2.0

//! [`Word`]: the few atomic operations that [`crate::requests::fragments`] is written in, so that
//! the same file can be compiled against a model checker's atomics.

use kernel::sync::atomic::{Acquire, Atomic, Full};

/// An atomic number. All changes are fully ordered.
pub(crate) struct Word(Atomic<u64>);

impl Word {
    /// A word with this value.
    pub(crate) const fn new(value: u64) -> Self {
        Self(Atomic::new(value))
    }

    /// The value, which may be about to change.
    pub(crate) fn read(&self) -> u64 {
        self.0.load(Acquire)
    }

    /// The value, ordered against every change that came before.
    pub(crate) fn latest(&self) -> u64 {
        self.0.fetch_add(0u64, Full)
    }

    /// Adds and returns what was there.
    pub(crate) fn add(&self, amount: u64) -> u64 {
        self.0.fetch_add(amount, Full)
    }

    /// Replaces `old` by `new`; otherwise returns what is there.
    pub(crate) fn replace(&self, old: u64, new: u64) -> Result<u64, u64> {
        self.0.cmpxchg(old, new, Full)
    }
}
