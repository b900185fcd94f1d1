// SPDX-License-Identifier: MIT OR Apache-2.0

//! Collectives of some KiB through shared memory, a chunk at a time: each rank writes a chunk, and
//! reads those of all others ([`crate::shm::contribution`]). Chunks are written past the caches.
//! Lines that another processor has read are slow to write: each is taken back from its caches
//! first. 32 KiB took 3.5 us where two processors share a cache, 13 us where they do not, and 1.8
//! and 0.8 us past the caches (EPYC of Zen 4).
//!
//! A rank has two places for chunks, in turn. When it writes the second one after a chunk, all
//! ranks have written the one in between, and so are done with the first: each waits for all others
//! before it goes on. So nobody answers.
//!
//! Elements are combined in the order of plans without groups, as in [`super::direct`].

use std::mem::MaybeUninit;
use std::ops::Range;

use super::direct::{meet, wake};
use super::division::Division;
use super::planned::Combine;
use crate::error::Result;
use crate::memcpy;
use crate::op::{Call, Op};
use crate::plan::{self, MOST_MEMBERS};
use crate::policy::Path;
use crate::shm::contribution::CHUNK;
use crate::team::{Decision, Team};
use crate::transport::TransportKind;

/// Whether a call that the policy decides so about goes this way, the same on all ranks. `granule`:
/// bytes that stay together. Where ranks outnumber processors it does not: each chunk would cost a
/// switch to another rank.
pub(super) fn takes(team: &mut Team, decision: Decision, granule: usize) -> bool {
    let size = team.size();
    matches!(decision.path, Path::Eager | Path::Via(TransportKind::Shm))
        && (2..=MOST_MEMBERS).contains(&size)
        && granule <= AT_A_TIME.min(CHUNK / size)
        && !team.is_oversubscribed()
        && team.is_flat()
}

/// Bytes of each of `parts` parts of a chunk.
fn part_of_chunk(parts: usize, granule: usize) -> usize {
    CHUNK / parts / granule * granule
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
    mine: *const u8,
    recv: &mut [u8],
    division: Division<'_>,
) -> Result<()> {
    let (me, base) = (team.rank(), recv.as_mut_ptr());
    let (own_at, own_len) = division.part(me);
    let longest = (0..team.size()).map(|rank| division.part(rank).1).max();
    let chunks = longest.unwrap_or(0).div_ceil(CHUNK);
    let call = |rank| Call::new(Op::Allgather, 0, division.part(rank).1);
    for chunk in 0..chunks {
        let own = piece(&(0..own_len), chunk, CHUNK);
        // SAFETY: the piece is inside our part, says the caller.
        let put = |place| unsafe { write(place, mine.add(own.start), own.len()) };
        let number = publish(team, call, put)?;
        for rank in team.others() {
            let (at, len) = division.part(rank);
            let range = piece(&(at..at + len), chunk, CHUNK);
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
pub(super) fn alltoall(team: &mut Team, send: &[u8], recv: &mut [u8], part: usize) -> Result<()> {
    let (me, size) = (team.rank(), team.size());
    let call = Call::new(Op::Alltoall, 0, send.len());
    let bytes = part_of_chunk(size - 1, 64);
    // Where a rank's piece is in a chunk of another one, which has none for itself.
    let index = |of: usize, rank: usize| bytes * if rank < of { rank } else { rank - 1 };
    for chunk in 0..part.div_ceil(bytes) {
        let range = piece(&(0..part), chunk, bytes);
        let put = |place: *mut u8| {
            for rank in (0..size).filter(|rank| *rank != me) {
                let from = &send[rank * part..][range.clone()];
                // SAFETY: the pieces of all others fit into a chunk.
                unsafe { write(place.add(index(me, rank)), from.as_ptr(), from.len()) };
            }
        };
        let number = publish(team, |_| call, put)?;
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

/// Combines everybody's `len` bytes at `from` to everybody's `to`.
///
/// # Safety
///
/// Both have `len` bytes, `to` writable, and are the same or apart.
pub(super) unsafe fn allreduce(
    team: &mut Team,
    (from, to, len): (*const u8, *mut u8, usize),
    element: usize,
    combine: Combine<'_>,
) -> Result<()> {
    let (me, granule) = (team.rank(), plan::granule(element));
    let slices = Slices::Shared { len, granule };
    let own = slices.of(me, team.size()).start;
    // SAFETY: the caller's promise; our slice is inside.
    unsafe {
        let call = Call::new(Op::Allreduce, 0, len);
        let results = Results {
            own: to.add(own),
            are_shared: true,
            all: to,
        };
        run(team, call, from, (slices, granule), results, combine)
    }
}

/// Combines everybody's `len` bytes at `from` to the root's `to`; elsewhere `to` is null.
///
/// # Safety
///
/// As for [`allreduce`].
pub(super) unsafe fn reduce(
    team: &mut Team,
    root: usize,
    (from, to, len): (*const u8, *mut u8, usize),
    element: usize,
    combine: Combine<'_>,
) -> Result<()> {
    let (me, granule) = (team.rank(), plan::granule(element));
    let slices = Slices::Shared { len, granule };
    let own = slices.of(me, team.size()).start;
    let results = Results {
        own: if me == root {
            // SAFETY: the caller's promise; our slice is inside.
            unsafe { to.add(own) }
        } else {
            to
        },
        are_shared: true,
        all: to,
    };
    let call = Call::new(Op::Reduce, root, len);
    // SAFETY: the caller's promise.
    unsafe { run(team, call, from, (slices, granule), results, combine) }
}

/// Combines everybody's elements at `from`, which are divided among the ranks, and puts our part of
/// them to `to`.
///
/// # Safety
///
/// `from` has the bytes of all parts, and `to`, writable, those of ours; it is where they are at
/// `from`, or apart.
pub(super) unsafe fn reduce_scatter(
    team: &mut Team,
    (from, to): (*const u8, *mut u8),
    counts: &[usize],
    element: usize,
    combine: Combine<'_>,
) -> Result<()> {
    let call = Call::new(Op::ReduceScatter, 0, counts.iter().sum());
    let results = Results {
        own: to,
        are_shared: false,
        all: std::ptr::null_mut(),
    };
    let slices = (Slices::Given(counts), plan::granule(element));
    // SAFETY: the caller's promise.
    unsafe { run(team, call, from, slices, results, combine) }
}

/// Which elements a rank combines.
#[derive(Clone, Copy)]
enum Slices<'a> {
    /// Of `len` bytes as many as any other, as in plans.
    Shared { len: usize, granule: usize },
    /// Those behind the ones of the ranks before it.
    Given(&'a [usize]),
}

impl Slices<'_> {
    fn of(self, rank: usize, size: usize) -> Range<usize> {
        match self {
            Slices::Shared { len, granule } => plan::share(&(0..len), size, rank, granule),
            Slices::Given(counts) => {
                let start = counts[..rank].iter().sum();
                start..start + counts[rank]
            }
        }
    }
}

/// Where results go.
#[derive(Clone, Copy)]
struct Results {
    /// Those that we combine; null: nowhere.
    own: *mut u8,
    /// Whether we write them to the next chunk, too.
    are_shared: bool,
    /// Those of all others, if these share them; null: nowhere.
    all: *mut u8,
}

/// Bytes that are combined at a time, in the first-level cache.
const AT_A_TIME: usize = 8 << 10;

/// Has each rank combine its slice. A chunk has a rank's elements of the others' slices, and in the
/// place of its own one what it has combined of the chunk before.
///
/// # Safety
///
/// `from` has the bytes of all slices, and results have room: for our slice, where ours are at
/// `from` or apart, and for all, which is `from` or apart.
unsafe fn run(
    team: &mut Team,
    call: Call,
    from: *const u8,
    (slices, granule): (Slices<'_>, usize),
    results: Results,
    combine: Combine<'_>,
) -> Result<()> {
    let (me, size) = (team.rank(), team.size());
    let bytes = part_of_chunk(size, granule);
    let longest = (0..size).map(|rank| slices.of(rank, size).len()).max();
    let chunks = longest.unwrap_or(0).div_ceil(bytes);
    let ours = slices.of(me, size);
    let at_a_time = AT_A_TIME / granule * granule;
    let mut places = MaybeUninit::<[[u128; AT_A_TIME / 16]; 2]>::uninit();
    let other = places.as_mut_ptr().cast::<u8>();
    // SAFETY: the second one of the two.
    let sum = unsafe { other.add(AT_A_TIME) };
    for chunk in 0..chunks + usize::from(results.are_shared) {
        let put = |place: *mut u8| {
            for rank in (0..size).filter(|rank| *rank != me) {
                let range = piece(&slices.of(rank, size), chunk, bytes);
                // SAFETY: the caller's promise; the pieces of all ranks fit into a chunk.
                unsafe { write(place.add(rank * bytes), from.add(range.start), range.len()) };
            }
        };
        let number = publish(team, |_| call, put)?;
        if let (Some(before), false) = (chunk.checked_sub(1), results.all.is_null()) {
            for rank in team.others() {
                let range = piece(&slices.of(rank, size), before, bytes);
                // SAFETY: its owner has written as many bytes, for which there is room.
                unsafe {
                    let to = results.all.add(range.start);
                    read(team, rank, number, rank * bytes, to, range.len());
                }
            }
        }
        let range = piece(&ours, chunk, bytes);
        for start in range.clone().step_by(at_a_time) {
            let len = at_a_time.min(range.end - start);
            let at = me * bytes + start - range.start;
            let mut others = (me + 1..size).chain(0..me);
            // SAFETY: all have written their elements of our slice, and results have room; the
            // places have room for what is combined at a time. Nobody reads our next chunk yet.
            unsafe {
                let own = from.add(start);
                let into = if results.own.is_null() {
                    sum
                } else {
                    results.own.add(start - ours.start)
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
                if results.are_shared {
                    let next = team.segment().chunk_bytes(me, number + 1);
                    write(next.add(at), into, len);
                }
            }
        }
    }
    Ok(())
}

/// Writes a chunk with `put`, and returns its number when all others have written theirs.
fn publish(
    team: &mut Team,
    call: impl Fn(usize) -> Call,
    put: impl FnOnce(*mut u8),
) -> Result<u64> {
    let me = team.rank();
    if team.chunks == 0 {
        team.segment().open_chunks()?;
    }
    team.chunks += 1;
    let (team, number) = (&*team, team.chunks);
    let segment = team.segment();
    put(segment.chunk_bytes(me, number));
    segment
        .chunk(me, number)
        .publish(number, call(me).to_words());
    let mut is_told = false;
    for rank in (me + 1..team.size()).chain(0..me) {
        let theirs = segment.chunk(rank, number);
        meet(team, (rank, theirs), number, call(rank), &mut is_told)?;
    }
    if !is_told {
        wake(team);
    }
    Ok(number)
}

/// Writes bytes of a chunk.
///
/// # Safety
///
/// As for [`memcpy::cached`].
unsafe fn write(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { memcpy::streaming(to, from, len) }
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
