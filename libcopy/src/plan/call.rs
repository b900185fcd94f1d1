// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a plan is made for: an operation, its root and its lengths.

use std::ops::Range;

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Nobody leaves before all have come.
    Barrier,
    /// The root's bytes go to all.
    Bcast,
    /// All ranks' elements, combined, go to the root.
    Reduce,
    /// All ranks' elements, combined, go to all.
    Allreduce,
    /// All ranks' elements are combined, and each rank gets a block.
    ReduceScatter,
    /// Each rank's block goes to all.
    Allgather,
    /// Each rank's block goes to the root.
    Gather,
    /// The root's blocks go to a rank each.
    Scatter,
    /// Each rank has a block for each.
    Alltoall,
    /// Each rank gets the combination of its elements and those of the ranks before it.
    Scan,
    /// Each rank but the first gets the combination of the elements of the ranks before it.
    Exscan,
}

impl Operation {
    /// All of them.
    pub const ALL: [Operation; 11] = [
        Operation::Barrier,
        Operation::Bcast,
        Operation::Reduce,
        Operation::Allreduce,
        Operation::ReduceScatter,
        Operation::Allgather,
        Operation::Gather,
        Operation::Scatter,
        Operation::Alltoall,
        Operation::Scan,
        Operation::Exscan,
    ];

    /// MPI's name of it, in small letters and without `MPI_`.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Barrier => "barrier",
            Operation::Bcast => "bcast",
            Operation::Reduce => "reduce",
            Operation::Allreduce => "allreduce",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::Allgather => "allgather",
            Operation::Gather => "gather",
            Operation::Scatter => "scatter",
            Operation::Alltoall => "alltoall",
            Operation::Scan => "scan",
            Operation::Exscan => "exscan",
        }
    }

    /// Whether elements are combined.
    pub fn combines(self) -> bool {
        use Operation::{Allreduce, Exscan, Reduce, ReduceScatter, Scan};
        matches!(self, Reduce | Allreduce | ReduceScatter | Scan | Exscan)
    }

    /// Whether each rank gets something else of what is combined.
    pub fn is_scan(self) -> bool {
        matches!(self, Operation::Scan | Operation::Exscan)
    }

    /// Whether one rank has a role of its own.
    pub fn has_root(self) -> bool {
        use Operation::{Bcast, Gather, Reduce, Scatter};
        matches!(self, Bcast | Reduce | Gather | Scatter)
    }

    /// Whether each rank has a block of its own; the others have one length.
    pub fn has_blocks(self) -> bool {
        use Operation::{Allgather, Alltoall, Gather, ReduceScatter, Scatter};
        matches!(
            self,
            ReduceScatter | Allgather | Gather | Scatter | Alltoall
        )
    }
}

/// Bytes of each rank's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths<'a> {
    /// All blocks are as long. For operations without blocks: the length of the buffer.
    Same(usize),
    /// Where each rank's block starts, behind each other, and where the last one ends.
    Starts(&'a [usize]),
}

impl Lengths<'_> {
    /// Where a rank's block is, if blocks follow each other.
    pub fn block(&self, rank: usize) -> Range<usize> {
        match self {
            Lengths::Same(bytes) => rank * bytes..(rank + 1) * bytes,
            Lengths::Starts(starts) => starts[rank]..starts[rank + 1],
        }
    }

    /// Bytes of all blocks of this number of ranks.
    pub fn total(&self, ranks: usize) -> usize {
        match self {
            Lengths::Same(bytes) => bytes * ranks,
            Lengths::Starts(starts) => starts[ranks] - starts[0],
        }
    }
}

/// Which members of a group work for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Workers {
    /// All, with a share each.
    All,
    /// The leader alone: fewer steps, for short messages.
    Leaders,
    /// Each rank for a slice, from all others at once, without groups: a reduce_scatter or a reduce
    /// of long buffers.
    Owners,
}

/// How ranks learn in a scan of those before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Prefix {
    /// Each from the one before, chunk by chunk.
    Chain,
    /// From ranks at the distances 1, 2, 4, ..: as many steps as the number of ranks has digits.
    Doubling,
}

/// Which of several ways an operation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    /// Who works, in reductions and allgathers.
    pub workers: Workers,
    /// How scans go.
    pub prefix: Prefix,
    /// Ranks that move their blocks of a gather or a scatter at the same time, at most.
    pub at_once: usize,
    /// Parts of an allreduce's buffers that go one after the other, at most: while some ranks write
    /// the result of one, others read for the next.
    pub segments: usize,
}

impl Default for Shape {
    /// All work, nothing is limited.
    fn default() -> Self {
        Shape {
            workers: Workers::All,
            prefix: Prefix::Doubling,
            at_once: usize::MAX,
            segments: usize::MAX,
        }
    }
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// The operation.
    pub operation: Operation,
    /// Its root; 0 if it has none.
    pub root: usize,
    /// Bytes. An alltoall's are those of one block, the same for each pair: one with other lengths
    /// has the same plan but for offsets, which the ranks tell each other.
    pub lengths: Lengths<'a>,
    /// Whether values are combined in the order of ranks, as operations need that do not commute.
    /// Otherwise the tree may have groups of ranks that do not follow each other, and
    /// [`Workers::Owners`] begin with their own value and go around the circle, so that not all
    /// read from the same rank first. Either order depends on the call and the tree alone.
    pub in_rank_order: bool,
    /// Bytes of an element: nothing is cut inside one. 1 where elements are not combined.
    pub element: usize,
}

impl Call<'_> {
    /// Bytes that a rank contributes and receives.
    pub fn buffers(&self, rank: usize, size: usize) -> (usize, usize) {
        let total = self.lengths.total(size);
        let one = self.lengths.total(1);
        let block = self.lengths.block(rank).len();
        let root = rank == self.root;
        match self.operation {
            Operation::Barrier => (0, 0),
            Operation::Bcast => (0, one),
            Operation::Reduce => (one, if root { one } else { 0 }),
            Operation::Allreduce | Operation::Scan | Operation::Exscan => (one, one),
            Operation::ReduceScatter => (total, block),
            Operation::Allgather => (block, total),
            Operation::Gather => (block, if root { total } else { 0 }),
            Operation::Scatter => (if root { total } else { 0 }, block),
            Operation::Alltoall => (total, total),
        }
    }

    /// Where it is good to cut: whole elements, and whole cache lines.
    pub(super) fn granule(&self) -> usize {
        granule(self.element)
    }
}

/// Bytes that stay together where elements of this size are divided among ranks: whole elements,
/// and a cache line at least.
pub fn granule(element: usize) -> usize {
    let element = element.max(1);
    element * 64usize.div_ceil(element)
}

/// A part of a range that is cut into parts at whole granules.
pub fn share(range: &Range<usize>, parts: usize, part: usize, granule: usize) -> Range<usize> {
    let granules = range.len().div_ceil(granule);
    // Whole shares first, so that nothing overflows.
    let (each, rest) = (granules / parts, granules % parts);
    let start = |part: usize| {
        let before = each * part + rest * part / parts;
        range
            .end
            .min(range.start.saturating_add(granule.saturating_mul(before)))
    };
    start(part)..start(part + 1)
}
