// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs the plans of all ranks on made-up memory, in any order that they allow, and says what is
//! wrong with them: a result, a wait that never ends, memory that is touched before its owner has
//! begun or after it has returned.
//!
//! An element is a map `x -> a * x + b`. Where values are combined in the order of ranks, combining
//! is composition, which is associative and not commutative; elsewhere it adds both numbers. So a
//! value that is missing, that is there twice, or in another order than that of ranks shows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::call::{Call, Operation};
use super::stage::{After, Buffer, Plan, Progress, Source, Span};
use super::tree::Tree;

/// What is wrong with the plans of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The rank where it shows.
    pub rank: usize,
    /// What it is.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: {}", self.rank, self.what)
    }
}

impl std::error::Error for Fault {}

/// What the plans of a call are like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Stages of a rank, at most.
    pub stages: usize,
    /// Ranks of a group that wait for the same stage of a rank, at most: progress is told to each
    /// group in a line of its own.
    pub fan_out: usize,
    /// Bytes that all ranks together move or read to combine.
    pub bytes: usize,
}

/// An element.
type Element = Option<(u64, u64)>;

fn combined(first: Element, second: Element, in_rank_order: bool) -> Element {
    let ((a, b), (c, d)) = (first?, second?);
    if !in_rank_order {
        return Some((a.wrapping_add(c), b.wrapping_add(d)));
    }
    Some((a.wrapping_mul(c), a.wrapping_mul(d).wrapping_add(b)))
}

/// What a rank contributes: an element at a place. The factors are odd, so that none is lost.
fn contributed(rank: usize, at: usize) -> Element {
    let number = (rank as u64) << 32 | at as u64;
    let mixed = number.wrapping_add(1).wrapping_mul(0xd6e8_feb8_6659_fd93);
    Some(((mixed ^ mixed >> 29) | 1, mixed.rotate_left(23)))
}

struct Rank<'a> {
    plan: &'a Plan,
    /// Elements of the buffers; those of `Send` are in `Receive`, from this one on, if the call is
    /// in place.
    send: Vec<Element>,
    receive: Vec<Element>,
    scratch: BTreeMap<usize, Element>,
    in_place: Option<usize>,
    /// How often an element of `Receive` was written.
    written: Vec<usize>,
    begun: bool,
    progress: Progress,
    /// The piece of the stage, and bytes of it that are done.
    piece: usize,
    done: usize,
}

impl Rank<'_> {
    fn has_returned(&self) -> bool {
        self.begun && self.progress.stage == self.plan.stages.len()
    }

    fn element(&mut self, buffer: Buffer, at: usize) -> Option<&mut Element> {
        match (buffer, self.in_place) {
            (Buffer::Send, Some(start)) => self.receive.get_mut(start + at),
            (Buffer::Send, None) => self.send.get_mut(at),
            (Buffer::Receive, _) => self.receive.get_mut(at),
            (Buffer::Scratch, _) => Some(self.scratch.entry(at).or_default()),
        }
    }
}

/// Runs the plans of a call. `choose` gives numbers below its argument, which decide about the
/// order; `in_place`: contributions are where results go, as with `MPI_IN_PLACE`. Spans and lengths
/// must be multiples of the call's element.
///
/// # Errors
///
/// The first fault that shows.
pub fn run(
    tree: &Tree,
    plans: &[Plan],
    call: &Call<'_>,
    in_place: bool,
    choose: &mut dyn FnMut(usize) -> usize,
) -> Result<Findings, Fault> {
    let size = plans.len();
    let mut ranks: Vec<Rank<'_>> = plans
        .iter()
        .enumerate()
        .map(|(rank, plan)| begin(plan, call, rank, size, in_place))
        .collect();
    let mut left = size;
    let mut round = 0;
    while left > 0 {
        round += 1;
        let mut moved = false;
        let first = choose(size);
        for rank in (first..size).chain(0..first) {
            if ranks[rank].has_returned() {
                continue;
            }
            if !ranks[rank].begun {
                // Some come late, whatever is chosen.
                ranks[rank].begun = choose(3) > 0 || round > 8;
                moved = true;
                continue;
            }
            for _ in 0..=choose(4) {
                if ranks[rank].has_returned() || !step(&mut ranks, call, rank, choose)? {
                    break;
                }
                moved = true;
            }
            left -= usize::from(ranks[rank].has_returned());
        }
        if !moved {
            return Err(stuck(&ranks));
        }
    }
    let expected = expected(call, size);
    for (rank, state) in ranks.iter().enumerate() {
        compare(state, call, rank, size, &expected)?;
    }
    Ok(findings(tree, plans))
}

fn begin<'a>(
    plan: &'a Plan,
    call: &Call<'_>,
    rank: usize,
    size: usize,
    in_place: bool,
) -> Rank<'a> {
    let element = call.element.max(1);
    let (sent, received) = lengths(call, rank, size);
    let mut state = Rank {
        plan,
        send: vec![None; sent / element],
        receive: vec![None; received / element],
        scratch: BTreeMap::new(),
        in_place: None,
        written: vec![0; received / element],
        begun: false,
        progress: Progress { stage: 0, bytes: 0 },
        piece: 0,
        done: 0,
    };
    let is_root = rank == call.root;
    state.in_place = match call.operation {
        Operation::Allreduce | Operation::ReduceScatter | Operation::Scan | Operation::Exscan => {
            Some(0)
        }
        Operation::Reduce if is_root => Some(0),
        Operation::Allgather => Some(call.lengths.block(rank).start / element),
        Operation::Gather if is_root => Some(call.lengths.block(rank).start / element),
        _ => None,
    }
    .filter(|_| in_place);
    if call.operation == Operation::ReduceScatter && state.in_place.is_some() {
        state.receive.resize(sent / element, None);
        state.written.resize(sent / element, 0);
    }
    for at in 0..sent / element {
        if let Some(place) = state.element(Buffer::Send, at) {
            *place = contributed(rank, at);
        }
    }
    if call.operation == Operation::Bcast && is_root {
        let bytes = state.receive.iter_mut().enumerate();
        bytes.for_each(|(at, place)| *place = contributed(rank, at));
    }
    state
}

/// Bytes that a rank contributes and receives.
fn lengths(call: &Call<'_>, rank: usize, size: usize) -> (usize, usize) {
    let total = call.lengths.total(size);
    let one = call.lengths.total(1);
    let block = call.lengths.block(rank).len();
    let root = rank == call.root;
    match call.operation {
        Operation::Barrier => (0, 0),
        Operation::Bcast => (0, one),
        Operation::Reduce => (one, if root { one } else { 0 }),
        Operation::Allreduce | Operation::Scan | Operation::Exscan => (one, one),
        Operation::ReduceScatter => (total, block),
        Operation::Allgather => (block, total),
        Operation::Gather => (block, if root { total } else { 0 }),
        Operation::Scatter => (if root { total } else { 0 }, block),
        Operation::Alltoall => (total, total),
    }
}

fn has_come(ranks: &[Rank<'_>], after: &After) -> bool {
    let rank = &ranks[after.rank];
    rank.begun && rank.progress >= after.progress
}

/// Whether a source has its first bytes up to `end` of a piece of `bytes`.
fn is_there(ranks: &[Rank<'_>], source: &Source, end: usize, bytes: usize) -> bool {
    let Some(mut after) = source.after else {
        return ranks[source.span.rank].begun;
    };
    if source.in_order {
        after.progress.bytes = after.progress.bytes.saturating_sub(bytes - end);
    }
    has_come(ranks, &after)
}

/// Moves one chunk of a rank, if it can.
fn step(
    ranks: &mut [Rank<'_>],
    call: &Call<'_>,
    rank: usize,
    choose: &mut dyn FnMut(usize) -> usize,
) -> Result<bool, Fault> {
    let element = call.element.max(1);
    let fault = |what: String| Fault { rank, what };
    let state = &ranks[rank];
    let stage = &state.plan.stages[state.progress.stage];
    let begins = state.piece == 0 && state.done == 0;
    if begins && !stage.after.iter().all(|after| has_come(ranks, after)) {
        return Ok(false);
    }
    let Some(piece) = stage.pieces.get(state.piece) else {
        let state = &mut ranks[rank];
        state.progress = Progress {
            stage: state.progress.stage + 1,
            bytes: 0,
        };
        (state.piece, state.done) = (0, 0);
        return Ok(true);
    };
    let start = state.done;
    let rest = (piece.bytes - start) / element;
    let bytes = element * if rest > 1 { 1 + choose(rest) } else { rest };
    let ready = |source: &Source| is_there(ranks, source, start + bytes, piece.bytes);
    if !piece.from.iter().all(ready) || !ranks[piece.to.rank].begun {
        return Ok(false);
    }
    let touched = piece
        .from
        .iter()
        .map(|source| source.span.rank)
        .chain([piece.to.rank]);
    for other in touched {
        if ranks[other].has_returned() {
            return Err(fault(format!(
                "memory of rank {other}, which has returned, is touched"
            )));
        }
    }
    for at in (start..start + bytes).step_by(element) {
        let mut value: Option<Element> = None;
        for source in &piece.from {
            let Span {
                rank: other,
                buffer,
                at: place,
            } = source.span;
            let place = place + at;
            let own = ranks[other]
                .element(buffer, place / element)
                .copied()
                .flatten();
            if own.is_none() {
                let what =
                    format!("reads byte {place} of {buffer:?} of rank {other}, which is not there");
                return Err(fault(what));
            }
            value = Some(value.map_or(own, |value| combined(value, own, call.in_rank_order)));
        }
        let (to, place) = (piece.to, (piece.to.at + at) / element);
        let owner = &mut ranks[to.rank];
        let Some(element) = owner.element(to.buffer, place) else {
            return Err(fault(format!(
                "writes behind the end of {:?} of rank {}",
                to.buffer, to.rank
            )));
        };
        *element = value.flatten();
        if to.buffer == Buffer::Receive {
            owner.written[place] += 1;
        }
    }
    let state = &mut ranks[rank];
    state.done += bytes;
    state.progress.bytes += bytes;
    if state.done == piece.bytes {
        (state.piece, state.done) = (state.piece + 1, 0);
        // The stage has begun, though its next piece has not.
        if state.piece == stage.pieces.len() {
            state.progress = Progress {
                stage: state.progress.stage + 1,
                bytes: 0,
            };
            state.piece = 0;
        }
    }
    Ok(true)
}

fn stuck(ranks: &[Rank<'_>]) -> Fault {
    let waiting = ranks
        .iter()
        .enumerate()
        .find(|(_, state)| !state.has_returned());
    let (rank, progress) = waiting.map_or((0, Progress { stage: 0, bytes: 0 }), |(rank, state)| {
        (rank, state.progress)
    });
    let what = format!(
        "waits for ever in stage {} after {} bytes",
        progress.stage, progress.bytes
    );
    Fault { rank, what }
}

/// What must be in the elements of each rank's `Receive`.
fn expected<'a>(call: &'a Call<'a>, size: usize) -> impl Fn(usize, usize) -> Element + 'a {
    let element = call.element.max(1);
    // What ranks up to each one combine to. All but the last only for scans.
    let mut sums: Vec<Vec<Element>> = Vec::new();
    if call.operation.combines() {
        let (sent, _) = lengths(call, 0, size);
        let mut sum: Vec<Element> = (0..sent / element).map(|at| contributed(0, at)).collect();
        for rank in 1..size {
            if call.operation.is_scan() {
                sums.push(sum.clone());
            }
            for (at, sum) in sum.iter_mut().enumerate() {
                *sum = combined(*sum, contributed(rank, at), call.in_rank_order);
            }
        }
        sums.push(sum);
    }
    let starts: Vec<usize> = (0..size)
        .map(|rank| call.lengths.block(rank).start / element)
        .collect();
    // Of blocks without bytes that start at the same place, the last one has it.
    let block = move |at: usize| {
        let owner = starts.partition_point(|start| *start <= at) - 1;
        (owner, at - starts[owner])
    };
    move |rank, at| {
        let own = call.lengths.block(rank).start / element;
        match call.operation {
            Operation::Barrier => None,
            Operation::Bcast => contributed(call.root, at),
            Operation::Reduce | Operation::Allreduce => sums[0][at],
            Operation::ReduceScatter => sums[0][own + at],
            Operation::Allgather | Operation::Gather => {
                let (owner, at) = block(at);
                contributed(owner, at)
            }
            Operation::Scatter => contributed(call.root, own + at),
            Operation::Alltoall => {
                let (owner, at) = block(at);
                contributed(owner, own + at)
            }
            Operation::Scan => sums[rank][at],
            Operation::Exscan => sums[rank - 1][at],
        }
    }
}

fn compare(
    state: &Rank<'_>,
    call: &Call<'_>,
    rank: usize,
    size: usize,
    expected: &impl Fn(usize, usize) -> Element,
) -> Result<(), Fault> {
    let (_, received) = lengths(call, rank, size);
    // The first rank's buffer is undefined after an exscan.
    if call.operation == Operation::Exscan && rank == 0 {
        return Ok(());
    }
    let is_source = call.operation == Operation::Bcast && rank == call.root;
    for at in 0..received / call.element.max(1) {
        if state.receive[at] != expected(rank, at) {
            let what = format!("element {at} of the result is wrong");
            return Err(Fault { rank, what });
        }
        if !call.operation.combines() && state.written[at] != usize::from(!is_source) {
            let what = format!("element {at} is written {} times", state.written[at]);
            return Err(Fault { rank, what });
        }
    }
    Ok(())
}

/// What plans are like.
pub fn findings(tree: &Tree, plans: &[Plan]) -> Findings {
    let mut waiting: BTreeMap<(usize, usize, usize), BTreeSet<usize>> = BTreeMap::new();
    let mut findings = Findings::default();
    for (rank, plan) in plans.iter().enumerate() {
        findings.stages = findings.stages.max(plan.stages.len());
        for stage in &plan.stages {
            let sources = stage.pieces.iter().flat_map(|piece| &piece.from);
            let afters = sources.filter_map(|source| source.after);
            for after in afters.chain(stage.after.iter().copied()) {
                if after.rank != rank {
                    let group = tree.common(rank, after.rank);
                    let key = (after.rank, after.progress.stage, group);
                    waiting.entry(key).or_default().insert(rank);
                }
            }
            let bytes = stage
                .pieces
                .iter()
                .map(|piece| piece.bytes * piece.from.len());
            findings.bytes += bytes.sum::<usize>();
        }
    }
    findings.fan_out = waiting.values().map(BTreeSet::len).max().unwrap_or(0);
    findings
}
