// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages that are longer than the receives that they match. The MPI library has received a
//! header, or as much of it as there was room for, and does not know how long the message is. So
//! the program gets the message's first bytes over that, and a status that says what the library
//! would have said of the message itself.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::atomic::Ordering;

use libcopy::p2p::header::{self, BYTES, START};
use libcopy::p2p::segment::state;
use libcopy::p2p::{ReceiveError, View};

use crate::comm::communicator::Comm;
use crate::comm::peers::Peers;
use crate::comm::processes::World;
use crate::library::abi::{Word, complain};
use crate::library::pmpi;
use crate::library::status::Status;

/// Why a message was not received, or not as a whole.
#[derive(Clone, Copy, Debug)]
pub struct Failed {
    /// The error code.
    pub code: c_int,
    /// The bytes that the status has to name, if it is not to stay as it is.
    pub bytes: Option<u64>,
}

impl From<c_int> for Failed {
    fn from(code: c_int) -> Failed {
        Failed { code, bytes: None }
    }
}

/// Whether an error code says that a message was too long.
pub fn is_truncation(world: &World, code: c_int) -> bool {
    let mut class = 0;
    // SAFETY: a writable output.
    code != 0 && unsafe { pmpi::error_class(code, &mut class) } == 0 && class == world.abi.truncate
}

/// Processes that a message may have come from, by what is known of its communicator.
pub fn senders(
    world: &World,
    known: Option<&Comm>,
    comm: Word,
    source: c_int,
) -> Option<Range<usize>> {
    match known.map(|known| world.peers(known, comm)) {
        None | Some(Peers::Unknown) => Some(0..world.pids.len()),
        Some(peers) => {
            let sender = peers.of(source)?;
            Some(sender..sender + 1)
        }
    }
}

/// The sender and the slot of the message of whose header a receive has got these first bytes, as
/// many as it has room for, but [`START`] at most.
///
/// These say which message it is, if all of them are there. If not, the `bytes` do that the library
/// says, or a matched probe has found: the sender marks a slot as ambiguous before a message of the
/// program's own leaves that has the same length, and does not use the slot again. A library that
/// says how much room there was (MPICH 5.0) has delivered what fits: then it is the first message
/// under way with this tag, since the program's own data do not begin like a header.
pub fn find(
    world: &World,
    senders: Range<usize>,
    status: Status,
    found: Option<u64>,
    start: &[u8],
) -> Option<(usize, usize)> {
    let (is_found, bytes) = (found.is_some(), found.unwrap_or(status.bytes()));
    if let Ok(whole) = <&[u8; START]>::try_from(start) {
        let said = header::read_start(whole, world.magic);
        let is_ours = |(sequence, sender, number): &(u64, usize, usize)| {
            if !senders.contains(sender) || *number >= header::SLOTS {
                return false;
            }
            let slot = world.segment.slot(*sender, *number);
            slot.state(Ordering::Acquire) == state::POSTED
                && slot.to(Ordering::Relaxed) == world.me as u32
                && slot.sequence(Ordering::Relaxed) == *sequence
        };
        if let Some((_, sender, number)) = said.filter(is_ours) {
            return Some((sender, number));
        }
        if !is_found {
            return None;
        }
    }
    let is_posted = |sender: usize, number: usize| {
        let slot = world.segment.slot(sender, number);
        world.posted(slot, status).is_some() && !slot.is_ambiguous()
    };
    if let Some(number) = header::slot_of(bytes) {
        let sender = senders.clone().find(|sender| is_posted(*sender, number))?;
        return Some((sender, number));
    }
    if start.is_empty() || bytes != start.len() as u64 {
        return None;
    }
    let begins_so = |sender: usize, number: usize| {
        let mut bytes = [0; BYTES];
        let slot = world.segment.slot(sender, number);
        slot.header(world.magic, sender, number).write(&mut bytes);
        bytes.starts_with(start)
    };
    let slots = senders.flat_map(|sender| (0..header::SLOTS).map(move |number| (sender, number)));
    slots
        .filter(|(sender, number)| is_posted(*sender, *number) && begins_so(*sender, *number))
        .min_by_key(|(sender, number)| {
            let slot = world.segment.slot(*sender, *number);
            slot.sequence(Ordering::Relaxed)
        })
}

/// Receives `wanted` bytes of such a message into elements of `capacity` bytes; its sender hears
/// that it is over. `None` if another thread has received it.
///
/// # Safety
///
/// The elements of the view have `wanted` bytes, writable, which nobody else uses until this
/// returns.
pub unsafe fn receive(
    world: &World,
    (sender, number): (usize, usize),
    view: &View,
    (wanted, capacity): (u64, u64),
) -> Option<Failed> {
    let slot = world.segment.slot(sender, number);
    let header = slot.header(world.magic, sender, number);
    // SAFETY: the caller's promise; the slot has the header as its sender wrote it.
    match unsafe { world.receive_start(&header, view, wanted) } {
        Ok(()) | Err(ReceiveError::Truncated) => {}
        Err(ReceiveError::Claimed) => return None,
        Err(ReceiveError::Failed(why)) => complain(&format!(
            "the beginning of a message of {} bytes: {why}",
            header.total
        )),
    }
    Some(failed(
        world,
        header.layout_words == 0,
        header.total,
        capacity,
    ))
}

/// What is said of a message of `total` bytes, dense ones or not, that came for elements of
/// `capacity` bytes.
pub fn failed(world: &World, is_dense: bool, total: u64, capacity: u64) -> Failed {
    Failed {
        code: world.abi.truncate,
        bytes: Some(world.choice.truncated(is_dense, total, capacity)),
    }
}
