// SPDX-License-Identifier: MIT OR Apache-2.0

//! Functions that send out of device memory, for the receiver to copy the elements there. `None`
//! everywhere means that a message goes another way, packed.

use std::ffi::{c_int, c_void};

use libcopy::p2p::Shared;

use crate::comm::processes::{World, world};
use crate::gpu;
use crate::library::abi::Word;
use crate::library::count::Count;
use crate::library::panics::{caught, caught_or_none};
use crate::library::pmpi::forward;
use crate::messages::arguments::{Address, Elements, Mode};
use crate::messages::offering::{Candidate, Patience};
use crate::messages::{requests, send};
use libcopy::lock::lock;

/// Offers a message to its receiver, as its slot says from now on.
fn post(world: &World, what: Elements, to: Address, patience: Patience) -> Option<Shared> {
    let elements = (what.buffer.cast_const(), what.count?, what.datatype);
    let candidate = Candidate::of(world, what, to)?;
    candidate.post(world, patience, |receiver| {
        gpu::offer(elements, to.comm, receiver)
    })
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
        Some(unsafe { send::send_posted(world, mode, &shared, to) })
    };
    caught_or_none(|| gpu::inside(send))
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
        Some(unsafe { send::isend_posted(world, mode, shared, to, (request, None)) })
    };
    caught_or_none(|| gpu::inside(send))
}

/// `MPI_Send_init` and its relatives, whose starts offer what is sent ([`Plan::start_on_device`]);
/// `make` makes the request, of what is in the place of the elements.
///
/// [`Plan::start_on_device`]: crate::messages::sending::Plan::start_on_device
#[cold]
pub unsafe fn send_init<N: Count>(
    mode: Mode,
    (mut buffer, mut count, mut datatype): (*mut c_void, N, Word),
    to: Address,
    request: *mut c_void,
    make: impl FnOnce(*mut c_void, N, Word) -> c_int,
) -> Option<c_int> {
    let begin = || {
        let world = world()?;
        let what = Elements {
            buffer,
            count: count.number(),
            datatype,
        };
        let candidate = Candidate::of(world, what, to)?;
        let mut call = gpu::Call::persistent(Some(to.comm))?;
        call.sends(&mut buffer, &mut count, &mut datatype);
        call.sent()?;
        call.offers = true;
        Some((world, call, candidate))
    };
    let (world, call, candidate) = caught_or_none(|| gpu::inside(begin))?;
    Some(call.begin(request, || {
        let code = make(buffer, count, datatype);
        if code == 0 {
            requests::offers(world, request, (mode, to), candidate);
        }
        code
    }))
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
        call.attends = true;
        call.receives(&mut buffer, &mut count, &mut datatype);
        if call.failed.is_some() {
            lock(&shared).withdraw(world);
        }
        Some((world, call, shared))
    };
    let (world, call, shared) = caught_or_none(|| gpu::inside(begin))?;
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
            send::exchange_posted(world, &shared, to, (received, source), status, &post)
        };
        caught(exchange).unwrap_or(world.abi.error)
    }))
}

/// Packs what receivers do not copy yet, before a call that lets no messages get on while it waits.
pub fn pack_all() {
    if let Some(world) = world() {
        world.endpoint.pack_all();
    }
}
