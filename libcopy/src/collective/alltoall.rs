// SPDX-License-Identifier: MIT OR Apache-2.0

//! Alltoall: everybody opens its send buffer, everybody copies its parts from everybody else's.
//! Elements that are not dense are packed into the ring of each pair, and unpacked out of it, while
//! the other side does the same.
//!
//! The two ranks of a part both know its length, so they choose its way without asking; where
//! memory is to be opened, its owner tells whether that could be done.

use super::cooperative::{Rts, one_sided_kind};
use super::division::{Division, Parts, own_part};
use crate::error::{Boxed, Error};
use crate::op::{Call, Op};
use crate::p2p::buffer::Elements;
use crate::policy::Path;
use crate::scratch::Scratch;
use crate::shm::mailbox::{Source, Step, Target};
use crate::team::{Decision, Team};
use crate::transport::TransportKind;
use crate::transport::remote_key::RemoteKey;
use crate::transport::stream::{Flow, Place, Receiving, Sending, exchange};

/// Bytes that are read out of a peer's memory before they are unpacked: they stay in a second-level
/// cache.
const PULLED: usize = 256 << 10;

/// Bytes of a pair's ring from which on elements are streamed through it. The more ranks, the
/// shorter the rings: with many each hand-over would move little, and may cost a switch between
/// processes. Elements are packed as a whole then, and their packed bytes lent like any others.
const STREAMED: usize = 64 << 10;

/// What a rank sends to all, or receives from all.
#[derive(Debug)]
pub(super) enum Side<'a> {
    /// Parts of one buffer, which begins at this address and is this long.
    Bytes(*mut u8, usize, Division<'a>),
    /// Elements of their own for each rank.
    Elements(Vec<&'a Elements>),
}

impl Side<'_> {
    /// Where a rank's part is, and its bytes.
    fn part(&self, rank: usize) -> (Place<'_>, usize) {
        match self {
            Side::Bytes(base, _, division) => {
                let (offset, len) = division.part(rank);
                (Place::Dense(base.wrapping_add(offset)), len)
            }
            Side::Elements(all) => {
                let (elements, origin) = (all[rank], all[rank].origin());
                let place = match elements.layout() {
                    None => Place::Dense(origin),
                    Some(layout) => Place::Typed(layout, origin),
                };
                (place, elements.bytes() as usize)
            }
        }
    }

    fn len(&self, rank: usize) -> usize {
        self.part(rank).1
    }

    /// Where a rank's part begins in the buffer that is opened.
    fn offset(&self, rank: usize) -> u64 {
        match self {
            Side::Bytes(_, _, division) => division.part(rank).0 as u64,
            Side::Elements(_) => 0,
        }
    }
}

/// Copies `len` bytes out of a peer's memory to where they belong.
///
/// # Safety
///
/// `to` has `len` bytes, which are writable.
unsafe fn pull(
    team: &Team,
    rank: usize,
    (key, at): (RemoteKey, u64),
    (to, len): (Place<'_>, usize),
) -> Boxed<()> {
    if let Place::Dense(base) = to {
        // SAFETY: the caller's promise.
        return unsafe { Ok(team.pull(rank, key, at, base, len)??) };
    }
    let mut scratch = Scratch::new(len.min(PULLED))?;
    let packed = scratch.as_mut_ptr();
    (0..len).step_by(PULLED).try_for_each(|start| {
        let n = PULLED.min(len - start);
        // SAFETY: the scratch memory has room for `n` bytes; the caller's promise.
        unsafe {
            team.pull(rank, key, at + start as u64, packed, n)??;
            to.unpack(packed, start..start + n, false);
        }
        Ok(())
    })
}

/// Copies our own part.
///
/// # Safety
///
/// Both places have `len` bytes, readable at `from` and writable at `to`; no byte is both.
unsafe fn copy_own(from: Place<'_>, to: Place<'_>, len: usize, flow: Flow) {
    if len == 0 {
        return;
    }
    // SAFETY: the caller's promise.
    unsafe {
        match (from, to) {
            (Place::Dense(from), to) => to.unpack(from, 0..len, flow.streaming),
            (from, Place::Dense(to)) => from.pack(0..len, to),
            (Place::Typed(from, origin), Place::Typed(to, target)) => {
                from.copy_raw(origin, to, target)
            }
        }
    }
}

/// Every rank's side of an alltoall of elements.
///
/// # Safety
///
/// As for [`run`].
pub(super) unsafe fn run_elements(
    team: &mut Team,
    outgoing: Vec<&Elements>,
    incoming: Vec<&Elements>,
) -> Boxed<()> {
    let incoming = Side::Elements(incoming);
    if team.pair_ring() >= STREAMED {
        // SAFETY: the caller's promise.
        return unsafe { run(team, &Side::Elements(outgoing), &incoming) };
    }
    let counts: Vec<usize> = outgoing.iter().map(|part| part.bytes() as usize).collect();
    let whole = counts
        .iter()
        .try_fold(0usize, |sum, count| sum.checked_add(*count));
    let whole =
        whole.ok_or_else(|| Error::argument("bytes that are sent", "too many", ..usize::MAX))?;
    let mut packed = Scratch::new(whole)?;
    let mut offsets = Vec::with_capacity(counts.len());
    let elements = Side::Elements(outgoing);
    let mut end = 0;
    for (rank, count) in counts.iter().enumerate() {
        let (place, len) = elements.part(rank);
        if len > 0 {
            // SAFETY: the caller's promise; the scratch memory has room for all parts.
            unsafe { place.pack(0..len, packed.as_mut_ptr().add(end)) };
        }
        offsets.push(end);
        end += count;
    }
    let parts = Parts {
        counts: &counts,
        offsets: &offsets,
    };
    let bytes = Side::Bytes(packed.as_mut_ptr(), whole, Division::Parts(parts));
    // SAFETY: the caller's promise, and memory of our own.
    unsafe { run(team, &bytes, &incoming) }
}

/// Every rank's side.
///
/// # Safety
///
/// All parts of `outgoing` are readable and stay as they are, those of `incoming` are writable and
/// used by nobody else, and no byte is in both, until this returns.
pub(super) unsafe fn run(team: &mut Team, outgoing: &Side<'_>, incoming: &Side<'_>) -> Boxed<()> {
    let me = team.rank();
    own_part(outgoing.len(me), incoming.len(me))?;
    // Each starts with its successor, so that they do not all ask the same one.
    let peers: Vec<usize> = (me + 1..team.size()).chain(0..me).collect();
    let call = |len| Call::new(Op::Alltoall, 0, len);

    let decide = |rank: &usize| team.decide(Op::Alltoall, outgoing.len(*rank));
    let decisions: Vec<Decision> = peers.iter().map(decide).collect();
    let opened = match (outgoing, one_sided_kind(&decisions)) {
        // SAFETY: the caller lends the buffer until all peers are done with it, below; an error
        // breaks the team, after which they fail, and it is opened for reading only.
        (Side::Bytes(base, len, _), Some(kind)) => unsafe { team.open(kind, *base, *len, false) },
        _ => None,
    };
    let (mut lent, mut sending) = (Vec::new(), Vec::new());
    for (&rank, decision) in peers.iter().zip(&decisions) {
        let (place, len) = outgoing.part(rank);
        let (call, target) = (call(len), Target::One(rank));
        let rts = match decision.path {
            Path::Eager => {
                // SAFETY: the caller's promise.
                unsafe { send(team, target, call, place) }?;
                continue;
            }
            Path::Via(kind) if kind != TransportKind::Shm => Rts {
                key: opened,
                offset: outgoing.offset(rank),
                shared: false,
            },
            Path::Via(_) => Rts::STREAM,
        };
        team.mailbox.tell(target, Step::Rts, call, rts.to_words())?;
        match rts.key {
            Some(key) => lent.push((rank, key)),
            None => sending.push(rank),
        }
    }

    let (mut pulls, mut receiving) = (Vec::new(), Vec::new());
    for &rank in &peers {
        let (place, len) = incoming.part(rank);
        let (call, source) = (call(len), Source::One(rank));
        let eager = team.decide(Op::Alltoall, len).path == Path::Eager;
        if eager {
            let header = team.mailbox.expect_message(source, call)?;
            // SAFETY: the part is as long as the call says, and writable by the caller's promise;
            // so long is the scratch memory, too.
            unsafe {
                match place {
                    Place::Dense(to) => team.mailbox.receive(source, &header, to)?,
                    Place::Typed(..) => {
                        let mut scratch = Scratch::new(len)?;
                        let packed = scratch.as_mut_ptr();
                        team.mailbox.receive(source, &header, packed)?;
                        place.unpack(packed, 0..len, false);
                    }
                }
            }
            continue;
        }
        let header = team.mailbox.expect(source, call, &[Step::Rts])?;
        let rts = Rts::from_words(header.words)?;
        match rts.key {
            Some(key) => pulls.push((rank, key, rts.offset)),
            None => receiving.push(rank),
        }
    }
    for (rank, key, at) in pulls {
        let (place, len) = incoming.part(rank);
        // That there is no such transport is no failed copy.
        team.one_sided(key.kind())?;
        // SAFETY: the caller's promise.
        let copied = unsafe { pull(team, rank, (key, at), (place, len)) };
        let words = [u64::from(copied.is_err()), 0, 0, 0, 0, 0];
        team.mailbox
            .tell(Target::One(rank), Step::Fin, call(len), words)?;
        if copied.is_err() {
            team.invalidate(key.kind());
            receiving.push(rank);
        }
    }
    let received: usize = (0..team.size()).map(|rank| incoming.len(rank)).sum();
    let flow = team.flow(received.saturating_mul(team.size()));
    let ((from, len), (to, _)) = (outgoing.part(me), incoming.part(me));
    // SAFETY: the parts are as long as each other; the caller's promise.
    unsafe { copy_own(from, to, len, flow) };
    for (rank, key) in lent {
        let call = call(outgoing.len(rank));
        let header = team.mailbox.expect(Source::One(rank), call, &[Step::Fin])?;
        if header.words[0] != 0 {
            team.invalidate(key.kind());
            sending.push(rank);
        }
    }
    let sending = sending.into_iter().map(|rank| {
        let (place, len) = outgoing.part(rank);
        // SAFETY: the caller's promise.
        unsafe { Sending::out_of(Target::One(rank), place, len) }
    });
    let receiving = receiving.into_iter().map(|rank| {
        let (place, len) = incoming.part(rank);
        // SAFETY: likewise.
        unsafe { Receiving::into(Source::One(rank), place, len) }
    });
    let (mut sending, mut receiving): (Vec<_>, Vec<_>) = (sending.collect(), receiving.collect());
    Ok(exchange(
        &mut team.mailbox,
        flow,
        &mut sending,
        &mut receiving,
    )?)
}

/// Sends a part that fits into the ring.
///
/// # Safety
///
/// `from` has as many bytes as the call says, which are readable.
unsafe fn send(team: &mut Team, target: Target, call: Call, from: Place<'_>) -> Boxed<()> {
    let len = call.len as usize;
    if len == 0 {
        return Ok(team.mailbox.send(target, call, &[])?);
    }
    // SAFETY: the caller's promise; the scratch memory has room for `len` bytes.
    unsafe {
        match from {
            Place::Dense(bytes) => {
                let bytes = std::slice::from_raw_parts(bytes, len);
                Ok(team.mailbox.send(target, call, bytes)?)
            }
            Place::Typed(..) => {
                let mut packed = Scratch::new(len)?;
                from.pack(0..len, packed.as_mut_ptr());
                Ok(team.mailbox.send(target, call, &packed)?)
            }
        }
    }
}
