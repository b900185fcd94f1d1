// SPDX-License-Identifier: MIT OR Apache-2.0

//! What messages between two ranks need of the memory that a team shares. It is behind everything
//! else, and takes no memory as long as nobody sends a message.

use std::sync::Arc;

use super::ring::{Counter, Head};
use super::segment::Segment;
use crate::error::{Error, Result};
use crate::mapping::{self, SharedMapping};

/// Where things are of what messages between two ranks need, behind everything else: first what are
/// slots of all ranks, then a row of rings for each sender, then lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MessagePlan {
    size: usize,
    /// Bytes of a ring.
    ring: usize,
    /// Bytes of the slots of all ranks, from the start on.
    heads: usize,
    /// Where the rows begin, and bytes of a row.
    rows: usize,
    row: usize,
    /// Where the lanes begin, and bytes of a rank's.
    lanes: usize,
    lane: usize,
    total: usize,
}

impl MessagePlan {
    /// `head` bytes are each rank's slots, `lane` its lanes.
    fn new(size: usize, [head, lane]: [usize; 2]) -> Self {
        let ring = match size {
            ..=16 => 64 << 10,
            17..=64 => 32 << 10,
            _ => 16 << 10,
        };
        let heads = (size * head).next_multiple_of(4096);
        let words = size * (size_of::<Head>() + size_of::<Counter>());
        let row = (words + size * ring).next_multiple_of(4096);
        let lanes = heads + size * row;
        MessagePlan {
            size,
            ring,
            heads,
            rows: heads,
            row,
            lanes,
            lane,
            total: lanes + size * lane,
        }
    }
}

/// What messages between two ranks need of the shared memory, mapped when there are any.
#[derive(Debug)]
pub(crate) struct MessageSegment {
    mapping: SharedMapping,
    plan: MessagePlan,
    rank: usize,
    segment: Arc<Segment>,
}

impl MessageSegment {
    /// Maps it, and reserves what all ranks look at. `sizes` are the bytes of a rank's slots and of
    /// its lanes.
    pub(crate) fn open(segment: Arc<Segment>, sizes: [usize; 2]) -> Result<Self> {
        let (rank, size) = segment.place();
        let plan = MessagePlan::new(size, sizes);
        let (file, first) = segment.file();
        let length = first + plan.total;
        let sized = file.metadata().and_then(|file_data| {
            // The first rank that needs it; others do the same.
            if file_data.len() < length as u64 {
                mapping::set_len(file, length)?;
            }
            Ok(())
        });
        sized.map_err(|source| Error::system("sizing memory for messages", source))?;
        let mapping = SharedMapping::writable(file, first as u64, plan.total);
        let opened = MessageSegment {
            mapping: mapping
                .map_err(|source| Error::system("mapping memory for messages", source))?,
            plan,
            rank,
            segment,
        };
        opened.reserve(0, plan.heads)?;
        Ok(opened)
    }

    /// Has the file have these bytes: a tmpfs that is full would otherwise kill a process that
    /// touches them.
    fn reserve(&self, at: usize, bytes: usize) -> Result<()> {
        let (file, first) = self.segment.file();
        mapping::reserve(file, first + at, bytes).map_err(|error| {
            Error::system(format!("reserving {} KiB for messages", bytes >> 10), error)
        })
    }

    /// Reserves the rings that we write.
    pub(crate) fn reserve_rings(&self) -> Result<()> {
        self.reserve(self.plan.rows + self.rank * self.plan.row, self.plan.row)
    }

    /// Reserves the lanes that we fill.
    pub(crate) fn reserve_lanes(&self) -> Result<()> {
        self.reserve(self.plan.lanes + self.rank * self.plan.lane, self.plan.lane)
    }

    /// Bytes of a ring.
    pub(crate) fn ring(&self) -> usize {
        self.plan.ring
    }

    /// Where the slots and the lanes of all ranks are.
    pub(crate) fn slots_and_lanes(&self) -> (*mut u8, *mut u8) {
        let base = self.mapping.base();
        (base, base.wrapping_add(self.plan.lanes))
    }

    /// Where the row of a sender begins.
    fn row(&self, from: usize, to: usize) -> *mut u8 {
        assert!(from < self.plan.size && to < self.plan.size);
        let at = self.plan.rows + from * self.plan.row;
        self.mapping.base().wrapping_add(at)
    }

    /// Counter of the bytes that `from` wrote to `to`.
    pub(crate) fn head(&self, from: usize, to: usize) -> &Head {
        // SAFETY: a row begins with as many heads as there are ranks; `row` has checked both.
        unsafe { &*self.row(from, to).cast::<Head>().add(to) }
    }

    /// Counter of those that `to` is done with.
    pub(crate) fn tail(&self, from: usize, to: usize) -> &Counter {
        let heads = self.plan.size * size_of::<Head>();
        // SAFETY: as many counters follow the heads.
        unsafe { &*self.row(from, to).add(heads).cast::<Counter>().add(to) }
    }

    /// The ring from one rank to another; [`Self::ring`] bytes that peers may change.
    pub(crate) fn bytes(&self, from: usize, to: usize) -> *mut u8 {
        let words = self.plan.size * (size_of::<Head>() + size_of::<Counter>());
        let at = words + to * self.plan.ring;
        self.row(from, to).wrapping_add(at)
    }
}
