// SPDX-License-Identifier: GPL-2.0

//! [`Regions`]: the regions of a domain, by id.

use crate::abstractions::errno;
use crate::base::params;
use crate::base::stats::Counter;
use crate::domain::region::Region;
use crate::uapi::MAX_REGION_ID;
use kernel::prelude::*;
use kernel::sync::{new_mutex, Arc, Mutex, UniqueArc};
use kernel::xarray::{AllocKind, XArray};

/// Ids of regions whose owners died that are remembered, so that peers hear EOWNERDEAD rather than
/// ENOENT.
const REMEMBERED_DEAD: usize = 1024;

struct Table {
    /// Where the search for a free id starts.
    next: u32,
    /// Regions in the array.
    live: u32,
    /// Ring of ids whose owners died.
    dead: KVec<u32>,
    dead_next: usize,
}

/// The regions of a domain.
#[pin_data]
pub(crate) struct Regions {
    #[pin]
    regions: XArray<Arc<Region>>,
    #[pin]
    table: Mutex<Table>,
}

impl Regions {
    /// None yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            regions <- XArray::new(AllocKind::Alloc1),
            table <- new_mutex!(Table {
                next: 1,
                live: 0,
                dead: KVec::new(),
                dead_next: 0,
            }),
        })
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
        region.owner.domain.stats.add(Counter::Regions, 1);
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
        region.owner.domain.stats.sub(Counter::Regions, 1);
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
}
