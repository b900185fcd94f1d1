// SPDX-License-Identifier: MIT OR Apache-2.0

//! Scatter: the root's send buffer is opened once, all leaves copy their parts at the same time.

use super::cooperative::{Direction, LeafCopy, Plan, Rts};
use super::division::{Division, own_part};
use super::offloaded::OffloadRts;
use crate::error::Result;
use crate::memcpy;
use crate::op::{Call, Op};
use crate::policy::Path;
use crate::shm::mailbox::{Source, Step, Target};
use crate::team::Team;
use crate::transport::stream::{Receiving, Sending, exchange};

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
    let early: Vec<_> = team
        .others()
        .filter(|rank| team.offloads(Op::Scatter, division.part(*rank).1))
        .collect();
    let started = if early.is_empty() {
        None
    } else {
        let buffer = (base.cast_mut(), send.len());
        // SAFETY: the slice is only read, until these leaves have reported, and guarded afterwards.
        unsafe {
            team.start_root(
                Op::Scatter,
                buffer,
                division,
                early.clone(),
                Direction::ToLeaf,
            )
        }?
    };
    let others: Vec<_> = team
        .others()
        .filter(|rank| started.is_none() || !early.contains(rank))
        .collect();
    for &rank in &others {
        if path(team, rank) == Path::Eager {
            let (offset, len) = division.part(rank);
            team.mailbox
                .send(Target::One(rank), call(rank), &send[offset..offset + len])?;
        }
    }
    let wanted = if others.is_empty() {
        None
    } else {
        team.one_sided_kind(Op::Scatter, division)
    };
    let key = wanted.and_then(|kind| {
        // SAFETY: the slice is borrowed until all leaves have reported, below, and opened for
        // reading only.
        unsafe { team.open(kind, base.cast_mut(), send.len(), false) }
    });
    let mut leaves = Vec::new();
    for rank in others {
        if path(team, rank) != Path::Eager {
            leaves.push((call(rank), rank, team.arrival(call(rank), rank)?));
        }
    }
    // SAFETY: the division was checked against the buffer.
    let plan = unsafe { team.direct(division, base.cast_mut(), key, &leaves) }?;
    let stream = |job: &LeafCopy| {
        // SAFETY: the part is inside the buffer, which outlives the stream.
        unsafe { Sending::new(Target::One(job.leaf), job.base, job.len) }
    };
    let mut streams: Vec<_> = plan.streams.iter().map(stream).collect();
    let flow = team.flow(send.len());
    exchange(&mut team.mailbox, flow, &mut streams, &mut [])?;
    let keep_own = || {
        if let Some(own) = own {
            // SAFETY: the part is inside the slice, and `own` is borrowed mutably, so it is elsewhere.
            unsafe {
                let from = base.add(own_offset);
                if flow.streaming {
                    memcpy::streaming(own.as_mut_ptr(), from, own_len)
                } else {
                    memcpy::cached(own.as_mut_ptr(), from, own_len)
                }
            }
        }
    };
    let Plan {
        kind, jobs, shared, ..
    } = plan;
    // SAFETY: each job is a part of the buffer, which is borrowed for as long as this takes.
    let again = unsafe { team.copy_as_root(kind, jobs, Direction::ToLeaf, shared, keep_own) }?;
    let mut again: Vec<_> = again.iter().map(stream).collect();
    exchange(&mut team.mailbox, flow, &mut again, &mut [])?;
    match started {
        // SAFETY: everything that we do with the slice is done.
        Some(started) => unsafe { team.finish_root(started) },
        None => Ok(()),
    }
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
    // SAFETY: the slice is borrowed until the end of this function, by which the root is done with
    // it; an error breaks the team.
    unsafe { team.arrive(call, recv.as_mut_ptr(), Direction::ToLeaf) }?;
    let header = team.mailbox.expect(source, call, &[Step::Rts])?;
    if OffloadRts::is_in(&header.words) {
        // SAFETY: the slice is ours until the request is made, and guarded afterwards.
        return unsafe { team.run_leaf(call, recv.as_mut_ptr(), Direction::ToLeaf, header.words) };
    }
    let rts = Rts::from_words(header.words)?;
    if let Some(key) = rts.key {
        // SAFETY: the slice is as long as the call says, and writable.
        if unsafe { team.copy_as_leaf(call, rts, key, recv.as_mut_ptr(), Direction::ToLeaf) }? {
            return Ok(());
        }
    }
    let flow = team.flow(recv.len().saturating_mul(team.size()));
    // SAFETY: the slice outlives the stream.
    let stream = unsafe { Receiving::new(source, recv.as_mut_ptr(), recv.len()) };
    stream.run(&mut team.mailbox, flow)
}
