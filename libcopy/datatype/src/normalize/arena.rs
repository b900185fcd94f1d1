// SPDX-License-Identifier: MIT OR Apache-2.0

//! Nodes under construction.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::super::form::{Extent, Form, Node, NodeId, Part};
use super::super::plan;
use crate::room::{self, NoRoom};

/// Dense bytes somewhere: offset and length.
pub(super) type Dense = (i64, i64);

/// A node somewhere: the offset of its origin, and which.
pub(super) type Placed = (i64, NodeId);

/// Nodes under construction, equal ones only once.
#[derive(Default)]
pub(super) struct Arena {
    pub(super) nodes: Vec<Node>,
    extents: Vec<Extent>,
    /// Only filled when there are too many nodes to look through.
    known: HashTable<NodeId>,
    hasher: DefaultHashBuilder,
}

/// Up to this many nodes are searched one by one; a hash table would cost more.
const FEW: usize = 24;

impl Arena {
    /// Adds a node whose hash may be known.
    pub(super) fn push(
        &mut self,
        node: Node,
        extent: Extent,
        hash: Option<u64>,
    ) -> room::Result<NodeId> {
        let id = self.nodes.len() as NodeId;
        room::push(&mut self.nodes, node)?;
        room::push(&mut self.extents, extent)?;
        let Arena {
            nodes,
            known,
            hasher,
            ..
        } = self;
        let hash_of = |id: &NodeId| hasher.hash_one(&nodes[*id as usize]);
        if nodes.len() > FEW {
            // The first time, all those before it.
            let first = if known.is_empty() { 0 } else { id };
            let more = nodes.len() - first as usize;
            known
                .try_reserve(more, hash_of)
                .map_err(|_| NoRoom::of::<NodeId>(nodes.len()))?;
            for other in first..id {
                known.insert_unique(hash_of(&other), other, hash_of);
            }
            known.insert_unique(hash.unwrap_or_else(|| hash_of(&id)), id, hash_of);
        }
        Ok(id)
    }

    pub(super) fn intern(
        &mut self,
        node: Node,
        extent: impl FnOnce(&Self) -> Extent,
    ) -> room::Result<NodeId> {
        let (known, hash) = if self.nodes.len() <= FEW {
            let mut nodes = self.nodes.iter();
            let known = nodes.position(|n| *n == node);
            (known.map(|id| id as NodeId), None)
        } else {
            let hash = self.hasher.hash_one(&node);
            let is_it = |id: &NodeId| self.nodes[*id as usize] == node;
            (self.known.find(hash, is_it).copied(), Some(hash))
        };
        match known {
            Some(id) => Ok(id),
            None => {
                let extent = extent(self);
                self.push(node, extent, hash)
            }
        }
    }

    pub(super) fn bounds(&self, id: NodeId) -> &Extent {
        &self.extents[id as usize]
    }

    pub(super) fn dense(&mut self, len: i64) -> room::Result<NodeId> {
        self.intern(Node::Dense { len }, |_| Extent {
            size: len,
            segments: 1,
            low: 0,
            high: len,
        })
    }

    pub(super) fn dense_len(&self, id: NodeId) -> Option<i64> {
        match self.nodes[id as usize] {
            Node::Dense { len } => Some(len),
            _ => None,
        }
    }

    /// `count` children, rewritten.
    pub(super) fn stream(
        &mut self,
        count: i64,
        stride: i64,
        child: NodeId,
    ) -> room::Result<NodeId> {
        if count == 1 {
            return Ok(child);
        }
        match self.nodes[child as usize] {
            Node::Dense { len } if stride == len => return self.dense(count * len),
            Node::Stream {
                count: inner,
                stride: step,
                child,
            } if i128::from(stride) == i128::from(inner) * i128::from(step) => {
                return self.stream(count * inner, step, child);
            }
            _ => {}
        }
        let node = Node::Stream {
            count,
            stride,
            child,
        };
        self.intern(node, |arena| {
            let one = arena.bounds(child);
            let last = (count - 1) * stride;
            Extent {
                size: count * one.size,
                segments: count * one.segments,
                low: one.low + last.min(0),
                high: one.high + last.max(0),
            }
        })
    }

    pub(super) fn span_from_first(&self, list: &[Placed]) -> Extent {
        let first = list.first().map_or(0, |placed| placed.0);
        let relative = list.iter().map(|&(at, id)| (at - first, id));
        self.span_of(relative)
    }

    pub(super) fn span(&self, list: &[Placed]) -> Extent {
        self.span_of(list.iter().copied())
    }

    pub(super) fn span_of(&self, list: impl Iterator<Item = Placed>) -> Extent {
        let mut all = Extent {
            size: 0,
            segments: 0,
            low: 0,
            high: 0,
        };
        for (offset, id) in list {
            let one = self.bounds(id);
            all.size += one.size;
            all.segments += one.segments;
            all.low = all.low.min(offset + one.low);
            all.high = all.high.max(offset + one.high);
        }
        all
    }

    /// The dense pieces of a node, adjacent ones joined.
    pub(super) fn segments(&self, root: NodeId) -> room::Result<Vec<Dense>> {
        let mut pieces: Vec<Dense> = Vec::new();
        // What is left of the walk, the next node last. A segment has few nodes above it: each of
        // them has at least two children.
        let mut todo = vec![(0, root)];
        let mut add = |at: i64, len: i64| match pieces.last_mut() {
            Some((last, before)) if last.checked_add(*before) == Some(at) => {
                *before += len;
                Ok(())
            }
            _ => room::push(&mut pieces, (at, len)),
        };
        while let Some((at, id)) = todo.pop() {
            match &self.nodes[id as usize] {
                Node::Dense { len } => {
                    add(at, *len)?;
                }
                Node::Pieces { offsets, starts } => {
                    for i in 0..offsets.len() {
                        add(at + offsets.get(i), starts.get(i + 1) - starts.get(i))?;
                    }
                }
                Node::Stream {
                    count,
                    stride,
                    child,
                } => {
                    let children = (0..*count as usize).rev();
                    let placed = |i: usize| (at + i as i64 * stride, *child);
                    room::extend(&mut todo, children.map(placed))?;
                }
                Node::Blocks { offsets, child } => {
                    let children = (0..offsets.len()).rev();
                    room::extend(&mut todo, children.map(|i| (at + offsets.get(i), *child)))?;
                }
                Node::Sequence { parts } => {
                    let children = parts.iter().rev();
                    let placed = |part: &Part| (at + part.offset, part.child);
                    room::extend(&mut todo, children.map(placed))?;
                }
            }
        }
        Ok(pieces)
    }

    /// Keeps what the root needs, in the order of a walk that does not depend on how it was made.
    pub(super) fn finish(self, root: Option<Placed>) -> room::Result<Form> {
        let Some((offset, root)) = root else {
            return Ok(Form::bare(Vec::new(), Vec::new(), 0));
        };
        let mut number: Vec<NodeId> = room::filled(NodeId::MAX, self.nodes.len())?;
        let mut order: Vec<NodeId> = room::list(self.nodes.len())?;
        let mut stack = vec![(root, false)];
        while let Some((id, children_done)) = stack.pop() {
            if number[id as usize] != NodeId::MAX {
                continue;
            }
            if children_done {
                number[id as usize] = order.len() as NodeId;
                order.push(id);
                continue;
            }
            room::push(&mut stack, (id, true))?;
            match &self.nodes[id as usize] {
                Node::Dense { .. } | Node::Pieces { .. } => {}
                Node::Stream { child, .. } | Node::Blocks { child, .. } => {
                    room::push(&mut stack, (*child, false))?;
                }
                Node::Sequence { parts } => {
                    let children = parts.iter().rev();
                    room::extend(&mut stack, children.map(|part| (part.child, false)))?;
                }
            }
        }
        let renumbered = |id: NodeId| number[id as usize];
        let mut nodes = room::list(order.len())?;
        for &id in &order {
            nodes.push(match &self.nodes[id as usize] {
                Node::Stream {
                    count,
                    stride,
                    child,
                } => Node::Stream {
                    count: *count,
                    stride: *stride,
                    child: renumbered(*child),
                },
                Node::Blocks { offsets, child } => Node::Blocks {
                    offsets: offsets.clone(),
                    child: renumbered(*child),
                },
                Node::Sequence { parts } => Node::Sequence {
                    parts: Arc::new(room::gather(parts.iter().map(|part| Part {
                        child: renumbered(part.child),
                        ..*part
                    }))?),
                },
                other => other.clone(),
            });
        }
        let extents = room::gather(order.iter().map(|&id| *self.bounds(id)))?;
        plan::assembled(nodes, extents, offset)
    }
}
