// SPDX-License-Identifier: MIT OR Apache-2.0

//! Short messages of derived types: packed here, moved by the MPI library as bytes, unpacked here.
//! Both libraries move bytes sooner than elements, which they pack themselves.
//!
//! Neither side needs the other for that: the packed bytes of elements are what both libraries send
//! for them (between processes of one machine, where numbers look the same), so each side may do so
//! alone.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libcopy::p2p::events::{Event, note};
use libcopy::p2p::header;
use libcopy::policy::governor::Decision;

use crate::comm::communicator;
use crate::comm::peers::Peers;
use crate::comm::processes::World;
use crate::decide::classes::Decided;
use crate::decide::price::packing_pays;
use crate::library::abi::Word;
use crate::library::pmpi;
use crate::library::status::{Room, Status};
use crate::messages::arguments::{Address, Elements, Kind, Mode, PLACES, leave};
use crate::messages::pack_memory::Memory;
use crate::messages::receiving::arrived;
use crate::messages::requests::Work;
use crate::messages::truncation::is_truncation;
use crate::messages::{lengths, requests};
use crate::types::datatype::{self, Prepared};
use crate::types::trial;

/// Elements whose layout is at hand.
#[derive(Debug, Default)]
struct Ready {
    kind: Kind,
    bytes: u64,
    /// `None` if they are not packed here.
    prepared: Option<Arc<Prepared>>,
    /// Messages until it is found out whether packing pays, for the first time or again. Until the
    /// first time the library packs.
    decided: Decided,
}

/// Messages before it is found out whether packing pays: not for types that are used once.
const TRIALS: u64 = 3;

/// Whether messages of a rank, or for it, stay on this machine.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    comm: Word,
    rank: c_int,
    generation: u64,
    is_here: bool,
}

/// What a thread needs for a message: to find all of it takes as long as a short message's bytes
/// do.
#[derive(Debug)]
struct ThreadState {
    /// All of it for what is sent, and for what is received.
    ready: [[Ready; PLACES]; 2],
    peer: [Peer; 2],
    memory: [Option<Memory>; 2],
}

/// A side of a message.
#[derive(Clone, Copy)]
enum Side {
    Sends,
    Receives,
}

thread_local! {
    /// `None` while a message is under way that began here.
    static THREAD_STATE: Cell<Option<Box<ThreadState>>> = const { Cell::new(None) };
}

/// Does `work` with what this thread has at hand. Within it, this thread's other messages, which
/// functions of the program's may send that the library calls, have another state.
fn with_thread_state<R>(work: impl FnOnce(&mut ThreadState) -> Option<R>) -> Option<R> {
    static NO_ROOM: AtomicBool = AtomicBool::new(false);
    let result = THREAD_STATE.try_with(|place| {
        let state = match place.take() {
            None if NO_ROOM.load(Ordering::Relaxed) => None,
            state => state.or_else(ThreadState::new),
        };
        let Some(mut state) = state else {
            NO_ROOM.store(true, Ordering::Relaxed);
            return None;
        };
        let result = work(&mut state);
        place.set(Some(state));
        result
    });
    // A thread that ends has no state any more.
    result.unwrap_or(None)
}

impl ThreadState {
    #[cold]
    fn new() -> Option<Box<ThreadState>> {
        Some(Box::new(ThreadState {
            ready: Default::default(),
            peer: Default::default(),
            memory: [Some(Memory::new()?), Some(Memory::new()?)],
        }))
    }

    /// The layout of elements that are packed here, their bytes, and room for these.
    fn lay_out(
        &mut self,
        world: &World,
        what: Elements,
        comm: Word,
        side: Side,
    ) -> Option<(&Prepared, u64, *mut u8)> {
        let kind = Kind::new(what.datatype, what.count?);
        let ready = &mut self.ready[side as usize][kind.place()];
        if ready.kind != kind {
            *ready = Ready::new(world, kind)?;
        }
        let memory = match &self.memory[side as usize] {
            Some(memory) => memory.0,
            None => self.memory[side as usize].insert(Memory::new()?).0,
        };
        let way = ready.decided.take();
        match way.unwrap_or_else(|| ready.find_out(world, memory, what, comm)) {
            Decision::Intercept => Some((ready.prepared.as_deref()?, ready.bytes, memory)),
            Decision::Forward => None,
        }
    }

    /// Whether a rank of a communicator is another process of this machine; for any source, whether
    /// all are.
    fn is_here(&mut self, world: &World, side: Side, rank: c_int, comm: Word) -> bool {
        let generation = communicator::generation(comm);
        let last = &self.peer[side as usize];
        if last.comm == comm && last.rank == rank && last.generation == generation {
            return last.is_here;
        }
        let is_here = communicator::of(world.abi, comm).is_ok_and(|known| {
            let peers = world.peers(&known, comm);
            if rank == world.abi.any_source {
                peers.are_all_here()
            } else {
                peers.of(rank).is_some()
            }
        });
        self.peer[side as usize] = Peer {
            comm,
            rank,
            generation,
            is_here,
        };
        is_here
    }
}

impl Ready {
    #[cold]
    fn new(world: &World, kind: Kind) -> Option<Ready> {
        let known = datatype::of(world.abi, kind.datatype)?;
        let prepare = || {
            let datatype = known.datatype.as_ref()?;
            let prepared = datatype::layout(datatype, kind.count as u64)?;
            (prepared.layout.segment_count() > 1).then_some(prepared)
        };
        let count = kind.count as u64;
        let bytes = known.size.saturating_mul(count);
        let packs = !known.dense
            && world
                .choice
                .packs(bytes, known.pieces.saturating_mul(count));
        let prepared = packs.then(prepare).flatten();
        if prepared.is_none() {
            leave(world, kind);
        }
        let decided = Decided::default();
        match (&prepared, world.choice.toll(bytes)) {
            (None, _) => decided.set(Decision::Forward, Decided::ALL),
            (Some(_), None) => decided.set(Decision::Intercept, Decided::ALL),
            (Some(_), Some(_)) => decided.set(Decision::Forward, TRIALS),
        }
        Some(Ready {
            kind,
            bytes,
            prepared,
            decided,
        })
    }

    /// Finds out whether packing pays, and when that is to be found out again; the way of this
    /// message.
    #[cold]
    fn find_out(&mut self, world: &World, memory: *mut u8, what: Elements, comm: Word) -> Decision {
        let prepared = self.prepared.as_ref();
        let again =
            prepared.and_then(|prepared| pays(world, prepared, self.bytes, memory, (what, comm)));
        let (way, messages) = match again {
            Some(messages) => (Decision::Intercept, messages),
            None => {
                self.prepared = None;
                leave(world, self.kind);
                (Decision::Forward, Decided::ALL)
            }
        };
        self.decided.set(way, messages - 1);
        way
    }
}

/// If packing elements here takes so much less than in the library that it pays, after how many
/// messages that is to be found out again: so that it takes at most 1 % of the time in which these
/// are packed. Those of a receive are packed to find out, too: what is in them does not matter.
#[cold]
fn pays(
    world: &World,
    prepared: &Prepared,
    bytes: u64,
    to: *mut u8,
    (what, comm): (Elements, Word),
) -> Option<u64> {
    /// How often elements are packed.
    const ROUNDS: u32 = 4;
    const SAMPLES: u32 = 3;
    let (Some(toll), Some(count)) = (world.choice.toll(bytes), what.count) else {
        return Some(Decided::ALL);
    };
    let count = c_int::try_from(count).ok()?;
    let pack = |count, datatype| {
        // SAFETY: the program's elements, of which it has sent or received such before; room for
        // more.
        unsafe { trial::pack(what.buffer, (count, datatype), (to, bytes), comm) }
    };
    let theirs = || pack(count, what.datatype);
    // A message does not pay for the call.
    let call = || pack(0, world.abi.byte);
    let ours = || {
        // SAFETY: as above.
        unsafe { prepared.layout.pack_raw(what.buffer.cast(), 0..bytes, to) };
        true
    };
    let shortest =
        |pack: &dyn Fn() -> bool| trial::shortest(SAMPLES, || (0..ROUNDS).all(|_| pack()));
    let (ours, theirs, call) = (shortest(&ours)?, shortest(&theirs)?, shortest(&call)?);
    packing_pays(SAMPLES.into(), ROUNDS.into(), (ours, theirs, call), toll)
}

/// Bytes in place of a message's elements, as arguments of the library's functions.
type Bytes = (*mut c_void, c_int);

/// Packs what is sent; `None` if that is not packed here.
///
/// # Safety
///
/// The elements are readable. The bytes are there until this state packs something else.
unsafe fn pack(
    state: &mut ThreadState,
    world: &World,
    what: Elements,
    to: Address,
) -> Option<Bytes> {
    if !state.is_here(world, Side::Sends, to.dest, to.comm) {
        return None;
    }
    let (prepared, number, at) = state.lay_out(world, what, to.comm, Side::Sends)?;
    // A length that names a slot has to be noticed.
    if lengths::is_special(number) {
        return None;
    }
    // SAFETY: the program's elements; room for their bytes.
    unsafe { prepared.layout.pack_raw(what.buffer.cast(), 0..number, at) };
    note(Event::Packed, 1);
    Some((at.cast(), number as c_int))
}

/// Receives bytes with `receive`, which is told where and writes a status, and unpacks them; `None`
/// if the elements are not unpacked here.
///
/// # Safety
///
/// The elements are writable; the status is, or it is ignored.
unsafe fn unpack(
    state: &mut ThreadState,
    world: &World,
    what: Elements,
    (source, comm): (c_int, Word),
    status: *mut c_void,
    receive: impl FnOnce(Bytes, *mut c_void) -> c_int,
) -> Option<c_int> {
    if !state.is_here(world, Side::Receives, source, comm) {
        return None;
    }
    let (prepared, capacity, at) = state.lay_out(world, what, comm, Side::Receives)?;
    let mut room = Room::new();
    let status = room.instead_of(status);
    let code = receive((at.cast(), capacity as c_int), status);
    if code != 0 {
        if is_truncation(world, code) && world.choice.delivers_beginnings() {
            // SAFETY: as many bytes came as there is room for; the program's elements.
            unsafe {
                prepared
                    .layout
                    .unpack_raw(at, 0..capacity, what.buffer.cast())
            };
        }
        Memory::tidy(at, capacity);
        // SAFETY: the caller's promise; a library that says so has written the status.
        return Some(unsafe { arrived(world, what, (source, comm), status, code) });
    }
    // SAFETY: the library wrote a status.
    let bytes = unsafe { Status::new(world.abi, status) }
        .bytes()
        .min(capacity);
    // SAFETY: this many bytes came; the program's elements.
    unsafe { prepared.layout.unpack_raw(at, 0..bytes, what.buffer.cast()) };
    if header::slot_of(bytes).is_none_or(|slot| world.is_unposted(slot)) {
        return Some(0);
    }
    // SAFETY: as above.
    Some(unsafe { arrived(world, what, (source, comm), status, code) })
}

/// `MPI_Send` and `MPI_Ssend`; `None` if the elements are not packed here.
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn send(world: &World, mode: Mode, what: Elements, to: Address) -> Option<c_int> {
    with_thread_state(|state| {
        // SAFETY: the caller's promise; the bytes stay until the library has sent them.
        unsafe {
            let (from, n) = pack(state, world, what, to)?;
            Some(mode.send((from.cast_const(), n, world.abi.byte), to))
        }
    })
}

/// `MPI_Isend` and `MPI_Issend`; `None` if the elements are not packed here.
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn isend(
    world: &World,
    mode: Mode,
    what: Elements,
    to: Address,
    request: *mut c_void,
) -> Option<c_int> {
    with_thread_state(|state| {
        // SAFETY: the caller's promise; the bytes stay until the library has sent them.
        let (code, is_over) = unsafe {
            let (from, n) = pack(state, world, what, to)?;
            let code = mode.isend((from.cast_const(), n, world.abi.byte), to, request);
            (code, code != 0 || is_complete(world, request))
        };
        if let Some(bytes) = state.memory[Side::Sends as usize].take_if(|_| !is_over) {
            let work = Work::Packed {
                _bytes: bytes,
                comm: to.comm,
            };
            requests::remember(world, request, work, false);
        }
        Some(code)
    })
}

/// Whether the library has completed a request already.
///
/// # Safety
///
/// It has made the request.
pub unsafe fn is_complete(world: &World, request: *const c_void) -> bool {
    let (mut flag, mut room) = (0, Room::new());
    // SAFETY: the caller's promise; writable outputs.
    let code = unsafe {
        let handle = world.abi.handle_at(request, 0);
        pmpi::request_get_status(handle, &mut flag, room.pointer())
    };
    code == 0 && flag != 0
}

/// `MPI_Recv` while nothing else is under way; `None` if the elements are not unpacked here.
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn receive(
    world: &World,
    what: Elements,
    (source, tag, comm): (c_int, c_int, Word),
    status: *mut c_void,
) -> Option<c_int> {
    let byte = world.abi.byte;
    let receive = |(to, n): Bytes, status| {
        // SAFETY: room for the bytes, and for a status.
        unsafe { pmpi::recv(to, n, byte, source, tag, comm, status) }
    };
    // SAFETY: the caller's promise.
    with_thread_state(|state| unsafe {
        unpack(state, world, what, (source, comm), status, receive)
    })
}

/// `MPI_Sendrecv` while nothing else is under way; `None` unless both sides are packed here.
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn exchange(
    world: &World,
    (send, to): (Elements, Address),
    (recv, source, recv_tag): (Elements, c_int, c_int),
    status: *mut c_void,
) -> Option<c_int> {
    with_thread_state(|state| {
        // Before anything is packed.
        state.lay_out(world, recv, to.comm, Side::Receives)?;
        if !state.is_here(world, Side::Receives, source, to.comm) {
            return None;
        }
        let byte = world.abi.byte;
        // SAFETY: the caller's promise.
        let (from, n) = unsafe { pack(state, world, send, to)? };
        let receive = |(at, room): Bytes, status| {
            let (dest, tag, comm) = (to.dest, to.tag, to.comm);
            let _unfetched = requests::Unfetched::new();
            // SAFETY: what is packed, room for the bytes, and for a status.
            unsafe {
                pmpi::sendrecv(
                    from, n, byte, dest, tag, at, room, byte, source, recv_tag, comm, status,
                )
            }
        };
        // SAFETY: the caller's promise.
        unsafe { unpack(state, world, recv, (source, to.comm), status, receive) }
    })
}

impl Peers {
    /// Whether messages may come from no other machine.
    fn are_all_here(&self) -> bool {
        matches!(self, Peers::Known { all: true, .. })
    }
}
