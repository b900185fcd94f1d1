// SPDX-License-Identifier: GPL-2.0

//! [`Region`]: a mapping that was published under an id, with rights.

use crate::abstractions::errno;
use crate::domain::member::Member;
use crate::memory::mapping::MappingRef;
use crate::uapi::{STATE_OWNER_DEAD, STATE_STALE};
use kernel::prelude::*;
use kernel::sync::{Arc, UniqueArc};

/// Published memory.
pub(crate) struct Region {
    pub(crate) id: u32,
    pub(crate) owner: Arc<Member>,
    pub(crate) mapping: MappingRef,
    pub(crate) rights: u32,
}

impl Region {
    /// A region that nobody knows yet.
    pub(crate) fn new(
        owner: &Arc<Member>,
        mapping: MappingRef,
        rights: u32,
    ) -> Result<UniqueArc<Self>> {
        Ok(UniqueArc::new(
            Self {
                id: 0,
                owner: owner.clone(),
                mapping,
                rights,
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    /// Bytes in the region.
    pub(crate) fn length(&self) -> u64 {
        self.mapping.pages().length()
    }

    /// `STATE_*` bits.
    ///
    /// - `EINTR`, `ENOMEM`: whether the memory has changed is not known; that is not a change.
    pub(crate) fn state(&self) -> Result<u32> {
        let mut state = 0;
        if self.owner.is_dead() {
            state |= STATE_OWNER_DEAD;
        }
        match self.mapping.check() {
            Ok(()) => {}
            Err(error) if error == errno::estale() => state |= STATE_STALE,
            Err(error) => return Err(error),
        }
        Ok(state)
    }

    /// Checks that the region may be used for `right` now.
    ///
    /// - `EACCES`, `EOWNERDEAD`, `ESTALE`: as in the ABI.
    pub(crate) fn permit(&self, right: u32) -> Result {
        let is_stale = |error: &Error| *error == errno::estale();
        match self.permit_unless_stale(right) {
            Err(error) if is_stale(&error) => self.mapping.check().map_err(|error| {
                // The memory went because its owner did, which is what the caller should hear.
                if is_stale(&error) && self.owner.is_dead() {
                    errno::eownerdead()
                } else {
                    error
                }
            }),
            result => result,
        }
    }

    /// Like [`permit`](Self::permit), but takes the slightest doubt for `ESTALE`; for callers that
    /// hold an mmap_lock and must not look at the owner's page tables.
    pub(crate) fn permit_unless_stale(&self, right: u32) -> Result {
        if self.rights & right != right {
            return Err(EACCES);
        }
        // In this order: a process is marked dead before its memory goes.
        let stale = self.mapping.is_stale();
        if self.owner.is_dead() {
            return Err(errno::eownerdead());
        }
        if stale {
            return Err(errno::estale());
        }
        Ok(())
    }

    /// Checks that `offset..offset + length` lies inside.
    pub(crate) fn contains(&self, offset: u64, length: u64) -> Result {
        match offset.checked_add(length) {
            Some(end) if end <= self.length() => Ok(()),
            _ => Err(ERANGE),
        }
    }
}
