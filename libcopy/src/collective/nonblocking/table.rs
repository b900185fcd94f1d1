// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the ranks of a communicator share about the collectives that they have under way: where
//! each rank's buffers are, and who copies which piece.
//!
//! Everything has the operation's number in it, which all ranks count alike. A place is used again
//! by the operation that is [`Table::depth`] later, and only by a rank that is done with the one
//! before.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::agreement::{self, Topic};
use crate::shm::anonymous::AnonymousSegment;
use crate::shm::claims::Claims;
use crate::shm::turns::Turns;

/// Operations that a rank may have under way on a communicator.
pub const DEPTH: u64 = 1024;
/// Operations that a rank may have under way where each begins after the one before is complete on
/// its rank, as with a persistent request: a rank that is done with one may begin the next while
/// another rank is still in the first.
pub const ONE_AFTER_ANOTHER: u64 = 2;
/// Ranks of a communicator whose operations are intercepted; their memory grows with the square.
pub const MOST_RANKS: usize = 64;

/// Where a rank's buffers are, in its own memory, for one operation.
#[repr(C, align(64))]
struct Record {
    /// The operation; written last.
    number: AtomicU64,
    send: AtomicU64,
    recv: AtomicU64,
    /// The same memory as regions of the kernel module, 32 bits each; 0: none.
    regions: AtomicU64,
    /// What the rank has called, to compare.
    call: AtomicU64,
    bytes: AtomicU64,
}

/// Buffers of a rank's operation, as another rank has read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Where what it sends begins.
    pub send: u64,
    /// Where what it receives begins.
    pub recv: u64,
    /// The regions of the kernel module in which they are; 0: none.
    pub regions: (u32, u32),
    /// The function, and the root.
    pub call: u64,
    /// Bytes of a part.
    pub bytes: u64,
}

/// Pieces that there may be.
pub const MOST_PIECES: u64 = 1 << 14;

/// Who moves all pieces between two ranks, if that is an engine: the operation's number in 32 bits,
/// and the request's, or what has become of it.
#[derive(Debug)]
#[repr(transparent)]
pub struct Ticket(AtomicU64);

/// The engine is done, and the pieces say so, or are about to.
const OVER: u64 = 0xffff_ffff;

impl Ticket {
    /// Names the request that moves the pieces, which somebody has begun all together.
    pub fn issue(&self, number: u64, request: u32) {
        self.0
            .store(number << 32 | u64::from(request), Ordering::Release);
    }

    /// The request, as long as nobody has seen its end.
    pub fn request(&self, number: u64) -> Option<u32> {
        let seen = self.0.load(Ordering::Acquire);
        let id = seen & 0xffff_ffff;
        (seen >> 32 == number & 0xffff_ffff && id != 0 && id != OVER).then_some(id as u32)
    }

    /// Whether we are the first to see the end of this request.
    pub fn close(&self, number: u64, request: u32) -> bool {
        let open = number << 32 | u64::from(request);
        let over = number << 32 | OVER;
        self.0
            .compare_exchange(open, over, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }
}

/// What a rank has another one do with its memory, since the kernel does not for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyRequest {
    /// The other rank.
    pub owner: usize,
    /// The operation.
    pub number: u64,
    /// Whether what is in the room goes into what the owner receives; else what it sends goes into
    /// the room.
    pub is_write: bool,
    /// Where it is in the owner's buffer.
    pub at: u64,
    /// Bytes: [`ROOM`] at most.
    pub len: usize,
}

/// Bytes that go through shared memory at a time where the kernel does not copy them.
pub(super) const ROOM: usize = 64 << 10;

/// A rank's request, with room for its bytes behind.
#[repr(C, align(64))]
struct RequestSlot {
    /// One of [`request_state`].
    state: AtomicU64,
    owner: AtomicU64,
    number: AtomicU64,
    is_write: AtomicU64,
    at: AtomicU64,
    len: AtomicU64,
    /// A bit for each rank that has a request for this one.
    asked_by: AtomicU64,
}

/// States of a rank's request.
mod request_state {
    /// There is none.
    pub const FREE: u64 = 0;
    /// One is written, or over and read.
    pub const TAKEN: u64 = 1;
    /// Its owner is to do it.
    pub const ASKED: u64 = 2;
    /// It is done.
    pub const DONE: u64 = 3;
}

/// Bytes of a rank's request.
const REQUEST_SLOT: usize = size_of::<RequestSlot>() + ROOM;

/// The shared memory of a communicator.
#[derive(Debug)]
pub struct Table {
    shared: AnonymousSegment,
    ranks: usize,
    depth: u64,
}

/// Bytes in front of the records: the word that says that something went wrong.
const HEAD: usize = 64;

fn records(ranks: usize, depth: u64) -> usize {
    ranks * depth as usize * size_of::<Record>()
}

fn pieces(ranks: usize, depth: u64) -> usize {
    (ranks * ranks + 1) * depth as usize * size_of::<Claims<16>>()
}

fn tickets(ranks: usize, depth: u64) -> usize {
    ranks * ranks * depth as usize * size_of::<Ticket>()
}

/// Where what the ranks agree on begins: behind everything else.
fn topics(ranks: usize, depth: u64) -> usize {
    (HEAD + records(ranks, depth) + pieces(ranks, depth) + tickets(ranks, depth))
        .next_multiple_of(HEAD)
}

/// Where the ranks' copy requests begin.
fn request_slots(ranks: usize, depth: u64) -> usize {
    (topics(ranks, depth) + agreement::bytes(ranks)).next_multiple_of(HEAD)
}

/// Bytes for `ranks` ranks.
fn bytes(ranks: usize, depth: u64) -> usize {
    if ranks >= 1 << 20 || depth >= 1 << 16 {
        // More than there is of memory: nobody can make it.
        return usize::MAX;
    }
    request_slots(ranks, depth) + ranks * REQUEST_SLOT
}

impl Table {
    /// Makes the memory for `ranks` ranks, each of which has at most `depth` operations under way;
    /// the file is for the others to open.
    ///
    /// # Errors
    ///
    /// As for [`AnonymousSegment::create`].
    pub fn create(ranks: usize, depth: u64, magic: [u64; 2]) -> io::Result<(Table, std::fs::File)> {
        let bytes = bytes(ranks, depth);
        let (shared, file) = AnonymousSegment::create(c"libcopy-nonblocking", bytes, magic)?;
        let table = Table {
            shared,
            ranks,
            depth,
        };
        Ok((table, file))
    }

    /// Opens what the process `pid` has made with this descriptor, for as many ranks and of the
    /// same depth.
    ///
    /// # Errors
    ///
    /// As for [`AnonymousSegment::open`].
    pub fn open(
        pid: i32,
        fd: i32,
        (ranks, depth): (usize, u64),
        magic: [u64; 2],
    ) -> io::Result<Table> {
        let shared = AnonymousSegment::open(pid, fd, bytes(ranks, depth), magic)?;
        Ok(Table {
            shared,
            ranks,
            depth,
        })
    }

    /// Operations that a rank may have under way.
    pub fn depth(&self) -> u64 {
        self.depth
    }

    /// The place of an operation among those that may be under way.
    fn slot(&self, number: u64) -> usize {
        (number % self.depth) as usize
    }

    fn record(&self, rank: usize, number: u64) -> &Record {
        assert!(rank < self.ranks, "a rank of the communicator");
        let index = rank * self.depth as usize + self.slot(number);
        let at = HEAD + index * size_of::<Record>();
        // SAFETY: within the memory, aligned as the mapping is; all zeros are valid.
        unsafe { &*self.shared.place(at, size_of::<Record>()).cast() }
    }

    fn pieces(&self, index: usize, number: u64) -> &Claims<16> {
        let per_operation = self.ranks * self.ranks + 1;
        let index = self.slot(number) * per_operation + index;
        let at = HEAD + records(self.ranks, self.depth) + index * size_of::<Claims<16>>();
        // SAFETY: within the memory, aligned as words are; all zeros are valid.
        unsafe { &*self.shared.place(at, size_of::<Claims<16>>()).cast() }
    }

    /// What goes from one rank to another; the sender opens it.
    pub(super) fn between(&self, from: usize, to: usize, number: u64) -> &Claims<16> {
        assert!(from < self.ranks && to < self.ranks, "ranks");
        self.pieces(1 + from * self.ranks + to, number)
    }

    /// Which engine moves what goes from one rank to another.
    pub(super) fn ticket(&self, from: usize, to: usize, number: u64) -> &Ticket {
        assert!(from < self.ranks && to < self.ranks, "ranks");
        let index = self.slot(number) * self.ranks * self.ranks + from * self.ranks + to;
        let at = HEAD
            + records(self.ranks, self.depth)
            + pieces(self.ranks, self.depth)
            + index * size_of::<Ticket>();
        // SAFETY: within the memory, aligned as words are; all zeros are valid.
        unsafe { &*self.shared.place(at, size_of::<Ticket>()).cast() }
    }

    /// What is combined of all ranks' elements; the first rank opens it.
    pub(super) fn combined(&self, number: u64) -> &Claims<16> {
        self.pieces(0, number)
    }

    /// Something that the ranks agree on.
    pub fn topic(&self, topic: usize, rank: usize) -> Topic<'_> {
        let at = topics(self.ranks, self.depth);
        let memory = self.shared.place(at, agreement::bytes(self.ranks));
        // SAFETY: the bytes of a row, which only this uses; the mapping is aligned, and so is the
        // place in it.
        unsafe { Topic::of(memory, self.ranks, topic, rank) }
    }

    /// A rank's request, and its room.
    fn request_slot(&self, rank: usize) -> (&RequestSlot, *mut u8) {
        assert!(rank < self.ranks, "a rank of the communicator");
        let at = request_slots(self.ranks, self.depth) + rank * REQUEST_SLOT;
        let place = self.shared.place(at, REQUEST_SLOT);
        // SAFETY: within the memory, aligned as the mapping is; all zeros are valid.
        let slot = unsafe { &*place.cast::<RequestSlot>() };
        (slot, place.wrapping_add(size_of::<RequestSlot>()))
    }

    /// Takes our request for one operation, until [`Table::free_request_slot`]; [`ROOM`] bytes,
    /// unless another one has it.
    pub(super) fn take_request_slot(&self, rank: usize) -> Option<*mut u8> {
        let (slot, room) = self.request_slot(rank);
        let order = (Ordering::Acquire, Ordering::Relaxed);
        let taken = slot.state.compare_exchange(
            request_state::FREE,
            request_state::TAKEN,
            order.0,
            order.1,
        );
        taken.is_ok().then_some(room)
    }

    /// Has another rank do our request, as soon as it goes on with that operation.
    pub(super) fn ask(&self, rank: usize, request: CopyRequest) {
        let (slot, _) = self.request_slot(rank);
        slot.owner.store(request.owner as u64, Ordering::Relaxed);
        slot.number.store(request.number, Ordering::Relaxed);
        slot.is_write
            .store(request.is_write.into(), Ordering::Relaxed);
        slot.at.store(request.at, Ordering::Relaxed);
        slot.len.store(request.len as u64, Ordering::Relaxed);
        slot.state.store(request_state::ASKED, Ordering::Release);
        let (owner, _) = self.request_slot(request.owner);
        owner.asked_by.fetch_or(1 << rank, Ordering::Release);
    }

    /// Whether our request is done.
    pub(super) fn is_done(&self, rank: usize) -> bool {
        self.request_slot(rank).0.state.load(Ordering::Acquire) == request_state::DONE
    }

    /// Gives our request back to the operations of this rank.
    pub(super) fn free_request_slot(&self, rank: usize) {
        self.request_slot(rank)
            .0
            .state
            .store(request_state::FREE, Ordering::Release);
    }

    /// Does the copy requests that others have for this rank in an operation: `copy` is given each,
    /// and its room. Returns whether there were any.
    #[inline]
    pub(super) fn serve(
        &self,
        rank: usize,
        number: u64,
        copy: impl Fn(CopyRequest, *mut u8),
    ) -> bool {
        let asked_by = &self.request_slot(rank).0.asked_by;
        let mut bits = asked_by.load(Ordering::Acquire);
        let mut served = false;
        while bits != 0 {
            let (other, bit) = (bits.trailing_zeros() as usize, bits & bits.wrapping_neg());
            bits ^= bit;
            let (slot, room) = self.request_slot(other);
            let request = CopyRequest {
                owner: slot.owner.load(Ordering::Relaxed) as usize,
                number: slot.number.load(Ordering::Relaxed),
                is_write: slot.is_write.load(Ordering::Relaxed) != 0,
                at: slot.at.load(Ordering::Relaxed),
                len: (slot.len.load(Ordering::Relaxed) as usize).min(ROOM),
            };
            if (request.owner, request.number) != (rank, number) {
                continue;
            }
            copy(request, room);
            asked_by.fetch_and(!bit, Ordering::Relaxed);
            slot.state.store(request_state::DONE, Ordering::Release);
            served = true;
        }
        served
    }

    /// Says where our buffers are: from now on others use them, until everything that we have to do
    /// with is over.
    pub(super) fn publish(&self, rank: usize, number: u64, buffers: Buffers) {
        if rank == 0 {
            self.combined(number).open(number);
        }
        for other in 0..self.ranks {
            self.between(rank, other, number).open(number);
        }
        let record = self.record(rank, number);
        record.send.store(buffers.send, Ordering::Relaxed);
        record.recv.store(buffers.recv, Ordering::Relaxed);
        let (send, recv) = buffers.regions;
        let regions = u64::from(send) << 32 | u64::from(recv);
        record.regions.store(regions, Ordering::Relaxed);
        record.call.store(buffers.call, Ordering::Relaxed);
        record.bytes.store(buffers.bytes, Ordering::Relaxed);
        record.number.store(number, Ordering::Release);
    }

    /// Where another rank's buffers are, if it has come to the operation. True as long as something
    /// that both have to do with is not over.
    pub(super) fn find(&self, rank: usize, number: u64) -> Option<Buffers> {
        let record = self.record(rank, number);
        (record.number.load(Ordering::Acquire) == number).then(|| Buffers {
            send: record.send.load(Ordering::Relaxed),
            recv: record.recv.load(Ordering::Relaxed),
            regions: {
                let both = record.regions.load(Ordering::Relaxed);
                ((both >> 32) as u32, both as u32)
            },
            call: record.call.load(Ordering::Relaxed),
            bytes: record.bytes.load(Ordering::Relaxed),
        })
    }

    /// Whether the ranks still do the operation with this number here, as all of them find: the
    /// first that asks decides.
    pub fn admits(&self, number: u64) -> bool {
        // The last number that was admitted, and above it the first one that is not.
        let mut seen = self.admitted().load(Ordering::Acquire);
        loop {
            let (last, closed) = (seen & 0xffff_ffff, seen >> 32);
            if closed != 0 && number >= closed {
                return false;
            }
            if number <= last || number > 0xffff_ffff {
                return true;
            }
            let next = closed << 32 | number;
            match self.admitted().compare_exchange_weak(
                seen,
                next,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Has no rank begin an operation here that none has begun yet.
    pub fn close(&self) {
        let close = |seen: u64| (seen >> 32 == 0).then(|| seen | ((seen & 0xffff_ffff) + 1) << 32);
        let _ = self
            .admitted()
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, close);
    }

    fn admitted(&self) -> &AtomicU64 {
        // SAFETY: within the memory, aligned as words are; all zeros are valid.
        unsafe { &*self.shared.place(8, 8).cast() }
    }

    /// Who looks next whether which rank lives.
    pub fn turns(&self) -> &Turns {
        // SAFETY: within the memory, aligned as words are; all zeros are valid.
        unsafe { &*self.shared.place(16, 8).cast() }
    }

    /// Whether something went wrong, for all operations from then on: 0, or why.
    pub fn broken(&self) -> &AtomicU64 {
        // SAFETY: within the memory, aligned as the mapping is; all zeros are valid.
        unsafe { &*self.shared.place(0, HEAD).cast() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_ranks_than_memory_has_room_for_are_refused() {
        // Their bytes, counted modulo 2^64, would be few.
        for (ranks, depth) in [(1 << 58, 4), (1 << 32, 4), (4, 1 << 62)] {
            assert!(
                Table::create(ranks, depth, [3, 4]).is_err(),
                "{ranks}, {depth}"
            );
        }
    }

    #[test]
    fn an_engine_takes_all_pieces_or_none() {
        let (table, _file) = Table::create(2, DEPTH, [1, 2]).unwrap();
        for number in [7, 7 + DEPTH, (1 << 32) + 7] {
            let (pieces, ticket) = (table.between(0, 1, number), table.ticket(0, 1, number));
            assert!(!pieces.begin_all(number, 3), "not open yet");
            pieces.open(number);
            assert!(pieces.begin_all(number, 3) && !pieces.begin_all(number, 3));
            assert_eq!(
                (pieces.begin(number, 3), ticket.request(number)),
                (None, None)
            );
            ticket.issue(number, 9);
            assert_eq!(
                (ticket.request(number), ticket.request(number + 1)),
                (Some(9), None)
            );
            assert!(!ticket.close(number, 8) && ticket.close(number, 9));
            assert!(!ticket.close(number, 9), "once");
            assert_eq!(ticket.request(number), None);
            assert!(!pieces.are_over(number, 3));
            if number == 7 {
                // The engine has failed.
                pieces.begin_again(number);
                assert_eq!(pieces.begin(number, 3), Some(0));
                assert!(!pieces.begin_all(number, 3), "too late");
                pieces.end(1);
                assert!(pieces.begin(number, 3).is_some() && pieces.begin(number, 3).is_some());
                pieces.end(2);
            } else {
                pieces.end(3);
            }
            assert!(pieces.are_over(number, 3));
        }
    }

    #[test]
    fn ranks_that_have_come_are_found() {
        let (table, _file) = Table::create(3, DEPTH, [1, 2]).unwrap();
        let buffers = Buffers {
            send: 1,
            recv: 2,
            regions: (5, 6),
            call: 3,
            bytes: 4,
        };
        assert_eq!(table.find(2, 1), None);
        for number in [1, DEPTH, DEPTH + 1] {
            table.publish(2, number, buffers);
            assert_eq!(table.find(2, number), Some(buffers));
            assert_eq!(table.between(2, 1, number).begin(number, 1), Some(0));
            assert_eq!(table.between(1, 2, number).begin(number, 1), None);
        }
        assert_eq!(table.find(2, 1), None, "it has gone on");
    }
}
