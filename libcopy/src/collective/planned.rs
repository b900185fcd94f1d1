// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives by plans: each rank runs its own on its board ([`crate::shm::board`]), and reads from
//! the others' memory through the module or CMA. What no transport reaches, its owner copies into
//! the room of the rank that needs it, while it waits for others itself.

use std::cell::{Cell, RefCell};

use super::division::Division;
use crate::error::{Error, Result};
use crate::memcpy;
use crate::op::{Call, Op};
use crate::plan::{
    After, Buffer, Call as PlanCall, Execution, Lengths, Operation, Piece, Plan, Planned, Progress,
    Step, Transport,
};
use crate::policy::Path;
use crate::shm::board::{BUFFERS, Copy, REQUESTS, position};
use crate::shm::segment::{ROOM, Segment};
use crate::team::{Decision, Team};
use crate::transport::TransportKind;
use crate::transport::remote_key::RemoteKey;

/// Memory of ours: where it starts, and its bytes.
type Memory = (*mut u8, usize);

const NONE: Memory = (std::ptr::null_mut(), 0);

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

/// Returns when all ranks have come, level by level; nothing where all are one group, which has a
/// counter for that.
pub(super) fn barrier(team: &mut Team) -> Option<Result<()>> {
    if team.size() <= 2 {
        return None;
    }
    let planned = team.plan(&plan_call(Operation::Barrier, 0, Lengths::Same(0)));
    let call = Call::new(Op::Barrier, 0, 0);
    // SAFETY: there is no memory.
    (planned.depth > 1)
        .then(|| unsafe { run(team, call, &planned, [NONE; BUFFERS], TransportKind::Shm) })
}

/// Copies the root's bytes into everybody's.
pub(super) fn bcast(
    team: &mut Team,
    bytes: &mut [u8],
    root: usize,
    kind: TransportKind,
) -> Result<()> {
    let planned = team.plan(&plan_call(
        Operation::Bcast,
        root,
        Lengths::Same(bytes.len()),
    ));
    let call = Call::new(Op::Bcast, root, bytes.len());
    let mut memory = [NONE; BUFFERS];
    memory[index(Buffer::Receive)] = (bytes.as_mut_ptr(), bytes.len());
    // SAFETY: the slice is borrowed until all who follow us are done with it.
    unsafe { run(team, call, &planned, memory, kind) }
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
) -> Result<()> {
    let (me, size) = (team.rank(), team.size());
    let starts = (0..size).map(|rank| division.part(rank).0);
    let starts: Vec<usize> = starts.chain([recv.len()]).collect();
    let lengths = match division {
        Division::Equal(len) => Lengths::Same(len),
        _ => Lengths::Starts(&starts),
    };
    let planned = team.plan(&plan_call(Operation::Allgather, 0, lengths));
    let call = Call::new(Op::Allgather, 0, recv.len());
    let mut memory = [NONE; BUFFERS];
    memory[index(Buffer::Send)] = (mine.cast_mut(), division.part(me).1);
    memory[index(Buffer::Receive)] = (recv.as_mut_ptr(), recv.len());
    // SAFETY: both are borrowed until all who read from us are done with them.
    unsafe { run(team, call, &planned, memory, kind) }
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

/// Runs our plan of a call.
///
/// # Safety
///
/// What is in `memory` is readable, the receive buffer and the scratch writable, and nobody but the
/// other ranks uses it meanwhile.
unsafe fn run(
    team: &mut Team,
    call: Call,
    planned: &Planned,
    memory: [Memory; BUFFERS],
    kind: TransportKind,
) -> Result<()> {
    // Nobody reads from a leaf of a broadcast.
    let is_read = call.op != Op::Bcast || planned.leads;
    let keys = memory.map(|(base, len)| {
        // SAFETY: the caller's promise; it is opened for reading, and used until all who read from
        // us are done. An error breaks the team.
        (is_read && len > 0).then(|| unsafe { team.open(kind, base, len, false) })
    });
    let mut exchange = Exchange {
        segment: team.segment(),
        team,
        call,
        sequence: team.mailbox.sequence,
        memory,
        chunk: planned.chunk,
        refused: Cell::new(None),
        failed: RefCell::new(None),
        kinds: keys.map(|key| key.flatten().map(|key| key.kind())),
    };
    exchange.show(keys.map(|key| RemoteKey::to_words(key.flatten())));
    exchange.execute(&planned.plan)?;
    if let Some(kind) = exchange.refused.take() {
        team.invalidate(kind);
    }
    Ok(())
}

/// What our plan is run by.
struct Exchange<'a> {
    team: &'a Team,
    segment: &'a Segment,
    call: Call,
    sequence: u64,
    memory: [Memory; BUFFERS],
    /// The transports through which others reach it.
    kinds: [Option<TransportKind>; BUFFERS],
    chunk: usize,
    /// The transport through which a peer should have reached our memory, and did not.
    refused: Cell<Option<TransportKind>>,
    /// That a rank calls something else.
    failed: RefCell<Option<Error>>,
}

impl Exchange<'_> {
    /// Shows the others what we call, and how they reach our memory.
    fn show(&mut self, places: [[u64; 3]; BUFFERS]) {
        let board = self.segment.board(self.team.rank());
        // Nothing of an earlier call is asked for any more.
        board.requests.iter().for_each(|request| request.clear());
        board.call.show(self.sequence, self.call.to_words(), places);
        self.tell(Progress { stage: 0, bytes: 0 });
    }

    fn execute(&mut self, plan: &Plan) -> Result<()> {
        let mut execution = Execution::new(plan);
        let me = self.team.rank();
        loop {
            self.serve()?;
            let step = execution.poll(self)?;
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            match step {
                Step::Moved => continue,
                Step::Ended => return Ok(()),
                Step::Waits => {}
            }
            let missing = || execution.missing(self);
            let note = || {
                if let Some(rank) = missing() {
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
        let Some(theirs) = theirs.filter(|words| *words != self.call.to_words()) else {
            return;
        };
        let error = || {
            let waiter = &self.team.mailbox.waiter;
            waiter.mismatch(rank, Call::from_words(theirs), self.call)
        };
        self.failed.borrow_mut().get_or_insert_with(error);
    }

    /// Our memory from a byte of a buffer on.
    fn own(&self, buffer: usize, at: usize, len: usize) -> Result<*mut u8> {
        let (base, size) = self.memory.get(buffer).copied().unwrap_or(NONE);
        match at.checked_add(len) {
            // SAFETY: within the memory.
            Some(end) if end <= size => Ok(unsafe { base.add(at) }),
            _ => Err(Error::corrupt("a place in a buffer", at as u64)),
        }
    }

    fn is_asked(&self) -> bool {
        let board = self.segment.board(self.team.rank());
        board.asked_by.has_any(self.team.size())
    }

    /// Copies what others ask us for.
    fn serve(&self) -> Result<()> {
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
                let len = (copy.len as usize).min(ROOM);
                match self.own(copy.buffer, copy.at as usize, len) {
                    // SAFETY: our memory has these bytes, and a room has as many; they are ours
                    // until the request is done.
                    Ok(from) => unsafe {
                        memcpy::cached(self.segment.room(rank, number), from, len);
                    },
                    Err(error) => result = Err(error),
                }
                if let Some(kind) = self.kinds.get(copy.buffer).copied().flatten() {
                    self.refused.set(Some(kind));
                }
                request.finish();
            }
            self.segment.block(rank).bell.ring();
        });
        result
    }

    /// Reads from another rank's buffer.
    ///
    /// # Safety
    ///
    /// `to` is writable for `len` bytes.
    unsafe fn fetch(
        &self,
        (rank, buffer, at): (usize, usize, usize),
        to: *mut u8,
        len: usize,
    ) -> Result<()> {
        let board = self.segment.board(rank);
        let Some(words) = board.call.place(self.sequence, buffer) else {
            // It has gone on: then it calls something else, or is broken.
            self.team.mailbox.waiter.verdict()?;
            return Err(Error::corrupt("the call of a rank", self.sequence));
        };
        if let Some(key) = RemoteKey::from_words(words)? {
            let transport = self.team.one_sided(key.kind())?;
            // SAFETY: the caller's promise.
            if unsafe { transport.pull(rank, key, at as u64, to, len) }.is_ok() {
                return Ok(());
            }
            self.team.mailbox.waiter.verdict()?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.ask((rank, buffer, at), to, len) }
    }

    /// Has another rank copy from its buffer.
    ///
    /// # Safety
    ///
    /// As for [`Exchange::fetch`].
    unsafe fn ask(
        &self,
        (rank, buffer, at): (usize, usize, usize),
        to: *mut u8,
        len: usize,
    ) -> Result<()> {
        let me = self.team.rank();
        let requests = &self.segment.board(me).requests;
        let parts = len.div_ceil(ROOM);
        let part = |number: usize| (number * ROOM, ROOM.min(len - number * ROOM));
        let mut asked = 0;
        for done in 0..parts {
            while asked < parts.min(done + REQUESTS) {
                let (start, bytes) = part(asked);
                requests[asked % REQUESTS].ask(Copy {
                    owner: rank,
                    sequence: self.sequence,
                    buffer,
                    at: (at + start) as u64,
                    len: bytes as u64,
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
            let (start, bytes) = part(done);
            // SAFETY: the room has these bytes, and is ours again; the caller's promise.
            unsafe { memcpy::cached(to.add(start), self.segment.room(me, done % REQUESTS), bytes) };
        }
        Ok(())
    }
}

impl Transport for Exchange<'_> {
    type Error = Error;

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

    fn chunk(&mut self, _piece: &Piece, _start: usize) -> usize {
        self.chunk
    }

    fn transfer(&mut self, piece: &Piece, start: usize, bytes: usize) -> Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        // Who failed has its memory back, and what we have mapped of it is still there.
        self.team.mailbox.waiter.verdict()?;
        let me = self.team.rank();
        let ([source], true) = (&piece.from[..], piece.to.rank == me) else {
            return Err(Error::corrupt("a piece of a plan", piece.to.rank as u64));
        };
        let to = self.own(index(piece.to.buffer), piece.to.at + start, bytes)?;
        let (buffer, at) = (index(source.span.buffer), source.span.at + start);
        if source.span.rank != me {
            // SAFETY: our memory has these bytes, which are ours to write.
            return unsafe { self.fetch((source.span.rank, buffer, at), to, bytes) };
        }
        let from = self.own(buffer, at, bytes)?;
        if from != to {
            // SAFETY: both are ours, and apart.
            unsafe { memcpy::cached(to, from, bytes) };
        }
        Ok(())
    }
}
