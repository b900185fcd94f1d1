// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reductions: up the tree, each group combines what its members have; of an allreduce the result
//! then goes back the same way.
//!
//! The members of a group cut what they have to combine into slices, one each, so that every rank
//! works on every level. Small reductions leave all of it to the leader of each group. Which of
//! both does not change in which order an element's values are combined: inside the smallest groups
//! first, in the order of members. One rank combines an element, so that all ranks get the same
//! bits.

use std::collections::HashSet;
use std::ops::Range;

use super::alike::mixed;
use super::call::{Call, Operation, Shape, Workers, share};
use super::held::{Cell, Held, cells};
use super::signal::{all_have_ended, ended, gathered, latest};
use super::stage::{After, Buffer, Piece, Plan, Progress, Source, Span, Stage};
use super::tree::{Member, Tree};

/// What each group's stage combines.
struct Combined<'a> {
    tree: &'a Tree,
    call: &'a Call<'a>,
    workers: Workers,
    /// For each group, the bytes that it combines, cut where the members' holders change.
    cells: Vec<Vec<Cell>>,
    /// For each group, who holds its result, and which member of the cell that is.
    held: Vec<Vec<Held>>,
    owners: Vec<Vec<usize>>,
    /// For each group and cell, how many parts of the result there are with it.
    ends: Vec<Vec<usize>>,
    /// For each group, cell and member: bytes that the holder has fetched on the way back, once it
    /// has this cell.
    fetched: Vec<Vec<Vec<usize>>>,
    /// Members of a group of ranks that combine, at most.
    partners: usize,
    /// For each rank, what it combines and fetches in its groups, roughly: as a number that others
    /// with as much have, too.
    work: Vec<u64>,
}

/// Bytes that take no longer than a look at another rank.
const FEW: usize = 256;

/// Numbers that differ little as one.
fn roughly(bytes: usize) -> u64 {
    // Shares are often powers of two, or a granule less.
    let bytes = bytes + bytes / 5;
    let digits = usize::BITS - bytes.leading_zeros();
    let second = bytes >> digits.saturating_sub(2) & 1;
    u64::from(digits) << 1 | second as u64
}

/// How many ranks of each group of ranks combine. Groups of nearly the same size use as many each:
/// then each of these ranks has one partner in the other groups, and not two.
fn partners(tree: &Tree) -> usize {
    let groups = tree.groups().iter();
    let of_ranks = groups.filter(|group| group.members.len() == group.ranks.len());
    let sizes = of_ranks.map(|group| group.ranks.len());
    let (least, most) = sizes.fold((usize::MAX, 0), |(least, most), size| {
        (least.min(size), most.max(size))
    });
    if least >= most.div_ceil(2) {
        least
    } else {
        most
    }
}

impl<'a> Combined<'a> {
    /// What the groups of a reduction combine. Slices only where no rank is followed by more than a
    /// group's members.
    fn new(tree: &'a Tree, call: &'a Call<'a>, workers: Workers, range: &Range<usize>) -> Self {
        let all = Self::as_wanted(tree, call, workers, range);
        if workers == Workers::Leaders || all.fan_out() <= tree.most_followers() {
            return all;
        }
        Self::as_wanted(tree, call, Workers::Leaders, range)
    }

    fn as_wanted(
        tree: &'a Tree,
        call: &'a Call<'a>,
        workers: Workers,
        range: &Range<usize>,
    ) -> Self {
        let buffer = |rank| match call.operation {
            Operation::Allreduce => Buffer::Receive,
            Operation::Reduce if rank == call.root => Buffer::Receive,
            _ => Buffer::Scratch,
        };
        let mut this = Combined {
            tree,
            call,
            workers,
            cells: Vec::new(),
            held: Vec::new(),
            owners: Vec::new(),
            ends: Vec::new(),
            fetched: Vec::new(),
            partners: partners(tree),
            work: vec![0; tree.size()],
        };
        // Of each rank, what it combines in a group, fetches, and how many cells that is from.
        let mut of_rank = vec![(0, 0, 0); tree.size()];
        for (number, group) in tree.groups().iter().enumerate() {
            let own: Vec<Vec<Held>> = group
                .members
                .iter()
                .map(|member| match *member {
                    Member::Rank(rank) => {
                        vec![Held::own(range.clone(), rank, Buffer::Send, range.start)]
                    }
                    Member::Group(_) => Vec::new(),
                })
                .collect();
            let lists = group
                .members
                .iter()
                .zip(&own)
                .map(|(member, own)| match *member {
                    Member::Rank(_) => &own[..],
                    Member::Group(group) => &this.held[group][..],
                });
            let cells = cells(&lists.collect::<Vec<_>>());
            let mut held = Vec::new();
            let mut owners = Vec::new();
            let mut ends = Vec::new();
            let mut fetched = Vec::new();
            for cell in &cells {
                let mut fetched_here = Vec::new();
                for (member, holder) in cell.held.iter().enumerate() {
                    let rank = holder.span.rank;
                    let range = this.slice(number, cell, member);
                    let (combined, got, in_cells) = &mut of_rank[rank];
                    *in_cells += 1;
                    *got += cell.range.len() - range.len();
                    fetched_here.push(*got);
                    if range.is_empty() {
                        continue;
                    }
                    *combined += range.len();
                    let progress = Progress {
                        stage: tree.position(rank, number),
                        bytes: *combined,
                    };
                    let span = Span {
                        rank,
                        buffer: buffer(rank),
                        at: range.start,
                    };
                    held.push(Held {
                        range,
                        span,
                        after: Some(After { rank, progress }),
                        in_order: true,
                    });
                    owners.push(member);
                }
                ends.push(held.len());
                fetched.push(fetched_here);
            }
            for rank in &group.ranks {
                let (combined, got, in_cells) = std::mem::take(&mut of_rank[*rank]);
                let bytes = |bytes: usize| match bytes {
                    0 => 0,
                    // What a few lines take does not count.
                    _ => roughly(bytes.max(FEW)),
                };
                let amounts = [bytes(combined), bytes(got), roughly(in_cells)];
                let work = &mut this.work[*rank];
                *work = amounts.into_iter().fold(*work, mixed);
            }
            this.cells.push(cells);
            this.held.push(held);
            this.owners.push(owners);
            this.ends.push(ends);
            this.fetched.push(fetched);
        }
        this
    }

    /// The part of a cell that the holder of a member combines.
    fn slice(&self, group: usize, cell: &Cell, member: usize) -> Range<usize> {
        match self.workers {
            Workers::All | Workers::Owners => {
                let holders = cell.held.len();
                let is_of_ranks = holders == self.tree.groups()[group].ranks.len();
                let parts = if is_of_ranks {
                    holders.min(self.partners)
                } else {
                    holders
                };
                if member >= parts {
                    return cell.range.end..cell.range.end;
                }
                share(&cell.range, parts, member, self.call.granule())
            }
            Workers::Leaders => {
                let leader = self.tree.leader(Member::Group(group), self.call.root);
                if cell.held[member].span.rank == leader {
                    cell.range.clone()
                } else {
                    cell.range.end..cell.range.end
                }
            }
        }
    }

    /// The cells of a group, each with its number, the parts of its result, and which members'
    /// holders combine them.
    fn results(&self, group: usize) -> impl Iterator<Item = (usize, &Cell, &[Held], &[usize])> {
        let cells = self.cells[group].iter().enumerate();
        cells.map(move |(number, cell)| {
            let (held, owners) = self.results_of(group, number);
            (number, cell, held, owners)
        })
    }

    fn results_of(&self, group: usize, cell: usize) -> (&[Held], &[usize]) {
        let ends = &self.ends[group];
        let start = cell.checked_sub(1).map_or(0, |before| ends[before]);
        let results = start..ends[cell];
        (
            &self.held[group][results.clone()],
            &self.owners[group][results],
        )
    }

    /// How many of a group's ranks follow one of them, at most.
    fn fan_out(&self) -> usize {
        let mut most = 0;
        let mut in_cells = vec![0; self.tree.size()];
        fn holders(cell: &Cell) -> impl Iterator<Item = usize> + '_ {
            cell.held.iter().map(|it| it.span.rank)
        }
        for cells in &self.cells {
            for rank in cells.iter().flat_map(holders) {
                in_cells[rank] += 1;
            }
            for (number, cell) in cells.iter().enumerate() {
                for one in holders(cell) {
                    // Most hold one cell, which all of its holders combine.
                    let count = std::mem::take(&mut in_cells[one]);
                    let partners = match count {
                        0 => 0,
                        1 => cell.held.len() - 1,
                        _ => {
                            let its = cells[number..].iter();
                            let its = its.filter(|cell| holders(cell).any(|it| it == one));
                            let others = its.flat_map(holders).filter(|other| *other != one);
                            others.collect::<HashSet<usize>>().len()
                        }
                    };
                    most = most.max(partners);
                }
            }
        }
        most
    }

    /// What a rank combines in a group: from its own on around the circle of members, or in their
    /// order, if they are to be combined in the order of ranks.
    fn up(&self, rank: usize, group: usize) -> Stage {
        let mut pieces = Vec::new();
        for (_, cell, results, owners) in self.results(group) {
            for (result, member) in results.iter().zip(owners) {
                if result.span.rank != rank {
                    continue;
                }
                let range = &result.range;
                let parts = cell.held.iter().map(|it| it.part(range.clone()).source());
                let mut from: Vec<Source> = parts.collect();
                if !self.call.in_rank_order {
                    from.rotate_left(*member);
                }
                pieces.push(Piece {
                    to: result.span,
                    bytes: range.len(),
                    from,
                });
            }
        }
        Stage::moving(pieces)
    }

    /// When others have combined what a rank holds before a group's stage.
    fn read_up(&self, rank: usize, group: usize) -> Vec<After> {
        let mut readers = Vec::new();
        for (_, cell, results, _) in self.results(group) {
            if cell.held.iter().any(|it| it.span.rank == rank) {
                let others = results.iter().filter(|it| it.span.rank != rank);
                readers.extend(others.filter_map(|it| it.after));
            }
        }
        latest(readers)
    }

    /// The number of a rank's groups.
    fn depth(&self, rank: usize) -> usize {
        self.tree.chain(rank).count()
    }

    /// The stage in which a rank fetches what others of a group have combined.
    fn down_stage(&self, rank: usize, group: usize) -> usize {
        2 * self.depth(rank) - 1 - self.tree.position(rank, group)
    }

    /// A part of a group's result, when its holder has the end result of it.
    fn last(&self, group: usize, held: &Held) -> Held {
        let Some(parent) = self.tree.groups()[group].within else {
            return held.clone();
        };
        let rank = held.span.rank;
        let mut last = held.clone();
        let mut seen = 0;
        for (number, cell) in self.cells[parent].iter().enumerate() {
            let overlaps = cell.range.start < held.range.end && held.range.start < cell.range.end;
            let member = cell.held.iter().position(|it| it.span.rank == rank);
            let (true, Some(member)) = (overlaps, member) else {
                continue;
            };
            seen += 1;
            let mut progress = Progress {
                stage: self.down_stage(rank, parent),
                bytes: self.fetched[parent][number][member],
            };
            // One piece has its bytes in order, several have not.
            let (_, owners) = self.results_of(parent, number);
            last.in_order = seen == 1 && matches!(owners, [owner] if *owner != member);
            if last.in_order {
                progress.bytes -= cell.range.end.saturating_sub(held.range.end);
            }
            last.after = Some(After { rank, progress });
        }
        last
    }

    /// What a rank fetches in a group on the way back, and when others have fetched from it.
    fn down(&self, rank: usize, group: usize, buffer: Buffer) -> (Stage, Vec<After>) {
        let mut pieces = Vec::new();
        let mut readers = Vec::new();
        for (number, cell, results, owners) in self.results(group) {
            let fetched = &self.fetched[group][number];
            let Some(own) = cell.held.iter().position(|it| it.span.rank == rank) else {
                continue;
            };
            // Each begins with the slice behind its own, so that they read from different ranks.
            let of = |reader: usize| {
                let behind = owners.iter().position(|owner| *owner > reader);
                let first = behind.unwrap_or(0);
                let order = (0..owners.len()).map(move |step| (first + step) % owners.len());
                order.filter(move |slice| owners[*slice] != reader)
            };
            for slice in of(own) {
                let range = &results[slice].range;
                pieces.push(Piece {
                    to: Span {
                        rank,
                        buffer,
                        at: range.start,
                    },
                    bytes: range.len(),
                    from: vec![self.last(group, &results[slice]).source()],
                });
            }
            if !owners.contains(&own) {
                continue;
            }
            for (reader, holder) in cell.held.iter().enumerate() {
                if reader == own {
                    continue;
                }
                // Until it has this cell, less what it fetches of it after ours.
                let behind = of(reader).skip_while(|slice| owners[*slice] != own).skip(1);
                let rest: usize = behind.map(|slice| results[slice].range.len()).sum();
                let reader_rank = holder.span.rank;
                let progress = Progress {
                    stage: self.down_stage(reader_rank, group),
                    bytes: fetched[reader] - rest,
                };
                readers.push(After {
                    rank: reader_rank,
                    progress,
                });
            }
        }
        (Stage::moving(pieces), readers)
    }

    /// What a rank does until it has all of the result in a buffer, and when others have fetched
    /// from it.
    fn up_and_down(&self, rank: usize, buffer: Buffer) -> (Vec<Stage>, Vec<After>) {
        let chain: Vec<usize> = self.tree.chain(rank).collect();
        let mut stages: Vec<Stage> = chain.iter().map(|group| self.up(rank, *group)).collect();
        let mut readers = Vec::new();
        for group in chain.iter().rev() {
            let (stage, its) = self.down(rank, *group, buffer);
            stages.push(stage);
            readers.extend(its);
        }
        (stages, latest(readers))
    }

    /// Who holds the result.
    fn result(&self) -> &[Held] {
        &self.held[self.tree.top()]
    }
}

/// A reduction, in segments.
pub(super) struct Reduction<'a> {
    tree: &'a Tree,
    call: &'a Call<'a>,
    workers: Workers,
    /// What the groups combine of each segment; in a sketch of the first one, for all.
    segments: Vec<Combined<'a>>,
    /// Segments of a plan.
    count: usize,
    /// Segments of the call that a sketch leaves out.
    left_out: usize,
    /// For each rank of an allreduce, the stages of a segment before the last one, and whether it
    /// has an odd place in its smallest group: ranks at the same place of their groups work
    /// together.
    rounds: Vec<(usize, bool)>,
    /// What ranks fetch of the result of a reduce_scatter.
    parts: Parts,
}

/// Bytes of a segment for each rank of a group of ranks, at least: a chunk of each slice.
const SEGMENT: usize = 16 << 10;

/// Segments of a call, at most, whatever the shape says.
const MOST_SEGMENTS: usize = 16;

/// Segments of a sketch, at most: from the third one on each takes as long as the one before.
const SKETCHED: usize = 4;

impl<'a> Reduction<'a> {
    pub fn new(tree: &'a Tree, call: &'a Call<'a>, shape: Shape) -> Self {
        let all = Self::segments_of(tree, call, shape);
        Self::with_segments(tree, call, shape.workers, all, all)
    }

    /// One that takes as long, to be priced: all segments have the bytes of the first one, and
    /// those that would repeat others are left out.
    pub fn sketch(tree: &'a Tree, call: &'a Call<'a>, shape: Shape) -> Self {
        let all = Self::segments_of(tree, call, shape);
        let mut sketch = Self::with_segments(tree, call, shape.workers, all, 1);
        sketch.count = all.min(SKETCHED);
        sketch.left_out = all - sketch.count;
        sketch
    }

    fn bytes(tree: &Tree, call: &Call<'_>) -> usize {
        match call.operation {
            Operation::ReduceScatter => call.lengths.total(tree.size()),
            _ => call.lengths.total(1),
        }
    }

    /// Only an allreduce has something to do for one segment while others do it for another.
    fn segments_of(tree: &Tree, call: &Call<'_>, shape: Shape) -> usize {
        match (call.operation, shape.workers) {
            (Operation::Allreduce, Workers::All) => {
                let bytes = Self::bytes(tree, call);
                (bytes / (SEGMENT * partners(tree)))
                    .clamp(1, shape.segments.clamp(1, MOST_SEGMENTS))
            }
            _ => 1,
        }
    }

    /// One with the first of some segments.
    fn with_segments(
        tree: &'a Tree,
        call: &'a Call<'a>,
        workers: Workers,
        all: usize,
        made: usize,
    ) -> Self {
        let whole = 0..Self::bytes(tree, call);
        let ranges = (0..made).map(|number| share(&whole, all, number, call.granule()));
        let segments = match workers {
            Workers::Owners => Vec::new(),
            _ => ranges
                .map(|range| Combined::new(tree, call, workers, &range))
                .collect(),
        };
        let parts = match (call.operation, segments.first()) {
            (Operation::ReduceScatter, Some(all)) => Parts::new(all),
            _ => Parts::default(),
        };
        let rounds = match call.operation {
            Operation::Allreduce => (0..tree.size()).map(|rank| round(tree, rank)).collect(),
            _ => Vec::new(),
        };
        Reduction {
            tree,
            call,
            workers,
            segments,
            count: all,
            left_out: 0,
            rounds,
            parts,
        }
    }

    /// Parts of the buffers that go one after the other.
    pub fn segments(&self) -> usize {
        self.count
    }

    /// For each rank a number that says how much it does, besides what the leaders of groups do.
    pub fn work(&self) -> Vec<u64> {
        let (size, call) = (self.tree.size(), self.call);
        let Some(first) = self.segments.first() else {
            let whole = 0..call.lengths.total(1);
            let own = |rank| match call.operation {
                Operation::Reduce => share(&whole, size, rank, call.granule()),
                _ => call.lengths.block(rank),
            };
            return (0..size).map(|rank| roughly(own(rank).len())).collect();
        };
        let mut work = first.work.clone();
        for (work, (_, is_odd)) in work.iter_mut().zip(&self.rounds) {
            *work = mixed(*work, u64::from(*is_odd));
        }
        for (work, parts) in work.iter_mut().zip(&self.parts.of) {
            *work = mixed(*work, roughly(parts.len()));
        }
        for (work, readers) in work.iter_mut().zip(&self.parts.readers) {
            *work = mixed(*work, roughly(readers.len()));
        }
        work
    }

    /// Whether the leaders of groups combine what others do not.
    pub fn is_led(&self) -> bool {
        let first = self.segments.first();
        first.is_some_and(|first| first.workers == Workers::Leaders)
    }

    /// Whether a rank of a reduce_scatter reads its block from more ranks than may follow one: then
    /// all wait for all.
    pub fn has_many_parts(&self) -> bool {
        let most = self.tree.most_followers();
        self.parts.are_read_by_few(most) && self.parts.of.iter().any(|its| its.len() > most)
    }

    /// Of a sketch: how many segments it leaves out, and for a rank the last stages of two rounds
    /// between which lies what each of these takes.
    pub fn repeated(&self, rank: usize) -> Option<(usize, [usize; 2])> {
        let last = self.count.checked_sub(2).filter(|_| self.left_out > 0)?;
        let (first, _) = self.rounds[rank];
        let end = |round: usize| first + (round + 1) * (first + 1) - 1;
        Some((self.left_out, [end(last - 1), end(last)]))
    }

    /// A rank's part.
    pub fn plan(&self, rank: usize) -> Plan {
        match (self.call.operation, &self.segments[..]) {
            (Operation::Allreduce, _) => self.allreduce(rank),
            (Operation::Reduce, [all]) => reduce(all, rank),
            (Operation::Reduce, _) => reduce_by_owners(self.tree, self.call, rank),
            (_, [all]) if self.workers != Workers::Owners => reduce_scatter(all, &self.parts, rank),
            _ => owners(self.tree, self.call, rank),
        }
    }

    /// Where a stage of a segment is among all stages of a rank. The last stage of a segment, in
    /// which a rank fetches what its smallest group has, writes most; those before it read most.
    /// Half of the ranks do the last stage of a segment while the others combine the next one, so
    /// that memory and processors are busy at the same time: first the one, then the other.
    fn stage_of_segment(&self, rank: usize, segment: usize, stage: usize) -> usize {
        let (first, is_odd) = self.rounds[rank];
        // Round i has the last stage of segment i and the others of segment i + 1.
        let round = |number: usize| first + number * (first + 1);
        match (stage < first, segment.checked_sub(1)) {
            (true, None) => stage,
            (true, Some(before)) => round(before) + usize::from(is_odd) + stage,
            (false, _) if segment + 1 == self.count || is_odd => round(segment) + stage - first,
            (false, _) => round(segment) + stage,
        }
    }

    fn allreduce(&self, rank: usize) -> Plan {
        let place = |after: &mut After, segment: usize| {
            let stage = after.progress.stage;
            after.progress.stage = self.stage_of_segment(after.rank, segment, stage);
        };
        let mut stages: Vec<(usize, Stage)> = Vec::new();
        let mut all_readers = Vec::new();
        let segments = self.segments.iter();
        let made = segments.map(|it| it.up_and_down(rank, Buffer::Receive));
        // A sketch has one for all.
        let made: Vec<(Vec<Stage>, Vec<After>)> = made.collect();
        for (segment, (its_stages, readers)) in made.iter().cycle().take(self.count).enumerate() {
            for (number, stage) in its_stages.iter().enumerate() {
                let mut stage = stage.clone();
                let sources = stage.pieces.iter_mut().flat_map(|piece| &mut piece.from);
                for after in sources.filter_map(|source| source.after.as_mut()) {
                    place(after, segment);
                }
                stages.push((self.stage_of_segment(rank, segment, number), stage));
            }
            let mut readers = readers.clone();
            readers.iter_mut().for_each(|after| place(after, segment));
            all_readers.extend(readers);
        }
        stages.sort_by_key(|(place, _)| *place);
        let mut stages: Vec<Stage> = stages.into_iter().map(|(_, stage)| stage).collect();
        // Who has read what this rank contributed is told by the result: it is made of it.
        stages.push(Stage::waiting(latest(all_readers)));
        Plan { stages }
    }
}

/// For a rank, the stages of a segment before the last one, and whether it has an odd place.
fn round(tree: &Tree, rank: usize) -> (usize, bool) {
    let smallest = tree.chain(rank).next();
    let ranks = smallest.map_or(&[][..], |group| &tree.groups()[group].ranks);
    let place = ranks.binary_search(&rank).unwrap_or(0);
    (2 * tree.chain(rank).count() - 1, place % 2 > 0)
}

/// What ranks fetch of the result of a reduce_scatter.
#[derive(Default)]
struct Parts {
    /// For each rank, the parts of its block.
    of: Vec<Vec<Held>>,
    /// For each rank, those that read blocks or parts of them from it.
    readers: Vec<Vec<usize>>,
}

impl Parts {
    fn are_read_by_few(&self, most: usize) -> bool {
        self.readers.iter().all(|readers| readers.len() <= most)
    }

    fn new(combined: &Combined<'_>) -> Parts {
        let (size, result) = (combined.tree.size(), combined.result());
        let mut parts = Parts {
            of: Vec::with_capacity(size),
            readers: vec![Vec::new(); size],
        };
        for reader in 0..size {
            let block = combined.call.lengths.block(reader);
            let first = result.partition_point(|held| held.range.end <= block.start);
            let behind = result[first..].iter();
            let its = behind.map_while(|held| held.within(&block));
            let its: Vec<Held> = its.collect();
            for part in &its {
                parts.readers[part.span.rank].push(reader);
            }
            parts.of.push(its);
        }
        parts
    }
}

/// The same bytes of all ranks, in the order in which a rank combines them.
fn from_all(tree: &Tree, call: &Call<'_>, rank: usize, range: &Range<usize>) -> Vec<Source> {
    let sources = (0..tree.size())
        .map(|other| Held::own(range.clone(), other, Buffer::Send, range.start).source());
    let mut from: Vec<Source> = sources.collect();
    if !call.in_rank_order {
        from.rotate_left(rank);
    }
    from
}

/// A reduce in which each rank combines a slice of all ranks' buffers into the root's.
fn reduce_by_owners(tree: &Tree, call: &Call<'_>, rank: usize) -> Plan {
    let whole = 0..call.lengths.total(1);
    let slice = share(&whole, tree.size(), rank, call.granule());
    let combine = Stage::moving([Piece {
        to: Span {
            rank: call.root,
            buffer: Buffer::Receive,
            at: slice.start,
        },
        bytes: slice.len(),
        from: from_all(tree, call, rank, &slice),
    }]);
    let mut stages = vec![combine];
    stages.extend(all_have_ended(tree, rank, |_| 1));
    Plan { stages }
}

/// A reduce_scatter in which each rank combines its own block.
fn owners(tree: &Tree, call: &Call<'_>, rank: usize) -> Plan {
    let block = call.lengths.block(rank);
    // Where the contribution is others may read still.
    let span = |buffer| Span {
        rank,
        buffer,
        at: 0,
    };
    let combine = Stage::moving([Piece {
        to: span(Buffer::Scratch),
        bytes: block.len(),
        from: from_all(tree, call, rank, &block),
    }]);
    let mut stages = vec![combine];
    stages.extend(all_have_ended(tree, rank, |_| 1));
    stages.push(Stage::moving([Piece {
        to: span(Buffer::Receive),
        bytes: block.len(),
        from: vec![Source {
            span: span(Buffer::Scratch),
            after: Some(ended(rank, 1)),
            in_order: false,
        }],
    }]));
    Plan { stages }
}

/// A reduce.
fn reduce(combined: &Combined<'_>, rank: usize) -> Plan {
    let (tree, root) = (combined.tree, combined.call.root);
    let chain: Vec<usize> = tree.chain(rank).collect();
    let mut stages: Vec<Stage> = chain
        .iter()
        .map(|group| combined.up(rank, *group))
        .collect();
    // The root has its part where it belongs. Its memory may be written to: what is written there
    // is made of what was read from it.
    let own = combined
        .result()
        .iter()
        .filter(|it| it.span.rank == rank && rank != root);
    let pieces = own.map(|held| Piece {
        to: Span {
            rank: root,
            buffer: Buffer::Receive,
            at: held.range.start,
        },
        bytes: held.range.len(),
        from: vec![held.source()],
    });
    stages.push(Stage::moving(pieces));
    if combined.workers == Workers::All {
        stages.extend(gathered(tree, rank, root, |rank| combined.depth(rank) + 1));
    }
    let readers = chain
        .iter()
        .flat_map(|group| combined.read_up(rank, *group));
    stages.push(Stage::waiting(latest(readers)));
    Plan { stages }
}

/// A reduce_scatter.
fn reduce_scatter(combined: &Combined<'_>, parts: &Parts, rank: usize) -> Plan {
    let (tree, call) = (combined.tree, combined.call);
    let block = call.lengths.block(rank);
    // Those who read a block wait for the stage behind, as others follow the last one.
    let piece = |mut held: Held| {
        if let Some(after) = &mut held.after {
            *after = ended(after.rank, combined.depth(after.rank));
            held.in_order = false;
        }
        Piece {
            to: Span {
                rank,
                buffer: Buffer::Receive,
                at: held.range.start - block.start,
            },
            bytes: held.range.len(),
            from: vec![held.source()],
        }
    };
    let most = tree.most_followers();
    if !parts.are_read_by_few(most) {
        // Few ranks hold a short result: it goes to all as an allreduce's does.
        let (mut stages, after) = combined.up_and_down(rank, Buffer::Scratch);
        let own = Held::own(block.clone(), rank, Buffer::Scratch, block.start);
        stages.push(Stage {
            after,
            pieces: vec![piece(own)],
        });
        return Plan { stages };
    }
    let chain: Vec<usize> = tree.chain(rank).collect();
    let mut stages: Vec<Stage> = chain
        .iter()
        .map(|group| combined.up(rank, *group))
        .collect();
    // The block may be written to where the contribution is.
    let read = chain
        .iter()
        .flat_map(|group| combined.read_up(rank, *group));
    stages.push(Stage {
        after: latest(read),
        pieces: parts.of[rank].iter().cloned().map(piece).collect(),
    });
    let before = |rank| combined.depth(rank) + 1;
    if parts.of.iter().any(|parts| parts.len() > most) {
        // A rank with a long block reads from many, each of which would look at it.
        stages.extend(all_have_ended(tree, rank, before));
        return Plan { stages };
    }
    let fetching = parts.readers[rank].iter().copied();
    let fetching = fetching.filter(|reader| *reader != rank);
    stages.push(Stage::waiting(
        fetching.map(|reader| ended(reader, before(reader))),
    ));
    Plan { stages }
}
