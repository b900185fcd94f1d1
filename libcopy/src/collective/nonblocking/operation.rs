// SPDX-License-Identifier: MIT OR Apache-2.0

//! A collective that is under way, as one of its ranks sees it.
//!
//! A rank that waits does the work: it reads its parts from the other ranks' memory and writes its
//! own parts into it. Of the other ranks it needs only their entry in the table, which each writes
//! before its call returns. So no rank waits for one that is not in the library.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use super::engine::{Engines, Held, State};
use super::table::{Between, Buffers, MOST_PIECES, Place, Places, ROOM, Table};
use crate::collective::division::slices;
use crate::memcpy;
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

    /// Whether a rank has given one up: it may use its memory again, so what was read of it before
    /// this was asked is not what it gave.
    fn is_broken(&self) -> bool {
        fence(Ordering::Acquire);
        self.table.broken().load(Ordering::Acquire) != 0
    }

    /// Nothing more comes of any operation, and all ranks hear of that. Whether this is the first
    /// rank that says so; a forked child says nothing.
    fn give_up(&self) -> bool {
        self.home.is_here() && self.table.broken().swap(1, Ordering::AcqRel) == 0
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

/// A rank that combines a piece, dropped where that unwinds: nobody waits for the rest of it.
struct Unwinding<'a>(&'a Participants);

impl Drop for Unwinding<'_> {
    fn drop(&mut self) {
        self.0.give_up();
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
    /// Where it is in what the one sends; where parts differ in length, only the sender knows.
    send_at: u64,
    /// Where it is in what the other receives; likewise.
    recv_at: u64,
    /// Bytes, and those of a piece.
    len: usize,
    piece: usize,
}

impl Transfer {
    /// Pieces.
    fn total(&self) -> u64 {
        self.len.div_ceil(self.piece) as u64
    }
}

/// What all ranks call alike.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The collective.
    pub op: Op,
    /// The root; 0 where there is none.
    pub root: usize,
    /// Bytes that each rank sends to each, or has combined; 0 where parts differ in length.
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
    /// Where the part of it begins that belongs to one slice, and is combined now; behind the last
    /// one, its end.
    slice: usize,
    /// Steps of that part that are done, and then ranks that have the whole.
    step: usize,
    /// Whether what the step moves has been moved, or is owed.
    is_moved: bool,
}

/// What is done next with elements that are combined in one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A rank's elements are the first result.
    Take(usize),
    /// A rank's elements are fetched.
    Fetch(usize),
    /// What was fetched of that rank is combined with the result.
    Add(usize),
    /// A rank gets the result.
    Write(usize),
}

/// The n-th step of such an operation of `size` ranks, from the rank `first` on around the circle;
/// in scans, from rank to rank, each of which gets what there is then.
fn step(op: Op, (first, size): (usize, usize), n: usize) -> Option<Step> {
    let rank = |k: usize| (first + k) % size;
    let scanned = |n: usize, steps: [fn(usize) -> Step; 3]| {
        let k = 1 + n / 3;
        (k < size).then(|| steps[n % 3](k))
    };
    match (op, n) {
        (_, 0) => Some(Step::Take(first)),
        (Op::Scan, 1) => Some(Step::Write(first)),
        (Op::Scan, _) => scanned(n - 2, [Step::Fetch, Step::Add, Step::Write]),
        // A rank whose elements are replaced by the result gives them before.
        (Op::Exscan, _) => scanned(n - 1, [Step::Fetch, Step::Write, Step::Add]),
        (Op::ReduceScatter, _) if n == 2 * size - 1 => Some(Step::Write(first)),
        _ if n >= 2 * size - 1 => None,
        _ if n % 2 == 1 => Some(Step::Fetch(rank(n / 2 + 1))),
        _ => Some(Step::Add(rank(n / 2))),
    }
}

/// How elements are combined.
struct Combining {
    elements: Box<dyn Combine>,
    /// Where the slices begin that the ranks would combine in a blocking collective.
    slices: Vec<usize>,
    /// Who gets the result as a whole.
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
    /// Of what is combined: bytes of a piece, and pieces.
    piece: usize,
    total: u64,
    transfers: Vec<Transfer>,
    /// Whether each rank alone knows where its parts are.
    is_irregular: bool,
    /// Our own part, from here to there.
    own_part: Option<(*const u8, *mut u8, usize)>,
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
    /// Makes it known to the others. `copies_own` says whether our own part is elsewhere; `places`
    /// where the parts are, if they differ in length. Of [`Op::ReduceScatter`] what is received
    /// from a rank is what that one gets of the whole.
    ///
    /// # Safety
    ///
    /// The buffers have the parts of the shape, or those of `places`, and nobody but the operation
    /// uses them, until this is over. The participants' process identifiers are those of the ranks
    /// that share the table, all of which keep this promise.
    pub unsafe fn begin(
        group: &Arc<Participants>,
        shape: Shape,
        (send, recv): (*mut u8, *mut u8),
        (copies_own, places): (bool, Option<Places>),
        elements: Option<Box<dyn Combine>>,
    ) -> Operation {
        let (me, size, bytes) = (group.rank, group.size(), shape.bytes);
        let number = group.next();
        let at = |rank: usize| Place {
            at: (rank * bytes) as u64,
            len: bytes as u64,
        };
        // Where a part is in what its sender sends, and in what its receiver receives, as far as
        // this rank knows.
        let place = |from: usize, to: usize| match (&places, shape.op) {
            (Some(places), _) if from == to => (places.sent[me], places.received[me]),
            (Some(places), _) if from == me => (places.sent[to], Place::default()),
            (Some(places), _) => (Place::default(), places.received[from]),
            (None, Op::Gather | Op::Allgather) => (at(0), at(from)),
            (None, Op::Scatter) => (at(to), at(0)),
            (None, Op::Alltoall) => (at(to), at(from)),
            _ => (at(0), at(0)),
        };
        let transfer = |from: usize, to: usize| {
            let (sent, received) = place(from, to);
            let len = if from == me { sent.len } else { received.len } as usize;
            Transfer {
                between: shape.between(from, to),
                from,
                to,
                send_at: sent.at,
                recv_at: received.at,
                len,
                piece: piece_of(len, 2, 64 << 10),
            }
        };
        // Each starts with its successor, so that they do not all ask the same one.
        let others = (me + 1..size).chain(0..me);
        let root = shape.root;
        let mut transfers: Vec<Transfer> = match shape.op {
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
        transfers.retain(|transfer| transfer.len > 0);
        let own = copies_own.then(|| place(me, me));
        let own_part = own.filter(|(sent, received)| sent.len == received.len && sent.len > 0);
        let own_part = own_part.map(|(sent, received)| {
            let from = send.wrapping_add(sent.at as usize);
            let to = recv.wrapping_add(received.at as usize);
            (from.cast_const(), to, sent.len as usize)
        });
        let is_irregular = places.is_some() && elements.is_none();
        let mut piece = piece_of(bytes, size, 32 << 10);
        let combining = elements.map(|elements| {
            piece = piece.next_multiple_of(elements.size());
            Combining {
                slices: match (&places, shape.op) {
                    (_, Op::Scan | Op::Exscan) => vec![0],
                    (Some(places), _) => {
                        let all = places.received.iter();
                        all.map(|place| place.at as usize).collect()
                    }
                    (None, _) => slices(bytes, elements.size(), size).1,
                },
                elements,
                to: match shape.op {
                    Op::Reduce => vec![root],
                    Op::Allreduce => (0..size).collect(),
                    _ => Vec::new(),
                },
                acc: Vec::new(),
                other: Vec::new(),
                current: None,
            }
        });
        let held = match &group.engines {
            Some(engines) if combining.is_none() && !is_irregular && engines.takes(bytes) => {
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
            is_irregular,
            own_part,
            combining,
            held,
            owed: None,
            room: None,
            failure: None,
            is_first: false,
        };
        // A leaf has nothing to do with other leaves.
        let peers = match shape.op {
            Op::Gather | Op::Scatter if me != root => root..root + 1,
            _ => 0..size,
        };
        let parts = places.as_ref().filter(|_| is_irregular);
        let parts = parts.map(|places| (places, peers));
        let (buffers, pairs) = (operation.buffers(), shape.has_pairs());
        group.table.publish(me, number, buffers, pairs, parts);
        if let Some((sent, received)) = own.filter(|(sent, received)| sent.len != received.len) {
            operation.mismatch(me, (sent.len, received.len));
        }
        operation.engage();
        operation
    }

    /// Gives engines what has to do with ranks that have come before us.
    fn engage(&mut self) {
        let Some(held) = &mut self.held else {
            return;
        };
        let (me, number) = (self.group.rank, self.number);
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
            if send == 0 || recv == 0 || !pieces.begin_all(number, transfer.total()) {
                continue;
            }
            let (source, place) = ((send, transfer.send_at), (recv, transfer.recv_at));
            match held.submit(source, place, transfer.len) {
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
            State::Complete => pieces.end(transfer.total()),
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
        self.is_first = self.group.give_up();
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
            self.mismatch(rank, (found.bytes, own.bytes));
            return None;
        }
        Some(found)
    }

    /// A rank has called another function, with another root or with another length.
    fn mismatch(&mut self, rank: usize, (theirs, ours): (u64, u64)) {
        let why =
            format!("rank {rank} has another function, root or length: {theirs} bytes, not {ours}");
        // What nobody has begun yet the library does.
        self.group.table.close();
        self.fail(Failure::Mismatch(why));
    }

    /// Where the buffers of the other rank of a transfer are, if it has come, and where the part is
    /// in them.
    fn find_other(&mut self, transfer: &Transfer) -> Option<(Buffers, u64)> {
        let (me, is_ours) = (self.group.rank, transfer.from == self.group.rank);
        let peer = if is_ours { transfer.to } else { transfer.from };
        let theirs = self.find(peer)?;
        if !self.is_irregular {
            let at = if is_ours {
                transfer.recv_at
            } else {
                transfer.send_at
            };
            return Some((theirs, at));
        }
        let [sent, received] = self.group.table.places_of(peer, me, self.number)?;
        let place = if is_ours { received } else { sent };
        if place.len != transfer.len as u64 {
            self.mismatch(peer, (place.len, transfer.len as u64));
            return None;
        }
        Some((theirs, place.at))
    }

    /// Goes on with it, as far as about `budget` bytes, `usize::MAX` if somebody waits for it;
    /// returns whether anything was moved.
    pub fn advance(&mut self, budget: usize) -> bool {
        let mut left = budget;
        if let Some((from, to, len)) = self.own_part.take() {
            // An erroneous program's buffers may be the same.
            // SAFETY: `begin` was promised both; they may overlap.
            unsafe { std::ptr::copy(from, to, len) };
            left = left.saturating_sub(len);
        }
        // A forked child's parent goes on with it.
        let is_here = self.group.home.is_here();
        if !is_here || self.group.is_broken() {
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
                    memcpy::cached(self.recv.wrapping_add(at), room, len);
                } else {
                    memcpy::cached(room, self.send.wrapping_add(at), len);
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
                        memcpy::cached(owed.ours.wrapping_add(owed.done), room, len);
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
            unsafe { memcpy::cached(room, owed.ours.wrapping_add(owed.done), len) };
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
            let (is_write, total) = (transfer.from == me, transfer.total());
            let (peer, own, own_at) = if is_write {
                (transfer.to, self.send, transfer.send_at)
            } else {
                (transfer.from, self.recv, transfer.recv_at)
            };
            if self.attend(&transfer, waits) {
                *left = left.saturating_sub(transfer.len);
            }
            while *left > 0 && self.failure.is_none() && self.owed.is_none() {
                let Some((theirs, their_at)) = self.find_other(&transfer) else {
                    break;
                };
                let Some(index) = pieces.begin(self.number, total) else {
                    break;
                };
                let at = index * transfer.piece as u64;
                let len = transfer.piece.min(transfer.len - at as usize);
                let pid = group.pids[peer];
                let ours = own.wrapping_add(own_at.wrapping_add(at) as usize);
                let their_at = their_at.wrapping_add(at);
                // SAFETY: `begin` was promised our buffers; the kernel checks theirs.
                let moved = unsafe {
                    if is_write {
                        process_memory::write(pid, theirs.recv.wrapping_add(their_at), ours, len)
                    } else {
                        process_memory::read(pid, theirs.send.wrapping_add(their_at), ours, len)
                    }
                };
                if let Err(error) = moved {
                    let owed = Owed {
                        peer,
                        is_write,
                        at: their_at,
                        ours,
                        len,
                        done: 0,
                        between: Some(transfer.between),
                    };
                    self.owe(owed, &error);
                    break;
                }
                if group.is_broken() {
                    break;
                }
                pieces.end(1);
                *left = left.saturating_sub(len);
            }
            if !pieces.are_over(self.number, total) {
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
            let unless_done = Unwinding(&group);
            let combined = self.combine_piece(&all);
            std::mem::forget(unless_done);
            match combined {
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
        let (me, group, op) = (self.group.rank, self.group.clone(), self.shape.op);
        loop {
            let Some(combining) = &mut self.combining else {
                return Ok(None);
            };
            let Some(current) = &mut combining.current else {
                return Ok(None);
            };
            let (piece, whole) = (current.at, current.len);
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
            // First all elements, slice by slice, then the result as a whole.
            let is_combined = current.slice == piece + whole;
            let (at, len, start, next) = if is_combined {
                let to = combining.to.get(current.step).copied();
                (piece, whole, 0, to.map(Step::Write))
            } else {
                let (at, slices) = (current.slice, &combining.slices);
                // The last slice that begins here or before: those before it that do so have no
                // elements.
                let first = slices.partition_point(|slice| *slice <= at) - 1;
                let end = slices.get(first + 1).copied().unwrap_or(usize::MAX);
                let next = step(op, (first, group.size()), current.step);
                (at, end.min(piece + whole) - at, slices[first], next)
            };
            let Some(next) = next else {
                if is_combined {
                    combining.current = None;
                    return Ok(Some(whole));
                }
                (current.slice, current.step) = (at + len, 0);
                continue;
            };
            let own = self.send.wrapping_add(at);
            let result = acc.wrapping_add(at - piece);
            let (rank, ours, is_write) = match next {
                Step::Take(rank) => (rank, result, false),
                Step::Fetch(rank) => (rank, other, false),
                Step::Write(rank) => (rank, result, true),
                Step::Add(rank) => {
                    let is_fetched = rank != me || op == Op::Exscan;
                    let from = if is_fetched { other } else { own };
                    // SAFETY: both have `len` bytes, which are whole elements.
                    unsafe { combining.elements.add(from, result, len) }?;
                    current.step += 1;
                    continue;
                }
            };
            // Where a rank gets a slice, that is all that it receives.
            let recv_at = if op == Op::ReduceScatter {
                at - start
            } else {
                at
            };
            if !current.is_moved {
                current.is_moved = true;
                let (base, pid) = (all[rank], group.pids[rank]);
                // SAFETY: our own elements and room for the result, which is not `acc`; `acc` and
                // `other` have room for a piece; the kernel checks the others' addresses.
                let moved = unsafe {
                    match (rank == me, next) {
                        (true, Step::Write(_)) => {
                            let to = self.recv.wrapping_add(recv_at);
                            memcpy::cached(to, result, len);
                            Ok(())
                        }
                        // It is combined where it is, unless the result takes its place before.
                        (true, Step::Fetch(_)) if op != Op::Exscan => Ok(()),
                        (true, _) => {
                            memcpy::cached(ours, own, len);
                            Ok(())
                        }
                        (false, Step::Write(_)) => {
                            let to = base.recv.wrapping_add(recv_at as u64);
                            process_memory::write(pid, to, ours, len)
                        }
                        (false, _) => {
                            let from = base.send.wrapping_add(at as u64);
                            process_memory::read(pid, from, ours, len)
                        }
                    }
                };
                if let Err(error) = moved {
                    let owed = Owed {
                        peer: rank,
                        is_write,
                        at: if is_write { recv_at } else { at } as u64,
                        ours,
                        len,
                        done: 0,
                        between: None,
                    };
                    self.owe(owed, &error);
                    return Ok(None);
                }
                if group.is_broken() {
                    return Ok(None);
                }
            }
            current.step += 1;
            current.is_moved = false;
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
        let (table, number) = (&self.group.table, self.number);
        let are_over = |between, total| table.pieces(between, number).are_over(number, total);
        let mut transfers = self.transfers.iter();
        transfers.all(|transfer| are_over(transfer.between, transfer.total()))
            && (self.combining.is_none() || are_over(Between::All, self.total))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::fd::AsRawFd;
    use std::panic::AssertUnwindSafe;

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

    /// What each rank receives where it sends words that name it, the receiver and the place; with
    /// what `places` says of each rank.
    fn run(
        op: Op,
        (size, words): (usize, usize),
        refused: &[usize],
        places: impl Fn(usize) -> Option<Places>,
    ) -> Vec<Vec<u64>> {
        let root = 1;
        let groups = groups(size, refused);
        let bytes = match places(0) {
            Some(_) if Op::ALL.contains(&op) => 0,
            _ => 8 * words,
        };
        let shape = Shape { op, root, bytes };
        let word = |rank: usize, index: usize| (rank << 32 | index) as u64;
        let sent = |rank| (0..size * words).map(|index| word(rank, index)).collect();
        let mut send: Vec<Vec<u64>> = (0..size).map(sent).collect();
        let mut recv = vec![vec![0u64; size * words]; size];
        let mut under_way: Vec<Operation> = Vec::new();
        for (group, (send, recv)) in groups.iter().zip(send.iter_mut().zip(&mut recv)) {
            let buffers = (send.as_mut_ptr().cast(), recv.as_mut_ptr().cast());
            let combines = Op::REDUCTIONS.contains(&op);
            let elements = combines.then(|| Box::new(Mix) as Box<dyn Combine>);
            let is_root = group.rank == root;
            let copies_own = match op {
                Op::Gather | Op::Scatter => is_root,
                Op::Allgather | Op::Alltoall => true,
                _ => false,
            };
            let own = (copies_own, places(group.rank));
            // SAFETY: the buffers have all parts, and outlive the operations.
            let operation = unsafe { Operation::begin(group, shape, buffers, own, elements) };
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
        let before = |ranks: std::ops::Range<usize>, index: usize| {
            let all = ranks.map(|rank| word(rank, index)).reduce(mix);
            all.filter(|_| index < words).unwrap_or(0)
        };
        let scan = |me: usize, index: usize| before(0..me + 1, index);
        let exscan = |me: usize, index: usize| before(0..me, index);
        let all: [(Op, Expected<'_>); 9] = [
            (Op::Scan, &scan),
            (Op::Exscan, &exscan),
            (Op::Bcast, &bcast),
            (Op::Gather, &gather),
            (Op::Scatter, &scatter),
            (Op::Allgather, &allgather),
            (Op::Alltoall, &alltoall),
            (Op::Allreduce, &allreduce),
            (Op::Reduce, &reduce),
        ];
        for (op, expected) in all {
            let received = run(op, (size, words), refused, |_| None);
            for (me, recv) in received.iter().enumerate() {
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
        for refused in [&[][..], &[0, 1, 63, 64, 129]] {
            check((130, 3), refused);
            check_irregular((130, 3), refused);
        }
    }

    /// Words from one rank to another, up to so many; some have none.
    fn words_of(from: usize, to: usize, most: usize) -> usize {
        most * ((3 * from + 5 * to) % 4) / 3
    }

    /// Each operation whose parts differ in length, with gaps between the parts that are received,
    /// which come in the opposite order of the ranks.
    fn check_irregular((size, most): (usize, usize), refused: &[usize]) {
        let word = |rank: usize, index: usize| (rank << 32 | index) as u64;
        let sent_at = |to: usize| to * most;
        let received_at = |from: usize| (size - 1 - from) * most;
        let place = |at: usize, words: usize| Place {
            at: 8 * at as u64,
            len: 8 * words as u64,
        };
        for op in [Op::Gather, Op::Scatter, Op::Allgather, Op::Alltoall] {
            // What one rank sends to all is the same in a gather.
            let is_alike = matches!(op, Op::Gather | Op::Allgather);
            let words = |from, to| words_of(from, if is_alike { 0 } else { to }, most);
            let at = |to| if is_alike { 0 } else { sent_at(to) };
            let takes_part = |from: usize, to: usize| match op {
                Op::Gather => to == 1,
                Op::Scatter => from == 1,
                _ => true,
            };
            let places = |me: usize| {
                let part = |from, to, at: usize| {
                    let words = if takes_part(from, to) {
                        words(from, to)
                    } else {
                        0
                    };
                    place(at, words)
                };
                let sent = |to| part(me, to, at(to));
                let received = |from| part(from, me, received_at(from));
                Some(Places {
                    sent: (0..size).map(sent).collect(),
                    received: (0..size).map(received).collect(),
                })
            };
            let all = run(op, (size, most), refused, places);
            for (me, recv) in all.iter().enumerate() {
                let mut expected = vec![0; size * most];
                for from in (0..size).filter(|from| takes_part(*from, me)) {
                    for index in 0..words(from, me) {
                        expected[received_at(from) + index] = word(from, at(me) + index);
                    }
                }
                assert!(*recv == expected, "{op}, rank {me} of {size}, {refused:?}");
            }
        }
        // Each rank gets its slice of what is combined, from its own elements on.
        let counts: Vec<usize> = (0..size).map(|rank| words_of(rank, 0, most)).collect();
        let starts: Vec<usize> = (0..size).map(|rank| counts[..rank].iter().sum()).collect();
        let places = |_| {
            let slices = starts.iter().zip(&counts);
            let received = slices.map(|(start, words)| place(*start, *words)).collect();
            let sent = Vec::new();
            Some(Places { sent, received })
        };
        let whole = (size, counts.iter().sum());
        let all = run(Op::ReduceScatter, whole, refused, places);
        for (me, recv) in all.iter().enumerate() {
            let combined = |index: usize| {
                let ranks = (me..size).chain(0..me);
                let all = ranks.map(|rank| word(rank, starts[me] + index));
                all.reduce(mix).unwrap()
            };
            let expected: Vec<u64> = (0..counts[me]).map(combined).collect();
            assert!(recv[..counts[me]] == expected, "rank {me} of {size}");
            assert!(recv[counts[me]..].iter().all(|word| *word == 0));
        }
    }

    #[test]
    fn parts_of_different_lengths_get_where_they_belong() {
        for refused in [&[][..], &[1], &[0, 2], &[0, 1, 2]] {
            check_irregular((3, (300 << 10) / 8 + 1), refused);
        }
        check_irregular((2, 100), &[]);
    }

    #[test]
    fn all_hear_of_a_part_that_is_longer_than_its_place() {
        for own in [0, 1] {
            let groups = groups(2, &[]);
            let mut bytes = [[0u8; 64]; 4];
            let mut buffers = bytes.iter_mut().map(|bytes| bytes.as_mut_ptr());
            // One sends 16 bytes more, to the other or to itself.
            let places = |me: usize| {
                let part = |len| Place { at: 0, len };
                let more = if me == 0 { 24 } else { 8 };
                let mut sent = vec![part(8); 2];
                sent[(me + 1 + own) % 2].len = more;
                let received = vec![part(8); 2];
                Some(Places { sent, received })
            };
            let shape = Shape {
                op: Op::Alltoall,
                root: 0,
                bytes: 0,
            };
            let mut begin = |rank: usize| {
                let both = (buffers.next().unwrap(), buffers.next().unwrap());
                // SAFETY: the buffers have room for all parts, and outlive the operations.
                unsafe { Operation::begin(&groups[rank], shape, both, (true, places(rank)), None) }
            };
            let mut under_way = [begin(0), begin(1)];
            for operation in &mut under_way {
                operation.advance(usize::MAX);
            }
            assert!(under_way.iter().all(Operation::is_over));
            let is_mismatch = |operation: &Operation| {
                matches!(operation.failure(), Some((Failure::Mismatch(_), true)))
            };
            assert_eq!(under_way.iter().filter(|it| is_mismatch(it)).count(), 1);
        }
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
            unsafe { Operation::begin(group, shape, buffers, (false, None), None) }
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

    /// What the program's operation does.
    struct Panics;

    impl Combine for Panics {
        fn size(&self) -> usize {
            8
        }

        unsafe fn add(&self, _: *const u8, _: *mut u8, _: usize) -> Result<(), String> {
            panic!("meant")
        }
    }

    #[test]
    fn all_hear_of_a_rank_whose_operation_panics() {
        let groups = groups(2, &[]);
        let mut bytes = [[0u8; 64]; 4];
        let mut places = bytes.iter_mut().map(|bytes| bytes.as_mut_ptr());
        let mut begin = |group| {
            let buffers = (places.next().unwrap(), places.next().unwrap());
            let shape = Shape {
                op: Op::Allreduce,
                root: 0,
                bytes: 64,
            };
            // SAFETY: the buffers have these bytes, and outlive the operations.
            unsafe {
                Operation::begin(group, shape, buffers, (false, None), Some(Box::new(Panics)))
            }
        };
        let (mut first, mut second) = (begin(&groups[0]), begin(&groups[1]));
        let advanced = AssertUnwindSafe(|| first.advance(usize::MAX));
        assert!(std::panic::catch_unwind(advanced).is_err());
        for operation in [&mut first, &mut second] {
            operation.advance(usize::MAX);
            assert_eq!(operation.failure(), Some((&Failure::Broken, false)));
        }
    }
}
