// SPDX-License-Identifier: MIT OR Apache-2.0

//! Allgather: everybody opens its part, everybody copies from everybody else.

use super::chunked::{self, Way};
use super::cooperative::{Direction, Rts};
use super::division::{Division, own_part};
use super::offloaded::{OffloadRts, Outcome, Piece};
use super::{direct, exchange, planned};
use crate::error::Boxed;
use crate::memcpy;
use crate::offload::guard::Kind;
use crate::op::{Call, Op};
use crate::policy::Path;
use crate::shm::mailbox::{Source, Step, Target};
use crate::team::{Decision, Team};
use crate::transport::stream::{Flow, Receiving, Sending, exchange};

/// Every rank's side; `own` is our part unless it is in its place already.
pub(super) fn run(
    team: &mut Team,
    own: Option<&[u8]>,
    recv: &mut [u8],
    division: Division<'_>,
) -> Boxed<()> {
    let me = team.rank();
    if let Some(own) = own {
        own_part(own.len(), division.part(me).1)?;
    }
    let parts = (0..team.size()).map(|rank| division.part(rank).1);
    let largest = parts.max().unwrap_or(0);
    let decision = team.decide(Op::Allgather, largest);
    if team.size() > 1 && decision.path == Path::Eager && direct::takes(team, largest) {
        let mine = own.unwrap_or(&recv[division.part(me).0..]).as_ptr();
        // SAFETY: `mine` is readable for our length, and nobody writes to it meanwhile.
        return unsafe { direct::allgather(team, mine, recv, division) };
    }
    let way = Way::of(team, (chunked::Kind::Allgather, 0), decision, (largest, 1));
    let done = if way.is_chunked {
        let mine = own.unwrap_or(&recv[division.part(me).0..]).as_ptr();
        // SAFETY: likewise.
        unsafe { chunked::allgather(team, &way, mine, recv, division) }
    } else {
        as_decided(team, own, recv, division, (decision, largest))
    };
    way.end(team);
    done
}

/// [`run`] as the policy has decided, with a largest part of this length.
fn as_decided(
    team: &mut Team,
    own: Option<&[u8]>,
    recv: &mut [u8],
    division: Division<'_>,
    (decision, largest): (Decision, usize),
) -> Boxed<()> {
    let me = team.rank();
    let base = recv.as_mut_ptr();
    let (own_offset, own_len) = division.part(me);
    // SAFETY: our part is inside the buffer.
    let in_place = unsafe { base.add(own_offset) };
    let mine = own.map_or(in_place.cast_const(), <[u8]>::as_ptr);
    let call = |rank| Call::new(Op::Allgather, 0, division.part(rank).1);
    let place = |rank| {
        let (offset, len) = division.part(rank);
        // SAFETY: the part is inside the buffer.
        (unsafe { base.add(offset) }, len)
    };
    let flow = team.flow(recv.len().saturating_mul(team.size()));
    let keep_own = |flow: Flow| {
        if own.is_some() {
            // SAFETY: our part is inside the buffer, and `own` is borrowed, so it is elsewhere.
            unsafe { memcpy::either(in_place, mine, own_len, flow.streaming) }
        }
    };
    if team.size() > 1 && decision.offloads {
        let places = Places {
            recv: (base, recv.len()),
            mine: (mine.cast_mut(), own_len),
            in_place: own.is_none(),
        };
        // SAFETY: both buffers are ours until all have reported, and guarded afterwards.
        return unsafe { early(team, division, places, || keep_own(flow)) };
    }
    // Where parts have gaps, nobody knows where they are in another rank's memory.
    let is_dense = !matches!(division, Division::Parts(_));
    if let Some(kind) = planned::takes(team, decision).filter(|_| is_dense) {
        // SAFETY: our part is borrowed, and is in its place of the buffer or elsewhere.
        return unsafe { planned::allgather(team, mine, recv, division, kind) };
    }
    if decision.path == Path::Eager && team.size() > 1 {
        if let Some(steps) = exchange::steps_of_parts(team, largest) {
            // SAFETY: `mine` is readable for our length, and nobody writes to it meanwhile.
            return unsafe { exchange::allgather(team, &steps, mine, recv, division) };
        }
    }
    match decision.path {
        Path::Eager => {
            // SAFETY: `mine` is readable for our length, and nobody writes to it meanwhile.
            let bytes = unsafe { std::slice::from_raw_parts(mine, own_len) };
            if team.size() > 1 {
                team.mailbox.send(Target::All, call(me), bytes)?;
            }
            keep_own(flow);
            for rank in team.others() {
                let source = Source::Cast(rank);
                let header = team.mailbox.expect_message(source, call(rank))?;
                // SAFETY: the part has the length that `expect` compared.
                unsafe { team.mailbox.receive(source, &header, place(rank).0) }?;
            }
            Ok(())
        }
        Path::Via(_) if team.size() == 1 => {
            keep_own(flow);
            Ok(())
        }
        Path::Via(kind) => {
            // SAFETY: our part is borrowed until all peers are done with it (`finish`), and it is
            // opened for reading only.
            let key = unsafe { team.open(kind, mine.cast_mut(), own_len, false) };
            // Everybody hears what everybody could open, so all decide alike.
            let words = Rts::at(key).to_words();
            team.mailbox.tell(Target::All, Step::Rts, call(me), words)?;
            let mut keys = Vec::with_capacity(team.size());
            let mut streaming = key.is_none();
            for rank in team.others() {
                let header = team
                    .mailbox
                    .expect(Source::Cast(rank), call(rank), &[Step::Rts])?;
                match Rts::from_words(header.words)?.key {
                    Some(key) => keys.push((rank, key)),
                    None => streaming = true,
                }
            }
            if !streaming {
                // Each starts with its successor, so that they do not all ask the same one.
                let first = keys.iter().position(|(rank, _)| *rank > me).unwrap_or(0);
                keys.rotate_left(first);
                let mut copied = Ok(());
                for &(rank, key) in &keys {
                    let (to, len) = place(rank);
                    // SAFETY: `to` is writable for `len` bytes.
                    let pulled = unsafe { team.pull(rank, key, 0, to, len) }?;
                    copied = copied.and(pulled);
                }
                keep_own(flow);
                streaming = finish(team, call(me), call, copied.is_err())?;
                if let (true, Some(key)) = (streaming, key) {
                    team.invalidate(key.kind());
                }
            } else {
                keep_own(flow);
            }
            if streaming {
                // SAFETY: our part and the buffer outlive the streams.
                let mut sending = unsafe { [Sending::new(Target::All, mine, own_len)] };
                let mut receiving: Vec<_> = team
                    .others()
                    .map(|rank| {
                        let (to, len) = place(rank);
                        // SAFETY: as above.
                        unsafe { Receiving::new(Source::Cast(rank), to, len) }
                    })
                    .collect();
                exchange(&mut team.mailbox, flow, &mut sending, &mut receiving)?;
            }
            Ok(())
        }
    }
}

/// The buffers of an allgather.
struct Places {
    recv: (*mut u8, usize),
    /// Our part, where it comes from.
    mine: (*mut u8, usize),
    in_place: bool,
}

/// Every rank's side where copy engines move the parts: each is the root of its own part and a leaf
/// of all others.
///
/// # Safety
///
/// The buffers hold the parts; their owners can be made to wait for them.
unsafe fn early(
    team: &mut Team,
    division: Division<'_>,
    places: Places,
    keep_own: impl FnOnce(),
) -> Boxed<()> {
    let me = team.rank();
    let call = |rank| Call::new(Op::Allgather, 0, division.part(rank).1);
    let Places {
        recv,
        mine,
        in_place,
    } = places;
    let (own_at, own_len) = division.part(me);
    let executor = team.executor(Op::Allgather, me, recv.0, recv.1);
    // SAFETY: the caller's promise.
    let region = unsafe { team.open_region(mine.0, own_len, false) };
    let own = if in_place {
        Piece {
            base: recv.0,
            len: recv.1,
            at: own_at,
            part: own_len,
        }
    } else {
        Piece {
            base: mine.0,
            len: own_len,
            at: 0,
            part: own_len,
        }
    };
    let (low, high) = own.guarded();
    let rts = OffloadRts {
        region,
        offset: 0,
        low: low as u64,
        high: high as u64,
        executor,
    };
    team.mailbox
        .tell(Target::All, Step::Rts, call(me), rts.to_words())?;
    let mut orders = Vec::with_capacity(team.size());
    for rank in team.others() {
        let header = team
            .mailbox
            .expect(Source::Cast(rank), call(rank), &[Step::Rts])?;
        orders.push((rank, OffloadRts::from_words(header.words)?));
    }
    // Each starts with its successor, so that they do not all ask the same one.
    let first = orders.iter().position(|(rank, _)| *rank > me).unwrap_or(0);
    orders.rotate_left(first);
    let (mut coming, mut going, mut receiving, mut sending) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (rank, rts) in orders {
        let (at, part) = division.part(rank);
        let piece = Piece {
            base: recv.0,
            len: recv.1,
            at,
            part,
        };
        // SAFETY: the caller's promise.
        let outcome = unsafe { team.submit(rank, rts, piece, Direction::ToLeaf) };
        team.report(rank, call(rank), outcome)?;
        coming.extend(outcome.pending(at, true, false));
        if outcome == Outcome::Stream {
            // SAFETY: the part is inside the buffer.
            receiving.push(unsafe { Receiving::new(Source::One(rank), recv.0.add(at), part) });
        }
    }
    keep_own();
    for rank in team.others() {
        let outcome = team.reported(rank, call(me))?;
        going.extend(outcome.pending(if in_place { own_at } else { 0 }, false, true));
        if outcome == Outcome::Stream {
            // SAFETY: the part is inside its buffer.
            sending.push(unsafe { Sending::new(Target::One(rank), mine.0, own_len) });
        }
    }
    if !sending.is_empty() || !receiving.is_empty() {
        let flow = team.flow(recv.1);
        exchange(&mut team.mailbox, flow, &mut sending, &mut receiving)?;
    }
    // SAFETY: the caller's promise, and everything else is done.
    unsafe {
        if in_place {
            coming.append(&mut going);
        } else {
            team.hold(mine.0, own_len, Kind::Source, going)?;
        }
        team.hold(recv.0, recv.1, Kind::Destination, coming)
    }
}

/// Waits until all are done with what all opened. Returns whether a copy failed anywhere; then all
/// stream.
fn finish(team: &mut Team, mine: Call, call: impl Fn(usize) -> Call, failed: bool) -> Boxed<bool> {
    let words = [u64::from(failed), 0, 0, 0, 0, 0];
    team.mailbox.tell(Target::All, Step::Fin, mine, words)?;
    let mut any = failed;
    for rank in team.others() {
        let header = team
            .mailbox
            .expect(Source::Cast(rank), call(rank), &[Step::Fin])?;
        any |= header.words[0] != 0;
    }
    Ok(any)
}
