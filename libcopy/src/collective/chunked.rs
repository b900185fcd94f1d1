// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives of some KiB through shared memory, a chunk at a time: each rank writes a chunk, and
//! reads those of all others ([`crate::shm::contribution`]). Those of calls of 16 KiB and more are
//! written past the caches. Lines that another processor has read are slow to write: each is taken
//! back from its caches first. 32 KiB took 3.5 us where two processors share a cache, 13 us where
//! they do not, and 1.8 and 0.8 us past the caches (EPYC of Zen 4).
//!
//! A rank has two places for chunks, in turn. When it writes the second one after a chunk, all
//! ranks have written the one in between, and so are done with the first: each waits for all others
//! before it goes on. So nobody answers.
//!
//! Elements are combined in the order of plans without groups, as in [`super::direct`].

use std::mem::MaybeUninit;
use std::ops::Range;
use std::time::Instant;

use super::direct::{meet, wake};
use super::division::Division;
use super::planned::Combine;
use crate::error::Boxed;
use crate::memcpy;
use crate::op::{Call, Op};
use crate::plan::{self, MOST_MEMBERS, Planned};
use crate::policy::Path;
use crate::shm::contribution::CHUNK;
use crate::shm::leading::{Class, KINDS};
use crate::team::{Decision, Team};
use crate::transport::TransportKind;

/// What is measured apart, and where rank 0 is the root apart from where another rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Allgather,
    Alltoall,
    /// To all, each its part or everything.
    Reduction,
    Reduce,
    Bcast,
    Gather,
    Scatter,
}

const _: () = assert!(2 * (Kind::Scatter as usize + 1) == KINDS);

impl Kind {
    fn has_root(self) -> bool {
        matches!(self, Kind::Bcast | Kind::Gather | Kind::Scatter)
    }

    /// Whether it goes in chunks where more ranks share processors than one group has, a rank
    /// writes `whole` bytes, and a chunk has `large`, or 0 where there are none. Only reductions
    /// do; short reduces are in the ranks' slots.
    fn suits_many(self, whole: usize, large: usize) -> bool {
        let least = match self {
            Kind::Reduction => 0,
            Kind::Reduce => LEAST_REDUCE_OF_MANY,
            _ => usize::MAX,
        };
        large > 0 && (least..=MOST_CHUNKS_OF_MANY * large).contains(&whole)
    }

    /// Who measures it: rank 0, but where that hands out. The root of a broadcast or a scatter goes
    /// on while the others read its last chunk, and it is they who wait for the bytes.
    fn measures(self, root: usize) -> usize {
        usize::from(root == 0 && matches!(self, Kind::Bcast | Kind::Scatter))
    }
}

/// Longer calls go as the policy says.
const LONGEST: usize = 8 << 20;

/// From this size on chunks are written past the caches, and below as [`crate::shm::writes`] says.
const STREAMED: usize = 16 << 10;

/// Parts of several chunks have this much in each where ranks share processors: an alltoall of 64
/// KiB for each of eight ranks took 97 us by the kernel and 113 in chunks with 36 KiB for each, of
/// four ranks 101 and 34 (two processors of an EPYC of Zen 4).
const LEAST_PART: usize = 64 << 10;

/// Where more ranks share processors than one group has: bytes from which on reduces go in chunks,
/// and chunks of a call, at most. Sums of doubles took 32 and 64 ranks on two processors of an EPYC
/// of Zen 4 (`libcopy bench coll --ops reduce,allreduce`), in ms by plans and in chunks: to a root
/// 16 KiB 0.37 and 0.40 (64), 64 KiB 1.2 and 0.19, 4.3 and 0.85; 128 KiB 5.0 and 1.3 (64); of eight
/// chunks 8.4 and 6 to 9; to all 8 KiB 0.19 and 0.12, 0.56 and 0.40, 64 KiB 2.0 and 0.21, 8.2 and
/// 0.97; 128 KiB 10 and 2.6 (64); of eight chunks 8.2 and 6.4, 15 and 12; of 16 22 and 28 (64).
const LEAST_REDUCE_OF_MANY: usize = 24 << 10;
const MOST_CHUNKS_OF_MANY: usize = 8;

/// From so many bytes of a rank on chunks are the usual way where ranks share processors. An
/// allgather of 64 KiB took four ranks 59 us by rings and 24 in chunks
/// where two processors share no cache, and 20 and 22 where they do.
const USUALLY_LARGE: usize = 128 << 10;

/// From this size on the kernel's copy is the usual way where it is one of the two. Both take as
/// long there where processors share a cache (EPYC of Zen 4, two ranks): `libcopy bench coll -n 2
/// --transports shm,cma` shows it.
fn usually_cma(kind: Kind) -> usize {
    match kind {
        Kind::Reduction | Kind::Reduce => 128 << 10,
        _ => 64 << 10,
    }
}

/// Whether a call goes in chunks, and how these are written: the same on all ranks. Where the
/// policy says through shared memory, it does; where it says through the kernel, which copies
/// once, one rank measures both.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) is_chunked: bool,
    /// Bytes of a chunk.
    chunk: usize,
    /// Whether chunks are written past the caches.
    is_streamed: bool,
    /// If we measure it.
    measured: Option<Measured>,
}

/// A call that goes one of two ways, and that we measure.
#[derive(Debug)]
struct Measured {
    class: Class,
    /// Its number and way.
    call: (u64, usize),
    started: Instant,
}

impl Way {
    /// As the policy says.
    pub(super) const BY_POLICY: Way = Way {
        is_chunked: false,
        chunk: CHUNK,
        is_streamed: false,
        measured: None,
    };

    /// The way of a call that the policy decides so about, and in which each rank has `bytes`
    /// bytes for each other one. `root`: 0 where there is none. `granule`: bytes that stay
    /// together. Where ranks outnumber processors each chunk costs a switch to another rank, so
    /// they are large, and the policy says up to which size they pay.
    pub(super) fn of(
        team: &mut Team,
        (kind, root): (Kind, usize),
        decision: Decision,
        (bytes, granule): (usize, usize),
    ) -> Way {
        let (size, shares) = (team.size(), team.is_oversubscribed());
        // What a rank writes.
        let whole = match kind {
            Kind::Alltoall => bytes.saturating_mul(size - 1),
            _ => bytes,
        };
        let large = team.segment().largest_chunk();
        // A chunk has a part for each other rank.
        let fits = |bytes: usize| bytes <= large / (size - 1).max(1);
        let most_shared = match kind {
            Kind::Alltoall if !fits(bytes) && !fits(LEAST_PART) => 0,
            Kind::Allgather => team.policy().chunked_allgather_max,
            Kind::Alltoall => team.policy().chunked_alltoall_max,
            Kind::Reduction => team.policy().chunked_allreduce_max,
            Kind::Reduce => team.policy().chunked_reduce_max,
            Kind::Bcast | Kind::Gather | Kind::Scatter => 0,
        };
        let suits_many = shares && kind.suits_many(whole, large);
        let may_be = size > 1
            && (size <= MOST_MEMBERS || suits_many)
            && granule <= AT_A_TIME.min(CHUNK / size)
            && (whole as u64 <= most_shared || !shares)
            && !decision.offloads
            && team.is_flat();
        if !may_be {
            return Way::BY_POLICY;
        }
        let is_forced = team.transport().is_some();
        let mut measured = |usually_chunked: bool| {
            let class = Class::new(2 * kind as usize + usize::from(root == 0), bytes);
            let (number, way, is_timed) = team.next_led(class, kind.measures(root));
            let measured = is_timed.then(|| Measured {
                class,
                call: (number, way),
                started: Instant::now(),
            });
            ((way == 0) == usually_chunked, measured)
        };
        match decision.path {
            // A root does not wait for others then.
            Path::Eager if kind.has_root() => Way::BY_POLICY,
            Path::Via(TransportKind::Cma) if is_forced => Way::BY_POLICY,
            // Not past the caches in any case: who reads them may be on the same processor.
            Path::Eager | Path::Via(TransportKind::Shm | TransportKind::Cma) if shares => {
                let (is_chunked, measured) = match kind {
                    // Faster at any length, and who sends to a root waits for nobody else by a
                    // plan.
                    Kind::Reduction | Kind::Reduce => (true, None),
                    _ if whole > CHUNK => measured(whole >= USUALLY_LARGE),
                    _ => (false, None),
                };
                Way {
                    is_chunked,
                    chunk: if whole > CHUNK { large } else { CHUNK },
                    is_streamed: false,
                    measured,
                }
            }
            Path::Eager | Path::Via(TransportKind::Shm) => Way {
                is_chunked: true,
                chunk: CHUNK,
                is_streamed: bytes >= STREAMED,
                measured: None,
            },
            Path::Via(TransportKind::Cma) if bytes <= LONGEST => {
                let (is_chunked, measured) = measured(bytes < usually_cma(kind));
                Way {
                    is_chunked,
                    chunk: CHUNK,
                    is_streamed: true,
                    measured,
                }
            }
            Path::Via(_) => Way::BY_POLICY,
        }
    }

    /// Bytes of each of `parts` parts of a chunk.
    fn part_of_chunk(&self, parts: usize, granule: usize) -> usize {
        self.chunk / parts / granule * granule
    }

    /// The call has ended.
    pub(super) fn end(self, team: &mut Team) {
        if let Some(measured) = self.measured {
            let nanos = measured.started.elapsed().as_nanos() as u64;
            team.note_led(measured.class, measured.call, nanos);
        }
    }
}

/// Which piece of a rank's chunk is for another one: it has none for itself.
fn index_for(of: usize, rank: usize) -> usize {
    if rank < of { rank } else { rank - 1 }
}

/// The part of a range that a chunk has, of which each has `bytes` bytes.
fn piece(range: &Range<usize>, chunk: usize, bytes: usize) -> Range<usize> {
    let at = |chunk: usize| (range.start + chunk * bytes).min(range.end);
    at(chunk)..at(chunk + 1)
}

/// Collects everybody's part, ours at `mine`, in `recv`; ours may be there already.
///
/// # Safety
///
/// `mine` is readable for the length of our part.
pub(super) unsafe fn allgather(
    team: &mut Team,
    way: &Way,
    mine: *const u8,
    recv: &mut [u8],
    division: Division<'_>,
) -> Boxed<()> {
    let (me, base) = (team.rank(), recv.as_mut_ptr());
    let (own_at, own_len) = division.part(me);
    let longest = (0..team.size()).map(|rank| division.part(rank).1).max();
    let chunks = longest.unwrap_or(0).div_ceil(way.chunk);
    let call = |rank| Call::new(Op::Allgather, 0, division.part(rank).1);
    for chunk in 0..chunks {
        let own = piece(&(0..own_len), chunk, way.chunk);
        let put = |place, is_streamed| {
            // SAFETY: the piece is inside our part, says the caller.
            unsafe { write(place, mine.add(own.start), own.len(), is_streamed) };
        };
        let (number, _) = publish(team, way, call, (own.len(), put))?;
        for rank in team.others() {
            let (at, len) = division.part(rank);
            let range = piece(&(at..at + len), chunk, way.chunk);
            // SAFETY: the part is inside the buffer; its owner has written as many bytes.
            unsafe { read(team, rank, number, 0, base.add(range.start), range.len()) };
        }
    }
    // SAFETY: our part is inside the buffer.
    let place = unsafe { base.add(own_at) };
    if !std::ptr::eq(place, mine) {
        // SAFETY: `mine` is borrowed if it is elsewhere, so the two are apart.
        unsafe { memcpy::cached(place, mine, own_len) };
    }
    Ok(())
}

/// Hands everybody's `send` out in equal parts, which come together in everybody's `recv`.
pub(super) fn alltoall(
    team: &mut Team,
    way: &Way,
    send: &[u8],
    recv: &mut [u8],
    part: usize,
) -> Boxed<()> {
    let (me, size) = (team.rank(), team.size());
    let call = Call::new(Op::Alltoall, 0, send.len());
    let bytes = way.part_of_chunk(size - 1, 64);
    let index = |of: usize, rank: usize| bytes * index_for(of, rank);
    for chunk in 0..part.div_ceil(bytes) {
        let range = piece(&(0..part), chunk, bytes);
        let put = |place: *mut u8, is_streamed| {
            for rank in (0..size).filter(|rank| *rank != me) {
                let from = &send[rank * part..][range.clone()];
                // SAFETY: the pieces of all others fit into a chunk.
                unsafe {
                    let to = place.add(index(me, rank));
                    write(to, from.as_ptr(), from.len(), is_streamed);
                }
            }
        };
        let len = range.len() * (size - 1);
        let (number, _) = publish(team, way, |_| call, (len, put))?;
        for rank in team.others() {
            let to = &mut recv[rank * part..][range.clone()];
            let at = index(rank, me);
            // SAFETY: each has written as many bytes for us as we have for it.
            unsafe { read(team, rank, number, at, to.as_mut_ptr(), to.len()) };
        }
    }
    let own = me * part..(me + 1) * part;
    recv[own.clone()].copy_from_slice(&send[own]);
    Ok(())
}

/// Copies the root's bytes to everybody's.
pub(super) fn bcast(team: &mut Team, way: &Way, root: usize, bytes: &mut [u8]) -> Boxed<()> {
    let (is_root, call) = (team.rank() == root, Call::new(Op::Bcast, root, bytes.len()));
    for chunk in 0..bytes.len().div_ceil(way.chunk) {
        let piece = &mut bytes[piece(&(0..call.len as usize), chunk, way.chunk)];
        let (from, len) = (piece.as_ptr(), if is_root { piece.len() } else { 0 });
        // SAFETY: a piece is as long as a chunk at most.
        let put = |place, is_streamed| unsafe { write(place, from, len, is_streamed) };
        let (number, _) = publish(team, way, |_| call, (len, put))?;
        if !is_root {
            // SAFETY: the root has written as many bytes, as its call says.
            unsafe { read(team, root, number, 0, piece.as_mut_ptr(), piece.len()) };
        }
    }
    Ok(())
}

/// Collects everybody's part, ours of `len` bytes at `mine`, in the root's `recv`, which is empty
/// elsewhere; the root's may be there already.
///
/// # Safety
///
/// `mine` has `len` bytes, and the root's `recv` as many for each rank.
pub(super) unsafe fn gather(
    team: &mut Team,
    way: &Way,
    root: usize,
    (mine, len): (*const u8, usize),
    recv: &mut [u8],
) -> Boxed<()> {
    let (me, call) = (team.rank(), Call::new(Op::Gather, root, len));
    let is_root = me == root;
    for chunk in 0..len.div_ceil(way.chunk) {
        let range = piece(&(0..len), chunk, way.chunk);
        let written = if is_root { 0 } else { range.len() };
        let put = |place, is_streamed| {
            // SAFETY: the piece is inside our part, says the caller.
            unsafe { write(place, mine.add(range.start), written, is_streamed) };
        };
        let (number, _) = publish(team, way, |_| call, (written, put))?;
        for rank in team.others().filter(|_| is_root) {
            let to = &mut recv[rank * len..][range.clone()];
            // SAFETY: each has written as many bytes, as its call says.
            unsafe { read(team, rank, number, 0, to.as_mut_ptr(), to.len()) };
        }
    }
    if is_root {
        let own = recv[me * len..][..len].as_mut_ptr();
        if !std::ptr::eq(own, mine) {
            // SAFETY: `mine` is borrowed if it is elsewhere, so the two are apart.
            unsafe { memcpy::cached(own, mine, len) };
        }
    }
    Ok(())
}

/// Hands out the root's `send`, which is empty elsewhere, in parts of `part` bytes: ours to `own`,
/// unless the root's stays in place.
pub(super) fn scatter(
    team: &mut Team,
    way: &Way,
    root: usize,
    send: &[u8],
    own: Option<&mut [u8]>,
    part: usize,
) -> Boxed<()> {
    let (me, size) = (team.rank(), team.size());
    let call = Call::new(Op::Scatter, root, part);
    let to = own.map_or(std::ptr::null_mut(), <[u8]>::as_mut_ptr);
    let bytes = way.part_of_chunk(size - 1, 64);
    for chunk in 0..part.div_ceil(bytes) {
        let range = piece(&(0..part), chunk, bytes);
        let put = |place: *mut u8, is_streamed| {
            for rank in (0..size).filter(|rank| me == root && *rank != root) {
                let from = &send[rank * part..][range.clone()];
                // SAFETY: the pieces of all others fit into a chunk.
                unsafe {
                    let to = place.add(bytes * index_for(root, rank));
                    write(to, from.as_ptr(), from.len(), is_streamed);
                }
            }
        };
        let len = if me == root {
            range.len() * (size - 1)
        } else {
            0
        };
        let (number, _) = publish(team, way, |_| call, (len, put))?;
        if me != root {
            let at = bytes * index_for(root, me);
            // SAFETY: the root has written as many bytes for us, as its call says.
            unsafe { read(team, root, number, at, to.add(range.start), range.len()) };
        }
    }
    if me == root && !to.is_null() {
        // SAFETY: the root's own part is as long, and borrowed.
        unsafe { memcpy::cached(to, send[me * part..][..part].as_ptr(), part) };
    }
    Ok(())
}

/// Combines everybody's `len` bytes at `from` to the `to` of those who receive, which is null
/// elsewhere, in the order of this plan, which has no groups.
///
/// # Safety
///
/// Both have `len` bytes, `to` writable, and are the same or apart.
pub(super) unsafe fn reduce(
    team: &mut Team,
    way: &Way,
    (call, planned): (Call, &Planned),
    (from, to, len): (*const u8, *mut u8, usize),
    element: usize,
    combine: Combine<'_>,
) -> Boxed<()> {
    let granule = plan::granule(element);
    let slices = Slices::Shared {
        len,
        granule,
        segments: planned.segments,
    };
    // SAFETY: the caller's promise.
    unsafe { run(team, way, call, (from, to), (slices, granule), combine) }
}

/// Combines everybody's elements at `from`, and puts our part of them to `to`. Parts start at
/// `starts`, whose last one is the end of all.
///
/// # Safety
///
/// `from` has the bytes of all parts, and `to`, writable, those of ours; it is where they are at
/// `from`, or apart.
pub(super) unsafe fn reduce_scatter(
    team: &mut Team,
    way: &Way,
    (from, to): (*const u8, *mut u8),
    starts: &[usize],
    element: usize,
    combine: Combine<'_>,
) -> Boxed<()> {
    let call = Call::new(Op::ReduceScatter, 0, starts[team.size()]);
    // Counted as the elements of all are.
    let to = to.wrapping_sub(starts[team.rank()]);
    let slices = (Slices::Given(starts), plan::granule(element));
    // SAFETY: the caller's promise.
    unsafe { run(team, way, call, (from, to), slices, combine) }
}

/// Which elements a rank combines.
#[derive(Clone, Copy)]
enum Slices<'a> {
    /// Of each segment as many as any other, as in plans. All get the results of all.
    Shared {
        len: usize,
        granule: usize,
        segments: usize,
    },
    /// Those from its start on to the next one. It alone gets their results.
    Given(&'a [usize]),
}

impl Slices<'_> {
    fn segments(self) -> usize {
        match self {
            Slices::Shared { segments, .. } => segments,
            Slices::Given(_) => 1,
        }
    }

    /// The elements of a rank in a segment.
    fn of(self, rank: usize, size: usize, segment: usize) -> Range<usize> {
        match self {
            Slices::Shared {
                len,
                granule,
                segments,
            } => {
                let segment = plan::share(&(0..len), segments, segment, granule);
                plan::share(&segment, size, rank, granule)
            }
            Slices::Given(starts) => starts[rank]..starts[rank + 1],
        }
    }
}

/// Bytes that are combined at a time, in the first-level cache.
const AT_A_TIME: usize = 8 << 10;

/// Has each rank combine its slice. A chunk has a rank's elements of the others' slices, and in the
/// place of its own one what it has combined of the chunk before.
///
/// # Safety
///
/// `from` has the bytes of all slices, and `to`, unless it is null, room for the results that we
/// get, each as far from it as the elements are from `from`: where these are, or apart.
unsafe fn run(
    team: &mut Team,
    way: &Way,
    call: Call,
    (from, to): (*const u8, *mut u8),
    (slices, granule): (Slices<'_>, usize),
    combine: Combine<'_>,
) -> Boxed<()> {
    let (me, size) = (team.rank(), team.size());
    let bytes = way.part_of_chunk(size, granule);
    let segments = slices.segments();
    let all = (0..segments).flat_map(|segment| (0..size).map(move |rank| (rank, segment)));
    let lengths = all.map(|(rank, segment)| slices.of(rank, size, segment).len());
    let chunks = lengths.max().unwrap_or(0).div_ceil(bytes);
    let of_chunk = |rank, chunk: usize| {
        let slice = slices.of(rank, size, chunk / chunks);
        piece(&slice, chunk % chunks, bytes)
    };
    let at_a_time = AT_A_TIME / granule * granule;
    let mut places = MaybeUninit::<[[u128; AT_A_TIME / 16]; 2]>::uninit();
    let other = places.as_mut_ptr().cast::<u8>();
    // SAFETY: the second one of the two.
    let sum = unsafe { other.add(AT_A_TIME) };
    let are_shared = matches!(slices, Slices::Shared { .. });
    let last = segments * chunks;
    for chunk in 0..last + usize::from(are_shared && last > 0) {
        let others = (0..size).filter(|rank| *rank != me && chunk < last);
        let others = others.map(|rank| (rank, of_chunk(rank, chunk)));
        let len = others.clone().map(|(_, range)| range.len()).sum();
        let put = |place: *mut u8, is_streamed| {
            for (rank, range) in others {
                // SAFETY: the caller's promise; the pieces of all ranks fit into a chunk.
                unsafe {
                    let to = place.add(rank * bytes);
                    write(to, from.add(range.start), range.len(), is_streamed);
                }
            }
        };
        let (number, is_streamed) = publish(team, way, |_| call, (len, put))?;
        let before = chunk.checked_sub(1);
        if let Some(before) = before.filter(|_| are_shared && !to.is_null()) {
            for rank in team.others() {
                let range = of_chunk(rank, before);
                // SAFETY: its owner has written as many bytes, for which there is room.
                unsafe {
                    let to = to.add(range.start);
                    read(team, rank, number, rank * bytes, to, range.len());
                }
            }
        }
        let range = if chunk < last {
            of_chunk(me, chunk)
        } else {
            0..0
        };
        for start in range.clone().step_by(at_a_time) {
            let len = at_a_time.min(range.end - start);
            let at = me * bytes + start - range.start;
            let mut others = (me + 1..size).chain(0..me);
            // SAFETY: all have written their elements of our slice, and results have room; the
            // places have room for what is combined at a time. Nobody reads our next chunk yet.
            unsafe {
                let own = from.add(start);
                let into = if to.is_null() {
                    sum
                } else {
                    to.wrapping_add(start)
                };
                if !std::ptr::eq(into, own) {
                    // Commutative: ours stay.
                    if let Some(rank) = others.next() {
                        read(team, rank, number, at, into, len);
                    }
                    let into = std::slice::from_raw_parts_mut(into, len);
                    combine(std::slice::from_raw_parts(own, len), into);
                }
                for rank in others {
                    read(team, rank, number, at, other, len);
                    let into = std::slice::from_raw_parts_mut(into, len);
                    combine(std::slice::from_raw_parts(other, len), into);
                }
                if are_shared {
                    let next = team.segment().chunk_bytes(me, number + 1);
                    write(next.add(at), into, len, is_streamed);
                }
            }
        }
    }
    Ok(())
}

/// Writes `len` bytes of a chunk with `put`, past the caches or not, and returns its number and
/// which of both it was when all others have written theirs.
fn publish(
    team: &mut Team,
    way: &Way,
    call: impl Fn(usize) -> Call,
    (len, put): (usize, impl FnOnce(*mut u8, bool)),
) -> Boxed<(u64, bool)> {
    let me = team.rank();
    if team.chunk_room < way.chunk {
        team.segment().open_chunks(way.chunk)?;
        team.chunk_room = way.chunk;
    }
    team.chunks += 1;
    let number = team.chunks;
    let written = if way.is_streamed { 0 } else { len };
    let through = team.writes.begin(written);
    let is_streamed = way.is_streamed || through.is_streamed;
    put(team.segment().chunk_bytes(me, number), is_streamed);
    // Results of the chunk before may have been written past the caches, too.
    memcpy::fence();
    team.writes.end(&through, written);
    let mine = team.segment().chunk(me, number).label();
    mine.publish(number, call(me).to_words());
    let mut is_told = team.size() > MOST_MEMBERS;
    if is_told {
        // Ranks sleep once, until the last one has come, and not for each other rank. Those that
        // sleep for another reason have called something else.
        wake(team);
        team.mailbox.barrier()?;
    }
    let (team, segment) = (&*team, team.segment());
    for rank in (me + 1..team.size()).chain(0..me) {
        let theirs = segment.chunk(rank, number);
        meet(
            team,
            (rank, theirs.label()),
            number,
            call(rank),
            &mut is_told,
        )?;
    }
    if !is_told {
        wake(team);
    }
    Ok((number, is_streamed))
}

/// Writes bytes of a chunk.
///
/// # Safety
///
/// As for [`memcpy::cached`].
unsafe fn write(to: *mut u8, from: *const u8, len: usize, is_streamed: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        if is_streamed {
            memcpy::streaming_unfenced(to, from, len);
        } else {
            memcpy::cached(to, from, len);
        }
    }
}

/// Copies bytes of a rank's chunk, from its byte `at` on.
///
/// # Safety
///
/// The rank has written these bytes, and there is room for them at `to`.
unsafe fn read(team: &Team, rank: usize, number: u64, at: usize, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = team.segment().chunk_bytes(rank, number).add(at);
        memcpy::interleaved(to, bytes, len);
    }
}
