// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which messages are intercepted, and how their headers are sent.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libcopy::p2p::{Shared, View, header};

use crate::comm::communicator;
use crate::comm::processes::World;
use crate::decide::worth;
use crate::gpu;
use crate::library::abi::Word;
use crate::library::panics::caught_or_none;
use crate::library::per_thread::per_thread;
use crate::library::pmpi;
use crate::messages::arguments::{Address, Elements, Kind, Mode, are_left};
use crate::messages::handle::Handle;
use crate::messages::offering::{Candidate, Patience};
use crate::messages::{lengths, remote, view};
use crate::types::datatype::{self, Known};
use libcopy::lock::lock;

/// A message that is to be intercepted.
pub struct Chosen {
    pub known: Arc<Known>,
    pub view: View,
    pub bytes: u64,
    /// To which process.
    pub member: usize,
}

impl Chosen {
    /// Makes it known to its receiver.
    pub fn post(self, world: &World, owned: Option<Vec<u8>>, tag: c_int) -> Option<Shared> {
        let route = (self.bytes, self.member, tag);
        let fits = |size| self.known.ends_at(size);
        let committed = self.known.committed.load(Ordering::Relaxed);
        // SAFETY: the program has lent its buffer to the send, which is complete when the message
        // is; what is `owned` the message keeps.
        unsafe { world.post(self.view.into(), owned, route, committed, fits) }
    }
}

/// Whether a message is intercepted. Every message that is sent has to come through here: its
/// length may be one of those that name a slot.
#[inline]
pub fn choose(world: &World, what: Elements, to: Address) -> Option<Chosen> {
    let count = what.count?;
    if let Some(bytes) = datatype::quick_size(what.datatype, count) {
        if lengths::is_passed(bytes) {
            return None;
        }
    }
    choose_slowly(world, what, count, to)
}

per_thread!(
    /// What this thread was last told to pass on, to whichever rank.
    static PASSED: Cell<Kind> = Cell::new(Kind::NONE)
);

/// Whether `count` elements were forwarded last because of their type and their number.
#[inline]
pub fn were_passed(datatype: Word, count: usize) -> bool {
    PASSED.with(Cell::get) == Kind::new(datatype, count)
}

/// Whether elements of a type are forwarded to whichever rank they go, unless their length is one
/// that names a slot.
fn is_passed(world: &World, known: &Known, bytes: u64, count: usize) -> bool {
    if bytes < world.least[usize::from(!known.dense)]
        || known.datatype.is_none()
        || known.loses_bytes()
    {
        return true;
    }
    // Before anything that takes longer.
    match known.pieces.saturating_mul(count as u64) {
        _ if known.dense => false,
        // One piece is dense, wherever it is.
        0 | 1 => bytes < world.least[0],
        pieces => world.choice.is_fast(known.is_regular, bytes, pieces),
    }
}

#[inline(never)]
fn choose_slowly(world: &World, what: Elements, count: usize, to: Address) -> Option<Chosen> {
    let kind = Kind::new(what.datatype, count);
    let known = datatype::of(world.abi, what.datatype)?;
    let bytes = known.size.checked_mul(count as u64)?;
    let special = header::slot_of(bytes);
    if special.is_none() && is_passed(world, &known, bytes, count) {
        // What is packed on its way to other processes, or goes over RDMA, has to be asked for
        // again.
        if are_left(what.datatype, count) && !remote::is_possible() {
            PASSED.set(kind);
            worth::decide(what.datatype & world.abi.handle, worth::PASSED, count);
        }
        return None;
    }
    if special.is_some_and(|slot| remote::is_own(world, slot, to)) {
        return None;
    }
    let comm = communicator::of(world.abi, to.comm).ok()?;
    let member = world.peers(&comm, to.comm).of(to.dest)?;
    if let Some(slot) = special {
        lengths::retire(world, slot);
        return None;
    }
    if to.tag < 0 || world.is_closed(member) {
        return None;
    }
    let view = view::new(&known, what.buffer, count)?;
    match &view {
        // What turned out dense is not worth as much; and no memory is at address zero.
        View::Dense(base) if base.is_null() || bytes < world.least[0] => return None,
        _ => {}
    }
    Some(Chosen {
        known,
        view,
        bytes,
        member,
    })
}

/// A message of another mode, or of a type without a layout, is forwarded, but its length may be
/// one that names a slot.
pub fn notice(world: &World, what: Elements, to: Address) {
    let Some(count) = what.count else {
        return;
    };
    if let Some(bytes) = datatype::quick_size(what.datatype, count) {
        if !lengths::is_special(bytes) {
            return;
        }
    }
    let named = || {
        let bytes = datatype::size(what.datatype, count)?;
        let slot = header::slot_of(bytes).filter(|_| lengths::is_special(bytes))?;
        if remote::is_own(world, slot, to) {
            return None;
        }
        let comm = communicator::of(world.abi, to.comm).ok()?;
        world.peers(&comm, to.comm).of(to.dest)?;
        Some(slot)
    };
    if let Some(slot) = named() {
        lengths::retire(world, slot);
    }
}

/// How a header is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendMode {
    /// At once.
    Blocking,
    /// With a request that nobody else sees: several of these may be the same.
    Hidden,
    /// With a request of its own, which the program gets, and which has to be freed.
    Own,
}

/// Sends a header in place of a message.
///
/// # Safety
///
/// The header stays where it is until the library has sent it.
pub unsafe fn send_header(
    world: &World,
    shared: &Shared,
    (mode, way): (Mode, SendMode),
    to: Address,
    request: *mut c_void,
) -> Result<(), c_int> {
    let wire = {
        let message = lock(shared);
        let wire = message.wire();
        (wire.as_ptr().cast(), wire.len() as c_int, world.abi.byte)
    };
    // SAFETY: the caller's promise.
    let code = unsafe {
        match way {
            SendMode::Blocking => mode.send(wire, to),
            SendMode::Hidden => mode.isend(wire, to, request),
            // Libraries return one and the same request for all that they send at once; those that
            // are started by hand are different.
            SendMode::Own => {
                let ((wire, len, byte), Address { dest, tag, comm }) = (wire, to);
                let made = match mode {
                    Mode::Standard => pmpi::send_init(wire, len, byte, dest, tag, comm, request),
                    Mode::Synchronous => {
                        pmpi::ssend_init(wire, len, byte, dest, tag, comm, request)
                    }
                };
                let started = match made {
                    0 => pmpi::start(request),
                    code => code,
                };
                if made == 0 && started != 0 {
                    pmpi::request_free(request);
                }
                started
            }
        }
    };
    if code != 0 {
        lock(shared).withdraw(world);
        return Err(code);
    }
    Ok(())
}

/// A persistent send.
#[derive(Debug)]
pub struct Plan {
    pub mode: Mode,
    pub to: Address,
    /// Elements in host memory; `None` if the library sends them.
    pub planned: Option<Planned>,
    /// What the program sends, if that is in device memory and may be offered to its receiver.
    pub device: Option<Candidate>,
    /// Whether the program has freed the communicator: then the library's own request is started,
    /// which has it still.
    freed: Arc<AtomicBool>,
}

/// Elements of a persistent send that is intercepted.
#[derive(Debug)]
pub struct Planned {
    pub known: Arc<Known>,
    pub buffer: *mut c_void,
    pub count: usize,
    pub bytes: u64,
    pub member: usize,
}

// SAFETY: the address is the program's, which lends it with every start.
unsafe impl Send for Planned {}

impl Plan {
    /// One that sends nothing yet.
    pub fn new(world: &World, mode: Mode, to: Address) -> Plan {
        let comm = communicator::of(world.abi, to.comm);
        let unknown = || Arc::new(AtomicBool::new(true));
        Plan {
            mode,
            to,
            planned: None,
            device: None,
            freed: comm.map_or_else(|_| unknown(), |comm| comm.freed.clone()),
        }
    }

    /// Whether headers can be sent on the communicator.
    fn has_comm(&self) -> bool {
        !self.freed.load(Ordering::Relaxed)
    }

    /// The communicator.
    pub fn comm(&self) -> Word {
        self.to.comm
    }

    /// Starts a message with the library's request for its header; `None` if the program's own
    /// request has to be started.
    ///
    /// # Safety
    ///
    /// The elements are readable until the message is complete.
    pub unsafe fn start(&self, world: &World) -> Result<Option<(Shared, Word)>, c_int> {
        let planned = self.planned.as_ref().filter(|_| self.has_comm());
        let chosen = planned.and_then(|planned| {
            Some(Chosen {
                known: planned.known.clone(),
                view: view::new(&planned.known, planned.buffer, planned.count)?,
                bytes: planned.bytes,
                member: planned.member,
            })
        });
        let posted = chosen.and_then(|chosen| chosen.post(world, None, self.to.tag));
        // SAFETY: the caller's promise.
        let send = |shared| unsafe { self.send(world, shared) };
        posted.map(send).transpose()
    }

    /// Starts a message of what is in device memory, if its receiver may copy it; otherwise `None`,
    /// and the host memory in its place has it.
    ///
    /// # Safety
    ///
    /// As above; `handle` is that of the program's request.
    pub unsafe fn start_on_device(
        &self,
        world: &World,
        handle: Word,
    ) -> Result<Option<(Shared, Word)>, c_int> {
        let Some(device) = &self.device else {
            return Ok(None);
        };
        let offer = |receiver| gpu::offer_started(handle, receiver);
        let post = || {
            self.has_comm()
                .then(|| device.post(world, Patience::Start, offer))?
        };
        match caught_or_none(|| gpu::inside(post)) {
            // SAFETY: the caller's promise.
            Some(shared) => unsafe { self.send(world, shared) }.map(Some),
            None => gpu::pack_started(handle).map(|()| None),
        }
    }

    /// Sends the header of a message whose slot says what it is; the message, and the library's
    /// request for its header.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe fn send(&self, world: &World, shared: Shared) -> Result<(Shared, Word), c_int> {
        let mut request = Handle::new(world, world.abi.request_null);
        let how = (self.mode, SendMode::Hidden);
        // SAFETY: the message lives until the request is complete.
        unsafe { send_header(world, &shared, how, self.to, request.pointer())? };
        lock(&shared).attend(world, false);
        // SAFETY: the library wrote a handle.
        let handle = unsafe { world.abi.handle_at(request.pointer(), 0) };
        Ok((shared, handle))
    }
}
