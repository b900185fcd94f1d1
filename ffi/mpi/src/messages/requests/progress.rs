// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests that get on while the program waits for something else.

use crate::library::panics::caught;
use std::ffi::c_int;
use std::sync::Arc;

use libcopy::lock::lock;
use libcopy::p2p::Pause;

use crate::comm::processes::{self, World};
use crate::library::status::{Room, Status};
use crate::library::unusual;
use crate::library::{self, pmpi};
use crate::messages::handle::Handle;
use crate::messages::requests::entry::{Entry, Work, is_any_copied};
use crate::messages::requests::table::{TABLE, any, forget, forget_others};

/// Has no request be known, in a forked child: those of its parent are not its own.
pub fn forget_all() {
    library::requests::forget_all();
    unusual::forget_orphans();
    forget_others();
}

/// Goes on with what is under way after a call that returns this code, and returns it.
#[cold]
pub fn settle_orphans(code: c_int) -> c_int {
    if let Some(world) = processes::world() {
        let _ = caught(|| {
            world.attend_all();
            settle(world);
        });
    }
    code
}

/// Has what waits go on with requests.
pub fn register() {
    processes::register(settle);
}

/// Waits for what devices copy, all of it at the same time: senders wait for that, and the program
/// may not come back soon. Whether there was any.
pub(super) fn finish_copies(world: &World) -> bool {
    let (mut pause, mut were_any) = (Pause::new(), false);
    while is_any_copied() {
        // What another thread has begun, or holds, it looks after.
        let is_left = |entry: &Arc<Entry>| {
            let state = entry.state.try_lock();
            state.is_ok_and(|mut state| state.copied.is_some() && !state.advance(world))
        };
        let entries: Vec<_> = TABLE.read().values().cloned().collect();
        let left = entries.iter().filter(|entry| is_left(entry)).count();
        were_any = true;
        if left == 0 {
            break;
        }
        if pause.step() {
            world.attend_all();
        }
    }
    were_any
}

/// Goes on with everything that is under way.
pub fn settle(world: &World) {
    if !any() {
        return;
    }
    advance_all(world);
    finish_copies(world);
}

fn advance_all(world: &World) {
    let Some(entries) = TABLE.try_all() else {
        return;
    };
    for entry in entries {
        let Ok(mut state) = entry.state.try_lock() else {
            continue;
        };
        if !state.active || state.gone || !state.advance(world) || !state.orphan {
            continue;
        }
        state.gone = true;
        unusual::remove_orphan();
        let handle = state.handle;
        state.end(world);
        forget(handle);
        let mut request = Handle::new(world, handle);
        let mut room = Room::new();
        // SAFETY: nobody else knows this request any more.
        unsafe {
            let code = match &state.work {
                Work::Collective(_) => 0,
                _ => pmpi::wait(request.pointer(), room.pointer()),
            };
            if let Work::Send(shared, _) = &state.work {
                if code == 0 && Status::new(world.abi, room.pointer()).is_cancelled() {
                    lock(shared).withdraw(world);
                }
            }
            if entry.persistent || matches!(state.work, Work::Send(..) | Work::Collective(_)) {
                pmpi::request_free(request.pointer());
            }
        }
    }
}

/// Waits until `done` says so, letting everything else get on than the `own` requests it asks for.
pub(super) fn until(world: &World, own: usize, mut done: impl FnMut() -> bool) {
    let mut pause = Pause::new();
    while !done() {
        if pause.should_look() {
            world.give_up_lost();
        }
        if pause.step() {
            world.attend_all();
            if TABLE.len() > own {
                settle(world);
            }
        }
    }
    // Of requests that are not waited for.
    finish_copies(world);
}
