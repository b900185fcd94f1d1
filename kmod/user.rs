// SPDX-License-Identifier: GPL-2.0

//! [`User`]: what the processes of one user have pinned and submitted together.
//!
//! `RLIMIT_MEMLOCK` limits a process, which ends; what a peer keeps of its memory does not end with it.
//! So who keeps the memory of others is told by user, as for io_uring.

use crate::shim::{self, UserAccount};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::Arc;

/// Mappings that a user may have. A page has at most one pin per mapping, and room for 2^21 in its
/// reference count: as many users as share a page must not fill that.
const MAX_MAPPINGS: u64 = 65536;

/// Kernel threads that may copy for the processes of a user: no limit of a process or of a cgroup counts
/// them before they exist.
const MAX_COPIERS: u64 = 4096;

/// What is counted for a user.
struct Counts {
    account: UserAccount,
    mappings: Atomic<u64>,
    /// Pages that these mappings have pinned.
    pins: Atomic<u64>,
    /// Pages that their owners have given up and nobody pays for who attached them.
    lingering: Atomic<u64>,
    /// Requests that its processes have submitted.
    requests: Atomic<u64>,
    /// Kernel threads that copy for its processes.
    copiers: Atomic<u64>,
}

struct Entry {
    counts: Arc<Counts>,
    /// Values of [`User`].
    holders: usize,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init before the device is registered.
    unsafe(uninit) static USERS: Mutex<KVVec<Entry>> = KVVec::new();
}

/// Gives the list's memory back when the module is unloaded: statics are never dropped.
pub(crate) struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        let users = core::mem::take(&mut *USERS.lock());
        drop(users);
    }
}

/// Prepares the list of users.
///
/// # Safety
///
/// Called exactly once, before anything else in this file.
pub(crate) unsafe fn init() -> Guard {
    // SAFETY: The caller calls this once, before any other use of the lock.
    unsafe { USERS.init() };
    Guard(())
}

/// One user. The lock of the list is taken when one is made or dropped; nothing is locked under it.
pub(crate) struct User(Arc<Counts>);

impl User {
    /// The user of the calling process.
    pub(crate) fn current() -> Result<Self> {
        let account = UserAccount::current();
        let mut users = USERS.lock();
        if let Some(entry) = users
            .iter_mut()
            .find(|entry| entry.counts.account == account)
        {
            entry.holders += 1;
            return Ok(Self(entry.counts.clone()));
        }
        let counts = Arc::new(
            Counts {
                account,
                mappings: Atomic::new(0),
                pins: Atomic::new(0),
                lingering: Atomic::new(0),
                requests: Atomic::new(0),
                copiers: Atomic::new(0),
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let entry = Entry {
            counts: counts.clone(),
            holders: 1,
        };
        users.push(entry, GFP_KERNEL_ACCOUNT)?;
        Ok(Self(counts))
    }

    /// Counts a mapping that is about to pin `pins` pages.
    ///
    /// - `ENOSPC`: the user has too many.
    /// - `ENOMEM`: the user has pinned every page of the machine twice.
    pub(crate) fn admit(&self, pins: u64) -> Result {
        let mappings = self.0.mappings.fetch_add(1, Full) + 1;
        let pins_now = self.0.pins.fetch_add(pins, Full) + pins;
        let error = if mappings > MAX_MAPPINGS {
            ENOSPC
        } else if pins_now > 2 * shim::total_pages() {
            ENOMEM
        } else {
            return Ok(());
        };
        self.dismiss(pins);
        Err(error)
    }

    /// The mapping is gone.
    pub(crate) fn dismiss(&self, pins: u64) {
        self.0.mappings.fetch_sub(1, Full);
        self.0.pins.fetch_sub(pins, Full);
    }

    /// Counts a request that is about to be submitted.
    ///
    /// - `ENOSPC`: the user has `most` already.
    pub(crate) fn admit_request(&self, most: u64) -> Result {
        if self.0.requests.fetch_add(1, Full) >= most {
            self.dismiss_request();
            return Err(ENOSPC);
        }
        Ok(())
    }

    /// The request is gone. Does not sleep.
    pub(crate) fn dismiss_request(&self) {
        self.0.requests.fetch_sub(1, Full);
    }

    /// Counts a kernel thread that is about to be started for one of its processes.
    ///
    /// - `ENOSPC`: the user has too many.
    pub(crate) fn admit_copier(&self) -> Result {
        if self.0.copiers.fetch_add(1, Full) >= MAX_COPIERS {
            self.dismiss_copier();
            return Err(ENOSPC);
        }
        Ok(())
    }

    /// The thread is gone.
    pub(crate) fn dismiss_copier(&self) {
        self.0.copiers.fetch_sub(1, Full);
    }

    /// Pages that linger.
    pub(crate) fn lingering(&self) -> u64 {
        self.0.lingering.load(Relaxed)
    }

    /// Counts pages that linger from now on; they count against the user's limit, which they may exceed.
    pub(crate) fn linger(&self, pages: u64) {
        self.0.lingering.fetch_add(pages, Full);
        self.0.account.add(pages);
    }

    /// These pages do not linger any more.
    pub(crate) fn linger_no_more(&self, pages: u64) {
        self.0.lingering.fetch_sub(pages, Full);
        self.0.account.sub(pages);
    }

    /// Charges pages to the user.
    ///
    /// - `ENOMEM`: the caller's `RLIMIT_MEMLOCK` would be exceeded.
    pub(crate) fn charge(&self, pages: u64) -> Result {
        self.0.account.charge(pages)
    }

    /// Takes a charge back.
    pub(crate) fn uncharge(&self, pages: u64) {
        self.0.account.sub(pages);
    }
}

impl Clone for User {
    fn clone(&self) -> Self {
        let mut users = USERS.lock();
        let found = users
            .iter_mut()
            .find(|entry| Arc::ptr_eq(&entry.counts, &self.0));
        if let Some(entry) = found {
            entry.holders += 1;
        }
        drop(users);
        Self(self.0.clone())
    }
}

impl PartialEq for User {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let gone = {
            let mut users = USERS.lock();
            let found = users
                .iter()
                .position(|entry| Arc::ptr_eq(&entry.counts, &self.0));
            found.and_then(|index| {
                users[index].holders -= 1;
                match users[index].holders {
                    0 => users.remove(index).ok(),
                    _ => None,
                }
            })
        };
        drop(gone);
    }
}
