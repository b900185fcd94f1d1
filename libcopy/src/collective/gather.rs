// SPDX-License-Identifier: MIT OR Apache-2.0

//! Gather: the root's receive buffer is opened once, all leaves copy into it at the same time.

use super::cooperative::{Direction, LeafCopy, Plan, Rts, one_sided_kind};
use super::division::{Division, own_part};
use super::offloaded::OffloadRts;
use crate::error::Boxed;
use crate::memcpy;
use crate::op::{Call, Op};
use crate::policy::Path;
use crate::shm::mailbox::{Source, Step, Target};
use crate::team::{Decision, Team};
use crate::transport::TransportKind;
use crate::transport::stream::{Receiving, Sending, exchange};

/// The root's side; `own` is its part unless that is in its place already.
pub(super) fn root(
    team: &mut Team,
    own: Option<&[u8]>,
    recv: &mut [u8],
    division: Division<'_>,
) -> Boxed<()> {
    let me = team.rank();
    let base = recv.as_mut_ptr();
    let (own_offset, own_len) = division.part(me);
    if let Some(own) = own {
        own_part(own.len(), own_len)?;
    }
    let call = |rank| Call::new(Op::Gather, me, division.part(rank).1);
    let decide = |rank| (rank, team.decide(Op::Gather, division.part(rank).1));
    let mut others: Vec<(usize, Decision)> = team.others().map(decide).collect();
    let kind = one_sided_kind(others.iter().map(|(_, decision)| decision));

    let (buffer, to_root) = ((base, recv.len()), Direction::ToRoot);
    // SAFETY: the buffer is mutably borrowed until these leaves have reported, and guarded
    // afterwards.
    let started =
        unsafe { team.start_offloading_root(Op::Gather, buffer, division, &mut others, to_root) }?;
    let wanted = kind.filter(|_| !others.is_empty());
    let key = wanted.and_then(|kind| {
        // SAFETY: the buffer is mutably borrowed until all leaves have reported, below. Only our
        // own part is touched meanwhile, and through `base`; an error breaks the team.
        unsafe { team.open(kind, base, recv.len(), true) }
    });

    let (mut eager, mut leaves) = (Vec::new(), Vec::new());
    for (rank, decision) in others {
        let (call, source) = (call(rank), Source::One(rank));
        if decision.path == Path::Eager {
            let header = team.mailbox.expect_message(source, call)?;
            eager.push((rank, header));
        } else {
            let rtr = team.arrival(call, decision, rank)?;
            leaves.push((rank, call, decision, rtr));
        }
    }
    // SAFETY: the division was checked against the buffer.
    let plan = unsafe { team.direct(division, base, key, &leaves) }?;
    let stream = |job: &LeafCopy| {
        // SAFETY: the part is inside the buffer, which outlives the stream.
        unsafe { Receiving::new(Source::One(job.leaf), job.base, job.len) }
    };
    let mut streams: Vec<_> = plan.streams.iter().map(stream).collect();
    for (rank, header) in eager {
        // SAFETY: the part is inside the buffer.
        unsafe {
            let to = base.add(division.part(rank).0);
            team.mailbox.receive(Source::One(rank), &header, to)?;
        }
    }
    let flow = team.flow(recv.len());
    exchange(&mut team.mailbox, flow, &mut [], &mut streams)?;
    let keep_own = || {
        if let Some(own) = own {
            // SAFETY: the part is inside the buffer, and `own` cannot overlap it: it is borrowed.
            unsafe {
                let to = base.add(own_offset);
                memcpy::either(to, own.as_ptr(), own_len, flow.streaming)
            }
        }
    };
    let Plan {
        kind, jobs, shared, ..
    } = plan;
    // SAFETY: each job is a part of the buffer, which is borrowed for as long as this takes.
    let again = unsafe { team.copy_as_root(kind, jobs, Direction::ToRoot, shared, keep_own) }?;
    let mut again: Vec<_> = again.iter().map(stream).collect();
    exchange(&mut team.mailbox, flow, &mut [], &mut again)?;
    match started {
        // SAFETY: everything that we do with the buffer is done.
        Some(started) => unsafe { team.finish_root(started) },
        None => Ok(()),
    }
}

/// A leaf's side.
pub(super) fn leaf(team: &mut Team, send: &[u8], root: usize) -> Boxed<()> {
    let call = Call::new(Op::Gather, root, send.len());
    let decision = team.decide(Op::Gather, send.len());
    let Path::Via(planned) = decision.path else {
        return Ok(team.mailbox.send(Target::One(root), call, send)?);
    };
    let flow = team.flow(send.len().saturating_mul(team.size()));
    // SAFETY: the slice outlives the stream.
    let mut stream = unsafe { Sending::new(Target::One(root), send.as_ptr(), send.len()) };
    // SAFETY: the slice is borrowed until the end of this function, by which the root is done with
    // it; an error breaks the team.
    unsafe { team.arrive(call, decision, send.as_ptr().cast_mut(), Direction::ToRoot) }?;
    if planned == TransportKind::Shm {
        // The root cannot choose another way, so what fits into the ring can go now.
        while stream.step(&mut team.mailbox, flow)? {}
    }
    let header = team.mailbox.expect(Source::One(root), call, &[Step::Rts])?;
    if OffloadRts::is_in(&header.words) {
        let base = send.as_ptr().cast_mut();
        // SAFETY: the slice is only read, until the request is made, and guarded afterwards.
        return unsafe { team.run_leaf(call, base, Direction::ToRoot, header.words) };
    }
    let rts = Rts::from_words(header.words)?;
    if let Some(key) = rts.key {
        // SAFETY: the slice is as long as the call says, and this way is only read.
        if unsafe {
            team.copy_as_leaf(call, rts, key, send.as_ptr().cast_mut(), Direction::ToRoot)
        }? {
            return Ok(());
        }
    }
    Ok(stream.run(&mut team.mailbox, flow, 0)?)
}
