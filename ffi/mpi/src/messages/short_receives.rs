// SPDX-License-Identifier: MIT OR Apache-2.0

//! Nonblocking receives that are shorter than any message that is intercepted. A header that
//! arrives there stands for a message that is too long, which the MPI library cannot know: it has
//! received all that came, or truncates the header. So these requests are noted, by handle, and the
//! call that completes one looks at its status: a length that names a slot which is under way to us
//! is `MPI_ERR_TRUNCATE`, and so is what the library truncates ([`crate::messages::truncation`]).
//!
//! The functions that complete requests are called as without that, only with a status where the
//! program wants none; nothing of a request is kept but its arguments. All of this has to cost a
//! nanosecond or two: every short receive of the program is noted, and an error is hardly ever
//! found. So the table has a set of four places for each handle, the first of which is in one cache
//! line with the handles. A request that finds them taken is remembered as longer ones are.

use crate::library::panics::caught;
use crate::library::threads;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use libcopy::p2p::header;

use crate::comm::communicator;
use crate::comm::processes::{World, world};
use crate::decide::threshold;
use crate::decide::threshold::handle_at;
use crate::library::abi::Word;
use crate::library::pmpi;
use crate::library::requests::{Completion, Role, Roles, Which};
use crate::library::status::{Room, Status, is_ignored};
use crate::library::unusual;
use crate::messages::arguments::Elements;
use crate::messages::handle::Handle;
use crate::messages::incoming::{Arrival, When, raise};
use crate::messages::requests::Work;
use crate::messages::{requests, truncation};
use crate::types::datatype;

/// What is known of a request that is noted: the words of [`Found::words`].
struct Entry([AtomicUsize; WORDS]);

const WORDS: usize = 4;

/// Bits of a set's number.
const BITS: u32 = 11;

/// Places of a set.
const WAYS: usize = 4;

/// Requests with related handles. The first place is the one that is used as a rule.
#[repr(align(64))]
struct Set {
    /// Zeros where a place is free, and [`RESERVED`] while a call waits for its request.
    handles: [AtomicUsize; WAYS],
    entries: [Entry; WAYS],
}

static SETS: [Set; 1 << BITS] = [const {
    Set {
        handles: [const { AtomicUsize::new(0) }; WAYS],
        entries: [const { Entry([const { AtomicUsize::new(0) }; WORDS]) }; WAYS],
    }
}; 1 << BITS];

/// No handle of any request.
const RESERVED: usize = 1;

/// Whether any request may be noted.
#[inline(always)]
fn is_in_use() -> bool {
    Role::Short.exists()
}

impl Set {
    #[inline(always)]
    fn of(handle: usize) -> &'static Set {
        // Fibonacci hashing: addresses and small numbers that have the same distance get sets of
        // their own.
        let mixed = (handle as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &SETS[(mixed >> (u64::BITS - BITS)) as usize]
    }

    /// Where a handle is noted.
    #[inline(always)]
    fn find(&self, handle: usize) -> Option<usize> {
        let is_it = |other: &AtomicUsize| other.load(Ordering::Relaxed) == handle;
        self.handles.iter().position(is_it)
    }

    /// Takes the first place, if that is free, and the handle is not noted in another one.
    #[inline(always)]
    fn take_first(&self, handle: usize) -> Option<usize> {
        let is_free = self.handles[0].load(Ordering::Relaxed) == 0;
        if !is_free || self.find(handle).is_some() {
            return None;
        }
        self.handles[0].store(handle, Ordering::Relaxed);
        Some(0)
    }

    /// Takes a free place for a handle, or the one that it had: its request was completed where we
    /// do not see it.
    fn take(&self, handle: usize, has_threads: bool) -> Option<usize> {
        let take = |place: &AtomicUsize| {
            if place.load(Ordering::Relaxed) != 0 {
                return false;
            }
            if has_threads {
                let (set, fetch) = (Ordering::Acquire, Ordering::Relaxed);
                return place.compare_exchange(0, handle, set, fetch).is_ok();
            }
            place.store(handle, Ordering::Relaxed);
            true
        };
        let place = self.find(handle);
        place.or_else(|| self.handles.iter().position(take))
    }
}

/// The place of a handle.
#[inline(always)]
fn place_of(handle: usize) -> Option<&'static AtomicUsize> {
    if handle <= RESERVED {
        return None;
    }
    let set = Set::of(handle);
    set.find(handle).map(|way| &set.handles[way])
}

/// Communicators of noted requests that are known, with the generations of their handles: the
/// library must not be asked about one that the program has freed meanwhile.
static FAMILIAR: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

/// Where a communicator is noted that is known, and what is there as long as that is so.
#[inline(always)]
fn familiar(comm: Word) -> (&'static AtomicUsize, usize) {
    // Only the low half of a word may be a handle.
    let number = (comm as u32).wrapping_mul(0x9e37_79b1) >> 26;
    // Addresses have 48 bits.
    let token = comm ^ (communicator::generation(comm) as usize) << 48;
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
    let known = caught(|| communicator::of(world.abi, comm).is_ok());
    let (place, token) = familiar(comm);
    if let Ok(true) = known {
        place.store(token, Ordering::Relaxed);
    }
    is_familiar(comm)
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

/// Whether any request of a call may be noted; [`complete`] finds out whether one is.
#[inline(always)]
pub fn may_have(call: &Completion) -> bool {
    !call.requests.is_null()
}

/// Whether a request is noted.
#[inline(always)]
pub fn is_noted(handle: Word) -> bool {
    place_of(handle & threshold::handle_bits()).is_some()
}

/// Notes a request that the library has made for such a receive of a predefined type, from a source
/// on a communicator, if its code says so, and returns the code.
#[inline(always)]
pub fn noted(code: c_int, what: Elements, from: (c_int, Word), request: *const c_void) -> c_int {
    if let Some(world) = world().filter(|_| code == 0) {
        if !note_at_once(world, what, from, request) {
            note(world, what, from, request, (0, false));
        }
    }
    code
}

/// Does so if, as is the rule, one thread calls, the communicator is known, and the first place is
/// free; whether all is done.
#[inline(always)]
fn note_at_once(
    world: &World,
    what: Elements,
    (source, comm): (c_int, Word),
    request: *const c_void,
) -> bool {
    // Below zero are MPI_PROC_NULL and, with another number, MPI_ANY_SOURCE.
    if source < 0 && source != world.abi.any_source {
        return true;
    }
    let roles = Roles::NOTED.now();
    if roles.have(Role::Threads) || !roles.have(Role::Short) || !is_familiar(comm) {
        return false;
    }
    let Some(count) = what.count.filter(|count| *count <= u32::MAX as usize) else {
        return false;
    };
    // SAFETY: the library has written a handle there.
    let handle = unsafe { handle_at(request, 0) };
    let set = Set::of(handle);
    let Some(way) = set.take_first(handle) else {
        return false;
    };
    set.entries[way].write([what.buffer as usize, what.datatype, comm, count]);
    true
}

/// Notes a request for a receive, whose type's handle has this generation (0 of predefined ones).
#[inline(never)]
pub fn note(
    world: &World,
    what: Elements,
    (source, comm): (c_int, Word),
    request: *const c_void,
    (generation, is_persistent): (u64, bool),
) {
    // Below zero are MPI_PROC_NULL and, with another number, MPI_ANY_SOURCE.
    if source < 0 && source != world.abi.any_source {
        return;
    }
    let Some(count) = what.count else {
        return;
    };
    if !is_familiar(comm) && !meet(world, comm) {
        return;
    }
    // SAFETY: the library has written a handle there.
    let handle = unsafe { handle_at(request, 0) };
    let found = Found {
        index: 0,
        handle,
        buffer: what.buffer as usize,
        count,
        datatype: what.datatype,
        generation,
        comm,
        is_persistent,
    };
    if !found.store(threads::are_several(world.abi)) {
        found.remember(world, request);
    }
    if !is_in_use() {
        Role::Short.set(true);
    }
}

impl Entry {
    #[inline(always)]
    fn write(&self, words: [usize; WORDS]) {
        for (place, word) in self.0.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
    }
}

/// A noted request of an array. It is out of the table, before the library frees the handle and
/// another thread gets it.
#[derive(Clone, Copy)]
struct Found {
    index: usize,
    handle: usize,
    buffer: usize,
    count: usize,
    datatype: Word,
    /// Of the handle of a type that is not predefined, or 0.
    generation: u64,
    comm: Word,
    is_persistent: bool,
}

impl Found {
    /// Bits of a word that has a count: above them are the generation and whether it is persistent.
    const COUNT: u32 = 32;
    const PERSISTENT: usize = 1 << 63;

    /// # Safety
    ///
    /// The array has more handles than `index`.
    unsafe fn take(requests: *const c_void, index: usize) -> Option<Found> {
        // SAFETY: the caller's promise.
        Found::take_handle(unsafe { handle_at(requests, index) }, index)
    }

    fn take_handle(handle: usize, index: usize) -> Option<Found> {
        let place = place_of(handle)?;
        let found = Found::read(place, handle, index);
        place.store(0, Ordering::Release);
        Some(found)
    }

    /// What is noted at the place that a handle has or had.
    fn read(place: &AtomicUsize, handle: usize, index: usize) -> Found {
        let set = Set::of(handle);
        let way = set.handles.iter().position(|other| ptr::eq(other, place));
        let words = &set.entries[way.unwrap_or(0)].0;
        let [buffer, datatype, comm, rest] = words.each_ref().map(|it| it.load(Ordering::Relaxed));
        Found {
            index,
            handle,
            buffer,
            count: rest & u32::MAX as usize,
            datatype,
            generation: (rest & !Found::PERSISTENT) as u64 >> Found::COUNT,
            comm,
            is_persistent: rest & Found::PERSISTENT != 0,
        }
    }

    /// All but its place and its handle; `None` if there is no room for that.
    fn words(self) -> Option<[usize; WORDS]> {
        let count = u32::try_from(self.count).ok()? as usize;
        let generation = i32::try_from(self.generation).ok()? as usize;
        let persistent = if self.is_persistent {
            Found::PERSISTENT
        } else {
            0
        };
        let rest = count | generation << Found::COUNT | persistent;
        Some([self.buffer, self.datatype, self.comm, rest])
    }

    /// Notes it; whether there is room.
    fn store(self, has_threads: bool) -> bool {
        let set = Set::of(self.handle);
        let stored = || {
            let words = self.words()?;
            let way = set.take(self.handle, has_threads)?;
            set.entries[way].write(words);
            Some(())
        };
        stored().is_some()
    }

    /// The same for requests that are remembered.
    #[cold]
    fn remember(self, world: &World, request: *const c_void) {
        let remember = || {
            let when = When::of_request(self.is_persistent);
            if let Some(arrival) = self.arrival(world, when) {
                let work = Work::Receive(arrival);
                requests::remember(world, request, work, self.is_persistent);
            }
        };
        let _ = caught(remember);
    }

    /// Where it receives; `None` if the program has freed its type.
    fn arrival(self, world: &World, when: When) -> Option<Arrival> {
        let is_type_gone = threshold::size(self.datatype).is_none()
            && datatype::generation(self.datatype) != self.generation;
        let elements = Elements {
            buffer: self.buffer as *mut c_void,
            count: Some(self.count),
            datatype: self.datatype,
        };
        if is_type_gone {
            return None;
        }
        Arrival::of_any_length(world, elements, self.comm, when)
    }

    /// Notes it again if the library has not freed it: it is not complete, or a persistent one.
    ///
    /// # Safety
    ///
    /// As for [`Found::take`].
    unsafe fn put_back(self, requests: *const c_void) {
        // SAFETY: the caller's promise.
        if unsafe { handle_at(requests, self.index) } == self.handle {
            self.note_again(requests);
        }
    }

    fn note_again(self, requests: *const c_void) {
        let world = world();
        let has_threads = world.is_some_and(|world| threads::are_several(world.abi));
        if let (false, Some(world)) = (self.store(has_threads), world) {
            let size = world.abi.handle_size();
            self.remember(world, requests.wrapping_byte_add(self.index * size));
        }
    }

    /// What is to be reported of it, or 0, after the library has completed it with this code: it
    /// may have received a header. Then the program gets the beginning of the message and a status
    /// that says so, and the sender its slot back.
    ///
    /// # Safety
    ///
    /// The library has written the status.
    unsafe fn end(self, world: &World, status: *mut c_void, code: c_int) -> c_int {
        // SAFETY: the caller's promise.
        let status = unsafe { Status::new(world.abi, status) };
        let is_plain = || {
            let slot = header::slot_of(status.bytes());
            slot.is_none_or(|slot| world.is_unposted(slot))
        };
        if code == 0 && is_plain() {
            return 0;
        }
        self.cut(world, status, code)
    }

    fn cut(self, world: &World, status: Status, code: c_int) -> c_int {
        if code != 0 && !truncation::is_truncation(world, code) {
            return 0;
        }
        let cut = || {
            let arrival = self.arrival(world, When::Here);
            arrival.map_or(0, |arrival| arrival.conclude(world, status, code))
        };
        caught(cut).unwrap_or(0)
    }

    /// After a function with this code that completes one request, and may have completed this one.
    ///
    /// # Safety
    ///
    /// `request` is the program's variable; the library has written the status if the code is 0 or
    /// says that a message was too long.
    unsafe fn conclude(self, status: *mut c_void, code: c_int) -> c_int {
        let Some(world) = world() else {
            return code;
        };
        // SAFETY: the caller's promise.
        match unsafe { self.end(world, status, code) } {
            0 => code,
            error => raise(self.comm, error),
        }
    }
}

/// Requests of an array for which there is room on the stack.
const FEW: usize = 32;

/// The noted requests of an array that is completed, where one may have received a header, or an
/// error is to be looked at.
struct Several<'a> {
    requests: *mut c_void,
    found: &'a [Found],
}

impl Several<'_> {
    /// Notes again what is not complete.
    ///
    /// # Safety
    ///
    /// The array is still there.
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

    /// After a function that has completed some of them, or failed.
    ///
    /// # Safety
    ///
    /// As for [`Several::one`] and [`Several::conclude`].
    unsafe fn completed(&self, call: &Completion, at: *mut c_void, code: c_int) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            match call.which {
                Which::One => self.one(0, at, code),
                Which::Any => self.one(*call.index, at, code),
                Which::Some => {
                    // Below zero is MPI_UNDEFINED.
                    let number = (*call.done).clamp(0, call.count) as usize;
                    let of = |place| {
                        let found = self.find(call.index.add(place).read());
                        found.map(|found| (place, found))
                    };
                    self.conclude(number, at, code, (0..number).filter_map(of))
                }
                Which::All => self.all(call.count, at, code),
            }
        }
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
    unsafe fn all(&self, count: c_int, statuses: *mut c_void, code: c_int) -> c_int {
        let completed = self.found.iter().map(|found| (found.index, *found));
        // SAFETY: the caller's promise.
        unsafe { self.conclude(count as usize, statuses, code, completed) }
    }

    /// After a function that has completed several, with `count` statuses; `completed` are places
    /// of those that are noted, and which they are.
    ///
    /// # Safety
    ///
    /// The statuses were written if the code is 0 or `MPI_ERR_IN_STATUS`.
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
                let before = if code == 0 { 0 } else { status.error() };
                let mut error = found.end(world, status.pointer(), before);
                // MPICH 5.0 does not say which persistent request has failed.
                if code != 0 && before == 0 && error == 0 && found.is_persistent {
                    error = found.cut(world, status, abi.truncate);
                }
                if error == 0 {
                    continue;
                }
                status.set_error(error);
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

/// A function that completes requests, some of which may be noted: the call as often as it is asked
/// for, so that it is not in memory before somebody needs it there. `inner` is the function as it
/// is without this.
///
/// # Safety
///
/// As the MPI standard says, for this and all functions below.
#[inline(always)]
pub unsafe fn complete(
    call: impl Fn() -> Completion,
    inner: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    let (waits, is_one) = (call().waits, call().which == Which::One);
    let are_few = is_one || call().count <= FEW as c_int;
    // SAFETY: the caller's promise.
    unsafe {
        if !has_results(&call()) {
            // The library says that.
            inner(call().statuses)
        } else if is_one && waits {
            of_few::<1>(call(), inner)
        } else if are_few && waits {
            of_few::<FEW>(call(), inner)
        } else if are_few && !Roles::NOTED.now().have(Role::Threads) {
            poll(call(), inner)
        } else {
            let mut inner = Some(inner);
            of_many(&call(), &mut |at| inner.take().map_or(0, |inner| inner(at)))
        }
    }
}

/// Whether a function has where to write what it says, but for its statuses.
#[inline(always)]
fn has_results(call: &Completion) -> bool {
    let has_flag = call.waits || !call.flag.is_null();
    match call.which {
        Which::One | Which::All => has_flag,
        Which::Any => has_flag && !call.index.is_null(),
        Which::Some => !call.done.is_null() && !call.index.is_null(),
    }
}

/// A function of up to `MOST` requests.
#[inline(always)]
unsafe fn of_few<const MOST: usize>(
    call: Completion,
    inner: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    let mut noted = [const { MaybeUninit::uninit() }; MOST];
    let mut rooms = [const { MaybeUninit::uninit() }; MOST];
    // SAFETY: the caller's promise.
    unsafe { with_reserved(&call, &mut noted, &mut rooms, inner) }
}

/// A function of any number of requests.
#[inline(never)]
unsafe fn of_many(call: &Completion, inner: &mut dyn FnMut(*mut c_void) -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        if !has_any(call.count, call.requests) {
            return inner(call.statuses);
        }
        let count = call.count as usize;
        let (mut noted, mut rooms) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let (noted, rooms) = (noted.spare_capacity_mut(), rooms.spare_capacity_mut());
        with_reserved(call, noted, rooms, inner)
    }
}

/// A function whose noted requests nobody else gets until it has returned: there is room for as
/// many as it has.
#[inline(always)]
unsafe fn with_reserved(
    call: &Completion,
    noted: &mut [MaybeUninit<Noted>],
    rooms: &mut [MaybeUninit<Room>],
    inner: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let number = reserve(call, noted);
        if number == 0 {
            return inner(call.statuses);
        }
        let at = statuses_of(call, rooms);
        let reserved = Reserved(&noted[..number]);
        let code = inner(at);
        std::mem::forget(reserved);
        settle(call, noted, number, at, code)
    }
}

/// A function that does not wait, of a few requests, where one thread calls. Programs call it again
/// and again, and most of these calls complete nothing: nothing is looked at before one does.
#[inline(always)]
unsafe fn poll(call: Completion, inner: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    let mut handles = [const { MaybeUninit::uninit() }; FEW];
    let mut rooms = [const { MaybeUninit::uninit() }; FEW];
    // SAFETY: the caller's promise.
    unsafe {
        let at = before_poll(&call, &mut handles, &mut rooms);
        let code = inner(at);
        let is_none = match call.which {
            // Below zero is MPI_UNDEFINED.
            Which::Some => *call.done <= 0,
            _ => !call.found(),
        };
        if code == 0 && is_none {
            return 0;
        }
        polled(&call, &handles, at, code)
    }
}

/// `MPI_Test` where the library may be asked first ([`asks_library_first`]): without another
/// function between the program's call and the library's, since programs call it again and again
/// while they wait, and the library gives up the processor in it; coming back, each return is
/// predicted wrong.
///
/// # Safety
///
/// As the MPI standard says.
#[inline(never)]
pub unsafe fn test(request: *mut c_void, flag: *mut c_int, status: *mut c_void) -> c_int {
    let mut room = Room::new();
    let at = room.instead_of(status);
    // SAFETY: the caller's promise.
    unsafe {
        let handle = handle_at(request, 0);
        // What is refused is not complete.
        *flag = 0;
        let code = pmpi::test(request, flag, at);
        if code == 0 && *flag == 0 {
            return 0;
        }
        let call = Completion {
            requests: request,
            flag,
            statuses: status,
            ..Completion::new(Which::One)
        };
        tested(&call, handle, at, code)
    }
}

/// After a call that has completed its one request, which had this handle, or failed.
#[inline(never)]
unsafe fn tested(call: &Completion, handle: usize, at: *mut c_void, code: c_int) -> c_int {
    let mut code = code;
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(world) = world().filter(|_| requests::any() && call.found()) {
            code = requests::concluded(world, handle, at, code);
        }
        if is_in_use() {
            code = polled(call, &[MaybeUninit::new(handle)], at, code);
        }
    }
    code
}

/// Whether `MPI_Test` may ask the library about a request before anything else is looked at: what
/// we know of it is a receive at most, and nothing of ours has to get on meanwhile.
///
/// # Safety
///
/// As for [`test`].
#[inline(always)]
pub unsafe fn asks_library_first(request: *const c_void, flag: *const c_int) -> bool {
    let is_idle = !Role::Collective.exists() && !unusual::has_orphans();
    // SAFETY: one request.
    is_idle
        && !request.is_null()
        && !flag.is_null()
        && unsafe { requests::library_first(request, 1) }
}

/// Copies the handles of a call, and returns where its statuses go.
#[inline(never)]
unsafe fn before_poll(
    call: &Completion,
    handles: &mut [MaybeUninit<usize>; FEW],
    rooms: &mut [MaybeUninit<Room>],
) -> *mut c_void {
    let count = count_of(call, FEW);
    // SAFETY: the caller's promise; the library's handles are as wide as that mask.
    unsafe {
        match threshold::handle_bits() {
            usize::MAX => {
                let from = call.requests.cast();
                ptr::copy_nonoverlapping(from, handles.as_mut_ptr(), count);
            }
            _ => {
                for (index, handle) in handles.iter_mut().take(count).enumerate() {
                    handle.write(call.requests.cast::<u32>().add(index).read() as usize);
                }
            }
        }
    }
    statuses_of(call, rooms)
}

/// How many requests a call has, and that are no more than there is room for.
#[inline(always)]
fn count_of(call: &Completion, most: usize) -> usize {
    usize::try_from(call.count).unwrap_or(0).min(most)
}

/// Where the library writes the statuses of a call: the program's, or others if it wants none.
#[inline(always)]
fn statuses_of(call: &Completion, rooms: &mut [MaybeUninit<Room>]) -> *mut c_void {
    if !is_ignored(call.statuses) {
        return call.statuses;
    }
    let number = match call.which {
        Which::One | Which::Any => 1,
        Which::All | Which::Some => count_of(call, rooms.len()),
    };
    // The library may leave errors as they are.
    for room in &mut rooms[..number] {
        room.write(Room::new());
    }
    rooms.as_mut_ptr().cast()
}

/// A request of a call that is noted, and where.
#[derive(Clone, Copy)]
struct Noted {
    index: usize,
    handle: usize,
    place: &'static AtomicUsize,
}

impl Noted {
    #[inline(always)]
    fn of(handle: usize, index: usize) -> Option<Noted> {
        let place = place_of(handle)?;
        Some(Noted {
            index,
            handle,
            place,
        })
    }

    /// Has it noted on if it stays in the program's array.
    #[inline(always)]
    unsafe fn put_back(&self, requests: *const c_void) {
        // SAFETY: the caller's promise.
        let now = unsafe { handle_at(requests, self.index) };
        let stays = if now == self.handle { now } else { 0 };
        self.place.store(stays, Ordering::Release);
    }
}

/// After a function that does not wait has completed requests of an array that had these handles.
#[inline(never)]
unsafe fn polled(
    call: &Completion,
    handles: &[MaybeUninit<usize>],
    at: *mut c_void,
    code: c_int,
) -> c_int {
    let mut few = [const { MaybeUninit::<Noted>::uninit() }; FEW];
    let mut number = 0;
    for (index, handle) in handles.iter().take(count_of(call, FEW)).enumerate() {
        // SAFETY: as many as there are in the call were written.
        if let Some(noted) = Noted::of(unsafe { handle.assume_init() }, index) {
            few[number].write(noted);
            number += 1;
        }
    }
    // SAFETY: `number` of them were written; the caller's promise.
    unsafe { settle(call, &few, number, at, code) }
}

/// Places that a call which waits has reserved: free again if what the program's error handler
/// throws ends the call.
struct Reserved<'a>(&'a [MaybeUninit<Noted>]);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        for noted in self.0 {
            // SAFETY: `before_wait` has written these.
            unsafe { noted.assume_init_ref() }
                .place
                .store(0, Ordering::Release);
        }
    }
}

/// Reserves the places of the noted requests of a call, so that none gets another request's while
/// another thread or a handler of the program runs; how many these are.
#[inline(never)]
unsafe fn reserve(call: &Completion, noted: &mut [MaybeUninit<Noted>]) -> usize {
    let count = count_of(call, noted.len());
    let mut number = 0;
    let mut reserve = |(index, handle)| {
        if let Some(found) = Noted::of(handle, index) {
            found.place.store(RESERVED, Ordering::Relaxed);
            noted[number].write(found);
            number += 1;
        }
    };
    // SAFETY: the caller's promise; the library's handles are as wide as that mask.
    unsafe {
        match threshold::handle_bits() {
            usize::MAX => {
                let handles = std::slice::from_raw_parts(call.requests.cast::<usize>(), count);
                handles.iter().copied().enumerate().for_each(reserve);
            }
            _ => {
                let handles = std::slice::from_raw_parts(call.requests.cast::<u32>(), count);
                let handles = handles.iter().map(|handle| *handle as usize);
                handles.enumerate().for_each(&mut reserve);
            }
        }
    }
    number
}

/// After a function that has completed requests, of which `number` are noted. What stays in the
/// program's array is noted on: it is not complete, or a persistent one.
///
/// # Safety
///
/// As many of `noted` were written, and the statuses unless the code says that there are none.
#[inline(never)]
unsafe fn settle(
    call: &Completion,
    noted: &[MaybeUninit<Noted>],
    number: usize,
    at: *mut c_void,
    code: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let noted: &[Noted] = std::slice::from_raw_parts(noted.as_ptr().cast(), number);
        let settled = match world() {
            Some(world) if code == 0 => without_headers(world, call, noted, at),
            _ => 0,
        };
        match &noted[settled..] {
            [] => code,
            others => settle_headers(call, others, at, code),
        }
    }
}

/// Notes on what has not received a header and stays, after a function has succeeded; with how many
/// it has done that.
#[inline(always)]
unsafe fn without_headers(
    world: &World,
    call: &Completion,
    noted: &[Noted],
    at: *mut c_void,
) -> usize {
    let abi = world.abi;
    // SAFETY: the caller's promise.
    unsafe {
        let is_header = |place| {
            let status = Status::of_array(abi, at, place);
            header::slot_of(status.bytes()).is_some()
        };
        let put_back = |one: &Noted| {
            one.put_back(call.requests);
            false
        };
        let first = match call.which {
            _ if !call.found() => noted.iter().position(put_back),
            Which::All => {
                let is_it = |one: &Noted| is_header(one.index) || put_back(one);
                noted.iter().position(is_it)
            }
            Which::One | Which::Any if is_header(0) => Some(0),
            // Below zero is MPI_UNDEFINED.
            Which::Some if (0..(*call.done).clamp(0, call.count) as usize).any(is_header) => {
                Some(0)
            }
            _ => noted.iter().position(put_back),
        };
        first.unwrap_or(noted.len())
    }
}

/// The same where one may have received a header, or an error is to be looked at.
#[cold]
unsafe fn settle_headers(
    call: &Completion,
    noted: &[Noted],
    at: *mut c_void,
    code: c_int,
) -> c_int {
    let taken = |one: &Noted| {
        let found = Found::read(one.place, one.handle, one.index);
        one.place.store(0, Ordering::Release);
        found
    };
    let found: Vec<Found> = noted.iter().map(taken).collect();
    let (requests, found) = (call.requests, &*found);
    // SAFETY: the caller's promise.
    unsafe { Several { requests, found }.completed(call, at, code) }
}

/// `MPI_Request_get_status`: a request that is complete, and has received a header, is remembered
/// from now on.
#[inline(never)]
pub unsafe fn get_status(
    request: Word,
    flag: *mut c_int,
    status: *mut c_void,
    inner: impl FnOnce(Word, *mut c_int, *mut c_void) -> c_int,
) -> c_int {
    let mut room = Room::new();
    let at = room.instead_of(status);
    let code = inner(request, flag, at);
    let Some(world) = world() else {
        return code;
    };
    // SAFETY: the caller's promise; a library that says so has written the status.
    let said = unsafe {
        if code == 0 && *flag == 0 {
            return 0;
        }
        Status::new(world.abi, at)
    };
    let is_named = header::slot_of(said.bytes()).is_some_and(|slot| !world.is_unposted(slot));
    let is_cut = code == 0 && is_named || truncation::is_truncation(world, code);
    if !is_cut {
        return code;
    }
    let Some(found) = Found::take_handle(request & threshold::handle_bits(), 0) else {
        return code;
    };
    let known = || {
        let Some(arrival) = found.arrival(world, When::Here) else {
            return code;
        };
        let (mut own, mut seen) = (Handle::new(world, request), Room::new());
        // SAFETY: both are statuses of the library's.
        unsafe { Status::new(world.abi, seen.pointer()) }.copy_all_but_error(said);
        let persistent = found.is_persistent;
        requests::remember_seen(world, own.pointer(), arrival, persistent, (code, seen));
        // SAFETY: the caller's promise.
        unsafe { requests::get_status(world, request, flag, at) }.unwrap_or(code)
    };
    caught(known).unwrap_or(code)
}

/// The functions that ask about several requests: those that are noted are remembered from now on.
#[cold]
pub unsafe fn ask(call: &Completion, inner: impl FnOnce() -> c_int) -> c_int {
    let asked = || {
        let world = world()?;
        // SAFETY: the caller's promise.
        unsafe {
            remember_all(world, call.count, call.requests);
            requests::ask(world, call)
        }
    };
    match caught(asked) {
        Ok(Some(code)) => code,
        _ => inner(),
    }
}

/// Has the noted requests of an array remembered, but for persistent ones: whether these are
/// started is not known.
///
/// # Safety
///
/// The array has `count` handles.
unsafe fn remember_all(world: &World, count: c_int, requests: *const c_void) {
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's promise.
        if let Some(found) = unsafe { Found::take(requests, index) } {
            let size = world.abi.handle_size();
            let request = requests.wrapping_byte_add(index * size);
            if !found.is_persistent || !found.store(threads::are_several(world.abi)) {
                found.remember(world, request);
            }
        }
    }
}

/// `MPI_Request_free`
#[cold]
pub unsafe fn free(request: *mut c_void, inner: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    // SAFETY: the caller's promise.
    let _forgotten = unsafe { Found::take(request, 0) };
    inner(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request of this handle.
    fn request(handle: usize) -> Found {
        Found {
            index: 0,
            handle,
            buffer: handle + 1,
            count: 1,
            datatype: 2,
            generation: 0,
            comm: 3,
            is_persistent: false,
        }
    }

    #[test]
    fn places_are_free_again_where_a_call_unwinds() {
        let handle = 0x7f00_8765_4320;
        assert!(request(handle).store(false));
        let place = place_of(handle).unwrap();
        let mut requests = [handle];
        let call = Completion {
            count: 1,
            requests: requests.as_mut_ptr().cast(),
            waits: true,
            ..Completion::new(Which::One)
        };
        let waited = || {
            // SAFETY: an array of one handle; nothing is written.
            unsafe { of_few::<1>(call, |_| panic!("{}", place.load(Ordering::Relaxed))) }
        };
        let said: Box<String> = caught(waited).unwrap_err().downcast().unwrap();
        assert_eq!(*said, RESERVED.to_string());
        assert_eq!(place.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_noted_is_read_as_it_was() {
        let handle = 0x7f00_4444_8880;
        let noted = Found {
            count: u32::MAX as usize,
            generation: i32::MAX as u64,
            is_persistent: true,
            ..request(handle)
        };
        assert!(noted.store(true));
        let read = Found::take_handle(handle, 7).unwrap();
        assert_eq!((read.words(), read.handle), (noted.words(), handle));
        assert_eq!(
            (read.count, read.generation),
            (noted.count, noted.generation)
        );
        assert!(read.is_persistent && read.index == 7 && !is_noted(handle));

        // What has no room is not noted.
        let long = Found {
            count: noted.count + 1,
            ..noted
        };
        let late = Found {
            generation: noted.generation + 1,
            ..noted
        };
        assert!(!long.store(false) && !late.store(false) && !is_noted(handle));
    }

    #[test]
    fn a_handle_has_one_place() {
        let first = 0x7f00_9999_1110;
        let set = Set::of(first);
        let beside = (first + 8..)
            .step_by(8)
            .filter(|other| ptr::eq(Set::of(*other), set));
        let others: Vec<usize> = beside.take(WAYS).collect();
        assert_eq!(set.take_first(first), Some(0));
        assert_eq!(set.take_first(others[0]), None);
        assert_eq!(set.take(others[0], false), Some(1));
        place_of(first).unwrap().store(0, Ordering::Relaxed);
        // It was completed elsewhere, and gets the place that it had.
        assert_eq!(set.take_first(others[0]), None);
        assert_eq!(set.take(others[0], true), Some(1));
        for (way, other) in others[1..].iter().enumerate() {
            let place = if way == 0 { 0 } else { way + 1 };
            assert_eq!(set.take(*other, way % 2 == 0), Some(place));
        }
        assert_eq!(set.take(first, false), None, "four places are taken");
        others
            .iter()
            .for_each(|other| place_of(*other).unwrap().store(0, Ordering::Relaxed));
    }

    #[test]
    fn places_stay_reserved_while_a_call_waits() {
        let first = 0x7f00_1234_5678;
        let is_beside = |handle: &usize| ptr::eq(Set::of(*handle), Set::of(first));
        let second = (first + 8..).step_by(8).find(is_beside).unwrap();
        assert!(request(first).store(false) && request(second).store(false));
        let place = place_of(first).unwrap();

        let mut requests = [first, second];
        let call = Completion {
            count: 2,
            requests: requests.as_mut_ptr().cast(),
            waits: true,
            ..Completion::new(Which::All)
        };
        let mut noted = [const { MaybeUninit::uninit() }; FEW];
        // SAFETY: an array of two handles.
        assert_eq!(unsafe { reserve(&call, &mut noted) }, 2);
        assert!(!is_noted(first) && !is_noted(second) && !is_noted(RESERVED));

        // A handler starts a request that has got the handle of one that is complete.
        assert!(request(first).store(false));
        let other = place_of(first).unwrap();
        assert!(
            !ptr::eq(place, other),
            "the place of one that is waited for"
        );
        Found::take_handle(first, 0).unwrap();

        // The first is complete, and the second a persistent one, whose handle stays.
        // SAFETY: the first of the array.
        unsafe { call.requests.cast::<usize>().write(0) };
        let statuses = ptr::null_mut();
        // SAFETY: two are noted; there are no statuses without a world.
        assert_eq!(unsafe { settle(&call, &noted, 2, statuses, 0) }, 0);
        assert!(!is_noted(first) && is_noted(second));
        assert_eq!(Found::take_handle(second, 1).unwrap().buffer, second + 1);
    }
}
