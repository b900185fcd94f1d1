// SPDX-License-Identifier: GPL-2.0

//! [`Idle`]: mappings without a region that a process leaves pinned for its next region.

use crate::memory::mapping::MappingRef;
use crate::memory::shrinker;
use crate::uapi::Piece;
use kernel::prelude::*;

/// Mappings a process may leave idle, whatever their size: lists this short need no index.
const MAX_IDLE: usize = 256;

/// The idle mappings of one process, least recently used first. The shrinker knows of their pages.
pub(crate) struct Idle {
    mappings: KVec<MappingRef>,
    pages: u64,
}

fn pages(mapping: &MappingRef) -> u64 {
    mapping.pages().pages().len() as u64
}

impl Idle {
    /// None.
    pub(crate) const fn new() -> Self {
        Self {
            mappings: KVec::new(),
            pages: 0,
        }
    }

    /// Makes room for one more; afterwards [`Self::push`] succeeds.
    pub(crate) fn reserve(&mut self) -> Result {
        Ok(self.mappings.reserve(1, GFP_KERNEL_ACCOUNT)?)
    }

    /// Adds a mapping as the most recently used one. There is room.
    pub(crate) fn push(&mut self, mapping: MappingRef) {
        let count = pages(&mapping);
        if self.mappings.push_within_capacity(mapping).is_ok() {
            self.pages += count;
            shrinker::add(count);
        }
    }

    /// Whether another mapping does not fit within the limits.
    pub(crate) fn is_full(&self, more: u64, limit: u64) -> bool {
        self.pages + more > limit || self.mappings.len() >= MAX_IDLE
    }

    /// Takes the first mapping for which `test` holds, from the end that was used last if `recent`.
    pub(crate) fn take(
        &mut self,
        recent: bool,
        test: impl Fn(&MappingRef) -> bool,
    ) -> Option<MappingRef> {
        let mut all = self.mappings.iter();
        let index = if recent {
            all.rposition(test)
        } else {
            all.position(test)
        }?;
        let mapping = self.mappings.remove(index).ok()?;
        self.pages -= pages(&mapping);
        shrinker::sub(pages(&mapping));
        Some(mapping)
    }

    /// Takes a mapping of the same memory.
    pub(crate) fn take_serving(&mut self, pieces: &[Piece], write: bool) -> Option<MappingRef> {
        self.take(true, |mapping| mapping.serves(pieces, write))
    }

    /// Takes the least recently used mapping.
    pub(crate) fn take_oldest(&mut self) -> Option<MappingRef> {
        self.take(false, |_| true)
    }

    /// How many there are, and their bytes.
    pub(crate) fn size(&self) -> (usize, u64) {
        let bytes = self.mappings.iter().map(|mapping| mapping.page_bytes());
        (self.mappings.len(), bytes.sum())
    }

    /// Takes all of them.
    pub(crate) fn take_all(&mut self) -> KVec<MappingRef> {
        shrinker::sub(self.pages);
        self.pages = 0;
        core::mem::take(&mut self.mappings)
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        drop(self.take_all());
    }
}
