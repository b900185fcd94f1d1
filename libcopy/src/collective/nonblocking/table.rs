// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the ranks of a communicator share about the collectives that they have under way: where
//! each rank's buffers are, and who copies which piece.
//!
//! Everything has the operation's number in it, which all ranks count alike. A place is used again
//! by the operation that is [`Table::depth`] later, and only by a rank that is done with the one
//! before.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::agreement::{self, Topic};
use crate::shm::anonymous::AnonymousSegment;
use crate::shm::board::{CopyRequest, RankSet, RequestSlot};
use crate::shm::claims::Claims;
use crate::shm::turns::Turns;

/// Operations that each of `ranks` ranks may have under way on a communicator. All ranks together
/// have about as many, so that a rank's memory does not grow with their number.
pub fn depth(ranks: usize) -> u64 {
    ((1 << 14) / ranks.max(1) as u64).clamp(64, 1024)
}

/// Operations that a rank may have under way where each begins after the one before is complete on
/// its rank, as with a persistent request: a rank that is done with one may begin the next while
/// another rank is still in the first.
pub const ONE_AFTER_ANOTHER: u64 = 2;
/// Ranks of a communicator whose operations are intercepted.
pub const MOST_RANKS: usize = 256;

/// Where a rank's buffers are, in its own memory, for one operation, and who moves what.
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
    /// The pieces of [`Between::Leaf`] and [`Between::All`].
    pieces: Claims<16>,
    ticket: Ticket,
}

/// Between whom pieces go. Who has the record that is named here, or receives, opens them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Between {
    /// Between the root and this rank.
    Leaf(usize),
    /// From one rank to another, where each has a part for each.
    Pair {
        /// Who sends.
        from: usize,
        /// Who receives.
        to: usize,
    },
    /// What is combined of all ranks' elements.
    All,
}

impl Between {
    /// Whose record has them.
    fn record(self) -> Option<usize> {
        match self {
            Between::Leaf(rank) => Some(rank),
            Between::All => Some(0),
            Between::Pair { .. } => None,
        }
    }
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

/// Where the part is that a rank sends to another one, or receives from it, where parts differ in
/// length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// From the start of the buffer on; what is in front of that wraps around.
    pub at: u64,
    /// Bytes.
    pub len: u64,
}

/// A rank's parts where they differ in length: one of each for each rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// What it sends to each.
    pub sent: Vec<Place>,
    /// What it receives from each.
    pub received: Vec<Place>,
}

/// A place as others read it.
#[repr(C)]
struct SharedPlace {
    at: AtomicU64,
    len: AtomicU64,
}

impl SharedPlace {
    fn write(&self, place: Place) {
        self.at.store(place.at, Ordering::Relaxed);
        self.len.store(place.len, Ordering::Relaxed);
    }

    fn read(&self) -> Place {
        Place {
            at: self.at.load(Ordering::Relaxed),
            len: self.len.load(Ordering::Relaxed),
        }
    }
}

/// What a rank sends to another one, and what it receives from it.
type SharedPair = [SharedPlace; 2];

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

/// Bytes that go through shared memory at a time where the kernel does not copy them.
pub(super) const ROOM: usize = 64 << 10;

/// What a rank has others copy, since the kernel does not for it, with room for the bytes behind.
#[repr(C, align(128))]
struct CopyRequests {
    /// Who has a request for this rank.
    asked_by: RankSet,
    /// What this rank has another one do.
    request: RequestSlot,
}

/// Bytes of a rank's requests.
const COPY_REQUESTS: usize = size_of::<CopyRequests>() + ROOM;

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

fn pairs(ranks: usize, depth: u64) -> usize {
    ranks * ranks * depth as usize * size_of::<Claims<16>>()
}

fn tickets(ranks: usize, depth: u64) -> usize {
    ranks * ranks * depth as usize * size_of::<Ticket>()
}

/// Where what the ranks agree on begins: behind everything else.
fn topics(ranks: usize, depth: u64) -> usize {
    (HEAD + records(ranks, depth) + pairs(ranks, depth) + tickets(ranks, depth))
        .next_multiple_of(HEAD)
}

/// Where the ranks' copy requests begin.
fn first_copy_requests(ranks: usize, depth: u64) -> usize {
    (topics(ranks, depth) + agreement::bytes(ranks)).next_multiple_of(align_of::<CopyRequests>())
}

/// Where the places of parts that differ in length begin. Memory that nobody touches is none.
fn first_places(ranks: usize, depth: u64) -> usize {
    first_copy_requests(ranks, depth) + ranks * COPY_REQUESTS
}

/// Bytes for `ranks` ranks.
fn bytes(ranks: usize, depth: u64) -> usize {
    if ranks >= 1 << 16 || depth >= 1 << 16 {
        // More than there is of memory: nobody can make it.
        return usize::MAX;
    }
    first_places(ranks, depth) + ranks * ranks * depth as usize * size_of::<SharedPair>()
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

    /// Where the words of a pair are, in a list of them: those of a receiver are together.
    fn pair(&self, from: usize, to: usize, number: u64) -> usize {
        assert!(from < self.ranks && to < self.ranks, "ranks");
        (self.slot(number) * self.ranks + to) * self.ranks + from
    }

    /// The pieces that go between ranks.
    pub(super) fn pieces(&self, between: Between, number: u64) -> &Claims<16> {
        let Between::Pair { from, to } = between else {
            let rank = between.record().unwrap_or_default();
            return &self.record(rank, number).pieces;
        };
        let index = self.pair(from, to, number);
        let at = HEAD + records(self.ranks, self.depth) + index * size_of::<Claims<16>>();
        // SAFETY: within the memory, aligned as words are; all zeros are valid.
        unsafe { &*self.shared.place(at, size_of::<Claims<16>>()).cast() }
    }

    /// Which engine moves these pieces.
    pub(super) fn ticket(&self, between: Between, number: u64) -> &Ticket {
        let Between::Pair { from, to } = between else {
            let rank = between.record().unwrap_or_default();
            return &self.record(rank, number).ticket;
        };
        let at = HEAD
            + records(self.ranks, self.depth)
            + pairs(self.ranks, self.depth)
            + self.pair(from, to, number) * size_of::<Ticket>();
        // SAFETY: within the memory, aligned as words are; all zeros are valid.
        unsafe { &*self.shared.place(at, size_of::<Ticket>()).cast() }
    }

    /// Something that the ranks agree on.
    pub fn topic(&self, topic: usize, rank: usize) -> Topic<'_> {
        let at = topics(self.ranks, self.depth);
        let memory = self.shared.place(at, agreement::bytes(self.ranks));
        // SAFETY: the bytes of a row, which only this uses; the mapping is aligned, and so is the
        // place in it.
        unsafe { Topic::of(memory, self.ranks, topic, rank) }
    }

    /// A rank's requests, and the room for their bytes.
    fn copy_requests(&self, rank: usize) -> (&CopyRequests, *mut u8) {
        assert!(rank < self.ranks, "a rank of the communicator");
        let at = first_copy_requests(self.ranks, self.depth) + rank * COPY_REQUESTS;
        let place = self.shared.place(at, COPY_REQUESTS);
        // SAFETY: within the memory, aligned as the mapping is; all zeros are valid.
        let requests = unsafe { &*place.cast::<CopyRequests>() };
        (requests, place.wrapping_add(size_of::<CopyRequests>()))
    }

    /// The room of a rank's request: [`ROOM`] bytes.
    pub(super) fn room(&self, rank: usize) -> *mut u8 {
        self.copy_requests(rank).1
    }

    /// Has another rank do our request, as soon as it goes on with that operation. The one before
    /// is done.
    pub(super) fn ask(&self, rank: usize, request: CopyRequest) {
        self.copy_requests(rank).0.request.ask(request);
        self.copy_requests(request.owner).0.asked_by.add(rank);
    }

    /// Whether our request is done.
    pub(super) fn is_done(&self, rank: usize) -> bool {
        self.copy_requests(rank).0.request.is_done()
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
        let asked_by = &self.copy_requests(rank).0.asked_by;
        let mut served = false;
        asked_by.take(self.ranks, |other| {
            let (requests, room) = self.copy_requests(other);
            match requests.request.asked(rank, number) {
                // Anybody may have written anything there.
                Some(request) if request.len <= ROOM as u64 => {
                    copy(request, room);
                    requests.request.finish();
                    served = true;
                }
                // It is for another operation of ours.
                _ => asked_by.add(other),
            }
        });
        served
    }

    /// Says where our buffers are: from now on others use them, until everything that we have to do
    /// with is over. With `pairs`, each rank has a part for each. `places`: where the parts are, of
    /// which only those for these peers count.
    pub(super) fn publish(
        &self,
        rank: usize,
        number: u64,
        buffers: Buffers,
        pairs: bool,
        places: Option<(&Places, Range<usize>)>,
    ) {
        // Nobody takes for the operation before what is written from here on.
        self.record(rank, number).number.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        if let Some((places, peers)) = places {
            for peer in peers {
                let [sent, received] = self.places(rank, peer, number);
                sent.write(places.sent[peer]);
                received.write(places.received[peer]);
            }
        }
        for from in (0..self.ranks).filter(|_| pairs) {
            let pair = Between::Pair { from, to: rank };
            self.pieces(pair, number).open(number);
        }
        let record = self.record(rank, number);
        record.pieces.open(number);
        record.send.store(buffers.send, Ordering::Relaxed);
        record.recv.store(buffers.recv, Ordering::Relaxed);
        let (send, recv) = buffers.regions;
        let regions = u64::from(send) << 32 | u64::from(recv);
        record.regions.store(regions, Ordering::Relaxed);
        record.call.store(buffers.call, Ordering::Relaxed);
        record.bytes.store(buffers.bytes, Ordering::Relaxed);
        record.number.store(number, Ordering::Release);
    }

    /// What a rank sends to another one, and what it receives from it.
    fn places(&self, rank: usize, peer: usize, number: u64) -> &SharedPair {
        let index = self.pair(peer, rank, number);
        let at = first_places(self.ranks, self.depth) + index * size_of::<SharedPair>();
        // SAFETY: within the memory, aligned as words are; all zeros are valid.
        unsafe { &*self.shared.place(at, size_of::<SharedPair>()).cast() }
    }

    /// What a rank sends to another one, and what it receives from it, if it has come to the
    /// operation and is not done with it.
    pub(super) fn places_of(&self, rank: usize, peer: usize, number: u64) -> Option<[Place; 2]> {
        let places = self.places(rank, peer, number);
        self.of(rank, number, |_| places.each_ref().map(SharedPlace::read))
    }

    /// What `read` reads of a rank's operation: nothing if it has not come to it, or has meanwhile
    /// begun to use its memory for a later one, as it may once everything that both have to do with
    /// is over.
    fn of<T>(&self, rank: usize, number: u64, read: impl FnOnce(&Record) -> T) -> Option<T> {
        let record = self.record(rank, number);
        if record.number.load(Ordering::Acquire) != number {
            return None;
        }
        let found = read(record);
        // What was read is older than what the number says now.
        fence(Ordering::Acquire);
        (record.number.load(Ordering::Relaxed) == number).then_some(found)
    }

    /// Where another rank's buffers are, if it has come to the operation and is not done with it.
    pub(super) fn find(&self, rank: usize, number: u64) -> Option<Buffers> {
        self.of(rank, number, |record| Buffers {
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
        let depth = depth(2);
        let (table, _file) = Table::create(2, depth, [1, 2]).unwrap();
        let pair = Between::Pair { from: 0, to: 1 };
        let numbers = [7, 7 + depth, (1 << 32) + 7];
        let places = [pair, Between::Leaf(1)].into_iter();
        for (place, number) in places.flat_map(|place| numbers.map(|number| (place, number))) {
            let (pieces, ticket) = (table.pieces(place, number), table.ticket(place, number));
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
        let depth = depth(3);
        let (table, _file) = Table::create(3, depth, [1, 2]).unwrap();
        let buffers = Buffers {
            send: 1,
            recv: 2,
            regions: (5, 6),
            call: 3,
            bytes: 4,
        };
        assert_eq!(table.find(2, 1), None);
        let pair = |from, to| Between::Pair { from, to };
        for number in [1, depth, depth + 1] {
            table.publish(2, number, buffers, true, None);
            assert_eq!(table.find(2, number), Some(buffers));
            let begin = |between| table.pieces(between, number).begin(number, 1);
            assert_eq!(begin(pair(1, 2)), Some(0));
            assert_eq!(begin(pair(2, 1)), None, "the receiver has not come");
            assert_eq!(begin(Between::Leaf(2)), Some(0));
        }
        assert_eq!(table.find(2, 1), None, "it has gone on");
    }

    /// Who looks at a rank's operation while its memory is used for a later one sees the one, the
    /// other, or nothing.
    #[test]
    fn an_operation_is_read_as_a_whole() {
        const LAST: u64 = 3_000_000;
        let (table, _file) = Table::create(2, ONE_AFTER_ANOTHER, [1, 2]).unwrap();
        let of = |number| Place {
            at: number,
            len: number,
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in (1..=LAST).map(|n| ONE_AFTER_ANOTHER * n) {
                    let buffers = Buffers {
                        send: number,
                        recv: number,
                        regions: (0, 0),
                        call: number,
                        bytes: number,
                    };
                    let both = vec![of(number); 2];
                    let places = Places {
                        sent: both.clone(),
                        received: both,
                    };
                    table.publish(1, number, buffers, false, Some((&places, 0..2)));
                }
            });
            let (mut number, mut seen) = (ONE_AFTER_ANOTHER, 0);
            while number < ONE_AFTER_ANOTHER * LAST {
                let now = table.record(1, number).number.load(Ordering::Relaxed);
                number = now.max(ONE_AFTER_ANOTHER);
                if let Some(found) = table.find(1, number) {
                    assert_eq!([found.send, found.call, found.bytes], [number; 3]);
                    seen += 1;
                }
                if let Some(found) = table.places_of(1, 0, number) {
                    assert_eq!(found, [of(number); 2]);
                }
            }
            assert!(seen > 0);
        });
    }

    /// What a rank needs does not grow with the number of ranks, and operations with a root touch
    /// no more than their records.
    #[test]
    fn the_memory_of_a_rank_does_not_grow() {
        use std::os::unix::fs::MetadataExt;
        let buffers = Buffers {
            send: 0,
            recv: 0,
            regions: (0, 0),
            call: 0,
            bytes: 0,
        };
        for ranks in [16, 64, 128, MOST_RANKS] {
            let depth = depth(ranks);
            let (table, file) = Table::create(ranks, depth, [1, 2]).unwrap();
            let used = || file.metadata().unwrap().blocks() as usize * 512;
            let all = |pairs| {
                for number in 1..=depth {
                    (0..ranks).for_each(|rank| table.publish(rank, number, buffers, pairs, None));
                }
            };
            all(false);
            assert!(used() <= 2 << 20, "{ranks} ranks: {} bytes", used());
            all(true);
            let most = ranks * (192 << 10) + (2 << 20);
            assert!(used() <= most, "{ranks} ranks: {} bytes", used());
        }
    }
}
