// SPDX-License-Identifier: GPL-2.0

//! [`Domain`]: the set of processes that may share.
//!
//! Membership is a capability: a process has it because it holds a file of the domain, or because
//! it proved a random key *and* is the creator's user in the creator's user namespace.

use crate::errno;
use crate::params;
use crate::region::Region;
use crate::request::Requests;
use crate::shim::UserNamespace;
use crate::stats::{Counter, Stats};
use crate::uapi::MAX_REGION_ID;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full};
use kernel::sync::poll::PollCondVar;
use kernel::sync::{new_mutex, Arc, Mutex, UniqueArc};
use kernel::task::Kuid;
use kernel::xarray::{AllocKind, XArray};
use kernel::{bindings, static_lock_class};

/// Ids of regions whose owners died that are remembered, so that peers hear EOWNERDEAD rather than
/// ENOENT.
const REMEMBERED_DEAD: usize = 1024;

/// Domains a user may have at a time.
const MAX_DOMAINS: usize = 1024;

struct Entry {
    domain: Arc<Domain>,
    /// Open files that belong to the domain.
    files: usize,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init before the device is registered.
    unsafe(uninit) static DOMAINS: Mutex<KVVec<Entry>> = KVVec::new();
}

/// Gives the list's memory back when the module is unloaded: statics are never dropped.
pub(crate) struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        let domains = core::mem::take(&mut *DOMAINS.lock());
        drop(domains);
    }
}

/// Prepares the list of domains.
///
/// # Safety
///
/// Called exactly once, before anything else in this file.
pub(crate) unsafe fn init() -> Guard {
    // SAFETY: The caller's promise.
    unsafe { DOMAINS.init() };
    Guard(())
}

struct Table {
    /// Where the search for a free id starts.
    next: u32,
    /// Regions in the array.
    live: u32,
    /// Ring of ids whose owners died.
    dead: KVec<u32>,
    dead_next: usize,
}

/// A sharing group.
#[pin_data]
pub(crate) struct Domain {
    key: [u8; 16],
    uid: Kuid,
    user_ns: UserNamespace,
    /// Counters of this domain.
    pub(crate) stats: Stats,
    /// Members that died so far.
    pub(crate) deaths: Atomic<u64>,
    #[pin]
    regions: XArray<Arc<Region>>,
    #[pin]
    table: Mutex<Table>,
    /// Requests of members.
    #[pin]
    pub(crate) requests: Requests,
    /// Notified when the uses of a region are over, when one goes, when a member dies, and when a
    /// request ends (for `poll` only).
    #[pin]
    pub(crate) changed: PollCondVar,
    /// Makes waiting for `changed` free of lost wake-ups.
    #[pin]
    pub(crate) wait_lock: Mutex<()>,
}

impl Domain {
    /// Creates a domain with one file in it.
    pub(crate) fn create() -> Result<Arc<Self>> {
        let mut key = [0u8; 16];
        // SAFETY: The buffer is valid for 16 bytes.
        unsafe { bindings::get_random_bytes(key.as_mut_ptr().cast(), key.len()) };
        let uid = Kuid::current_euid();
        let mut domains = DOMAINS.lock();
        let same_user = |entry: &&Entry| entry.domain.uid == uid;
        if domains.iter().filter(same_user).count() >= MAX_DOMAINS {
            return Err(ENOSPC);
        }
        let domain = Arc::pin_init(
            pin_init!(Self {
                key,
                uid,
                user_ns: UserNamespace::current(),
                stats: Stats::new(),
                deaths: Atomic::new(0),
                regions <- XArray::new(AllocKind::Alloc1),
                table <- new_mutex!(Table {
                    next: 1,
                    live: 0,
                    dead: KVec::new(),
                    dead_next: 0,
                }),
                requests <- Requests::new(),
                changed <- PollCondVar::new(c"libcopy::Domain::changed", static_lock_class!()),
                wait_lock <- new_mutex!(()),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let entry = Entry {
            domain: domain.clone(),
            files: 1,
        };
        domains.push(entry, GFP_KERNEL_ACCOUNT)?;
        drop(domains);
        domain.stats.add(Counter::Domains, 1);
        Ok(domain)
    }

    /// Joins by key.
    pub(crate) fn join_by_key(key: &[u8; 16]) -> Result<Arc<Self>> {
        let mut domains = DOMAINS.lock();
        let entry = domains
            .iter_mut()
            .find(|entry| entry.domain.key == *key)
            .ok_or(ENOENT)?;
        if entry.domain.uid != Kuid::current_euid()
            || entry.domain.user_ns != UserNamespace::current()
        {
            return Err(EPERM);
        }
        entry.files += 1;
        Ok(entry.domain.clone())
    }

    /// Joins because the caller holds a file of the domain.
    pub(crate) fn join(self: &Arc<Self>) -> Result {
        let mut domains = DOMAINS.lock();
        let entry = domains
            .iter_mut()
            .find(|entry| Arc::ptr_eq(&entry.domain, self))
            .ok_or(errno::enotconn())?;
        entry.files += 1;
        Ok(())
    }

    /// A file of the domain was released.
    pub(crate) fn file_released(self: &Arc<Self>) {
        let entry = {
            let mut domains = DOMAINS.lock();
            let Some(index) = domains
                .iter()
                .position(|entry| Arc::ptr_eq(&entry.domain, self))
            else {
                return;
            };
            domains[index].files -= 1;
            if domains[index].files > 0 {
                return;
            }
            domains.remove(index).ok()
        };
        self.stats.sub(Counter::Domains, 1);
        drop(entry);
    }

    /// The key that lets others join.
    pub(crate) fn key(&self) -> [u8; 16] {
        self.key
    }

    /// Gives a new region an id and makes it visible.
    ///
    /// - `ENOSPC`: there are as many as allowed.
    pub(crate) fn publish(&self, region: UniqueArc<Region>) -> Result<Arc<Region>> {
        let mut region = region;
        let mut table = self.table.lock();
        if table.live >= params::max_regions() {
            drop(table);
            return Err(ENOSPC);
        }
        // There are far fewer regions than ids, so this ends soon.
        let mut id = table.next;
        while self.regions.lock().get(id as usize).is_some() {
            id = Self::successor(id);
        }
        region.id = id;
        let region = Arc::from(region);
        let stored = self
            .regions
            .lock()
            .store(id as usize, region.clone(), GFP_KERNEL_ACCOUNT);
        if let Err(refused) = stored {
            // Pages are released with these, which must not happen under the lock.
            drop(table);
            return Err(refused.error);
        }
        table.next = Self::successor(id);
        table.live += 1;
        drop(table);
        self.stats.add(Counter::Regions, 1);
        Ok(region)
    }

    fn successor(id: u32) -> u32 {
        if id >= MAX_REGION_ID {
            1
        } else {
            id + 1
        }
    }

    /// Takes a region out of sight.
    pub(crate) fn remove(&self, id: u32, owner_died: bool) -> Option<Arc<Region>> {
        let mut table = self.table.lock();
        let region = self.regions.lock().remove(id as usize)?;
        table.live -= 1;
        if owner_died {
            let slot = table.dead_next;
            table.dead_next = (slot + 1) % REMEMBERED_DEAD;
            if slot < table.dead.len() {
                table.dead[slot] = id;
            } else if table.dead.push(id, GFP_KERNEL_ACCOUNT).is_err() {
                // Peers will hear ENOENT instead: true, if less telling.
                table.dead_next = slot;
            }
        }
        drop(table);
        self.stats.sub(Counter::Regions, 1);
        Some(region)
    }

    /// Finds a region.
    ///
    /// - `EOWNERDEAD`: it is gone because its owner died.
    /// - `ENOENT`: there is none with this id.
    pub(crate) fn find(&self, id: u32) -> Result<Arc<Region>> {
        if let Some(region) = self.regions.lock().get(id as usize) {
            return Ok(region.into());
        }
        if self.table.lock().dead.contains(&id) {
            return Err(errno::eownerdead());
        }
        Err(ENOENT)
    }

    /// Regions that exist now.
    pub(crate) fn live(&self) -> u32 {
        self.table.lock().live
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
