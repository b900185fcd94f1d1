// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests that may turn out to stand for more than the MPI library knows, and the functions that
//! complete requests.
//!
//! A request that we know is *ready* when the library has completed it and its data have moved. Only
//! then the library's own function is called, which returns at once, frees the handle and writes
//! the status.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use libcopy::p2p::{self, Pause, Shared};

use super::governed::{Class, Watched};
use super::handle::Handle;
use super::incoming::{Arrival, raise};
use super::pack_memory::Memory;
use super::probes;
use super::sending::Plan;
use super::status::{Room, Status, is_ignored};
use super::waiting;
use super::world::{self, World};
use crate::abi::{UNDEFINED, Word};
use crate::fallback::{self, Look};
use crate::pmpi;
use libcopy::lock::lock;
use libcopy::policy::governor::Decision;

/// What a request does.
pub enum Work {
    /// Receives what may be a header.
    Receive(Arrival),
    /// Sends a header on a communicator, with a request that has to be freed.
    Send(Shared, Word),
    /// Sends with every start, in a class of messages; the message that is under way, and the library's request for its
    /// header. The program's own request is not started then.
    Start(Plan, Option<&'static Class>, Option<(Shared, Word)>),
    /// Sends packed bytes on a communicator.
    Packed { _bytes: Memory, comm: Word },
    /// Is the library's alone, on a communicator.
    Forwarded(Word),
}

/// A request that we know.
pub struct Entry {
    state: Mutex<State>,
    persistent: bool,
    /// Whether it sends with every start.
    starts: bool,
    /// Whether it receives once.
    is_receive: bool,
}

struct State {
    handle: Word,
    work: Work,
    /// Started, if it is a persistent one.
    active: bool,
    ready: bool,
    /// What the library said when it was asked, its code and its status. MPICH 5.0 says it once of a
    /// persistent request, which is inactive afterwards.
    seen: Option<(c_int, Room)>,
    /// Bytes that were received, where the library knows another number.
    bytes: Option<u64>,
    error: c_int,
    /// Nobody will ask for it any more.
    orphan: bool,
    /// Completed, and out of the table.
    gone: bool,
    /// As long as it is active, if it is part of a trial.
    watched: Option<Watched>,
}

/// Spreads handles, which are addresses or small numbers.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }
}

type Table = HashMap<Word, Arc<Entry>, BuildHasherDefault<Spread>>;

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);
/// Entries of the table.
static KNOWN: AtomicUsize = AtomicUsize::new(0);

/// Entries that are not receives of their own time: sends, and all persistent ones.
static OTHERS: AtomicUsize = AtomicUsize::new(0);

/// Whether any request is known.
#[inline]
pub fn any() -> bool {
    KNOWN.load(Ordering::Relaxed) != 0
}

/// Requests that are under way and that the program has freed: nobody will ask for them.
static ORPHANS: AtomicUsize = AtomicUsize::new(0);

/// Whether requests are under way that nobody will ask for. Then every call that lets the MPI library get on
/// ends with [`settle_orphans`].
#[inline(always)]
pub fn has_orphans() -> bool {
    ORPHANS.load(Ordering::Relaxed) != 0
}

/// Goes on with what is under way after a call that returns this code, and returns it.
#[cold]
pub fn settle_orphans(code: c_int) -> c_int {
    if let Some(world) = super::world() {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            world.attend_all();
            settle(world);
        }));
    }
    code
}

/// Makes a request known. An active persistent one counts as started.
pub fn remember(world: &World, request: *const c_void, work: Work, persistent: bool) {
    remember_watched(world, request, work, persistent, None);
}

/// Makes a request known, and lets go of `watched` when it is complete.
pub fn remember_watched(
    world: &World,
    request: *const c_void,
    work: Work,
    persistent: bool,
    watched: Option<Watched>,
) {
    // SAFETY: the library has written a handle there.
    let handle = unsafe { world.abi.handle_at(request, 0) } & world.abi.handle;
    let entry = Entry {
        starts: matches!(work, Work::Start(..)),
        is_receive: matches!(work, Work::Receive(_)) && !persistent,
        state: Mutex::new(State {
            handle,
            work,
            active: !persistent,
            ready: false,
            seen: None,
            bytes: None,
            error: 0,
            orphan: false,
            gone: false,
            watched,
        }),
        persistent,
    };
    insert(handle, Arc::new(entry));
}

fn insert(handle: Word, entry: Arc<Entry>) {
    let others = usize::from(!entry.is_receive);
    let before = lock(&TABLE).insert(handle, entry);
    OTHERS.fetch_add(others, Ordering::Relaxed);
    match before {
        None => {
            KNOWN.fetch_add(1, Ordering::Relaxed);
        }
        Some(before) => {
            OTHERS.fetch_sub(usize::from(!before.is_receive), Ordering::Relaxed);
        }
    }
}

fn find(world: &World, handle: Word) -> Option<Arc<Entry>> {
    if !any() || world.abi.same(handle, world.abi.request_null) {
        return None;
    }
    lock(&TABLE).get(&(handle & world.abi.handle)).cloned()
}

fn forget(handle: Word) {
    let before = lock(&TABLE).remove(&handle);
    if let Some(entry) = before {
        KNOWN.fetch_sub(1, Ordering::Relaxed);
        OTHERS.fetch_sub(usize::from(!entry.is_receive), Ordering::Relaxed);
    }
}

/// Whether the library may be asked to complete any request before we look at it: what we know are receives
/// only, which are complete in the library before anything of ours happens to them, and no other thread can
/// get the handle of one that is complete before we have forgotten it.
fn library_first(world: &World) -> bool {
    OTHERS.load(Ordering::Relaxed) == 0 && p2p::is_quiet() && !probes::has_threads(world)
}

/// The end of a request that the library has completed, with this code and status; the code for the program.
///
/// # Safety
///
/// The library has written the status.
unsafe fn concluded(world: &World, handle: Word, status: *mut c_void, code: c_int) -> c_int {
    let Some(entry) = find(world, handle) else {
        return code;
    };
    let mut state = lock(&entry.state);
    state.gone = true;
    forget(state.handle);
    // SAFETY: the caller's promise.
    let status = unsafe { Status::new(world.abi, status) };
    if code == 0 && !state.ready {
        state.arrive(world, status);
    }
    let end = state.end(world);
    let error = end.error_of(world, &entry, &state, status, code);
    let comm = state.comm();
    drop(state);
    reported(world, comm, status, error, code)
}

/// The code for the program, whose error handler hears of an error of ours.
fn reported(world: &World, comm: Option<Word>, status: Status, error: c_int, code: c_int) -> c_int {
    if error == 0 {
        return code;
    }
    status.set_error(error);
    raise(comm.unwrap_or(world.abi.world), error)
}

/// Whether the library has completed a request, and with which code; its status is written. One that was
/// completed with an error is complete, too: whoever finishes it hears of that.
fn completed(world: &World, handle: Word, status: &mut Room) -> Option<c_int> {
    let mut flag = 0;
    let mut ask = || {
        // SAFETY: a request that is not freed; writable outputs.
        unsafe { pmpi::request_get_status(handle, &mut flag, status.pointer()) }
    };
    // MPICH has the error handler of MPI_COMM_WORLD hear of it here, too, whatever the request's is.
    let answer = if world.abi.is_open_mpi() {
        ask()
    } else {
        quietly(world, ask)
    };
    // What cannot be asked for, the completing function has to complain about.
    (answer != 0 || flag != 0).then_some(answer)
}

/// Does `work` while errors on `MPI_COMM_WORLD` are returned. Only where no other thread is calling the
/// library.
fn quietly(world: &World, work: impl FnOnce() -> c_int) -> c_int {
    let mut before: Word = 0;
    let variable = (&raw mut before).cast();
    // SAFETY: a communicator that is always there, and room for a handle.
    if unsafe { pmpi::comm_get_errhandler(world.abi.world, variable) } != 0 {
        return work();
    }
    // SAFETY: a predefined error handler, and afterwards the one that was there.
    unsafe {
        pmpi::comm_set_errhandler(world.abi.world, world.abi.errors_return);
        let answer = work();
        pmpi::comm_set_errhandler(world.abi.world, before);
        if !world.abi.is_predefined_handler(before) {
            pmpi::errhandler_free(variable);
        }
        answer
    }
}

/// What the library does not know of a request that it has completed.
struct End {
    /// See [`State::seen`].
    seen: Option<(c_int, Room)>,
    bytes: Option<u64>,
    error: c_int,
}

impl End {
    /// Corrects a status that the library has written, with `code`, and that code.
    fn correct(&mut self, world: &World, persistent: bool, status: Status, code: c_int) -> c_int {
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

    /// Corrects the status of a request that was completed with `code`; an error that the library has not
    /// reported, or 0.
    fn error_of(
        mut self,
        world: &World,
        entry: &Entry,
        state: &State,
        status: Status,
        code: c_int,
    ) -> c_int {
        let seen = self.correct(world, entry.persistent, status, code);
        if let (Work::Receive(arrival), true) = (&state.work, code != 0) {
            arrival.give_back(world);
        }
        match self.error {
            0 if code == 0 => seen,
            error => error,
        }
    }
}

impl State {
    /// Goes on with it; returns whether it is ready.
    fn advance(&mut self, world: &World) -> bool {
        if self.ready || self.gone {
            return self.ready;
        }
        let mut room = Room::new();
        match &self.work {
            Work::Receive(_) => {
                let Some(code) = completed(world, self.handle, &mut room) else {
                    return false;
                };
                // SAFETY: the status was written just now.
                let status = unsafe { Status::new(world.abi, room.pointer()) };
                self.arrive(world, status);
                self.seen = Some((code, room));
            }
            Work::Send(shared, _) => {
                if !push(world, shared) || completed(world, self.handle, &mut room).is_none() {
                    return false;
                }
                self.error = lost(world, shared);
            }
            Work::Start(_, _, Some((shared, header))) => {
                if !push(world, shared) || completed(world, *header, &mut room).is_none() {
                    return false;
                }
                self.error = lost(world, shared);
            }
            // Nothing of ours is under way.
            Work::Start(_, _, None) | Work::Packed { .. } | Work::Forwarded(_) => {
                let Some(code) = completed(world, self.handle, &mut room) else {
                    return false;
                };
                self.seen = Some((code, room));
            }
        }
        self.ready = true;
        true
    }

    /// Moves the data of a receive that the library has completed with this status.
    fn arrive(&mut self, world: &World, status: Status) {
        if let Work::Receive(arrival) = &self.work {
            match arrival.complete(world, status) {
                Some(Ok(bytes)) => self.bytes = Some(bytes),
                Some(Err(code)) => self.error = code,
                None => {}
            }
        }
    }

    /// It is complete, but will be started again.
    fn deactivate(&mut self) {
        self.active = false;
        self.watched = None;
    }

    /// What is left to do when the library's function has been called or is about to be.
    fn end(&mut self, world: &World) -> End {
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

    fn comm(&self) -> Option<Word> {
        match &self.work {
            Work::Receive(arrival) => Some(arrival.comm()),
            Work::Send(_, comm) | Work::Packed { comm, .. } | Work::Forwarded(comm) => Some(*comm),
            Work::Start(plan, ..) => Some(plan.comm()),
        }
    }
}

/// The code of a message that is complete: an error if that is because its receiver has died.
fn lost(world: &World, shared: &Shared) -> c_int {
    if lock(shared).was_lost() {
        waiting::receiver_ended(world)
    } else {
        0
    }
}

/// Goes on with a message that is sent; returns whether the program may have its buffer back.
fn push(world: &World, shared: &Shared) -> bool {
    let Ok(mut message) = shared.try_lock() else {
        return false;
    };
    if message.attend(world, false) || message.is_impatient(world) && message.buffer(world) {
        return true;
    }
    false
}

/// Has what waits go on with requests.
pub fn register() {
    world::register(settle);
}

/// Goes on with everything that is under way.
pub fn settle(world: &World) {
    if !any() {
        return;
    }
    let Ok(table) = TABLE.try_lock() else {
        return;
    };
    let entries: Vec<Arc<Entry>> = table.values().cloned().collect();
    drop(table);
    for entry in entries {
        let Ok(mut state) = entry.state.try_lock() else {
            continue;
        };
        if !state.active || state.gone || !state.advance(world) || !state.orphan {
            continue;
        }
        state.gone = true;
        ORPHANS.fetch_sub(1, Ordering::Relaxed);
        let handle = state.handle;
        state.end(world);
        forget(handle);
        let mut request = Handle::new(world, handle);
        let mut room = Room::new();
        // SAFETY: nobody else knows this request any more.
        unsafe {
            let code = pmpi::wait(request.pointer(), room.pointer());
            if let Work::Send(shared, _) = &state.work {
                if code == 0 && Status::new(world.abi, room.pointer()).is_cancelled() {
                    lock(shared).withdraw(world);
                }
            }
            if entry.persistent || matches!(state.work, Work::Send(..)) {
                pmpi::request_free(request.pointer());
            }
        }
    }
}

/// Requests of an array, some of which we know.
struct Batch<'a> {
    world: &'a World,
    requests: *mut c_void,
    entries: Vec<Option<Arc<Entry>>>,
}

impl<'a> Batch<'a> {
    /// `None` if we know none of them.
    ///
    /// # Safety
    ///
    /// The array has `count` handles.
    unsafe fn new(world: &'a World, count: c_int, requests: *mut c_void) -> Option<Batch<'a>> {
        if !any() || requests.is_null() {
            return None;
        }
        let count = usize::try_from(count).ok()?;
        let table = lock(&TABLE);
        let mut entries = Vec::with_capacity(count);
        let mut some = false;
        for i in 0..count {
            // SAFETY: the caller's promise.
            let handle = unsafe { world.abi.handle_at(requests, i) } & world.abi.handle;
            let entry = table.get(&handle).cloned();
            some |= entry.is_some();
            entries.push(entry);
        }
        drop(table);
        some.then_some(Batch {
            world,
            requests,
            entries,
        })
    }

    fn request(&self, index: usize) -> *mut c_void {
        let size = self.world.abi.handle_size();
        self.requests.wrapping_byte_add(index * size)
    }

    fn handle(&self, index: usize) -> Word {
        // SAFETY: `new` was promised so many handles.
        unsafe { self.world.abi.handle_at(self.requests, index) }
    }

    /// Whether the request at an index is ready, as far as we know: the library is not asked about others.
    /// Inactive ones are.
    fn is_ready(&self, index: usize) -> bool {
        self.entries[index].as_ref().is_none_or(|entry| {
            let mut state = lock(&entry.state);
            !state.active || state.advance(self.world)
        })
    }

    /// Completes one request if that is possible now: `None` if not, otherwise whether it was active,
    /// and the code.
    ///
    /// # Safety
    ///
    /// The status is writable, or ignored.
    unsafe fn try_one(&self, index: usize, status: *mut c_void) -> Option<(bool, c_int)> {
        let Some(entry) = &self.entries[index] else {
            let (mut which, mut flag) = (UNDEFINED, 0);
            // SAFETY: one request of the caller's.
            let code =
                unsafe { pmpi::testany(1, self.request(index), &mut which, &mut flag, status) };
            if code != 0 {
                return Some((true, code));
            }
            return (flag != 0).then_some((which != UNDEFINED, 0));
        };
        {
            let mut state = lock(&entry.state);
            if !state.active {
                return Some((false, 0));
            }
            if !state.advance(self.world) {
                return None;
            }
        }
        // SAFETY: the caller's promise.
        let code = unsafe {
            finish(
                self.world,
                entry,
                self.request(index),
                status,
                Owner::Program,
            )
        };
        Some((true, code))
    }

    /// Has the library wait for all, of which we know only one, if that is possible.
    ///
    /// # Safety
    ///
    /// The statuses are writable.
    unsafe fn wait_with_one(&self, index: usize, statuses: *mut c_void) -> Option<c_int> {
        let entry = self.entries[index].as_ref()?;
        let mut state = lock(&entry.state);
        if !is_alone(&state) {
            return None;
        }
        if entry.persistent {
            state.deactivate();
        } else {
            state.gone = true;
            forget(state.handle);
        }
        let count = self.entries.len();
        // SAFETY: the caller's promise, and then statuses that were written.
        unsafe {
            let code = pmpi::waitall(count as c_int, self.requests, statuses);
            let abi = self.world.abi;
            let status = Status::of_array(abi, statuses, index);
            if code != 0 && (code != abi.in_status || status.error() != 0) {
                // Where another one failed, ours may be under way still. MPI_ERR_PENDING is the
                // number behind MPI_ERR_IN_STATUS in both libraries.
                let handle = self.handle(index) & abi.handle;
                if entry.persistent {
                    state.active = code != abi.in_status || status.error() == abi.in_status + 1;
                } else if abi.same(handle, state.handle) {
                    state.gone = false;
                    insert(state.handle, entry.clone());
                }
                return Some(code);
            }
            if conclude(self.world, &state, status) == 0 {
                return Some(code);
            }
            for i in (0..count).filter(|i| *i != index && code == 0) {
                Status::of_array(abi, statuses, i).set_error(0);
            }
            let comm = state.comm().unwrap_or(abi.world);
            Some(raise(comm, abi.in_status))
        }
    }

    /// Completes all, which are ready but for those we do not know; `complete` is the library's function,
    /// with its code and whether they are complete. `None` if they are not.
    ///
    /// # Safety
    ///
    /// The statuses are writable, or ignored.
    unsafe fn finish_all(
        &self,
        statuses: *mut c_void,
        complete: impl FnOnce(*mut c_void) -> (c_int, bool),
    ) -> Option<c_int> {
        let mut ours = Vec::with_capacity(self.entries.len());
        let mut sends = false;
        for entry in &self.entries {
            let active = entry.as_ref().filter(|entry| {
                let mut state = lock(&entry.state);
                if state.active && !entry.persistent {
                    // Before somebody else gets the handle.
                    state.gone = true;
                    forget(state.handle);
                    sends |= matches!(state.work, Work::Send(..));
                }
                state.active
            });
            ours.push(active);
        }
        // Whether a send was cancelled, nothing but its status tells.
        let mut own: Vec<Room> = Vec::new();
        let statuses = if is_ignored(statuses) && sends {
            own.resize_with(self.entries.len(), Room::new);
            own.as_mut_ptr().cast()
        } else {
            statuses
        };
        let (mut code, done) = complete(statuses);
        if !done {
            for entry in ours.into_iter().flatten().filter(|entry| !entry.persistent) {
                let mut state = lock(&entry.state);
                state.gone = false;
                insert(state.handle, entry.clone());
            }
            return None;
        }
        let (mut errors, mut comm) = (vec![0; ours.len()], None);
        for (i, entry) in ours.into_iter().enumerate() {
            let Some(entry) = entry else {
                continue;
            };
            let mut state = lock(&entry.state);
            let mut end = state.end(self.world);
            let sent = match &state.work {
                Work::Send(shared, _) => Some(shared),
                _ => None,
            };
            if sent.is_some() {
                // SAFETY: a request of our own, which is complete.
                unsafe { pmpi::request_free(self.request(i)) };
            }
            let mut room = Room::new();
            let status = if is_ignored(statuses) {
                // SAFETY: room for one.
                unsafe { Status::new(self.world.abi, room.pointer()) }
            } else {
                // SAFETY: there is one for each request.
                unsafe { Status::of_array(self.world.abi, statuses, i) }
            };
            let before = end.correct(self.world, entry.persistent, status, 0);
            if let Some(sent) = sent.filter(|_| status.is_cancelled()) {
                lock(sent).withdraw(self.world);
            }
            errors[i] = match end.error {
                0 if code == 0 => before,
                error => error,
            };
            if errors[i] != 0 {
                comm = state.comm();
            }
        }
        let failed = errors.iter().any(|error| *error != 0);
        if failed {
            for (i, error) in errors.iter().enumerate().filter(|_| !is_ignored(statuses)) {
                // SAFETY: there is one for each request.
                let status = unsafe { Status::of_array(self.world.abi, statuses, i) };
                if *error != 0 || code == 0 {
                    status.set_error(*error);
                }
            }
            let abi = self.world.abi;
            code = raise(comm.unwrap_or(abi.world), abi.in_status);
        }
        Some(code)
    }
}

/// Who has made a request, and so, whose error handler hears of its errors where the library waits.
#[derive(Clone, Copy, Debug)]
pub enum Owner {
    /// The program.
    Program,
    /// We, for a blocking call on this communicator.
    Us(Word),
}

impl Owner {
    /// `MPI_Wait`
    ///
    /// # Safety
    ///
    /// As the MPI standard says.
    pub unsafe fn wait(self, world: &World, request: *mut c_void, status: *mut c_void) -> c_int {
        // SAFETY: the caller's promise.
        let wait = || unsafe { pmpi::wait(request, status) };
        match self {
            // MPICH has the error handler of MPI_COMM_WORLD hear of what is wrong with a request.
            Owner::Us(comm) if !world.abi.is_open_mpi() => match quietly(world, wait) {
                0 => 0,
                code => raise(comm, code),
            },
            _ => wait(),
        }
    }
}

/// Completes a request that is ready.
///
/// # Safety
///
/// `request` is the program's variable, `status` a status or an ignored one.
unsafe fn finish(
    world: &World,
    entry: &Arc<Entry>,
    request: *mut c_void,
    status: *mut c_void,
    owner: Owner,
) -> c_int {
    let mut state = lock(&entry.state);
    let end = state.end(world);
    if !entry.persistent {
        state.gone = true;
        forget(state.handle);
    }
    let comm = state.comm();
    let mut room = Room::new();
    let at = room.instead_of(status);
    // SAFETY: the caller's promise.
    let code = unsafe { owner.wait(world, request, at) };
    // SAFETY: written just now.
    let status = unsafe { Status::new(world.abi, at) };
    let error = end.error_of(world, entry, &state, status, code);
    if let Work::Send(shared, _) = &state.work {
        if status.is_cancelled() {
            lock(shared).withdraw(world);
        }
        // SAFETY: a request of our own, which is complete.
        unsafe { pmpi::request_free(request) };
    }
    drop(state);
    reported(world, comm, status, error, code)
}

/// Waits until `done` says so, letting everything else get on than the `own` requests it asks for.
fn until(world: &World, own: usize, mut done: impl FnMut() -> bool) {
    let mut pause = Pause::new();
    while !done() {
        if pause.should_look() {
            world.give_up_lost();
        }
        if pause.step() {
            world.attend_all();
            if KNOWN.load(Ordering::Relaxed) > own {
                settle(world);
            }
        }
    }
}

/// Whether one request is all that is under way, and a receive: then the library may wait for it,
/// as nothing has to get on meanwhile.
fn is_alone(state: &State) -> bool {
    let receives = matches!(state.work, Work::Receive(_)) && state.active && !state.ready;
    receives && KNOWN.load(Ordering::Relaxed) == 1 && p2p::is_quiet()
}

/// What the status of a receive says after the library has waited for it, and the code.
fn conclude(world: &World, state: &State, status: Status) -> c_int {
    match &state.work {
        Work::Receive(arrival) => arrival.conclude(world, status),
        _ => 0,
    }
}

/// `MPI_Wait`; `None` if the request is none of ours.
///
/// # Safety
///
/// As the MPI standard says, for this and all functions below.
pub unsafe fn wait(world: &World, request: *mut c_void, status: *mut c_void) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe { wait_as(world, request, status, Owner::Program) }
}

/// The same for a request of our own, known or not, that stands for a blocking call.
pub unsafe fn wait_own(
    world: &World,
    request: *mut c_void,
    status: *mut c_void,
    comm: Word,
) -> c_int {
    let owner = Owner::Us(comm);
    // SAFETY: the caller's promise.
    unsafe {
        wait_as(world, request, status, owner).unwrap_or_else(|| owner.wait(world, request, status))
    }
}

unsafe fn wait_as(
    world: &World,
    request: *mut c_void,
    status: *mut c_void,
    owner: Owner,
) -> Option<c_int> {
    // SAFETY: one request.
    let batch = unsafe { Batch::new(world, 1, request)? };
    let entry = batch.entries[0].as_ref()?;
    {
        let mut state = lock(&entry.state);
        if !state.active {
            return None;
        }
        if is_alone(&state) {
            if entry.persistent {
                state.deactivate();
            } else {
                state.gone = true;
                forget(state.handle);
            }
            let mut room = Room::new();
            let at = room.instead_of(status);
            // SAFETY: the caller's promise, and then a status that was written.
            return Some(unsafe {
                let code = owner.wait(world, request, at);
                if code != 0 {
                    if let Work::Receive(arrival) = &state.work {
                        arrival.give_back(world);
                    }
                    return Some(code);
                }
                match conclude(world, &state, Status::new(world.abi, at)) {
                    0 => 0,
                    code => raise(state.comm().unwrap_or(world.abi.world), code),
                }
            });
        }
    }
    until(world, 1, || lock(&entry.state).advance(world));
    // SAFETY: the caller's promise.
    Some(unsafe { finish(world, entry, request, status, owner) })
}

/// `MPI_Test`
pub unsafe fn test(
    world: &World,
    request: *mut c_void,
    flag: *mut c_int,
    status: *mut c_void,
) -> Option<c_int> {
    if library_first(world) && !request.is_null() {
        let mut room = Room::new();
        let at = room.instead_of(status);
        // SAFETY: the caller's promise; the library writes the status if it completes the request.
        return Some(unsafe {
            let handle = world.abi.handle_at(request, 0);
            match pmpi::test(request, flag, at) {
                0 if *flag == 0 => 0,
                code => concluded(world, handle, at, code),
            }
        });
    }
    // SAFETY: one request.
    let batch = unsafe { Batch::new(world, 1, request)? };
    let entry = batch.entries[0].as_ref()?;
    let ready = {
        let mut state = lock(&entry.state);
        if !state.active {
            return None;
        }
        state.advance(world)
    };
    // SAFETY: the caller's promise.
    unsafe {
        *flag = c_int::from(ready);
        if ready {
            Some(finish(world, entry, request, status, Owner::Program))
        } else {
            Some(0)
        }
    }
}

/// `MPI_Waitall`
pub unsafe fn waitall(
    world: &World,
    count: c_int,
    requests: *mut c_void,
    statuses: *mut c_void,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let batch = unsafe { Batch::new(world, count, requests)? };
    let mut left: Vec<usize> = (0..batch.entries.len())
        .filter(|i| batch.entries[*i].is_some())
        .collect();
    if let ([only], false) = (left.as_slice(), is_ignored(statuses)) {
        // SAFETY: the caller's promise.
        if let Some(code) = unsafe { batch.wait_with_one(*only, statuses) } {
            return Some(code);
        }
    }
    let own = left.len();
    until(world, own, || {
        left.retain(|i| !batch.is_ready(*i));
        left.is_empty()
    });
    // SAFETY: the caller's promise.
    unsafe {
        batch.finish_all(statuses, |statuses| {
            (pmpi::waitall(count, requests, statuses), true)
        })
    }
}

/// `MPI_Testall`
pub unsafe fn testall(
    world: &World,
    count: c_int,
    requests: *mut c_void,
    flag: *mut c_int,
    statuses: *mut c_void,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let batch = unsafe { Batch::new(world, count, requests)? };
    // All of them, so that each gets on.
    let waiting = (0..batch.entries.len()).filter(|i| !batch.is_ready(*i));
    let ready = waiting.count() == 0;
    // SAFETY: the caller's promise.
    unsafe {
        *flag = 0;
        if !ready {
            return Some(0);
        }
        // Whether the others are complete, too, the library says.
        let code = batch.finish_all(statuses, |statuses| {
            let code = pmpi::testall(count, requests, flag, statuses);
            if code != 0 {
                *flag = 1;
            }
            (code, *flag != 0)
        });
        Some(code.unwrap_or(0))
    }
}

/// One pass for `MPI_Waitany` and `MPI_Testany`: the index of a request that was completed, or
/// [`UNDEFINED`] if none is active, and the code.
unsafe fn any_of(batch: &Batch<'_>, status: *mut c_void) -> Option<(c_int, c_int)> {
    let count = batch.entries.len();
    // SAFETY: the caller's promise.
    unsafe { fallback::first(count, status, |i| batch.try_one(i, status)) }
}

/// `MPI_Waitany`
pub unsafe fn waitany(
    world: &World,
    count: c_int,
    requests: *mut c_void,
    index: *mut c_int,
    status: *mut c_void,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let batch = unsafe { Batch::new(world, count, requests)? };
    let mut found = None;
    let own = batch.entries.iter().flatten().count();
    until(world, own, || {
        // SAFETY: the caller's promise.
        found = unsafe { any_of(&batch, status) };
        found.is_some()
    });
    let (which, code) = found.unwrap_or((UNDEFINED, 0));
    // SAFETY: the caller's promise.
    unsafe { *index = which };
    Some(code)
}

/// Handles that are copied before the library changes them.
const MOST_COPIED: c_int = 16;

/// `MPI_Testany`
pub unsafe fn testany(
    world: &World,
    count: c_int,
    requests: *mut c_void,
    index: *mut c_int,
    flag: *mut c_int,
    status: *mut c_void,
) -> Option<c_int> {
    if library_first(world) && !requests.is_null() && (1..=MOST_COPIED).contains(&count) {
        let mut handles = [0; MOST_COPIED as usize];
        let mut room = Room::new();
        let at = room.instead_of(status);
        // SAFETY: the caller's promise; the library writes the status if it completes a request, whose
        // index it says.
        return Some(unsafe {
            for (i, handle) in handles.iter_mut().enumerate().take(count as usize) {
                *handle = world.abi.handle_at(requests, i);
            }
            // Not all errors say one.
            *index = UNDEFINED;
            let code = pmpi::testany(count, requests, index, flag, at);
            match usize::try_from(*index).ok().and_then(|i| handles.get(i)) {
                Some(handle) if code != 0 || *flag != 0 => concluded(world, *handle, at, code),
                _ => code,
            }
        });
    }
    // SAFETY: the caller's promise.
    unsafe {
        let batch = Batch::new(world, count, requests)?;
        let found = any_of(&batch, status);
        *flag = c_int::from(found.is_some());
        let (which, code) = found.unwrap_or((UNDEFINED, 0));
        *index = which;
        Some(code)
    }
}

/// One pass for `MPI_Waitsome` and `MPI_Testsome`: whether any request is active, or was until now.
unsafe fn some_of(
    batch: &Batch<'_>,
    done: *mut c_int,
    indices: *mut c_int,
    statuses: *mut c_void,
) -> (bool, c_int) {
    let abi = batch.world.abi;
    let (mut active, mut count, mut failed, mut codes) = (false, 0usize, false, Vec::new());
    for i in 0..batch.entries.len() {
        let mut room = Room::new();
        // SAFETY: one request; our own status.
        match unsafe { batch.try_one(i, room.pointer()) } {
            Some((true, code)) => {
                active = true;
                failed |= code != 0;
                codes.push(code);
                // SAFETY: both arrays have as many elements as there are requests.
                unsafe {
                    *indices.add(count) = i as c_int;
                    if !is_ignored(statuses) {
                        let from = Status::new(abi, room.pointer());
                        Status::of_array(abi, statuses, count).copy_all_but_error(from);
                    }
                }
                count += 1;
            }
            Some((false, _)) => {}
            None => active = true,
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        *done = if active { count as c_int } else { UNDEFINED };
        if failed && !is_ignored(statuses) {
            for (i, code) in codes.iter().enumerate() {
                Status::of_array(abi, statuses, i).set_error(*code);
            }
        }
    }
    (active, if failed { abi.in_status } else { 0 })
}

/// `MPI_Waitsome`
pub unsafe fn waitsome(
    world: &World,
    count: c_int,
    requests: *mut c_void,
    done: *mut c_int,
    indices: *mut c_int,
    statuses: *mut c_void,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let batch = unsafe { Batch::new(world, count, requests)? };
    let mut code = 0;
    let own = batch.entries.iter().flatten().count();
    until(world, own, || {
        // SAFETY: the caller's promise.
        unsafe {
            let (active, this) = some_of(&batch, done, indices, statuses);
            code = this;
            !active || *done > 0
        }
    });
    Some(code)
}

/// `MPI_Testsome`
pub unsafe fn testsome(
    world: &World,
    count: c_int,
    requests: *mut c_void,
    done: *mut c_int,
    indices: *mut c_int,
    statuses: *mut c_void,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        let batch = Batch::new(world, count, requests)?;
        Some(some_of(&batch, done, indices, statuses).1)
    }
}

/// `MPI_Request_get_status`
pub unsafe fn get_status(
    world: &World,
    request: Word,
    flag: *mut c_int,
    status: *mut c_void,
) -> Option<c_int> {
    let entry = find(world, request)?;
    let mut state = lock(&entry.state);
    if !state.active {
        return None;
    }
    let ready = state.advance(world);
    let mut room = Room::new();
    // SAFETY: the caller's promise.
    unsafe {
        *flag = c_int::from(ready);
        if !ready {
            return Some(0);
        }
        let at = room.instead_of(status);
        let code = pmpi::request_get_status(request, flag, at);
        *flag = 1;
        if let Some((_, seen)) = state.seen.as_mut().filter(|_| entry.persistent) {
            let seen = Status::new(world.abi, seen.pointer());
            Status::new(world.abi, at).copy_all_but_error(seen);
        }
        if let Some(bytes) = state.bytes {
            Status::new(world.abi, at).set_bytes(bytes);
        }
        if state.error != 0 {
            Status::new(world.abi, at).set_error(state.error);
        }
        Some(code)
    }
}

/// `MPI_Request_get_status` of one request of an array. Those that we do not know the library is asked
/// about.
unsafe fn look(batch: &Batch<'_>, index: usize, status: *mut c_void) -> Look {
    if batch.entries[index].is_some() {
        let mut flag = 0;
        // SAFETY: the caller's promise.
        let known = unsafe { get_status(batch.world, batch.handle(index), &mut flag, status) };
        if let Some(code) = known {
            return (code, true, flag != 0);
        }
    }
    // SAFETY: one request of the caller's.
    unsafe { fallback::look(batch.world.abi, batch.request(index), status) }
}

/// `MPI_Request_get_status_any`
pub unsafe fn get_status_any(
    world: &World,
    count: c_int,
    requests: *mut c_void,
    index: *mut c_int,
    flag: *mut c_int,
    status: *mut c_void,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        let batch = Batch::new(world, count, requests)?;
        let look = |i, status: *mut c_void| look(&batch, i, status);
        let count = batch.entries.len();
        let abi = world.abi;
        Some(fallback::any_of(abi, count, index, flag, status, look))
    }
}

/// `MPI_Request_get_status_all`
pub unsafe fn get_status_all(
    world: &World,
    count: c_int,
    requests: *mut c_void,
    flag: *mut c_int,
    statuses: *mut c_void,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        let batch = Batch::new(world, count, requests)?;
        let look = |i, status: *mut c_void| look(&batch, i, status);
        let count = batch.entries.len();
        Some(fallback::all_of(world.abi, count, flag, statuses, look))
    }
}

/// `MPI_Request_get_status_some`
pub unsafe fn get_status_some(
    world: &World,
    count: c_int,
    requests: *mut c_void,
    done: *mut c_int,
    indices: *mut c_int,
    statuses: *mut c_void,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        let batch = Batch::new(world, count, requests)?;
        let look = |i, status: *mut c_void| look(&batch, i, status);
        let (abi, count) = (world.abi, batch.entries.len());
        let found = fallback::some_of(abi, count, (done, indices), statuses, look);
        Some(found)
    }
}

/// `MPI_Request_free`
pub unsafe fn free(world: &World, request: *mut c_void) -> Option<c_int> {
    // SAFETY: one request.
    let batch = unsafe {
        fallback::forget_persistent(request);
        Batch::new(world, 1, request)?
    };
    let entry = batch.entries[0].as_ref()?;
    let mut state = lock(&entry.state);
    if !state.active {
        state.gone = true;
        forget(state.handle);
        return None;
    }
    state.orphan = true;
    ORPHANS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the caller's variable.
    unsafe { world.abi.set_handle(request, world.abi.request_null) };
    drop(state);
    settle(world);
    Some(0)
}

/// `MPI_Cancel`
pub unsafe fn cancel(world: &World, request: *mut c_void) -> Option<c_int> {
    // SAFETY: one request.
    let batch = unsafe { Batch::new(world, 1, request)? };
    let entry = batch.entries[0].as_ref()?;
    // Another thread that waits for a receive holds its state.
    if !entry.starts {
        return None;
    }
    let state = lock(&entry.state);
    // A message that went another way than its request is never cancelled, as is allowed.
    matches!(state.work, Work::Start(_, _, Some(_))).then_some(0)
}

/// `MPI_Start`
pub unsafe fn start(world: &World, request: *mut c_void) -> Option<c_int> {
    // SAFETY: one request.
    let batch = unsafe { Batch::new(world, 1, request)? };
    let mut state = lock(&batch.entries[0].as_ref()?.state);
    let mut watched = None;
    if let Work::Start(plan, class, current) = &mut state.work {
        let (decision, trial) = match *class {
            Some(class) => class.next(world),
            None => (Decision::Intercept, None),
        };
        watched = trial;
        let started = match decision {
            // SAFETY: the program promised its elements from now on.
            Decision::Intercept => unsafe { plan.start(world) },
            Decision::Forward => Ok(None),
        };
        match started {
            Ok(Some(under_way)) => {
                *current = Some(under_way);
                (state.active, state.watched) = (true, watched);
                return Some(0);
            }
            Ok(None) => {}
            Err(code) => return Some(code),
        }
    }
    // SAFETY: the caller's promise.
    let code = unsafe { pmpi::start(request) };
    state.active = code == 0;
    state.watched = watched.filter(|_| state.active);
    Some(code)
}

/// `MPI_Startall`
pub unsafe fn startall(world: &World, count: c_int, requests: *mut c_void) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let batch = unsafe { Batch::new(world, count, requests)? };
    for i in 0..batch.entries.len() {
        let one = batch.request(i);
        // SAFETY: the caller's promise.
        let code = unsafe { start(world, one).unwrap_or_else(|| pmpi::start(one)) };
        if code != 0 {
            return Some(code);
        }
    }
    Some(0)
}
