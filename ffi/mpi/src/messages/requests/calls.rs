// SPDX-License-Identifier: MIT OR Apache-2.0

//! The functions of MPI that complete, test, cancel, free and start requests.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use libcopy::lock::lock;
use libcopy::policy::governor::Decision;

use crate::collectives::nonblocking::persistent as collectives;
use crate::collectives::nonblocking::persistent::Start;
use crate::collectives::persistent;
use crate::comm::processes::{World, world};
use crate::gpu;
use crate::library::abi::{UNDEFINED, Word};
use crate::library::fallback::{self, Look};
use crate::library::pmpi;
use crate::library::requests::{Completion, Which};
use crate::library::status::{Room, Status, is_ignored};
use crate::library::unusual;
use crate::messages::incoming::raise;
use crate::messages::requests::batch::{
    Batch, Owner, conclude, concluded, finish, forget_freed, is_alone,
};
use crate::messages::requests::entry::Work;
use crate::messages::requests::progress::{finish_copies, settle, until};
use crate::messages::requests::table::{Unfetched, find, forget, library_first, remember};
use crate::messages::truncation::is_truncation;

/// A function that completes requests; `None` if none of them is ours.
///
/// # Safety
///
/// As the MPI standard says, for this and all functions below.
pub unsafe fn complete(world: &World, call: &Completion) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        match (call.which, call.waits) {
            (Which::One, true) => wait(world, call.requests, call.statuses),
            (Which::One, false) => test(world, call.requests, call.flag, call.statuses),
            (Which::All, true) => waitall(world, call),
            (Which::All, false) => testall(world, call),
            (Which::Any, _) => any(world, call),
            (Which::Some, _) => some(world, call),
        }
    }
}

/// `MPI_Testany` where the library may be asked first, as in
/// [`short_receives::test`](crate::messages::short_receives::test). Nothing here panics.
#[inline(always)]
pub unsafe fn complete_at_once(call: &Completion) -> Option<c_int> {
    match (call.which, call.waits) {
        // SAFETY: the caller's promise.
        (Which::Any, false) => unsafe { testany_at_once(call) },
        _ => None,
    }
}

/// `MPI_Wait`
unsafe fn wait(world: &World, request: *mut c_void, status: *mut c_void) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let waited = unsafe { wait_as(world, request, status, Owner::Program) };
    if waited.is_none() {
        gpu::before_waiting();
    }
    waited
}

/// Waits for a request of our own, known or not, that stands for a blocking call.
pub unsafe fn wait_own(
    world: &World,
    request: *mut c_void,
    status: *mut c_void,
    comm: Word,
) -> c_int {
    let owner = Owner::Us(comm);
    // SAFETY: the caller's promise.
    unsafe {
        wait_as(world, request, status, owner).unwrap_or_else(|| {
            gpu::before_waiting();
            if owner.may_wait(world) {
                owner.wait(world, request, status)
            } else {
                pmpi::wait(request, status)
            }
        })
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
        if is_alone(&state) && owner.may_wait(world) {
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
                // It may be one that sends as well.
                let unfetched = Unfetched::new();
                let code = owner.wait(world, request, at);
                drop(unfetched);
                forget_freed(world, entry, &mut state, request);
                match conclude(world, &state, Status::new(world.abi, at), code) {
                    0 => code,
                    code => raise(state.comm().unwrap_or(world.abi.world), code),
                }
            });
        }
    }
    until(world, 1, || lock(&entry.state).advance(world));
    // SAFETY: the caller's promise.
    Some(unsafe { finish(world, entry, request, status, owner) })
}

/// Completes one request at once: `ask` calls the library, with a status that it writes if it
/// completes the request, and says whether it has.
#[inline(always)]
unsafe fn one_at_once(
    world: &World,
    request: *mut c_void,
    status: *mut c_void,
    ask: impl FnOnce(*mut c_void) -> (c_int, bool),
) -> c_int {
    let mut room = MaybeUninit::<Room>::uninit();
    let at = Room::instead_of_uninit(&mut room, status);
    // SAFETY: the caller's promise.
    unsafe {
        let handle = world.abi.handle_at(request, 0);
        match ask(at) {
            (code, false) => code,
            (code, true) => {
                // A library that truncates has written it.
                if code != 0 && !is_truncation(world, code) {
                    room.write(Room::new());
                }
                concluded(world, handle, at, code)
            }
        }
    }
}

/// `MPI_Test`
unsafe fn test(
    world: &World,
    request: *mut c_void,
    flag: *mut c_int,
    status: *mut c_void,
) -> Option<c_int> {
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
    let ready = ready || finish_copies(world) && lock(&entry.state).ready;
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

/// Requests of a call. If we know none of those that are waited for, the library waits, which lets
/// no messages of ours get on.
unsafe fn batch_of<'a>(world: &'a World, call: &Completion) -> Option<Batch<'a>> {
    // SAFETY: the caller's promise.
    let batch = unsafe { Batch::new(world, call.count, call.requests) };
    if batch.is_none() && call.waits {
        gpu::before_waiting();
    }
    batch
}

/// Goes on until `done` says so; in a function that does not wait, once, and once more if devices
/// have copied something meanwhile. What it said last.
fn go_on(
    world: &World,
    call: &Completion,
    batch: &Batch<'_>,
    mut done: impl FnMut() -> bool,
) -> bool {
    if call.waits {
        let own = batch.entries.iter().flatten().count();
        until(world, own, done);
        return true;
    }
    let is_done = done();
    let were_copied = finish_copies(world);
    is_done || were_copied && done()
}

/// `MPI_Waitall`
unsafe fn waitall(world: &World, call: &Completion) -> Option<c_int> {
    let (count, requests, statuses) = (call.count, call.requests, call.statuses);
    // SAFETY: the caller's promise.
    let batch = unsafe { batch_of(world, call)? };
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
    if batch.has_others() {
        gpu::before_waiting();
    }
    // SAFETY: the caller's promise.
    unsafe {
        batch.finish_all(statuses, |statuses| {
            (pmpi::waitall(count, requests, statuses), true)
        })
    }
}

/// `MPI_Testall`
unsafe fn testall(world: &World, call: &Completion) -> Option<c_int> {
    let (count, requests, flag, statuses) = (call.count, call.requests, call.flag, call.statuses);
    // SAFETY: the caller's promise.
    let batch = unsafe { Batch::new(world, count, requests)? };
    // All of them, so that each gets on.
    let are_ready = || {
        let waiting = (0..batch.entries.len()).filter(|i| !batch.is_ready(*i));
        waiting.count() == 0
    };
    let ready = are_ready() || finish_copies(world) && are_ready();
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

/// `MPI_Waitany` and `MPI_Testany`
unsafe fn any(world: &World, call: &Completion) -> Option<c_int> {
    let (status, mut found) = (call.statuses, None);
    // SAFETY: the caller's promise.
    let batch = unsafe { batch_of(world, call)? };
    let count = batch.entries.len();
    let is_found = go_on(world, call, &batch, || {
        // SAFETY: the caller's promise.
        found = unsafe { fallback::first(count, status, |i| batch.try_one(i, status)) };
        found.is_some()
    });
    let (which, code) = found.unwrap_or((UNDEFINED, 0));
    // SAFETY: the caller's promise.
    unsafe {
        if !call.waits {
            *call.flag = c_int::from(is_found);
        }
        *call.index = which;
    }
    Some(code)
}

/// Handles that are copied before the library changes them.
const MOST_COPIED: c_int = 16;

/// `MPI_Testany`; see [`complete_at_once`].
#[inline(always)]
unsafe fn testany_at_once(call: &Completion) -> Option<c_int> {
    let (count, requests) = (call.count, call.requests);
    let (index, flag, status) = (call.index, call.flag, call.statuses);
    let are_given = !requests.is_null() && !index.is_null() && !flag.is_null();
    if !are_given || !(1..=MOST_COPIED).contains(&count) {
        return None;
    }
    // SAFETY: the caller's promise.
    let world = world().filter(|_| unsafe { library_first(requests, count as usize) })?;
    if count == 1 {
        // SAFETY: the caller's promise.
        return Some(unsafe {
            one_at_once(world, requests, status, |at| {
                // What is refused is not complete. Not all errors say that something is.
                *index = UNDEFINED;
                let code = pmpi::testany(1, requests, index, flag, at);
                (code, (code != 0 || *flag != 0) && *index == 0)
            })
        });
    }
    // SAFETY: likewise; there are as many handles as this.
    Some(unsafe { testany_of_some(world, (count, requests), (index, flag), status) })
}

/// The same of up to [`MOST_COPIED`] requests.
#[inline(never)]
unsafe fn testany_of_some(
    world: &World,
    (count, requests): (c_int, *mut c_void),
    (index, flag): (*mut c_int, *mut c_int),
    status: *mut c_void,
) -> c_int {
    // Zeros cost more than the rest of this function.
    let mut handles = [const { MaybeUninit::<Word>::uninit() }; MOST_COPIED as usize];
    let mut room = MaybeUninit::<Room>::uninit();
    let at = Room::instead_of_uninit(&mut room, status);
    // SAFETY: the caller's promise; the library writes the status if it completes a request, whose
    // index it says; there are `count` handles.
    unsafe {
        for (i, handle) in handles.iter_mut().enumerate().take(count as usize) {
            handle.write(world.abi.handle_at(requests, i));
        }
        // Not all errors say one.
        *index = UNDEFINED;
        let code = pmpi::testany(count, requests, index, flag, at);
        match *index {
            which if (0..count).contains(&which) && (code != 0 || *flag != 0) => {
                // A library that truncates has written it.
                if code != 0 && !is_truncation(world, code) {
                    room.write(Room::new());
                }
                concluded(world, handles[which as usize].assume_init(), at, code)
            }
            _ => code,
        }
    }
}

/// One pass for `MPI_Waitsome` and `MPI_Testsome`: whether any request is active, or was until now.
unsafe fn some_of(batch: &Batch<'_>, call: &Completion) -> (bool, c_int) {
    let abi = batch.world.abi;
    let (done, indices, statuses) = (call.done, call.index, call.statuses);
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

/// `MPI_Waitsome` and `MPI_Testsome`
unsafe fn some(world: &World, call: &Completion) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let batch = unsafe { batch_of(world, call)? };
    let mut code = 0;
    go_on(world, call, &batch, || {
        // SAFETY: the caller's promise.
        unsafe {
            let (active, this) = some_of(&batch, call);
            code = this;
            !active || *call.done > 0
        }
    });
    Some(code)
}

/// `MPI_Request_get_status`
pub unsafe fn get_status(
    world: &World,
    request: Word,
    flag: *mut c_int,
    status: *mut c_void,
) -> Option<c_int> {
    let entry = find(world, request)?;
    let begun = {
        let mut state = lock(&entry.state);
        state.active.then(|| state.advance(world))?
    };
    if !begun {
        finish_copies(world);
    }
    let mut state = lock(&entry.state);
    let ready = state.ready;
    let mut room = Room::new();
    // SAFETY: the caller's promise.
    unsafe {
        *flag = c_int::from(ready);
        if !ready {
            return Some(0);
        }
        let at = room.instead_of(status);
        let code = if let Work::Collective(_) = state.work {
            Status::new(world.abi, at).fill_with_nothing(UNDEFINED);
            0
        } else {
            pmpi::request_get_status(request, flag, at)
        };
        *flag = 1;
        if let Some((_, seen)) = state.seen.as_mut().filter(|_| entry.persistent) {
            let seen = Status::new(world.abi, seen.pointer());
            Status::new(world.abi, at).copy_all_but_error(seen);
        }
        if let Some(bytes) = state.bytes {
            Status::new(world.abi, at).set_bytes(bytes);
        }
        // MPICH says here that a request has failed, Open MPI when it is completed.
        if code == 0 && state.error != 0 && !world.abi.is_open_mpi() {
            let comm = state.comm().unwrap_or(world.abi.world);
            let error = state.error;
            drop(state);
            return Some(raise(comm, error));
        }
        Some(code)
    }
}

/// `MPI_Request_get_status` of one request of an array. Those that we do not know the library is
/// asked about.
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

/// `MPI_Request_get_status_any`, `_all` and `_some`
pub unsafe fn ask(world: &World, call: &Completion) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        let batch = Batch::new(world, call.count, call.requests)?;
        let look = |i, status: *mut c_void| look(&batch, i, status);
        Some(fallback::ask_each(
            world.abi,
            batch.entries.len(),
            call,
            look,
        ))
    }
}

/// `MPI_Request_free`
pub unsafe fn free(world: &World, request: *mut c_void) -> Option<c_int> {
    // SAFETY: one request.
    let batch = unsafe {
        persistent::forget(request);
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
    unusual::add_orphan();
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
    if collectives::any() && !request.is_null() {
        // SAFETY: one request.
        match unsafe { collectives::start(world.abi, request) } {
            Start::Forwarded => {}
            Start::Begun(running) => {
                remember(world, request, Work::Collective(running), false);
                return Some(0);
            }
            Start::Failed(code) => return Some(code),
        }
    }
    // SAFETY: one request.
    let batch = unsafe { Batch::new(world, 1, request)? };
    let mut state = lock(&batch.entries[0].as_ref()?.state);
    let (mut watched, handle) = (None, state.handle);
    if let Work::Start(plan, class, current) = &mut state.work {
        // SAFETY: the program promised its elements from now on.
        let mut started = unsafe { plan.start_on_device(world, handle) };
        if let Ok(None) = started {
            let (decision, trial) = match *class {
                Some(class) => class.next(world),
                None => (Decision::Intercept, None),
            };
            watched = trial;
            if decision == Decision::Intercept {
                // SAFETY: as above, or what was packed there just now.
                started = unsafe { plan.start(world) };
            }
        }
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
    let batch = unsafe { Batch::new(world, count, requests) };
    if batch.is_none() && (!collectives::any() || requests.is_null()) {
        return None;
    }
    for i in 0..usize::try_from(count).ok()? {
        let one = requests.wrapping_byte_add(i * world.abi.handle_size());
        // SAFETY: the caller's promise.
        let code = unsafe { start(world, one).unwrap_or_else(|| pmpi::start(one)) };
        if code != 0 {
            return Some(code);
        }
    }
    Some(0)
}
