// SPDX-License-Identifier: MIT OR Apache-2.0

//! Scatter: the root's send buffer is opened once, all leaves copy their parts at the same time.

use super::cooperative::{Direction, LeafCopy, Plan, Rts, one_sided_kind};
use super::division::{Division, own_part};
use super::offloaded::OffloadRts;
use crate::error::Boxed;
use crate::memcpy;
use crate::op::{Call, Op};
use crate::policy::Path;
use crate::shm::mailbox::{Source, Step, Target};
use crate::team::{Decision, Team};
use crate::transport::stream::{Receiving, Sending, exchange};

/// The root's side; `own` is where its part goes unless it stays in place.
pub(super) fn root(
    team: &mut Team,
    send: &[u8],
    own: Option<&mut [u8]>,
    division: Division<'_>,
) -> Boxed<()> {
    let me = team.rank();
    let base = send.as_ptr();
    let (own_offset, own_len) = division.part(me);
    if let Some(own) = &own {
        own_part(own.len(), own_len)?;
    }
    let call = |rank| Call::new(Op::Scatter, me, division.part(rank).1);
    let decide = |rank| (rank, team.decide(Op::Scatter, division.part(rank).1));
    let mut others: Vec<(usize, Decision)> = team.others().map(decide).collect();
    let kind = one_sided_kind(others.iter().map(|(_, decision)| decision));
    let (buffer, to_leaf) = ((base.cast_mut(), send.len()), Direction::ToLeaf);
    // SAFETY: the slice is only read, until these leaves have reported, and guarded afterwards.
    let started =
        unsafe { team.start_offloading_root(Op::Scatter, buffer, division, &mut others, to_leaf) }?;
    for &(rank, decision) in &others {
        if decision.path == Path::Eager {
            let (offset, len) = division.part(rank);
            team.mailbox
                .send(Target::One(rank), call(rank), &send[offset..offset + len])?;
        }
    }
    let wanted = kind.filter(|_| !others.is_empty());
    let key = wanted.and_then(|kind| {
        // SAFETY: the slice is borrowed until all leaves have reported, below, and opened for
        // reading only.
        unsafe { team.open(kind, base.cast_mut(), send.len(), false) }
    });
    let mut leaves = Vec::new();
    for (rank, decision) in others {
        if decision.path != Path::Eager {
            let rtr = team.arrival(call(rank), decision, rank)?;
            leaves.push((rank, call(rank), decision, rtr));
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
            // SAFETY: the part is inside the slice, and `own` is borrowed mutably, so it is
            // elsewhere.
            unsafe {
                let from = base.add(own_offset);
                memcpy::either(own.as_mut_ptr(), from, own_len, flow.streaming)
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
pub(super) fn leaf(team: &mut Team, recv: &mut [u8], root: usize) -> Boxed<()> {
    let call = Call::new(Op::Scatter, root, recv.len());
    let source = Source::One(root);
    let decision = team.decide(Op::Scatter, recv.len());
    if decision.path == Path::Eager {
        let header = team.mailbox.expect_message(source, call)?;
        // SAFETY: the slice is as long as the call says, which `expect` compared.
        return unsafe { Ok(team.mailbox.receive(source, &header, recv.as_mut_ptr())?) };
    }
    // SAFETY: the slice is borrowed until the end of this function, by which the root is done with
    // it; an error breaks the team.
    unsafe { team.arrive(call, decision, recv.as_mut_ptr(), Direction::ToLeaf) }?;
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
    Ok(stream.run(&mut team.mailbox, flow)?)
}
