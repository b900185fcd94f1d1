// SPDX-License-Identifier: GPL-2.0

//! [`Domain`]: the set of processes that may share.
//!
//! Membership is a capability: a process has it because it holds a file of the domain, or because
//! it proved a random key *and* is the creator's user in the creator's user namespace.
//!
//! What the members have published is in [`crate::regions`] and [`crate::slots`]; [`crate::domains`] is the
//! list of all domains.

use crate::stats::Stats;
use crate::user_namespace::UserNamespace;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full};
use kernel::sync::poll::PollCondVar;
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::task::Kuid;
use kernel::{bindings, static_lock_class};

/// A sharing group.
#[pin_data]
pub(crate) struct Domain {
    key: [u8; 16],
    uid: Kuid,
    user_ns: UserNamespace,
    /// Counters of this domain.
    pub(crate) stats: Arc<Stats>,
    /// Members that died so far.
    pub(crate) deaths: Atomic<u64>,
    /// Notified when the uses of a region are over, when one goes, when a member dies, and when a
    /// request ends (for `poll` only).
    #[pin]
    pub(crate) changed: PollCondVar,
    /// Makes waiting for `changed` free of lost wake-ups.
    #[pin]
    pub(crate) wait_lock: Mutex<()>,
}

impl Domain {
    /// A domain of the calling process's user.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let mut key = [0u8; 16];
        // SAFETY: The buffer is valid for 16 bytes.
        unsafe { bindings::get_random_bytes(key.as_mut_ptr().cast(), key.len()) };
        let stats = Arc::new(Stats::new(), GFP_KERNEL_ACCOUNT)?;
        Arc::pin_init(
            pin_init!(Self {
                key,
                uid: Kuid::current_euid(),
                user_ns: UserNamespace::current(),
                stats,
                deaths: Atomic::new(0),
                changed <- PollCondVar::new(c"libcopy::Domain::changed", static_lock_class!()),
                wait_lock <- new_mutex!(()),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The key that lets others join.
    pub(crate) fn key(&self) -> [u8; 16] {
        self.key
    }

    /// Whether a user created the domain.
    pub(crate) fn is_of(&self, uid: Kuid) -> bool {
        self.uid == uid
    }

    /// Whether who proves the key may join: the creator's user, in the creator's user namespace.
    pub(crate) fn admits_caller(&self) -> bool {
        self.uid == Kuid::current_euid() && self.user_ns == UserNamespace::current()
    }

    /// Wakes everybody who waits for something in this domain.
    pub(crate) fn wake(&self) {
        // Whoever checked its condition before we changed it holds the lock until it sleeps.
        drop(self.wait_lock.lock());
        self.changed.notify_all();
    }

    /// Counts a death if one happened since `before`.
    pub(crate) fn died_since(&self, before: u64) -> bool {
        self.deaths.fetch_add(0, Full) != before
    }
}
