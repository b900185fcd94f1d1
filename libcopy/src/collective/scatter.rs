// SPDX-License-Identifier: MIT OR Apache-2.0

//! Scatter: the root's send buffer is opened once, all leaves copy their parts at the same time.

use super::{Call, Division, Op, go_words, own_part, parse_go};
use crate::copy;
use crate::error::Result;
use crate::policy::Path;
use crate::team::Team;
use crate::team::mailbox::{Source, Step, Target};
use crate::transport::TransportKind;
use crate::transport::shm::{Receiving, Sending, exchange};

/// The root's side; `own` is where its part goes unless it stays in place.
pub(super) fn root(
    team: &mut Team,
    send: &[u8],
    own: Option<&mut [u8]>,
    division: Division<'_>,
) -> Result<()> {
    let me = team.rank();
    let base = send.as_ptr();
    let (own_offset, own_len) = division.part(me);
    if let Some(own) = &own {
        own_part(own.len(), own_len)?;
    }
    let call = |rank| Call::new(Op::Scatter, me, division.part(rank).1);
    let path = |team: &Team, rank| team.path(Op::Scatter, division.part(rank).1);
    for rank in team.others() {
        if path(team, rank) == Path::Eager {
            let (offset, len) = division.part(rank);
            team.mailbox
                .send(Target::One(rank), call(rank), &send[offset..offset + len])?;
        }
    }
    let wanted = team
        .others()
        .filter_map(|rank| match path(team, rank) {
            Path::Via(kind) if kind != TransportKind::Shm => Some(kind),
            _ => None,
        })
        .min();
    let opened = wanted.map(|kind| {
        // SAFETY: the slice is borrowed until all leaves have reported, below, and the window is
        // for reading only.
        unsafe { team.open_window(kind, base.cast_mut(), send.len(), false) }
    });
    for rank in team.others() {
        if path(team, rank) != Path::Eager {
            team.mailbox
                .expect(Source::One(rank), call(rank), &[Step::Arrive])?;
        }
    }
    let mut pulling = Vec::new();
    let mut streams = Vec::new();
    for rank in team.others() {
        let Path::Via(kind) = path(team, rank) else {
            continue;
        };
        let (offset, len) = division.part(rank);
        let (kind, window) = match (kind, opened) {
            (TransportKind::Shm, _) | (_, None) => (TransportKind::Shm, [0, 0]),
            (_, Some(opened)) => opened,
        };
        let words = go_words(kind, window, offset);
        team.mailbox
            .tell(Target::One(rank), Step::Go, call(rank), words)?;
        if kind == TransportKind::Shm {
            // SAFETY: the part is inside the slice, which outlives the stream.
            streams.push(unsafe { Sending::new(Target::One(rank), base.add(offset), len) });
        } else {
            pulling.push(rank);
        }
    }
    let flow = team.flow(send.len());
    exchange(&mut team.mailbox, flow, &mut streams, &mut [])?;
    if let Some(own) = own {
        // SAFETY: the part is inside the slice, and `own` is borrowed mutably, so it is elsewhere.
        unsafe {
            let from = base.add(own_offset);
            match flow.streaming {
                true => copy::streaming(own.as_mut_ptr(), from, own_len),
                false => copy::cached(own.as_mut_ptr(), from, own_len),
            }
        }
    }
    let mut again = Vec::new();
    for rank in pulling {
        if !team.reported(rank, call(rank))? {
            let (offset, len) = division.part(rank);
            // SAFETY: the part is inside the slice, which outlives the stream.
            again.push(unsafe { Sending::new(Target::One(rank), base.add(offset), len) });
        }
    }
    exchange(&mut team.mailbox, flow, &mut again, &mut [])
}

/// A leaf's side.
pub(super) fn leaf(team: &mut Team, recv: &mut [u8], root: usize) -> Result<()> {
    let call = Call::new(Op::Scatter, root, recv.len());
    let source = Source::One(root);
    if team.path(Op::Scatter, recv.len()) == Path::Eager {
        let header = team.mailbox.expect(source, call, &[Step::Message])?;
        // SAFETY: the slice is as long as the call says, which `expect` compared.
        return unsafe { team.mailbox.receive(source, &header, recv.as_mut_ptr()) };
    }
    team.arrive(root, call)?;
    let header = team.mailbox.expect(source, call, &[Step::Go])?;
    let (kind, window, offset) = parse_go(header.words)?;
    if kind != TransportKind::Shm {
        // SAFETY: the slice is writable for its length.
        let copied = unsafe {
            team.one_sided(kind)?
                .pull(root, window, offset, recv.as_mut_ptr(), recv.len())
        };
        if team.report(root, call, copied)? {
            return Ok(());
        }
    }
    let flow = team.flow(recv.len());
    // SAFETY: the slice outlives the stream.
    let stream = unsafe { Receiving::new(source, recv.as_mut_ptr(), recv.len()) };
    stream.run(&mut team.mailbox, flow)
}
