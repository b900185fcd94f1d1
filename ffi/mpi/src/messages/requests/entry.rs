// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is known of one request, and how it gets on.

use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use libcopy::lock::lock;
use libcopy::p2p::{self, Shared};

use crate::collectives::nonblocking::persistent::Running;
use crate::comm::processes::World;
use crate::library::abi::Word;
use crate::library::pmpi;
use crate::library::status::{Room, Status};
use crate::messages::error_handlers::{ErrorHandlers, quietly};
use crate::messages::governed::{Class, Watched};
use crate::messages::handle::Handle;
use crate::messages::incoming::{Arrival, Fetching, raise};
use crate::messages::pack_memory::Memory;
use crate::messages::sending::Plan;
use crate::messages::truncation::Failed;
use crate::messages::waiting;

/// What a request does.
pub enum Work {
    /// Receives what may be a header.
    Receive(Arrival),
    /// Sends a header on a communicator, with a request that has to be freed.
    Send(Shared, Word),
    /// Sends with every start, in a class of messages; the message that is under way, and the
    /// library's request for its header. The program's own request is not started then.
    Start(Plan, Option<&'static Class>, Option<(Shared, Word)>),
    /// Sends packed bytes on a communicator.
    Packed { _bytes: Memory, comm: Word },
    /// What a persistent collective has started; the library's own request is not started then.
    Collective(Box<Running>),
    /// Is the library's alone, on a communicator.
    Forwarded(Word),
}

/// A request that we know.
pub struct Entry {
    pub(super) state: Mutex<State>,
    pub(super) persistent: bool,
    /// Whether it sends with every start.
    pub(super) starts: bool,
    /// Whether it receives once.
    pub(super) is_receive: bool,
    /// Whether it receives, once or with every start, and the program may be elsewhere meanwhile.
    pub(super) receives: bool,
}

pub(super) struct State {
    pub(super) handle: Word,
    pub(super) work: Work,
    /// Started, if it is a persistent one.
    pub(super) active: bool,
    pub(super) ready: bool,
    /// What the library said when it was asked, its code and its status. MPICH 5.0 says it once of
    /// a persistent request, which is inactive afterwards.
    pub(super) seen: Option<(c_int, Room)>,
    /// Data that a device copies for a receive that the library has completed.
    pub(super) copied: Option<Copied>,
    /// Bytes that were received, where the library knows another number.
    pub(super) bytes: Option<u64>,
    pub(super) error: c_int,
    /// Nobody will ask for it any more.
    pub(super) orphan: bool,
    /// Completed, and out of the table.
    pub(super) gone: bool,
    /// As long as it is active, if it is part of a trial.
    pub(super) watched: Option<Watched>,
}

/// Copies of devices that are not known to be done.
static COPIED: AtomicUsize = AtomicUsize::new(0);

/// Whether a device copies data of a receive.
pub(super) fn is_any_copied() -> bool {
    COPIED.load(Ordering::Relaxed) != 0
}

/// Data of a receive, which a device may be copying.
pub(super) struct Copied(Fetching);

impl Copied {
    fn new(fetching: Fetching) -> Copied {
        COPIED.fetch_add(1, Ordering::Relaxed);
        Copied(fetching)
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        COPIED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The code for the program, whose error handler hears of an error of ours.
pub(super) fn reported(world: &World, comm: Option<Word>, error: c_int, code: c_int) -> c_int {
    if error == 0 {
        return code;
    }
    raise(comm.unwrap_or(world.abi.world), error)
}

/// Whether the library has completed a request, and with which code; its status is written. One
/// that was completed with an error is complete, too: the call that finishes it returns that error.
pub(super) fn completed(
    world: &World,
    (handle, handlers): (Word, ErrorHandlers),
    status: &mut Room,
) -> Option<c_int> {
    let mut flag = 0;
    let answer = quietly(world, handlers, || {
        // SAFETY: a request that is not freed; writable outputs.
        unsafe { pmpi::request_get_status(handle, &mut flag, status.pointer()) }
    });
    // What cannot be asked for, the completing function has to complain about.
    (answer != 0 || flag != 0).then_some(answer)
}

/// What the library does not know of a request that it has completed.
pub(super) struct End {
    /// See [`State::seen`].
    pub(super) seen: Option<(c_int, Room)>,
    pub(super) bytes: Option<u64>,
    pub(super) error: c_int,
}

impl End {
    /// Corrects a status that the library has written, with `code`, and that code.
    pub(super) fn correct(
        &mut self,
        world: &World,
        persistent: bool,
        status: Status,
        code: c_int,
    ) -> c_int {
        let mut code = code;
        if let Some((before, room)) = self.seen.as_mut().filter(|_| persistent) {
            // SAFETY: the library has written it.
            status.copy_all_but_error(unsafe { Status::new(world.abi, room.pointer()) });
            if code == 0 {
                code = *before;
            }
        }
        if let Some(bytes) = self.bytes {
            status.set_bytes(bytes);
        }
        code
    }

    /// Corrects the status of a request that was completed with `code`; an error that the library
    /// has not reported, or 0.
    pub(super) fn error_of(
        mut self,
        world: &World,
        entry: &Entry,
        status: Status,
        code: c_int,
    ) -> c_int {
        let seen = self.correct(world, entry.persistent, status, code);
        match self.error {
            // The library has reported it.
            _ if code != 0 => 0,
            0 => seen,
            error => error,
        }
    }
}

impl State {
    /// Of a request with this handle of which nothing has been found out yet; `active`: it is under
    /// way, unlike a persistent one that was made and not started.
    pub(super) fn new(handle: Word, work: Work, active: bool, watched: Option<Watched>) -> State {
        State {
            handle,
            work,
            active,
            ready: false,
            seen: None,
            copied: None,
            bytes: None,
            error: 0,
            orphan: false,
            gone: false,
            watched,
        }
    }

    /// Goes on with it; returns whether it is ready.
    pub(super) fn advance(&mut self, world: &World) -> bool {
        if self.ready || self.gone {
            return self.ready;
        }
        let mut room = Room::new();
        match &mut self.work {
            Work::Collective(running) => match running.advance(world.abi) {
                Some(code) => self.error = code,
                None => return false,
            },
            Work::Receive(arrival) => {
                if self.copied.is_none() {
                    let asked = (self.handle, arrival.handlers());
                    let Some(code) = completed(world, asked, &mut room) else {
                        return false;
                    };
                    // SAFETY: the status was written just now.
                    let status = unsafe { Status::new(world.abi, room.pointer()) };
                    self.arrive(world, status, code);
                    self.seen = Some((code, room));
                    // Asked for when others have been begun, too.
                    if self.copied.is_some() {
                        return false;
                    }
                }
                if !self.is_copied(world) {
                    return false;
                }
            }
            Work::Send(shared, _) => {
                if !is_sent(world, shared, self.handle) {
                    return false;
                }
                self.error = outcome(world, shared);
            }
            Work::Start(_, _, Some((shared, header))) => {
                if !is_sent(world, shared, *header) {
                    return false;
                }
                self.error = outcome(world, shared);
            }
            // Nothing of ours is under way.
            Work::Start(_, _, None) | Work::Packed { .. } | Work::Forwarded(_) => {
                let asked = (self.handle, ErrorHandlers::Alike);
                let Some(code) = completed(world, asked, &mut room) else {
                    return false;
                };
                self.seen = Some((code, room));
            }
        }
        self.ready = true;
        true
    }

    /// Moves the data of a receive that the library has completed with this status and code, or has
    /// a device begin to.
    fn arrive(&mut self, world: &World, status: Status, code: c_int) {
        let Work::Receive(arrival) = &self.work else {
            return;
        };
        match arrival.complete(world, status, code) {
            None => {}
            Some(Fetching::Over(result)) => self.fetched(result),
            Some(fetching) => self.copied = Some(Copied::new(fetching)),
        }
    }

    /// Moves the data of a receive that the library has completed with this status and code, and
    /// waits until it is there.
    pub(super) fn arrive_wholly(&mut self, world: &World, status: Status, code: c_int) {
        self.arrive(world, status, code);
        world.attend_until(|| self.is_copied(world).then_some(()));
    }

    /// Whether no device copies data any more; notes what became of them.
    fn is_copied(&mut self, world: &World) -> bool {
        let Some(copied) = &mut self.copied else {
            return true;
        };
        let Some(result) = copied.0.advance(world) else {
            return false;
        };
        self.copied = None;
        self.fetched(result);
        true
    }

    fn fetched(&mut self, result: Result<u64, Failed>) {
        match result {
            Ok(bytes) => self.bytes = Some(bytes),
            Err(failed) => (self.bytes, self.error) = (failed.bytes, failed.code),
        }
    }

    /// It is complete, but will be started again.
    pub(super) fn deactivate(&mut self) {
        self.active = false;
        self.watched = None;
    }

    /// What is left to do when the library's function has been called or is about to be.
    pub(super) fn end(&mut self, world: &World) -> End {
        if let Work::Start(_, _, current) = &mut self.work {
            if let Some((shared, header)) = current.take() {
                let mut room = Room::new();
                let mut request = Handle::new(world, header);
                // SAFETY: our own request, which is complete.
                unsafe { pmpi::wait(request.pointer(), room.pointer()) };
                drop(shared);
            }
        }
        self.deactivate();
        self.ready = false;
        End {
            seen: self.seen.take(),
            bytes: self.bytes.take(),
            error: std::mem::take(&mut self.error),
        }
    }

    pub(super) fn comm(&self) -> Option<Word> {
        match &self.work {
            Work::Receive(arrival) => Some(arrival.comm()),
            Work::Send(_, comm) | Work::Packed { comm, .. } | Work::Forwarded(comm) => Some(*comm),
            Work::Start(plan, ..) => Some(plan.comm()),
            // The communicator may be gone.
            Work::Collective(_) => None,
        }
    }
}

/// The code of a message that is complete.
pub(super) fn outcome(world: &World, shared: &Shared) -> c_int {
    waiting::outcome(world, &lock(shared)).err().unwrap_or(0)
}

/// Goes on with a message that is sent, and with the library's request for its header; returns
/// whether both are complete.
fn is_sent(world: &World, shared: &Shared, header: Word) -> bool {
    let is_over = push(world, shared);
    // What only its receiver can go on with waits for the header: the library may have that still.
    let is_asked = is_over || p2p::any_on_device();
    let header = (header, ErrorHandlers::Alike);
    is_asked && completed(world, header, &mut Room::new()).is_some() && is_over
}

/// Goes on with a message that is sent; returns whether the program may have its buffer back.
pub(super) fn push(world: &World, shared: &Shared) -> bool {
    let Ok(mut message) = shared.try_lock() else {
        return false;
    };
    message.attend(world, false) || message.is_impatient(world) && message.buffer(world)
}
