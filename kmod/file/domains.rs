// SPDX-License-Identifier: GPL-2.0

//! The list of domains, and [`Shared`]: what the files of one of them have in common.

use crate::base::stats::Counter;
use crate::domain::group::Domain;
use crate::domain::region::Region;
use crate::domain::regions::Regions;
use crate::memory::user::DomainQuota;
use crate::requests::request::{Request, Requests};
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNode};
use kernel::sync::Arc;

struct Entry {
    shared: Arc<Shared>,
    /// Open files that belong to the domain.
    files: usize,
    _quota: DomainQuota,
}

/// By key; none before the first one. Nothing is allocated or dropped while it is locked.
type Domains = Option<RBTree<[u8; 16], Entry>>;

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init before the device is registered.
    unsafe(uninit) static DOMAINS: Mutex<Domains> = None;
}

/// Gives the list's memory back when the module is unloaded: statics are never dropped.
pub(crate) struct Guard(());

impl Drop for Guard {
    fn drop(&mut self) {
        let domains = DOMAINS.lock().take();
        drop(domains);
    }
}

/// Prepares the list of domains.
///
/// # Safety
///
/// Called exactly once, before anything else in this file.
pub(crate) unsafe fn init() -> Guard {
    // SAFETY: The caller calls this once, before any other use of the lock.
    unsafe { DOMAINS.init() };
    Guard(())
}

/// A domain with what its members have published.
#[pin_data]
pub(crate) struct Shared {
    pub(crate) domain: Arc<Domain>,
    #[pin]
    pub(crate) regions: Regions,
    pub(crate) requests: Arc<Requests>,
}

impl Shared {
    /// Creates a domain with one file in it.
    pub(crate) fn create() -> Result<Arc<Self>> {
        let quota = DomainQuota::take()?;
        let shared = Arc::pin_init(
            try_pin_init!(Self {
                domain: Domain::new()?,
                regions <- Regions::new(),
                requests: Arc::pin_init(Requests::new(), GFP_KERNEL_ACCOUNT)?,
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )?;
        let entry = Entry {
            shared: shared.clone(),
            files: 1,
            _quota: quota,
        };
        let node = RBTreeNode::new(shared.domain.key(), entry, GFP_KERNEL_ACCOUNT)?;
        let before = DOMAINS.lock().get_or_insert_with(RBTree::new).insert(node);
        // A key of 128 random bits.
        drop(before);
        shared.domain.stats.add(Counter::Domains, 1);
        Ok(shared)
    }

    /// Joins by key.
    pub(crate) fn join_by_key(key: &[u8; 16]) -> Result<Arc<Self>> {
        let mut domains = DOMAINS.lock();
        let domains = domains.as_mut().ok_or(ENOENT)?;
        let entry = domains.get_mut(key).ok_or(ENOENT)?;
        if !entry.shared.domain.admits_caller() {
            return Err(EPERM);
        }
        entry.files += 1;
        Ok(entry.shared.clone())
    }

    /// A file of the domain was released.
    pub(crate) fn file_released(self: &Arc<Self>) {
        let entry = {
            let mut domains = DOMAINS.lock();
            let Some(domains) = domains.as_mut() else {
                return;
            };
            let key = self.domain.key();
            let Some(entry) = domains.get_mut(&key) else {
                return;
            };
            entry.files -= 1;
            if entry.files > 0 {
                return;
            }
            domains.remove_node(&key)
        };
        self.domain.stats.sub(Counter::Domains, 1);
        drop(entry);
    }

    /// Destroys a region, keeping its mapping if `keep`; returns whether it was there.
    pub(crate) fn destroy(&self, region: &Region, keep: bool) -> bool {
        if !region.owner.disown(region.id) || self.regions.remove(region.id, false).is_none() {
            return false;
        }
        if keep {
            region.owner.keep(region.mapping.clone());
        } else {
            region.mapping.let_go();
        }
        true
    }

    /// Takes a request out of the domain.
    pub(crate) fn disown_request(&self, request: &Request) {
        if request.submitter.disown_request(request.id) {
            let gone = self.requests.remove(request.id);
            drop(gone);
        }
    }
}
