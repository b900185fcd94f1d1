// SPDX-License-Identifier: MIT OR Apache-2.0

//! Short collectives in one step: each rank publishes its bytes and reads those of all others
//! ([`crate::shm::contribution`]). Where the caches of all ranks are one group, a line that goes
//! once from each to each takes less time than one that goes up a tree and down again.
//!
//! Elements are combined in the order of plans without groups: each from the rank on whose slice it
//! is in, around the circle.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::division::Division;
use super::planned::Combine;
use crate::error::{Boxed, Error};
use crate::memcpy;
use crate::op::{Call, Op};
use crate::plan::{self, Descent, MOST_OF_DESCENT};
use crate::shm::contribution::{Label, MOST, Readers, Turn};
use crate::team::Team;
use crate::transport::TransportKind;

/// Bytes of a cache line.
const LINE: usize = 64;

/// How often to look at a rank before anything else: some microseconds.
const LOOKS: usize = 200;

/// Whether a call goes this way in which each rank publishes at most `bytes` bytes, all of which
/// the others read: the same on all ranks.
pub(super) fn takes(team: &mut Team, bytes: usize) -> bool {
    bytes.saturating_mul(team.size() - 1) as u64 <= team.policy().step_max
        && takes_scan(team, bytes)
}

/// The same for a scan, which combines in another order here than by plan: whether it does must not
/// depend on what was measured.
pub(super) fn takes_scan(team: &mut Team, bytes: usize) -> bool {
    bytes.saturating_mul(team.size() - 1) <= MOST && takes_parts(team, bytes)
}

/// The same where each of the others reads a part.
pub(super) fn takes_parts(team: &mut Team, bytes: usize) -> bool {
    bytes <= MOST && bytes as u64 <= team.policy().eager_max && team.is_flat()
}

/// The same where a root publishes bytes that the others read. Where ranks outnumber processors it
/// is not: there it would be soon that the root has to wait, which costs a switch to another rank,
/// as it has few places; the ring that all read takes more calls.
pub(super) fn takes_root(team: &mut Team, bytes: usize) -> bool {
    !team.is_oversubscribed() && takes_parts(team, bytes)
}

/// [`takes_root`] with more bytes, piece by piece, in which those who read are at one while the
/// next is written; and where the root reads `bytes` bytes of the others together.
pub(super) fn takes_pieces(team: &mut Team, bytes: usize) -> bool {
    let is_free = matches!(team.transport(), None | Some(TransportKind::Shm));
    takes_root(team, bytes)
        || bytes as u64 <= team.policy().pieces_max && is_free && takes_root(team, MOST)
}

/// Whether a reduction of elements of `element` bytes goes this way, with `bytes` bytes of each
/// rank.
pub(super) fn takes_reduction(team: &mut Team, bytes: usize, element: usize) -> bool {
    let others = team.size() - 1;
    takes(team, bytes)
        || others > 0
            && bytes.saturating_mul(others) as u64 <= team.policy().reduce_pieces_max
            && plan::granule(element).saturating_mul(others) <= MOST
            && takes_root(team, MOST)
}

/// The pieces of `bytes` bytes, at least one, of whole granules, of each of which `parts` fit into
/// a place. As a rule there is one, and nothing is divided.
fn pieces(
    bytes: usize,
    parts: usize,
    granule: impl FnOnce() -> usize,
) -> impl Iterator<Item = Range<usize>> {
    let (most, count) = if bytes * parts <= MOST {
        (bytes, 1)
    } else {
        let (most, granule) = (MOST / parts, granule());
        let most = (most / granule * granule).max(most.min(granule));
        (most, bytes.div_ceil(most))
    };
    (0..count).map(move |piece| piece * most..bytes.min((piece + 1) * most))
}

/// Returns when all ranks have called it; where ranks outnumber processors, by the team's counter.
pub(super) fn barrier(team: &mut Team) -> Boxed<()> {
    if team.is_oversubscribed() {
        return Ok(team.mailbox.barrier()?);
    }
    let call = Call::new(Op::Barrier, 0, 0);
    // SAFETY: there are no bytes.
    let turn = unsafe { publish_to_all(team, call, (std::ptr::null(), 0))? };
    all_have_published(team, turn, |_| call)
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
) -> Boxed<()> {
    let me = team.rank();
    let call = |rank| Call::new(Op::Allgather, 0, division.part(rank).1);
    let (at, len) = division.part(me);
    // SAFETY: the caller's promise.
    let turn = unsafe { publish_to_all(team, call(me), (mine, len))? };
    // SAFETY: our part is inside the buffer.
    let place = unsafe { recv.as_mut_ptr().add(at) };
    if !std::ptr::eq(place, mine) {
        // SAFETY: `mine` is borrowed if it is elsewhere, so the two are apart.
        unsafe { memcpy::cached(place, mine, len) };
    }
    all_have_published(team, turn, call)?;
    for rank in team.others() {
        let (at, len) = division.part(rank);
        // SAFETY: the part is inside the buffer, and was published.
        unsafe { read(team, rank, turn, 0..len, recv.as_mut_ptr().add(at)) };
    }
    Ok(())
}

/// Hands everybody's `send` out in equal parts, which come together in everybody's `recv`.
pub(super) fn alltoall(team: &mut Team, send: &[u8], recv: &mut [u8], part: usize) -> Boxed<()> {
    let me = team.rank();
    let call = Call::new(Op::Alltoall, 0, send.len());
    // SAFETY: the slice has these bytes.
    let turn = unsafe { publish_to_all(team, call, (send.as_ptr(), send.len()))? };
    let own = me * part..(me + 1) * part;
    recv[own.clone()].copy_from_slice(&send[own.clone()]);
    all_have_published(team, turn, |_| call)?;
    for rank in team.others() {
        // SAFETY: each has published as many bytes as we have, and the part is inside the buffer.
        unsafe {
            let to = recv.as_mut_ptr().add(rank * part);
            read(team, rank, turn, own.clone(), to);
        }
    }
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
) -> Boxed<()> {
    let call = Call::new(Op::Allreduce, 0, len);
    for piece in pieces(len, team.size() - 1, || plan::granule(element)) {
        // SAFETY: the caller's promise.
        unsafe {
            let mine = (from.add(piece.start), piece.len());
            let turn = publish_to_all(team, call, mine)?;
            all_have_published(team, turn, |_| call)?;
            let what = (from, to, len);
            combine_all(team, turn, what, piece, element, &mut *combine);
        }
    }
    Ok(())
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
) -> Boxed<()> {
    let call = Call::new(Op::Reduce, root, len);
    for piece in pieces(len, team.size() - 1, || plan::granule(element)) {
        // SAFETY: the caller's promise.
        unsafe {
            let turn = begin(team, call, piece.len());
            if team.rank() != root {
                let mine = (from.add(piece.start), piece.len());
                publish(team, turn, call, mine, Readers::One(root))?;
                wake(team);
                continue;
            }
            others_have_published(team, turn, |_| call)?;
            let what = (from, to, len);
            combine_all(team, turn, what, piece, element, &mut *combine);
        }
    }
    Ok(())
}

/// Copies the root's bytes to everybody's. The root does not wait for its leaves.
pub(super) fn bcast(team: &mut Team, root: usize, bytes: &mut [u8]) -> Boxed<()> {
    let call = Call::new(Op::Bcast, root, bytes.len());
    for piece in pieces(bytes.len(), 1, || LINE) {
        let piece = &mut bytes[piece];
        let len = piece.len();
        // SAFETY: the slice is ours, and has these bytes.
        unsafe {
            let turn = begin(team, call, len);
            if team.rank() == root {
                publish(team, turn, call, (piece.as_ptr(), len), Readers::All)?;
                wake(team);
            } else {
                receive(team, (root, turn), call, 0..len, piece.as_mut_ptr())?;
            }
        }
    }
    Ok(())
}

/// Our part in a short broadcast where ranks are in several groups, if it goes a step for each of
/// these: the same answer on all ranks.
pub(super) fn descent(team: &mut Team, root: usize, bytes: usize) -> Option<Descent> {
    let is_short = bytes <= MOST_OF_DESCENT && bytes as u64 <= team.policy().eager_max;
    if is_short { team.descent(root) } else { None }
}

/// Copies the root's bytes to everybody's down the groups: who has them publishes them for one rank
/// of each other member of its group.
pub(super) fn descend(
    team: &mut Team,
    root: usize,
    bytes: &mut [u8],
    descent: &Descent,
) -> Boxed<()> {
    let call = Call::new(Op::Bcast, root, bytes.len());
    let turn = begin(team, call, bytes.len());
    if let Some(from) = descent.from {
        let len = bytes.len();
        // SAFETY: the slice has room for as many bytes as its call and ours say.
        unsafe { receive(team, (from, turn), call, 0..len, bytes.as_mut_ptr())? };
    }
    if descent.readers.is_empty() {
        return Ok(());
    }
    let readers = Readers::These(descent.readers.clone());
    // SAFETY: the slice has these bytes.
    unsafe { publish(team, turn, call, (bytes.as_ptr(), bytes.len()), readers)? };
    wake(team);
    Ok(())
}

/// Hands out the root's `send`, which is empty elsewhere, in parts of `part` bytes: ours to `own`,
/// unless the root's stays in place.
pub(super) fn scatter(
    team: &mut Team,
    root: usize,
    send: &[u8],
    own: Option<&mut [u8]>,
    part: usize,
) -> Boxed<()> {
    let (me, size) = (team.rank(), team.size());
    let call = Call::new(Op::Scatter, root, part);
    let pieces = pieces(part, size - 1, || LINE);
    // The root's own part is not published.
    if me != root {
        let index = if me < root { me } else { me - 1 };
        let to = own.map_or(std::ptr::null_mut(), <[u8]>::as_mut_ptr);
        for piece in pieces {
            let at = index * piece.len();
            let turn = begin(team, call, piece.len() * (size - 1));
            // SAFETY: a leaf has room for its part.
            unsafe {
                receive(
                    team,
                    (root, turn),
                    call,
                    at..at + piece.len(),
                    to.add(piece.start),
                )?
            };
        }
        return Ok(());
    }
    for piece in pieces {
        let others = (0..size).filter(|rank| *rank != me);
        let put = |place: *mut u8, is_streamed| {
            for (index, rank) in others.enumerate() {
                let from = &send[rank * part..][piece.clone()];
                // SAFETY: the place has room for the pieces of the others, and nobody reads it.
                unsafe {
                    let to = place.add(index * from.len());
                    memcpy::either(to, from.as_ptr(), from.len(), is_streamed);
                }
            }
        };
        let len = piece.len() * (size - 1);
        let turn = begin(team, call, len);
        publish_with(team, turn, call, (len, put), Readers::All)?;
        wake(team);
    }
    if let Some(own) = own {
        own.copy_from_slice(&send[me * part..][..part]);
    }
    Ok(())
}

/// Collects everybody's part, ours at `mine`, in the root's `recv`, which is empty elsewhere; the
/// root's may be there already.
///
/// # Safety
///
/// `mine` has `len` bytes, and the root's `recv` as many for each rank.
pub(super) unsafe fn gather(
    team: &mut Team,
    root: usize,
    (mine, len): (*const u8, usize),
    recv: &mut [u8],
) -> Boxed<()> {
    let me = team.rank();
    let call = Call::new(Op::Gather, root, len);
    if me != root {
        for piece in pieces(len, 1, || LINE) {
            // SAFETY: the caller's promise.
            unsafe {
                let turn = begin(team, call, piece.len());
                let from = mine.add(piece.start);
                publish(team, turn, call, (from, piece.len()), Readers::One(root))?;
            }
            wake(team);
        }
        return Ok(());
    }
    let own = recv[me * len..(me + 1) * len].as_mut_ptr();
    for piece in pieces(len, 1, || LINE) {
        let turn = begin(team, call, piece.len());
        if piece.start == 0 && !std::ptr::eq(own, mine) {
            // SAFETY: `mine` is borrowed if it is elsewhere, so the two are apart.
            unsafe { memcpy::cached(own, mine, len) };
        }
        others_have_published(team, turn, |_| call)?;
        for rank in team.others() {
            let to = recv[rank * len..][piece.clone()].as_mut_ptr();
            // SAFETY: each has published as many bytes as we expect, for which there is room.
            unsafe { read(team, rank, turn, 0..piece.len(), to) };
        }
    }
    Ok(())
}

/// Combines everybody's elements at `from`, which are divided among the ranks, and puts our part of
/// them to `to`.
///
/// # Safety
///
/// `from` has the bytes of all parts, and `to`, writable, those of ours.
pub(super) unsafe fn reduce_scatter(
    team: &mut Team,
    (from, to): (*const u8, *mut u8),
    counts: &[usize],
    combine: Combine<'_>,
) -> Boxed<()> {
    let (me, len) = (team.rank(), counts.iter().sum());
    let start = counts[..me].iter().sum();
    let call = Call::new(Op::ReduceScatter, 0, len);
    // SAFETY: the caller's promise.
    unsafe {
        let turn = publish_to_all(team, call, (from, len))?;
        all_have_published(team, turn, |_| call)?;
        let mut room = Room::uninit();
        let ours = (team.size(), start..start + counts[me]);
        let terms = Terms::fetch(team, turn, ours, &mut room);
        let (ranks, own) = (around(me, team.size()), from.add(start));
        terms.combine(ranks, 0..counts[me], (own, to), combine);
    }
    Ok(())
}

/// Combines the elements of ranks in their order to `to`: those before us, ours at `from`; without
/// ours with [`Op::Exscan`], and nothing on the first rank.
///
/// # Safety
///
/// As for [`allreduce`].
pub(super) unsafe fn scan(
    team: &mut Team,
    op: Op,
    (from, to, len): (*const u8, *mut u8, usize),
    combine: Combine<'_>,
) -> Boxed<()> {
    let (call, me) = (Call::new(op, 0, len), team.rank());
    let ranks = if op == Op::Exscan { 0..me } else { 0..me + 1 };
    // SAFETY: the caller's promise.
    unsafe {
        let turn = publish_to_all(team, call, (from, len))?;
        all_have_published(team, turn, |_| call)?;
        let mut room = Room::uninit();
        let terms = Terms::fetch(team, turn, (me, 0..len), &mut room);
        terms.combine(ranks, 0..len, (from, to), combine);
    }
    Ok(())
}

/// Publishes bytes of ours for the next call of this kind, which all others read before they end
/// it: so they see that we have begun it.
///
/// # Safety
///
/// There are as many bytes, [`MOST`] at most.
unsafe fn publish_to_all(team: &mut Team, call: Call, bytes: (*const u8, usize)) -> Boxed<Turn> {
    let turn = team.contributions.begin();
    // SAFETY: the caller's promise.
    unsafe { publish(team, turn, call, bytes, Readers::All)? };
    Ok(turn)
}

/// Begins the next call of this kind, for all to see, in which those who publish something publish
/// `len` bytes. What we have read in the calls before may be overwritten.
#[inline]
fn begin(team: &mut Team, call: Call, len: usize) -> Turn {
    let turn = team.contributions.begin().with(len);
    team.segment().begun(team.rank()).show(turn.number, call);
    turn
}

/// Publishes bytes of ours for the call that we have begun.
///
/// # Safety
///
/// As for [`publish_to_all`].
unsafe fn publish(
    team: &mut Team,
    turn: Turn,
    call: Call,
    (from, len): (*const u8, usize),
    readers: Readers,
) -> Boxed<()> {
    let put = |place: *mut u8, is_streamed| {
        if len > 0 {
            // SAFETY: the caller's promise; nobody reads our place any more.
            unsafe { memcpy::either(place, from, len, is_streamed) };
        }
    };
    publish_with(team, turn, call, (len, put), readers)
}

/// Publishes what `put` writes to a place of `len` bytes, past the caches or not, for the call that
/// we have begun.
#[inline]
fn publish_with(
    team: &mut Team,
    turn: Turn,
    call: Call,
    (len, put): (usize, impl FnOnce(*mut u8, bool)),
    readers: Readers,
) -> Boxed<()> {
    let me = team.rank();
    if let Some(unread) = team.contributions.unread(turn) {
        let number = unread.number;
        match unread.readers.clone() {
            Readers::One(rank) => come(team, rank, number)?,
            Readers::These(ranks) => {
                let mut ranks = ranks.iter();
                ranks.try_for_each(|rank| come(team, *rank, number))?;
            }
            Readers::All => {
                let mut others = (0..team.size()).filter(|rank| *rank != me);
                others.try_for_each(|rank| come(team, rank, number))?;
                team.contributions.all_were_seen(me);
            }
        }
    }
    let write = team.writes.begin(len);
    let (label, bytes) = team.segment().contribution(me, turn);
    put(bytes, write.is_streamed);
    label.publish(turn.number, call.to_words());
    team.writes.end(&write, len);
    team.contributions.published(turn, readers);
    Ok(())
}

/// Wakes those who sleep until we have published something.
pub(super) fn wake(team: &Team) {
    let (segment, size) = (team.segment(), team.size());
    let ring = |rank: usize| segment.block(rank).bell.ring();
    segment.board(team.rank()).watchers.wake(size, ring);
}

/// Waits for a rank until `is_there`.
fn wait(team: &Team, rank: usize, is_there: impl Fn() -> bool) -> Boxed<()> {
    let (segment, me) = (team.segment(), team.rank());
    let watch = || segment.board(rank).watchers.watch(me);
    let mailbox = &team.mailbox;
    Ok(mailbox.wait_listening(|other| other == rank, watch, is_there)?)
}

/// Waits until a rank has begun the call with this number, and fails if in a call until ours it has
/// called something else: two that each take themselves for the root do not read each other.
fn come(team: &mut Team, rank: usize, number: u64) -> Boxed<()> {
    if team.contributions.known(rank) >= number {
        return Ok(());
    }
    let segment = team.segment();
    let (ours, theirs) = (segment.begun(team.rank()), segment.begun(rank));
    if !theirs.has(number) {
        wake(team);
        wait(team, rank, || theirs.has(number))?;
    }
    match team.contributions.newest(rank, ours, theirs) {
        Ok(newest) => team.contributions.has_begun(rank, newest),
        Err([theirs, ours]) => {
            let waiter = &team.mailbox.waiter;
            return Err(waiter.mismatch_before(rank, theirs, ours).into());
        }
    }
    Ok(())
}

/// Looks for a moment whether something was published in a place.
fn comes_soon(team: &Team, theirs: &Label, number: u64) -> bool {
    let looks = if team.is_oversubscribed() { 1 } else { LOOKS };
    (0..looks).any(|_| {
        let is_there = theirs.has(number);
        if !is_there {
            std::hint::spin_loop();
        }
        is_there
    })
}

/// Waits until all have published something for this call that each reads. Where ranks outnumber
/// processors they sleep once, until the last one has come to the team's counter.
fn all_have_published(team: &mut Team, turn: Turn, call: impl Fn(usize) -> Call) -> Boxed<()> {
    if team.is_oversubscribed() {
        wake(team);
        team.mailbox.barrier()?;
    }
    others_have_published(team, turn, call)
}

/// Waits until all others have published something for this call, the next rank's first. Those who
/// sleep until we have are woken before we may sleep ourselves. If the others come soon that is
/// done at the end, when what we have published has left our processor: the fence would wait for
/// that.
fn others_have_published(team: &mut Team, turn: Turn, call: impl Fn(usize) -> Call) -> Boxed<()> {
    let (me, size) = (team.rank(), team.size());
    let mut is_told = false;
    for rank in (me + 1..size).chain(0..me) {
        let (theirs, _) = team.segment().contribution(rank, turn);
        meet(team, (rank, theirs), turn.number, call(rank), &mut is_told)?;
    }
    if !is_told {
        wake(team);
    }
    team.contributions.all_have_begun();
    Ok(())
}

/// Waits until a rank has published something in this place for a call that is as we expect.
/// `is_told`: whether those were woken who sleep until we have published what we had to publish
/// before.
pub(super) fn meet(
    team: &Team,
    (rank, theirs): (usize, &Label),
    number: u64,
    call: Call,
    is_told: &mut bool,
) -> Boxed<()> {
    if !comes_soon(team, theirs, number) {
        if !std::mem::replace(is_told, true) {
            wake(team);
        }
        // Where it has called something else it may publish in another place, or nothing, of which
        // a rank that waits for long hears.
        wait(team, rank, || theirs.has(number))?;
    }
    let Some(theirs) = theirs.call(number) else {
        // It has gone on: then it called something else, which it has noted, or is broken.
        team.mailbox.waiter.verdict()?;
        team.mailbox.waiter.compare(rank)?;
        return Err(Error::corrupt("the number of a call", number).into());
    };
    if theirs != call.to_words() {
        let waiter = &team.mailbox.waiter;
        return Err(waiter.mismatch(rank, Call::from_words(theirs), call).into());
    }
    Ok(())
}

/// Copies the bytes in this range of what a rank publishes for the call that we have begun.
///
/// # Safety
///
/// There is room for these bytes at `to`, and all ranks that call the same find them there.
unsafe fn receive(
    team: &Team,
    (from, turn): (usize, Turn),
    call: Call,
    range: Range<usize>,
    to: *mut u8,
) -> Boxed<()> {
    let mut is_told = false;
    let (theirs, _) = team.segment().contribution(from, turn);
    meet(team, (from, theirs), turn.number, call, &mut is_told)?;
    // SAFETY: the caller's promise; the rank's call is ours.
    unsafe { read(team, from, turn, range, to) };
    if !is_told {
        wake(team);
    }
    Ok(())
}

/// Copies bytes that a rank has published.
///
/// # Safety
///
/// There are these bytes for this call, and room for them at `to`.
unsafe fn read(team: &Team, rank: usize, turn: Turn, range: Range<usize>, to: *mut u8) {
    let (_, bytes) = team.segment().contribution(rank, turn);
    // SAFETY: the caller's promise.
    unsafe { memcpy::cached(to, bytes.add(range.start), range.len()) };
}

/// Combines all elements of a piece, ours behind `from`, slice by slice of the whole.
///
/// # Safety
///
/// All have published the piece, and `to` has room for the whole.
unsafe fn combine_all(
    team: &Team,
    turn: Turn,
    (from, to, len): (*const u8, *mut u8, usize),
    piece: Range<usize>,
    element: usize,
    combine: Combine<'_>,
) {
    let mut room = Room::uninit();
    // SAFETY: the caller's promise.
    let terms = unsafe { Terms::fetch(team, turn, (team.size(), 0..piece.len()), &mut room) };
    let mut slice_of = |owner, slice: Range<usize>| {
        let (start, end) = (slice.start.max(piece.start), slice.end.min(piece.end));
        if start < end {
            let ranks = around(owner, team.size());
            let slice = start - piece.start..end - piece.start;
            // SAFETY: the caller's promise; the slice is inside.
            unsafe {
                let places = (from.add(start), to.add(start));
                terms.combine(ranks, slice, places, &mut *combine);
            }
        }
    };
    if len <= LINE {
        // One slice is the last rank's.
        return slice_of(team.size() - 1, 0..len);
    }
    let granule = plan::granule(element);
    for owner in 0..team.size() {
        slice_of(owner, plan::share(&(0..len), team.size(), owner, granule));
    }
}

/// All ranks from one on, around the circle.
fn around(first: usize, size: usize) -> impl Iterator<Item = usize> {
    (first..size).chain(0..first)
}

/// Room for what all others have published.
type Room = MaybeUninit<[u128; MOST / 16]>;

/// What the others have published, where no other process can change it. All of it is read before
/// any is combined, so that many lines are under way at once.
#[derive(Clone, Copy)]
struct Terms {
    /// Those of each rank but us, in order of ranks.
    bytes: *const u8,
    /// Bytes of each.
    each: usize,
    me: usize,
}

impl Terms {
    /// Reads these bytes of the others before rank `end`. What is returned is good as long as
    /// `room`.
    ///
    /// # Safety
    ///
    /// All have published them, and they are [`MOST`] bytes together at most.
    unsafe fn fetch(
        team: &Team,
        turn: Turn,
        (end, range): (usize, Range<usize>),
        room: &mut Room,
    ) -> Terms {
        let (bytes, each) = (room.as_mut_ptr().cast::<u8>(), range.len());
        let ranks = team.others().take_while(|rank| *rank < end);
        for (index, rank) in ranks.enumerate() {
            // SAFETY: the caller's promise.
            unsafe { read(team, rank, turn, range.clone(), bytes.add(index * each)) };
        }
        let me = team.rank();
        Terms { bytes, each, me }
    }

    /// Combines the elements of a slice of what was read, ours at `from`, in the order of these
    /// ranks.
    ///
    /// # Safety
    ///
    /// `to` has room for the slice; it is where ours are, or apart.
    unsafe fn combine(
        self,
        mut ranks: impl Iterator<Item = usize>,
        slice: Range<usize>,
        (from, to): (*const u8, *mut u8),
        combine: Combine<'_>,
    ) {
        let (me, len) = (self.me, slice.len());
        let Some(first) = ranks.next().filter(|_| len > 0) else {
            return;
        };
        let term = |rank: usize| {
            if rank == me {
                // Not where we have published them: that line is in the caches of others now.
                return from;
            }
            let index = if rank < me { rank } else { rank - 1 };
            // SAFETY: the slice is inside what was read.
            unsafe { self.bytes.add(index * self.each + slice.start) }
        };
        let mut room = Room::uninit();
        // SAFETY: the caller's promise; a slice has at most `MOST` bytes.
        unsafe {
            // Ours are still to come where the result will be.
            let is_kept = first != me && std::ptr::eq(from, to);
            let sum = if is_kept {
                room.as_mut_ptr().cast()
            } else {
                to
            };
            if !std::ptr::eq(term(first), sum) {
                memcpy::cached(sum, term(first), len);
            }
            let into = std::slice::from_raw_parts_mut(sum, len);
            for rank in ranks {
                combine(std::slice::from_raw_parts(term(rank), len), into);
            }
            if is_kept {
                memcpy::cached(to, sum, len);
            }
        }
    }
}
