// SPDX-License-Identifier: MIT OR Apache-2.0

//! Nonblocking receives that are shorter than any message that is intercepted, but not than its header. A
//! header that arrives there stands for a message that is too long, which the MPI library cannot know: it
//! has received all that came. So these requests are noted, by handle, and the call that completes one looks at
//! its status: a length that names a slot which is under way to us is `MPI_ERR_TRUNCATE`.
//!
//! The functions that complete requests are called as without that, only with a status where the program
//! wants none; nothing of a request is kept but its communicator. Nobody has to look at what was received:
//! [`super::probes::is_header`] says why.
//!
//! All of this has to cost a nanosecond or two: every short receive of the program is noted, and an error is
//! hardly ever found. So each handle has one place in the table, which a later one with the same place takes
//! from it; such a receive is not looked at.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libcopy::p2p::header;

use super::incoming::{self, raise};
use super::status::{Room, Status, is_ignored};
use super::world::{World, world};
use crate::abi::Word;
use crate::{comm, threshold};

/// A place of the table: a request that is noted, or zeros.
struct Entry {
    handle: AtomicUsize,
    comm: AtomicUsize,
}

/// Bits of a place's number.
const BITS: u32 = 12;

#[repr(align(64))]
struct Table([Entry; 1 << BITS]);

static TABLE: Table = Table(
    [const {
        Entry {
            handle: AtomicUsize::new(0),
            comm: AtomicUsize::new(0),
        }
    }; 1 << BITS],
);

/// Whether any request has ever been noted.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Whether any request may be noted.
#[inline(always)]
pub fn is_in_use() -> bool {
    IN_USE.load(Ordering::Relaxed)
}

#[inline(always)]
fn place_of(handle: usize) -> &'static Entry {
    // Fibonacci hashing: addresses and small numbers that have the same distance get places of their own.
    let mixed = (handle as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &TABLE.0[(mixed >> (u64::BITS - BITS)) as usize]
}

/// Communicators of noted requests that are known, with the generations of their handles: the library must
/// not be asked about one that the program has freed meanwhile.
static FAMILIAR: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// Where a communicator is noted that is known, and what is there as long as that is so.
#[inline(always)]
fn familiar(comm: Word) -> (&'static AtomicUsize, usize) {
    // Only the low half of a word may be a handle.
    let number = (comm as u32).wrapping_mul(0x9e37_79b1) >> 26;
    // Addresses have 48 bits.
    let token = comm ^ (comm::generation(comm) as usize) << 48;
    (&FAMILIAR[number as usize], token)
}

#[inline(always)]
fn is_familiar(comm: Word) -> bool {
    let (place, token) = familiar(comm);
    place.load(Ordering::Relaxed) == token
}

/// Gets to know a communicator; whether that is possible.
#[cold]
fn meet(world: &World, comm: Word) -> bool {
    let known = catch_unwind(AssertUnwindSafe(|| comm::of(world.abi, comm).is_ok()));
    let (place, token) = familiar(comm);
    if let Ok(true) = known {
        place.store(token, Ordering::Relaxed);
    }
    is_familiar(comm)
}

/// A handle of an array.
///
/// # Safety
///
/// The array has more handles than `index`.
#[inline(always)]
unsafe fn handle_at(requests: *const c_void, index: usize) -> usize {
    // SAFETY: the caller's promise; the library's handles are as wide as that mask.
    unsafe {
        match threshold::handle_bits() {
            usize::MAX => requests.cast::<usize>().add(index).read(),
            _ => requests.cast::<u32>().add(index).read() as usize,
        }
    }
}

/// Whether any request of an array is noted.
///
/// # Safety
///
/// The array has `count` handles.
#[inline(always)]
pub unsafe fn has_any(count: c_int, requests: *const c_void) -> bool {
    if !is_in_use() || requests.is_null() {
        return false;
    }
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller's promise; the library's handles are as wide as that mask.
    unsafe {
        match threshold::handle_bits() {
            usize::MAX => (0..count).any(|i| is_noted(requests.cast::<usize>().add(i).read())),
            _ => (0..count).any(|i| is_noted(requests.cast::<u32>().add(i).read() as usize)),
        }
    }
}

#[inline(always)]
fn is_noted(handle: usize) -> bool {
    place_of(handle).handle.load(Ordering::Relaxed) == handle
}

/// Notes a request that the library has made for a receive from `source`, if its code says so, and returns
/// the code.
#[inline(always)]
pub fn noted(code: c_int, source: c_int, comm: Word, request: *const c_void) -> c_int {
    if let Some(world) = world().filter(|_| code == 0) {
        note(world, source, comm, request);
    }
    code
}

/// Notes a request for a receive.
#[inline(always)]
pub fn note(world: &World, source: c_int, comm: Word, request: *const c_void) {
    // Below zero are MPI_PROC_NULL and, with another number, MPI_ANY_SOURCE.
    if source < 0 && source != world.abi.any_source {
        return;
    }
    if !is_familiar(comm) && !meet(world, comm) {
        return;
    }
    // SAFETY: the library has written a handle there.
    let handle = unsafe { handle_at(request, 0) };
    let entry = place_of(handle);
    entry.comm.store(comm, Ordering::Relaxed);
    entry.handle.store(handle, Ordering::Relaxed);
    if !is_in_use() {
        IN_USE.store(true, Ordering::Relaxed);
    }
}

/// A noted request of an array. It is out of the table, before the library frees the handle and another
/// thread gets it.
#[derive(Clone, Copy)]
struct Found {
    index: usize,
    handle: usize,
    comm: Word,
}

impl Found {
    /// # Safety
    ///
    /// The array has more handles than `index`.
    #[inline(always)]
    unsafe fn take(requests: *const c_void, index: usize) -> Option<Found> {
        // SAFETY: the caller's promise.
        let handle = unsafe { handle_at(requests, index) };
        let entry = place_of(handle);
        if entry.handle.load(Ordering::Relaxed) != handle || handle == 0 {
            return None;
        }
        entry.handle.store(0, Ordering::Relaxed);
        let comm = entry.comm.load(Ordering::Relaxed);
        Some(Found {
            index,
            handle,
            comm,
        })
    }

    /// Notes it again if the library has not freed it: it is not complete, or a persistent one.
    ///
    /// # Safety
    ///
    /// As for [`Found::take`].
    #[inline(always)]
    unsafe fn put_back(self, requests: *const c_void) {
        // SAFETY: the caller's promise.
        if unsafe { handle_at(requests, self.index) } == self.handle {
            let entry = place_of(self.handle);
            entry.comm.store(self.comm, Ordering::Relaxed);
            entry.handle.store(self.handle, Ordering::Relaxed);
        }
    }

    /// Whether it has received a header; then its status says that it is truncated, and the sender has its
    /// slot back.
    ///
    /// # Safety
    ///
    /// The library has written the status.
    #[inline(always)]
    unsafe fn is_cut(self, world: &World, status: *mut c_void) -> bool {
        // SAFETY: the caller's promise.
        let status = unsafe { Status::new(world.abi, status) };
        let is_plain = header::slot_of(status.bytes()).is_none_or(|slot| world.is_unposted(slot));
        if is_plain || !is_familiar(self.comm) || !incoming::cut_short(world, self.comm, status) {
            return false;
        }
        status.set_error(world.abi.truncate);
        true
    }

    /// After a function with this code that completes one request, and may have completed this one.
    ///
    /// # Safety
    ///
    /// `request` is the program's variable; the library has written the status if the code is 0.
    #[inline(always)]
    unsafe fn conclude(self, status: *mut c_void, code: c_int) -> c_int {
        let Some(world) = world().filter(|_| code == 0) else {
            return code;
        };
        // SAFETY: the caller's promise.
        if unsafe { self.is_cut(world, status) } {
            raise(self.comm, world.abi.truncate)
        } else {
            code
        }
    }
}

/// Requests of an array for which there is room on the stack.
const FEW: usize = 32;

/// The noted requests of an array that is completed.
struct Several<'a> {
    requests: *mut c_void,
    found: &'a [Found],
}

impl Several<'_> {
    /// Has `complete` call the library's function, with the noted requests of an array, if there are any, and
    /// then with statuses in any case: the program's, or others if it wants none.
    ///
    /// # Safety
    ///
    /// The array has `count` handles.
    #[inline(always)]
    unsafe fn with(
        count: c_int,
        requests: *mut c_void,
        statuses: *mut c_void,
        complete: impl FnOnce(Option<Several<'_>>, *mut c_void) -> c_int,
    ) -> c_int {
        let count = usize::try_from(count).unwrap_or(0);
        let (mut few, mut rooms) = (
            [const { MaybeUninit::uninit() }; FEW],
            [const { MaybeUninit::<Room>::uninit() }; FEW],
        );
        let (mut many, mut more_rooms) = (Vec::new(), Vec::<Room>::new());
        let list = if count > FEW {
            many.reserve_exact(count);
            many.spare_capacity_mut()
        } else {
            &mut few[..]
        };
        let mut number = 0;
        for index in 0..count {
            // SAFETY: the caller's promise.
            if let Some(found) = unsafe { Found::take(requests, index) } {
                list[number].write(found);
                number += 1;
            }
        }
        if number == 0 {
            return complete(None, statuses);
        }
        // SAFETY: `number` of them were written.
        let found = unsafe { std::slice::from_raw_parts(list.as_ptr().cast(), number) };
        let statuses = if !is_ignored(statuses) {
            statuses
        } else if count > FEW {
            more_rooms.reserve_exact(count);
            more_rooms.as_mut_ptr().cast()
        } else {
            rooms.as_mut_ptr().cast()
        };
        complete(Some(Several { requests, found }), statuses)
    }

    /// Notes again what is not complete.
    ///
    /// # Safety
    ///
    /// The array is still there.
    #[inline(always)]
    unsafe fn put_back(&self) {
        for found in self.found {
            // SAFETY: the caller's promise.
            unsafe { found.put_back(self.requests) };
        }
    }

    fn find(&self, index: c_int) -> Option<Found> {
        let index = usize::try_from(index).ok()?;
        let place = self.found.binary_search_by_key(&index, |found| found.index);
        place.ok().map(|place| self.found[place])
    }

    /// After a function that has completed one request.
    ///
    /// # Safety
    ///
    /// The status was written if the code is 0 and the index one of the array's.
    unsafe fn one(&self, index: c_int, status: *mut c_void, code: c_int) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            self.put_back();
            match self.find(index) {
                Some(found) => found.conclude(status, code),
                None => code,
            }
        }
    }

    /// After a function that has completed all, of which there are `count`.
    ///
    /// # Safety
    ///
    /// As for [`Several::conclude`].
    #[inline(always)]
    unsafe fn all(&self, count: c_int, statuses: *mut c_void, code: c_int) -> c_int {
        let completed = self.found.iter().map(|found| (found.index, *found));
        // SAFETY: the caller's promise.
        unsafe { self.conclude(count as usize, statuses, code, completed) }
    }

    /// After a function that has completed several, with `count` statuses; `completed` are places of those
    /// that are noted, and which they are.
    ///
    /// # Safety
    ///
    /// The statuses were written if the code is 0 or `MPI_ERR_IN_STATUS`.
    #[inline(always)]
    unsafe fn conclude(
        &self,
        count: usize,
        statuses: *mut c_void,
        code: c_int,
        completed: impl Iterator<Item = (usize, Found)>,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe { self.put_back() };
        let Some(world) = world() else {
            return code;
        };
        let abi = world.abi;
        if code != 0 && code != abi.in_status {
            return code;
        }
        let mut cut = None;
        for (place, found) in completed {
            // SAFETY: the caller's promise.
            unsafe {
                let status = Status::of_array(abi, statuses, place);
                // What has failed is over, or is not complete.
                let is_complete = code == 0 || status.error() == 0;
                if !is_complete || !found.is_cut(world, status.pointer()) {
                    continue;
                }
                // Only a function that fails writes the errors of all.
                if code == 0 && cut.is_none() {
                    for other in (0..count).filter(|other| *other != place) {
                        Status::of_array(abi, statuses, other).set_error(0);
                    }
                }
            }
            cut = Some(found.comm);
        }
        match cut {
            Some(comm) if code == 0 => raise(comm, abi.in_status),
            _ => code,
        }
    }
}

/// `MPI_Wait`; `inner` is the function as it is without this.
///
/// # Safety
///
/// As the MPI standard says, for this and all functions below.
#[inline(never)]
pub unsafe fn wait(
    request: *mut c_void,
    status: *mut c_void,
    inner: impl FnOnce(*mut c_void, *mut c_void) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(found) = Found::take(request, 0) else {
            return inner(request, status);
        };
        let mut room = Room::new();
        let at = room.instead_of(status);
        let code = inner(request, at);
        found.put_back(request);
        found.conclude(at, code)
    }
}

/// `MPI_Test`
#[inline(never)]
pub unsafe fn test(
    request: *mut c_void,
    flag: *mut c_int,
    status: *mut c_void,
    inner: impl FnOnce(*mut c_void, *mut c_int, *mut c_void) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(found) = Found::take(request, 0) else {
            return inner(request, flag, status);
        };
        let mut room = Room::new();
        let at = room.instead_of(status);
        let code = inner(request, flag, at);
        found.put_back(request);
        if code == 0 && *flag == 0 {
            0
        } else {
            found.conclude(at, code)
        }
    }
}

/// `MPI_Waitall`
#[inline(never)]
pub unsafe fn waitall(
    count: c_int,
    requests: *mut c_void,
    statuses: *mut c_void,
    inner: impl FnOnce(c_int, *mut c_void, *mut c_void) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        Several::with(count, requests, statuses, |several, at| {
            let code = inner(count, requests, at);
            match several {
                Some(several) => several.all(count, at, code),
                None => code,
            }
        })
    }
}

/// `MPI_Testall`
#[inline(never)]
pub unsafe fn testall(
    count: c_int,
    requests: *mut c_void,
    flag: *mut c_int,
    statuses: *mut c_void,
    inner: impl FnOnce(c_int, *mut c_void, *mut c_int, *mut c_void) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        Several::with(count, requests, statuses, |several, at| {
            let code = inner(count, requests, flag, at);
            match several {
                Some(several) if code == 0 && *flag == 0 => {
                    several.put_back();
                    0
                }
                Some(several) => several.all(count, at, code),
                None => code,
            }
        })
    }
}

/// `MPI_Waitany`
#[inline(never)]
pub unsafe fn waitany(
    count: c_int,
    requests: *mut c_void,
    index: *mut c_int,
    status: *mut c_void,
    inner: impl FnOnce(c_int, *mut c_void, *mut c_int, *mut c_void) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        Several::with(count, requests, status, |several, at| {
            let code = inner(count, requests, index, at);
            match several {
                Some(several) => several.one(*index, at, code),
                None => code,
            }
        })
    }
}

/// `MPI_Testany`
#[inline(never)]
pub unsafe fn testany(
    count: c_int,
    requests: *mut c_void,
    index: *mut c_int,
    flag: *mut c_int,
    status: *mut c_void,
    inner: impl FnOnce(c_int, *mut c_void, *mut c_int, *mut c_int, *mut c_void) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        Several::with(count, requests, status, |several, at| {
            let code = inner(count, requests, index, flag, at);
            match several {
                Some(several) if code == 0 && *flag == 0 => {
                    several.put_back();
                    0
                }
                Some(several) => several.one(*index, at, code),
                None => code,
            }
        })
    }
}

/// `MPI_Waitsome` and `MPI_Testsome`
#[inline(never)]
pub unsafe fn some(
    count: c_int,
    requests: *mut c_void,
    done: *mut c_int,
    indices: *mut c_int,
    statuses: *mut c_void,
    inner: impl FnOnce(c_int, *mut c_void, *mut c_int, *mut c_int, *mut c_void) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        Several::with(count, requests, statuses, |several, at| {
            let code = inner(count, requests, done, indices, at);
            let Some(several) = several else {
                return code;
            };
            // Below zero is MPI_UNDEFINED.
            let number = (*done).clamp(0, count) as usize;
            let of = |place| {
                let found = several.find(indices.add(place).read());
                found.map(|found| (place, found))
            };
            several.conclude(number, at, code, (0..number).filter_map(of))
        })
    }
}

/// `MPI_Request_free`
#[cold]
pub unsafe fn free(request: *mut c_void, inner: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    let _forgotten = unsafe { Found::take(request, 0) };
    inner(request)
}
