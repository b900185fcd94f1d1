// SPDX-License-Identifier: MIT OR Apache-2.0

//! A collective that is under way, as one of its ranks sees it.
//!
//! Whoever waits does the work: it reads from and writes into the others' memory what it has to do
//! with, and needs nothing from them but that they have come, which they say in the table before their
//! call returns. So nobody waits for a rank that is elsewhere.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use libcopy::collective::nonblocking::engine::{Held, State};
use libcopy::collective::nonblocking::table::{Buffers, MOST_PIECES};
use libcopy::transport::process_memory;

use super::circle::{Circle, UnderWay};
use crate::abi::{Abi, complain};
use crate::buffer::Kind;
use crate::errors;
use crate::pmpi;
use crate::reductions::Elements;
use crate::stats::Function;

/// Bytes of a piece: several for those who share them, and not so few that calls of the kernel would
/// be noticed.
fn piece_of(bytes: usize, workers: usize, least: usize) -> usize {
    let usual = (bytes / (2 * workers)).clamp(least, 256 << 10);
    usual
        .max(bytes.div_ceil(MOST_PIECES as usize))
        .next_multiple_of(4096)
}

/// A part that goes from one rank to another, one of which we are.
#[derive(Debug)]
struct Transfer {
    from: usize,
    to: usize,
    /// Where it is in what the one sends.
    send_at: u64,
    /// Where it is in what the other receives.
    recv_at: u64,
}

/// What is received where it does not belong yet.
struct Unpack {
    bytes: Vec<u8>,
    kind: Kind,
    base: *mut c_void,
    count: usize,
}

/// Our buffers, as others reach them.
#[derive(Default)]
pub struct Own {
    send: *mut u8,
    recv: *mut u8,
    packed: Vec<u8>,
    unpack: Option<Unpack>,
    /// Datatypes of ours that are needed until the end.
    types: Vec<usize>,
}

/// Whether other processes reach these bytes: they do not where a device has mapped them.
fn is_reachable(circle: &Circle, base: *const u8, len: usize) -> bool {
    let ends = [base as u64, base.wrapping_add(len.saturating_sub(1)) as u64];
    len == 0 || process_memory::is_reachable(circle.pids[circle.rank], ends)
}

impl Own {
    /// Has `count` elements sent, which stay as they are.
    ///
    /// # Safety
    ///
    /// The elements are readable until the operation is over.
    pub unsafe fn send(
        &mut self,
        circle: &Circle,
        kind: &Kind,
        base: *const c_void,
        count: usize,
    ) -> Result<(), c_int> {
        let len = kind.size() * count;
        if kind.is_dense() && is_reachable(circle, base.cast(), len) {
            self.send = base.cast_mut().cast();
            return Ok(());
        }
        // SAFETY: the caller's promise.
        self.packed = unsafe { kind.copy_out(base, count)? };
        self.send = self.packed.as_mut_ptr();
        Ok(())
    }

    /// Has `count` elements received. Where `keep` gives a range of them, those are there already.
    ///
    /// # Safety
    ///
    /// The elements are writable, and used by nobody else, until the operation is over.
    pub unsafe fn receive(
        &mut self,
        (abi, circle): (&Abi, &Circle),
        kind: &Kind,
        base: *mut c_void,
        count: usize,
        keep: Option<(usize, usize)>,
    ) -> Result<(), c_int> {
        let len = kind.size() * count;
        if kind.is_dense() && is_reachable(circle, base.cast(), len) {
            self.recv = base.cast();
            return Ok(());
        }
        let mut bytes = vec![0u8; len];
        if let Some((first, elements)) = keep {
            // SAFETY: the caller's promise.
            let own = unsafe { kind.copy_out(kind.element(base, first), elements)? };
            bytes[kind.size() * first..][..own.len()].copy_from_slice(&own);
        }
        self.recv = bytes.as_mut_ptr();
        // The program may free its datatype and its communicator at once.
        let mut datatype = 0;
        // SAFETY: a datatype of the caller's; room for a handle of either kind.
        let answer = unsafe { pmpi::type_dup(kind.datatype(), &mut datatype) };
        if answer != 0 {
            return Err(answer);
        }
        self.types.push(datatype);
        let kind = kind.for_another(datatype, abi.world);
        self.unpack = Some(Unpack {
            bytes,
            kind,
            base,
            count,
        });
        Ok(())
    }

    /// What we send is a part of what we receive, from this byte on.
    pub fn send_from_received(&mut self, at: usize) {
        self.send = self.recv.wrapping_add(at);
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        for datatype in &mut self.types {
            // SAFETY: our own datatype, which nobody uses any more.
            unsafe { pmpi::type_free(datatype) };
        }
    }
}

/// What all ranks call alike.
#[derive(Clone, Copy)]
pub struct Shape {
    /// The collective.
    pub function: Function,
    /// The root; 0 where there is none.
    pub root: usize,
    /// Bytes that each rank sends to each, or has combined.
    pub bytes: usize,
}

impl Shape {
    /// The function and the root, to compare.
    fn call(&self) -> u64 {
        (self.root as u64) << 8 | self.function as u64
    }

    /// Bytes that a rank sends and receives.
    fn lengths(&self, rank: usize, size: usize) -> (usize, usize) {
        let (one, all) = (self.bytes, self.bytes * size);
        let is_root = rank == self.root;
        match self.function {
            Function::Ibcast if is_root => (one, 0),
            Function::Ibcast => (0, one),
            Function::Igather if is_root => (0, all),
            Function::Igather => (one, 0),
            Function::Iscatter if is_root => (all, 0),
            Function::Iscatter => (0, one),
            Function::Iallgather => (one, all),
            Function::Ialltoall => (all, all),
            _ => (0, 0),
        }
    }
}

/// How elements are combined.
struct Combining {
    elements: Elements,
    /// Who gets the result.
    to: Vec<usize>,
    acc: Vec<u128>,
    other: Vec<u128>,
}

/// One that is under way.
pub struct Operation {
    circle: Arc<Circle>,
    shape: Shape,
    number: u64,
    /// What engines use of ours; dropped before our buffers are.
    held: Option<Held>,
    own: Own,
    piece: usize,
    total: u64,
    transfers: Vec<Transfer>,
    /// Our own part, from here to there.
    own_part: Option<(*const u8, *mut u8)>,
    combining: Option<Combining>,
    code: c_int,
    _under_way: UnderWay,
}

// SAFETY: what its addresses lead to the program has lent us until the operation is over.
unsafe impl Send for Operation {}

impl Operation {
    /// Makes it known to the others. `copies_own` says whether our own part is elsewhere.
    ///
    /// # Safety
    ///
    /// The buffers have the parts of the shape until this is over.
    pub unsafe fn begin(
        circle: &Arc<Circle>,
        shape: Shape,
        own: Own,
        copies_own: bool,
        elements: Option<Elements>,
    ) -> Operation {
        let (me, size, bytes) = (circle.rank, circle.size, shape.bytes);
        let number = circle.next();
        let at = |rank: usize| (rank * bytes) as u64;
        // Where a part is in what its sender sends, and in what its receiver receives.
        let place = |from: usize, to: usize| match shape.function {
            Function::Igather | Function::Iallgather => (0, at(from)),
            Function::Iscatter => (at(to), 0),
            Function::Ialltoall => (at(to), at(from)),
            _ => (0, 0),
        };
        let transfer = |from: usize, to: usize| {
            let (send_at, recv_at) = place(from, to);
            Transfer {
                from,
                to,
                send_at,
                recv_at,
            }
        };
        // Each starts with its successor, so that they do not all ask the same one.
        let others = (me + 1..size).chain(0..me);
        let root = shape.root;
        let transfers = match shape.function {
            Function::Ibcast | Function::Iscatter if me == root => {
                others.map(|to| transfer(me, to)).collect()
            }
            Function::Ibcast | Function::Iscatter => vec![transfer(root, me)],
            Function::Igather if me == root => others.map(|from| transfer(from, me)).collect(),
            Function::Igather => vec![transfer(me, root)],
            Function::Iallgather | Function::Ialltoall => {
                let incoming = others.clone().map(|from| transfer(from, me));
                incoming.chain(others.map(|to| transfer(me, to))).collect()
            }
            _ => Vec::new(),
        };
        let own_part = (copies_own && bytes > 0).then(|| {
            let (send_at, recv_at) = place(me, me);
            let from = own.send.wrapping_add(send_at as usize);
            (from.cast_const(), own.recv.wrapping_add(recv_at as usize))
        });
        let mut piece = match elements {
            Some(_) => piece_of(bytes, size, 32 << 10),
            None => piece_of(bytes, 2, 64 << 10),
        };
        let combining = elements.map(|elements| {
            piece = piece.next_multiple_of(elements.size());
            Combining {
                elements,
                to: match shape.function {
                    Function::Ireduce => vec![root],
                    _ => (0..size).collect(),
                },
                acc: Vec::new(),
                other: Vec::new(),
            }
        });
        let held = match &circle.engines {
            Some(engines) if combining.is_none() && engines.takes(bytes) => {
                let (sent, received) = shape.lengths(me, size);
                // SAFETY: the caller's promise.
                Some(unsafe { Held::publish(engines, (own.send, sent), (own.recv, received)) })
            }
            _ => None,
        };
        let mut operation = Operation {
            circle: circle.clone(),
            shape,
            number,
            own,
            piece,
            total: bytes.div_ceil(piece) as u64,
            transfers,
            own_part,
            combining,
            held,
            code: 0,
            _under_way: circle.begin(),
        };
        let buffers = operation.buffers();
        circle.table.publish(me, number, buffers);
        operation.engage();
        operation
    }

    /// Gives engines what has to do with ranks that have come before us.
    fn engage(&mut self) {
        let Some(held) = &mut self.held else {
            return;
        };
        let (me, number, total) = (self.circle.rank, self.number, self.total);
        let (own_send, own_recv) = held.regions();
        for transfer in &self.transfers {
            let (from, to) = (transfer.from, transfer.to);
            let peer = if from == me { to } else { from };
            let Some(theirs) = self.circle.table.find(peer, number) else {
                continue;
            };
            // Whoever has called something else hears of that where it is copied.
            if (theirs.call, theirs.bytes) != (self.shape.call(), self.shape.bytes as u64) {
                continue;
            }
            let (send, recv) = if from == me {
                (own_send, theirs.regions.1)
            } else {
                (theirs.regions.0, own_recv)
            };
            let pieces = self.circle.table.between(from, to, number);
            if send == 0 || recv == 0 || !pieces.begin_all(number, total) {
                continue;
            }
            let (source, place) = ((send, transfer.send_at), (recv, transfer.recv_at));
            match held.submit(source, place, self.shape.bytes) {
                Some(id) => self.circle.table.ticket(from, to, number).issue(number, id),
                None => pieces.begin_again(number),
            }
        }
    }

    /// Looks after a part that an engine moves, if one does; whoever waits copies along. Returns whether
    /// anything got on.
    fn attend(&self, transfer: &Transfer, waits: bool) -> bool {
        let Some(engines) = &self.circle.engines else {
            return false;
        };
        let (table, number) = (&self.circle.table, self.number);
        let ticket = table.ticket(transfer.from, transfer.to, number);
        let Some(id) = ticket.request(number) else {
            return false;
        };
        let helped = waits && engines.state(id) == State::Running && engines.help(id) > 0;
        let state = engines.state(id);
        if matches!(state, State::Running | State::Gone) || !ticket.close(number, id) {
            return helped;
        }
        let pieces = table.between(transfer.from, transfer.to, number);
        match state {
            State::Complete => pieces.end(self.total),
            _ => pieces.begin_again(number),
        }
        true
    }

    /// Whether ranks outnumber processors.
    pub fn is_crowded(&self) -> bool {
        self.circle.crowded
    }

    fn buffers(&self) -> Buffers {
        Buffers {
            send: self.own.send as u64,
            recv: self.own.recv as u64,
            regions: self.held.as_ref().map_or((0, 0), Held::regions),
            call: self.shape.call(),
            bytes: self.shape.bytes as u64,
        }
    }

    /// Whether it is one of this communicator's, up to this number.
    pub fn is_before(&self, circle: &Arc<Circle>, number: u64) -> bool {
        Arc::ptr_eq(&self.circle, circle) && self.number <= number
    }

    /// Nothing more comes of it: all ranks hear of that.
    fn fail(&mut self, abi: &Abi, why: &str) {
        if self.circle.table.broken().swap(1, Ordering::AcqRel) == 0 {
            complain(&format!("{}: {why}", self.shape.function.name()));
        }
        self.code = errors::failure(abi, &format!("{}: {why}", self.shape.function.name()));
    }

    /// Where the buffers of a rank are, if it has come; one that has called something else is an error.
    fn find(&mut self, abi: &Abi, rank: usize) -> Option<Buffers> {
        let found = self.circle.table.find(rank, self.number)?;
        let own = self.buffers();
        if (found.call, found.bytes) != (own.call, own.bytes) {
            let why = format!(
                "rank {rank} has another function, root or length: {} bytes, not {}",
                found.bytes, own.bytes
            );
            // What nobody has begun yet the library does.
            self.circle.table.close();
            self.fail(abi, &why);
            self.code = abi.truncate;
            return None;
        }
        Some(found)
    }

    /// Goes on with it, as far as about `budget` bytes, `usize::MAX` if somebody waits for it; returns whether anything was moved.
    pub fn advance(&mut self, abi: &Abi, budget: usize) -> bool {
        let mut left = budget;
        if let Some((from, to)) = self.own_part.take() {
            // An erroneous program's buffers may be the same.
            // SAFETY: `begin` was promised both; they may overlap.
            unsafe { std::ptr::copy(from, to, self.shape.bytes) };
            left = left.saturating_sub(self.shape.bytes);
        }
        if self.circle.table.broken().load(Ordering::Acquire) != 0 {
            self.code = broken(abi);
            return false;
        }
        if self.combining.is_some() {
            self.combine(abi, &mut left);
        } else {
            self.copy(abi, &mut left, budget == usize::MAX);
        }
        left < budget
    }

    fn copy(&mut self, abi: &Abi, left: &mut usize, waits: bool) {
        let me = self.circle.rank;
        let circle = self.circle.clone();
        let mut waiting = Vec::new();
        for transfer in std::mem::take(&mut self.transfers) {
            let pieces = circle
                .table
                .between(transfer.from, transfer.to, self.number);
            let peer = if transfer.from == me {
                transfer.to
            } else {
                transfer.from
            };
            if self.attend(&transfer, waits) {
                *left = left.saturating_sub(self.shape.bytes);
            }
            while *left > 0 && self.code == 0 {
                let Some(theirs) = self.find(abi, peer) else {
                    break;
                };
                let Some(index) = pieces.begin(self.number, self.total) else {
                    break;
                };
                let at = index as usize * self.piece;
                let len = self.piece.min(self.shape.bytes - at);
                let (send_at, recv_at) =
                    (transfer.send_at + at as u64, transfer.recv_at + at as u64);
                let pid = circle.pids[peer];
                // SAFETY: `begin` was promised our buffers; the kernel checks theirs.
                let moved = unsafe {
                    if transfer.from == me {
                        let from = self.own.send.wrapping_add(send_at as usize);
                        process_memory::write(pid, theirs.recv.wrapping_add(recv_at), from, len)
                    } else {
                        let to = self.own.recv.wrapping_add(recv_at as usize);
                        process_memory::read(pid, theirs.send.wrapping_add(send_at), to, len)
                    }
                };
                if let Err(error) = moved {
                    self.fail(abi, &format!("the memory of rank {peer}: {error}"));
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

    fn combine(&mut self, abi: &Abi, left: &mut usize) {
        let circle = self.circle.clone();
        let mut all = Vec::with_capacity(circle.size);
        for rank in 0..circle.size {
            match self.find(abi, rank) {
                Some(buffers) => all.push(buffers),
                None => return,
            }
        }
        let pieces = circle.table.combined(self.number);
        while *left > 0 && self.code == 0 {
            let Some(index) = pieces.begin(self.number, self.total) else {
                return;
            };
            let at = index as usize * self.piece;
            let len = self.piece.min(self.shape.bytes - at);
            if let Err(why) = self.combine_piece(&all, at, len) {
                self.fail(abi, &why);
            }
            pieces.end(1);
            *left = left.saturating_sub(len);
        }
    }

    /// Combines a piece of all ranks' elements, always in their order.
    fn combine_piece(&mut self, all: &[Buffers], at: usize, len: usize) -> Result<(), String> {
        let (me, circle) = (self.circle.rank, &self.circle);
        let Some(combining) = &mut self.combining else {
            return Ok(());
        };
        let words = len.div_ceil(size_of::<u128>());
        for room in [&mut combining.acc, &mut combining.other] {
            if room.len() < words {
                room.resize(words, 0);
            }
        }
        let (acc, other) = (
            combining.acc.as_mut_ptr().cast::<u8>(),
            combining.other.as_mut_ptr().cast::<u8>(),
        );
        let fetch = |rank: usize, to: *mut u8| {
            let from = all[rank].send.wrapping_add(at as u64);
            // SAFETY: `to` has room for a piece; the kernel checks `from`.
            unsafe { process_memory::read(circle.pids[rank], from, to, len) }
                .map_err(|error| format!("the memory of rank {rank}: {error}"))
        };
        let own = self.own.send.wrapping_add(at).cast_const();
        let last = circle.size - 1;
        if last == me {
            // SAFETY: our own elements, and room for a piece.
            unsafe { std::ptr::copy_nonoverlapping(own, acc, len) }
        } else {
            fetch(last, acc)?
        }
        for rank in (0..last).rev() {
            let from = if rank == me {
                own
            } else {
                fetch(rank, other)?;
                other.cast_const()
            };
            // SAFETY: both have `len` bytes, which are whole elements.
            let code = unsafe { combining.elements.add(from, acc, len) };
            if code != 0 {
                return Err(format!("MPI_Reduce_local failed with code {code}"));
            }
        }
        for rank in &combining.to {
            if *rank == me {
                // SAFETY: our own room for the result, which is not `acc`.
                unsafe { std::ptr::copy_nonoverlapping(acc, self.own.recv.wrapping_add(at), len) };
                continue;
            }
            let to = all[*rank].recv.wrapping_add(at as u64);
            // SAFETY: `acc` has so many bytes; the kernel checks `to`.
            unsafe { process_memory::write(circle.pids[*rank], to, acc, len) }
                .map_err(|error| format!("the memory of rank {rank}: {error}"))?;
        }
        Ok(())
    }

    /// Whether everything that we have to do with is over.
    pub fn is_over(&self) -> bool {
        self.code != 0 || (self.own_part.is_none() && self.is_done())
    }

    /// Puts what was received where it belongs, and says how it ended.
    pub fn conclude(mut self, abi: &Abi) -> c_int {
        // Said before the last piece was, so whoever has seen that sees this.
        if self.circle.table.broken().load(Ordering::Acquire) != 0 {
            return match self.code {
                0 => broken(abi),
                code => code,
            };
        }
        match self.own.unpack.take() {
            // SAFETY: `Own::receive` was promised the elements.
            Some(unpack) => unsafe {
                let done = unpack
                    .kind
                    .unpack_any(&unpack.bytes, unpack.base, unpack.count);
                done.err().unwrap_or(0)
            },
            None => 0,
        }
    }

    /// Looks whether those live with whom we have to do something yet.
    pub fn look(&mut self, abi: &Abi) {
        let me = self.circle.rank;
        let mut peers: Vec<usize> = match &self.combining {
            Some(_) => (0..self.circle.size).collect(),
            None => {
                let peers = self.transfers.iter();
                peers
                    .flat_map(|transfer| [transfer.from, transfer.to])
                    .collect()
            }
        };
        peers.retain(|rank| *rank != me && !process_memory::lives(self.circle.pids[*rank]));
        // One that has ended may have done its part before.
        if let (Some(rank), false) = (peers.first(), self.is_done()) {
            self.fail(abi, &format!("rank {rank} has ended"));
        }
    }

    /// Whether everything is copied, as far as the table says now.
    fn is_done(&self) -> bool {
        let (table, number, total) = (&self.circle.table, self.number, self.total);
        let between = |transfer: &Transfer| {
            table
                .between(transfer.from, transfer.to, number)
                .are_over(number, total)
        };
        self.transfers.iter().all(between)
            && (self.combining.is_none() || table.combined(number).are_over(number, total))
    }
}

/// The code of an operation that another rank has given up.
fn broken(abi: &Abi) -> c_int {
    errors::failure(
        abi,
        "a rank has ended, or a nonblocking collective was called with different arguments",
    )
}
