// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a state walks over.

use crate::Word;

/// The name of a node in its tree. A child's is smaller than its parent's, so that a descent ends.
pub type NodeId = u32;

/// What a node repeats or contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Child<W> {
    /// Its node; [`Child::DENSE`] in images, if it is only bytes without a gap.
    pub id: NodeId,
    /// Bytes of data in it.
    pub size: W,
}

impl<W> Child<W> {
    /// The `id` of a child that has no node: `size` bytes without a gap.
    pub const DENSE: NodeId = 0;

    /// `len` bytes without a gap, without a node.
    pub const fn dense(len: W) -> Child<W> {
        Child {
            id: Self::DENSE,
            size: len,
        }
    }
}

/// One entry of a [`Node::Sequence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<W> {
    /// Where its origin is, in bytes from the sequence's.
    pub offset: W,
    /// Bytes of the sequence's packed stream before it.
    pub start: W,
    /// What it is.
    pub child: Child<W>,
}

/// A list of numbers: offsets, or ascending starts.
pub trait Offsets<W>: Copy {
    /// How many.
    fn len(self) -> usize;
    /// Whether there are none.
    fn is_empty(self) -> bool {
        self.len() == 0
    }
    /// Entry `i`; 0 if there is none.
    fn get(self, i: usize) -> W;
    /// The last entry of an ascending list that is not above `value`; 0 if all are.
    fn last_not_above(self, value: W) -> usize;
}

/// The entries of a [`Node::Sequence`].
pub trait PartList<W>: Copy {
    /// How many.
    fn len(self) -> usize;
    /// Whether there are none.
    fn is_empty(self) -> bool {
        self.len() == 0
    }
    /// Entry `i`, if there is one.
    fn get(self, i: usize) -> Option<Part<W>>;
    /// The last entry whose start is not above `position`; 0 if all are.
    fn last_not_above(self, position: W) -> usize;
}

/// A node: what lies where, relative to the node's origin.
///
/// The five kinds correspond to the dataloops of MPITypes (paper, section 3.2.4): contiguous,
/// vector, block-indexed, indexed and struct.
#[derive(Clone, Copy, Debug)]
pub enum Node<T: Tree> {
    /// `len` bytes without a gap.
    Dense {
        /// Bytes.
        len: T::Word,
    },
    /// `count` children, `stride` bytes apart.
    Stream {
        /// How many.
        count: T::Word,
        /// Bytes between the origins of two; may be negative.
        stride: T::Word,
        /// What is repeated.
        child: Child<T::Word>,
    },
    /// The same child at irregular offsets.
    Blocks {
        /// Where each child's origin is.
        offsets: T::Offsets,
        /// What is repeated.
        child: Child<T::Word>,
    },
    /// Dense pieces of different lengths at irregular offsets.
    Pieces {
        /// Where each piece is.
        offsets: T::Offsets,
        /// Bytes of the packed stream before each piece, and, one entry longer, all bytes.
        starts: T::Offsets,
    },
    /// Different children at irregular offsets.
    Sequence {
        /// The children.
        parts: T::Parts,
    },
}

/// A layout as nodes that refer to each other.
pub trait Tree: Copy {
    /// The integer of offsets and positions.
    type Word: Word;
    /// Its lists of numbers.
    type Offsets: Offsets<Self::Word>;
    /// Its lists of parts.
    type Parts: PartList<Self::Word>;

    /// The root, if there is data.
    fn root(self) -> Option<NodeId>;
    /// Where the root's origin is.
    fn origin(self) -> Self::Word;
    /// Bytes of data: the length of the packed stream.
    fn size(self) -> Self::Word;
    /// One node.
    fn node(self, id: NodeId) -> Node<Self>;
    /// Bytes of data in one node.
    fn size_of(self, id: NodeId) -> Self::Word;
    /// Whether a child is only bytes without a gap.
    fn is_dense(self, child: Child<Self::Word>) -> bool;
}
