// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages out of device memory that their receivers copy there ([`gpu::offer`]). `None` everywhere means that a message
//! goes another way, packed.

use std::ffi::{c_int, c_void};

use libcopy::p2p::{Content, Pause, Shared, header};

use super::arguments::{Address, Elements, Mode};
use super::panics::caught;
use super::world::{World, world};
use super::{calls, waiting};
use crate::abi::Word;
use crate::count::Count;
use crate::pmpi::forward;
use crate::{comm, gpu, types};
use libcopy::lock::lock;

/// Whether a send may wait for what the program has told its GPU to do before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Patience {
    /// As long as it takes.
    Blocking,
    /// Not at all, nor may the message need this process later while that waits elsewhere.
    None,
}

/// Offers a message to its receiver, as its slot says from now on.
fn post(world: &World, what: Elements, to: Address, patience: Patience) -> Option<Shared> {
    let count = what.count?;
    let least = world.least[0].min(world.least[1]);
    if types::quick_size(what.datatype, count).is_some_and(|bytes| bytes < least) {
        return None;
    }
    let known = types::of(world.abi, what.datatype)?;
    let bytes = known.size.checked_mul(count as u64)?;
    // What has a header's length is looked at where it is forwarded.
    if bytes < least || header::slot_of(bytes).is_some() || to.tag < 0 {
        return None;
    }
    let member = {
        let its = comm::of(world.abi, to.comm).ok()?;
        world.peers(&its, to.comm).of(to.dest)?
    };
    if world.is_closed(member) || patience == Patience::None && !gpu::may_be_left() {
        return None;
    }
    let offer = gpu::offer((what.buffer, count, what.datatype), to.comm, member)?;
    let mut written = offer.written()?;
    let mut pause = Pause::new();
    while !written.is_done().ok()? {
        if patience == Patience::None {
            return None;
        }
        if pause.step() {
            waiting::progress(world);
        }
    }
    let size = offer.size();
    let content = Content::Device(Box::new(offer));
    let fits = |size| known.ends_at(size);
    let shared = world.post(content, None, (bytes, member, to.tag), 0, fits)?;
    gpu::note_offered(size);
    Some(shared)
}

/// `MPI_Send` and `MPI_Ssend`
///
/// # Safety
///
/// As the MPI standard says, for this and all functions below.
#[cold]
pub unsafe fn send(mode: Mode, what: Elements, to: Address) -> Option<c_int> {
    let send = || {
        let world = world()?;
        // Before any other send: messages do not overtake each other.
        gpu::start_delayed();
        let shared = post(world, what, to, Patience::Blocking)?;
        // SAFETY: the caller's promise.
        Some(unsafe { calls::send_posted(world, mode, &shared, to) })
    };
    caught(|| gpu::inside(send))
}

/// `MPI_Isend` and `MPI_Issend`
#[cold]
pub unsafe fn isend(
    mode: Mode,
    what: Elements,
    to: Address,
    request: *mut c_void,
) -> Option<c_int> {
    let send = || {
        let world = world()?;
        let shared = post(world, what, to, Patience::None)?;
        // SAFETY: the caller's promise.
        Some(unsafe { calls::isend_posted(world, mode, shared, to, (request, None)) })
    };
    caught(|| gpu::inside(send))
}

/// `MPI_Sendrecv`; what is received is elements, a source and a tag.
#[cold]
pub unsafe fn exchange<N: Count>(
    (sent, to): (Elements, Address),
    (mut buffer, mut count, mut datatype): (*mut c_void, N, Word),
    (source, tag): (c_int, c_int),
    status: *mut c_void,
) -> Option<c_int> {
    let begin = || {
        let world = world()?;
        let mut call = gpu::Call::new(Some(to.comm))?;
        gpu::start_delayed();
        let shared = post(world, sent, to, Patience::Blocking)?;
        call.does_attend();
        call.receives(&mut buffer, &mut count, &mut datatype);
        if call.failed().is_some() {
            lock(&shared).withdraw(world);
        }
        Some((world, call, shared))
    };
    let (world, call, shared) = caught(|| gpu::inside(begin))?;
    Some(call.block(status, |status| {
        // SAFETY: the caller's promise, or memory in the place of what was promised.
        let post = |request| unsafe {
            forward::irecv(buffer, count, datatype, source, tag, to.comm, request)
        };
        let received = Elements {
            buffer,
            count: count.number(),
            datatype,
        };
        // SAFETY: as above.
        let exchange = || unsafe {
            calls::exchange_posted(world, &shared, to, (received, source), status, &post)
        };
        caught(|| Some(exchange())).unwrap_or(world.abi.error)
    }))
}

/// Packs what receivers do not copy yet, before a call that lets no messages get on while it waits.
pub fn pack_all() {
    if let Some(world) = world() {
        world.endpoint.pack_all();
    }
}
