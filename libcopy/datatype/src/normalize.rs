// SPDX-License-Identifier: MIT OR Apache-2.0

//! The canonical form: one small tree for all ways to describe the same layout.
//!
//! The idea is TEMPI's ("Adding Fast GPU Derived Datatype Handling to Existing MPIs"): translate a
//! type into streams and dense pieces, then rewrite until nothing changes. Here the rewriting also
//! covers irregular types, and never changes the order of bytes:
//!
//! ```text
//! elision      Stream 1 × c                          →  c
//! folding      Stream n × Dense l, stride l          →  Dense n·l
//! flattening   Stream n × (Stream m × c, stride t),
//!              stride m·t                            →  Stream n·m × c, stride t
//! merging      Dense a, then Dense b right behind    →  Dense a+b
//! recognition  c at 0, s, 2s, … (n-1)s               →  Stream n × c, stride s
//!              a list that repeats with a period p   →  Stream n/p × (its first p entries)
//! splicing     a short list within a list            →  its entries
//! ```
//!
//! Nodes are numbered children first; the last one is the root. Every node's first byte (in
//! type-map order) is at its origin, so equal shapes are equal nodes wherever they are.

mod joined;
mod long;
mod members;

use std::cell::OnceCell;
use std::hash::BuildHasher;
use std::sync::{Arc, OnceLock};

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

use super::construct::{Datatype, fastest_first};
use super::contents::Contents;
use super::overlap::Overlap;
use super::steps::Steps;
use long::{Blocks, Lengths, Number};

/// Index of a node in its form.
pub type NodeId = u32;

/// Lists up to this length are spliced into the list that uses them, also if used repeatedly.
const SPLICE: usize = 64;

/// Layouts with at most so many segments are made anew from the list of these.
const SETTLED: i64 = 128;

/// Offsets of many blocks, in four bytes each where they fit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Offsets {
    /// All offsets fit into 32 bits.
    Narrow(Arc<Vec<i32>>),
    /// They do not.
    Wide(Arc<Vec<i64>>),
}

impl Offsets {
    fn collect(len: usize, at: impl Fn(usize) -> i64) -> Offsets {
        if (0..len).all(|i| i32::try_from(at(i)).is_ok()) {
            Offsets::Narrow(Arc::new((0..len).map(|i| at(i) as i32).collect()))
        } else {
            Offsets::Wide(Arc::new((0..len).map(at).collect()))
        }
    }

    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Offsets::Narrow(list) => list.len(),
            Offsets::Wide(list) => list.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The offset of block `i`, in bytes.
    ///
    /// # Panics
    ///
    /// If there is no such block.
    #[inline]
    pub fn get(&self, i: usize) -> i64 {
        match self {
            Offsets::Narrow(list) => i64::from(list[i]),
            Offsets::Wide(list) => list[i],
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Offsets::Narrow(list) => 4 * list.len(),
            Offsets::Wide(list) => 8 * list.len(),
        }
    }

    /// The last index whose offset is not above `value`; the offsets must be ascending from 0.
    pub(super) fn last_not_above(&self, value: i64) -> usize {
        match self {
            Offsets::Narrow(list) => list.partition_point(|&x| i64::from(x) <= value) - 1,
            Offsets::Wide(list) => list.partition_point(|&x| x <= value) - 1,
        }
    }
}

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
        parts: Arc<[Part]>,
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

/// A layout in canonical form; equal layouts compare equal.
#[derive(Clone, Debug)]
pub struct Form {
    nodes: Vec<Node>,
    extents: Vec<Extent>,
    offset: i64,
    /// What the nodes lead to.
    steps: Steps,
    /// Found when it is asked for; see [`super::overlap`].
    overlap: Overlap,
    /// Found when it is asked for; see [`Form::by_segments`].
    joined: OnceLock<Option<Arc<Form>>>,
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
    pub(super) fn of(datatype: &Datatype) -> Form {
        let mut arena = Arena::default();
        let root = translate(&mut arena, datatype);
        let root = root.and_then(|root| arena.settle(root));
        arena.finish(root)
    }

    /// `count` of the type whose form this is, `extent` bytes apart.
    pub(super) fn repeated(&self, count: u64, extent: i64) -> Form {
        if self.nodes.is_empty() || count == 0 {
            return Arena::default().finish(None);
        }
        if count == 1 {
            return self.clone();
        }
        let mut arena = Arena::default();
        for (node, extent) in self.nodes.iter().zip(&self.extents) {
            arena.push(node.clone(), *extent, None);
        }
        let root = (self.nodes.len() - 1) as NodeId;
        let root = arena.stream(count as i64, extent, root);
        let root = arena.settle((self.offset, root));
        arena.finish(root)
    }

    /// A form of nodes that are known to make one.
    pub(super) fn assembled(nodes: Vec<Node>, extents: Vec<Extent>, offset: i64) -> Form {
        let mut form = Form {
            nodes,
            extents,
            offset,
            steps: Steps::default(),
            overlap: Overlap::default(),
            joined: OnceLock::new(),
        };
        form.steps = Steps::of(&form);
        form
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

    /// Dense pieces, as they are moved: pieces next to each other that touch are not always one. Segments
    /// are counted by [`super::Layout::segment_count`].
    pub fn segments(&self) -> u64 {
        self.extents.last().map_or(0, |e| e.segments as u64)
    }

    /// Bytes of memory that the form takes, without what is only made to enumerate its segments: the
    /// number does not change, so caches may subtract it again.
    pub fn memory(&self) -> usize {
        let lists: usize = self
            .nodes
            .iter()
            .map(|node| match node {
                Node::Dense { .. } | Node::Stream { .. } => 0,
                Node::Blocks { offsets, .. } => offsets.bytes(),
                Node::Pieces { offsets, starts } => offsets.bytes() + starts.bytes(),
                Node::Sequence { parts } => size_of_val::<[Part]>(parts),
            })
            .sum();
        size_of::<Form>()
            + self.nodes.capacity() * size_of::<Node>()
            + self.extents.capacity() * size_of::<Extent>()
            + self.steps.memory()
            + lists
    }

    /// The form that enumerates segments: all pieces that touch the next one are joined.
    pub(super) fn by_segments(&self) -> &Form {
        let joined = self.joined.get_or_init(|| self.join().map(Arc::new));
        joined.as_deref().unwrap_or(self)
    }

    /// What is known about overlapping pieces.
    pub(super) fn overlap(&self) -> &Overlap {
        &self.overlap
    }

    /// The plan, if there is one.
    #[inline]
    pub(super) fn steps(&self) -> &Steps {
        &self.steps
    }
}

/// Dense bytes somewhere: offset and length.
type Dense = (i64, i64);

/// A node somewhere: the offset of its origin, and which.
type Placed = (i64, NodeId);

/// Nodes under construction, equal ones only once.
#[derive(Default)]
struct Arena {
    nodes: Vec<Node>,
    extents: Vec<Extent>,
    /// Only filled when there are too many nodes to look through.
    known: HashTable<NodeId>,
    hasher: DefaultHashBuilder,
}

/// So many nodes are searched one by one; a hash table would cost more.
const FEW: usize = 24;

/// `count` equal children in a list, `stride` apart.
#[derive(Clone, Copy)]
struct Run {
    offset: i64,
    stride: i64,
    count: i64,
    child: NodeId,
}

impl Run {
    fn last(&self) -> i64 {
        self.offset + (self.count - 1) * self.stride
    }
}

impl Arena {
    /// Adds a node whose hash may be known.
    fn push(&mut self, node: Node, extent: Extent, hash: Option<u64>) -> NodeId {
        let id = self.nodes.len() as NodeId;
        self.nodes.push(node);
        self.extents.push(extent);
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
            for other in first..id {
                known.insert_unique(hash_of(&other), other, hash_of);
            }
            known.insert_unique(hash.unwrap_or_else(|| hash_of(&id)), id, hash_of);
        }
        id
    }

    fn intern(&mut self, node: Node, extent: impl FnOnce(&Self) -> Extent) -> NodeId {
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
            Some(id) => id,
            None => {
                let extent = extent(self);
                self.push(node, extent, hash)
            }
        }
    }

    fn bounds(&self, id: NodeId) -> &Extent {
        &self.extents[id as usize]
    }

    fn dense(&mut self, len: i64) -> NodeId {
        self.intern(Node::Dense { len }, |_| Extent {
            size: len,
            segments: 1,
            low: 0,
            high: len,
        })
    }

    fn dense_len(&self, id: NodeId) -> Option<i64> {
        match self.nodes[id as usize] {
            Node::Dense { len } => Some(len),
            _ => None,
        }
    }

    /// `count` children, rewritten.
    fn stream(&mut self, count: i64, stride: i64, child: NodeId) -> NodeId {
        if count == 1 {
            return child;
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

    /// A list of placed nodes as one node, placed.
    fn list(&mut self, list: Vec<Placed>) -> Option<Placed> {
        let first = list.first()?.0;
        if list.len() == 1 {
            return list.first().copied();
        }
        if list.len() >= long::MANY && list.iter().all(|&(_, id)| self.dense_len(id).is_some()) {
            return Some((first, self.of_pieces(&list)));
        }
        let runs = self.runs(&list, true);
        Some((first, self.of_runs(runs, first)))
    }

    /// A list of dense pieces as one node.
    fn of_pieces(&mut self, list: &[Placed]) -> NodeId {
        let all = self.span_from_first(list);
        let narrow = |value: i64| i32::try_from(value).is_ok();
        if !narrow(all.size) {
            let list = self.as_pieces::<i64, i64>(list);
            self.long(list, None)
        } else if !narrow(all.high.saturating_sub(all.low)) {
            let list = self.as_pieces::<i64, i32>(list);
            self.long(list, None)
        } else {
            let list = self.as_pieces::<i32, i32>(list);
            self.long(list, None)
        }
    }

    /// Groups neighbours: adjacent dense pieces become one, equal children at equal distances a
    /// run. `open` also takes streams in the list apart where that lets them grow or merge.
    fn runs(&mut self, list: &[Placed], open: bool) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::with_capacity(list.len());
        for &(offset, id) in list {
            match self.nodes[id as usize] {
                Node::Stream {
                    count,
                    stride,
                    child,
                } if open => self.append(
                    &mut runs,
                    Run {
                        offset,
                        stride,
                        count,
                        child,
                    },
                ),
                _ => self.append(
                    &mut runs,
                    Run {
                        offset,
                        stride: 0,
                        count: 1,
                        child: id,
                    },
                ),
            }
        }
        runs
    }

    fn append(&mut self, runs: &mut Vec<Run>, mut run: Run) {
        loop {
            let Some(last) = runs.last_mut() else {
                runs.push(run);
                return;
            };
            // A dense piece right behind a dense piece.
            if let (Some(before), Some(len)) =
                (self.dense_len(last.child), self.dense_len(run.child))
            {
                let at = last.last();
                if at.checked_add(before) == Some(run.offset) {
                    last.count -= 1;
                    if last.count == 0 {
                        runs.pop();
                    } else if last.count == 1 {
                        last.stride = 0;
                    }
                    let child = self.dense(before + len);
                    let merged = Run {
                        offset: at,
                        stride: 0,
                        count: 1,
                        child,
                    };
                    // The piece before was not adjacent to what came before it.
                    Arena::extend(runs, merged);
                    run.offset = run.offset.wrapping_add(run.stride);
                    run.count -= 1;
                    match run.count {
                        0 => return,
                        1 => run.stride = 0,
                        _ => {}
                    }
                    continue;
                }
            }
            if run.count == 1 || last.child != run.child {
                Arena::extend(runs, run);
                return;
            }
            // Element by element, until the run stands for itself: this is what the same list
            // without streams would lead to.
            if last.count >= 2
                && last.stride == run.stride
                && last.last().checked_add(last.stride) == Some(run.offset)
            {
                last.count += run.count;
                return;
            }
            let next = last.last().checked_add(if last.count > 1 {
                last.stride
            } else {
                run.offset.wrapping_sub(last.offset)
            });
            if last.count == 1 && run.offset.checked_sub(last.offset) != Some(run.stride) {
                // The last one and our first pair up, which leaves the rest of ours.
            } else if next != Some(run.offset) {
                runs.push(run);
                return;
            }
            let single = Run {
                stride: 0,
                count: 1,
                ..run
            };
            Arena::extend(runs, single);
            run.offset = run.offset.wrapping_add(run.stride);
            run.count -= 1;
            if run.count == 1 {
                run.stride = 0;
            }
        }
    }

    /// Adds a run, joining it with the one before if it is a single child that continues it.
    fn extend(runs: &mut Vec<Run>, run: Run) {
        if let Some(last) = runs.last_mut() {
            if run.count == 1 && last.child == run.child {
                if last.count == 1 {
                    if let Some(stride) = run.offset.checked_sub(last.offset) {
                        last.stride = stride;
                        last.count = 2;
                        return;
                    }
                } else if last.last().checked_add(last.stride) == Some(run.offset) {
                    last.count += 1;
                    return;
                }
            }
        }
        runs.push(run);
    }

    /// The node that a list of runs becomes; its first element is at `origin`.
    fn of_runs(&mut self, mut runs: Vec<Run>, mut origin: i64) -> NodeId {
        loop {
            if let [run] = runs[..] {
                return self.stream(run.count, run.stride, run.child);
            }
            let all: i128 = runs.iter().map(|run| i128::from(run.count)).sum();
            let regular: i128 = runs
                .iter()
                .filter(|run| run.count >= 3)
                .map(|run| i128::from(run.count))
                .sum();
            let structured = 2 * regular >= all;
            let flat: Vec<Placed> = if structured {
                runs.iter()
                    .map(|run| {
                        (
                            run.offset - origin,
                            self.stream(run.count, run.stride, run.child),
                        )
                    })
                    .collect()
            } else {
                runs.iter()
                    .flat_map(|run| {
                        (0..run.count).map(|i| (run.offset + i * run.stride - origin, run.child))
                    })
                    .collect()
            };
            if let Some(period) = period(&flat) {
                let times = (flat.len() / period) as i64;
                let stride = flat[period].0;
                let child = if period == 1 {
                    flat[0].1
                } else {
                    let runs = self.runs(&flat[..period], false);
                    self.of_runs(runs, 0)
                };
                return self.stream(times, stride, child);
            }
            if !structured {
                return self.irregular(&flat);
            }
            // Runs of runs.
            let next = self.runs(&flat, false);
            if next.len() == flat.len() || next.iter().all(|run| run.count < 3) {
                return self.irregular(&flat);
            }
            runs = next;
            origin = 0;
        }
    }

    /// A list without any regularity, its first entry at offset 0.
    fn irregular(&mut self, list: &[Placed]) -> NodeId {
        let (_, child) = list[0];
        if list.iter().all(|&(_, id)| id == child) {
            let offsets = Offsets::collect(list.len(), |i| list[i].0);
            return self.equal_blocks(offsets, child);
        }
        // Neighbours that are dense become one node, or few.
        let mut grouped: Vec<Placed> = Vec::new();
        let mut rest = list;
        while let Some(&(origin, id)) = rest.first() {
            let is_dense = |&(_, id): &Placed| self.dense_len(id).is_some();
            let stretch = rest.iter().take_while(|placed| is_dense(placed)).count();
            if stretch < 2 {
                grouped.push((origin, id));
                rest = &rest[1..];
                continue;
            }
            let mut start = 0;
            let mut starts = Vec::with_capacity(stretch + 1);
            starts.push(0);
            for &(_, id) in &rest[..stretch] {
                start += self.bounds(id).size;
                starts.push(start);
            }
            let offsets = Offsets::collect(stretch, |i| rest[i].0 - origin);
            let starts = Offsets::collect(starts.len(), |i| starts[i]);
            for (offset, id) in self.dense_nodes(offsets, starts) {
                grouped.push((origin + offset, id));
            }
            rest = &rest[stretch..];
        }
        if let Some(pieces) = self.flattened(&grouped) {
            grouped = pieces;
        }
        if let [(_, id)] = grouped[..] {
            return id;
        }
        self.sequence(&grouped)
    }

    /// Many tiny nests as a list of their pieces, or a few of them: choosing a kernel for a nest takes as
    /// long as moving a dozen pieces of a list. The first entry is at offset 0.
    fn flattened(&mut self, list: &[Placed]) -> Option<Vec<Placed>> {
        /// Fewest nests.
        const NESTS: usize = 64;
        /// Most pieces of a nest, and most bytes of a piece, on average.
        const PIECES: i64 = 16;
        const BYTES: i64 = 128;
        if list.len() < NESTS {
            return None;
        }
        let all = self.span(list);
        if all.segments > PIECES * list.len() as i64 || all.size > BYTES * all.segments {
            return None;
        }
        let mut offsets = Vec::with_capacity(all.segments as usize);
        let mut starts = Vec::with_capacity(all.segments as usize + 1);
        let (mut start, mut end) = (0i64, None);
        for &(at, id) in list {
            self.each_piece(id, at, &mut |at, len| {
                if end != Some(at) {
                    offsets.push(at);
                    starts.push(start);
                }
                start += len;
                end = at.checked_add(len);
            });
        }
        starts.push(start);
        let offsets = Offsets::collect(offsets.len(), |i| offsets[i]);
        let starts = Offsets::collect(starts.len(), |i| starts[i]);
        Some(self.dense_nodes(offsets, starts))
    }

    /// Calls `piece` with the place and the length of each dense piece of a node. Recurses as deep as the
    /// node is, which is at most the logarithm of its pieces.
    fn each_piece(&self, id: NodeId, at: i64, piece: &mut dyn FnMut(i64, i64)) {
        match &self.nodes[id as usize] {
            Node::Dense { len } => piece(at, *len),
            Node::Stream {
                count,
                stride,
                child,
            } => {
                if let Some(len) = self.dense_len(*child) {
                    (0..*count).for_each(|i| piece(at + i * stride, len));
                } else {
                    (0..*count).for_each(|i| self.each_piece(*child, at + i * stride, piece));
                }
            }
            Node::Blocks { offsets, child } => {
                (0..offsets.len()).for_each(|i| self.each_piece(*child, at + offsets.get(i), piece))
            }
            Node::Pieces { offsets, starts } => (0..offsets.len())
                .for_each(|i| piece(at + offsets.get(i), starts.get(i + 1) - starts.get(i))),
            Node::Sequence { parts } => parts
                .iter()
                .for_each(|part| self.each_piece(part.child, at + part.offset, piece)),
        }
    }

    /// Different nodes in a row.
    fn sequence(&mut self, list: &[Placed]) -> NodeId {
        let (mut start, mut first_segment) = (0, 0);
        let parts = list
            .iter()
            .map(|&(offset, child)| {
                let part = Part {
                    offset,
                    start,
                    first_segment,
                    child,
                };
                start += self.bounds(child).size;
                first_segment += self.bounds(child).segments;
                part
            })
            .collect();
        self.intern(Node::Sequence { parts }, |arena| arena.span(list))
    }

    /// Dense pieces at irregular offsets. Where nearly all have the same length, longer ones that
    /// are multiples of it are cut again: a loop over equal blocks needs no decisions.
    fn dense_nodes(&mut self, offsets: Offsets, starts: Offsets) -> Vec<Placed> {
        let n = offsets.len();
        let len = |i: usize| starts.get(i + 1) - starts.get(i);
        let total = starts.get(n);
        if (n as i64).checked_mul(len(0)) == Some(total) && (0..n).all(|i| len(i) == len(0)) {
            let child = self.dense(len(0));
            return vec![(0, self.equal_blocks(offsets, child))];
        }
        let stretches = match &starts {
            Offsets::Narrow(starts) => stretches(starts),
            Offsets::Wide(starts) => stretches(starts),
        };
        self.dense_stretches(offsets, starts, stretches)
    }

    /// Dense pieces, some stretches of which are cut into equal blocks.
    fn dense_stretches(
        &mut self,
        offsets: Offsets,
        starts: Offsets,
        stretches: Vec<Stretch>,
    ) -> Vec<Placed> {
        let n = offsets.len();
        let mut nodes = Vec::new();
        let mut uneven = 0;
        for Stretch {
            first,
            end,
            unit,
            units,
        } in stretches
        {
            if uneven < first {
                let base = offsets.get(uneven);
                nodes.push((base, self.pieces(&offsets, &starts, uneven, first)));
            }
            uneven = end;
            let base = offsets.get(first);
            let places = match (&offsets, &starts) {
                (Offsets::Narrow(o), Offsets::Narrow(s)) => {
                    cut(&o[first..end], &s[first..=end], unit, units)
                }
                (Offsets::Narrow(o), Offsets::Wide(s)) => {
                    cut(&o[first..end], &s[first..=end], unit, units)
                }
                (Offsets::Wide(o), Offsets::Narrow(s)) => {
                    cut(&o[first..end], &s[first..=end], unit, units)
                }
                (Offsets::Wide(o), Offsets::Wide(s)) => {
                    cut(&o[first..end], &s[first..=end], unit, units)
                }
            };
            let child = self.dense(unit);
            nodes.push((base, self.equal_blocks(places, child)));
        }
        if uneven < n {
            let base = offsets.get(uneven);
            nodes.push((base, self.pieces(&offsets, &starts, uneven, n)));
        }
        nodes
    }

    /// Pieces of different lengths as a node, from one index up to another.
    fn pieces(&mut self, offsets: &Offsets, starts: &Offsets, first: usize, end: usize) -> NodeId {
        if end - first == 1 {
            return self.dense(starts.get(end) - starts.get(first));
        }
        let (offsets, starts) = if first == 0 && end == offsets.len() {
            (offsets.clone(), starts.clone())
        } else {
            let (base, start) = (offsets.get(first), starts.get(first));
            (
                Offsets::collect(end - first, |i| offsets.get(first + i) - base),
                Offsets::collect(end - first + 1, |i| starts.get(first + i) - start),
            )
        };
        let mut extent = Extent {
            size: starts.get(end - first),
            segments: (end - first) as i64,
            low: 0,
            high: 0,
        };
        match (&offsets, &starts) {
            (Offsets::Narrow(o), Offsets::Narrow(s)) => reach(&mut extent, o, s),
            (Offsets::Narrow(o), Offsets::Wide(s)) => reach(&mut extent, o, s),
            (Offsets::Wide(o), Offsets::Narrow(s)) => reach(&mut extent, o, s),
            (Offsets::Wide(o), Offsets::Wide(s)) => reach(&mut extent, o, s),
        }
        self.intern(Node::Pieces { offsets, starts }, |_| extent)
    }

    fn equal_blocks(&mut self, offsets: Offsets, child: NodeId) -> NodeId {
        if offsets.len() == 1 {
            return child;
        }
        let one = *self.bounds(child);
        let (low, high) = match &offsets {
            Offsets::Narrow(list) => span(list),
            Offsets::Wide(list) => span(list),
        };
        let n = offsets.len() as i64;
        let extent = Extent {
            size: n * one.size,
            segments: n * one.segments,
            low: low + one.low,
            high: high + one.high,
        };
        self.intern(Node::Blocks { offsets, child }, |_| extent)
    }

    /// The runs that [`Arena::runs`] makes of pieces that are not adjacent, or, if `starts` is
    /// empty, of equal children.
    fn runs_of<N: Number, S: Number>(
        &mut self,
        offsets: &[N],
        starts: &[S],
        child: Option<NodeId>,
    ) -> Vec<Run> {
        // Looking a length up costs more than the rest.
        let mut known = [(0, 0); 64];
        let mut runs = Vec::new();
        for (i, &offset) in offsets.iter().enumerate() {
            let child = match child {
                Some(child) => child,
                None => {
                    let len: i64 = starts[i + 1].minus(starts[i]).into();
                    let entry = &mut known[len as usize % 64];
                    if entry.0 != len {
                        *entry = (len, self.dense(len));
                    }
                    entry.1
                }
            };
            let run = Run {
                offset: offset.into(),
                stride: 0,
                count: 1,
                child,
            };
            Arena::extend(&mut runs, run);
        }
        runs
    }

    fn span_from_first(&self, list: &[Placed]) -> Extent {
        let first = list.first().map_or(0, |placed| placed.0);
        let relative = list.iter().map(|&(at, id)| (at - first, id));
        self.span_of(relative)
    }

    fn span(&self, list: &[Placed]) -> Extent {
        self.span_of(list.iter().copied())
    }

    fn span_of(&self, list: impl Iterator<Item = Placed>) -> Extent {
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

    /// The last step: a short layout gets the form that the plain list of its segments has. Pieces
    /// that become adjacent only where two elements meet (the end of one, the start of the next)
    /// have then no trace of the elements left.
    fn settle(&mut self, root: Placed) -> Option<Placed> {
        let (offset, id) = root;
        let simple = match self.nodes[id as usize] {
            Node::Dense { .. } => true,
            Node::Stream { child, .. } => self.dense_len(child).is_some(),
            _ => false,
        };
        if simple || self.bounds(id).segments > SETTLED {
            return Some(root);
        }
        let list = self
            .segments(id)
            .into_iter()
            .map(|(at, len)| (offset + at, self.dense(len)))
            .collect();
        self.list(list)
    }

    /// The dense pieces of a node, adjacent ones joined.
    fn segments(&self, root: NodeId) -> Vec<Dense> {
        let mut pieces: Vec<Dense> = Vec::new();
        // What is left of the walk, the next node last. A segment has few nodes above it: each of
        // them has at least two children.
        let mut todo = vec![(0, root)];
        let mut add = |at: i64, len: i64| match pieces.last_mut() {
            Some((last, before)) if last.checked_add(*before) == Some(at) => *before += len,
            _ => pieces.push((at, len)),
        };
        while let Some((at, id)) = todo.pop() {
            let children: Vec<Placed> = match &self.nodes[id as usize] {
                Node::Dense { len } => {
                    add(at, *len);
                    continue;
                }
                Node::Pieces { offsets, starts } => {
                    for i in 0..offsets.len() {
                        add(at + offsets.get(i), starts.get(i + 1) - starts.get(i));
                    }
                    continue;
                }
                Node::Stream {
                    count,
                    stride,
                    child,
                } => (0..*count).map(|i| (at + i * stride, *child)).collect(),
                Node::Blocks { offsets, child } => (0..offsets.len())
                    .map(|i| (at + offsets.get(i), *child))
                    .collect(),
                Node::Sequence { parts } => parts
                    .iter()
                    .map(|part| (at + part.offset, part.child))
                    .collect(),
            };
            todo.extend(children.into_iter().rev());
        }
        pieces
    }

    /// Adds a node to a list, or its entries if it is a short list itself.
    fn place(&mut self, list: &mut Vec<Placed>, (offset, id): Placed) {
        let to = |relative: i64| offset.wrapping_add(relative);
        match &self.nodes[id as usize] {
            Node::Blocks { offsets, child } if offsets.len() <= SPLICE => {
                list.extend((0..offsets.len()).map(|i| (to(offsets.get(i)), *child)));
            }
            Node::Pieces { offsets, starts } if offsets.len() <= SPLICE => {
                let (offsets, starts) = (offsets.clone(), starts.clone());
                for i in 0..offsets.len() {
                    let piece = self.dense(starts.get(i + 1) - starts.get(i));
                    list.push((to(offsets.get(i)), piece));
                }
            }
            Node::Sequence { parts } if parts.len() <= SPLICE => {
                list.extend(parts.iter().map(|part| (to(part.offset), part.child)));
            }
            _ => list.push((offset, id)),
        }
    }

    /// Keeps what the root needs, in the order of a walk that does not depend on how it was made.
    fn finish(self, root: Option<Placed>) -> Form {
        let Some((offset, root)) = root else {
            return Form {
                nodes: Vec::new(),
                extents: Vec::new(),
                offset: 0,
                steps: Steps::default(),
                overlap: Overlap::default(),
                joined: OnceLock::new(),
            };
        };
        let mut number: Vec<NodeId> = vec![NodeId::MAX; self.nodes.len()];
        let mut order: Vec<NodeId> = Vec::new();
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
            stack.push((id, true));
            match &self.nodes[id as usize] {
                Node::Dense { .. } | Node::Pieces { .. } => {}
                Node::Stream { child, .. } | Node::Blocks { child, .. } => {
                    stack.push((*child, false));
                }
                Node::Sequence { parts } => {
                    stack.extend(parts.iter().rev().map(|part| (part.child, false)));
                }
            }
        }
        let renumbered = |id: NodeId| number[id as usize];
        let nodes = order
            .iter()
            .map(|&id| match &self.nodes[id as usize] {
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
                    parts: parts
                        .iter()
                        .map(|part| Part {
                            child: renumbered(part.child),
                            ..*part
                        })
                        .collect(),
                },
                other => other.clone(),
            })
            .collect();
        let extents = order.iter().map(|&id| *self.bounds(id)).collect();
        Form::assembled(nodes, extents, offset)
    }
}

/// How many pieces continue what the two before them began: the same length at the same distance.
/// `starts` is empty if all lengths are the same.
fn turns<N: Number, S: Number>(offsets: &[N], starts: &[S]) -> usize {
    let Some(n) = offsets.len().checked_sub(2) else {
        return 0;
    };
    let (a, b, c) = (&offsets[..n], &offsets[1..n + 1], &offsets[2..n + 2]);
    let even = |i: usize| c[i].minus(b[i]) == b[i].minus(a[i]);
    if starts.is_empty() {
        return (0..n).map(|i| u32::from(even(i))).sum::<u32>() as usize;
    }
    let (s, t) = (&starts[..n], &starts[1..n + 1]);
    let (u, v) = (&starts[2..n + 2], &starts[3..n + 3]);
    let equal =
        |i: usize| (v[i].minus(u[i]) == u[i].minus(t[i])) & (u[i].minus(t[i]) == t[i].minus(s[i]));
    let both = (0..n).map(|i| u32::from(even(i) & equal(i)));
    both.sum::<u32>() as usize
}

/// How many pieces are in runs of at least three that [`Arena::extend`] would find.
fn in_runs<N: Number, S: Number>(offsets: &[N], starts: &[S]) -> usize {
    let len = |i: usize| match starts {
        [] => S::default(),
        _ => starts[i + 1].minus(starts[i]),
    };
    let (mut all, mut count, mut stride) = (0, 1, N::default());
    for i in 1..offsets.len() {
        let step = offsets[i].minus(offsets[i - 1]);
        if len(i) == len(i - 1) && (count == 1 || step == stride) {
            stride = step;
            count += 1;
            continue;
        }
        if count >= 3 {
            all += count;
        }
        count = 1;
    }
    if count >= 3 { all + count } else { all }
}

/// Dense pieces in a row whose lengths are small multiples of one unit, usually the unit itself.
struct Stretch {
    first: usize,
    end: usize,
    unit: i64,
    units: i64,
}

impl Stretch {
    /// Longest unit.
    const UNIT: i64 = 64;
    /// Most units in a piece.
    const MULTIPLE: i64 = 16;
    /// Fewest pieces.
    const PIECES: usize = 32;
    /// So many pieces of the same other length begin a stretch of their own.
    const ENOUGH: usize = 16;
}

/// The stretches that are worth cutting into blocks of their unit: long ones with a small unit, and
/// at most two and a half of it in a piece on average.
fn stretches<S: Number>(starts: &[S]) -> Vec<Stretch> {
    if starts.len() > long::MANY {
        return long::stretches(starts);
    }
    const UNIT: i64 = Stretch::UNIT;
    const MULTIPLE: i64 = Stretch::MULTIPLE;
    const PIECES: usize = Stretch::PIECES;
    const ENOUGH: usize = Stretch::ENOUGH;
    // Division by a unit as a product, which is exact for up to 16 units.
    const SHIFT: u32 = 32;
    const RECIPROCALS: [i64; UNIT as usize + 1] = {
        let mut reciprocals = [0; UNIT as usize + 1];
        let mut unit = 1;
        while unit < reciprocals.len() {
            reciprocals[unit] = (1 << SHIFT) / unit as i64 + 1;
            unit += 1;
        }
        reciprocals
    };
    let mut stretches = Vec::new();
    let mut close = |end: usize, (first, unit, units): (usize, i64, i64)| {
        let pieces = end - first;
        if pieces >= PIECES && 2 * units <= 5 * pieces as i64 {
            stretches.push(Stretch {
                first,
                end,
                unit,
                units,
            });
        }
    };
    // The stretch so far. A unit of 0 stands for all that are too long: no piece of theirs is cut,
    // so their stretches may end with each piece.
    let (mut first, mut unit, mut units) = (0, 0, 0);
    let mut reciprocal = 0;
    let (mut same, mut other) = (0, 0);
    for (i, pair) in starts.windows(2).enumerate() {
        let len = pair[1].into() - pair[0].into();
        same = if len == other { same + 1 } else { 1 };
        other = len;
        if len <= MULTIPLE * unit {
            let multiple = (len * reciprocal) >> SHIFT;
            if multiple * unit == len {
                units += multiple;
                if same == ENOUGH && len != unit {
                    let enough = i + 1 - ENOUGH;
                    close(enough, (first, unit, units - ENOUGH as i64 * multiple));
                    unit = if len <= UNIT { len } else { 0 };
                    (first, units) = (enough, ENOUGH as i64);
                    reciprocal = RECIPROCALS[unit as usize];
                }
                continue;
            }
        }
        if i - first >= PIECES {
            close(i, (first, unit, units));
        }
        unit = if len <= UNIT { len } else { 0 };
        (first, units) = (i, 1);
        reciprocal = RECIPROCALS[unit as usize];
    }
    close(starts.len() - 1, (first, unit, units));
    stretches
}

/// The offsets of all units of the pieces of a stretch, relative to the first one.
fn cut<O: Copy + Into<i64>, S: Copy + Into<i64>>(
    offsets: &[O],
    starts: &[S],
    unit: i64,
    units: i64,
) -> Offsets {
    fn all<O: Copy + Into<i64>, S: Copy + Into<i64>, T>(
        offsets: &[O],
        starts: &[S],
        unit: i64,
        units: i64,
        number: impl Fn(i64) -> T,
    ) -> Arc<Vec<T>> {
        let base = offsets[0].into();
        let mut places = Vec::with_capacity(units as usize);
        for (&offset, pair) in offsets.iter().zip(starts.windows(2)) {
            let mut at = offset.into() - base;
            let end = at + (pair[1].into() - pair[0].into());
            while at < end {
                places.push(number(at));
                at += unit;
            }
        }
        Arc::new(places)
    }
    let base = offsets[0].into();
    let is_narrow = offsets
        .iter()
        .zip(starts.windows(2))
        .all(|(&offset, pair)| {
            let at = offset.into() - base;
            let last = at + (pair[1].into() - pair[0].into()) - unit;
            i32::try_from(at).is_ok() & i32::try_from(last).is_ok()
        });
    if is_narrow {
        Offsets::Narrow(all(offsets, starts, unit, units, |at| at as i32))
    } else {
        Offsets::Wide(all(offsets, starts, unit, units, |at| at))
    }
}

/// The lowest and the highest offset.
fn span<O: Copy + Ord + Into<i64>>(offsets: &[O]) -> (i64, i64) {
    let low = offsets.iter().copied().min().map_or(0, Into::into);
    (low, offsets.iter().copied().max().map_or(0, Into::into))
}

/// Finds the bounds of dense pieces.
fn reach<O: Copy + Into<i64>, S: Copy + Into<i64>>(
    extent: &mut Extent,
    offsets: &[O],
    starts: &[S],
) {
    let (mut low, mut high) = (0i64, 0i64);
    for (&offset, pair) in offsets.iter().zip(starts.windows(2)) {
        let at: i64 = offset.into();
        low = low.min(at);
        high = high.max(at + (pair[1].into() - pair[0].into()));
    }
    (extent.low, extent.high) = (low, high);
}

/// The smallest proper period of a list, if it consists of whole repetitions: entries `p` apart
/// are equal, and so are the distances to their predecessors.
fn period(list: &[Placed]) -> Option<usize> {
    let letter = |i: usize| (list[i].1, list[i + 1].0.wrapping_sub(list[i].0));
    period_of(list.len(), letter, |i, k| list[i].1 == list[k].1)
}

/// As [`period`], for a list of `n` entries that is given by the letters between neighbours (an
/// entry, and the distance to the next) and by whether two entries are equal.
fn period_of<L: PartialEq>(
    n: usize,
    letter: impl Fn(usize) -> L,
    equal: impl Fn(usize, usize) -> bool,
) -> Option<usize> {
    let letters = n - 1;
    // Only divisors of `n` count, and few of them survive the first comparisons. Lists that are
    // almost periodic are left to the algorithm that never looks twice.
    let mut patience = 4 * n;
    let mut divisors: Vec<usize> = (1..)
        .take_while(|d| d * d <= n)
        .filter(|d| n % d == 0)
        .flat_map(|d| [d, n / d])
        .filter(|&d| d <= n / 2)
        .collect();
    divisors.sort_unstable();
    for period in divisors {
        let same = (period..letters)
            .take_while(|&i| letter(i) == letter(i - period))
            .count();
        if same == letters - period && equal(n - 1, period - 1) {
            return Some(period);
        }
        patience = patience.saturating_sub(same);
        if patience == 0 {
            return by_borders(n, letter, equal);
        }
    }
    None
}

/// As [`period_of`], with Knuth, Morris and Pratt's borders.
fn by_borders<L: PartialEq>(
    n: usize,
    letter: impl Fn(usize) -> L,
    equal: impl Fn(usize, usize) -> bool,
) -> Option<usize> {
    let letters = n - 1;
    let mut border = vec![0usize; letters];
    let mut k = 0;
    for i in 1..letters {
        while k > 0 && letter(i) != letter(k) {
            k = border[k - 1];
        }
        if letter(i) == letter(k) {
            k += 1;
        }
        border[i] = k;
    }
    let mut k = border.last().copied().unwrap_or(0);
    loop {
        let period = letters - k;
        if period > n / 2 {
            return None;
        }
        if n % period == 0 && equal(n - 1, period - 1) {
            return Some(period);
        }
        if k == 0 {
            return None;
        }
        k = border[k - 1];
    }
}

/// A step of the translation. A stack of them replaces recursion, so that depth costs heap.
enum Task<'a> {
    /// Adds a type's data to the innermost list.
    Emit(&'a Datatype, i64),
    /// Leaves a type's form on the stack of values.
    Value(&'a Datatype),
    /// Turns the innermost list into a value, and remembers it for this type.
    Close(&'a Datatype),
    /// Moves the last value by what was peeled off its type.
    Shift(i64),
    /// Places a value `count` times per dimension, the first dimension innermost.
    Dimensions(i64, Vec<(i64, i64)>),
    /// Places a value at the blocks of an indexed type.
    Indexed(&'a Datatype, i64),
    /// Emits the members of a struct from the given one on.
    Members(&'a Datatype, i64, usize),
}

/// Strips what does not matter for the bytes: duplicates, bounds, single-element wrappers. Returns
/// the type and where it is.
fn peel(datatype: &Datatype) -> (&Datatype, i64) {
    let mut at = datatype;
    let mut offset = 0i64;
    loop {
        at = at.essence();
        let inner = match at.contents() {
            Contents::Contiguous { count: 1, child }
            | Contents::Vector {
                count: 1,
                blocklength: 1,
                child,
                ..
            }
            | Contents::Hvector {
                count: 1,
                blocklength: 1,
                child,
                ..
            } => child,
            Contents::Indexed {
                blocklengths,
                displacements,
                child,
            } if **blocklengths == [1] => {
                offset = offset.wrapping_add(displacements[0].wrapping_mul(child.extent()));
                child
            }
            Contents::Hindexed {
                blocklengths,
                displacements,
                child,
            } if **blocklengths == [1] => {
                offset = offset.wrapping_add(displacements[0]);
                child
            }
            Contents::Struct {
                blocklengths,
                displacements,
                children,
            } if **blocklengths == [1] => {
                offset = offset.wrapping_add(displacements[0]);
                &children[0]
            }
            Contents::IndexedBlock {
                blocklength: 1,
                displacements,
                child,
            } if displacements.len() == 1 => {
                offset = offset.wrapping_add(displacements[0].wrapping_mul(child.extent()));
                child
            }
            Contents::HindexedBlock {
                blocklength: 1,
                displacements,
                child,
            } if displacements.len() == 1 => {
                offset = offset.wrapping_add(displacements[0]);
                child
            }
            _ => return (at, offset),
        };
        at = inner;
    }
}

/// How often each type is used within `root`; those used once may be written in place.
fn uses(root: &Datatype) -> HashMap<u64, u32> {
    let mut uses = HashMap::new();
    let mut stack = vec![root];
    while let Some(datatype) = stack.pop() {
        for child in datatype.contents().children() {
            let (child, _) = peel(child);
            if matches!(child.contents(), Contents::Named(_)) {
                continue;
            }
            let count: &mut u32 = uses.entry(child.id()).or_default();
            *count += 1;
            if *count == 1 {
                stack.push(child);
            }
        }
    }
    uses
}

fn translate(arena: &mut Arena, root: &Datatype) -> Option<Placed> {
    let (root, at) = peel(root);
    if root.size() == 0 {
        return None;
    }
    // Only asked for members that are written in place or not.
    let uses = OnceCell::new();
    let uses = || uses.get_or_init(|| self::uses(root));
    let mut memo: HashMap<u64, Placed> = HashMap::new();
    let mut lists: Vec<Vec<Placed>> = vec![Vec::new()];
    let mut values: Vec<Placed> = Vec::new();
    let mut tasks = vec![Task::Emit(root, at)];
    while let Some(task) = tasks.pop() {
        match task {
            Task::Value(datatype) => {
                let (inner, offset) = peel(datatype);
                if let Contents::Named(_) = inner.contents() {
                    if inner.size() == inner.true_extent() as u64 {
                        values.push((offset, arena.dense(inner.size() as i64)));
                        continue;
                    }
                }
                if let Some(&(at, id)) = memo.get(&inner.id()) {
                    values.push((offset.wrapping_add(at), id));
                    continue;
                }
                lists.push(Vec::new());
                tasks.push(Task::Shift(offset));
                tasks.push(Task::Close(inner));
                tasks.push(Task::Emit(inner, 0));
            }
            Task::Close(datatype) => {
                let list = lists.pop().unwrap_or_default();
                if let Some(value) = arena.list(list) {
                    memo.insert(datatype.id(), value);
                    values.push(value);
                }
            }
            Task::Shift(offset) => {
                if let Some(value) = values.last_mut() {
                    value.0 = value.0.wrapping_add(offset);
                }
            }
            Task::Dimensions(offset, dimensions) => {
                if let (Some((at, id)), Some(list)) = (values.pop(), lists.last_mut()) {
                    let id = dimensions
                        .iter()
                        .fold(id, |id, &(count, stride)| arena.stream(count, stride, id));
                    arena.place(list, (offset.wrapping_add(at), id));
                }
            }
            Task::Indexed(datatype, offset) => {
                if let (Some(value), Some(list)) = (values.pop(), lists.last_mut()) {
                    let placed = if is_alone(list, &tasks) {
                        large(arena, datatype, offset, value)
                    } else {
                        None
                    };
                    match placed {
                        Some(placed) => list.push(placed),
                        None => blocks(arena, list, datatype, offset, value),
                    }
                }
            }
            Task::Emit(datatype, offset) => {
                let (datatype, at) = peel(datatype);
                let offset = offset.wrapping_add(at);
                if datatype.size() == 0 {
                    continue;
                }
                emit(arena, &mut tasks, &mut lists, datatype, offset);
            }
            Task::Members(datatype, offset, mut next) => {
                let Contents::Struct {
                    blocklengths,
                    displacements,
                    children,
                } = datatype.contents()
                else {
                    continue;
                };
                while next < children.len() {
                    let (length, child) = (blocklengths[next], &children[next]);
                    let at = offset.wrapping_add(displacements[next]);
                    next += 1;
                    if length == 0 || child.size() == 0 {
                        continue;
                    }
                    let (inner, inner_at) = peel(child);
                    if let Contents::Named(_) = inner.contents() {
                        if inner.size() == inner.true_extent() as u64 {
                            let id = arena.dense(inner.size() as i64);
                            let id = arena.stream(length as i64, child.extent(), id);
                            if let Some(list) = lists.last_mut() {
                                list.push((at.wrapping_add(inner_at), id));
                            }
                            continue;
                        }
                    }
                    tasks.push(Task::Members(datatype, offset, next));
                    if length == 1 && uses().get(&inner.id()).copied().unwrap_or(0) <= 1 {
                        tasks.push(Task::Emit(inner, at.wrapping_add(inner_at)));
                    } else {
                        tasks.push(Task::Dimensions(at, vec![(length as i64, child.extent())]));
                        tasks.push(Task::Value(child));
                    }
                    break;
                }
            }
        }
    }
    arena.list(lists.pop().unwrap_or_default())
}

/// Whether what is added to a list next is all of it.
fn is_alone(list: &[Placed], tasks: &[Task]) -> bool {
    list.is_empty() && matches!(tasks.last(), None | Some(Task::Close(_)))
}

fn emit<'a>(
    arena: &mut Arena,
    tasks: &mut Vec<Task<'a>>,
    lists: &mut [Vec<Placed>],
    datatype: &'a Datatype,
    offset: i64,
) {
    match datatype.contents() {
        Contents::Named(named) => {
            if let Some(list) = lists.last_mut() {
                for element in named.elements() {
                    let id = arena.dense(i64::from(element.size));
                    list.push((offset.wrapping_add(i64::from(element.offset)), id));
                }
            }
        }
        Contents::Contiguous { count, child } => {
            tasks.push(Task::Dimensions(
                offset,
                vec![(*count as i64, child.extent())],
            ));
            tasks.push(Task::Value(child));
        }
        Contents::Vector {
            count,
            blocklength,
            stride,
            child,
        } => {
            // A stride that matters was checked when the type was made.
            let stride = stride.wrapping_mul(child.extent());
            tasks.push(Task::Dimensions(
                offset,
                vec![
                    (*blocklength as i64, child.extent()),
                    (*count as i64, stride),
                ],
            ));
            tasks.push(Task::Value(child));
        }
        Contents::Hvector {
            count,
            blocklength,
            stride,
            child,
        } => {
            tasks.push(Task::Dimensions(
                offset,
                vec![
                    (*blocklength as i64, child.extent()),
                    (*count as i64, *stride),
                ],
            ));
            tasks.push(Task::Value(child));
        }
        Contents::Subarray {
            sizes,
            subsizes,
            starts,
            order,
            child,
        } => {
            let mut at = offset;
            let mut stride = child.extent();
            let mut dimensions = Vec::with_capacity(sizes.len());
            for d in fastest_first(sizes.len(), *order) {
                at = at.wrapping_add((starts[d] as i64).wrapping_mul(stride));
                dimensions.push((subsizes[d] as i64, stride));
                stride = stride.wrapping_mul(sizes[d] as i64);
            }
            tasks.push(Task::Dimensions(at, dimensions));
            tasks.push(Task::Value(child));
        }
        Contents::Indexed { child, .. }
        | Contents::Hindexed { child, .. }
        | Contents::IndexedBlock { child, .. }
        | Contents::HindexedBlock { child, .. } => {
            tasks.push(Task::Indexed(datatype, offset));
            tasks.push(Task::Value(child));
        }
        Contents::Struct { .. } => {
            let list = lists.last_mut().filter(|list| is_alone(list, tasks));
            if let Some(list) = list {
                if let Some(placed) = members::written_out(arena, datatype, offset) {
                    return list.push(placed);
                }
            }
            tasks.push(Task::Members(datatype, offset, 0));
        }
        // `peel` took these away.
        Contents::Dup { child } | Contents::Resized { child, .. } => {
            tasks.push(Task::Emit(child, offset));
        }
        Contents::Darray { .. } => tasks.push(Task::Emit(datatype.essence(), offset)),
    }
}

/// The blocks of a large indexed type as arrays, if they are not much more than the type itself.
fn large(arena: &mut Arena, datatype: &Datatype, offset: i64, (at, id): Placed) -> Option<Placed> {
    const ENOUGH: usize = 256;
    /// Most pieces of a child.
    const PIECES: i64 = 8;
    let (lengths, displacements, child, in_bytes) = match datatype.contents() {
        Contents::Indexed {
            blocklengths,
            displacements,
            child,
        } => (Lengths::Each(blocklengths), displacements, child, false),
        Contents::Hindexed {
            blocklengths,
            displacements,
            child,
        } => (Lengths::Each(blocklengths), displacements, child, true),
        Contents::IndexedBlock {
            blocklength,
            displacements,
            child,
        } => (Lengths::All(*blocklength), displacements, child, false),
        Contents::HindexedBlock {
            blocklength,
            displacements,
            child,
        } => (Lengths::All(*blocklength), displacements, child, true),
        _ => return None,
    };
    if displacements.len() < ENOUGH || arena.bounds(id).segments > PIECES {
        return None;
    }
    // Equal lengths in a list are the common case, and half the work.
    let lengths = match lengths {
        Lengths::Each(all) => match all.first() {
            Some(&first) if first > 0 && all.iter().all(|&length| length == first) => {
                Lengths::All(first)
            }
            _ => lengths,
        },
        Lengths::All(_) => lengths,
    };
    let pieces = arena.segments(id);
    let blocks = Blocks {
        lengths,
        displacements,
        unit: if in_bytes { 1 } else { child.extent() },
        base: offset.wrapping_add(at),
        extent: child.extent(),
        child: &pieces,
    };
    let narrow = |value: i64| i32::try_from(value).is_ok();
    let described = Some(&blocks);
    Some(if !narrow(datatype.size() as i64) {
        let (origin, list) = blocks.list::<i64, i64>()?;
        (origin, arena.long(list, described))
    } else if !narrow(datatype.true_extent()) {
        let (origin, list) = blocks.list::<i64, i32>()?;
        (origin, arena.long(list, described))
    } else {
        let (origin, list) = blocks.list::<i32, i32>()?;
        (origin, arena.long(list, described))
    })
}

/// Places the blocks of an indexed type.
fn blocks(
    arena: &mut Arena,
    list: &mut Vec<Placed>,
    datatype: &Datatype,
    offset: i64,
    (at, id): Placed,
) {
    let mut known = (u64::MAX, id);
    let mut block = |list: &mut Vec<Placed>, length: u64, displacement: i64, child: &Datatype| {
        if length == 0 {
            return;
        }
        if known.0 != length {
            known = (length, arena.stream(length as i64, child.extent(), id));
        }
        let place = offset.wrapping_add(displacement).wrapping_add(at);
        arena.place(list, (place, known.1));
    };
    match datatype.contents() {
        Contents::Indexed {
            blocklengths,
            displacements,
            child,
        } => {
            list.reserve(displacements.len());
            for (&length, &displacement) in blocklengths.iter().zip(displacements.iter()) {
                let bytes = displacement.wrapping_mul(child.extent());
                block(list, length, bytes, child);
            }
        }
        Contents::Hindexed {
            blocklengths,
            displacements,
            child,
        } => {
            list.reserve(displacements.len());
            for (&length, &displacement) in blocklengths.iter().zip(displacements.iter()) {
                block(list, length, displacement, child);
            }
        }
        Contents::IndexedBlock {
            blocklength,
            displacements,
            child,
        } => {
            list.reserve(displacements.len());
            for &displacement in displacements.iter() {
                let bytes = displacement.wrapping_mul(child.extent());
                block(list, *blocklength, bytes, child);
            }
        }
        Contents::HindexedBlock {
            blocklength,
            displacements,
            child,
        } => {
            list.reserve(displacements.len());
            for &displacement in displacements.iter() {
                block(list, *blocklength, displacement, child);
            }
        }
        _ => {}
    }
}
