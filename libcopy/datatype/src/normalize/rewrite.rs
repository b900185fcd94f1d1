// SPDX-License-Identifier: MIT OR Apache-2.0

//! How lists of nodes under construction are rewritten.

use std::sync::Arc;

use super::super::form::{Extent, Node, NodeId, Part};
use super::super::offsets::Offsets;
use super::arena::{Arena, Placed};
use super::lists::{MANY, Number, Stretch, cut, period_of, reach, span, stretches};
use crate::room;

/// Lists up to this length are spliced into the list that uses them, also if used repeatedly.
const SPLICE: usize = 64;

/// Layouts with at most this many segments are made anew from the list of these.
const SETTLED: i64 = 128;

/// `count` equal children in a list, `stride` apart.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) offset: i64,
    pub(super) stride: i64,
    pub(super) count: i64,
    pub(super) child: NodeId,
}

impl Run {
    pub(super) fn last(&self) -> i64 {
        self.offset + (self.count - 1) * self.stride
    }
}

impl Arena {
    /// A list of placed nodes as one node, placed.
    pub(super) fn list(&mut self, list: Vec<Placed>) -> room::Result<Option<Placed>> {
        let first = match list[..] {
            [] => return Ok(None),
            [one] => return Ok(Some(one)),
            [(first, _), ..] => first,
        };
        if list.len() >= MANY && list.iter().all(|&(_, id)| self.dense_len(id).is_some()) {
            return Ok(Some((first, self.of_pieces(&list)?)));
        }
        let runs = self.runs(&list, true)?;
        Ok(Some((first, self.of_runs(runs, first)?)))
    }

    /// A list of dense pieces as one node.
    pub(super) fn of_pieces(&mut self, list: &[Placed]) -> room::Result<NodeId> {
        let all = self.span_from_first(list);
        let narrow = |value: i64| i32::try_from(value).is_ok();
        if !narrow(all.size) {
            let list = self.as_pieces::<i64, i64>(list)?;
            self.long(list, None)
        } else if !narrow(all.high.saturating_sub(all.low)) {
            let list = self.as_pieces::<i64, i32>(list)?;
            self.long(list, None)
        } else {
            let list = self.as_pieces::<i32, i32>(list)?;
            self.long(list, None)
        }
    }

    /// Groups neighbours: adjacent dense pieces become one, equal children at equal distances a
    /// run. `open` also takes streams in the list apart where that lets them grow or merge.
    pub(super) fn runs(&mut self, list: &[Placed], open: bool) -> room::Result<Vec<Run>> {
        let mut runs: Vec<Run> = room::list(list.len())?;
        for &(offset, id) in list {
            let run = match self.nodes[id as usize] {
                Node::Stream {
                    count,
                    stride,
                    child,
                } if open => Run {
                    offset,
                    stride,
                    count,
                    child,
                },
                _ => Run {
                    offset,
                    stride: 0,
                    count: 1,
                    child: id,
                },
            };
            self.append(&mut runs, run)?;
        }
        Ok(runs)
    }

    pub(super) fn append(&mut self, runs: &mut Vec<Run>, mut run: Run) -> room::Result<()> {
        loop {
            let Some(last) = runs.last_mut() else {
                return room::push(runs, run);
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
                    let child = self.dense(before + len)?;
                    let merged = Run {
                        offset: at,
                        stride: 0,
                        count: 1,
                        child,
                    };
                    // The piece before was not adjacent to what came before it.
                    Arena::extend(runs, merged)?;
                    run.offset = run.offset.wrapping_add(run.stride);
                    run.count -= 1;
                    match run.count {
                        0 => return Ok(()),
                        1 => run.stride = 0,
                        _ => {}
                    }
                    continue;
                }
            }
            if run.count == 1 || last.child != run.child {
                return Arena::extend(runs, run);
            }
            // Element by element, until the run stands for itself: this is what the same list
            // without streams would lead to.
            if last.count >= 2
                && last.stride == run.stride
                && last.last().checked_add(last.stride) == Some(run.offset)
            {
                last.count += run.count;
                return Ok(());
            }
            let next = last.last().checked_add(if last.count > 1 {
                last.stride
            } else {
                run.offset.wrapping_sub(last.offset)
            });
            if last.count == 1 && run.offset.checked_sub(last.offset) != Some(run.stride) {
                // The last one and our first pair up, which leaves the rest of ours.
            } else if next != Some(run.offset) {
                return room::push(runs, run);
            }
            let single = Run {
                stride: 0,
                count: 1,
                ..run
            };
            Arena::extend(runs, single)?;
            run.offset = run.offset.wrapping_add(run.stride);
            run.count -= 1;
            if run.count == 1 {
                run.stride = 0;
            }
        }
    }

    /// Adds a run, joining it with the one before if it is a single child that continues it.
    pub(super) fn extend(runs: &mut Vec<Run>, run: Run) -> room::Result<()> {
        if let Some(last) = runs.last_mut() {
            if run.count == 1 && last.child == run.child {
                if last.count == 1 {
                    if let Some(stride) = run.offset.checked_sub(last.offset) {
                        last.stride = stride;
                        last.count = 2;
                        return Ok(());
                    }
                } else if last.last().checked_add(last.stride) == Some(run.offset) {
                    last.count += 1;
                    return Ok(());
                }
            }
        }
        room::push(runs, run)
    }

    /// The node that a list of runs becomes; its first element is at `origin`.
    pub(super) fn of_runs(&mut self, mut runs: Vec<Run>, mut origin: i64) -> room::Result<NodeId> {
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
                let nodes = runs.iter().map(|run| {
                    let node = self.stream(run.count, run.stride, run.child)?;
                    Ok((run.offset - origin, node))
                });
                room::collect(nodes, runs.len())?
            } else {
                let mut flat = room::list(u64::try_from(all).unwrap_or(u64::MAX))?;
                for run in &runs {
                    let at = |i: i64| run.offset + i * run.stride - origin;
                    flat.extend((0..run.count).map(|i| (at(i), run.child)));
                }
                flat
            };
            if let Some(period) = period(&flat)? {
                let times = (flat.len() / period) as i64;
                let stride = flat[period].0;
                let child = if period == 1 {
                    flat[0].1
                } else {
                    let runs = self.runs(&flat[..period], false)?;
                    self.of_runs(runs, 0)?
                };
                return self.stream(times, stride, child);
            }
            if !structured {
                return self.irregular(&flat);
            }
            // Runs of runs.
            let next = self.runs(&flat, false)?;
            if next.len() == flat.len() || next.iter().all(|run| run.count < 3) {
                return self.irregular(&flat);
            }
            runs = next;
            origin = 0;
        }
    }

    /// A list without any regularity, its first entry at offset 0.
    pub(super) fn irregular(&mut self, list: &[Placed]) -> room::Result<NodeId> {
        let (_, child) = list[0];
        if list.iter().all(|&(_, id)| id == child) {
            let offsets = Offsets::collect(list.len(), |i| list[i].0)?;
            return self.equal_blocks(offsets, child);
        }
        // Neighbours that are dense become one node, or few.
        let mut grouped: Vec<Placed> = Vec::new();
        let mut rest = list;
        while let Some(&(origin, id)) = rest.first() {
            let is_dense = |&(_, id): &Placed| self.dense_len(id).is_some();
            let stretch = rest.iter().take_while(|placed| is_dense(placed)).count();
            if stretch < 2 {
                room::push(&mut grouped, (origin, id))?;
                rest = &rest[1..];
                continue;
            }
            let mut start = 0;
            let mut starts = room::list(stretch + 1)?;
            starts.push(0);
            for &(_, id) in &rest[..stretch] {
                start += self.bounds(id).size;
                starts.push(start);
            }
            let offsets = Offsets::collect(stretch, |i| rest[i].0 - origin)?;
            let starts = Offsets::collect(starts.len(), |i| starts[i])?;
            let nodes = self.dense_nodes(offsets, starts)?;
            let placed = nodes.iter().map(|&(offset, id)| (origin + offset, id));
            room::extend(&mut grouped, placed)?;
            rest = &rest[stretch..];
        }
        if let Some(pieces) = self.flattened(&grouped)? {
            grouped = pieces;
        }
        if let [(_, id)] = grouped[..] {
            return Ok(id);
        }
        self.sequence(&grouped)
    }

    /// Many tiny nests as a list of their pieces, or a few of them: choosing a kernel for a nest
    /// takes as long as moving a dozen pieces of a list. The first entry is at offset 0.
    pub(super) fn flattened(&mut self, list: &[Placed]) -> room::Result<Option<Vec<Placed>>> {
        /// Fewest nests.
        const NESTS: usize = 64;
        /// Most pieces of a nest, and most bytes of a piece, on average.
        const PIECES: i64 = 16;
        const BYTES: i64 = 128;
        if list.len() < NESTS {
            return Ok(None);
        }
        let all = self.span(list);
        if all.segments > PIECES * list.len() as i64 || all.size > BYTES * all.segments {
            return Ok(None);
        }
        // Of all pieces: none of the two lists grows.
        let mut offsets = room::list(all.segments)?;
        let mut starts = room::list(all.segments + 1)?;
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
        let offsets = Offsets::collect(offsets.len(), |i| offsets[i])?;
        let starts = Offsets::collect(starts.len(), |i| starts[i])?;
        Ok(Some(self.dense_nodes(offsets, starts)?))
    }

    /// Calls `piece` with the place and the length of each dense piece of a node. Recurses as deep
    /// as the node is, which is at most the logarithm of its pieces.
    pub(super) fn each_piece(&self, id: NodeId, at: i64, piece: &mut dyn FnMut(i64, i64)) {
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
    pub(super) fn sequence(&mut self, list: &[Placed]) -> room::Result<NodeId> {
        let (mut start, mut first_segment) = (0, 0);
        let mut parts = room::list(list.len())?;
        for &(offset, child) in list {
            parts.push(Part {
                offset,
                start,
                first_segment,
                child,
            });
            start += self.bounds(child).size;
            first_segment += self.bounds(child).segments;
        }
        let parts = Arc::new(parts);
        self.intern(Node::Sequence { parts }, |arena| arena.span(list))
    }

    /// Dense pieces at irregular offsets. Where nearly all have the same length, longer ones that
    /// are multiples of it are cut again: a loop over equal blocks needs no decisions.
    pub(super) fn dense_nodes(
        &mut self,
        offsets: Offsets,
        starts: Offsets,
    ) -> room::Result<Vec<Placed>> {
        let n = offsets.len();
        let len = |i: usize| starts.get(i + 1) - starts.get(i);
        let total = starts.get(n);
        if (n as i64).checked_mul(len(0)) == Some(total) && (0..n).all(|i| len(i) == len(0)) {
            let child = self.dense(len(0))?;
            return Ok(vec![(0, self.equal_blocks(offsets, child)?)]);
        }
        let stretches = match &starts {
            Offsets::Narrow(starts) => stretches(starts)?,
            Offsets::Wide(starts) => stretches(starts)?,
        };
        self.dense_stretches(offsets, starts, stretches)
    }

    /// Dense pieces, some stretches of which are cut into equal blocks.
    pub(super) fn dense_stretches(
        &mut self,
        offsets: Offsets,
        starts: Offsets,
        stretches: Vec<Stretch>,
    ) -> room::Result<Vec<Placed>> {
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
                let pieces = self.pieces(&offsets, &starts, uneven, first)?;
                room::push(&mut nodes, (base, pieces))?;
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
            }?;
            let child = self.dense(unit)?;
            let blocks = self.equal_blocks(places, child)?;
            room::push(&mut nodes, (base, blocks))?;
        }
        if uneven < n {
            let base = offsets.get(uneven);
            let pieces = self.pieces(&offsets, &starts, uneven, n)?;
            room::push(&mut nodes, (base, pieces))?;
        }
        Ok(nodes)
    }

    /// Pieces of different lengths as a node, from one index up to another.
    pub(super) fn pieces(
        &mut self,
        offsets: &Offsets,
        starts: &Offsets,
        first: usize,
        end: usize,
    ) -> room::Result<NodeId> {
        if end - first == 1 {
            return self.dense(starts.get(end) - starts.get(first));
        }
        let (offsets, starts) = if first == 0 && end == offsets.len() {
            (offsets.clone(), starts.clone())
        } else {
            let (base, start) = (offsets.get(first), starts.get(first));
            (
                Offsets::collect(end - first, |i| offsets.get(first + i) - base)?,
                Offsets::collect(end - first + 1, |i| starts.get(first + i) - start)?,
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

    pub(super) fn equal_blocks(&mut self, offsets: Offsets, child: NodeId) -> room::Result<NodeId> {
        if offsets.len() == 1 {
            return Ok(child);
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
    pub(super) fn runs_of<N: Number, S: Number>(
        &mut self,
        offsets: &[N],
        starts: &[S],
        child: Option<NodeId>,
    ) -> room::Result<Vec<Run>> {
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
                        *entry = (len, self.dense(len)?);
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
            Arena::extend(&mut runs, run)?;
        }
        Ok(runs)
    }

    /// The last step: a short layout gets the form that the plain list of its segments has. Pieces
    /// that become adjacent only where two elements meet (the end of one, the start of the next)
    /// have then no trace of the elements left.
    pub(super) fn settle(&mut self, root: Placed) -> room::Result<Option<Placed>> {
        let (offset, id) = root;
        let simple = match self.nodes[id as usize] {
            Node::Dense { .. } => true,
            Node::Stream { child, .. } => self.dense_len(child).is_some(),
            _ => false,
        };
        if simple || self.bounds(id).segments > SETTLED {
            return Ok(Some(root));
        }
        let segments = self.segments(id)?;
        let placed = segments
            .iter()
            .map(|&(at, len)| Ok((offset + at, self.dense(len)?)));
        let list = room::collect(placed, segments.len())?;
        self.list(list)
    }

    /// Adds a node to a list, or its entries if it is a short list itself.
    pub(super) fn place(
        &mut self,
        list: &mut Vec<Placed>,
        (offset, id): Placed,
    ) -> room::Result<()> {
        let to = |relative: i64| offset.wrapping_add(relative);
        match &self.nodes[id as usize] {
            Node::Blocks { offsets, child } if offsets.len() <= SPLICE => {
                let entries = 0..offsets.len();
                room::extend(list, entries.map(|i| (to(offsets.get(i)), *child)))
            }
            Node::Pieces { offsets, starts } if offsets.len() <= SPLICE => {
                let (offsets, starts) = (offsets.clone(), starts.clone());
                for i in 0..offsets.len() {
                    let piece = self.dense(starts.get(i + 1) - starts.get(i))?;
                    room::push(list, (to(offsets.get(i)), piece))?;
                }
                Ok(())
            }
            Node::Sequence { parts } if parts.len() <= SPLICE => {
                room::extend(list, parts.iter().map(|part| (to(part.offset), part.child)))
            }
            _ => room::push(list, (offset, id)),
        }
    }
}

/// The smallest proper period of a list, if it consists of whole repetitions: entries `p` apart
/// are equal, and so are the distances to their predecessors.
fn period(list: &[Placed]) -> room::Result<Option<usize>> {
    let letter = |i: usize| (list[i].1, list[i + 1].0.wrapping_sub(list[i].0));
    period_of(list.len(), letter, |i, k| list[i].1 == list[k].1)
}
