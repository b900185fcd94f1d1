// SPDX-License-Identifier: MIT OR Apache-2.0

//! Alltoall: everybody opens its send buffer, everybody copies its parts from everybody else's.
//!
//! The two ranks of a part both know its length, so they choose its way without asking; where memory
//! is to be opened, its owner tells whether that could be done.

use super::cooperative::{Rts, one_sided_kind};
use super::division::{Division, own_part};
use crate::error::Result;
use crate::memcpy;
use crate::op::{Call, Op};
use crate::policy::Path;
use crate::shm::mailbox::{Source, Step, Target};
use crate::team::{Decision, Team};
use crate::transport::TransportKind;
use crate::transport::stream::{Receiving, Sending, exchange};

/// Every rank's side.
pub(super) fn run(
    team: &mut Team,
    send: &[u8],
    outgoing: Division<'_>,
    recv: &mut [u8],
    incoming: Division<'_>,
) -> Result<()> {
    let me = team.rank();
    let (own_from, own_len) = outgoing.part(me);
    let (own_to, own_room) = incoming.part(me);
    own_part(own_len, own_room)?;
    let (from, to) = (send.as_ptr(), recv.as_mut_ptr());
    // Each starts with its successor, so that they do not all ask the same one.
    let peers: Vec<usize> = (me + 1..team.size()).chain(0..me).collect();
    let call = |len| Call::new(Op::Alltoall, 0, len);

    let decide = |rank: &usize| team.decide(Op::Alltoall, outgoing.part(*rank).1);
    let decisions: Vec<Decision> = peers.iter().map(decide).collect();
    let opened = match one_sided_kind(&decisions) {
        // SAFETY: the slice is borrowed until all peers are done with it, below; an error breaks
        // the team, after which they fail, and it is opened for reading only.
        Some(kind) => unsafe { team.open(kind, from.cast_mut(), send.len(), false) },
        None => None,
    };
    let (mut lent, mut sending) = (Vec::new(), Vec::new());
    for (&rank, decision) in peers.iter().zip(&decisions) {
        let (offset, len) = outgoing.part(rank);
        let (call, target) = (call(len), Target::One(rank));
        let rts = match decision.path {
            Path::Eager => {
                let bytes = &send[offset..offset + len];
                team.mailbox.send(target, call, bytes)?;
                continue;
            }
            Path::Via(kind) if kind != TransportKind::Shm => Rts {
                key: opened,
                offset: offset as u64,
                shared: false,
            },
            Path::Via(_) => Rts::STREAM,
        };
        team.mailbox.tell(target, Step::Rts, call, rts.to_words())?;
        match rts.key {
            Some(key) => lent.push((rank, offset, len, key)),
            None => sending.push((rank, offset, len)),
        }
    }

    let (mut pulls, mut receiving) = (Vec::new(), Vec::new());
    for &rank in &peers {
        let (offset, len) = incoming.part(rank);
        let (call, source) = (call(len), Source::One(rank));
        let eager = team.decide(Op::Alltoall, len).path == Path::Eager;
        let step = if eager { Step::Message } else { Step::Rts };
        let header = team.mailbox.expect(source, call, &[step])?;
        if eager {
            // SAFETY: the part is inside the buffer, and as long as the call says.
            unsafe { team.mailbox.receive(source, &header, to.add(offset)) }?;
            continue;
        }
        let rts = Rts::from_words(header.words)?;
        match rts.key {
            Some(key) => pulls.push((rank, offset, len, (key, rts.offset))),
            None => receiving.push((rank, offset, len)),
        }
    }
    for (rank, offset, len, (key, at)) in pulls {
        // SAFETY: the part is inside the buffer.
        let copied = unsafe {
            let to = to.add(offset);
            team.one_sided(key.kind())?.pull(rank, key, at, to, len)
        };
        let words = [u64::from(copied.is_err()), 0, 0, 0, 0, 0];
        team.mailbox
            .tell(Target::One(rank), Step::Fin, call(len), words)?;
        if copied.is_err() {
            team.invalidate(key.kind());
            receiving.push((rank, offset, len));
        }
    }
    let flow = team.flow(recv.len().saturating_mul(team.size()));
    // SAFETY: both parts are inside their buffers, which cannot overlap: one is borrowed mutably.
    unsafe {
        let (from, to) = (from.add(own_from), to.add(own_to));
        if flow.streaming {
            memcpy::streaming(to, from, own_len)
        } else {
            memcpy::cached(to, from, own_len)
        }
    }
    for (rank, offset, len, key) in lent {
        let header = team
            .mailbox
            .expect(Source::One(rank), call(len), &[Step::Fin])?;
        if header.words[0] != 0 {
            team.invalidate(key.kind());
            sending.push((rank, offset, len));
        }
    }
    let mut sending: Vec<_> = sending
        .into_iter()
        // SAFETY: the part is inside the buffer, which outlives the stream.
        .map(|(rank, offset, len)| unsafe {
            Sending::new(Target::One(rank), from.add(offset), len)
        })
        .collect();
    let mut receiving: Vec<_> = receiving
        .into_iter()
        // SAFETY: likewise.
        .map(|(rank, offset, len)| unsafe {
            Receiving::new(Source::One(rank), to.add(offset), len)
        })
        .collect();
    exchange(&mut team.mailbox, flow, &mut sending, &mut receiving)
}
