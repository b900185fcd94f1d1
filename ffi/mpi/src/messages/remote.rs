// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages between machines over RDMA ([`crate::rdma`]): which they are, how they are sent, and
//! what becomes of their headers.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicBool;

use libcopy::datatype::{Datatype, Layout, Named};
use libcopy::p2p::header::{self, wire_size};
use libcopy::p2p::{Pause, View};
use libcopy::scratch::zeros;

use crate::comm::communicator::{self, Comm};
use crate::comm::processes::{World, world};
use crate::decide::environment;
use crate::library::abi::{Abi, Word};
use crate::library::count::Large;
use crate::library::errors::{no_room, raise};
use crate::library::status::{Room, Status};
use crate::library::threads;
use crate::library::{pmpi, progress};
use crate::messages::arguments::{Address, Elements, Mode};
use crate::messages::handle::Handle;
use crate::messages::truncation::Failed;
use crate::messages::{lengths, truncation, view, waiting};
use crate::rdma::{Envelope, Own, Patience, Route};
use crate::types::datatype;
use crate::{bootstrap, rdma};
use std::sync::atomic::Ordering::Relaxed;

/// Bytes from which on a message goes over RDMA: what is shorter, MPI libraries send at once.
const LEAST: u64 = 16 << 10;

/// Bytes of a header.
const HEADER: u64 = wire_size(rdma::SLOT) as u64;

/// The tag that probes do not ask for, of messages that the program does not know.
const HIDDEN_TAG: c_int = -1;

/// Whether a header of this slot is another machine's.
pub fn is_header(slot: usize) -> bool {
    slot == rdma::SLOT && rdma::is_on()
}

/// Which messages are to go over RDMA, as a number that all ranks have to have.
pub fn wanted() -> u8 {
    rdma::mode() as u8
}

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

/// Whether all ranks have agreed to work together, are on several machines, and want messages to go
/// over RDMA; the same on all of them.
static JOINT: AtomicBool = AtomicBool::new(false);

/// Whether collectives may have to be done over RDMA; the same on all ranks.
#[inline(always)]
pub fn is_joint() -> bool {
    JOINT.load(Relaxed)
}

/// Has nothing go to other machines past the MPI library, in a forked child.
pub fn forget() {
    JOINT.store(false, Relaxed);
    POSSIBLE.store(false, Relaxed);
    rdma::forget();
}

/// After the ranks have agreed, on all of them.
pub fn start(abi: &'static Abi) {
    if !spans_machines() || rdma::mode() == rdma::Mode::Off {
        return;
    }
    JOINT.store(true, Relaxed);
    // Where several threads call, nobody could say in which order messages were sent.
    if let Some(world) =
        world().filter(|world| !threads::are_several(world.abi) && !lengths::is_off())
    {
        // Before a header may come, and before the first message of the program's own that has its
        // length.
        lengths::reserve(world, rdma::SLOT);
        POSSIBLE.store(true, Relaxed);
    }
    if rdma::mode() == rdma::Mode::All {
        if let Ok(known) = communicator::of(abi, abi.world) {
            meet(abi, abi.world, &known);
        }
    }
}

/// Has the processes of a communicator whose ranks have all agreed find out who can be reached over
/// RDMA. All of them call this. A communicator of ours with the same ranks, if all of them can be;
/// the same on all of them.
pub fn meet(abi: &'static Abi, comm: Word, known: &Comm) -> Option<Word> {
    if !spans_machines() {
        return None;
    }
    let own = || {
        world().filter(|_| is_possible()).map(|world| Own {
            rank: world.agreed.ranks[world.me],
            machine: world.agreed.ranks[0],
            least: world.least[0].min(world.least[1]),
        })
    };
    let met = || rdma::meet(abi, comm, known, own());
    *known.rdma_channel.get_or_init(met)
}

/// The rank in `MPI_COMM_WORLD` of a communicator's rank, and what its messages with a tag are
/// called.
fn envelope(
    abi: &Abi,
    known: &Comm,
    comm: Word,
    (rank, tag): (c_int, c_int),
) -> Option<(c_int, Envelope)> {
    let all = known.world_ranks(abi, comm)?;
    let rank = *all.ranks.get(usize::try_from(rank).ok()?)?;
    let group = all.hash;
    Some((rank, Envelope { tag, group }))
}

fn route(abi: &Abi, to: Address) -> Option<Route> {
    let known = communicator::of(abi, to.comm).ok()?;
    let (rank, envelope) = envelope(abi, &known, to.comm, (to.dest, to.tag))?;
    Some(Route {
        rank,
        envelope,
        communicator: known.number,
    })
}

/// Before a message of the program's own leaves that is as long as a header. Whether that is all
/// there is to do.
pub fn is_own(world: &World, slot: usize, to: Address) -> bool {
    if slot != rdma::SLOT || !is_possible() {
        return false;
    }
    let is_here = |rank: &c_int| world.agreed.ranks.contains(rank);
    if let Some(route) = route(world.abi, to).filter(|route| !is_here(&route.rank)) {
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
    let known = datatype::of(world.abi, what.datatype)?;
    let bytes = known.size.checked_mul(count as u64)?;
    let is_wanted = match rdma::mode() {
        rdma::Mode::Off => false,
        rdma::Mode::Commit => known.committed.load(Relaxed) != 0,
        rdma::Mode::All => !known.dense && known.pieces.saturating_mul(count as u64) > 1,
    };
    let fits = known.ends_at(HEADER) && !known.loses_bytes();
    if !is_wanted || to.tag < 0 || bytes > i32::MAX as u64 || !fits {
        return None;
    }
    let route = route(world.abi, to)?;
    let least = environment::least().unwrap_or(LEAST).max(HEADER + 1);
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

/// Has the library send a message as it is.
///
/// # Safety
///
/// As the MPI standard says of `MPI_Isend` and `MPI_Issend`.
pub unsafe fn forward_isend(
    mode: Mode,
    what: Elements,
    to: Address,
    request: *mut c_void,
) -> c_int {
    let count: Large = what.count.unwrap_or(0) as i64;
    // SAFETY: the caller's promise.
    unsafe {
        mode.isend(
            (what.buffer.cast_const(), count, what.datatype),
            to,
            request,
        )
    }
}

/// A message whose header the library is sending.
pub struct Sending {
    /// `None` if the library sends the message itself.
    message: Option<rdma::Send>,
    /// `None` as long as the program needs its buffer.
    moved: Option<Result<(), c_int>>,
}

impl Sending {
    /// Whether the library sends a header, not the message itself.
    fn is_ours(&self) -> bool {
        self.message.is_some()
    }

    /// Nobody waits for the request of the header any more.
    fn leave(self, request: Word) {
        if let Some(message) = self.message {
            message.leave(request);
        }
    }

    /// Goes on; the result once the program may have its buffer back, as far as it is up to us.
    pub fn advance(&mut self) -> Option<Result<(), c_int>> {
        if let (None, Some(message)) = (self.moved, &mut self.message) {
            self.moved = message.advance();
        }
        self.moved
    }
}

impl Chosen {
    /// Has a probe for a message of the program's find no message of ours that has its tag.
    pub fn hidden(mut self) -> Chosen {
        self.route.envelope.tag = HIDDEN_TAG;
        self
    }

    /// Sends its header, or the message itself if that does not go over RDMA after all, with a
    /// request that may be complete before the message has moved.
    ///
    /// # Safety
    ///
    /// As the MPI standard says of `MPI_Isend` and `MPI_Issend`; the elements are readable until
    /// [`Sending::advance`] gives a result.
    pub unsafe fn start(
        self,
        world: &World,
        mode: Mode,
        patience: Patience,
        request: *mut c_void,
    ) -> Result<Sending, c_int> {
        let Some(message) = rdma::Send::begin(&self.route, self.elements, patience) else {
            // SAFETY: the caller's promise.
            return match unsafe { forward_isend(mode, self.what, self.to, request) } {
                0 => Ok(Sending {
                    message: None,
                    moved: Some(Ok(())),
                }),
                code => Err(code),
            };
        };
        let header = message.header();
        let what = Elements {
            buffer: header.as_ptr().cast_mut().cast(),
            count: Some(header.len()),
            datatype: world.abi.byte,
        };
        // SAFETY: the engine keeps the header until it is received.
        match unsafe { forward_isend(mode, what, self.to, request) } {
            0 => Ok(Sending {
                message: Some(message),
                moved: None,
            }),
            code => {
                message.withdraw();
                Err(code)
            }
        }
    }

    /// Sends it and waits until the program may have its buffer back.
    ///
    /// # Safety
    ///
    /// As the MPI standard says of `MPI_Send` and `MPI_Ssend`.
    pub unsafe fn send(self, world: &World, mode: Mode) -> c_int {
        let comm = self.to.comm;
        let mut request = Handle::new(world, world.abi.request_null);
        let at = request.pointer();
        // SAFETY: the caller's promise: this function does not return before.
        let mut sending = match unsafe { self.start(world, mode, Patience::Blocking, at) } {
            Ok(sending) => sending,
            Err(code) => return code,
        };
        // A message that was handed to the MPI library need not be matched, the header of a
        // synchronous one has to be.
        let (mut pause, mut flag) = (Pause::new(), 0);
        let mut status = Room::new();
        loop {
            let moved = sending.advance();
            if flag == 0 {
                // SAFETY: our own request, and writable outputs.
                let code = unsafe { pmpi::test(request.pointer(), &mut flag, status.pointer()) };
                if code != 0 {
                    return code;
                }
            }
            // The library may not get rid of the header before its receiver does something: MPICH
            // sends nothing behind a long message that is not received.
            let is_over = |result: Result<(), c_int>| {
                flag != 0 || sending.is_ours() && (mode == Mode::Standard || result.is_err())
            };
            if let Some(result) = moved.filter(|result| is_over(*result)) {
                if flag == 0 {
                    sending.leave(request.into_word());
                }
                return result.map_or_else(|code| raise(comm, code), |()| 0);
            }
            if pause.step() {
                waiting::progress(world);
            }
        }
    }

    /// Sends it, and returns when the receiver has got it or it is packed. `request` is complete
    /// when the header is sent, or received if the mode says so.
    ///
    /// A receiver that asks for the message is in this library until it has got it, so that it is
    /// no deadlock to wait for that; one that does not ask soon is not waited for.
    ///
    /// # Safety
    ///
    /// As the MPI standard says of `MPI_Isend` and `MPI_Issend`.
    pub unsafe fn isend(self, world: &World, mode: Mode, request: *mut c_void) -> c_int {
        let comm = self.to.comm;
        // SAFETY: the caller's promise.
        let mut sending = match unsafe { self.start(world, mode, Patience::Nonblocking, request) } {
            Ok(sending) => sending,
            Err(code) => return code,
        };
        let mut pause = Pause::new();
        loop {
            match sending.advance() {
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
    rdma::reaches(rank).map(|_| rank)
}

/// Receives the message of a header that the library has delivered into elements of `capacity`
/// bytes, or its beginning if it is longer, and gives its bytes, or why they are not here; `None`
/// if that is no header.
pub fn receive(
    world: &World,
    rank: c_int,
    view: &View,
    capacity: u64,
) -> Option<Result<u64, Failed>> {
    let read = |bytes: &mut [u8; rdma::BYTES]| {
        let len = bytes.len() as u64;
        // SAFETY: `view` describes `capacity` bytes, and no more than those are packed.
        capacity >= len && unsafe { view.pack(0..len, bytes.as_mut_ptr()) }.is_ok()
    };
    let header = rdma::header_of(rank, read)?;
    let total = header.total;
    let is_cut = total > capacity;
    // What only the library can unpack is received as bytes, and what is too long.
    let is_indirect = is_cut || matches!(view, View::Opaque(_));
    let mut bytes: Vec<u8> = Vec::new();
    if is_indirect {
        bytes = match zeros(total as usize) {
            Ok(room) => room,
            Err(error) => {
                rdma::refuse(rank, &header);
                return Some(Err(no_room(error).into()));
            }
        };
    }
    let to = match view {
        _ if is_indirect => elements(&View::Dense(bytes.as_mut_ptr()), total),
        View::Typed(..) => elements(view, capacity),
        _ => elements(view, total),
    };
    let Some(to) = to else {
        rdma::refuse(rank, &header);
        return Some(Err(world.abi.error.into()));
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
    let result = result.and_then(|()| {
        if !is_indirect {
            return Ok(());
        }
        // SAFETY: all bytes have come; the elements have room for these.
        unsafe { view.unpack(bytes.as_ptr(), 0..total.min(capacity)) }
    });
    Some(match result {
        Ok(()) if is_cut => Err(truncation::failed(world, true, total, capacity)),
        Ok(()) => Ok(total),
        Err(code) => Err(code.into()),
    })
}

/// Who has sent a message that was found with these bytes, and its envelope, if that may be a
/// header of a process that RDMA reaches. What has been received and has not been looked at is
/// looked at before: it has left the library's queue.
fn found(world: &World, comm: Word, (bytes, status): (u64, Status)) -> Option<(c_int, Envelope)> {
    if header::slot_of(bytes) != Some(rdma::SLOT) || !rdma::is_on() {
        return None;
    }
    let known = communicator::of(world.abi, comm).ok()?;
    let from = (status.source(), status.tag());
    let found = envelope(world.abi, &known, comm, from)?;
    rdma::reaches(found.0)?;
    world.settle();
    Some(found)
}

/// How long the message is that a probe has found, if that is a header of another machine's.
pub fn true_length(world: &World, comm: Word, status: Status) -> Option<u64> {
    let (rank, envelope) = found(world, comm, (status.bytes(), status))?;
    rdma::true_length(rank, envelope)
}

/// A matched probe has found a header with these bytes: the next probe finds another message.
pub fn matched(world: &World, comm: Word, header: (u64, Status)) {
    if let Some((rank, envelope)) = found(world, comm, header) {
        rdma::matched(rank, envelope);
    }
}

/// Whether what was received with this status, where there was less room than for any message that
/// is intercepted, is a header of another machine's. Its sender learns that the message is
/// truncated.
pub fn cut_short(world: &World, comm: Word, status: Status) -> bool {
    found(world, comm, (status.bytes(), status))
        .is_some_and(|(rank, envelope)| rdma::refuse_oldest(rank, envelope))
}

/// The library could not receive all that came into these elements: the same, if that was a header
/// and they have room for what it says.
pub fn give_back(view: &View, capacity: u64) {
    if !rdma::is_on() || capacity < rdma::BYTES as u64 {
        return;
    }
    let mut bytes = [0; rdma::BYTES];
    // SAFETY: the elements have these bytes.
    if unsafe { view.pack(0..bytes.len() as u64, bytes.as_mut_ptr()) }.is_ok() {
        rdma::refuse_cut(&bytes);
    }
}
