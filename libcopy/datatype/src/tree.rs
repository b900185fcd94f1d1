// SPDX-License-Identifier: MIT OR Apache-2.0

//! A canonical form as a tree that the states of `libcopy-walk` walk over, with 64-bit offsets.

use libcopy_walk as walk;
use libcopy_walk::{Child, Tree};

use super::form::{Form, Node, NodeId, Part};
use super::offsets::Offsets;

/// The parts of a sequence.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    form: &'a Form,
    list: &'a [Part],
}

impl Form {
    #[inline(always)]
    fn child(&self, id: NodeId) -> Child<i64> {
        Child {
            id,
            size: self.extent(id).size,
        }
    }
}

impl<'a> Tree for &'a Form {
    type Word = i64;
    type Offsets = &'a Offsets;
    type Parts = Parts<'a>;

    #[inline(always)]
    fn root(self) -> Option<NodeId> {
        Form::root(self)
    }

    #[inline(always)]
    fn origin(self) -> i64 {
        self.offset()
    }

    #[inline(always)]
    fn size(self) -> i64 {
        Form::size(self) as i64
    }

    #[inline(always)]
    fn node(self, id: NodeId) -> walk::Node<Self> {
        match Form::node(self, id) {
            Node::Dense { len } => walk::Node::Dense { len: *len },
            Node::Stream {
                count,
                stride,
                child,
            } => walk::Node::Stream {
                count: *count,
                stride: *stride,
                child: self.child(*child),
            },
            Node::Blocks { offsets, child } => walk::Node::Blocks {
                offsets,
                child: self.child(*child),
            },
            Node::Pieces { offsets, starts } => walk::Node::Pieces { offsets, starts },
            Node::Sequence { parts } => walk::Node::Sequence {
                parts: Parts {
                    form: self,
                    list: parts,
                },
            },
        }
    }

    #[inline(always)]
    fn size_of(self, id: NodeId) -> i64 {
        self.extent(id).size
    }

    #[inline(always)]
    fn is_dense(self, child: Child<i64>) -> bool {
        matches!(Form::node(self, child.id), Node::Dense { .. })
    }
}

impl walk::Offsets<i64> for &Offsets {
    #[inline(always)]
    fn len(self) -> usize {
        Offsets::len(self)
    }

    #[inline(always)]
    fn get(self, i: usize) -> i64 {
        Offsets::get(self, i)
    }

    #[inline(always)]
    fn last_not_above(self, value: i64) -> usize {
        Offsets::last_not_above(self, value)
    }
}

impl walk::PartList<i64> for Parts<'_> {
    #[inline(always)]
    fn len(self) -> usize {
        self.list.len()
    }

    #[inline(always)]
    fn get(self, i: usize) -> Option<walk::Part<i64>> {
        let part = self.list.get(i)?;
        Some(walk::Part {
            offset: part.offset,
            start: part.start,
            child: self.form.child(part.child),
        })
    }

    #[inline(always)]
    fn last_not_above(self, position: i64) -> usize {
        let above = self.list.partition_point(|part| part.start <= position);
        above.saturating_sub(1)
    }
}
