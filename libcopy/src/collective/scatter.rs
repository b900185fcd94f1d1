// SPDX-License-Identifier: MIT OR Apache-2.0

//! Scatter: the root's send buffer is opened once, all leaves copy their parts at the same time.

use super::share::{Job, Way};
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
    let mut arrived = Vec::new();
    for rank in team.others() {
        if path(team, rank) != Path::Eager {
            let header = team
                .mailbox
                .expect(Source::One(rank), call(rank), &[Step::Arrive])?;
            arrived.push((rank, [header.words[0], header.words[1]]));
        }
    }
    let mut jobs = Vec::new();
    let mut streams = Vec::new();
    for (rank, theirs) in arrived {
        let (offset, len) = division.part(rank);
        let (kind, window) = match (path(team, rank), opened) {
            (Path::Via(kind), Some(opened)) if kind != TransportKind::Shm => opened,
            _ => (TransportKind::Shm, [0, 0]),
        };
        // SAFETY: the part is inside the slice.
        let base = unsafe { base.add(offset) };
        team.mailbox.open_claims(rank);
        let words = go_words(kind, window, offset);
        team.mailbox
            .tell(Target::One(rank), Step::Go, call(rank), words)?;
        if kind == TransportKind::Shm {
            // SAFETY: the part is inside the slice, which outlives the stream.
            streams.push(unsafe { Sending::new(Target::One(rank), base, len) });
        } else {
            let base = base.cast_mut();
            jobs.push(Job {
                leaf: rank,
                call: call(rank),
                window: theirs,
                base,
                len,
            });
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
    let again = match opened {
        // SAFETY: each job is a part of the slice, which leaves only read.
        Some((TransportKind::Cma, _)) => unsafe { team.share_as_root(jobs, Way::ToLeaf) }?,
        _ => team.failed(jobs)?,
    };
    let stream = |job: &Job| {
        // SAFETY: the part is inside the slice, which outlives the stream.
        unsafe { Sending::new(Target::One(job.leaf), job.base, job.len) }
    };
    let mut again: Vec<_> = again.iter().map(stream).collect();
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
    team.arrive(root, call, recv.as_ptr())?;
    let header = team.mailbox.expect(source, call, &[Step::Go])?;
    let (kind, window, offset) = parse_go(header.words)?;
    if kind != TransportKind::Shm {
        let base = recv.as_mut_ptr();
        // SAFETY: the slice is writable for its length.
        let copied = unsafe {
            match kind {
                TransportKind::Cma => team.share_as_leaf(call, window, offset, base, Way::ToLeaf),
                _ => {
                    let transport = team.one_sided(kind)?;
                    let copied = transport.pull(root, window, offset, base, recv.len());
                    team.report(root, call, copied)
                }
            }
        };
        if copied? {
            return Ok(());
        }
    }
    let flow = team.flow(recv.len().saturating_mul(team.size()));
    // SAFETY: the slice outlives the stream.
    let stream = unsafe { Receiving::new(source, recv.as_mut_ptr(), recv.len()) };
    stream.run(&mut team.mailbox, flow)
}
