// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests with buffers in device memory: what they received is unpacked when they are complete,
//! and the host memory in the place of their buffers is kept until then.

use std::ffi::{c_int, c_void};
use std::mem::take;
use std::sync::Mutex;

use libcopy::lock::lock;

use crate::decide::active::active;
use crate::gpu::call::Call;
use crate::gpu::delayed::{Functions, OnRequest, Waiting};
use crate::gpu::elements::Started;
use crate::gpu::peer::Offer;
use crate::gpu::report::{Event, note};
use crate::gpu::{call, delayed, elements, peer, waiting_functions, watch};
use crate::library::abi::{Abi, Family, UNDEFINED, Word};
use crate::library::requests::{Completion, Role, Table, Which};
use crate::library::status::{Room, Status, is_ignored};

/// A request's buffers.
#[derive(Debug)]
struct Pending {
    call: Call,
    /// Whether it was started and not completed.
    is_active: bool,
    /// Whether what it received has been unpacked.
    is_unpacked: bool,
    /// The bytes of the message, where the library's status has those of what stood for it.
    fetched: Option<u64>,
    /// For a send that was started later: its request is a persistent one, of which the program
    /// knows nothing.
    delayed: Option<Functions>,
}

static TABLE: Table<Pending> = Table::new(Role::Device);

/// Whether any request is known.
#[inline(always)]
pub fn any() -> bool {
    Role::Device.exists()
}

impl Call {
    /// Calls a function that makes a request, which the buffers are remembered with.
    pub fn begin(self, request: *const c_void, function: impl FnOnce() -> c_int) -> c_int {
        if let Some(code) = self.failed {
            return self.raise(code);
        }
        if self.sends_now() {
            delayed::flush();
        }
        let code = self.go_on(function);
        if code == 0 && !self.is_empty() {
            remember(self, request, None);
        }
        code
    }

    /// Calls a function that sends and makes a request; or, if that takes longer than the call,
    /// starts to pack what is sent, and has `make` make a persistent request, which is started
    /// later.
    pub fn begin_later(
        self,
        request: *const c_void,
        functions: Functions,
        make: impl FnOnce() -> c_int,
        function: impl FnOnce() -> c_int,
    ) -> c_int {
        if let Some(code) = self.failed {
            return self.raise(code);
        }
        if self.is_empty() {
            return self.begin(request, function);
        }
        let started = self.start_pack().and_then(|mut packing| {
            let is_packed = delayed::are_done(&mut packing)?;
            if is_packed && !delayed::any() || !waiting_functions::is_possible() {
                elements::wait(&mut packing)?;
                return Ok(None);
            }
            Ok(Some(packing))
        });
        let packing = match started {
            Err(code) => return self.raise(code),
            Ok(None) => return self.begin(request, function),
            Ok(Some(packing)) => packing,
        };
        let code = self.go_on(make);
        if code != 0 {
            return code;
        }
        note(Event::Delayed, 1);
        let is_handed_over = self.is_handed_over();
        let handle = remember(self, request, Some(functions));
        delayed::push(Waiting {
            handle,
            packing,
            start: functions.start,
            is_handed_over,
        });
        0
    }
}

/// Remembers the buffers of a request that the library has just made; its handle.
fn remember(call: Call, request: *const c_void, delayed: Option<Functions>) -> Word {
    let abi = call.abi;
    // SAFETY: the library has written a handle there.
    let handle = unsafe { abi.handle_at(request, 0) } & abi.handle;
    put(
        handle,
        Pending {
            is_active: !call.is_persistent,
            is_unpacked: false,
            fetched: None,
            delayed,
            call,
        },
    );
    handle
}

fn put(handle: Word, pending: Pending) {
    // Requests that are complete when they are made may all have one handle: what was there is
    // complete.
    drop(TABLE.insert(handle, pending));
}

fn remove(handle: Word) -> Option<Pending> {
    any().then(|| TABLE.remove(handle)).flatten()
}

/// A request of an array that is known. It is out of the table before the library frees the handle
/// and another thread gets it.
struct Found {
    index: usize,
    handle: Word,
    pending: Pending,
}

impl Found {
    /// Those of an array.
    ///
    /// # Safety
    ///
    /// The array has `count` handles.
    unsafe fn all(abi: &Abi, count: c_int, requests: *const c_void) -> Vec<Found> {
        let count = usize::try_from(count).unwrap_or(0);
        if requests.is_null() || !any() {
            return Vec::new();
        }
        let of = |index| {
            // SAFETY: the caller's promise.
            let handle = unsafe { abi.handle_at(requests, index) } & abi.handle;
            let pending = remove(handle)?;
            Some(Found {
                index,
                handle,
                pending,
            })
        };
        (0..count).filter_map(of).collect()
    }

    fn put_back(self) {
        put(self.handle, self.pending);
    }

    /// After the library has completed it, with this status: starts to unpack what was received.
    /// `variable` is the program's.
    ///
    /// # Safety
    ///
    /// The variable is writable.
    unsafe fn start_conclude(mut self, status: Status, variable: *mut c_void) -> Concluding {
        // SAFETY: the caller's promise.
        let sent = unsafe { self.end_delayed(variable) };
        let unpacking = self.pending.start_unpack(status);
        Concluding {
            found: self,
            sent,
            unpacking,
        }
    }

    /// After it has failed; the library may have freed it, and has then written that to the
    /// variable.
    ///
    /// # Safety
    ///
    /// The variable is writable.
    unsafe fn fail(mut self, code: c_int, variable: *mut c_void) {
        // SAFETY: no status is read after a failure; the caller's promise.
        unsafe {
            self.pending.call.arrived(std::ptr::null_mut(), code);
            let _ = self.end_delayed(variable);
        }
        self.pending.is_active = false;
        if self.pending.call.is_persistent {
            self.put_back();
        }
    }

    /// Frees the persistent request of a send that was started later, so that the program finds
    /// `MPI_REQUEST_NULL`.
    ///
    /// # Errors
    ///
    /// Why it was not started.
    unsafe fn end_delayed(&mut self, variable: *mut c_void) -> Result<(), c_int> {
        let Some(functions) = self.pending.delayed.take() else {
            return Ok(());
        };
        let abi = self.pending.call.abi;
        let mut own: Word = 0;
        let at = (&raw mut own).cast();
        // SAFETY: a request of ours that is not active any more, in a variable with room for either
        // kind of handle; the caller's promise.
        unsafe {
            abi.set_handle(at, self.handle);
            watch::inside(|| (functions.free)(at));
            abi.set_handle(variable, abi.request_null);
        }
        match delayed::failure(self.handle) {
            Some(code) => Err(self.pending.call.raise(code)),
            None => Ok(()),
        }
    }
}

/// A request that is complete, and what is left to be done for it.
struct Concluding {
    found: Found,
    /// Why what it sends was not.
    sent: Result<(), c_int>,
    unpacking: Result<Vec<Started>, c_int>,
}

impl Concluding {
    /// Waits for what was received.
    fn wait(mut self) -> Result<(), c_int> {
        let pending = &mut self.found.pending;
        let unpacked = self.unpacking.and_then(|mut all| pending.wait(&mut all));
        pending.is_active = false;
        if pending.call.is_persistent {
            self.found.put_back();
        }
        self.sent.and(unpacked)
    }
}

impl Pending {
    /// Packs what is sent.
    fn pack(&self) -> Result<(), c_int> {
        self.call.pack().map_err(|code| self.call.raise(code))
    }

    /// Starts to unpack what was received, once.
    fn start_unpack(&mut self, status: Status) -> Result<Vec<Started>, c_int> {
        if !self.is_active || status.is_cancelled() {
            return Ok(Vec::new());
        }
        if std::mem::replace(&mut self.is_unpacked, true) {
            if let Some(bytes) = self.fetched {
                status.set_bytes(bytes);
            }
            return Ok(Vec::new());
        }
        let bytes = status.bytes();
        // SAFETY: a status that the library has written.
        match unsafe { self.call.arrived(status.pointer(), 0) } {
            0 => {}
            code => return Err(code),
        }
        self.fetched = Some(status.bytes()).filter(|fetched| *fetched != bytes);
        self.call
            .start_unpack(|| status.bytes())
            .map_err(|code| self.call.raise(code))
    }

    /// Waits until it is unpacked.
    fn wait(&self, all: &mut [Started]) -> Result<(), c_int> {
        elements::wait(all).map_err(|code| self.call.raise(code))
    }
}

/// A function that completes requests, with the function as it is without this; `None` if none of
/// them is known.
///
/// # Safety
///
/// As the MPI standard says, for this and all functions below.
#[cold]
pub unsafe fn complete(
    call: &Completion,
    inner: impl FnOnce(*mut c_void) -> c_int,
) -> Option<c_int> {
    if call.waits {
        wait_for_others();
    } else {
        get_on();
    }
    // SAFETY: the caller's promise.
    unsafe {
        let are_waiting = are_waiting(call.count, call.requests);
        let is_whole = matches!(call.which, Which::One | Which::All);
        if are_waiting && is_whole && !call.waits {
            call.say_none();
            return Some(0);
        }
        let several = Several::new(call)?;
        let code = inner(several.call.statuses);
        // The library takes those for requests that are not active.
        let are_inactive = match call.which {
            Which::Any => !call.waits && *call.index == UNDEFINED,
            Which::Some => *call.done == UNDEFINED,
            Which::One | Which::All => false,
        };
        if are_waiting && code == 0 && are_inactive {
            call.say_none();
        }
        Some(several.end(code))
    }
}

/// `MPI_Request_get_status`: what it says is complete has arrived.
#[cold]
pub unsafe fn get_status(
    request: Word,
    flag: *mut c_int,
    status: *mut c_void,
    inner: impl FnOnce(*mut c_void) -> c_int,
) -> Option<c_int> {
    get_on();
    let abi = active()?;
    if delayed::is_waiting(request & abi.handle) {
        // SAFETY: the caller's promise.
        unsafe { *flag = 0 };
        return Some(0);
    }
    let mut pending = remove(request & abi.handle)?;
    let mut room = Room::new();
    let at = room.instead_of(status);
    let code = inner(at);
    // SAFETY: the caller's promise; a status was written if the flag says so.
    let unpacked = unsafe {
        if code == 0 && *flag != 0 {
            let unpacking = pending.start_unpack(Status::new(abi, at));
            unpacking.and_then(|mut all| pending.wait(&mut all))
        } else {
            Ok(())
        }
    };
    put(request & abi.handle, pending);
    Some(unpacked.err().unwrap_or(code))
}

/// `MPI_Request_get_status` of the program's.
type GetStatus = unsafe extern "C-unwind" fn(Word, *mut c_int, *mut c_void) -> c_int;

/// `MPI_Request_get_status_any` and its relatives: what has arrived is unpacked afterwards.
#[cold]
pub unsafe fn ask(
    (count, requests): (c_int, *const c_void),
    get_status: GetStatus,
    inner: impl FnOnce() -> c_int,
) -> Option<c_int> {
    if !watch::is_outside() {
        return None;
    }
    wait_for_others();
    let code = watch::inside(inner);
    let Some(abi) = active().filter(|_| !requests.is_null()) else {
        return Some(code);
    };
    for index in 0..usize::try_from(count).unwrap_or(0) {
        let (mut flag, mut room) = (0, Room::new());
        // SAFETY: the caller's promise; writable outputs.
        unsafe {
            let handle = abi.handle_at(requests, index);
            if TABLE.read().contains_key(&(handle & abi.handle)) {
                get_status(handle, &mut flag, room.pointer());
            }
        }
    }
    Some(code)
}

/// Lets everything get on: starts sends whose bytes are packed, completes what the program has
/// freed.
pub fn get_on() {
    delayed::poll();
    settle_orphans();
}

/// Lets everything get on before this process waits for others, which may wait for what it sends.
pub fn wait_for_others() {
    delayed::flush();
    settle_orphans();
}

/// Whether any of these is a send that is not started.
///
/// # Safety
///
/// `requests` has `count` handles.
unsafe fn are_waiting(count: c_int, requests: *const c_void) -> bool {
    let Some(abi) = active().filter(|_| delayed::any() && !requests.is_null()) else {
        return false;
    };
    (0..usize::try_from(count).unwrap_or(0)).any(|index| {
        // SAFETY: the caller's promise.
        let handle = unsafe { abi.handle_at(requests, index) };
        delayed::is_waiting(handle & abi.handle)
    })
}

/// Requests of a call, and statuses that are there in any case.
struct Several {
    abi: &'static Abi,
    call: Completion,
    found: Vec<Found>,
    _rooms: Vec<Room>,
}

impl Several {
    /// Those that the library is to be asked about.
    ///
    /// # Safety
    ///
    /// As the MPI standard says of functions that complete requests.
    unsafe fn new(call: &Completion) -> Option<Several> {
        let abi = active()?;
        // SAFETY: the caller's promise.
        let found = unsafe { Found::all(abi, call.count, call.requests) };
        if found.is_empty() {
            return None;
        }
        let (mut call, mut rooms) = (*call, Vec::new());
        if is_ignored(call.statuses) {
            rooms.resize_with(call.count as usize, Room::new);
            call.statuses = rooms.as_mut_ptr().cast();
        }
        Some(Several {
            abi,
            call,
            found,
            _rooms: rooms,
        })
    }

    /// Ends the call, whose function has returned this code. All that was received is unpacked at
    /// the same time.
    ///
    /// # Safety
    ///
    /// The library has written what it says.
    unsafe fn end(self, code: c_int) -> c_int {
        let (abi, call) = (self.abi, self.call);
        let is_per_request = code == abi.in_status;
        let mut concluding = Vec::new();
        for found in self.found {
            // SAFETY: the caller's promise.
            let Some(place) = (unsafe { call.place_of(abi, code, found.index) }) else {
                found.put_back();
                continue;
            };
            let offset = found.index * abi.handle_size();
            let variable = call.requests.wrapping_byte_add(offset);
            // SAFETY: the caller's promise.
            let status = unsafe { Status::of_array(abi, call.statuses, place) };
            if code == 0 || is_per_request && status.error() == 0 {
                // SAFETY: the program's variable.
                concluding.push(unsafe { found.start_conclude(status, variable) });
            } else if is_per_request && status.error() == pending_error(abi) {
                found.put_back();
            } else {
                // SAFETY: the program's variable.
                unsafe { found.fail(code, variable) };
            }
        }
        let mut answer = code;
        for one in concluding {
            if let Err(failed) = one.wait() {
                answer = failed;
            }
        }
        answer
    }
}

/// `MPI_ERR_PENDING`, which says in a status that a request is not complete: next to
/// `MPI_ERR_IN_STATUS` in all libraries.
fn pending_error(abi: &Abi) -> c_int {
    match abi.family {
        Family::OpenMpi | Family::Mpich => abi.in_status + 1,
        Family::Standard => abi.in_status - 1,
    }
}

/// Before `MPI_Start` and `MPI_Startall`: packs what is sent, but for what may be offered to its
/// receiver when its turn has come.
#[cold]
pub unsafe fn before_start(count: c_int, requests: *const c_void) -> Result<(), c_int> {
    let Some(abi) = active().filter(|_| watch::is_outside()) else {
        return Ok(());
    };
    // One of them may be a send.
    delayed::flush();
    // SAFETY: the caller's promise.
    for mut found in unsafe { Found::all(abi, count, requests) } {
        let raised = if found.pending.call.offers {
            Ok(())
        } else {
            found.pending.pack()
        };
        found.pending.is_active = true;
        found.pending.is_unpacked = false;
        found.put_back();
        raised?;
    }
    Ok(())
}

/// What a persistent send that is being started offers to the process with the number `receiver`;
/// `None` as for [`peer::offer`], and if the request is not known.
#[cold]
pub fn offer_started(handle: Word, receiver: usize) -> Option<Offer> {
    let (elements, both) = {
        let table = TABLE.read();
        let call = &table.get(&handle)?.call;
        (call.sent()?.clone(), call.both())
    };
    peer::offer_those(both, elements.found_again(both.0)?, receiver)
}

/// Packs what a persistent send that is being started does not offer.
///
/// # Errors
///
/// An error code, which the error handler has heard of.
#[cold]
pub fn pack_started(handle: Word) -> Result<(), c_int> {
    let Some(pending) = remove(handle) else {
        return Ok(());
    };
    let packed = pending.pack();
    put(handle, pending);
    packed
}

/// `MPI_Test` of the program's.
type Test = unsafe extern "C-unwind" fn(*mut c_void, *mut c_int, *mut c_void) -> c_int;

/// A request that the program has freed and that is not complete.
struct Orphan {
    handle: Word,
    test: Test,
    /// Frees a persistent request, which completing it does not.
    free: Option<OnRequest>,
}

static ORPHANS: Mutex<Vec<Orphan>> = Mutex::new(Vec::new());

/// `MPI_Request_free`, which is local (MPI 4.1, section 3.7.3): the request goes on, and is
/// completed by later calls.
#[cold]
pub unsafe fn free(request: *mut c_void, test: Test, free: OnRequest) -> Option<c_int> {
    let abi = active()?;
    delayed::flush();
    // SAFETY: the caller's promise.
    unsafe {
        let found = Found::all(abi, 1, request).pop()?;
        let is_persistent = found.pending.call.is_persistent;
        if is_persistent && !found.pending.is_active {
            return Some(free(request));
        }
        let handle = found.handle;
        found.put_back();
        let free = is_persistent.then_some(free);
        lock(&ORPHANS).push(Orphan { handle, test, free });
        abi.set_handle(request, abi.request_null);
        Some(0)
    }
}

/// `MPI_Cancel`: a send has to be started before it can be cancelled.
#[cold]
pub fn before_cancel() -> Option<c_int> {
    delayed::flush();
    None
}

/// Completes what the program has freed and what is complete by now.
fn settle_orphans() {
    if !any() {
        return;
    }
    let Some(abi) = active() else {
        return;
    };
    let orphans = match ORPHANS.try_lock() {
        Ok(mut orphans) if !orphans.is_empty() => take(&mut *orphans),
        _ => return,
    };
    for orphan in orphans {
        let (mut variable, mut flag, mut room): (Word, _, _) = (0, 0, Room::new());
        let at = (&raw mut variable).cast();
        // SAFETY: a request that the program has left to us, in a variable of our own.
        let code = unsafe {
            abi.set_handle(at, orphan.handle);
            watch::inside(|| (orphan.test)(at, &mut flag, room.pointer()))
        };
        if code == 0 && flag == 0 {
            lock(&ORPHANS).push(orphan);
            continue;
        }
        if let Some(free) = orphan.free {
            remove(orphan.handle);
            // SAFETY: as above; it is not active any more.
            watch::inside(|| unsafe { free(at) });
        }
    }
}

/// Before the end of MPI: completes what the program has freed, of which nothing can be received
/// any more.
pub fn finish() {
    wait_for_others();
    lock(&ORPHANS).clear();
    TABLE.clear();
    call::free_types();
}
