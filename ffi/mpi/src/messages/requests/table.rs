// SPDX-License-Identifier: MIT OR Apache-2.0

//! The requests that we know, by handle.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use libcopy::lock::lock;
use libcopy::p2p;

use crate::comm::processes::{World, world};
use crate::decide::threshold::handle_at;
use crate::library::abi::Word;
use crate::library::requests::{Role, Table};
use crate::library::status::{Room, Status};
use crate::library::threads;
use crate::messages::arguments::{Address, Mode};
use crate::messages::governed::Watched;
use crate::messages::incoming::Arrival;
use crate::messages::offering::Candidate;
use crate::messages::requests::entry::{Entry, State, Work};
use crate::messages::sending::Plan;

pub(super) static TABLE: Table<Arc<Entry>> = Table::new(Role::Message);

/// Entries that are not receives of their own time: sends, and all persistent ones.
static OTHERS: AtomicUsize = AtomicUsize::new(0);

/// The handles of some of these, and how many there are besides. Threads that write to them at the
/// same time leave them wrong, and do not read them ([`library_first`]).
static LISTED: [AtomicUsize; 4] = [const { AtomicUsize::new(NONE) }; 4];
static UNLISTED: AtomicUsize = AtomicUsize::new(0);

/// No handle.
const NONE: Word = Word::MAX;

/// Whether any request is known.
#[inline(always)]
pub fn any() -> bool {
    Role::Message.exists()
}

/// Makes a request known. An active persistent one counts as started.
pub fn remember(world: &World, request: *const c_void, work: Work, persistent: bool) {
    remember_watched(world, request, work, persistent, None);
}

/// Makes a receive known that the call which made it waits for, so that it is fetched as soon as it
/// has come.
pub fn remember_own(world: &World, request: *const c_void, arrival: Arrival) {
    put(Entry {
        receives: false,
        ..entry(world, request, Work::Receive(arrival), false, None)
    });
}

/// Has the starts of a persistent send offer what is in device memory.
pub fn offers(world: &World, request: *const c_void, (mode, to): (Mode, Address), what: Candidate) {
    // SAFETY: the library has written a handle there.
    let handle = unsafe { world.abi.handle_at(request, 0) };
    if let Some(entry) = find(world, handle) {
        if let Work::Start(plan, ..) = &mut lock(&entry.state).work {
            plan.device = Some(what);
        }
        return;
    }
    let mut plan = Plan::new(world, mode, to);
    plan.device = Some(what);
    remember(world, request, Work::Start(plan, None, None), true);
}

/// Makes a request known, and lets go of `watched` when it is complete.
pub fn remember_watched(
    world: &World,
    request: *const c_void,
    work: Work,
    persistent: bool,
    watched: Option<Watched>,
) {
    put(entry(world, request, work, persistent, watched));
}

/// Makes a receive known of which the library has said this, when it was asked.
pub fn remember_seen(
    world: &World,
    request: *const c_void,
    arrival: Arrival,
    persistent: bool,
    (code, mut room): (c_int, Room),
) {
    let entry = entry(world, request, Work::Receive(arrival), persistent, None);
    let mut state = lock(&entry.state);
    // SAFETY: the library has written it.
    let status = unsafe { Status::new(world.abi, room.pointer()) };
    state.active = true;
    state.arrive_wholly(world, status, code);
    state.seen = Some((code, room));
    state.ready = true;
    drop(state);
    put(entry);
}

/// What is known of a request that the library has made.
fn entry(
    world: &World,
    request: *const c_void,
    work: Work,
    persistent: bool,
    watched: Option<Watched>,
) -> Entry {
    // SAFETY: the library has written a handle there.
    let handle = unsafe { world.abi.handle_at(request, 0) } & world.abi.handle;
    Entry {
        starts: matches!(work, Work::Start(..)),
        is_receive: matches!(work, Work::Receive(_)) && !persistent,
        receives: matches!(work, Work::Receive(_)),
        state: Mutex::new(State::new(handle, work, !persistent, watched)),
        persistent,
    }
}

fn put(entry: Entry) {
    let handle = lock(&entry.state).handle;
    insert(handle, Arc::new(entry));
}

pub(super) fn insert(handle: Word, entry: Arc<Entry>) {
    let is_other = !entry.is_receive;
    if entry.receives {
        count_receive(|requests| requests.fetch_add(1, Ordering::Relaxed));
    }
    let before = TABLE.insert(handle, entry);
    if let Some(before) = before {
        is_gone(handle, &before);
    }
    if is_other {
        if OTHERS.fetch_add(1, Ordering::Relaxed) == 0 {
            Role::OtherMessage.set(true);
        }
        if !exchange_listed(NONE, handle) {
            UNLISTED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Whether a request that we know may be another thing than a receive.
#[inline(always)]
fn may_be_other(handle: Word) -> bool {
    UNLISTED.load(Ordering::Relaxed) != 0
        || LISTED
            .iter()
            .any(|listed| listed.load(Ordering::Relaxed) == handle)
}

/// Puts a handle, or none, in the place of another one in the list, if that is there.
fn exchange_listed(from: Word, to: Word) -> bool {
    let found = LISTED
        .iter()
        .find(|listed| listed.load(Ordering::Relaxed) == from);
    found
        .inspect(|listed| listed.store(to, Ordering::Relaxed))
        .is_some()
}

/// Has no request be known, in a forked child.
pub(super) fn forget_others() {
    OTHERS.store(0, Ordering::Relaxed);
    UNLISTED.store(0, Ordering::Relaxed);
    for listed in &LISTED {
        listed.store(NONE, Ordering::Relaxed);
    }
}

/// Has senders see how many requests receive.
fn count_receive(change: impl FnOnce(&AtomicU32) -> u32) {
    if let Some(world) = world() {
        change(world.segment.receive_requests(world.me));
    }
}

/// For as long as it lives, senders see one more request that receives: while the MPI library is in
/// a call that may match a message, and does not return before something else has happened.
pub struct Unfetched(());

impl Unfetched {
    /// Before the call.
    pub fn new() -> Unfetched {
        count_receive(|requests| requests.fetch_add(1, Ordering::Relaxed));
        Unfetched(())
    }
}

impl Drop for Unfetched {
    fn drop(&mut self) {
        count_receive(|requests| requests.fetch_sub(1, Ordering::Relaxed));
    }
}

/// The entry with this handle is not in the table any more.
fn is_gone(handle: Word, entry: &Entry) {
    if !entry.is_receive {
        if OTHERS.fetch_sub(1, Ordering::Relaxed) == 1 {
            Role::OtherMessage.set(false);
        }
        if !exchange_listed(handle, NONE) {
            // Threads may have left both wrong.
            let less = |count: usize| count.checked_sub(1);
            let _ = UNLISTED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
    if entry.receives {
        count_receive(|requests| requests.fetch_sub(1, Ordering::Relaxed));
    }
}

pub(super) fn find(world: &World, handle: Word) -> Option<Arc<Entry>> {
    if !any() || world.abi.same(handle, world.abi.request_null) {
        return None;
    }
    TABLE.get(handle & world.abi.handle)
}

pub(super) fn forget(handle: Word) {
    if let Some(entry) = TABLE.remove(handle) {
        is_gone(handle, &entry);
    }
}

/// Whether the library may be asked to complete these requests before we look at them: what we know
/// of them are receives only, which are complete in the library before anything of ours happens to
/// them, and no other thread can get the handle of one that is complete before we have forgotten
/// it.
///
/// # Safety
///
/// There are as many handles.
#[inline(always)]
pub unsafe fn library_first(requests: *const c_void, count: usize) -> bool {
    // SAFETY: the caller's promise.
    let may_be_other = |at: usize| may_be_other(unsafe { handle_at(requests, at) });
    let are_receives = !Role::OtherMessage.exists() || !(0..count).any(may_be_other);
    are_receives && p2p::is_quiet() && world().is_some_and(|world| !threads::are_several(world.abi))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(handle: Word, is_receive: bool) {
        let state = State::new(handle, Work::Forwarded(0), true, None);
        let entry = Entry {
            state: Mutex::new(state),
            persistent: false,
            starts: false,
            is_receive,
            receives: is_receive,
        };
        insert(handle, Arc::new(entry));
    }

    /// The library must not complete a send before its bytes are gone: each is found, however many
    /// there are, and in whatever order they come and go.
    #[test]
    fn what_is_no_receive_is_never_taken_for_one() {
        let others: Vec<Word> = (1..=7).collect();
        put(100, true);
        assert!(!may_be_other(100));
        for (index, handle) in others.iter().enumerate() {
            put(*handle, false);
            assert!(others[..=index].iter().all(|other| may_be_other(*other)));
            assert_eq!(may_be_other(100), index >= LISTED.len());
        }
        // One that takes the handle of another.
        put(2, false);
        for (gone, handle) in [3, 7, 1, 6, 2, 5, 4].into_iter().enumerate() {
            forget(handle);
            assert_eq!(OTHERS.load(Ordering::Relaxed), others.len() - 1 - gone);
            let left = others.iter().filter(|other| find_entry(**other));
            left.for_each(|other| assert!(may_be_other(*other), "{other}"));
        }
        assert!(
            !others
                .iter()
                .chain([&100])
                .any(|other| may_be_other(*other))
        );
        // The handle is a receive's now.
        put(4, true);
        assert!(!may_be_other(4));
        forget(4);
        forget(100);
        assert_eq!(TABLE.len(), 0);
    }

    fn find_entry(handle: Word) -> bool {
        TABLE.get(handle).is_some()
    }
}
