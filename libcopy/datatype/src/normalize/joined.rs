// SPDX-License-Identifier: MIT OR Apache-2.0

//! The form with each maximal segment in one piece, for enumerating segments.
//!
//! The canonical form keeps regular nests, which move bytes fastest, also where the last piece of
//! one element touches the first piece of the next, and it cuts pieces of a list into equal blocks.
//! Who counts segments, or hands them to the kernel as `struct iovec`, wants them joined:
//!
//! ```text
//! Stream n × (A M B), B right before the next A   →   A, Stream (n-1) × (M BA), M, B
//! ```
//!
//! A, the first piece, and B, the last one, are taken off the child; M is the rest of it. The same
//! is done where neighbouring entries of a list touch. No node of the result has two pieces next to
//! each other that touch, so its segments are counted and found by index as those of any form.

use std::sync::Arc;

use super::super::form::{Form, Node, NodeId, Part};
use super::super::offsets::Offsets;
use super::arena::{Arena, Placed};
use crate::room;

impl Form {
    /// The form that enumerates segments: all pieces that touch the next one are joined.
    pub(in super::super) fn by_segments(&self) -> room::Result<&Form> {
        let joined = match self.joined.get() {
            Some(joined) => joined,
            None => {
                let made = self.join()?.map(Arc::new);
                self.joined.get_or_init(|| made)
            }
        };
        Ok(joined.as_deref().unwrap_or(self))
    }

    /// The form whose pieces are the segments; `None` if this one is such a form.
    fn join(&self) -> room::Result<Option<Form>> {
        let Some(root) = self.root() else {
            return Ok(None);
        };
        if !(0..=root).any(|id| self.touches(id)) {
            return Ok(None);
        }
        let mut arena = Arena::default();
        // What each node becomes; children come before their parents.
        let mut joined: Vec<NodeId> = room::list(self.nodes.len())?;
        for node in &self.nodes {
            let id = match node {
                Node::Dense { len } => arena.dense(*len),
                Node::Stream {
                    count,
                    stride,
                    child,
                } => arena.chain(*count, *stride, joined[*child as usize]),
                Node::Blocks { offsets, child } => {
                    arena.joined_blocks(offsets, joined[*child as usize])
                }
                Node::Pieces { offsets, starts } => {
                    let len = |i: usize| starts.get(i + 1) - starts.get(i);
                    let pieces = (0..offsets.len()).map(|i| (offsets.get(i), len(i)));
                    arena.joined_pieces(pieces)
                }
                Node::Sequence { parts } => {
                    let entry = |part: &Part| (part.offset, joined[part.child as usize]);
                    arena.joined_list(room::gather(parts.iter().map(entry))?)
                }
            };
            joined.push(id?);
        }
        let root = joined[root as usize];
        Ok(Some(arena.finish(Some((self.offset(), root)))?))
    }

    /// Whether two pieces next to each other touch, of which each is in another child of the node.
    fn touches(&self, id: NodeId) -> bool {
        fn any<O: Copy + Into<i64>>(offsets: &[O], end: impl Fn(usize) -> i64) -> bool {
            let pairs = offsets.iter().zip(&offsets[1..]).enumerate();
            let touch = |sum: bool, (i, (at, next)): (usize, (&O, &O))| {
                sum | ((*at).into().wrapping_add(end(i)) == (*next).into())
            };
            pairs.fold(false, touch)
        }
        let listed = |offsets: &Offsets, end: &dyn Fn(usize) -> i64| match offsets {
            Offsets::Narrow(list) => any(list, end),
            Offsets::Wide(list) => any(list, end),
        };
        match self.node(id) {
            Node::Dense { .. } => false,
            Node::Stream { stride, child, .. } => *stride == end_of(&self.nodes, *child),
            Node::Blocks { offsets, child } => {
                let end = end_of(&self.nodes, *child);
                match offsets {
                    Offsets::Narrow(list) => any(list, |_| end),
                    Offsets::Wide(list) => any(list, |_| end),
                }
            }
            Node::Pieces { offsets, starts } => {
                listed(offsets, &|i| starts.get(i + 1) - starts.get(i))
            }
            Node::Sequence { parts } => parts.windows(2).any(|pair| {
                let end = end_of(&self.nodes, pair[0].child);
                pair[0].offset.wrapping_add(end) == pair[1].offset
            }),
        }
    }
}

/// Behind the last piece of a node, from its origin.
fn end_of(nodes: &[Node], id: NodeId) -> i64 {
    let (mut at, mut id) = (0i64, id);
    loop {
        let (offset, child) = match &nodes[id as usize] {
            Node::Dense { len } => return at + len,
            Node::Stream {
                count,
                stride,
                child,
            } => ((count - 1) * stride, *child),
            Node::Blocks { offsets, child } => (offsets.get(offsets.len() - 1), *child),
            Node::Pieces { offsets, starts } => {
                let last = offsets.len() - 1;
                return at + offsets.get(last) + (starts.get(last + 1) - starts.get(last));
            }
            Node::Sequence { parts } => {
                let last = &parts[parts.len() - 1];
                (last.offset, last.child)
            }
        };
        (at, id) = (at + offset, child);
    }
}

/// Nodes here are joined: no two pieces next to each other touch.
impl Arena {
    /// `count` joined children, `stride` apart, as a joined node.
    fn chain(&mut self, count: i64, stride: i64, child: NodeId) -> room::Result<NodeId> {
        if count == 1 || stride != end_of(&self.nodes, child) || self.dense_len(child).is_some() {
            return self.stream(count, stride, child);
        }
        let (first, rest) = self.without_first(child)?;
        let Some((from, rest)) = rest else {
            return self.stream(count, stride, child);
        };
        let (middle, at, last) = self.without_last(rest)?;
        let at = from + at;
        let (first, both) = (self.dense(first)?, self.dense(last + first)?);
        let last = self.dense(last)?;
        let end = (count - 1) * stride;
        let mut list = vec![(0, first)];
        match middle {
            Some(middle) => {
                let each = self.listed(&[(from, middle), (at, both)])?;
                list.push((from, self.stream(count - 1, stride, each)?));
                list.push((end + from, middle));
            }
            None => list.push((at, self.stream(count - 1, stride, both)?)),
        }
        list.push((end + at, last));
        self.listed(&list)
    }

    fn joined_blocks(&mut self, offsets: &Offsets, child: NodeId) -> room::Result<NodeId> {
        if let Some(len) = self.dense_len(child) {
            return self.joined_pieces((0..offsets.len()).map(|i| (offsets.get(i), len)));
        }
        let end = end_of(&self.nodes, child);
        let (n, mut i) = (offsets.len(), 0);
        let mut list = Vec::new();
        // Entries that touch are equally far apart.
        let mut known = (1, child);
        while i < n {
            let first = i;
            while i + 1 < n && offsets.get(i) + end == offsets.get(i + 1) {
                i += 1;
            }
            i += 1;
            let count = (i - first) as i64;
            if known.0 != count {
                known = (count, self.chain(count, end, child)?);
            }
            room::push(&mut list, (offsets.get(first), known.1))?;
        }
        self.listed(&list)
    }

    /// Dense pieces, of which some may touch; the first one is at 0.
    fn joined_pieces(&mut self, pieces: impl Iterator<Item = (i64, i64)>) -> room::Result<NodeId> {
        let (mut offsets, mut starts) = (Vec::new(), Vec::new());
        let (mut start, mut end) = (0, None);
        for (at, len) in pieces {
            if end != Some(at) {
                room::push(&mut offsets, at)?;
                room::push(&mut starts, start)?;
            }
            start += len;
            end = Some(at + len);
        }
        room::push(&mut starts, start)?;
        let len = starts[1];
        let offsets = Offsets::collect(offsets.len(), |i| offsets[i])?;
        if starts.windows(2).all(|pair| pair[1] - pair[0] == len) {
            let child = self.dense(len)?;
            return self.equal_blocks(offsets, child);
        }
        let starts = Offsets::collect(starts.len(), |i| starts[i])?;
        self.pieces(&offsets, &starts, 0, offsets.len())
    }

    /// Joined nodes, of which some may touch the next one; the first one is at 0.
    fn joined_list(&mut self, list: Vec<Placed>) -> room::Result<NodeId> {
        let mut joined = room::list(list.len())?;
        let mut list = list.into_iter();
        let Some(mut last) = list.next() else {
            return self.dense(0);
        };
        for next in list {
            if last.0 + end_of(&self.nodes, last.1) != next.0 {
                room::push(&mut joined, std::mem::replace(&mut last, next))?;
                continue;
            }
            let (before, at, len) = self.without_last(last.1)?;
            room::extend(&mut joined, before.map(|before| (last.0, before)))?;
            let (first, rest) = self.without_first(next.1)?;
            let both = (last.0 + at, self.dense(len + first)?);
            last = match rest {
                Some((from, rest)) => {
                    room::push(&mut joined, both)?;
                    (next.0 + from, rest)
                }
                None => both,
            };
        }
        room::push(&mut joined, last)?;
        self.listed(&joined)
    }

    /// Joined nodes that do not touch, as one; its origin is that of the first.
    fn listed(&mut self, list: &[Placed]) -> room::Result<NodeId> {
        let (origin, first) = list[0];
        if list.len() == 1 {
            return Ok(first);
        }
        if list.iter().all(|&(_, id)| id == first) {
            let offsets = Offsets::collect(list.len(), |i| list[i].0 - origin)?;
            return self.equal_blocks(offsets, first);
        }
        if list.iter().all(|&(_, id)| self.dense_len(id).is_some()) {
            let piece = |&(at, id): &Placed| (at - origin, self.bounds(id).size);
            let pieces: Vec<(i64, i64)> = room::gather(list.iter().map(piece))?;
            return self.joined_pieces(pieces.into_iter());
        }
        let list: Vec<Placed> = room::gather(list.iter().map(|&(at, id)| (at - origin, id)))?;
        self.sequence(&list)
    }

    /// Takes the first piece off a node: its length, and what is left.
    fn without_first(&mut self, id: NodeId) -> room::Result<(i64, Option<Placed>)> {
        Ok(match self.nodes[id as usize].clone() {
            Node::Dense { len } => (len, None),
            Node::Stream {
                count,
                stride,
                child,
            } => {
                let (len, rest) = self.without_first(child)?;
                let others = (stride, self.stream(count - 1, stride, child)?);
                (len, Some(self.placed(rest, others)?))
            }
            Node::Blocks { offsets, child } => {
                let (len, rest) = self.without_first(child)?;
                let second = offsets.get(1);
                let others = Offsets::collect(offsets.len() - 1, |i| offsets.get(i + 1) - second)?;
                let others = (second, self.equal_blocks(others, child)?);
                (len, Some(self.placed(rest, others)?))
            }
            Node::Pieces { offsets, starts } => {
                let others = self.pieces(&offsets, &starts, 1, offsets.len())?;
                (starts.get(1), Some((offsets.get(1), others)))
            }
            Node::Sequence { parts } => {
                let (len, rest) = self.without_first(parts[0].child)?;
                let others = parts[1..].iter().map(|part| (part.offset, part.child));
                let list: Vec<Placed> = room::gather(rest.into_iter().chain(others))?;
                (len, Some((list[0].0, self.listed(&list)?)))
            }
        })
    }

    /// Two nodes, of which the first may be missing.
    fn placed(&mut self, rest: Option<Placed>, others: Placed) -> room::Result<Placed> {
        Ok(match rest {
            Some(rest) => (rest.0, self.listed(&[rest, others])?),
            None => others,
        })
    }

    /// Takes the last piece off a node: what is left, which has the same origin, and the piece.
    fn without_last(&mut self, id: NodeId) -> room::Result<(Option<NodeId>, i64, i64)> {
        let (others, (at, child)): (Vec<Placed>, Placed) = match self.nodes[id as usize].clone() {
            Node::Dense { len } => return Ok((None, 0, len)),
            Node::Pieces { offsets, starts } => {
                let last = offsets.len() - 1;
                let others = self.pieces(&offsets, &starts, 0, last)?;
                let len = starts.get(last + 1) - starts.get(last);
                return Ok((Some(others), offsets.get(last), len));
            }
            Node::Stream {
                count,
                stride,
                child,
            } => {
                let others = self.stream(count - 1, stride, child)?;
                (vec![(0, others)], ((count - 1) * stride, child))
            }
            Node::Blocks { offsets, child } => {
                let last = offsets.len() - 1;
                let others = Offsets::collect(last, |i| offsets.get(i))?;
                let others = self.equal_blocks(others, child)?;
                (vec![(0, others)], (offsets.get(last), child))
            }
            Node::Sequence { parts } => {
                let placed = |part: &Part| (part.offset, part.child);
                let (others, last) = parts.split_at(parts.len() - 1);
                (room::gather(others.iter().map(placed))?, placed(&last[0]))
            }
        };
        let mut list = others;
        let (rest, offset, len) = self.without_last(child)?;
        room::extend(&mut list, rest.map(|rest| (at, rest)))?;
        Ok((Some(self.listed(&list)?), at + offset, len))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{Datatype, Layout, Segment};

    /// Types of more segments than are made anew at commit, whose pieces touch where elements meet.
    #[test]
    fn pieces_that_touch_are_one_segment() {
        for (text, count, pieces, segments) in [
            // Rows of which the last block touches the first one of the next row.
            ("resized(0,10,vector(3,2,4,byte))", 1000, 3000, 2001),
            (
                "contiguous(50,resized(0,10,vector(3,2,4,byte)))",
                50,
                7500,
                5001,
            ),
            // Only the outermost, only the innermost dimension.
            (
                "resized(0,99,contiguous(9,resized(0,11,vector(3,2,4,byte))))",
                40,
                1080,
                1080,
            ),
            (
                "resized(0,88,contiguous(9,resized(0,11,vector(3,1,5,byte))))",
                40,
                760,
                760,
            ),
            (
                "resized(0,99,contiguous(9,resized(0,11,vector(3,1,5,byte))))",
                40,
                760,
                721,
            ),
            // A list whose entries touch, one of two pieces, and one that runs backwards.
            (
                "resized(0,16,hindexed([2,1,3],[0,5,13],byte))",
                100,
                300,
                201,
            ),
            ("resized(0,7,hindexed([2,3],[0,4],byte))", 300, 600, 301),
            ("resized(0,-6,hindexed([2,3],[5,-3],byte))", 300, 600, 600),
        ] {
            let datatype: Datatype = text.parse().unwrap();
            let layout = Layout::new(&datatype, count).unwrap();
            assert_eq!(layout.form().segments(), pieces, "{text}");
            assert_eq!(layout.segment_count(), segments, "{text}");
            // What a cursor joins as it goes.
            let mut cursor = layout.cursor();
            let joined: Vec<Segment> =
                std::iter::from_fn(|| cursor.next_segment(u64::MAX)).collect();
            assert!(layout.segments().eq(joined), "{text}");
        }
    }
}
