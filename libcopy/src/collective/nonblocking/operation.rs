// SPDX-License-Identifier: MIT OR Apache-2.0

//! A collective that is under way, as one of its ranks sees it.
//!
//! A rank that waits does the work: it reads its parts from the other ranks' memory and writes its
//! own parts into it. Of the other ranks it needs only their entry in the table, which each writes
//! before its call returns. So no rank waits for one that is not in the library.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::engine::{Engines, Held, State};
use super::table::{Between, Buffers, MOST_PIECES, ROOM, Table};
use crate::collective::division::slices;
use crate::op::Op;
use crate::process::Home;
use crate::shm::board::CopyRequest;
use crate::transport::process_memory;

/// So many peers each rank looks after alone.
const FEW: usize = 4;
/// How often all ranks that wait look at all others.
const LOOKING: Duration = Duration::from_millis(100);

/// The ranks of a communicator that reach each other's memory.
#[derive(Debug)]
pub struct Participants {
    /// What the ranks share.
    pub table: Table,
    /// Their processes.
    pub pids: Vec<i32>,
    /// Our rank.
    pub rank: usize,
    /// Engines that move parts, if all ranks have them.
    pub engines: Option<Arc<Engines>>,
    home: Home,
    last: AtomicU64,
    /// Whether one of our operations has the room for copies that the kernel refuses.
    has_room: AtomicBool,
}

impl Participants {
    /// Ranks that have had no operation yet.
    pub fn new(
        table: Table,
        pids: Vec<i32>,
        rank: usize,
        engines: Option<Arc<Engines>>,
    ) -> Participants {
        Participants {
            table,
            pids,
            rank,
            engines,
            home: Home::here(),
            last: AtomicU64::new(0),
            has_room: AtomicBool::new(false),
        }
    }

    /// Ranks.
    pub fn size(&self) -> usize {
        self.pids.len()
    }

    /// Whether other processes reach these bytes of ours: they do not where a device has mapped
    /// them.
    pub fn is_reachable(&self, base: *const u8, len: usize) -> bool {
        let ends = [base as u64, base.wrapping_add(len.saturating_sub(1)) as u64];
        len == 0 || process_memory::is_reachable(self.pids[self.rank], ends)
    }

    /// Whether the next operation is done here: all ranks find the same. None is in a forked child.
    pub fn admits_next(&self) -> bool {
        if !self.home.is_here() {
            return false;
        }
        // This process may have lost the right to read memory without a word.
        let word = 0u64;
        if !self.is_reachable((&raw const word).cast(), size_of::<u64>()) {
            self.table.close();
        }
        self.table.admits(self.coming())
    }

    /// The number of the next operation; all ranks count alike.
    fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The number that the next operation will have.
    pub fn coming(&self) -> u64 {
        self.last.load(Ordering::Relaxed) + 1
    }
}

/// Bytes of a piece: several for those who share them, and not so few that calls of the kernel
/// would be noticed.
fn piece_of(bytes: usize, workers: usize, least: usize) -> usize {
    let usual = (bytes / (2 * workers)).clamp(least, 256 << 10);
    usual
        .max(bytes.div_ceil(MOST_PIECES as usize))
        .next_multiple_of(4096)
}

/// A part that goes from one rank to another, one of which we are.
#[derive(Debug)]
struct Transfer {
    between: Between,
    from: usize,
    to: usize,
    /// Where it is in what the one sends.
    send_at: u64,
    /// Where it is in what the other receives.
    recv_at: u64,
}

/// What all ranks call alike.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The collective.
    pub op: Op,
    /// The root; 0 where there is none.
    pub root: usize,
    /// Bytes that each rank sends to each, or has combined.
    pub bytes: usize,
}

impl Shape {
    /// The function and the root, to compare.
    fn call(&self) -> u64 {
        (self.root as u64) << 8 | self.op as u64
    }

    /// Whether each rank has a part for each.
    fn has_pairs(&self) -> bool {
        matches!(self.op, Op::Allgather | Op::Alltoall)
    }

    /// Which pieces go from one rank to another.
    fn between(&self, from: usize, to: usize) -> Between {
        match self.op {
            _ if self.has_pairs() => Between::Pair { from, to },
            Op::Gather => Between::Leaf(from),
            _ => Between::Leaf(to),
        }
    }

    /// Bytes that a rank sends and receives.
    fn lengths(&self, rank: usize, size: usize) -> (usize, usize) {
        let (one, all) = (self.bytes, self.bytes * size);
        let is_root = rank == self.root;
        match self.op {
            Op::Bcast if is_root => (one, 0),
            Op::Bcast => (0, one),
            Op::Gather if is_root => (0, all),
            Op::Gather => (one, 0),
            Op::Scatter if is_root => (all, 0),
            Op::Scatter => (0, one),
            Op::Allgather => (one, all),
            Op::Alltoall => (all, all),
            _ => (0, 0),
        }
    }
}

/// Elements that are combined.
pub trait Combine: Send {
    /// Bytes of one.
    fn size(&self) -> usize;

    /// Combines `len` bytes of whole elements with those at `to`.
    ///
    /// # Safety
    ///
    /// Both have the operation's bytes, `to` writable.
    ///
    /// # Errors
    ///
    /// Why they cannot be combined.
    unsafe fn add(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String>;
}

/// Why nothing more comes of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Another rank has given one up.
    Broken,
    /// A rank has called another one, as the text says.
    Mismatch(String),
    /// Bytes could not be moved or combined.
    Failed(String),
}

/// Bytes that the kernel does not copy for us: their owner does, through shared memory.
struct Owed {
    peer: usize,
    /// Whether they go to the peer.
    is_write: bool,
    /// Where they are in what the peer sends or receives.
    at: u64,
    /// Where they are in our memory, and how many.
    ours: *mut u8,
    len: usize,
    /// Those that are there.
    done: usize,
    /// Of which pieces this is one, if it is not combined.
    between: Option<Between>,
}

/// A piece that we combine.
struct Current {
    at: usize,
    len: usize,
    /// Where the part of it begins that belongs to one slice, and is combined now.
    slice: usize,
    /// Ranks whose elements of that were combined, and then ranks that have the result.
    step: usize,
    /// Whether what the step moves has been moved, or is owed.
    is_moved: bool,
}

/// How elements are combined.
struct Combining {
    elements: Box<dyn Combine>,
    /// Where the slices begin that the ranks would combine in a blocking collective.
    slices: Vec<usize>,
    /// Who gets the result.
    to: Vec<usize>,
    acc: Vec<u128>,
    other: Vec<u128>,
    current: Option<Current>,
}

/// One that is under way.
pub struct Operation {
    group: Arc<Participants>,
    shape: Shape,
    number: u64,
    /// What engines use of ours; dropped before our buffers are.
    held: Option<Held>,
    send: *mut u8,
    recv: *mut u8,
    piece: usize,
    total: u64,
    transfers: Vec<Transfer>,
    /// Our own part, from here to there.
    own_part: Option<(*const u8, *mut u8)>,
    combining: Option<Combining>,
    /// What the kernel does not copy for us, and the room for it, if we have it.
    owed: Option<Owed>,
    room: Option<*mut u8>,
    failure: Option<Failure>,
    is_first: bool,
}

// SAFETY: what its addresses lead to the program has lent us until the operation is over.
unsafe impl Send for Operation {}

impl Operation {
    /// Makes it known to the others. `copies_own` says whether our own part is elsewhere.
    ///
    /// # Safety
    ///
    /// The buffers have the parts of the shape, and nobody but the operation uses them, until this
    /// is over. The participants' process identifiers are those of the ranks that share the table,
    /// all of which keep this promise.
    pub unsafe fn begin(
        group: &Arc<Participants>,
        shape: Shape,
        (send, recv): (*mut u8, *mut u8),
        copies_own: bool,
        elements: Option<Box<dyn Combine>>,
    ) -> Operation {
        let (me, size, bytes) = (group.rank, group.size(), shape.bytes);
        let number = group.next();
        let at = |rank: usize| (rank * bytes) as u64;
        // Where a part is in what its sender sends, and in what its receiver receives.
        let place = |from: usize, to: usize| match shape.op {
            Op::Gather | Op::Allgather => (0, at(from)),
            Op::Scatter => (at(to), 0),
            Op::Alltoall => (at(to), at(from)),
            _ => (0, 0),
        };
        let transfer = |from: usize, to: usize| {
            let (send_at, recv_at) = place(from, to);
            Transfer {
                between: shape.between(from, to),
                from,
                to,
                send_at,
                recv_at,
            }
        };
        // Each starts with its successor, so that they do not all ask the same one.
        let others = (me + 1..size).chain(0..me);
        let root = shape.root;
        let transfers = match shape.op {
            Op::Bcast | Op::Scatter if me == root => others.map(|to| transfer(me, to)).collect(),
            Op::Bcast | Op::Scatter => vec![transfer(root, me)],
            Op::Gather if me == root => others.map(|from| transfer(from, me)).collect(),
            Op::Gather => vec![transfer(me, root)],
            Op::Allgather | Op::Alltoall => {
                let incoming = others.clone().map(|from| transfer(from, me));
                incoming.chain(others.map(|to| transfer(me, to))).collect()
            }
            _ => Vec::new(),
        };
        let own_part = (copies_own && bytes > 0).then(|| {
            let (send_at, recv_at) = place(me, me);
            let from = send.wrapping_add(send_at as usize);
            (from.cast_const(), recv.wrapping_add(recv_at as usize))
        });
        let mut piece = match elements {
            Some(_) => piece_of(bytes, size, 32 << 10),
            None => piece_of(bytes, 2, 64 << 10),
        };
        let combining = elements.map(|elements| {
            piece = piece.next_multiple_of(elements.size());
            let (_, slices) = slices(bytes, elements.size(), size);
            Combining {
                elements,
                slices,
                to: match shape.op {
                    Op::Reduce => vec![root],
                    _ => (0..size).collect(),
                },
                acc: Vec::new(),
                other: Vec::new(),
                current: None,
            }
        });
        let held = match &group.engines {
            Some(engines) if combining.is_none() && engines.takes(bytes) => {
                let (sent, received) = shape.lengths(me, size);
                // SAFETY: the caller's promise.
                Some(unsafe { Held::publish(engines, (send, sent), (recv, received)) })
            }
            _ => None,
        };
        let mut operation = Operation {
            group: group.clone(),
            shape,
            number,
            send,
            recv,
            piece,
            total: bytes.div_ceil(piece) as u64,
            transfers,
            own_part,
            combining,
            held,
            owed: None,
            room: None,
            failure: None,
            is_first: false,
        };
        let buffers = operation.buffers();
        group.table.publish(me, number, buffers, shape.has_pairs());
        operation.engage();
        operation
    }

    /// Gives engines what has to do with ranks that have come before us.
    fn engage(&mut self) {
        let Some(held) = &mut self.held else {
            return;
        };
        let (me, number, total) = (self.group.rank, self.number, self.total);
        let (own_send, own_recv) = held.regions();
        for transfer in &self.transfers {
            let (from, to) = (transfer.from, transfer.to);
            let peer = if from == me { to } else { from };
            let Some(theirs) = self.group.table.find(peer, number) else {
                continue;
            };
            // A rank that has called another operation gets its error where the part is copied.
            if (theirs.call, theirs.bytes) != (self.shape.call(), self.shape.bytes as u64) {
                continue;
            }
            let (send, recv) = if from == me {
                (own_send, theirs.regions.1)
            } else {
                (theirs.regions.0, own_recv)
            };
            let pieces = self.group.table.pieces(transfer.between, number);
            if send == 0 || recv == 0 || !pieces.begin_all(number, total) {
                continue;
            }
            let (source, place) = ((send, transfer.send_at), (recv, transfer.recv_at));
            match held.submit(source, place, self.shape.bytes) {
                Some(id) => {
                    let ticket = self.group.table.ticket(transfer.between, number);
                    ticket.issue(number, id);
                }
                None => pieces.begin_again(number),
            }
        }
    }

    /// Looks after a part that an engine moves, if one does; a rank that waits copies along.
    /// Returns whether anything got on.
    fn attend(&self, transfer: &Transfer, waits: bool) -> bool {
        let Some(engines) = &self.group.engines else {
            return false;
        };
        let (table, number) = (&self.group.table, self.number);
        let ticket = table.ticket(transfer.between, number);
        let Some(id) = ticket.request(number) else {
            return false;
        };
        let helped = waits && engines.state(id) == State::Running && engines.help(id) > 0;
        let state = engines.state(id);
        if matches!(state, State::Running | State::Gone) || !ticket.close(number, id) {
            return helped;
        }
        let pieces = table.pieces(transfer.between, number);
        match state {
            State::Complete => pieces.end(self.total),
            _ => pieces.begin_again(number),
        }
        true
    }

    fn buffers(&self) -> Buffers {
        Buffers {
            send: self.send as u64,
            recv: self.recv as u64,
            regions: self.held.as_ref().map_or((0, 0), Held::regions),
            call: self.shape.call(),
            bytes: self.shape.bytes as u64,
        }
    }

    /// Whether it is one of these ranks', up to this number.
    pub fn is_before(&self, group: &Arc<Participants>, number: u64) -> bool {
        Arc::ptr_eq(&self.group, group) && self.number <= number
    }

    /// Nothing more comes of it: all ranks hear of that.
    fn fail(&mut self, failure: Failure) {
        self.is_first =
            self.group.home.is_here() && self.group.table.broken().swap(1, Ordering::AcqRel) == 0;
        self.failure = Some(failure);
    }

    /// Why nothing more comes of it, and whether no rank has given up one before.
    pub fn failure(&self) -> Option<(&Failure, bool)> {
        Some((self.failure.as_ref()?, self.is_first))
    }

    /// Where the buffers of a rank are, if it has come; one that has called something else is an
    /// error.
    fn find(&mut self, rank: usize) -> Option<Buffers> {
        let found = self.group.table.find(rank, self.number)?;
        let own = self.buffers();
        if (found.call, found.bytes) != (own.call, own.bytes) {
            let why = format!(
                "rank {rank} has another function, root or length: {} bytes, not {}",
                found.bytes, own.bytes
            );
            // What nobody has begun yet the library does.
            self.group.table.close();
            self.fail(Failure::Mismatch(why));
            return None;
        }
        Some(found)
    }

    /// Goes on with it, as far as about `budget` bytes, `usize::MAX` if somebody waits for it;
    /// returns whether anything was moved.
    pub fn advance(&mut self, budget: usize) -> bool {
        let mut left = budget;
        if let Some((from, to)) = self.own_part.take() {
            // An erroneous program's buffers may be the same.
            // SAFETY: `begin` was promised both; they may overlap.
            unsafe { std::ptr::copy(from, to, self.shape.bytes) };
            left = left.saturating_sub(self.shape.bytes);
        }
        // A forked child's parent goes on with it.
        let is_here = self.group.home.is_here();
        if !is_here || self.group.table.broken().load(Ordering::Acquire) != 0 {
            self.failure.get_or_insert(Failure::Broken);
            return false;
        }
        let mut moved = self.serve();
        if self.owed.is_some() {
            moved |= self.collect();
        }
        if self.owed.is_some() {
            return moved || left < budget;
        }
        if self.combining.is_some() {
            self.combine(&mut left);
        } else {
            self.copy(&mut left, budget == usize::MAX);
        }
        moved || left < budget
    }

    /// Copies between our buffers and shared memory what the kernel does not copy for others.
    fn serve(&self) -> bool {
        let copy = |request: CopyRequest, room: *mut u8| {
            let (at, len) = (request.at as usize, request.len as usize);
            // SAFETY: `begin` was promised our buffers, which have what the other rank has to do
            // with; the room has as many bytes, and is elsewhere.
            unsafe {
                if request.is_write {
                    std::ptr::copy_nonoverlapping(room, self.recv.wrapping_add(at), len);
                } else {
                    std::ptr::copy_nonoverlapping(self.send.wrapping_add(at), room, len);
                }
            }
        };
        self.group.table.serve(self.group.rank, self.number, copy)
    }

    /// The kernel does not copy these bytes: their owner is to do it, when it goes on with this
    /// operation. If it does not copy any for us, nobody begins another operation here.
    #[cold]
    fn owe(&mut self, owed: Owed, error: &std::io::Error) {
        if process_memory::is_for_good(error) {
            self.group.table.close();
        }
        self.owed = Some(owed);
        self.collect();
    }

    /// Goes on with what is owed; returns whether anything was moved.
    #[cold]
    fn collect(&mut self) -> bool {
        let (table, me) = (&self.group.table, self.group.rank);
        let Some(owed) = &mut self.owed else {
            return false;
        };
        let mut moved = false;
        let room = match self.room {
            Some(_) if !table.is_done(me) => return false,
            Some(room) => {
                let len = ROOM.min(owed.len - owed.done);
                if !owed.is_write {
                    // SAFETY: the owner has put these bytes into the room; ours has a place for
                    // them.
                    unsafe {
                        std::ptr::copy_nonoverlapping(room, owed.ours.wrapping_add(owed.done), len);
                    }
                }
                owed.done += len;
                moved = true;
                room
            }
            // Another operation of ours may have it.
            None if self.group.has_room.swap(true, Ordering::Acquire) => return false,
            None => *self.room.insert(table.room(me)),
        };
        if owed.done == owed.len {
            if let Some(between) = owed.between {
                table.pieces(between, self.number).end(1);
            }
            self.owed = None;
            self.room = None;
            self.group.has_room.store(false, Ordering::Release);
            return moved;
        }
        let len = ROOM.min(owed.len - owed.done);
        if owed.is_write {
            // SAFETY: our own bytes, and the room, which nobody looks at now.
            unsafe { std::ptr::copy_nonoverlapping(owed.ours.wrapping_add(owed.done), room, len) };
        }
        let request = CopyRequest {
            owner: owed.peer,
            sequence: self.number,
            buffer: usize::from(owed.is_write),
            at: owed.at + owed.done as u64,
            len: len as u64,
            is_write: owed.is_write,
        };
        table.ask(me, request);
        moved
    }

    fn copy(&mut self, left: &mut usize, waits: bool) {
        let me = self.group.rank;
        let group = self.group.clone();
        let mut waiting = Vec::new();
        for transfer in std::mem::take(&mut self.transfers) {
            let pieces = group.table.pieces(transfer.between, self.number);
            let peer = if transfer.from == me {
                transfer.to
            } else {
                transfer.from
            };
            if self.attend(&transfer, waits) {
                *left = left.saturating_sub(self.shape.bytes);
            }
            while *left > 0 && self.failure.is_none() && self.owed.is_none() {
                let Some(theirs) = self.find(peer) else {
                    break;
                };
                let Some(index) = pieces.begin(self.number, self.total) else {
                    break;
                };
                let at = index as usize * self.piece;
                let len = self.piece.min(self.shape.bytes - at);
                let (send_at, recv_at) =
                    (transfer.send_at + at as u64, transfer.recv_at + at as u64);
                let pid = group.pids[peer];
                // SAFETY: `begin` was promised our buffers; the kernel checks theirs.
                let moved = unsafe {
                    if transfer.from == me {
                        let from = self.send.wrapping_add(send_at as usize);
                        process_memory::write(pid, theirs.recv.wrapping_add(recv_at), from, len)
                    } else {
                        let to = self.recv.wrapping_add(recv_at as usize);
                        process_memory::read(pid, theirs.send.wrapping_add(send_at), to, len)
                    }
                };
                if let Err(error) = moved {
                    let is_write = transfer.from == me;
                    let (at, ours) = if is_write {
                        (recv_at, self.send.wrapping_add(send_at as usize))
                    } else {
                        (send_at, self.recv.wrapping_add(recv_at as usize))
                    };
                    let owed = Owed {
                        peer,
                        is_write,
                        at,
                        ours,
                        len,
                        done: 0,
                        between: Some(transfer.between),
                    };
                    self.owe(owed, &error);
                    break;
                }
                pieces.end(1);
                *left = left.saturating_sub(len);
            }
            if !pieces.are_over(self.number, self.total) {
                waiting.push(transfer);
            }
        }
        self.transfers = waiting;
    }

    fn combine(&mut self, left: &mut usize) {
        let group = self.group.clone();
        let mut all = Vec::with_capacity(group.size());
        for rank in 0..group.size() {
            match self.find(rank) {
                Some(buffers) => all.push(buffers),
                None => return,
            }
        }
        let pieces = group.table.pieces(Between::All, self.number);
        while *left > 0 && self.failure.is_none() {
            let Some(combining) = &mut self.combining else {
                return;
            };
            if combining.current.is_none() {
                let Some(index) = pieces.begin(self.number, self.total) else {
                    return;
                };
                let at = index as usize * self.piece;
                combining.current = Some(Current {
                    at,
                    slice: at,
                    len: self.piece.min(self.shape.bytes - at),
                    step: 0,
                    is_moved: false,
                });
            }
            match self.combine_piece(&all) {
                Ok(None) => return,
                Ok(Some(len)) => *left = left.saturating_sub(len),
                Err(why) => self.fail(Failure::Failed(why)),
            }
            pieces.end(1);
        }
    }

    /// Combines a piece of all ranks' elements, in the same order as a blocking collective: from
    /// the rank on that combines them there, around the circle. Its length, or nothing as long as
    /// another rank has to move some.
    fn combine_piece(&mut self, all: &[Buffers]) -> Result<Option<usize>, String> {
        let (me, group) = (self.group.rank, self.group.clone());
        let size = group.size();
        loop {
            let Some(combining) = &mut self.combining else {
                return Ok(None);
            };
            let Some(current) = &mut combining.current else {
                return Ok(None);
            };
            let (piece, whole, step) = (current.at, current.len, current.step);
            let words = whole.div_ceil(size_of::<u128>());
            for room in [&mut combining.acc, &mut combining.other] {
                if room.len() < words {
                    let more = room.try_reserve_exact(words - room.len());
                    more.map_err(|error| format!("room for a piece of {whole} bytes: {error}"))?;
                    room.resize(words, 0);
                }
            }
            let (acc, other) = (
                combining.acc.as_mut_ptr().cast::<u8>(),
                combining.other.as_mut_ptr().cast::<u8>(),
            );
            if step == size + combining.to.len() {
                combining.current = None;
                return Ok(Some(whole));
            }
            // First all elements, slice by slice, then the result as a whole.
            let is_write = step >= size;
            let (at, len, rank) = if is_write {
                (piece, whole, combining.to[step - size])
            } else {
                let (at, slices) = (current.slice, &combining.slices);
                // The last slice that begins here or before: those before it that do so have no
                // elements.
                let first = slices.partition_point(|slice| *slice <= at) - 1;
                let end = slices.get(first + 1).copied().unwrap_or(usize::MAX);
                (at, end.min(piece + whole) - at, (first + step) % size)
            };
            let own = self.send.wrapping_add(at);
            let result = acc.wrapping_add(at - piece);
            let ours = if is_write || step == 0 { result } else { other };
            if !current.is_moved {
                current.is_moved = true;
                let (base, pid) = (all[rank], group.pids[rank]);
                // SAFETY: our own elements and room for the result, which is not `acc`; `acc` and
                // `other` have room for a piece; the kernel checks the others' addresses.
                let moved = unsafe {
                    match (rank == me, is_write) {
                        (true, true) => {
                            std::ptr::copy_nonoverlapping(result, self.recv.wrapping_add(at), len);
                            Ok(())
                        }
                        (true, false) if step == 0 => {
                            std::ptr::copy_nonoverlapping(own, result, len);
                            Ok(())
                        }
                        (true, false) => Ok(()),
                        (false, true) => {
                            let to = base.recv.wrapping_add(at as u64);
                            process_memory::write(pid, to, ours, len)
                        }
                        (false, false) => {
                            let from = base.send.wrapping_add(at as u64);
                            process_memory::read(pid, from, ours, len)
                        }
                    }
                };
                if let Err(error) = moved {
                    let owed = Owed {
                        peer: rank,
                        is_write,
                        at: at as u64,
                        ours,
                        len,
                        done: 0,
                        between: None,
                    };
                    self.owe(owed, &error);
                    return Ok(None);
                }
            }
            if step > 0 && !is_write {
                let from = if rank == me { own } else { other };
                // SAFETY: both have `len` bytes, which are whole elements.
                unsafe { combining.elements.add(from, result, len) }?;
            }
            current.step += 1;
            current.is_moved = false;
            if current.step == size && at + len < piece + whole {
                (current.slice, current.step) = (at + len, 0);
            }
        }
    }

    /// Whether everything that we have to do with is over.
    pub fn is_over(&self) -> bool {
        self.failure.is_some() || (self.own_part.is_none() && self.is_done())
    }

    /// Looks whether those live with whom we have to do something yet.
    pub fn look(&mut self) {
        if !self.group.home.is_here() {
            return;
        }
        let (me, size) = (self.group.rank, self.group.size());
        let mut peers: Vec<usize> = match &self.combining {
            Some(_) => (0..size).collect(),
            None => {
                let peers = self.transfers.iter();
                peers
                    .flat_map(|transfer| [transfer.from, transfer.to])
                    .collect()
            }
        };
        // Who has to do with many has to do with all, as others have: they look at all of them
        // together.
        if peers.len() > FEW {
            peers = self
                .group
                .table
                .turns()
                .draw(size, LOOKING)
                .iter()
                .collect();
        }
        peers.retain(|rank| *rank != me && !process_memory::lives(self.group.pids[*rank]));
        // One that has ended may have done its part before.
        if let (Some(rank), false) = (peers.first(), self.is_done()) {
            self.fail(Failure::Failed(format!("rank {rank} has ended")));
        }
    }

    /// Whether everything is copied, as far as the table says now.
    fn is_done(&self) -> bool {
        let (table, number, total) = (&self.group.table, self.number, self.total);
        let are_over = |between| table.pieces(between, number).are_over(number, total);
        let mut transfers = self.transfers.iter();
        transfers.all(|transfer| are_over(transfer.between))
            && (self.combining.is_none() || are_over(Between::All))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsRawFd;

    use super::super::table::ONE_AFTER_ANOTHER;
    use super::*;

    /// Ranks that are all in this process; which of them take it for another one, whose memory is
    /// not read for them.
    fn groups(size: usize, refused: &[usize]) -> Vec<Arc<Participants>> {
        let (pid, magic) = (std::process::id() as i32, [5, 6]);
        let (first, file) = Table::create(size, ONE_AFTER_ANOTHER, magic).unwrap();
        let shape = (size, ONE_AFTER_ANOTHER);
        let others = (1..size).map(|_| Table::open(pid, file.as_raw_fd(), shape, magic).unwrap());
        let tables: Vec<Table> = [first].into_iter().chain(others).collect();
        let group = |(rank, table)| {
            let seen = if refused.contains(&rank) {
                i32::MAX
            } else {
                pid
            };
            Arc::new(Participants::new(table, vec![seen; size], rank, None))
        };
        tables.into_iter().enumerate().map(group).collect()
    }

    /// Combines words commutatively, but not associatively.
    struct Mix;

    fn mix(a: u64, b: u64) -> u64 {
        (a ^ b).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    impl Combine for Mix {
        fn size(&self) -> usize {
            8
        }

        unsafe fn add(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String> {
            for at in 0..len / 8 {
                // SAFETY: the caller's promise.
                unsafe {
                    let to = to.cast::<u64>().add(at);
                    *to = mix(*from.cast::<u64>().add(at), *to);
                }
            }
            Ok(())
        }
    }

    /// What each rank receives where it sends words that name it, the receiver and the place.
    fn run(op: Op, (size, words): (usize, usize), refused: &[usize]) -> Vec<Vec<u64>> {
        let root = 1;
        let groups = groups(size, refused);
        let shape = Shape {
            op,
            root,
            bytes: 8 * words,
        };
        let word = |rank: usize, index: usize| (rank << 32 | index) as u64;
        let sent = |rank| (0..size * words).map(|index| word(rank, index)).collect();
        let mut send: Vec<Vec<u64>> = (0..size).map(sent).collect();
        let mut recv = vec![vec![0u64; size * words]; size];
        let mut under_way: Vec<Operation> = Vec::new();
        for (group, (send, recv)) in groups.iter().zip(send.iter_mut().zip(&mut recv)) {
            let buffers = (send.as_mut_ptr().cast(), recv.as_mut_ptr().cast());
            let combines = matches!(op, Op::Reduce | Op::Allreduce);
            let elements = combines.then(|| Box::new(Mix) as Box<dyn Combine>);
            let is_root = group.rank == root;
            let copies_own = match op {
                Op::Gather | Op::Scatter => is_root,
                Op::Allgather | Op::Alltoall => true,
                _ => false,
            };
            // SAFETY: the buffers have all parts, and outlive the operations.
            let operation =
                unsafe { Operation::begin(group, shape, buffers, copies_own, elements) };
            under_way.push(operation);
        }
        while !under_way.iter().all(Operation::is_over) {
            for operation in &mut under_way {
                operation.advance(100 << 10);
                assert_eq!(operation.failure(), None);
            }
        }
        recv
    }

    /// Each operation among so many ranks, with so many words for each part.
    fn check((size, words): (usize, usize), refused: &[usize]) {
        let word = |rank: usize, index: usize| (rank << 32 | index) as u64;
        let place = |index: usize| (index / words, index % words);
        type Expected<'a> = &'a dyn Fn(usize, usize) -> u64;
        let bcast = |me: usize, index| {
            if me == 1 || index >= words {
                0
            } else {
                word(1, index)
            }
        };
        let gather = |me, index| {
            let (from, at) = place(index);
            if me == 1 { word(from, at) } else { 0 }
        };
        let scatter = |me: usize, index: usize| {
            if index < words {
                word(1, me * words + index)
            } else {
                0
            }
        };
        let allgather = |_, index| word(place(index).0, place(index).1);
        let alltoall = |me: usize, index| word(place(index).0, me * words + place(index).1);
        // From the rank on that combines the word in a blocking collective.
        let (_, slices) = slices(8 * words, 8, size);
        let allreduce = |_, index: usize| {
            let owner = slices
                .iter()
                .rposition(|start| *start <= 8 * index)
                .unwrap();
            let ranks = (owner..size).chain(0..owner);
            if index < words {
                ranks.map(|rank| word(rank, index)).reduce(mix).unwrap()
            } else {
                0
            }
        };
        let reduce = |me: usize, index: usize| if me == 1 { allreduce(me, index) } else { 0 };
        let all: [(Op, Expected<'_>); 7] = [
            (Op::Bcast, &bcast),
            (Op::Gather, &gather),
            (Op::Scatter, &scatter),
            (Op::Allgather, &allgather),
            (Op::Alltoall, &alltoall),
            (Op::Allreduce, &allreduce),
            (Op::Reduce, &reduce),
        ];
        for (op, expected) in all {
            for (me, recv) in run(op, (size, words), refused).iter().enumerate() {
                let wrong = (0..recv.len()).find(|index| recv[*index] != expected(me, *index));
                assert_eq!(
                    wrong, None,
                    "{op}, rank {me} of {size}, refused {refused:?}"
                );
            }
        }
    }

    #[test]
    fn every_part_gets_where_it_belongs() {
        // Several pieces, and a last one that is shorter.
        let words = (200 << 10) / 8 + 1;
        // What the kernel does not copy goes through shared memory.
        for refused in [&[][..], &[1], &[0, 2], &[0, 1, 2]] {
            check((3, words), refused);
        }
    }

    /// More ranks than a word has bits, some of which the kernel refuses.
    #[test]
    fn many_ranks_get_every_part() {
        check((130, 3), &[]);
        check((130, 3), &[0, 1, 63, 64, 129]);
    }

    #[test]
    fn all_hear_of_a_rank_that_calls_another_operation() {
        let groups = groups(2, &[]);
        let mut bytes = [[0u8; 64]; 4];
        let mut places = bytes.iter_mut().map(|bytes| bytes.as_mut_ptr());
        let mut begin = |group, op| {
            let buffers = (places.next().unwrap(), places.next().unwrap());
            let shape = Shape {
                op,
                root: 0,
                bytes: 8,
            };
            // SAFETY: the buffers have room for two parts, and outlive the operations.
            unsafe { Operation::begin(group, shape, buffers, false, None) }
        };
        let mut first = begin(&groups[0], Op::Alltoall);
        let mut second = begin(&groups[1], Op::Allgather);
        first.advance(usize::MAX);
        assert!(matches!(
            first.failure(),
            Some((Failure::Mismatch(_), true))
        ));
        second.advance(usize::MAX);
        assert_eq!(second.failure(), Some((&Failure::Broken, false)));
        assert!(first.is_over() && second.is_over());
        assert!(!groups[0].admits_next() && !groups[1].admits_next());
    }
}
