// SPDX-License-Identifier: MIT OR Apache-2.0

//! Broadcast: the root's buffer is opened once, all leaves copy from it at the same time.

use super::{Call, Op, go_words, parse_go};
use crate::error::Result;
use crate::policy::Path;
use crate::team::Team;
use crate::team::mailbox::{Source, Step, Target};
use crate::transport::TransportKind;
use crate::transport::shm::{Receiving, Sending};

/// The root's side.
pub(super) fn root(team: &mut Team, bytes: &mut [u8]) -> Result<()> {
    if team.size() == 1 {
        return Ok(());
    }
    let call = Call::new(Op::Bcast, team.rank(), bytes.len());
    match team.path(Op::Bcast, bytes.len()) {
        Path::Eager => team.mailbox.send(Target::All, call, bytes),
        Path::Via(TransportKind::Shm) => stream(team, call, bytes),
        Path::Via(kind) => {
            // SAFETY: the slice is borrowed until all leaves have reported, below; an error
            // breaks the team, after which leaves fail, and the window is for reading only.
            let (kind, window) =
                unsafe { team.open_window(kind, bytes.as_mut_ptr(), bytes.len(), false) };
            if kind == TransportKind::Shm {
                return stream(team, call, bytes);
            }
            arrivals(team, call)?;
            team.mailbox
                .tell(Target::All, Step::Go, call, go_words(kind, window, 0))?;
            let flow = team.flow(bytes.len());
            for rank in team.others() {
                if !team.reported(rank, call)? {
                    // SAFETY: the slice outlives the stream.
                    let mut again =
                        unsafe { Sending::new(Target::One(rank), bytes.as_ptr(), bytes.len()) };
                    again.run(&mut team.mailbox, flow, 0)?;
                }
            }
            Ok(())
        }
    }
}

fn arrivals(team: &mut Team, call: Call) -> Result<()> {
    for rank in team.others() {
        team.mailbox
            .expect(Source::One(rank), call, &[Step::Arrive])?;
    }
    Ok(())
}

/// Through shared memory. The last chunk is kept back until all leaves turned out to mean this
/// very operation: a leaf that has everything may return, and must not if another cannot.
fn stream(team: &mut Team, call: Call, bytes: &[u8]) -> Result<()> {
    let flow = team.flow(bytes.len());
    let words = go_words(TransportKind::Shm, [0, 0], 0);
    team.mailbox.announce(Target::All, Step::Go, call, words)?;
    // SAFETY: the slice outlives the stream.
    let mut stream = unsafe { Sending::new(Target::All, bytes.as_ptr(), bytes.len()) };
    stream.run(&mut team.mailbox, flow, flow.chunk)?;
    arrivals(team, call)?;
    stream.run(&mut team.mailbox, flow, 0)
}

/// A leaf's side.
pub(super) fn leaf(team: &mut Team, bytes: &mut [u8], root: usize) -> Result<()> {
    let call = Call::new(Op::Bcast, root, bytes.len());
    let source = Source::Cast(root);
    if team.path(Op::Bcast, bytes.len()) == Path::Eager {
        let header = team.mailbox.expect(source, call, &[Step::Message])?;
        // SAFETY: the slice is as long as the call says, which `expect` compared.
        return unsafe { team.mailbox.receive(source, &header, bytes.as_mut_ptr()) };
    }
    team.arrive(root, call)?;
    let header = team.mailbox.expect(source, call, &[Step::Go])?;
    let (kind, window, offset) = parse_go(header.words)?;
    let flow = team.flow(bytes.len());
    let mut source = source;
    if kind != TransportKind::Shm {
        // SAFETY: the slice is writable for its length.
        let copied = unsafe {
            team.one_sided(kind)?
                .pull(root, window, offset, bytes.as_mut_ptr(), bytes.len())
        };
        if team.report(root, call, copied)? {
            return Ok(());
        }
        source = Source::One(root);
    }
    // SAFETY: the slice outlives the stream.
    let stream = unsafe { Receiving::new(source, bytes.as_mut_ptr(), bytes.len()) };
    stream.run(&mut team.mailbox, flow)
}
