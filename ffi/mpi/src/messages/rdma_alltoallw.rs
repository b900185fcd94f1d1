// SPDX-License-Identifier: MIT OR Apache-2.0

//! `MPI_Alltoallw` and `MPI_Neighbor_alltoallw` between machines over RDMA.
//!
//! All parts are messages on a communicator of ours with the same ranks ([`remote::meet`]): those
//! that RDMA takes to another machine, like a message of the program's, and all others, those
//! inside a machine among them, through the MPI library. Whether a call is done so depends only on
//! its communicator, so that all ranks see it alike.

use std::ffi::{c_int, c_void};

use libcopy::p2p::Pause;

use crate::collectives::{irregular, neighbours};
use crate::comm::communicator::{self, Comm};
use crate::comm::processes::{World, world};
use crate::decide::active::{active, is_in_place};
use crate::library::abi::{Abi, Word};
use crate::library::buffers::{self, BufferW};
use crate::library::count::Count;
use crate::library::panics::guarded;
use crate::library::stats::{Function, Outcome};
use crate::library::status::Room;
use crate::library::{pmpi, stats};
use crate::messages::arguments::{Address, Elements, Mode};
use crate::messages::handle::Handle;
use crate::messages::incoming::{When, raise};
use crate::messages::receiving::arrival;
use crate::messages::remote::Sending;
use crate::messages::requests::Work;
use crate::messages::{remote, requests, waiting};
use crate::rdma::{Mode as Wanted, Patience, mode};

/// The tag of all parts: calls on one communicator come one after the other.
const TAG: c_int = 2;

/// Elements that go to a rank, or come from it.
#[derive(Clone, Copy, Debug)]
struct Part {
    rank: c_int,
    what: Elements,
}

/// The parts of a buffer, one for each of these ranks but `MPI_PROC_NULL`; `bytes` is what a place
/// means. `None` if there can be none.
///
/// # Safety
///
/// There are as many counts, places and types as ranks.
unsafe fn parts<N: Count, P: Copy>(
    abi: &Abi,
    buffer: BufferW<impl buffers::Address, N, P>,
    ranks: impl Iterator<Item = c_int>,
    bytes: impl Fn(P) -> isize,
) -> Option<Vec<Part>> {
    let part = |(i, rank)| {
        // SAFETY: the caller's promise.
        let (count, place, datatype) = unsafe {
            let count = buffer.counts.add(i).read().number()?;
            let place = bytes(buffer.places.add(i).read());
            (count, place, abi.handle_at(buffer.types, i))
        };
        Some(Part {
            rank,
            what: Elements {
                buffer: buffer.base.get().wrapping_byte_offset(place),
                count: Some(count),
                // Without elements, whatever the type is.
                datatype: if count == 0 { abi.byte } else { datatype },
            },
        })
    };
    let ranks = ranks.enumerate().filter(|(_, rank)| *rank >= 0);
    ranks.map(part).collect()
}

/// One of some messages that the MPI library receives or sends.
struct Transfer {
    request: Handle,
    is_complete: bool,
    /// What RDMA does with it.
    sending: Option<Sending>,
}

impl Transfer {
    fn new(world: &World) -> Transfer {
        Transfer {
            request: Handle::new(world, world.abi.request_null),
            is_complete: false,
            sending: None,
        }
    }

    /// Begins to receive a part.
    ///
    /// # Safety
    ///
    /// The elements are writable until the request is complete.
    unsafe fn receive(world: &World, part: Part, channel: Word) -> Result<Transfer, c_int> {
        let mut new = Transfer::new(world);
        let (what, at) = (part.what, new.request.pointer());
        let count = what.count.unwrap_or(0) as i64;
        // SAFETY: the caller's promise.
        let code = unsafe {
            pmpi::irecv(
                what.buffer,
                count,
                what.datatype,
                part.rank,
                TAG,
                channel,
                at,
            )
        };
        if code != 0 {
            return Err(code);
        }
        if let Some(arrival) = arrival(world, what, (part.rank, channel), (0, When::Waiting)) {
            requests::remember(world, at, Work::Receive(arrival), false);
        }
        Ok(new)
    }

    /// Begins to send one.
    ///
    /// # Safety
    ///
    /// The elements are readable until it is complete.
    unsafe fn send(world: &World, part: Part, channel: Word) -> Result<Transfer, c_int> {
        let mut new = Transfer::new(world);
        let to = Address {
            dest: part.rank,
            tag: TAG,
            comm: channel,
        };
        let at = new.request.pointer();
        // SAFETY: the caller's promise.
        unsafe {
            match remote::choose(world, part.what, to) {
                Some(chosen) => {
                    let chosen = chosen.hidden();
                    new.sending =
                        Some(chosen.start(world, Mode::Standard, Patience::Blocking, at)?);
                }
                None => match remote::forward_isend(Mode::Standard, part.what, to, at) {
                    0 => {}
                    code => return Err(code),
                },
            }
        }
        Ok(new)
    }

    /// Goes on with one that is sent; whether it is complete.
    fn advance(&mut self) -> Result<bool, c_int> {
        let moved = self.sending.as_mut().map_or(Some(Ok(())), Sending::advance);
        if !self.is_complete {
            let (mut flag, mut room) = (0, Room::new());
            // SAFETY: our own request, and writable outputs.
            match unsafe { pmpi::test(self.request.pointer(), &mut flag, room.pointer()) } {
                0 => self.is_complete = flag != 0,
                code => return Err(code),
            }
        }
        match moved {
            Some(Err(code)) => Err(code),
            moved => Ok(moved.is_some() && self.is_complete),
        }
    }
}

/// Sends and receives all parts; the first error code.
///
/// # Safety
///
/// The elements of `to` are readable, those of `from` writable.
unsafe fn exchange(world: &World, channel: Word, from: &[Part], to: &[Part]) -> c_int {
    let mut result = Ok(());
    // SAFETY: the caller's promise: this function returns when all transfers are complete, or
    // cannot be completed.
    let (receives, sends) = unsafe {
        let receives = from
            .iter()
            .map(|part| Transfer::receive(world, *part, channel));
        let receives: Vec<_> = receives.collect();
        let sends = to.iter().map(|part| Transfer::send(world, *part, channel));
        (receives, sends.collect::<Vec<_>>())
    };
    let mut pause = Pause::new();
    let mut sends: Vec<Transfer> = sends
        .into_iter()
        .filter_map(|sent| sent.map_err(|code| result = result.and(Err(code))).ok())
        .collect();
    while !sends.is_empty() {
        sends.retain_mut(|send| match send.advance() {
            Ok(is_over) => !is_over,
            Err(code) => {
                result = result.and(Err(code));
                false
            }
        });
        if pause.step() {
            waiting::progress(world);
        }
    }
    for received in receives {
        let received = received.map(|mut receive| {
            // SAFETY: our own request, and writable outputs.
            unsafe {
                let mut room = Room::new();
                requests::wait_own(world, receive.request.pointer(), room.pointer(), channel)
            }
        });
        result = result.and(match received {
            Ok(0) => Ok(()),
            Ok(code) | Err(code) => Err(code),
        });
    }
    result.err().unwrap_or(0)
}

/// A call over RDMA, if its communicator is one whose ranks can all be reached so. `sides` gives
/// what is received and what is sent.
///
/// # Safety
///
/// `sides` says where elements are that are writable or readable.
unsafe fn over_rdma(
    function: Function,
    comm: Word,
    sides: impl FnOnce(&'static Abi, &Comm) -> Option<(Vec<Part>, Vec<Part>)>,
) -> Option<c_int> {
    let abi = active()?;
    let known = communicator::of(abi, comm)
        .ok()
        .filter(|known| known.is_plain())?;
    let channel = match mode() {
        Wanted::All => remote::meet(abi, comm, &known)?,
        _ => known.rdma_channel.get().copied()??,
    };
    let world = world()?;
    let (from, to) = sides(abi, &known)?;
    stats::count(function, Outcome::Nodes, 0);
    // SAFETY: the caller's promise.
    let code = unsafe { exchange(world, channel, &from, &to) };
    Some(if code == 0 { 0 } else { raise(comm, code) })
}

/// What `over_rdma` gives; where that is nothing, what `inside` gives. If `over_rdma` panics, its
/// error is the answer: parts may have been sent.
fn unless_done(
    over_rdma: impl FnOnce() -> Option<c_int>,
    inside: impl FnOnce() -> Option<c_int>,
) -> Option<c_int> {
    let mut done = None;
    let code = guarded(|| {
        done = over_rdma();
        0
    });
    match code {
        0 => done.or_else(inside),
        code => Some(code),
    }
}

/// `MPI_Alltoallw`; its code, or `None` where the call is to be forwarded.
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn alltoallw<N: Count>(
    send: BufferW<*const c_void, N, N::Place>,
    recv: BufferW<*mut c_void, N, N::Place>,
    comm: Word,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let inside = || unsafe { irregular::alltoallw(send, recv, comm) };
    if !remote::is_joint() || is_in_place(send.base) || !send.is_there() || !recv.is_there() {
        return inside();
    }
    // SAFETY: the caller's promise: there is one of each per rank.
    let over_rdma = || unsafe {
        over_rdma(Function::Alltoallw, comm, |abi, known| {
            let ranks = 0..known.size as c_int;
            let from = parts(abi, recv, ranks.clone(), N::place)?;
            Some((from, parts(abi, send, ranks, N::place)?))
        })
    };
    unless_done(over_rdma, inside)
}

/// `MPI_Neighbor_alltoallw`, likewise.
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn neighbor_alltoallw<N: Count>(
    send: BufferW<*const c_void, N, isize>,
    recv: BufferW<*mut c_void, N, isize>,
    comm: Word,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let inside = || unsafe { neighbours::neighbor_alltoallw(send, recv, comm) };
    if !remote::is_joint() {
        return inside();
    }
    // SAFETY: the caller's promise: there is one of each per neighbour.
    let over_rdma = || unsafe {
        over_rdma(Function::NeighborAlltoallw, comm, |abi, known| {
            let neighbours = known.neighbours(abi, comm)?;
            let sources = neighbours.sources.iter().copied();
            let destinations = neighbours.destinations.iter().copied();
            let from = parts(abi, recv, sources, |place| place)?;
            Some((from, parts(abi, send, destinations, |place| place)?))
        })
    };
    unless_done(over_rdma, inside)
}
