// SPDX-License-Identifier: MIT OR Apache-2.0

//! The functions that send and receive: which messages are intercepted, and what becomes of them.
//! `None` everywhere means that a call is forwarded.

use std::ffi::{c_int, c_void};

use libcopy::p2p::{self, Pause, Shared, View};
use libcopy::policy::governor::Decision;

use crate::comm::processes::World;
use crate::decide::threshold;
use crate::gpu;
use crate::library::abi::Word;
use crate::library::pmpi;
use crate::library::status::{Room, Status, is_ignored};
use crate::messages::arguments::{Address, Elements, Mode};
use crate::messages::governed::{Function, Watched};
use crate::messages::handle::Handle;
use crate::messages::incoming::{Arrival, When, raise};
use crate::messages::probes::Matched;
use crate::messages::receiving::{arrival, arrived};
use crate::messages::requests::Work;
use crate::messages::sending::{Chosen, Plan, Planned, SendMode, choose, notice, send_header};
use crate::messages::{governed, lengths, packed, remote, requests, short_receives, waiting};
use crate::types::datatype;
use libcopy::lock::lock;

/// `MPI_Send` and `MPI_Ssend`
///
/// # Safety
///
/// As the MPI standard says, for this and all functions below.
pub unsafe fn send(world: &World, mode: Mode, what: Elements, to: Address) -> Option<c_int> {
    if let Some(chosen) = remote::choose(world, what, to) {
        // SAFETY: the caller's promise.
        return Some(unsafe { chosen.send(world, mode) });
    }
    let function = match mode {
        Mode::Standard => Function::Send,
        Mode::Synchronous => Function::Ssend,
    };
    if governed::is_forwarded(what, function, to) {
        return None;
    }
    if !what.have_earned(world, to.comm) {
        notice(world, what, to);
        return None;
    }
    // SAFETY: the caller's promise.
    if let Some(code) = unsafe { packed::send(world, mode, what, to) } {
        return Some(code);
    }
    let (chosen, _watched) = governed::sift(world, choose(world, what, to), what, function, to);
    let shared = chosen?.post(world, None, to.tag)?;
    // SAFETY: the caller's promise.
    Some(unsafe { send_posted(world, mode, &shared, to) })
}

/// The rest of [`send`], for a message whose slot says what it is.
pub unsafe fn send_posted(world: &World, mode: Mode, shared: &Shared, to: Address) -> c_int {
    let mut request = Handle::new(world, world.abi.request_null);
    let way = match mode {
        Mode::Standard => SendMode::Blocking,
        Mode::Synchronous => SendMode::Hidden,
    };
    // SAFETY: the message lives until the header has been sent.
    let sent = unsafe { send_header(world, shared, (mode, way), to, request.pointer()) };
    if let Err(code) = sent {
        return code;
    }
    let waited = waiting::wait(world, shared);
    if mode == Mode::Synchronous {
        // SAFETY: our own request.
        unsafe { wait_for(world, &mut request) };
    }
    match waited {
        Ok(()) => 0,
        Err(code) => raise(to.comm, code),
    }
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
            world.attend_all();
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
    if let Some(chosen) = remote::choose(world, what, to) {
        // SAFETY: the caller's promise.
        return Some(unsafe { chosen.isend(world, mode, request) });
    }
    let function = match mode {
        Mode::Standard => Function::Isend,
        Mode::Synchronous => Function::Issend,
    };
    if governed::is_forwarded(what, function, to) {
        return None;
    }
    if !what.have_earned(world, to.comm) {
        notice(world, what, to);
        return None;
    }
    // SAFETY: the caller's promise.
    if let Some(code) = unsafe { packed::isend(world, mode, what, to, request) } {
        return Some(code);
    }
    let chosen = choose(world, what, to)?;
    let watched = match governed::decide(world, &chosen, what, function, to) {
        (Decision::Intercept, watched) => watched,
        (Decision::Forward, None) => return None,
        (Decision::Forward, Some(watched)) => {
            // SAFETY: the caller's promise.
            return unsafe { isend_watched(world, mode, what, to, request, watched) };
        }
    };
    let shared = chosen.post(world, None, to.tag)?;
    // SAFETY: the caller's promise.
    Some(unsafe { isend_posted(world, mode, shared, to, (request, watched)) })
}

/// The rest of [`isend`], for a message whose slot says what it is.
pub unsafe fn isend_posted(
    world: &World,
    mode: Mode,
    shared: Shared,
    to: Address,
    (request, watched): (*mut c_void, Option<Watched>),
) -> c_int {
    // SAFETY: the message lives until the request is complete.
    if let Err(code) = unsafe { send_header(world, &shared, (mode, SendMode::Own), to, request) } {
        return code;
    }
    lock(&shared).attend(world, false);
    let work = Work::Send(shared, to.comm);
    requests::remember_watched(world, request, work, false, watched);
    0
}

/// Has the library send a message, and takes note of when it is complete; `None` if it has too many
/// elements for that.
///
/// # Safety
///
/// As the MPI standard says of `MPI_Isend` and `MPI_Issend`.
unsafe fn isend_watched(
    world: &World,
    mode: Mode,
    what: Elements,
    to: Address,
    request: *mut c_void,
    watched: Watched,
) -> Option<c_int> {
    let count = c_int::try_from(what.count?).ok()?;
    // SAFETY: the caller's promise, and then a request that the library has made.
    unsafe {
        let code = mode.isend(
            (what.buffer.cast_const(), count, what.datatype),
            to,
            request,
        );
        // Several requests that are complete may have one and the same handle.
        if code == 0 && !packed::is_complete(world, request) {
            let work = Work::Forwarded(to.comm);
            requests::remember_watched(world, request, work, false, Some(watched));
        }
        Some(code)
    }
}

/// After `MPI_Send_init` or `MPI_Ssend_init`: has the messages intercepted that it will send.
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
    let class = governed::class_of(&chosen, what, Function::Start, to);
    let planned = Planned {
        known: chosen.known,
        buffer: what.buffer,
        count,
        bytes: chosen.bytes,
        member: chosen.member,
    };
    let mut plan = Plan::new(world, mode, to);
    plan.planned = Some(planned);
    requests::remember(world, request, Work::Start(plan, class, None), true);
}

/// After `MPI_Irecv` and its relatives: a header may arrive there. What is shorter than any message
/// that is intercepted is only noted: a longer one for it is an error of the program's.
pub fn expect(
    world: &World,
    what: Elements,
    (source, comm): (c_int, Word),
    request: *const c_void,
    persistent: bool,
) {
    let note = || {
        let generation = match threshold::size(what.datatype) {
            Some(_) => 0,
            None => datatype::generation(what.datatype),
        };
        let kept = (generation, persistent);
        short_receives::note(world, what, (source, comm), request, kept);
    };
    let quick = what
        .count
        .and_then(|count| datatype::quick_size(what.datatype, count));
    if quick.is_some_and(lengths::is_short) {
        return note();
    }
    let least = world.least[0].min(world.least[1]);
    let how = (least, When::of_request(persistent));
    if let Some(arrival) = arrival(world, what, (source, comm), how) {
        requests::remember(world, request, Work::Receive(arrival), persistent);
        return;
    }
    let size = || datatype::size(what.datatype, what.count?);
    if size().is_some_and(lengths::is_short) {
        note();
    }
}

/// After `MPI_Imrecv` of a message that a matched probe has found: a header may arrive there.
pub fn expect_matched(world: &World, what: Elements, found: Matched, request: *const c_void) {
    let arrival = found.header.and_then(|bytes| {
        let arrival = Arrival::of_any_length(world, what, found.comm, When::Later)?;
        Some(arrival.of_header(bytes))
    });
    let any = (world.abi.any_source, found.comm);
    match arrival {
        Some(arrival) => requests::remember(world, request, Work::Receive(arrival), false),
        None => expect(world, what, any, request, false),
    }
}

/// `MPI_Mrecv`: `receive` is the library's function, which is given a status.
pub unsafe fn receive_matched(
    world: &World,
    what: Elements,
    found: Matched,
    status: *mut c_void,
    pass: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    let Some(bytes) = found.header else {
        let any = (world.abi.any_source, found.comm);
        // SAFETY: the caller's promise.
        return unsafe { receive(world, what, any, status, pass, None) };
    };
    gpu::before_waiting();
    let mut room = Room::new();
    let at = room.instead_of(status);
    let code = pass(at);
    let Some(arrival) = Arrival::of_any_length(world, what, found.comm, When::Here) else {
        return code;
    };
    // SAFETY: the library wrote a status if it did not fail, or says that the message was too long.
    let status = unsafe { Status::new(world.abi, at) };
    match arrival.of_header(bytes).conclude(world, status, code) {
        0 => code,
        code => raise(found.comm, code),
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
    let arrival = |_: &_| arrival(world, what, (source, comm), (0, When::Waiting));
    let post = post.filter(|_| p2p::any() || requests::any());
    if let Some((post, arrival)) = post.and_then(|post| Some((post, arrival(post)?))) {
        let mut request = Handle::new(world, world.abi.request_null);
        let code = post(request.pointer());
        if code != 0 {
            return code;
        }
        requests::remember_own(world, request.pointer(), arrival);
        // SAFETY: our own request.
        return unsafe { requests::wait_own(world, request.pointer(), status, comm) };
    }
    gpu::before_waiting();
    let mut room = Room::new();
    let at = room.instead_of(status);
    let code = receive(at);
    // SAFETY: the library wrote a status, or failed.
    unsafe { arrived(world, what, (source, comm), at, code) }
}

/// The message that a function sends beside receiving, if it is intercepted; `has_earned` says
/// whether its type has a layout.
fn sifted(
    world: &World,
    (what, to, has_earned): (Elements, Address, bool),
    function: Function,
) -> (Option<Chosen>, Option<Watched>) {
    let chosen = if !has_earned {
        notice(world, what, to);
        None
    } else if governed::is_forwarded(what, function, to) {
        None
    } else {
        choose(world, what, to)
    };
    governed::sift(world, chosen, what, function, to)
}

/// Has a request of our own receive, with `post`.
fn posted(
    world: &World,
    what: Elements,
    from: (c_int, Word),
    post: &dyn Fn(*mut c_void) -> c_int,
) -> Result<Handle, c_int> {
    let mut request = Handle::new(world, world.abi.request_null);
    match post(request.pointer()) {
        0 => {}
        code => return Err(code),
    }
    // Of any length: what came is looked at when it is here.
    if let Some(arrival) = arrival(world, what, from, (0, When::Waiting)) {
        requests::remember_own(world, request.pointer(), arrival);
    }
    Ok(request)
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
    if let Some(chosen) = remote::choose(world, send, to) {
        let mut request = match posted(world, recv, (source, to.comm), post) {
            Ok(request) => request,
            Err(code) => return code,
        };
        // SAFETY: the caller's promise, and then our own request.
        return unsafe {
            let sent = chosen.send(world, Mode::Standard);
            let received = wait_received(world, request.pointer(), status, (source, to.comm));
            if sent == 0 { received } else { sent }
        };
    }
    let (chosen, _watched) = sifted(world, (send, to, has_earned), Function::Sendrecv);
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
    let has_earned = what.have_earned(world, to.comm);
    let (this, _watched) = sifted(world, (what, to, has_earned), Function::SendrecvReplace);
    if let Some(mut this) = this {
        let mut packed: Vec<u8> = Vec::new();
        let has_room = packed.try_reserve_exact(this.bytes as usize).is_ok();
        // SAFETY: the program's elements; room for all bytes.
        if has_room && unsafe { this.view.pack(0..this.bytes, packed.as_mut_ptr()) }.is_ok() {
            this.view = View::Dense(packed.as_mut_ptr());
            chosen = Some(this);
            owned = Some(packed);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { exchange_chosen(world, chosen, owned, to, (what, source), status, both, post) }
}

/// Waits for a request of our own that stands for the receiving half of a blocking call. From
/// `MPI_PROC_NULL` the status is that of a blocking receive: under MPICH 4.0 that of a request has
/// source 0 and tag 0.
///
/// # Safety
///
/// `request` is our own, `status` a status or an ignored one.
unsafe fn wait_received(
    world: &World,
    request: *mut c_void,
    status: *mut c_void,
    (source, comm): (c_int, Word),
) -> c_int {
    // SAFETY: the caller's promise.
    let code = unsafe { requests::wait_own(world, request, status, comm) };
    let abi = world.abi;
    // Below zero are MPI_PROC_NULL and, with another number, MPI_ANY_SOURCE.
    if code != 0 || source >= 0 || source == abi.any_source || is_ignored(status) {
        return code;
    }
    let none = std::ptr::null_mut();
    // SAFETY: nothing is received, and the status is the program's.
    unsafe { pmpi::recv(none, 0, abi.byte, source, abi.any_tag, comm, status) }
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
        let both = |status| {
            let _unfetched = requests::Unfetched::new();
            both(status)
        };
        // SAFETY: the caller's promise.
        return unsafe { receive(world, recv, (source, to.comm), status, both, None) };
    };
    // SAFETY: the caller's promise.
    unsafe { exchange_posted(world, &shared, to, (recv, source), status, post) }
}

/// The rest of [`exchange`], for a message whose slot says what it is.
pub unsafe fn exchange_posted(
    world: &World,
    shared: &Shared,
    to: Address,
    (recv, source): (Elements, c_int),
    status: *mut c_void,
    post: &dyn Fn(*mut c_void) -> c_int,
) -> c_int {
    let mut request = match posted(world, recv, (source, to.comm), post) {
        Ok(request) => request,
        Err(code) => {
            lock(shared).withdraw(world);
            return code;
        }
    };
    let (how, none) = ((Mode::Standard, SendMode::Blocking), std::ptr::null_mut());
    // SAFETY: the message lives until the header has been sent.
    let sent = unsafe { send_header(world, shared, how, to, none) };
    let sent = sent.and_then(|()| {
        let waited = waiting::wait(world, shared);
        waited.map_err(|code| raise(to.comm, code))
    });
    // SAFETY: our own request.
    let received = unsafe { wait_received(world, request.pointer(), status, (source, to.comm)) };
    match sent {
        Ok(()) => received,
        Err(code) => code,
    }
}
