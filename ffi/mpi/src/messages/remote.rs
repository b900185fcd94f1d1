// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages between machines over RDMA ([`crate::rdma`]): which they are, how they are sent, and what becomes of their
//! headers.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use libcopy::datatype::{Datatype, Layout, Named};
use libcopy::p2p::header::wire_size;
use libcopy::p2p::{Pause, View};

use super::arguments::{Address, Elements};
use super::status::Status;
use super::world::{World, has_threads, world};
use super::{lengths, view, waiting};
use crate::abi::{Abi, Word};
use crate::comm::{self, Comm};
use crate::count::Large;
use crate::errors::raise;
use crate::rdma::{self, Envelope, Mode, Own, Route};
use crate::{active, bootstrap, pmpi, progress, types};
use std::sync::atomic::Ordering::Relaxed;

/// Bytes from which on a message goes over RDMA: what is shorter, MPI libraries send at once.
const LEAST: u64 = 16 << 10;

/// Bytes of a header.
const HEADER: u64 = wire_size(rdma::SLOT) as u64;

/// Whether headers may come from other machines, now or once types are committed.
static POSSIBLE: AtomicBool = AtomicBool::new(false);

/// Whether they may.
#[inline]
pub fn is_possible() -> bool {
    POSSIBLE.load(Relaxed)
}

/// Whether the ranks of several machines have agreed to work together; the same on all of them.
fn spans_machines() -> bool {
    bootstrap::world().is_some_and(|world| world.everywhere && !world.is_whole())
}

/// After the ranks have agreed, on all of them.
pub fn start(abi: &'static Abi) {
    if !spans_machines() || rdma::mode() == Mode::Off {
        return;
    }
    POSSIBLE.store(world().is_some(), Ordering::Relaxed);
    if rdma::mode() == Mode::All {
        if let Ok(known) = comm::of(abi, abi.world) {
            meet(abi, abi.world, &known);
        }
    }
}

/// Has the processes of a communicator whose ranks have all agreed find out who can be reached over RDMA. All of them
/// call this.
pub fn meet(abi: &'static Abi, comm: Word, known: &Comm) {
    if !spans_machines() || known.has_met_over_rdma.swap(true, Relaxed) {
        return;
    }
    // Where several threads call, nobody could say in which order messages were sent.
    let world = world().filter(|world| !has_threads(world));
    let own = world.map(|world| Own {
        rank: world.agreed.ranks[world.me],
        machine: world.agreed.ranks[0],
        least: world.least[0].min(world.least[1]),
    });
    if let Some(world) = world {
        // Before a header may come.
        lengths::reserve(world, rdma::SLOT);
    }
    rdma::meet(abi, comm, known, own);
}

/// The rank in `MPI_COMM_WORLD` of a communicator's rank, if that is one that RDMA reaches, and what its messages with
/// a tag are called.
fn envelope(
    abi: &Abi,
    known: &Comm,
    comm: Word,
    (rank, tag): (c_int, c_int),
) -> Option<(c_int, Envelope)> {
    let all = known.world_ranks(abi, comm)?;
    let rank = *all.ranks.get(usize::try_from(rank).ok()?)?;
    rdma::reaches(rank)?;
    let group = all.hash;
    Some((rank, Envelope { tag, group }))
}

fn route(abi: &Abi, to: Address) -> Option<Route> {
    let known = comm::of(abi, to.comm).ok()?;
    let (rank, envelope) = envelope(abi, &known, to.comm, (to.dest, to.tag))?;
    Some(Route {
        rank,
        envelope,
        comm: to.comm,
    })
}

/// Before a message of the program's own leaves that is as long as a header. Whether that is all there is to do.
pub fn is_own(world: &World, slot: usize, to: Address) -> bool {
    if slot != rdma::SLOT || !rdma::is_on() {
        return false;
    }
    if let Some(route) = route(world.abi, to) {
        rdma::notice_own(&route);
    }
    true
}

/// Elements as RDMA has them; dense ones have `bytes`.
fn elements(view: &View, bytes: u64) -> Option<rdma::Elements> {
    match view {
        View::Dense(base) if base.is_null() => None,
        View::Dense(base) => Some(rdma::Elements {
            layout: Layout::new(&Datatype::named(Named::Uint8), bytes).ok()?,
            base: *base as u64,
        }),
        View::Typed(described, base) => Some(rdma::Elements {
            layout: described.layout.clone(),
            base: *base as u64,
        }),
        View::Opaque(_) => None,
    }
}

/// A message that is to go over RDMA.
pub struct Chosen {
    route: Route,
    elements: rdma::Elements,
    what: Elements,
    to: Address,
}

/// Whether a message goes over RDMA.
#[inline]
pub fn choose(world: &World, what: Elements, to: Address) -> Option<Chosen> {
    if rdma::is_on() {
        choose_slowly(world, what, to)
    } else {
        None
    }
}

#[cold]
fn choose_slowly(world: &World, what: Elements, to: Address) -> Option<Chosen> {
    let count = what.count?;
    let known = types::of(world.abi, what.datatype)?;
    let bytes = known.size.checked_mul(count as u64)?;
    let is_wanted = match rdma::mode() {
        Mode::Off => false,
        Mode::Commit => known.committed.load(Relaxed) != 0,
        Mode::All => !known.dense && known.pieces.saturating_mul(count as u64) > 1,
    };
    if !is_wanted || to.tag < 0 || bytes > i32::MAX as u64 || !known.ends_at(HEADER) {
        return None;
    }
    let route = route(world.abi, to)?;
    let least = active::least().unwrap_or(LEAST).max(HEADER + 1);
    if bytes < least.max(rdma::reaches(route.rank)?) {
        return None;
    }
    let elements = elements(&view::new(&known, what.buffer, count)?, bytes)?;
    Some(Chosen {
        route,
        elements,
        what,
        to,
    })
}

impl Chosen {
    /// Sends it and waits until the program may have its buffer back; what goes another way is sent by the library.
    ///
    /// # Safety
    ///
    /// As the MPI standard says of `MPI_Send`.
    pub unsafe fn send(self, world: &World) -> c_int {
        let (dest, tag, comm) = (self.to.dest, self.to.tag, self.to.comm);
        let Some(mut message) = rdma::Send::begin(&self.route, self.elements) else {
            let what = self.what;
            let from = what.buffer.cast_const();
            let count: Large = what.count.unwrap_or(0) as i64;
            // SAFETY: the caller's promise.
            return unsafe { pmpi::send(from, count, what.datatype, dest, tag, comm) };
        };
        let header = message.header();
        let (from, len) = (header.as_ptr().cast::<c_void>(), header.len() as c_int);
        // SAFETY: the header stays until it is sent.
        let code = unsafe { pmpi::send(from, len, world.abi.byte, dest, tag, comm) };
        if code != 0 {
            return code;
        }
        let mut pause = Pause::new();
        loop {
            match message.advance() {
                Some(Ok(())) => return 0,
                Some(Err(code)) => return raise(comm, code),
                None => {}
            }
            if pause.step() {
                waiting::progress(world);
            }
        }
    }
}

/// The rank in `MPI_COMM_WORLD` that a message of a header's length came from, if RDMA reaches it.
pub fn sender(
    world: &World,
    slot: usize,
    known: &Comm,
    comm: Word,
    source: c_int,
) -> Option<c_int> {
    if slot != rdma::SLOT || !rdma::is_on() {
        return None;
    }
    let (rank, _) = envelope(world.abi, known, comm, (source, 0))?;
    Some(rank)
}

/// Receives the message of a header that the library has delivered into elements of `capacity` bytes, and gives its
/// bytes or an error code; `None` if that is none.
pub fn receive(
    world: &World,
    rank: c_int,
    view: &View,
    capacity: u64,
) -> Option<Result<u64, c_int>> {
    let read = |bytes: &mut [u8; rdma::BYTES]| {
        let len = bytes.len() as u64;
        // SAFETY: `view` describes `capacity` bytes, and no more than those are packed.
        capacity >= len && unsafe { view.pack(0..len, bytes.as_mut_ptr()) }.is_ok()
    };
    let header = rdma::header_of(rank, read)?;
    let total = header.total;
    if total > capacity {
        rdma::Receive::begin(rank, &header, None);
        return Some(Err(world.abi.truncate));
    }
    // What only the library can unpack is received as bytes.
    let mut bytes: Vec<u8> = match view {
        View::Opaque(_) => vec![0; total as usize],
        _ => Vec::new(),
    };
    let to = match view {
        View::Opaque(_) => elements(&View::Dense(bytes.as_mut_ptr()), total),
        View::Dense(_) => elements(view, total),
        View::Typed(..) => elements(view, capacity),
    };
    let mut message = rdma::Receive::begin(rank, &header, to)?;
    let mut pause = Pause::new();
    let result = loop {
        if let Some(result) = message.advance() {
            break result;
        }
        if pause.step() {
            world.attend_all();
            progress::library(world.abi);
        }
    };
    let result = result.and_then(|()| match view {
        // SAFETY: all bytes have come.
        View::Opaque(_) => unsafe { view.unpack(bytes.as_ptr(), 0..total) },
        _ => Ok(()),
    });
    Some(result.map(|()| total))
}

/// How long the message is that a probe has found, if that is a header of another machine's.
pub fn true_length(world: &World, slot: usize, comm: Word, status: Status) -> Option<u64> {
    if slot != rdma::SLOT || !rdma::is_on() {
        return None;
    }
    let known = comm::of(world.abi, comm).ok()?;
    let from = (status.source(), status.tag());
    let (rank, envelope) = envelope(world.abi, &known, comm, from)?;
    rdma::true_length(rank, envelope)
}
