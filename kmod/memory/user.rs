// SPDX-License-Identifier: GPL-2.0

//! [`User`]: what the processes of one user have pinned and submitted together.
//!
//! `RLIMIT_MEMLOCK` limits a process, which ends; what a peer keeps of its memory does not end with
//! it. So who keeps the memory of others is told by user, as for io_uring.

use crate::abstractions::shim;
use crate::base::params;
use crate::memory::user_account::UserAccount;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNode};
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::Arc;

/// Mappings that a user may have. A page has at most one pin per mapping, and room for 2^21 in its
/// reference count: as many users as share a page must not fill that.
const MAX_MAPPINGS: u64 = 65536;

/// Domains a user may have at a time.
const MAX_DOMAINS: u64 = 1024;

/// What is counted for a user.
struct Counts {
    account: UserAccount,
    /// Values of [`User`]. It leaves zero again only under the lock of the list.
    holders: Atomic<u64>,
    mappings: Atomic<u64>,
    /// Pages that these mappings have pinned.
    pins: Atomic<u64>,
    /// Pages that their owners have given up and nobody pays for who attached them.
    lingering: Atomic<u64>,
    /// Requests that its processes have submitted.
    requests: Atomic<u64>,
    /// Domains that its processes have created.
    domains: Atomic<u64>,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init before the device is registered.
    unsafe(uninit) static USERS: Mutex<Option<RBTree<usize, Arc<Counts>>>> = None;
}

/// Gives the list's memory back when the module is unloaded: statics are never dropped.
pub(crate) struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        let users = USERS.lock().take();
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

/// One user. The lock of the list, which is ordered by their accounts, is taken when one is made
/// and when the last one is dropped; nothing is locked, allocated or dropped under it.
pub(crate) struct User(Arc<Counts>);

impl User {
    /// The user of the calling process.
    pub(crate) fn current() -> Result<Self> {
        let account = UserAccount::current();
        let key = account.address();
        let find = |users: &Option<RBTree<usize, Arc<Counts>>>| {
            let known = users.as_ref()?.get(&key)?;
            known.holders.fetch_add(1, Full);
            Some(Self(known.clone()))
        };
        if let Some(known) = find(&USERS.lock()) {
            return Ok(known);
        }
        let counts = Arc::new(
            Counts {
                account,
                holders: Atomic::new(1),
                mappings: Atomic::new(0),
                pins: Atomic::new(0),
                lingering: Atomic::new(0),
                requests: Atomic::new(0),
                domains: Atomic::new(0),
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let node = RBTreeNode::new(key, counts.clone(), GFP_KERNEL_ACCOUNT)?;
        let mut users = USERS.lock();
        if let Some(known) = find(&users) {
            drop(users);
            return Ok(known);
        }
        users.get_or_insert_with(RBTree::new).insert(node);
        drop(users);
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
    fn admit_request(&self, most: u64) -> Result {
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

    /// Pages that linger.
    pub(crate) fn lingering(&self) -> u64 {
        self.0.lingering.load(Relaxed)
    }

    /// Counts pages that linger from now on; they count against the user's limit, which they may
    /// exceed.
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
        self.0.holders.fetch_add(1, Full);
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
        if self.0.holders.fetch_sub(1, Full) != 1 {
            return;
        }
        let gone = {
            let mut users = USERS.lock();
            // Somebody may have found it in the list meanwhile, and may have dropped it again; then
            // there may be another one of the same user.
            let users = users.as_mut();
            let key = self.0.account.address();
            match self.0.holders.load(Relaxed) {
                0 => users.and_then(|users| {
                    let known = users.get(&key)?;
                    Arc::ptr_eq(known, &self.0).then_some(())?;
                    users.remove_node(&key)
                }),
                _ => None,
            }
        };
        drop(gone);
    }
}

/// A place among a user's domains; dropping gives it back.
pub(crate) struct DomainQuota(User);

impl DomainQuota {
    /// Of the calling process's user.
    ///
    /// - `ENOSPC`: the user has as many as allowed.
    pub(crate) fn take() -> Result<Self> {
        let user = User::current()?;
        if user.0.domains.fetch_add(1, Full) >= MAX_DOMAINS {
            user.0.domains.fetch_sub(1, Full);
            return Err(ENOSPC);
        }
        Ok(Self(user))
    }
}

impl Drop for DomainQuota {
    fn drop(&mut self) {
        self.0 .0.domains.fetch_sub(1, Full);
    }
}

/// A place among a user's requests; dropping gives it back.
pub(crate) struct RequestQuota<'a>(&'a User);

impl<'a> RequestQuota<'a> {
    /// - `ENOSPC`: the user has as many as allowed.
    pub(crate) fn take(user: &'a User) -> Result<Self> {
        user.admit_request(params::max_user_requests().into())?;
        Ok(Self(user))
    }
}

impl Drop for RequestQuota<'_> {
    fn drop(&mut self) {
        self.0.dismiss_request();
    }
}
