// SPDX-License-Identifier: MIT OR Apache-2.0

//! Long lists of dense pieces, as arrays of numbers.
//!
//! The general way through [`Arena::list`] keeps several words for each entry, and decides
//! about each, which nobody can predict where blocks are irregular. Here the same decisions are
//! sums over arrays, for which the compiler makes vectors; passes that do depend on the entry
//! before have no branches.
//!
//! Lists of fewer than [`MANY`] pieces become what the general way makes of them. Longer ones have
//! rules of their own, so that a decision takes one pass:
//!
//! ```text
//! runs        a list becomes a list of its runs if that takes at most 2/5 of the words
//! cutting     pieces of all lengths are looked at in chunks of 4096: one in which nearly all have
//!             the shortest length, and the others a multiple of it, becomes equal blocks
//! ```

use super::super::form::NodeId;
use super::arena::{Arena, Placed};
use super::lists::{
    CHUNK, MANY, Number, Stretch, by_borders, divisors, in_runs, long_stretches, turns,
};
use crate::room;

/// From this many equal runs in a row on, they become a list of their own.
const TOGETHER: usize = 16;

/// No list of starts.
const NONE: &[i32] = &[];

/// Words that an entry of a sequence takes, roughly.
const WORDS: usize = 8;

/// Children of each block of an indexed type.
pub(super) enum Lengths<'a> {
    /// The same everywhere.
    All(u64),
    /// One for each block.
    Each(&'a [u64]),
}

/// Pieces at one distance: how many, the distance, and the bytes of each.
type Row = (i64, i64, i64);

/// The blocks of an indexed type.
pub(super) struct Blocks<'a> {
    pub(super) lengths: Lengths<'a>,
    pub(super) displacements: &'a [i64],
    /// Bytes of a displacement of 1.
    pub(super) unit: i64,
    /// Where the first byte of a child at displacement 0 is.
    pub(super) base: i64,
    /// Bytes from one child of a block to the next.
    pub(super) extent: i64,
    /// The dense pieces of a child, the first one at 0.
    pub(super) child: &'a [(i64, i64)],
}

/// Dense pieces as arrays: where each is from the first one, and the bytes before each and of all
/// of them. The second list is empty if all have the same length.
pub(super) struct List<N, S> {
    offsets: Vec<N>,
    starts: Vec<S>,
    len: i64,
}

impl Blocks<'_> {
    /// Whether each block is one piece.
    fn is_plain(&self) -> bool {
        matches!(self.child, [(_, len)] if *len == self.extent || matches!(self.lengths, Lengths::All(1)))
    }

    /// How many pieces there are for each block, at least on average; none for very many.
    fn pieces_per_block(&self) -> Option<u64> {
        if self.is_plain() {
            return Some(1);
        }
        let n = self.displacements.len() as u64;
        let children = match self.lengths {
            Lengths::All(length) => length,
            Lengths::Each(all) => {
                let sum: u128 = all.iter().map(|&length| u128::from(length)).sum();
                u64::try_from(sum).ok()?.div_ceil(n)
            }
        };
        children.checked_mul(self.child.len() as u64)
    }

    /// Where the first block with data is, and all pieces, none beside the one before it. `None`
    /// if they would be much more than their description. All places must fit into `N`, and the
    /// bytes of all pieces into `S`.
    fn list<N: Number, S: Number>(&self) -> room::Result<Option<(i64, List<N, S>)>> {
        /// Most pieces for each block, on average.
        const MOST: u64 = 8;
        let is_short = self.pieces_per_block().is_some_and(|pieces| pieces <= MOST);
        let first = match self.lengths {
            _ if !is_short => None,
            Lengths::All(_) => Some(0),
            Lengths::Each(lengths) => lengths.iter().position(|&length| length > 0),
        };
        let Some(&first) = first.and_then(|first| self.displacements.get(first)) else {
            return Ok(None);
        };
        let origin = self.base.wrapping_add(first.wrapping_mul(self.unit));
        let list = if self.is_plain() {
            self.plain(first)?
        } else {
            self.expanded(first)?
        };
        Ok(Some((origin, list)))
    }

    /// Where each block is.
    fn places<N: Number>(&self, first: i64) -> impl Iterator<Item = N> {
        self.displacements
            .iter()
            .map(move |at| N::of(at.wrapping_sub(first).wrapping_mul(self.unit)))
    }

    fn plain<N: Number, S: Number>(&self, first: i64) -> room::Result<List<N, S>> {
        // Passes that do the same for each entry. Only empty blocks can be out of range; they are
        // dropped.
        let offsets = room::gather(self.places(first))?;
        let each = self.child[0].1;
        match self.lengths {
            Lengths::All(length) => List::equal(offsets, (length as i64).wrapping_mul(each)),
            Lengths::Each(lengths) => {
                let mut starts = room::list(lengths.len() + 1)?;
                let mut total = S::default();
                starts.push(total);
                starts.extend(lengths.iter().map(|&length| {
                    total = total.plus(S::of((length as i64).wrapping_mul(each)));
                    total
                }));
                Ok(List::joined(offsets, starts))
            }
        }
    }

    fn expanded<N: Number, S: Number>(&self, first: i64) -> room::Result<List<N, S>> {
        let n = self.displacements.len();
        let children = |i: usize| match self.lengths {
            Lengths::All(length) => length as usize,
            Lengths::Each(lengths) => lengths[i] as usize,
        };
        let all: usize = (0..n).map(children).sum::<usize>() * self.child.len();
        let mut offsets = room::filled(N::default(), all)?;
        let mut places = offsets.chunks_exact_mut(self.child.len());
        for (i, displacement) in self.displacements.iter().enumerate() {
            let block = displacement.wrapping_sub(first).wrapping_mul(self.unit);
            for (k, child) in places.by_ref().take(children(i)).enumerate() {
                let base = block.wrapping_add(self.extent.wrapping_mul(k as i64));
                for (place, piece) in child.iter_mut().zip(self.child) {
                    *place = N::of(base.wrapping_add(piece.0));
                }
            }
        }
        let len = self.child[0].1;
        if self.child.iter().all(|piece| piece.1 == len) {
            return List::equal(offsets, len);
        }
        let mut total = S::default();
        let mut starts = room::list(all + 1)?;
        starts.push(total);
        for piece in self.child.iter().cycle().take(all) {
            total = total.plus(S::of(piece.1));
            starts.push(total);
        }
        Ok(List::joined(offsets, starts))
    }

    /// Where each block is from the first one, if all are the same row of three pieces or more, and
    /// no row goes on or touches the next: what [`Arena::by_runs`] finds in the list of their
    /// pieces.
    fn rows<N: Number>(&self) -> room::Result<Option<(Vec<N>, Row)>> {
        let [first, second, .., last] = self.child else {
            return Ok(None);
        };
        let (n, count) = (self.displacements.len(), self.child.len());
        let stride = second.0 - first.0;
        let mut pairs = self.child.windows(2);
        let is_row = pairs.all(|pair| pair[1].0 - pair[0].0 == stride && pair[1].1 == pair[0].1);
        if !is_row || !matches!(self.lengths, Lengths::All(1)) || n.saturating_mul(count) < MANY {
            return Ok(None);
        }
        let (end, next) = (N::of(last.0 + last.1), N::of(last.0.wrapping_add(stride)));
        let places: Vec<N> = room::gather(self.places(self.displacements[0]))?;
        let meets = |sum: bool, pair: (&N, &N)| {
            let step = pair.1.minus(*pair.0);
            sum | (step == end) | (step == next)
        };
        if places.iter().zip(&places[1..]).fold(false, meets) {
            return Ok(None);
        }
        Ok(Some((places, (count as i64, stride, first.1))))
    }

    /// The blocks as a node, and where it is. `None` if their pieces would be much more than the
    /// description; all places must fit into `N`, and the bytes of all pieces into `S`.
    pub(super) fn node<N: Number, S: Number>(
        &self,
        arena: &mut Arena,
    ) -> room::Result<Option<Placed>> {
        if let Some((places, (count, stride, len))) = self.rows::<N>()? {
            let piece = arena.dense(len)?;
            let row = arena.stream(count, stride, piece)?;
            let first = self.displacements[0].wrapping_mul(self.unit);
            let all = arena.equal(places, row)?;
            return Ok(Some((self.base.wrapping_add(first), all)));
        }
        match self.list::<N, S>()? {
            Some((origin, list)) => Ok(Some((origin, arena.long(list, Some(self))?))),
            None => Ok(None),
        }
    }

    /// Whether each block, as it was described, is one piece of `len` bytes.
    fn is_each(&self, len: i64) -> bool {
        match (&self.lengths, self.child) {
            (Lengths::All(length), [(_, each)]) => {
                self.is_plain() && (*length as i64).checked_mul(*each) == Some(len)
            }
            _ => false,
        }
    }
}

impl<N: Number, S: Number> List<N, S> {
    /// Of pieces of `len` bytes each.
    fn equal(mut offsets: Vec<N>, len: i64) -> room::Result<List<N, S>> {
        let next = N::of(len);
        let joined = |sum: bool, pair: (&N, &N)| sum | (pair.0.plus(next) == *pair.1);
        let pairs = offsets.iter().zip(&offsets[1..]);
        if !pairs.fold(false, joined) {
            return Ok(List {
                offsets,
                starts: Vec::new(),
                len,
            });
        }
        let starts = join_equal(&mut offsets, len)?;
        Ok(List::of(offsets, starts))
    }

    /// Of pieces of which none is empty or beside the one before.
    fn of(offsets: Vec<N>, starts: Vec<S>) -> List<N, S> {
        let len = starts[1];
        let other = |sum: bool, pair: (&S, &S)| sum | (pair.1.minus(*pair.0) != len);
        // Different lengths show early.
        let equal = starts
            .chunks(CHUNK)
            .all(|some| !some.iter().zip(&some[1..]).fold(false, other))
            && (CHUNK..starts.len())
                .step_by(CHUNK)
                .all(|i| starts[i].minus(starts[i - 1]) == len);
        List {
            offsets,
            starts: if equal { Vec::new() } else { starts },
            len: len.into(),
        }
    }

    /// Of pieces of all kinds, the first with data at 0.
    pub(super) fn joined(mut offsets: Vec<N>, mut starts: Vec<S>) -> List<N, S> {
        let n = offsets.len();
        let mut join = starts[n] == starts[n - 1];
        let (begin, end) = (&starts[..n - 1], &starts[1..n]);
        let (here, next) = (&offsets[..n - 1], &offsets[1..n]);
        for i in 0..n - 1 {
            let len = end[i].minus(begin[i]);
            join |= (len == S::default()) | (here[i].plus(N::of(len.into())) == next[i]);
        }
        if join {
            join_pieces(&mut offsets, &mut starts);
        }
        List::of(offsets, starts)
    }
}

/// As [`join_pieces`], for pieces of `len` bytes each; returns where the new ones start.
fn join_equal<N: Number, S: Number>(offsets: &mut Vec<N>, len: i64) -> room::Result<Vec<S>> {
    let zero = N::default();
    let mut starts = room::filled(S::default(), offsets.len() + 1)?;
    let (mut last, mut at, mut end, mut start) = (0, zero, zero, S::default());
    for i in 0..offsets.len() {
        let offset = offsets[i];
        let joined = offset == end;
        last += usize::from(!joined);
        at = if joined { at } else { offset };
        end = offset.plus(N::of(len));
        start = start.plus(S::of(len));
        offsets[last] = at;
        starts[last + 1] = start;
    }
    offsets.truncate(last + 1);
    starts.truncate(last + 2);
    Ok(starts)
}

/// Makes one piece of adjacent ones, and drops empty ones. The first piece with bytes is at 0.
fn join_pieces<N: Number, S: Number>(offsets: &mut Vec<N>, starts: &mut Vec<S>) {
    // A piece overwrites what is known about the last one or begins the next one; a decision
    // between the two would be a guess for the processor.
    let (mut last, mut at, mut end, mut before) = (0, N::default(), N::default(), S::default());
    for i in 0..offsets.len() {
        let (offset, start) = (offsets[i], starts[i + 1]);
        let len = start.minus(before);
        before = start;
        let joined = (offset == end) | (len == S::default());
        last += usize::from(!joined);
        at = if joined { at } else { offset };
        end = if joined { end } else { offset }.plus(N::of(len.into()));
        offsets[last] = at;
        starts[last + 1] = start;
    }
    offsets.truncate(last + 1);
    starts.truncate(last + 2);
}

/// How many runs a list has, and how often a run is of another kind than the one before; as
/// [`Arena::extend`] would find them.
fn runs<N: Number, S: Number>(offsets: &[N], starts: &[S]) -> (usize, usize) {
    let (mut runs, mut kinds) = (1, 1);
    let (mut count, mut stride) = (1u64, N::default());
    let mut before = (0, N::default(), S::default());
    let listed = !starts.is_empty();
    for i in 1..offsets.len() {
        let step = offsets[i].minus(offsets[i - 1]);
        let (len, next) = if listed {
            (
                starts[i].minus(starts[i - 1]),
                starts[i + 1].minus(starts[i]),
            )
        } else {
            (S::default(), S::default())
        };
        let joins = (len == next) & ((count == 1) | (step == stride));
        let kind = (count, if count == 1 { N::default() } else { stride }, len);
        runs += usize::from(!joins);
        kinds += usize::from(!joins & (kind != before));
        before = if joins { before } else { kind };
        count = 1 + count * u64::from(joins);
        stride = step;
    }
    (runs, kinds)
}

/// How often the length is another one than before.
fn changes<S: Number>(starts: &[S]) -> usize {
    let Some(n) = starts.len().checked_sub(2) else {
        return 0;
    };
    let (a, b, c) = (&starts[..n], &starts[1..n + 1], &starts[2..]);
    let other = |i: usize| u32::from(b[i].minus(a[i]) != c[i].minus(b[i]));
    (0..n).map(other).sum::<u32>() as usize
}

impl Arena {
    /// A long list of dense nodes as arrays.
    pub(super) fn as_pieces<N: Number, S: Number>(
        &self,
        list: &[Placed],
    ) -> room::Result<List<N, S>> {
        let first = list.first().map_or(0, |placed| placed.0);
        let mut total = S::default();
        let mut starts = room::list(list.len() + 1)?;
        starts.push(total);
        starts.extend(list.iter().map(|&(_, id)| {
            total = total.plus(S::of(self.bounds(id).size));
            total
        }));
        let offsets = room::gather(list.iter().map(|placed| N::of(placed.0 - first)))?;
        Ok(List::joined(offsets, starts))
    }

    /// The node of a list of pieces that are not adjacent, the first one at offset 0; `blocks` is
    /// what they were described as.
    pub(super) fn long<N: Number, S: Number>(
        &mut self,
        list: List<N, S>,
        blocks: Option<&Blocks>,
    ) -> room::Result<NodeId> {
        let List {
            mut offsets,
            starts,
            len,
        } = list;
        if starts.is_empty() {
            let child = self.dense(len)?;
            return self.equal(offsets, child);
        }
        let n = offsets.len();
        if n < MANY {
            return self.uneven(offsets, starts);
        }
        if let Some(node) = self.by_runs(&offsets, &starts, None)? {
            return Ok(node);
        }
        if let Some(node) = self.periodic(&offsets, &starts, None)? {
            return Ok(node);
        }
        let stretches = long_stretches(&starts)?;
        if let [
            Stretch {
                first: 0,
                end,
                unit,
                ..
            },
        ] = stretches[..]
        {
            if let Some(blocks) = blocks.filter(|blocks| end == n && blocks.is_each(unit)) {
                // In the memory of the list: new memory costs as much as all else.
                offsets.clear();
                offsets.extend(blocks.places::<N>(blocks.displacements[0]));
                let child = self.dense(unit)?;
                return self.equal_blocks(N::offsets(offsets)?, child);
            }
        }
        let (offsets, starts) = (N::offsets(fit(offsets)?)?, S::offsets(fit(starts)?)?);
        let nodes = self.dense_stretches(offsets, starts, stretches)?;
        match nodes[..] {
            [(_, id)] => Ok(id),
            _ => self.sequence(&nodes),
        }
    }

    /// Pieces of different lengths, fewer than [`MANY`].
    fn uneven<N: Number, S: Number>(
        &mut self,
        offsets: Vec<N>,
        starts: Vec<S>,
    ) -> room::Result<NodeId> {
        let n = offsets.len();
        // A run of `c` pieces, three or more, has `c - 2` turns, so `3 * turns` pieces at most are
        // in such runs.
        if 6 * turns(&offsets, &starts) >= n && 2 * in_runs(&offsets, &starts) >= n {
            let runs = self.runs_of(&offsets, &starts, None)?;
            return self.of_runs(runs, 0);
        }
        if let Some(node) = self.periodic(&offsets, &starts, None)? {
            return Ok(node);
        }
        let nodes = self.dense_nodes(N::offsets(fit(offsets)?)?, S::offsets(fit(starts)?)?)?;
        match nodes[..] {
            [(_, id)] => Ok(id),
            _ => self.sequence(&nodes),
        }
    }

    /// The same child, or pieces of the same length, at places that are not a stream yet.
    fn equal<N: Number>(&mut self, offsets: Vec<N>, child: NodeId) -> room::Result<NodeId> {
        let n = offsets.len();
        if n == 1 {
            return Ok(child);
        }
        let turns = turns(&offsets, NONE);
        if turns == n - 2 {
            let stride = offsets[1].into();
            return self.stream(n as i64, stride, child);
        }
        if n >= MANY {
            // See `by_runs`: the least number of turns.
            if 5 * turns >= n {
                if let Some(node) = self.by_runs(&offsets, NONE, Some(child))? {
                    return Ok(node);
                }
            }
        } else if 6 * turns >= n && 2 * in_runs(&offsets, NONE) >= n {
            let runs = self.runs_of(&offsets, NONE, Some(child))?;
            return self.of_runs(runs, 0);
        }
        if let Some(node) = self.periodic(&offsets, NONE, Some(child))? {
            return Ok(node);
        }
        self.equal_blocks(N::offsets(fit(offsets)?)?, child)
    }

    /// A long list as runs, if that is much shorter.
    fn by_runs<N: Number, S: Number>(
        &mut self,
        offsets: &[N],
        starts: &[S],
        child: Option<NodeId>,
    ) -> room::Result<Option<NodeId>> {
        let n = offsets.len();
        // `r` runs have at least `n - 2 r` turns and at most `n - r`, and they are of another kind
        // wherever the length changes.
        let turns = turns(offsets, starts);
        let pays = |runs: usize, kinds: usize| 5 * (runs + WORDS * kinds) <= 2 * n;
        if !pays((n - turns) / 2, changes(starts)) {
            return Ok(None);
        }
        if !pays(n - turns, n - turns) {
            let (runs, kinds) = runs(offsets, starts);
            if !pays(runs, kinds) {
                return Ok(None);
            }
        }
        let len_of = |i: usize| match starts {
            [] => 0,
            _ => starts[i + 1].minus(starts[i]).into(),
        };
        let mut list: Vec<Placed> = Vec::new();
        // The runs of one kind that follow one another, and what they are.
        let mut group: Vec<N> = Vec::new();
        let mut kind = (0, 0, 0);
        let mut at = 0;
        while at < n {
            let len = len_of(at);
            let (mut count, mut stride) = (1, 0);
            if at + 1 < n && len_of(at + 1) == len {
                let step = offsets[at + 1].minus(offsets[at]);
                count = 2;
                while at + count < n
                    && offsets[at + count].minus(offsets[at + count - 1]) == step
                    && len_of(at + count) == len
                {
                    count += 1;
                }
                stride = step.into();
            }
            let next = (count as i64, stride, len);
            if next != kind && !group.is_empty() {
                self.add_group(&mut list, &group, kind, child)?;
                group.clear();
            }
            kind = next;
            room::push(&mut group, offsets[at])?;
            at += count;
        }
        self.add_group(&mut list, &group, kind, child)?;
        if let [(_, id)] = list[..] {
            return Ok(Some(id));
        }
        let runs = self.runs(&list, false)?;
        Ok(Some(self.of_runs(runs, 0)?))
    }

    /// Adds runs of one kind: how many of what, and how far apart.
    fn add_group<N: Number>(
        &mut self,
        list: &mut Vec<Placed>,
        group: &[N],
        (count, stride, len): (i64, i64, i64),
        child: Option<NodeId>,
    ) -> room::Result<()> {
        let child = match child {
            Some(child) => child,
            None => self.dense(len)?,
        };
        let run = self.stream(count, stride, child)?;
        if group.len() < TOGETHER {
            return room::extend(list, group.iter().map(|&at| (at.into(), run)));
        }
        let base = group[0];
        let places: Vec<N> = room::gather(group.iter().map(|at| at.minus(base)))?;
        room::push(list, (base.into(), self.equal(places, run)?))
    }

    /// A list that repeats itself.
    fn periodic<N: Number, S: Number>(
        &mut self,
        offsets: &[N],
        starts: &[S],
        child: Option<NodeId>,
    ) -> room::Result<Option<NodeId>> {
        let n = offsets.len();
        let len = |i: usize| starts[i + 1].minus(starts[i]);
        let Some(period) = period(offsets, starts)? else {
            return Ok(None);
        };
        let mut first: Vec<Placed> = room::list(period)?;
        for (i, &at) in offsets[..period].iter().enumerate() {
            let id = match child {
                Some(child) => child,
                None => self.dense(len(i).into())?,
            };
            first.push((at.into(), id));
        }
        let child = match first[..] {
            [(_, id)] => id,
            _ => {
                let runs = self.runs(&first, false)?;
                self.of_runs(runs, 0)?
            }
        };
        let stride = offsets[period].into();
        Ok(Some(self.stream((n / period) as i64, stride, child)?))
    }
}

/// The smallest proper period of a list, if it consists of whole repetitions.
fn period<N: Number, S: Number>(offsets: &[N], starts: &[S]) -> room::Result<Option<usize>> {
    /// In a chunk that is compared at once.
    const SOME: usize = 256;
    /// How far the lists `period` apart go in step: how many entries.
    fn in_step<T: Number>(list: &[T], period: usize) -> usize {
        let (list, later) = (&list[..list.len() - period], &list[period..]);
        let distance = later[0].minus(list[0]);
        for (k, (a, b)) in list.chunks(SOME).zip(later.chunks(SOME)).enumerate() {
            let mut other = false;
            for (a, b) in a.iter().zip(b) {
                other |= b.minus(*a) != distance;
            }
            if other {
                let same = |(a, b): &(&T, &T)| b.minus(**a) == distance;
                return k * SOME + a.iter().zip(b).take_while(same).count();
            }
        }
        list.len()
    }
    let n = offsets.len();
    // As in `period_of`; here a comparison is cheaper.
    let mut patience = 16 * n;
    for period in divisors(n) {
        let mut same = in_step(offsets, period);
        if same == n - period {
            // There is one more start: the end of the last entry.
            same = match starts {
                [] => same + 1,
                _ => in_step(starts, period),
            };
            if same == n + 1 - period {
                return Ok(Some(period));
            }
        }
        patience = patience.saturating_sub(same + 1);
        if patience == 0 {
            let step = |i: usize| offsets[i + 1].minus(offsets[i]);
            let len = |i: usize| starts[i + 1].minus(starts[i]);
            return match starts {
                [] => by_borders(n, step, |_, _| true),
                _ => by_borders(n, |i| (len(i), step(i)), |i, k| len(i) == len(k)),
            };
        }
    }
    Ok(None)
}

/// The list, without capacity that it does not use if that is more than the list itself.
fn fit<N: Copy>(list: Vec<N>) -> room::Result<Vec<N>> {
    if 2 * list.len() < list.capacity() {
        return room::copied(&list);
    }
    Ok(list)
}
