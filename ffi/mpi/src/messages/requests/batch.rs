// SPDX-License-Identifier: MIT OR Apache-2.0

//! Completing requests of an array, some of which we know.

use crate::library::panics::caught;
use crate::library::threads;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libcopy::lock::lock;
use libcopy::p2p;

use crate::comm::processes::World;
use crate::library::abi::{UNDEFINED, Word};
use crate::library::pmpi;
use crate::library::status::{Room, Status, is_ignored};
use crate::messages::error_handlers::{ErrorHandlers, quietly};
use crate::messages::incoming::raise;
use crate::messages::requests::entry::{Entry, State, Work, reported};
use crate::messages::requests::table::{TABLE, Unfetched, any, find, forget, insert};

/// The end of a request that the library has completed, with this code and status; the code for the
/// program. A panic of ours becomes an error of the MPI library's.
///
/// # Safety
///
/// The library has written the status.
#[inline(never)]
pub(in crate::messages) unsafe fn concluded(
    world: &World,
    handle: Word,
    status: *mut c_void,
    code: c_int,
) -> c_int {
    let conclude = || {
        let Some(entry) = find(world, handle) else {
            return code;
        };
        let mut state = lock(&entry.state);
        state.gone = true;
        forget(state.handle);
        // SAFETY: the caller's promise.
        let status = unsafe { Status::new(world.abi, status) };
        if !state.ready {
            state.arrive_wholly(world, status, code);
        }
        let end = state.end(world);
        let error = end.error_of(world, &entry, status, code);
        let comm = state.comm();
        drop(state);
        reported(world, comm, error, code)
    };
    caught(conclude).unwrap_or(world.abi.error)
}

/// Requests of an array, some of which we know.
pub(super) struct Batch<'a> {
    pub(super) world: &'a World,
    pub(super) requests: *mut c_void,
    pub(super) entries: Vec<Option<Arc<Entry>>>,
}

impl<'a> Batch<'a> {
    /// `None` if we know none of them.
    ///
    /// # Safety
    ///
    /// The array has `count` handles.
    pub(super) unsafe fn new(
        world: &'a World,
        count: c_int,
        requests: *mut c_void,
    ) -> Option<Batch<'a>> {
        if !any() || requests.is_null() {
            return None;
        }
        let count = usize::try_from(count).ok()?;
        let table = TABLE.read();
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

    pub(super) fn request(&self, index: usize) -> *mut c_void {
        let size = self.world.abi.handle_size();
        self.requests.wrapping_byte_add(index * size)
    }

    pub(super) fn handle(&self, index: usize) -> Word {
        // SAFETY: `new` was promised this many handles.
        unsafe { self.world.abi.handle_at(self.requests, index) }
    }

    /// Whether there are requests that we do not know.
    pub(super) fn has_others(&self) -> bool {
        let abi = self.world.abi;
        let is_other = |index: usize| {
            self.entries[index].is_none() && !abi.same(self.handle(index), abi.request_null)
        };
        (0..self.entries.len()).any(is_other)
    }

    /// Whether the request at an index is ready, as far as we know: the library is not asked about
    /// others. Inactive ones are.
    pub(super) fn is_ready(&self, index: usize) -> bool {
        self.entries[index].as_ref().is_none_or(|entry| {
            let mut state = lock(&entry.state);
            !state.active || state.advance(self.world)
        })
    }

    /// Completes one request if that is possible now: `None` if not, otherwise whether it was
    /// active, and the code.
    ///
    /// # Safety
    ///
    /// The status is writable, or ignored.
    pub(super) unsafe fn try_one(
        &self,
        index: usize,
        status: *mut c_void,
    ) -> Option<(bool, c_int)> {
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
    pub(super) unsafe fn wait_with_one(
        &self,
        index: usize,
        statuses: *mut c_void,
    ) -> Option<c_int> {
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
            let unfetched = Unfetched::new();
            let code = pmpi::waitall(count as c_int, self.requests, statuses);
            drop(unfetched);
            let abi = self.world.abi;
            let status = Status::of_array(abi, statuses, index);
            if code != 0 && (code != abi.in_status || status.error() != 0) {
                // Where another one failed, ours may be under way still. MPI_ERR_PENDING is the
                // number behind MPI_ERR_IN_STATUS in both libraries.
                let handle = self.handle(index) & abi.handle;
                let is_pending = code != abi.in_status || status.error() == abi.in_status + 1;
                if entry.persistent {
                    state.active = is_pending;
                    forget_freed(self.world, entry, &mut state, self.request(index));
                } else if abi.same(handle, state.handle) {
                    state.gone = false;
                    insert(state.handle, entry.clone());
                }
                if !is_pending {
                    conclude(self.world, &state, status, status.error());
                }
                return Some(code);
            }
            let error = conclude(self.world, &state, status, 0);
            if error == 0 {
                return Some(code);
            }
            status.set_error(error);
            for i in (0..count).filter(|i| *i != index && code == 0) {
                Status::of_array(abi, statuses, i).set_error(0);
            }
            let comm = state.comm().unwrap_or(abi.world);
            Some(raise(comm, abi.in_status))
        }
    }

    /// Puts null requests in the place of those whose starts are collectives of ours: the library
    /// has not started these, and MPICH 4.0 never completes a persistent collective that is
    /// inactive. Returns what was there.
    fn hide_collectives(&self, ours: &[Option<&Arc<Entry>>]) -> Vec<(usize, Word)> {
        let is_collective = |entry: &Option<&Arc<Entry>>| {
            entry.is_some_and(|entry| matches!(lock(&entry.state).work, Work::Collective(_)))
        };
        let indices = (0..ours.len()).filter(|index| is_collective(&ours[*index]));
        let hidden: Vec<_> = indices.map(|index| (index, self.handle(index))).collect();
        for (index, _) in &hidden {
            // SAFETY: `index` is below the number of handles that `new` was promised.
            unsafe {
                let abi = self.world.abi;
                abi.set_handle(self.request(*index), abi.request_null)
            };
        }
        hidden
    }

    /// Puts them back.
    fn show(&self, hidden: Vec<(usize, Word)>) {
        for (index, handle) in hidden {
            // SAFETY: as above.
            unsafe { self.world.abi.set_handle(self.request(index), handle) };
        }
    }

    /// Completes all, which are ready but for those we do not know; `complete` is the library's
    /// function, with its code and whether they are complete. `None` if they are not.
    ///
    /// # Safety
    ///
    /// The statuses are writable, or ignored.
    pub(super) unsafe fn finish_all(
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
        let shown = self.hide_collectives(&ours);
        let (mut code, done) = complete(statuses);
        self.show(shown);
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
            forget_freed(self.world, entry, &mut state, self.request(i));
            let mut room = Room::new();
            let status = if is_ignored(statuses) {
                // SAFETY: room for one.
                unsafe { Status::new(self.world.abi, room.pointer()) }
            } else {
                // SAFETY: there is one for each request.
                unsafe { Status::of_array(self.world.abi, statuses, i) }
            };
            let before = end.correct(self.world, entry.persistent, status, 0);
            free_sent(self.world, &state, self.request(i), status);
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
            Owner::Us(comm) if !world.abi.is_open_mpi() => {
                match quietly(world, ErrorHandlers::of(world, comm), wait) {
                    0 => 0,
                    code => raise(comm, code),
                }
            }
            _ => wait(),
        }
    }

    /// Whether the library may wait for a request that is not complete: not where that would keep
    /// the error handler of `MPI_COMM_WORLD` from other threads.
    pub fn may_wait(self, world: &World) -> bool {
        match self {
            Owner::Us(comm) if threads::are_several(world.abi) && !world.abi.is_open_mpi() => {
                ErrorHandlers::of(world, comm) == ErrorHandlers::Alike
            }
            _ => true,
        }
    }
}

/// After the library has completed a request in the program's variable: Open MPI frees a persistent
/// one that has failed.
pub(super) fn forget_freed(
    world: &World,
    entry: &Entry,
    state: &mut State,
    request: *const c_void,
) {
    // SAFETY: the program's variable.
    let handle = unsafe { world.abi.handle_at(request, 0) } & world.abi.handle;
    if entry.persistent && !world.abi.same(handle, state.handle) {
        state.gone = true;
        forget(state.handle);
    }
}

/// After the library has completed a request: frees that of a header, whose message goes if the
/// program has cancelled it.
fn free_sent(world: &World, state: &State, request: *mut c_void, status: Status) {
    if let Work::Send(shared, _) = &state.work {
        if status.is_cancelled() {
            lock(shared).withdraw(world);
        }
        // SAFETY: a request of our own, which is complete.
        unsafe { pmpi::request_free(request) };
    }
}

/// Completes a request that is ready.
///
/// # Safety
///
/// `request` is the program's variable, `status` a status or an ignored one.
pub(super) unsafe fn finish(
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
    if let Work::Collective(_) = state.work {
        let error = end.error;
        drop(state);
        // SAFETY: the caller's promise, or our own.
        let status = unsafe { Status::new(world.abi, at) };
        status.fill_with_nothing(UNDEFINED);
        return reported(world, comm, error, error);
    }
    // SAFETY: the caller's promise.
    let code = unsafe { owner.wait(world, request, at) };
    forget_freed(world, entry, &mut state, request);
    // SAFETY: written just now.
    let status = unsafe { Status::new(world.abi, at) };
    let error = end.error_of(world, entry, status, code);
    free_sent(world, &state, request, status);
    drop(state);
    reported(world, comm, error, code)
}

/// Whether one request is all that is under way, and a receive: then the library may wait for it,
/// as nothing has to get on meanwhile.
pub(super) fn is_alone(state: &State) -> bool {
    let receives = matches!(state.work, Work::Receive(_)) && state.active && !state.ready;
    receives && TABLE.len() == 1 && p2p::is_quiet()
}

/// After the library has waited for a receive, with this code: corrects the status; an error that
/// the library has not reported, or 0.
pub(super) fn conclude(world: &World, state: &State, status: Status, code: c_int) -> c_int {
    match &state.work {
        Work::Receive(arrival) => arrival.conclude(world, status, code),
        _ => 0,
    }
}
