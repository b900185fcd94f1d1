// SPDX-License-Identifier: MIT OR Apache-2.0

//! Regions of peers that this process has mapped, for the team's transport and for messages.

use std::sync::Arc;

use super::remote_key::Mapping;
use crate::device::{Attachment, Domain, RegionId, Rights};
use crate::lru::Lru;

/// A peer's region, or that it cannot be mapped.
#[derive(Debug)]
struct Mapped {
    owner: usize,
    serial: u32,
    attachment: Option<Arc<Attachment>>,
}

/// Some regions of each peer.
#[derive(Debug)]
pub(crate) struct MappedRegions {
    regions: Lru<Mapped>,
    /// Regions of a peer.
    most: usize,
}

impl MappedRegions {
    /// Keeps at most `most` regions of each peer.
    pub(crate) fn new(most: usize) -> Self {
        MappedRegions {
            regions: Lru::default(),
            most,
        }
    }

    /// A peer's region in our address space; maps it if it is not yet and if it `fits`. `None` if
    /// that cannot be done.
    #[inline]
    pub(crate) fn reach(
        &mut self,
        (domain, rights): (&Domain, Rights),
        (owner, region): (usize, Option<RegionId>),
        mapping: Mapping,
        fits: impl FnOnce(&Attachment) -> bool,
    ) -> Option<&Arc<Attachment>> {
        let serial = mapping.serial;
        let is_it = |known: &Mapped| (known.owner, known.serial) == (owner, serial);
        // A borrow that is returned would last until the end otherwise.
        if self.regions.find(is_it).is_none() {
            // What its owner has taken back stays pinned for as long as it is mapped here.
            let oldest = mapping.oldest;
            self.regions
                .retain(|known| known.owner != owner || known.serial >= oldest);
            let of_owner = |known: &Mapped| known.owner == owner;
            if self.regions.iter().filter(|known| of_owner(known)).count() >= self.most {
                self.regions.take(of_owner);
            }
            let attachment = region.and_then(|region| domain.attach(region, rights).ok());
            self.regions.push(Mapped {
                owner,
                serial,
                attachment: attachment.filter(fits).map(Arc::new),
            });
        }
        self.regions.newest()?.attachment.as_ref()
    }

    /// Unmaps everything.
    pub(crate) fn clear(&mut self) {
        self.regions.retain(|_| false);
    }
}
