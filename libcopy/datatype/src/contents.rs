// SPDX-License-Identifier: MIT OR Apache-2.0

//! How a datatype was built: what `MPI_Type_get_envelope` and `MPI_Type_get_contents` ask.

use std::sync::Arc;

use super::construct::Datatype;
use super::named::Named;

/// Which index of an array varies fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The last one, as in C.
    C,
    /// The first one, as in Fortran.
    Fortran,
}

/// How one dimension of a distributed array is dealt out to processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// One block of equal size for each process; `None` is MPI's default size,
    /// `ceil(size / processes)`.
    Block(Option<u64>),
    /// Blocks of this size, dealt in turn; `None` is MPI's default size, 1.
    Cyclic(Option<u64>),
    /// Not distributed: every process has the whole dimension.
    None,
}

/// The call that made a datatype, with its arguments: enough to make it again.
///
/// Displacements, strides and bounds are as they were given: in extents of the child where the
/// constructor counts in extents, in bytes in the `h` forms.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Contents {
    /// A predefined type.
    Named(Named),
    /// A duplicate.
    Dup {
        /// Of this type.
        child: Datatype,
    },
    /// `count` copies, one after the other.
    Contiguous {
        /// How many.
        count: u64,
        /// Of this type.
        child: Datatype,
    },
    /// Blocks of equal length at equal distances.
    Vector {
        /// Number of blocks.
        count: u64,
        /// Children in each block.
        blocklength: u64,
        /// Distance between the starts of blocks, in extents of the child.
        stride: i64,
        /// What the blocks consist of.
        child: Datatype,
    },
    /// As `Vector`, the stride in bytes.
    Hvector {
        /// Number of blocks.
        count: u64,
        /// Children in each block.
        blocklength: u64,
        /// Distance between the starts of blocks, in bytes.
        stride: i64,
        /// What the blocks consist of.
        child: Datatype,
    },
    /// Blocks of different lengths anywhere.
    Indexed {
        /// Children in each block.
        blocklengths: Arc<[u64]>,
        /// Start of each block, in extents of the child.
        displacements: Arc<[i64]>,
        /// What the blocks consist of.
        child: Datatype,
    },
    /// As `Indexed`, the displacements in bytes.
    Hindexed {
        /// Children in each block.
        blocklengths: Arc<[u64]>,
        /// Start of each block, in bytes.
        displacements: Arc<[i64]>,
        /// What the blocks consist of.
        child: Datatype,
    },
    /// Blocks of equal length anywhere.
    IndexedBlock {
        /// Children in each block.
        blocklength: u64,
        /// Start of each block, in extents of the child.
        displacements: Arc<[i64]>,
        /// What the blocks consist of.
        child: Datatype,
    },
    /// As `IndexedBlock`, the displacements in bytes.
    HindexedBlock {
        /// Children in each block.
        blocklength: u64,
        /// Start of each block, in bytes.
        displacements: Arc<[i64]>,
        /// What the blocks consist of.
        child: Datatype,
    },
    /// Blocks of different types anywhere.
    Struct {
        /// Children in each block.
        blocklengths: Arc<[u64]>,
        /// Start of each block, in bytes.
        displacements: Arc<[i64]>,
        /// What each block consists of.
        children: Arc<[Datatype]>,
    },
    /// A box cut out of an array.
    Subarray {
        /// Size of the whole array in each dimension.
        sizes: Arc<[u64]>,
        /// Size of the box in each dimension.
        subsizes: Arc<[u64]>,
        /// Where the box starts in each dimension.
        starts: Arc<[u64]>,
        /// Which index varies fastest.
        order: Order,
        /// What the array consists of.
        child: Datatype,
    },
    /// One process's part of an array that is dealt out to a grid of processes.
    Darray {
        /// Number of processes.
        size: u64,
        /// Which of them.
        rank: u64,
        /// Size of the whole array in each dimension.
        sizes: Arc<[u64]>,
        /// How each dimension is dealt out.
        distributions: Arc<[Distribution]>,
        /// Number of processes in each dimension.
        processes: Arc<[u64]>,
        /// Which index of the array varies fastest.
        order: Order,
        /// What the array consists of.
        child: Datatype,
    },
    /// The same data with other bounds.
    Resized {
        /// The new lower bound, in bytes.
        lower_bound: i64,
        /// The new extent, in bytes.
        extent: i64,
        /// The type whose data it is.
        child: Datatype,
    },
}

/// Which constructor made a type: MPI's combiner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Combiner {
    Named,
    Dup,
    Contiguous,
    Vector,
    Hvector,
    Indexed,
    Hindexed,
    IndexedBlock,
    HindexedBlock,
    Struct,
    Subarray,
    Darray,
    Resized,
}

/// What `MPI_Type_get_envelope_c` returns: the constructor, and how many arguments of each kind
/// `MPI_Type_get_contents_c` would deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Envelope {
    /// The constructor.
    pub combiner: Combiner,
    /// Arguments of type `int`: `order`, and `darray`'s size, rank and distributions.
    pub integers: u64,
    /// Arguments of type `MPI_Aint`: none, the large-count forms take `MPI_Count`.
    pub addresses: u64,
    /// Arguments of type `MPI_Count`.
    pub large_counts: u64,
    /// Arguments that are datatypes.
    pub datatypes: u64,
}

impl Contents {
    /// The constructor and its number of arguments, counted as MPI 4.1 section 5.1.13 counts them
    /// for the large-count (`_c`) forms.
    pub fn envelope(&self) -> Envelope {
        use Combiner as C;
        let n = |len: usize| len as u64;
        let (combiner, integers, large_counts, datatypes) = match self {
            Contents::Named(_) => (C::Named, 0, 0, 0),
            Contents::Dup { .. } => (C::Dup, 0, 0, 1),
            Contents::Contiguous { .. } => (C::Contiguous, 0, 1, 1),
            Contents::Vector { .. } => (C::Vector, 0, 3, 1),
            Contents::Hvector { .. } => (C::Hvector, 0, 3, 1),
            Contents::Indexed { displacements, .. } => {
                (C::Indexed, 0, 2 * n(displacements.len()) + 1, 1)
            }
            Contents::Hindexed { displacements, .. } => {
                (C::Hindexed, 0, 2 * n(displacements.len()) + 1, 1)
            }
            Contents::IndexedBlock { displacements, .. } => {
                (C::IndexedBlock, 0, n(displacements.len()) + 2, 1)
            }
            Contents::HindexedBlock { displacements, .. } => {
                (C::HindexedBlock, 0, n(displacements.len()) + 2, 1)
            }
            Contents::Struct { children, .. } => {
                (C::Struct, 0, 2 * n(children.len()) + 1, n(children.len()))
            }
            Contents::Subarray { sizes, .. } => (C::Subarray, 2, 3 * n(sizes.len()), 1),
            Contents::Darray { sizes, .. } => {
                (C::Darray, 3 * n(sizes.len()) + 4, n(sizes.len()), 1)
            }
            Contents::Resized { .. } => (C::Resized, 0, 2, 1),
        };
        Envelope {
            combiner,
            integers,
            addresses: 0,
            large_counts,
            datatypes,
        }
    }

    /// The types that this one is built on.
    pub fn children(&self) -> &[Datatype] {
        match self {
            Contents::Named(_) => &[],
            Contents::Struct { children, .. } => children,
            Contents::Dup { child }
            | Contents::Contiguous { child, .. }
            | Contents::Vector { child, .. }
            | Contents::Hvector { child, .. }
            | Contents::Indexed { child, .. }
            | Contents::Hindexed { child, .. }
            | Contents::IndexedBlock { child, .. }
            | Contents::HindexedBlock { child, .. }
            | Contents::Subarray { child, .. }
            | Contents::Darray { child, .. }
            | Contents::Resized { child, .. } => std::slice::from_ref(child),
        }
    }
}
