// SPDX-License-Identifier: MIT OR Apache-2.0

//! The canonical form: the nodes, and what is known about them.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::kernel::PieceOrder;
use super::offsets::Offsets;
use super::steps::Steps;
use crate::room;

/// Index of a node in its form.
pub type NodeId = u32;

/// One entry of a [`Node::Sequence`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Where its origin is, in bytes from the sequence's.
    pub offset: i64,
    /// Bytes of the sequence before it.
    pub start: i64,
    /// Segments of the sequence before it.
    pub first_segment: i64,
    /// What it is.
    pub child: NodeId,
}

/// A node of a canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Node {
    /// `len` bytes without a gap.
    Dense {
        /// At least 1.
        len: i64,
    },
    /// `count` children, `stride` bytes apart.
    Stream {
        /// At least 2.
        count: i64,
        /// May be negative, or smaller than the child (they overlap).
        stride: i64,
        /// What is repeated.
        child: NodeId,
    },
    /// The same child at irregular offsets.
    Blocks {
        /// The first is 0.
        offsets: Offsets,
        /// What is repeated.
        child: NodeId,
    },
    /// Dense pieces of different lengths at irregular offsets.
    Pieces {
        /// The first is 0.
        offsets: Offsets,
        /// Bytes before each piece, and, one entry longer, all bytes.
        starts: Offsets,
    },
    /// Different children at irregular offsets.
    Sequence {
        /// At least two; the first is at offset 0.
        parts: Arc<Vec<Part>>,
    },
}

/// What is known about a node without descending into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes of data.
    pub size: i64,
    /// Dense pieces.
    pub segments: i64,
    /// Lowest byte, relative to the origin; at most 0.
    pub low: i64,
    /// Behind the highest byte, relative to the origin.
    pub high: i64,
}

/// What was found out about a form.
#[derive(Clone, Debug, Default)]
pub(super) struct Overlap {
    pub(super) is_disjoint: OnceLock<bool>,
    pub(super) is_free: OnceLock<bool>,
}

/// A layout in canonical form; equal layouts compare equal.
#[derive(Clone, Debug)]
pub struct Form {
    pub(super) nodes: Vec<Node>,
    pub(super) extents: Vec<Extent>,
    offset: i64,
    /// What the nodes lead to.
    pub(super) steps: Steps,
    /// For each node whether it is pieces, and if so, how they are moved.
    pub(super) orders: Arc<Vec<Option<PieceOrder>>>,
    /// Found when it is asked for; see `overlap.rs`.
    overlap: Overlap,
    /// Found when it is asked for; see [`Form::by_segments`].
    pub(super) joined: OnceLock<Option<Arc<Form>>>,
}

impl PartialEq for Form {
    fn eq(&self, other: &Form) -> bool {
        self.offset == other.offset && self.nodes == other.nodes
    }
}

impl Eq for Form {}

impl std::hash::Hash for Form {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.offset.hash(state);
        self.nodes.hash(state);
    }
}

impl Form {
    /// A form of nodes that are known to make one, without a plan.
    pub(super) fn bare(nodes: Vec<Node>, extents: Vec<Extent>, offset: i64) -> Form {
        Form {
            nodes,
            extents,
            offset,
            steps: Steps::default(),
            orders: Arc::default(),
            overlap: Overlap::default(),
            joined: OnceLock::new(),
        }
    }

    /// The same form again.
    pub(super) fn copied(&self) -> room::Result<Form> {
        Ok(Form {
            nodes: room::gather(self.nodes.iter().cloned())?,
            extents: room::copied(&self.extents)?,
            offset: self.offset,
            steps: self.steps.clone(),
            orders: self.orders.clone(),
            overlap: self.overlap.clone(),
            joined: self.joined.clone(),
        })
    }

    /// The range of offsets that the data lies in; `0..0` if there is none.
    pub(super) fn bounds(&self) -> Range<i64> {
        match self.extents.last() {
            Some(root) => self.offset + root.low..self.offset + root.high,
            None => 0..0,
        }
    }

    /// The nodes, children before their parents, the root last; none if there is no data.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The root, if there is data.
    pub fn root(&self) -> Option<NodeId> {
        self.nodes.len().checked_sub(1).map(|root| root as NodeId)
    }

    /// One node.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    #[inline]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    /// Size and bounds of one node.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    #[inline]
    pub fn extent(&self, id: NodeId) -> &Extent {
        &self.extents[id as usize]
    }

    /// Where the root's origin is: the offset of the first byte of data.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Bytes of data.
    pub fn size(&self) -> u64 {
        self.extents.last().map_or(0, |e| e.size as u64)
    }

    /// Dense pieces, as they are moved: pieces next to each other that touch are not always one.
    /// Segments are counted by [`super::Layout::segment_count`].
    pub fn segments(&self) -> u64 {
        self.extents.last().map_or(0, |e| e.segments as u64)
    }

    /// Bytes of memory that the form takes, without what is only made to enumerate its segments:
    /// the number does not change, so caches may subtract it again.
    pub fn memory(&self) -> usize {
        let lists: usize = self
            .nodes
            .iter()
            .map(|node| match node {
                Node::Dense { .. } | Node::Stream { .. } => 0,
                Node::Blocks { offsets, .. } => offsets.bytes(),
                Node::Pieces { offsets, starts } => offsets.bytes() + starts.bytes(),
                Node::Sequence { parts } => size_of_val(&parts[..]),
            })
            .sum();
        size_of::<Form>()
            + self.nodes.capacity() * size_of::<Node>()
            + self.extents.capacity() * size_of::<Extent>()
            + self.steps.memory()
            + self.orders.capacity() * size_of::<Option<PieceOrder>>()
            + self
                .orders
                .iter()
                .flatten()
                .map(PieceOrder::memory)
                .sum::<usize>()
            + lists
    }

    /// What is known about overlapping pieces.
    pub(super) fn overlap(&self) -> &Overlap {
        &self.overlap
    }

    /// How a node's pieces are moved, if it is such a node and there is a choice.
    #[inline]
    pub(super) fn order(&self, id: NodeId) -> Option<&PieceOrder> {
        self.orders.get(id as usize)?.as_ref()
    }

    /// The plan, if there is one.
    #[inline]
    pub(super) fn steps(&self) -> &Steps {
        &self.steps
    }
}
