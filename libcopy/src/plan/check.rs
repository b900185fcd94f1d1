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
use super::executor::{Execution, Step, Transport};
use super::stage::{After, Buffer, Piece, Plan, Progress, Span};
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

/// An element; None where nothing is.
pub type Element = Option<(u64, u64)>;

/// Two values combined.
fn combined(first: Element, second: Element, in_rank_order: bool) -> Element {
    let ((a, b), (c, d)) = (first?, second?);
    if !in_rank_order {
        return Some((a.wrapping_add(c), b.wrapping_add(d)));
    }
    Some((a.wrapping_mul(c), a.wrapping_mul(d).wrapping_add(b)))
}

/// What a rank contributes: an element at a place. The factors are odd, so that none is lost.
pub fn contributed(rank: usize, at: usize) -> Element {
    let number = (rank as u64) << 32 | at as u64;
    let mixed = number.wrapping_add(1).wrapping_mul(0xd6e8_feb8_6659_fd93);
    Some(((mixed ^ mixed >> 29) | 1, mixed.rotate_left(23)))
}

struct Rank {
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
    returned: bool,
}

impl Rank {
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
    let ranks = (0..size).map(|rank| begin(call, rank, size, in_place));
    let mut ranks: Vec<Rank> = ranks.collect();
    let mut executions: Vec<Execution<'_>> = plans.iter().map(Execution::new).collect();
    let mut left = size;
    let mut round = 0;
    while left > 0 {
        round += 1;
        let mut moved = false;
        let first = choose(size);
        for rank in (first..size).chain(0..first) {
            if ranks[rank].returned {
                continue;
            }
            if !ranks[rank].begun {
                // Some come late, whatever is chosen.
                ranks[rank].begun = choose(3) > 0 || round > 8;
                moved = true;
                continue;
            }
            for _ in 0..=choose(4) {
                let mut seen = Seen {
                    ranks: &mut ranks,
                    call,
                    rank,
                    choose: &mut *choose,
                };
                match executions[rank].poll(&mut seen)? {
                    Step::Moved => moved = true,
                    Step::Waits => break,
                    Step::Ended => {
                        (ranks[rank].returned, moved) = (true, true);
                        left -= 1;
                        break;
                    }
                }
            }
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

fn begin(call: &Call<'_>, rank: usize, size: usize, in_place: bool) -> Rank {
    let element = call.element.max(1);
    let (sent, received) = call.buffers(rank, size);
    let mut state = Rank {
        send: vec![None; sent / element],
        receive: vec![None; received / element],
        scratch: BTreeMap::new(),
        in_place: None,
        written: vec![0; received / element],
        begun: false,
        progress: Progress { stage: 0, bytes: 0 },
        returned: false,
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

/// The ranks as one of them sees them.
struct Seen<'s> {
    ranks: &'s mut [Rank],
    call: &'s Call<'s>,
    rank: usize,
    choose: &'s mut dyn FnMut(usize) -> usize,
}

impl Seen<'_> {
    fn fault(&self, what: String) -> Fault {
        Fault {
            rank: self.rank,
            what,
        }
    }

    /// What is in an element of a source, which must be there.
    fn read(&mut self, span: Span, at: usize) -> Result<Element, Fault> {
        let Span {
            rank,
            buffer,
            at: first,
        } = span;
        let place = first + at;
        let element = place / self.call.element.max(1);
        let found = self.ranks[rank].element(buffer, element).copied().flatten();
        if found.is_none() {
            let what =
                format!("reads byte {place} of {buffer:?} of rank {rank}, which is not there");
            return Err(self.fault(what));
        }
        Ok(found)
    }

    fn write(&mut self, span: Span, at: usize, value: Element) -> Result<(), Fault> {
        let place = (span.at + at) / self.call.element.max(1);
        let owner = &mut self.ranks[span.rank];
        let Some(element) = owner.element(span.buffer, place) else {
            let (buffer, rank) = (span.buffer, span.rank);
            return Err(self.fault(format!(
                "writes behind the end of {buffer:?} of rank {rank}"
            )));
        };
        *element = value;
        if span.buffer == Buffer::Receive {
            owner.written[place] += 1;
        }
        Ok(())
    }
}

impl Transport for Seen<'_> {
    type Error = Fault;

    fn has_begun(&self, rank: usize) -> bool {
        self.ranks[rank].begun
    }

    fn has_come(&self, after: &After) -> bool {
        let rank = &self.ranks[after.rank];
        rank.begun && rank.progress >= after.progress
    }

    fn tell(&mut self, progress: Progress) {
        self.ranks[self.rank].progress = progress;
    }

    fn chunk(&mut self, piece: &Piece, start: usize) -> usize {
        let element = self.call.element.max(1);
        let rest = (piece.bytes - start) / element;
        element
            * if rest > 1 {
                1 + (self.choose)(rest)
            } else {
                rest
            }
    }

    fn transfer(&mut self, piece: &Piece, start: usize, bytes: usize) -> Result<(), Fault> {
        let sources = piece.from.iter().map(|source| source.span.rank);
        for other in sources.chain([piece.to.rank]) {
            if self.ranks[other].returned {
                let what = format!("memory of rank {other}, which has returned, is touched");
                return Err(self.fault(what));
            }
        }
        for at in (start..start + bytes).step_by(self.call.element.max(1)) {
            let mut value: Option<Element> = None;
            for source in &piece.from {
                let own = self.read(source.span, at)?;
                let in_rank_order = self.call.in_rank_order;
                value = Some(value.map_or(own, |value| combined(value, own, in_rank_order)));
            }
            self.write(piece.to, at, value.flatten())?;
        }
        Ok(())
    }
}

fn stuck(ranks: &[Rank]) -> Fault {
    let waiting = ranks.iter().enumerate().find(|(_, state)| !state.returned);
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
pub fn expected<'a>(call: &'a Call<'a>, size: usize) -> impl Fn(usize, usize) -> Element + 'a {
    let element = call.element.max(1);
    // What ranks up to each one combine to. All but the last only for scans.
    let mut sums: Vec<Vec<Element>> = Vec::new();
    if call.operation.combines() {
        let (sent, _) = call.buffers(0, size);
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
    state: &Rank,
    call: &Call<'_>,
    rank: usize,
    size: usize,
    expected: &impl Fn(usize, usize) -> Element,
) -> Result<(), Fault> {
    let (_, received) = call.buffers(rank, size);
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
