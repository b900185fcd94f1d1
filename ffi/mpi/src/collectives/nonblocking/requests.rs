// SPDX-License-Identifier: MIT OR Apache-2.0

//! The requests of collectives that are under way. To the MPI library they are generalized requests
//! (MPI 4.1, section 13.2), which it is told to complete when ours is over; so its own functions
//! free them, write statuses and choose among requests of all kinds. Ours only see to it that what
//! somebody asks for gets on before.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::collectives::nonblocking::operation::Operation;
use crate::comm::nonblocking_group::NonblockingGroup;
use crate::library::abi::{Abi, UNDEFINED, Word};
use crate::library::requests::{Completion, Role, Which};
use crate::library::status::Status;
use crate::library::{pmpi, progress, world_model};
use libcopy::lock::lock;

/// Bytes that a function moves at most which does not wait.
const PORTION: usize = 1 << 20;

struct Entry {
    handle: Word,
    operation: Operation,
    /// What the library's request says when it is asked, which has it as well.
    code: Arc<AtomicI32>,
}

static ENTRIES: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// Whether any is under way.
#[inline(always)]
pub fn any() -> bool {
    Role::Collective.exists()
}

/// What the status of a collective says: nothing but whether it went wrong.
unsafe extern "C-unwind" fn query(extra: *mut c_void, status: *mut c_void) -> c_int {
    // SAFETY: the library gives back what it was given, and a status of its own.
    unsafe {
        if let Ok(abi) = crate::library::abi::get() {
            Status::new(abi, status).fill_with_nothing(UNDEFINED);
        }
        (*extra.cast::<AtomicI32>()).load(Ordering::Acquire)
    }
}

unsafe extern "C-unwind" fn free(extra: *mut c_void) -> c_int {
    // SAFETY: the library frees its own once.
    drop(unsafe { Arc::from_raw(extra.cast::<AtomicI32>().cast_const()) });
    0
}

/// A collective cannot be cancelled.
unsafe extern "C-unwind" fn cancel(_extra: *mut c_void, _complete: c_int) -> c_int {
    0
}

/// Has the operation that `begin` begins stand behind a new request.
///
/// # Safety
///
/// The request is a variable of the caller's.
pub unsafe fn start(
    abi: &Abi,
    members: &Arc<NonblockingGroup>,
    request: *mut c_void,
    begin: impl FnOnce() -> Operation,
) -> c_int {
    let code = Arc::new(AtomicI32::new(0));
    let theirs = Arc::into_raw(code.clone()).cast_mut().cast();
    // SAFETY: the functions have the types that the standard asks for.
    let answer = unsafe { pmpi::grequest_start(query, free, cancel, theirs, request) };
    if answer != 0 {
        // SAFETY: the library has not taken it.
        unsafe { free(theirs) };
        return answer;
    }
    // Its place in the table may be in use by an operation that we have not seen the end of.
    let (next, depth) = (members.group.coming(), members.group.table.depth());
    if next > depth {
        until(abi, || {
            let entries = lock(&ENTRIES);
            let mut entries = entries.iter();
            !entries.any(|entry| entry.operation.is_before(members, next - depth))
        });
    }
    let operation = begin();
    // SAFETY: the library has written a handle there.
    let handle = unsafe { abi.handle_at(request, 0) } & abi.handle;
    let mut entries = lock(&ENTRIES);
    entries.push(Entry {
        handle,
        operation,
        code,
    });
    Role::Collective.set(true);
    0
}

/// Goes on with all that are under way, and tells the library of those that are over; returns
/// whether anything got on.
fn advance(abi: &Abi, budget: usize) -> bool {
    let (mut moved, mut failed) = (false, None);
    let mut entries = lock(&ENTRIES);
    let mut index = 0;
    while let Some(entry) = entries.get_mut(index) {
        moved |= entry.operation.advance(abi, budget);
        if !entry.operation.is_over() {
            index += 1;
            continue;
        }
        let entry = entries.remove(index);
        Role::Collective.set(!entries.is_empty());
        let code = entry.operation.conclude(abi);
        failed = failed.or((code != 0).then_some(code));
        entry.code.store(code, Ordering::Release);
        // SAFETY: the handle of a request that is not complete.
        unsafe { pmpi::grequest_complete(entry.handle) };
        moved = true;
    }
    drop(entries);
    // Not while we hold what is under way: the program's handler may ask for it.
    if let Some(code) = failed {
        world_model::raise(code);
    }
    moved
}

/// How long to wait before the processor is given away, where there is one for each rank: others
/// that gets it keeps it for longer than most pieces take.
const SPIN: Duration = Duration::from_micros(200);
/// How often to look who lives.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until `done`, while everything that this process has under way goes on.
fn until(abi: &Abi, mut done: impl FnMut() -> bool) {
    let is_oversubscribed = lock(&ENTRIES)
        .iter()
        .any(|entry| entry.operation.is_oversubscribed());
    let spin = if is_oversubscribed {
        Duration::ZERO
    } else {
        SPIN
    };
    let (mut since, mut looked, mut rounds) = (Instant::now(), Instant::now(), 0u32);
    loop {
        let moved = advance(abi, usize::MAX);
        if done() {
            return;
        }
        rounds = rounds.wrapping_add(1);
        if moved {
            since = Instant::now();
        }
        if since.elapsed() < spin {
            if rounds % 32 == 0 {
                progress::everything();
            }
            std::hint::spin_loop();
            continue;
        }
        progress::everything();
        std::thread::yield_now();
        if looked.elapsed() > LOOK {
            looked = Instant::now();
            for entry in lock(&ENTRIES).iter_mut() {
                entry.operation.look(abi);
            }
        }
    }
}

/// Whether one of these requests is under way here.
///
/// # Safety
///
/// There are `count` requests.
unsafe fn is_any_of(abi: &Abi, count: usize, requests: *const c_void) -> bool {
    let entries = lock(&ENTRIES);
    (0..count).any(|index| {
        // SAFETY: the caller's promise.
        let handle = unsafe { abi.handle_at(requests, index) } & abi.handle;
        entries.iter().any(|entry| entry.handle == handle)
    })
}

/// Before a function that tells how requests are doing: those that are under way get on.
#[cold]
pub fn before_asking(abi: &Abi) {
    advance(abi, PORTION);
}

/// Before a function that waits for these: none of them is under way here any more.
///
/// # Safety
///
/// There are `count` requests.
#[cold]
pub unsafe fn before_waiting(abi: &Abi, count: c_int, requests: *const c_void) {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller's promise.
    unsafe {
        if is_any_of(abi, count, requests) {
            until(abi, || !is_any_of(abi, count, requests));
        }
    }
}

/// Before a function that completes requests; its code, if nothing is left to do. `ask` is the
/// function that does not wait, and returns its code, and whether it has found what is waited for.
///
/// # Safety
///
/// As the MPI standard says.
#[cold]
pub unsafe fn before(
    abi: &Abi,
    call: &Completion,
    mut ask: impl FnMut() -> (c_int, bool),
) -> Option<c_int> {
    if !call.waits {
        before_asking(abi);
        return None;
    }
    let count = usize::try_from(call.count).unwrap_or(0);
    // SAFETY: the caller's promise.
    unsafe {
        match call.which {
            Which::One | Which::All => before_waiting(abi, call.count, call.requests),
            Which::Any | Which::Some if is_any_of(abi, count, call.requests) => {
                let mut code = 0;
                until(abi, || {
                    let (answer, found) = ask();
                    code = answer;
                    found || answer != 0
                });
                return Some(code);
            }
            Which::Any | Which::Some => {}
        }
    }
    None
}
