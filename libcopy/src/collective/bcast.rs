// SPDX-License-Identifier: MIT OR Apache-2.0

//! Broadcast: the root's buffer is opened once, all leaves copy from it at the same time.

use super::chunked::{self, Kind, Way};
use super::cooperative::{Direction, LeafCopy, Rtr, Rts};
use super::division::Division;
use super::offloaded::OffloadRts;
use super::{direct, planned};
use crate::error::Boxed;
use crate::op::{Call, Op};
use crate::policy::Path;
use crate::shm::mailbox::{Source, Step, Target};
use crate::team::{Decision, Team};
use crate::transport::TransportKind;
use crate::transport::stream::{Receiving, Sending};

/// The root's side.
pub(super) fn root(team: &mut Team, bytes: &mut [u8]) -> Boxed<()> {
    if team.size() == 1 {
        return Ok(());
    }
    let call = Call::new(Op::Bcast, team.rank(), bytes.len());
    if direct::takes_pieces(team, bytes.len()) {
        return direct::bcast(team, call.root, bytes);
    }
    if let Some(descent) = direct::descent(team, call.root, bytes.len()) {
        return direct::descend(team, call.root, bytes, &descent);
    }
    let decision = team.decide(Op::Bcast, bytes.len());
    if decision.offloads {
        let leaves = team.others().map(|leaf| (leaf, decision)).collect();
        let whole = Division::Equal(bytes.len());
        let buffer = (bytes.as_mut_ptr(), bytes.len());
        // SAFETY: the slice is ours until all leaves have reported, and guarded afterwards.
        unsafe {
            if let Some(started) =
                team.start_root(Op::Bcast, buffer, whole, leaves, Direction::ToLeaf)?
            {
                return team.finish_root(started);
            }
        }
    }
    let way = Way::of(team, (Kind::Bcast, call.root), decision, (bytes.len(), 1));
    let done = if way.is_chunked {
        chunked::bcast(team, &way, call.root, bytes)
    } else if let Some(kind) = planned::takes(team, decision) {
        planned::bcast(team, bytes, call.root, kind)
    } else {
        to_leaves(team, call, decision, bytes)
    };
    way.end(team);
    done
}

/// The root's side where its buffer is opened, or where its bytes go through a ring.
fn to_leaves(team: &mut Team, call: Call, decision: Decision, bytes: &mut [u8]) -> Boxed<()> {
    match decision.path {
        Path::Eager => Ok(team.mailbox.send(Target::All, call, bytes)?),
        Path::Via(TransportKind::Shm) => stream(team, call, decision, bytes),
        Path::Via(kind) => {
            // SAFETY: the slice is borrowed until all leaves have reported, below; an error
            // breaks the team, after which leaves fail, and the memory is opened for reading only.
            let key = unsafe { team.open(kind, bytes.as_mut_ptr(), bytes.len(), false) };
            let Some(kind) = key.map(|key| key.kind()) else {
                return stream(team, call, decision, bytes);
            };
            let (base, len) = (bytes.as_mut_ptr(), bytes.len());
            let arrivals = arrivals(team, call, decision)?;
            let job = |(leaf, rtr): &(usize, Option<Rtr>)| {
                LeafCopy::new((*leaf, call, decision), *rtr, base, len)
            };
            let jobs: Vec<_> = arrivals.iter().map(job).collect();
            for job in &jobs {
                team.mailbox.open_claims(job.leaf)?;
            }
            let shared = jobs.iter().all(|job| job.is_shareable(kind));
            let rts = Rts {
                key,
                offset: 0,
                shared,
            };
            team.mailbox
                .tell(Target::All, Step::Rts, call, rts.to_words())?;
            // SAFETY: each job is the whole slice, which this way is only read.
            let again = unsafe { team.copy_as_root(kind, jobs, Direction::ToLeaf, shared, || ()) }?;
            let flow = team.flow(bytes.len().saturating_mul(team.size()));
            for job in again {
                let target = Target::One(job.leaf);
                // SAFETY: the slice outlives the stream.
                let mut stream = unsafe { Sending::new(target, bytes.as_ptr(), bytes.len()) };
                stream.run(&mut team.mailbox, flow, 0)?;
            }
            Ok(())
        }
    }
}

/// Waits for all leaves that say that they are here.
fn arrivals(team: &mut Team, call: Call, decision: Decision) -> Boxed<Vec<(usize, Option<Rtr>)>> {
    team.others()
        .map(|leaf| Ok((leaf, team.arrival(call, decision, leaf)?)))
        .collect()
}

/// Through shared memory. Where leaves say that they are here, the last chunk is kept back until
/// all turned out to mean this very operation: then none returns while another cannot.
fn stream(team: &mut Team, call: Call, decision: Decision, bytes: &[u8]) -> Boxed<()> {
    let flow = team.flow(bytes.len().saturating_mul(team.size()));
    let words = Rts::STREAM.to_words();
    team.mailbox.prepare(Target::All, bytes.len())?;
    team.mailbox.announce(Target::All, Step::Rts, call, words)?;
    // SAFETY: the slice outlives the stream.
    let mut stream = unsafe { Sending::new(Target::All, bytes.as_ptr(), bytes.len()) };
    if decision.announces {
        stream.run(&mut team.mailbox, flow, flow.chunk)?;
        arrivals(team, call, decision)?;
    }
    Ok(stream.run(&mut team.mailbox, flow, 0)?)
}

/// A leaf's side.
pub(super) fn leaf(team: &mut Team, bytes: &mut [u8], root: usize) -> Boxed<()> {
    let call = Call::new(Op::Bcast, root, bytes.len());
    if direct::takes_pieces(team, bytes.len()) {
        return direct::bcast(team, root, bytes);
    }
    if let Some(descent) = direct::descent(team, root, bytes.len()) {
        return direct::descend(team, root, bytes, &descent);
    }
    let decision = team.decide(Op::Bcast, bytes.len());
    let way = Way::of(team, (Kind::Bcast, call.root), decision, (bytes.len(), 1));
    let done = if way.is_chunked {
        chunked::bcast(team, &way, root, bytes)
    } else {
        from_root(team, call, decision, bytes)
    };
    way.end(team);
    done
}

/// A leaf's side where the root's buffer is opened, or where its bytes go through a ring.
fn from_root(team: &mut Team, call: Call, decision: Decision, bytes: &mut [u8]) -> Boxed<()> {
    let (root, source) = (call.root, Source::Cast(call.root));
    if decision.path == Path::Eager {
        let header = team.mailbox.expect_message(source, call)?;
        // SAFETY: the slice is as long as the call says, which `expect` compared.
        return unsafe { Ok(team.mailbox.receive(source, &header, bytes.as_mut_ptr())?) };
    }
    if let Some(kind) = planned::takes(team, decision) {
        return planned::bcast(team, bytes, root, kind);
    }
    // SAFETY: the slice is borrowed mutably until the end of this function, by which the root is
    // done with it; an error breaks the team.
    unsafe { team.arrive(call, decision, bytes.as_mut_ptr(), Direction::ToLeaf) }?;
    let header = team.mailbox.expect(source, call, &[Step::Rts])?;
    if OffloadRts::is_in(&header.words) {
        // SAFETY: the slice is ours until the request is made, and guarded afterwards.
        return unsafe { team.run_leaf(call, bytes.as_mut_ptr(), Direction::ToLeaf, header.words) };
    }
    let rts = Rts::from_words(header.words)?;
    let mut source = source;
    if let Some(key) = rts.key {
        // SAFETY: the slice is writable for its length.
        if unsafe { team.copy_as_leaf(call, rts, key, bytes.as_mut_ptr(), Direction::ToLeaf) }? {
            return Ok(());
        }
        source = Source::One(root);
    }
    let flow = team.flow(bytes.len().saturating_mul(team.size()));
    // SAFETY: the slice outlives the stream.
    let stream = unsafe { Receiving::new(source, bytes.as_mut_ptr(), bytes.len()) };
    Ok(stream.run(&mut team.mailbox, flow)?)
}
