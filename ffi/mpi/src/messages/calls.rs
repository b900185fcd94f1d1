// SPDX-License-Identifier: MIT OR Apache-2.0

//! The functions that send and receive: which messages are taken, and what becomes of them. `None`
//! everywhere means that a call is passed on.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::incoming::{self, Arrival, When, raise};
use super::outgoing::{self, Pause, Shared, lock};
use super::packed::Kind;
use super::requests::{self, Handle, Work};
use super::status::{Room, Status};
use super::view::View;
use super::{World, header, packed, short};
use crate::abi::Word;
use crate::earned::{self, Use};
use crate::types::{self, Known};
use crate::{group, pmpi, uses};

/// Elements that are sent or received.
#[derive(Clone, Copy, Debug)]
pub struct Elements {
    /// Where they are.
    pub buffer: *mut c_void,
    /// How many; `None` if that is no number.
    pub count: Option<usize>,
    /// Of which type.
    pub datatype: Word,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// The rank.
    pub dest: c_int,
    /// The tag.
    pub tag: c_int,
    /// The communicator.
    pub comm: Word,
}

/// Whether a send completes when it is matched only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `MPI_Send`
    Standard,
    /// `MPI_Ssend`
    Synchronous,
}

/// A message that is to be taken.
struct Chosen {
    known: Arc<Known>,
    view: View,
    bytes: u64,
    /// To which process.
    member: usize,
}

impl Elements {
    /// Counts a use of their type; whether it has earned a layout. Those of another type are forwarded.
    #[inline]
    pub fn have_earned(self, world: &World, comm: Word) -> bool {
        let what = Use {
            buffer: self.buffer.cast_const(),
            count: self.count.unwrap_or(0),
            datatype: self.datatype,
            comm: Some(comm),
        };
        earned::by(world.abi, what)
    }
}

impl Chosen {
    /// Makes it known to its receiver.
    fn post(self, world: &World, owned: Option<Vec<u8>>, tag: c_int) -> Option<Shared> {
        let route = (self.bytes, self.member, tag);
        let fits = |size| self.known.ends_at(size);
        let committed = self.known.committed.load(Ordering::Relaxed);
        outgoing::post(world, self.view, owned, route, committed, fits)
    }
}

/// Whether a message is taken. Every message that is sent has to come through here: its length may
/// be one of those that name a slot.
#[inline]
fn choose(world: &World, what: Elements, to: Address) -> Option<Chosen> {
    let count = what.count?;
    if let Some(bytes) = types::quick_size(what.datatype, count) {
        if outgoing::is_passed(bytes) {
            return None;
        }
    }
    choose_slowly(world, what, count, to)
}

thread_local! {
    /// What this thread was last told to pass on, whoever gets it.
    static PASSED: Cell<Kind> = const { Cell::new(Kind::NONE) };
}

/// Whether so many elements were passed on last because of their type and their number.
#[inline]
pub fn were_passed(datatype: Word, count: usize) -> bool {
    PASSED.get() == Kind::new(datatype, count)
}

/// Whether elements of a type are passed on whoever gets them, unless their length is one that names a slot.
fn is_passed(world: &World, known: &Known, bytes: u64, count: usize) -> bool {
    if bytes < world.least[usize::from(!known.dense)] || known.datatype.is_none() {
        return true;
    }
    // Before anything that takes longer.
    match known.pieces.saturating_mul(count as u64) {
        _ if known.dense => false,
        // One piece is dense, wherever it is.
        0 | 1 => bytes < world.least[0],
        pieces => world.choice.is_fast(known, bytes, pieces),
    }
}

#[inline(never)]
fn choose_slowly(world: &World, what: Elements, count: usize, to: Address) -> Option<Chosen> {
    let kind = Kind::new(what.datatype, count);
    let known = types::of(world.abi, what.datatype)?;
    let bytes = known.size.checked_mul(count as u64)?;
    let special = header::slot_of(bytes);
    if special.is_none() && is_passed(world, &known, bytes, count) {
        // What is packed on its way to other processes has to be asked for again.
        if packed::are_left(what.datatype, count) {
            PASSED.set(kind);
            uses::decide(what.datatype & world.abi.handle, uses::PASSED, count);
        }
        return None;
    }
    let comm = group::of(world.abi, to.comm).ok()?;
    let member = world.peers(&comm, to.comm).of(to.dest)?;
    if let Some(slot) = special {
        outgoing::retire(world, slot);
        return None;
    }
    if to.tag < 0 || world.is_closed(member) {
        return None;
    }
    let view = View::new(&known, what.buffer, count)?;
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

/// A message of another mode, or of a type without a layout, is forwarded, but its length may be one that names a slot.
pub fn notice(world: &World, what: Elements, to: Address) {
    let Some(count) = what.count else {
        return;
    };
    if let Some(bytes) = types::quick_size(what.datatype, count) {
        if !outgoing::is_special(bytes) {
            return;
        }
    }
    let named = || {
        let bytes = types::size(what.datatype, count)?;
        let slot = header::slot_of(bytes).filter(|_| outgoing::is_special(bytes))?;
        let comm = group::of(world.abi, to.comm).ok()?;
        world.peers(&comm, to.comm).of(to.dest)?;
        Some(slot)
    };
    if let Some(slot) = named() {
        outgoing::retire(world, slot);
    }
}

/// How a header is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
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
unsafe fn send_header(
    world: &World,
    shared: &Shared,
    (mode, way): (Mode, Way),
    to: Address,
    request: *mut c_void,
) -> Result<(), c_int> {
    let (wire, len) = {
        let message = lock(shared);
        let wire = message.wire();
        (wire.as_ptr().cast(), wire.len() as c_int)
    };
    let (byte, dest, tag, comm) = (world.abi.byte, to.dest, to.tag, to.comm);
    // SAFETY: the caller's promise.
    let code = unsafe {
        match (way, mode) {
            (Way::Blocking, Mode::Standard) => pmpi::send(wire, len, byte, dest, tag, comm),
            (Way::Blocking, Mode::Synchronous) => pmpi::ssend(wire, len, byte, dest, tag, comm),
            (Way::Hidden, Mode::Standard) => pmpi::isend(wire, len, byte, dest, tag, comm, request),
            (Way::Hidden, Mode::Synchronous) => {
                pmpi::issend(wire, len, byte, dest, tag, comm, request)
            }
            // Libraries return one and the same request for all that they send at once; those that
            // are started by hand are different.
            (Way::Own, mode) => {
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

/// `MPI_Send` and `MPI_Ssend`
///
/// # Safety
///
/// As the MPI standard says, for this and all functions below.
pub unsafe fn send(world: &World, mode: Mode, what: Elements, to: Address) -> Option<c_int> {
    if !what.have_earned(world, to.comm) {
        notice(world, what, to);
        return None;
    }
    // SAFETY: the caller's promise.
    if let Some(code) = unsafe { packed::send(world, mode, what, to) } {
        return Some(code);
    }
    let shared = choose(world, what, to)?.post(world, None, to.tag)?;
    let mut request = Handle::new(world, world.abi.request_null);
    let way = match mode {
        Mode::Standard => Way::Blocking,
        Mode::Synchronous => Way::Hidden,
    };
    // SAFETY: the message lives until the header has been sent.
    let sent = unsafe { send_header(world, &shared, (mode, way), to, request.pointer()) };
    if let Err(code) = sent {
        return Some(code);
    }
    let waited = outgoing::wait(world, &shared);
    if mode == Mode::Synchronous {
        // SAFETY: our own request.
        unsafe { wait_for(world, &mut request) };
    }
    Some(match waited {
        Ok(()) => 0,
        Err(code) => raise(to.comm, code),
    })
}

/// Waits for a request of our own, letting everything else get on.
unsafe fn wait_for(world: &World, request: &mut Handle) {
    let (mut pause, mut flag) = (Pause::new(), 0);
    let mut room = Room::new();
    loop {
        // SAFETY: the caller's promise.
        let code = unsafe { pmpi::test(request.pointer(), &mut flag, room.pointer()) };
        if code != 0 || flag != 0 {
            return;
        }
        if pause.step() {
            outgoing::attend_all(world);
            requests::settle(world);
        }
    }
}

/// `MPI_Isend` and `MPI_Issend`
pub unsafe fn isend(
    world: &World,
    mode: Mode,
    what: Elements,
    to: Address,
    request: *mut c_void,
) -> Option<c_int> {
    if !what.have_earned(world, to.comm) {
        notice(world, what, to);
        return None;
    }
    // SAFETY: the caller's promise.
    if let Some(code) = unsafe { packed::isend(world, mode, what, to, request) } {
        return Some(code);
    }
    let shared = choose(world, what, to)?.post(world, None, to.tag)?;
    // SAFETY: the message lives until the request is complete.
    if let Err(code) = unsafe { send_header(world, &shared, (mode, Way::Own), to, request) } {
        return Some(code);
    }
    lock(&shared).attend(world, false);
    requests::remember(world, request, Work::Send(shared, to.comm), false);
    Some(0)
}

/// A persistent send: its arguments.
#[derive(Debug)]
pub struct Plan {
    mode: Mode,
    known: Arc<Known>,
    buffer: *mut c_void,
    count: usize,
    bytes: u64,
    member: usize,
    to: Address,
}

// SAFETY: the address is the program's, which lends it with every start.
unsafe impl Send for Plan {}

impl Plan {
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
        let Some(view) = View::new(&self.known, self.buffer, self.count) else {
            return Ok(None);
        };
        let chosen = Chosen {
            known: self.known.clone(),
            view,
            bytes: self.bytes,
            member: self.member,
        };
        let Some(shared) = chosen.post(world, None, self.to.tag) else {
            return Ok(None);
        };
        let mut request = Handle::new(world, world.abi.request_null);
        let how = (self.mode, Way::Hidden);
        // SAFETY: the message lives until the request is complete.
        unsafe { send_header(world, &shared, how, self.to, request.pointer())? };
        lock(&shared).attend(world, false);
        // SAFETY: the library wrote a handle.
        let handle = unsafe { world.abi.handle_at(request.pointer(), 0) };
        Ok(Some((shared, handle)))
    }
}

/// After `MPI_Send_init` or `MPI_Ssend_init`: has the messages taken that it will send.
pub unsafe fn send_init(
    world: &World,
    mode: Mode,
    what: Elements,
    to: Address,
    request: *const c_void,
) {
    let (Some(chosen), Some(count)) = (choose(world, what, to), what.count) else {
        return;
    };
    let plan = Plan {
        mode,
        known: chosen.known,
        buffer: what.buffer,
        count,
        bytes: chosen.bytes,
        member: chosen.member,
        to,
    };
    requests::remember(world, request, Work::Start(plan, None), true);
}

fn arrival(
    world: &World,
    what: Elements,
    (source, comm): (c_int, Word),
    (least, when): (u64, When),
) -> Option<Arrival> {
    // Below zero are MPI_PROC_NULL and, with another number, MPI_ANY_SOURCE.
    if source < 0 && source != world.abi.any_source {
        return None;
    }
    Arrival::new(
        world,
        (what.buffer, what.count, what.datatype),
        comm,
        (least, when),
    )
}

/// After `MPI_Irecv` and its relatives: a header may arrive there. What is shorter than any message that
/// is taken is only noted: a longer one for it is an error of the program's.
pub fn expect(
    world: &World,
    what: Elements,
    (source, comm): (c_int, Word),
    request: *const c_void,
    persistent: bool,
) {
    let is_short = |bytes: u64| outgoing::is_short(bytes) && header::may_arrive(bytes);
    let quick = what
        .count
        .and_then(|count| types::quick_size(what.datatype, count));
    if let Some(bytes) = quick.filter(|bytes| outgoing::is_short(*bytes)) {
        if is_short(bytes) {
            short::note(world, source, comm, request);
        }
        return;
    }
    let least = world.least[0].min(world.least[1]);
    let when = if persistent { When::Often } else { When::Later };
    if let Some(arrival) = arrival(world, what, (source, comm), (least, when)) {
        requests::remember(world, request, Work::Receive(arrival), persistent);
        return;
    }
    let size = || types::size(what.datatype, what.count?);
    if size().is_some_and(is_short) {
        short::note(world, source, comm, request);
    }
}

/// `MPI_Recv` and its relatives: `receive` is the library's function, which is given a status;
/// `post` the one that returns a request, if there is one.
pub unsafe fn receive(
    world: &World,
    what: Elements,
    (source, comm): (c_int, Word),
    status: *mut c_void,
    receive: impl FnOnce(*mut c_void) -> c_int,
    post: Option<&dyn Fn(*mut c_void) -> c_int>,
) -> c_int {
    // While this waits, others must get on.
    if let Some(post) = post.filter(|_| outgoing::any() || requests::any()) {
        let Some(arrival) = arrival(world, what, (source, comm), (0, When::Waiting)) else {
            let code = receive(status);
            if code != 0 {
                incoming::give_back(world, (what.buffer, what.count, what.datatype));
            }
            return code;
        };
        let mut request = Handle::new(world, world.abi.request_null);
        let code = post(request.pointer());
        if code != 0 {
            return code;
        }
        requests::remember(world, request.pointer(), Work::Receive(arrival), false);
        // SAFETY: our own request.
        return unsafe { requests::wait_own(world, request.pointer(), status, comm) };
    }
    let mut room = Room::new();
    let at = room.instead_of(status);
    let code = receive(at);
    // SAFETY: the library wrote a status, or failed.
    unsafe { arrived(world, what, (source, comm), at, code) }
}

/// After `MPI_Recv` or a relative with this code: what has come may be a header.
///
/// # Safety
///
/// The library wrote the status if it did not fail; the elements are writable.
pub unsafe fn arrived(
    world: &World,
    what: Elements,
    (source, comm): (c_int, Word),
    status: *mut c_void,
    code: c_int,
) -> c_int {
    if code != 0 {
        incoming::give_back(world, (what.buffer, what.count, what.datatype));
        return code;
    }
    if source < 0 && source != world.abi.any_source {
        return 0;
    }
    // SAFETY: the library wrote a status.
    let status = unsafe { Status::new(world.abi, status) };
    if header::slot_of(status.bytes()).is_none_or(|slot| world.is_unposted(slot)) {
        return 0;
    }
    let Some(arrival) = arrival(world, what, (source, comm), (0, When::Here)) else {
        return 0;
    };
    match arrival.conclude(world, status) {
        0 => 0,
        code => raise(arrival.comm(), code),
    }
}

/// `MPI_Sendrecv`: `both` is the library's function, `post` its `MPI_Irecv` with these arguments;
/// `has_earned` says whether the type that is sent has a layout.
pub unsafe fn exchange(
    world: &World,
    (send, to, has_earned): (Elements, Address, bool),
    (recv, source): (Elements, c_int),
    status: *mut c_void,
    both: impl FnOnce(*mut c_void) -> c_int,
    post: &dyn Fn(*mut c_void) -> c_int,
) -> c_int {
    let chosen = match has_earned {
        true => choose(world, send, to),
        false => {
            notice(world, send, to);
            None
        }
    };
    // SAFETY: the caller's promise.
    unsafe { exchange_chosen(world, chosen, None, to, (recv, source), status, both, post) }
}

/// `MPI_Sendrecv_replace`: what is sent is packed first.
pub unsafe fn replace(
    world: &World,
    (what, to): (Elements, Address),
    source: c_int,
    status: *mut c_void,
    both: impl FnOnce(*mut c_void) -> c_int,
    post: &dyn Fn(*mut c_void) -> c_int,
) -> c_int {
    let (mut chosen, mut owned) = (None, None);
    let this = match what.have_earned(world, to.comm) {
        true => choose(world, what, to),
        false => {
            notice(world, what, to);
            None
        }
    };
    if let Some(mut this) = this {
        let mut packed: Vec<u8> = Vec::with_capacity(this.bytes as usize);
        // SAFETY: the program's elements; room for all bytes.
        if unsafe { this.view.pack(0..this.bytes, packed.as_mut_ptr()) }.is_ok() {
            this.view = View::Dense(packed.as_mut_ptr());
            chosen = Some(this);
            owned = Some(packed);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { exchange_chosen(world, chosen, owned, to, (what, source), status, both, post) }
}

#[allow(clippy::too_many_arguments)]
unsafe fn exchange_chosen(
    world: &World,
    chosen: Option<Chosen>,
    owned: Option<Vec<u8>>,
    to: Address,
    (recv, source): (Elements, c_int),
    status: *mut c_void,
    both: impl FnOnce(*mut c_void) -> c_int,
    post: &dyn Fn(*mut c_void) -> c_int,
) -> c_int {
    let posted = chosen.and_then(|chosen| chosen.post(world, owned, to.tag));
    let Some(shared) = posted else {
        // SAFETY: the caller's promise.
        return unsafe { receive(world, recv, (source, to.comm), status, both, None) };
    };
    let mut request = Handle::new(world, world.abi.request_null);
    let code = post(request.pointer());
    if code != 0 {
        lock(&shared).withdraw(world);
        return code;
    }
    // Of any length: what came is looked at when it is here.
    let how = (0, When::Waiting);
    if let Some(arrival) = arrival(world, recv, (source, to.comm), how) {
        requests::remember(world, request.pointer(), Work::Receive(arrival), false);
    }
    let (how, none) = ((Mode::Standard, Way::Blocking), std::ptr::null_mut());
    // SAFETY: the message lives until the header has been sent.
    let sent = unsafe { send_header(world, &shared, how, to, none) };
    let sent = sent.and_then(|()| {
        let waited = outgoing::wait(world, &shared);
        waited.map_err(|code| raise(to.comm, code))
    });
    // SAFETY: our own request.
    let received = unsafe { requests::wait_own(world, request.pointer(), status, to.comm) };
    match sent {
        Ok(()) => received,
        Err(code) => code,
    }
}
