// SPDX-License-Identifier: GPL-2.0

//! [`Domain`]: the set of processes that may share.
//!
//! Membership is a capability: a process has it because it holds a file of the domain, or because
//! it proved a random key *and* is the creator's user in the creator's user namespace.
//!
//! What the members have published is in [`crate::domain::regions`] and [`crate::requests::slots`];
//! [`crate::file::domains`] is the list of all domains.

use crate::base::stats::Stats;
use crate::memory::user_namespace::UserNamespace;
use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::task::Kuid;

/// A sharing group.
pub(crate) struct Domain {
    key: [u8; 16],
    uid: Kuid,
    user_ns: UserNamespace,
    /// Counters of this domain.
    pub(crate) stats: Arc<Stats>,
}

impl Domain {
    /// A domain of the calling process's user.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let mut key = [0u8; 16];
        // SAFETY: The buffer is valid for 16 bytes.
        unsafe { bindings::get_random_bytes(key.as_mut_ptr().cast(), key.len()) };
        let stats = Arc::new(Stats::new(), GFP_KERNEL_ACCOUNT)?;
        let domain = Self {
            key,
            uid: Kuid::current_euid(),
            user_ns: UserNamespace::current(),
            stats,
        };
        Ok(Arc::new(domain, GFP_KERNEL_ACCOUNT)?)
    }

    /// The key that lets others join.
    pub(crate) fn key(&self) -> [u8; 16] {
        self.key
    }

    /// Whether who proves the key may join: the creator's user, in the creator's user namespace.
    pub(crate) fn admits_caller(&self) -> bool {
        self.uid == Kuid::current_euid() && self.user_ns == UserNamespace::current()
    }
}
