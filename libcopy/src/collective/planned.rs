// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives by plans: each rank runs its own, and shows on its board ([`crate::shm::board`]) how
//! far it is.
//!
//! The buffers of a short call are in the ranks' slots in shared memory, where all reach them.
//! Those of others are read and written through the module or CMA. What no transport reaches, its
//! owner copies into the room of the rank that needs it, or out of it, while it waits for others
//! itself.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::division::Division;
use crate::error::{Boxed, Error};
use crate::memcpy;
use crate::op::{Call, Op};
use crate::plan::{
    After, Buffer, Call as PlanCall, Execution, Lengths, Operation, Piece, Plan, Planned, Progress,
    Source, Span, Step, Transport, Workers,
};
use crate::policy::Path;
use crate::shm::board::{BUFFERS, CopyRequest, PLACE_WORDS, REQUESTS, position};
use crate::shm::segment::{ROOM, SLOT, Segment};
use crate::team::{Decision, Team};
use crate::topology::Topology;
use crate::transport::TransportKind;
use crate::transport::remote_key::RemoteKey;

/// Combines the elements of its first argument into those of its second, which are as many.
pub(super) type Combine<'a> = &'a mut dyn FnMut(&[u8], &mut [u8]);

/// Memory of ours: where it starts, and its bytes.
type Memory = (*mut u8, usize);

const NONE: Memory = (std::ptr::null_mut(), 0);

/// Bytes that are fetched from a peer at a time to be combined, while they are in the second-level
/// cache. At least three times as many are in it then: a peer's, where these are fetched to, and
/// what they are combined with.
fn combined_at_a_time(element: usize) -> usize {
    let bytes = (Topology::current().l2 / 8).clamp(32 << 10, 128 << 10);
    (bytes / element).max(1) * element
}

/// Whether a call that the policy decides so about goes by plans. Two ranks have none: they share
/// their copies.
pub(super) fn takes(team: &Team, decision: Decision) -> Option<TransportKind> {
    match decision.path {
        Path::Via(kind) if kind != TransportKind::Shm && team.size() > 2 && !decision.offloads => {
            Some(kind)
        }
        _ => None,
    }
}

/// The same of a gather or scatter of equal parts: these have plans where more ranks would move
/// their parts at once than get anything out of it, as was measured.
pub(super) fn takes_turns(team: &Team, op: Op, part: usize) -> Option<TransportKind> {
    takes(team, team.decide(op, part)).filter(|_| team.takes_turns())
}

/// Collects everybody's `part` bytes at `mine` in the root's `recv`, ordered by rank; elsewhere
/// that is empty. Some ranks write at a time.
///
/// # Safety
///
/// `mine` is readable for `part` bytes, and nobody writes to it meanwhile; it is the root's part of
/// `recv`, or elsewhere.
pub(super) unsafe fn gather(
    team: &mut Team,
    root: usize,
    (mine, part): (*const u8, usize),
    recv: &mut [u8],
    kind: TransportKind,
) -> Boxed<()> {
    let planned = team.plan(&plan_call(Operation::Gather, root, Lengths::Same(part)));
    let mut run = Run::new(team, Call::new(Op::Gather, root, part), &planned);
    run.kind = kind;
    run.is_read[index(Buffer::Send)] = false;
    run.is_written = true;
    run.memory[index(Buffer::Send)] = (mine.cast_mut(), part);
    run.memory[index(Buffer::Receive)] = (recv.as_mut_ptr(), recv.len());
    // SAFETY: both are borrowed until all who write to us are done.
    unsafe { run.start(team) }
}

/// Hands the root's `send` out in parts of `part` bytes, ordered by rank; elsewhere that is empty.
/// Ours goes to `mine`. Some ranks read at a time.
///
/// # Safety
///
/// `mine` is writable for `part` bytes, and nobody else uses it meanwhile; it is the root's part of
/// `send`, or elsewhere.
pub(super) unsafe fn scatter(
    team: &mut Team,
    root: usize,
    send: &[u8],
    (mine, part): (*mut u8, usize),
    kind: TransportKind,
) -> Boxed<()> {
    let planned = team.plan(&plan_call(Operation::Scatter, root, Lengths::Same(part)));
    let mut run = Run::new(team, Call::new(Op::Scatter, root, part), &planned);
    run.kind = kind;
    run.is_read[index(Buffer::Receive)] = false;
    run.memory[index(Buffer::Send)] = (send.as_ptr().cast_mut(), send.len());
    run.memory[index(Buffer::Receive)] = (mine, part);
    // SAFETY: both are borrowed until all who read from us are done.
    unsafe { run.start(team) }
}

/// Copies the root's bytes into everybody's.
pub(super) fn bcast(
    team: &mut Team,
    bytes: &mut [u8],
    root: usize,
    kind: TransportKind,
) -> Boxed<()> {
    let planned = team.plan(&plan_call(
        Operation::Bcast,
        root,
        Lengths::Same(bytes.len()),
    ));
    let mut run = Run::new(team, Call::new(Op::Bcast, root, bytes.len()), &planned);
    run.kind = kind;
    // Nobody reads from a leaf.
    run.is_read[index(Buffer::Receive)] = planned.leads;
    run.memory[index(Buffer::Receive)] = (bytes.as_mut_ptr(), bytes.len());
    // SAFETY: the slice is borrowed until all who follow us are done with it.
    unsafe { run.start(team) }
}

/// Collects everybody's part at `mine` in `recv`, where the parts follow each other; ours may be
/// there already.
///
/// # Safety
///
/// `mine` is readable for the length of our part, and nobody writes to it meanwhile; it is our part
/// of `recv`, or elsewhere.
pub(super) unsafe fn allgather(
    team: &mut Team,
    mine: *const u8,
    recv: &mut [u8],
    division: Division<'_>,
    kind: TransportKind,
) -> Boxed<()> {
    let (me, size) = (team.rank(), team.size());
    let starts: Vec<usize>;
    let lengths = if let Division::Equal(len) = division {
        Lengths::Same(len)
    } else {
        let parts = (0..size).map(|rank| division.part(rank).0);
        starts = parts.chain([recv.len()]).collect();
        Lengths::Starts(&starts)
    };
    let planned = team.plan(&plan_call(Operation::Allgather, 0, lengths));
    let mut run = Run::new(team, Call::new(Op::Allgather, 0, recv.len()), &planned);
    run.kind = kind;
    run.memory[index(Buffer::Send)] = (mine.cast_mut(), division.part(me).1);
    run.memory[index(Buffer::Receive)] = (recv.as_mut_ptr(), recv.len());
    // SAFETY: both are borrowed until all who read from us are done with them.
    unsafe { run.start(team) }
}

/// Hands everybody's `send` out in equal parts, which come together in everybody's `recv`.
pub(super) fn alltoall(
    team: &mut Team,
    send: &[u8],
    recv: &mut [u8],
    part: usize,
    kind: TransportKind,
) -> Boxed<()> {
    let planned = team.plan(&plan_call(Operation::Alltoall, 0, Lengths::Same(part)));
    let mut run = Run::new(team, Call::new(Op::Alltoall, 0, send.len()), &planned);
    run.kind = kind;
    run.is_read[index(Buffer::Receive)] = false;
    run.memory[index(Buffer::Send)] = (send.as_ptr().cast_mut(), send.len());
    run.memory[index(Buffer::Receive)] = (recv.as_mut_ptr(), recv.len());
    // SAFETY: both are borrowed until all who read from us are done.
    unsafe { run.start(team) }
}

/// What a rank does in a reduction of elements of `element` bytes.
pub(super) fn plan(
    team: &mut Team,
    operation: Operation,
    root: usize,
    lengths: Lengths<'_>,
    element: usize,
) -> Arc<Planned> {
    team.plan(&PlanCall {
        element,
        ..plan_call(operation, root, lengths)
    })
}

/// Combines everybody's `len` bytes at `from` to everybody's `to`, by this plan.
///
/// # Safety
///
/// Both have `len` bytes, `to` writable, and are the same or apart; nobody else uses either
/// meanwhile.
pub(super) unsafe fn allreduce(
    team: &mut Team,
    planned: &Planned,
    (from, to, len): (*const u8, *mut u8, usize),
    element: usize,
    combine: Combine<'_>,
) -> Boxed<()> {
    let mut run = Run::new(team, Call::new(Op::Allreduce, 0, len), planned);
    run.memory[index(Buffer::Send)] = (from.cast_mut(), len);
    run.memory[index(Buffer::Receive)] = (to, len);
    run.slot = 2 * in_slot(len);
    run.combine = Some((combine, element));
    // SAFETY: the caller's promise.
    unsafe { run.start(team) }
}

/// Combines everybody's `len` bytes at `from` to the root's `to`, by this plan; elsewhere `to` is
/// null.
///
/// # Safety
///
/// As for [`allreduce`].
pub(super) unsafe fn reduce(
    team: &mut Team,
    planned: &Planned,
    root: usize,
    (from, to, len): (*const u8, *mut u8, usize),
    element: usize,
    combine: Combine<'_>,
) -> Boxed<()> {
    let mut run = Run::new(team, Call::new(Op::Reduce, root, len), planned);
    run.memory[index(Buffer::Send)] = (from.cast_mut(), len);
    if team.rank() == root {
        run.memory[index(Buffer::Receive)] = (to, len);
        run.is_written = true;
    }
    run.slot = 3 * in_slot(len);
    run.combine = Some((combine, element));
    // SAFETY: the caller's promise.
    unsafe { run.start(team) }
}

/// Combines everybody's elements at `from`, and puts our part of them to `to`, by this plan. Parts
/// start at `starts`, whose last one is the end of all.
///
/// # Safety
///
/// `from` has the bytes of all parts, and `to`, writable, those of ours; nobody else uses either
/// meanwhile.
pub(super) unsafe fn reduce_scatter(
    team: &mut Team,
    planned: &Planned,
    (from, to): (*const u8, *mut u8),
    starts: &[usize],
    element: usize,
    combine: Combine<'_>,
) -> Boxed<()> {
    let me = team.rank();
    let (own, len) = (starts[me]..starts[me + 1], starts[team.size()]);
    let mut run = Run::new(team, Call::new(Op::ReduceScatter, 0, len), planned);
    run.memory[index(Buffer::Send)] = (from.cast_mut(), len);
    run.memory[index(Buffer::Receive)] = (to, own.len());
    run.is_in_place = std::ptr::eq(from.wrapping_add(own.start), to);
    run.slot = 3 * in_slot(len);
    run.combine = Some((combine, element));
    // SAFETY: the caller's promise.
    unsafe { run.start(team) }
}

/// Combines our `len` bytes at `from` and those of the ranks before us, to `to`; with
/// [`Op::Exscan`] without ours, and nothing on the first rank.
///
/// # Safety
///
/// As for [`allreduce`].
pub(super) unsafe fn scan(
    team: &mut Team,
    op: Op,
    (from, to, len): (*const u8, *mut u8, usize),
    element: usize,
    combine: Combine<'_>,
) -> Boxed<()> {
    let (me, size) = (team.rank(), team.size());
    let operation = match op {
        Op::Exscan => Operation::Exscan,
        _ => Operation::Scan,
    };
    let planned = plan(team, operation, 0, Lengths::Same(len), element);
    let mut run = Run::new(team, Call::new(op, 0, len), &planned);
    run.memory[index(Buffer::Send)] = (from.cast_mut(), len);
    if op == Op::Scan || me > 0 {
        run.memory[index(Buffer::Receive)] = (to, len);
    }
    // What a rank knows after each doubling has its own place in the scratch.
    let doublings = size.next_power_of_two().ilog2().max(1) as usize;
    run.slot = 2 * in_slot(len) + in_slot(len.saturating_mul(doublings));
    run.combine = Some((combine, element));
    // SAFETY: the caller's promise.
    unsafe { run.start(team) }
}

fn plan_call(operation: Operation, root: usize, lengths: Lengths<'_>) -> PlanCall<'_> {
    PlanCall {
        operation,
        root,
        lengths,
        in_rank_order: false,
        element: 1,
    }
}

fn index(buffer: Buffer) -> usize {
    match buffer {
        Buffer::Send => 0,
        Buffer::Receive => 1,
        Buffer::Scratch => 2,
    }
}

/// How other ranks reach a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// It is in its owner's slot, from this byte on.
    Slot { at: usize, len: usize },
    /// Through the transport of the key.
    Key(RemoteKey),
    /// Its owner copies.
    Owner,
}

/// Bytes of a slot that a buffer of this length takes: whole cache lines.
fn in_slot(len: usize) -> usize {
    len.next_multiple_of(64)
}

/// Stands for a slot where the number of a transport is.
const IN_SLOT: u64 = 1 << 32;

impl Reach {
    fn to_words(self) -> [u64; PLACE_WORDS] {
        match self {
            Reach::Slot { at, len } => [IN_SLOT, at as u64, len as u64],
            Reach::Key(key) => RemoteKey::to_words(Some(key)),
            Reach::Owner => RemoteKey::to_words(None),
        }
    }

    fn from_words(words: [u64; PLACE_WORDS]) -> Boxed<Self> {
        let [IN_SLOT, at, len] = words else {
            let key = RemoteKey::from_words(words)?;
            return Ok(key.map_or(Reach::Owner, Reach::Key));
        };
        let (at, len) = (at as usize, len as usize);
        match at.checked_add(len) {
            Some(end) if end <= SLOT => Ok(Reach::Slot { at, len }),
            _ => Err(Error::corrupt("the length of a slot", len as u64).into()),
        }
    }
}

/// What a plan is run with.
struct Run<'a> {
    call: Call,
    planned: &'a Planned,
    /// Our buffers.
    memory: [Memory; BUFFERS],
    /// The transport that the others read through, and which buffers they read.
    kind: TransportKind,
    is_read: [bool; BUFFERS],
    /// Whether others write to what we receive.
    is_written: bool,
    /// Whether what we receive is where our elements of it are.
    is_in_place: bool,
    /// Bytes of a slot that no rank needs more of, if buffers may be in slots.
    slot: usize,
    /// How elements are combined, and bytes of one.
    combine: Option<(Combine<'a>, usize)>,
}

impl<'a> Run<'a> {
    fn new(team: &Team, call: Call, planned: &'a Planned) -> Self {
        Run {
            call,
            planned,
            memory: [NONE; BUFFERS],
            kind: team.transport().unwrap_or(TransportKind::ALL[0]),
            is_read: [true; BUFFERS],
            is_written: false,
            is_in_place: false,
            slot: usize::MAX,
            combine: None,
        }
    }

    /// Runs the plan.
    ///
    /// # Safety
    ///
    /// What is in `memory` is readable, the receive buffer writable, and nobody but the other ranks
    /// uses it meanwhile.
    unsafe fn start(mut self, team: &mut Team) -> Boxed<()> {
        let me = team.rank();
        let (send, receive) = (self.memory[0], self.memory[1]);
        let is_short = self.slot <= SLOT;
        let wanted = self.planned.plan.scratch(me).end;
        let at_a_time = match &self.combine {
            Some((_, element)) => combined_at_a_time(*element).min(self.call.len as usize),
            None => 0,
        };
        let element = self.combine.as_ref().map_or(1, |(_, element)| *element);
        // A slice that its owner combines may be made where it is to be, but not over elements of
        // ours that others still read.
        let is_own = self.planned.workers == Workers::Owners && self.call.op == Op::ReduceScatter;
        let is_in_place = is_own && (are_apart(send, receive) || self.is_in_place);
        let scratch_bytes = if is_short || is_in_place { 0 } else { wanted };
        let room = |bytes: usize| bytes.next_multiple_of(64);
        let mut scratch = team.take_scratch(room(scratch_bytes) + 2 * room(at_a_time))?;
        let base = scratch.as_mut_ptr().cast::<u8>();
        // SAFETY: the three parts are inside the scratch.
        let (acc, other) = unsafe {
            let acc = base.add(room(scratch_bytes));
            (acc, acc.add(room(at_a_time)))
        };
        let mut reach = [Reach::Owner; BUFFERS];
        if is_short {
            self.memory[2] = (base, wanted);
            let slot = team.segment().slot(me);
            let mut end = 0;
            for (buffer, reach) in reach.iter_mut().enumerate() {
                let len = self.memory[buffer].1;
                *reach = Reach::Slot { at: end, len };
                // SAFETY: all ranks' buffers fit into slots, says the caller.
                let place = unsafe { slot.add(end) };
                end += in_slot(len);
                if end > SLOT {
                    return Err(Error::corrupt("the length of a slot", end as u64).into());
                }
                if buffer == index(Buffer::Send) {
                    // SAFETY: both have these bytes.
                    unsafe { memcpy::cached(place, send.0, len) };
                } else {
                    self.memory[buffer] = (place, len);
                }
            }
        } else {
            self.memory[2] = if is_in_place { receive } else { (base, wanted) };
            for (buffer, reach) in reach.iter_mut().enumerate() {
                let (memory, len) = self.memory[buffer];
                let writable = self.is_written && buffer == index(Buffer::Receive);
                if self.is_read[buffer] && len > 0 {
                    // SAFETY: the caller's promise; all who use it are done when the plan is. An
                    // error breaks the team.
                    let key = unsafe { team.open(self.kind, memory, len, writable) };
                    *reach = key.map_or(Reach::Owner, Reach::Key);
                }
            }
        }
        let mut exchange = BoardTransport {
            segment: team.segment(),
            team,
            call: self.call,
            sequence: team.mailbox.sequence,
            memory: self.memory,
            reach,
            is_written: self.is_written,
            chunk: self.planned.chunk,
            combine: self.combine.map(|(combine, _)| combine),
            at_a_time: (at_a_time / element).max(1) * element,
            acc,
            other,
            served: Cell::new(0),
            refused: Cell::new(None),
            failed: RefCell::new(None),
        };
        exchange.show();
        exchange.execute(&self.planned.plan)?;
        let (refused, served) = (exchange.refused.take(), exchange.served.get());
        if is_short && receive.1 > 0 {
            // SAFETY: the slot has what we receive.
            unsafe { memcpy::cached(receive.0, self.memory[1].0, receive.1) };
        }
        team.keep_scratch(scratch);
        team.plan_counts.calls += 1;
        team.plan_counts.levels = self.planned.depth;
        team.plan_counts.copies_for_others += served;
        if let Some(kind) = refused {
            team.invalidate(kind);
        }
        Ok(())
    }
}

/// Whether two pieces of memory have no byte in common.
fn are_apart(one: Memory, other: Memory) -> bool {
    let ((one, len), (other, its_len)) = (one, other);
    let (one, other) = (one as usize, other as usize);
    len == 0 || its_len == 0 || one + len <= other || other + its_len <= one
}

/// What our plan is run by.
struct BoardTransport<'a, 'c> {
    team: &'a Team,
    segment: &'a Segment,
    call: Call,
    sequence: u64,
    memory: [Memory; BUFFERS],
    reach: [Reach; BUFFERS],
    /// Whether others may write to what we receive.
    is_written: bool,
    chunk: usize,
    combine: Option<Combine<'c>>,
    /// Bytes that are combined at a time, and memory of ours for as many: where they are combined,
    /// and what is fetched.
    at_a_time: usize,
    acc: *mut u8,
    other: *mut u8,
    /// Copies for others.
    served: Cell<u64>,
    /// The transport through which a peer should have reached our memory, and did not.
    refused: Cell<Option<TransportKind>>,
    /// That a rank calls something else.
    failed: RefCell<Option<Error>>,
}

impl BoardTransport<'_, '_> {
    /// Shows the others what we call, and how they reach our memory.
    fn show(&mut self) {
        let board = self.segment.board(self.team.rank());
        // Nothing of an earlier call is asked for any more.
        board.requests.iter().for_each(|request| request.clear());
        let places = self.reach.map(Reach::to_words);
        board.call.show(self.sequence, self.call.to_words(), places);
        self.tell(Progress { stage: 0, bytes: 0 });
    }

    fn execute(&mut self, plan: &Plan) -> Boxed<()> {
        let mut execution = Execution::new(plan);
        let me = self.team.rank();
        loop {
            self.serve()?;
            let step = execution.poll(self)?;
            if let Some(error) = self.failed.take() {
                return Err(error.into());
            }
            match step {
                Step::Moved => continue,
                Step::Ended => return Ok(()),
                Step::Waits => {}
            }
            let missing = || execution.missing(self);
            let note = || {
                if let Some(rank) = missing() {
                    self.listen(rank);
                    self.segment.board(rank).watchers.watch(me);
                }
            };
            self.team.mailbox.waiter.wait_noted(
                |rank| missing() == Some(rank),
                note,
                || {
                    let can_go_on = missing().is_none() || self.failed.borrow().is_some();
                    Ok((can_go_on || self.is_asked()).then_some(()))
                },
            )?;
        }
    }

    /// Notes that a rank calls something else, if it does.
    fn compare(&self, rank: usize) {
        let theirs = self.segment.board(rank).call.call(self.sequence);
        if let Some(theirs) = theirs.filter(|words| *words != self.call.to_words()) {
            self.disagree(rank, Call::from_words(theirs));
        }
    }

    /// The same of a rank whose call does not go by plans, and which may have gone on long ago: it
    /// has sent something, as nobody does in a plan.
    fn listen(&self, rank: usize) {
        if let Some(theirs) = self.team.mailbox.unread(rank) {
            self.disagree(rank, theirs);
        }
    }

    fn disagree(&self, rank: usize, theirs: Call) {
        let waiter = &self.team.mailbox.waiter;
        let error = || waiter.mismatch(rank, theirs, self.call);
        self.failed.borrow_mut().get_or_insert_with(error);
    }

    /// Our memory from a byte of a buffer on.
    fn own(&self, buffer: usize, at: usize, len: usize) -> Boxed<*mut u8> {
        match (self.memory.get(buffer), at.checked_add(len)) {
            // SAFETY: within the memory.
            (Some((base, size)), Some(end)) if end <= *size => Ok(unsafe { base.add(at) }),
            _ => Err(Error::corrupt("a place in a buffer", at as u64).into()),
        }
    }

    /// The same if no other process can change it meanwhile: if it is not in our slot.
    fn private(&self, span: Span, start: usize, len: usize) -> Boxed<Option<*mut u8>> {
        let buffer = index(span.buffer);
        let is_in_slot = matches!(self.reach[buffer], Reach::Slot { .. });
        if span.rank != self.team.rank() || is_in_slot && span.buffer != Buffer::Send {
            return Ok(None);
        }
        self.own(buffer, span.at + start, len).map(Some)
    }

    fn is_asked(&self) -> bool {
        let board = self.segment.board(self.team.rank());
        board.asked_by.has_any(self.team.size())
    }

    /// Does the copies that others ask us for.
    fn serve(&self) -> Boxed<()> {
        if !self.is_asked() {
            return Ok(());
        }
        let (me, mut result) = (self.team.rank(), Ok(()));
        let board = self.segment.board(me);
        board.asked_by.take(self.team.size(), |rank| {
            for number in 0..REQUESTS {
                let request = &self.segment.board(rank).requests[number];
                let Some(copy) = request.asked(me, self.sequence) else {
                    continue;
                };
                match self.copy_for(copy, self.segment.room(rank, number)) {
                    Ok(()) => request.finish(),
                    // Nobody takes what is in the room for the bytes: the team is broken.
                    Err(error) => result = Err(error),
                }
            }
            self.segment.block(rank).bell.ring();
        });
        result
    }

    /// Does a copy between our memory and the room of a rank that has asked for it.
    fn copy_for(&self, copy: CopyRequest, room: *mut u8) -> Boxed<()> {
        let len = (copy.len as usize).min(ROOM);
        let own = self.own(copy.buffer, copy.at as usize, len)?;
        if copy.is_write && !(self.is_written && copy.buffer == index(Buffer::Receive)) {
            return Err(Error::corrupt("a buffer that is written to", copy.buffer as u64).into());
        }
        // SAFETY: our memory has these bytes, and a room has as many, which are ours until the
        // request is done; what others may write to is writable.
        unsafe {
            if copy.is_write {
                memcpy::cached(own, room, len);
            } else {
                memcpy::cached(room, own, len);
            }
        }
        self.served.set(self.served.get() + 1);
        if let Reach::Key(key) = self.reach[copy.buffer] {
            self.refused.set(Some(key.kind()));
        }
        Ok(())
    }

    /// How another rank's buffer is reached.
    fn reach(&self, rank: usize, buffer: usize) -> Boxed<Reach> {
        let words = self.segment.board(rank).call.place(self.sequence, buffer);
        let Some(words) = words else {
            // It has gone on: then it called something else, which it has noted, or is broken.
            self.team.mailbox.waiter.verdict()?;
            self.team.mailbox.waiter.compare(rank)?;
            return Err(Error::corrupt("the call of a rank", self.sequence).into());
        };
        Reach::from_words(words)
    }

    /// Copies from a rank's bytes to ours.
    ///
    /// # Safety
    ///
    /// `to` is writable for `len` bytes.
    unsafe fn fetch(&self, span: Span, start: usize, to: *mut u8, len: usize) -> Boxed<()> {
        // SAFETY: the caller's promise.
        unsafe { self.copy(span, start, to, len, false) }
    }

    /// Copies from ours to a rank's bytes.
    ///
    /// # Safety
    ///
    /// `from` is readable for `len` bytes.
    unsafe fn store(&self, span: Span, start: usize, from: *const u8, len: usize) -> Boxed<()> {
        // SAFETY: the caller's promise; `from` is only read.
        unsafe { self.copy(span, start, from.cast_mut(), len, true) }
    }

    /// Copies between a rank's bytes and ours; `is_write`: to the rank's.
    ///
    /// # Safety
    ///
    /// `ours` is readable for `len` bytes if `is_write`, otherwise writable.
    unsafe fn copy(
        &self,
        span: Span,
        start: usize,
        ours: *mut u8,
        len: usize,
        is_write: bool,
    ) -> Boxed<()> {
        let (rank, buffer) = (span.rank, index(span.buffer));
        let at = span.at.saturating_add(start);
        let place = if rank == self.team.rank() {
            Some(self.own(buffer, at, len)?)
        } else {
            match self.reach(rank, buffer)? {
                Reach::Slot {
                    at: first,
                    len: size,
                } => match at.checked_add(len) {
                    // SAFETY: within the slot, as `Reach::from_words` has checked.
                    Some(end) if end <= size => unsafe {
                        Some(self.segment.slot(rank).add(first + at))
                    },
                    _ => return Err(Error::corrupt("a place in a slot", at as u64).into()),
                },
                Reach::Key(key) => {
                    // SAFETY: the caller's promise.
                    let copied = unsafe {
                        if is_write {
                            self.team.push(rank, key, at as u64, ours, len)
                        } else {
                            self.team.pull(rank, key, at as u64, ours, len)
                        }
                    }?;
                    if copied.is_ok() {
                        return Ok(());
                    }
                    self.team.mailbox.waiter.verdict()?;
                    None
                }
                Reach::Owner => None,
            }
        };
        let Some(place) = place else {
            // SAFETY: the caller's promise.
            return unsafe { self.ask((rank, buffer, at), ours, len, is_write) };
        };
        let (from, to) = if is_write {
            (ours, place)
        } else {
            (place, ours)
        };
        if !std::ptr::eq(from, to) {
            // SAFETY: both have these bytes, and are apart, as no byte of a plan is moved onto part
            // of its own piece.
            unsafe { memcpy::cached(to, from, len) };
        }
        Ok(())
    }

    /// Has another rank copy from its buffer to ours, or the other way.
    ///
    /// # Safety
    ///
    /// As for [`BoardTransport::fetch`], or for [`BoardTransport::store`] if its buffer is written
    /// to.
    unsafe fn ask(
        &self,
        (rank, buffer, at): (usize, usize, usize),
        ours: *mut u8,
        len: usize,
        is_write: bool,
    ) -> Boxed<()> {
        let me = self.team.rank();
        let requests = &self.segment.board(me).requests;
        let parts = len.div_ceil(ROOM);
        let part = |number: usize| (number * ROOM, ROOM.min(len - number * ROOM));
        let mut asked = 0;
        for done in 0..parts {
            while asked < parts.min(done + REQUESTS) {
                let (start, bytes) = part(asked);
                let room = self.segment.room(me, asked % REQUESTS);
                if is_write {
                    // SAFETY: the room is ours while nothing is asked; the caller's promise.
                    unsafe { memcpy::cached(room, ours.add(start), bytes) };
                }
                requests[asked % REQUESTS].ask(CopyRequest {
                    owner: rank,
                    sequence: self.sequence,
                    buffer,
                    at: (at + start) as u64,
                    len: bytes as u64,
                    is_write,
                });
                self.segment.board(rank).asked_by.add(me);
                asked += 1;
            }
            self.segment.block(rank).bell.ring();
            let request = &requests[done % REQUESTS];
            self.team.mailbox.waiter.wait(
                |other| other == rank,
                || {
                    // It may wait for us in the same way.
                    self.serve()?;
                    Ok(request.is_done().then_some(()))
                },
            )?;
            if !is_write {
                let (start, bytes) = part(done);
                let room = self.segment.room(me, done % REQUESTS);
                // SAFETY: the room has these bytes, and is ours again; the caller's promise.
                unsafe { memcpy::cached(ours.add(start), room, bytes) };
            }
        }
        Ok(())
    }

    /// Combines bytes of a piece, the first source's first: its elements are ours as a rule.
    fn combine(&mut self, piece: &Piece, start: usize, bytes: usize) -> Boxed<()> {
        let [first, second, ..] = &piece.from[..] else {
            return Err(Error::corrupt("the sources of a piece", piece.from.len() as u64).into());
        };
        let mut result = self.private(piece.to, start, bytes)?;
        for source in &piece.from[1..] {
            // What comes before them must not be where ours still are.
            if result.is_some() && self.private(source.span, start, bytes)? == result {
                result = None;
            }
        }
        let acc = result.unwrap_or(self.acc);
        let mut next = 1;
        match self.private(first.span, start, bytes)? {
            Some(ours) if std::ptr::eq(ours, acc) => {}
            Some(ours) => {
                // Commutative: what is fetched is where the result is to be, and ours stays.
                // SAFETY: there is room for as many bytes as are combined at a time; the two are
                // apart.
                unsafe {
                    self.fetch(second.span, start, acc, bytes)?;
                    self.apply(ours, acc, bytes)?;
                }
                next = 2;
            }
            // SAFETY: as above.
            None => unsafe { self.fetch(first.span, start, acc, bytes)? },
        }
        for Source { span, .. } in &piece.from[next..] {
            let others = match self.private(*span, start, bytes)? {
                Some(ours) => ours,
                None => {
                    // SAFETY: as above.
                    unsafe { self.fetch(*span, start, self.other, bytes)? };
                    self.other
                }
            };
            // SAFETY: as above.
            unsafe { self.apply(others, acc, bytes)? };
        }
        match result {
            Some(_) => Ok(()),
            // SAFETY: there are as many bytes.
            None => unsafe { self.store(piece.to, start, acc, bytes) },
        }
    }

    /// Combines elements into others.
    ///
    /// # Safety
    ///
    /// Both are memory of ours of `len` bytes, and apart.
    unsafe fn apply(&mut self, others: *const u8, into: *mut u8, len: usize) -> Boxed<()> {
        let Some(combine) = &mut self.combine else {
            return Err(Error::corrupt("a piece of a plan", len as u64).into());
        };
        // SAFETY: the caller's promise.
        unsafe {
            let into = std::slice::from_raw_parts_mut(into, len);
            combine(std::slice::from_raw_parts(others, len), into);
        }
        Ok(())
    }
}

impl Transport for BoardTransport<'_, '_> {
    type Error = Box<Error>;

    fn has_begun(&self, rank: usize) -> bool {
        self.compare(rank);
        self.segment.board(rank).call.has_begun(self.sequence)
    }

    fn has_come(&self, after: &After) -> bool {
        self.compare(after.rank);
        let Progress { stage, bytes } = after.progress;
        let line = &self.segment.board(after.rank).progress;
        line.has_come(position(self.sequence, stage), bytes as u64)
    }

    fn tell(&mut self, progress: Progress) {
        let board = self.segment.board(self.team.rank());
        let at = position(self.sequence, progress.stage);
        board.progress.tell(at, progress.bytes as u64);
        let ring = |rank: usize| self.segment.block(rank).bell.ring();
        board.watchers.wake(self.team.size(), ring);
    }

    fn chunk(&mut self, piece: &Piece, _start: usize) -> usize {
        if piece.from.len() > 1 {
            self.at_a_time
        } else {
            self.chunk
        }
    }

    fn transfer(&mut self, piece: &Piece, start: usize, bytes: usize) -> Boxed<()> {
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        // Who failed has its memory back, and what we have mapped of it is still there.
        self.team.mailbox.waiter.verdict()?;
        let [source] = &piece.from[..] else {
            return self.combine(piece, start, bytes);
        };
        if piece.to.rank == self.team.rank() {
            let to = self.own(index(piece.to.buffer), piece.to.at + start, bytes)?;
            // SAFETY: our memory has these bytes, which are ours to write.
            return unsafe { self.fetch(source.span, start, to, bytes) };
        }
        if source.span.rank != self.team.rank() {
            return Err(Error::corrupt("a piece of a plan", piece.to.rank as u64).into());
        }
        let from = self.own(index(source.span.buffer), source.span.at + start, bytes)?;
        // SAFETY: our memory has these bytes.
        unsafe { self.store(piece.to, start, from, bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_survives_words() {
        let cma = Reach::Key(RemoteKey::Cma { base: 9, len: 10 });
        for reach in [
            Reach::Owner,
            cma,
            Reach::Slot {
                at: 64,
                len: SLOT - 64,
            },
        ] {
            assert_eq!(Reach::from_words(reach.to_words()).unwrap(), reach);
        }
        for (at, len) in [(0, SLOT + 1), (SLOT, 1), (usize::MAX, 1)] {
            assert!(Reach::from_words(Reach::Slot { at, len }.to_words()).is_err());
        }
    }

    #[test]
    fn memory_is_apart_or_not() {
        let at = |start: usize, len| (std::ptr::without_provenance_mut(start), len);
        assert!(are_apart(at(8, 8), at(16, 8)) && are_apart(at(16, 8), at(8, 8)));
        assert!(!are_apart(at(8, 9), at(16, 8)) && !are_apart(at(10, 1), at(8, 8)));
        assert!(are_apart(at(8, 0), at(8, 8)) && are_apart(at(8, 8), NONE));
    }
}
