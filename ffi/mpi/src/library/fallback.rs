// SPDX-License-Identifier: MIT OR Apache-2.0

//! Functions that a library may lack, made of those that it has. Programs that look for them at run
//! time, as mpi4py does, find ours whatever the library below has, so these have to work:
//! `MPI_Isendrecv` and `MPI_Isendrecv_replace` (MPI 4.0), `MPI_Request_get_status_any`, `_all` and
//! `_some` (MPI 4.1). Forms for large counts are made in [`pmpi`].

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use crate::library::abi::{Abi, UNDEFINED, Word, complain, function};
use crate::library::count::Count;
use crate::library::pmpi::forward;
use crate::library::requests::{Completion, Role, Table, Which};
use crate::library::status::{Room, Status, is_ignored};
use crate::library::{abi, pmpi};
use libcopy::lock::lock;

/// Elements that are sent, packed: their sender may write to them at once.
struct Sent {
    /// The library's request, in a variable as it has them.
    request: Word,
    _packed: Vec<u8>,
}

static SENT: Mutex<Vec<Sent>> = Mutex::new(Vec::new());

/// Gives back what has been sent; returns whether that is everything.
fn reap(sent: &mut Vec<Sent>) -> bool {
    sent.retain_mut(|one| {
        let (mut flag, mut room) = (0, Room::new());
        let request = (&raw mut one.request).cast();
        // SAFETY: our own request.
        let code = unsafe { pmpi::test(request, &mut flag, room.pointer()) };
        code == 0 && flag == 0
    });
    sent.is_empty()
}

/// Waits until everything that was packed has been sent, before `MPI_Finalize`.
pub fn finish() {
    while !reap(&mut lock(&SENT)) {
        std::thread::yield_now();
    }
}

/// An error that no function of the library's has found.
fn refuse(abi: &Abi, why: &str, comm: Word) -> c_int {
    complain(why);
    // SAFETY: the caller's communicator, which the library checks.
    unsafe { pmpi::comm_call_errhandler(comm, abi.error) };
    abi.error
}

/// Packs elements; an error code that the error handler has heard of.
///
/// # Safety
///
/// The elements are readable.
unsafe fn packed<N: Count>(
    abi: &Abi,
    (buffer, count, datatype): (*const c_void, N, Word),
    comm: Word,
) -> Result<Vec<u8>, c_int> {
    let too_many = || refuse(abi, "MPI_Isendrecv of more bytes than an int counts", comm);
    let Some(count) = count.narrow() else {
        return Err(too_many());
    };
    let (mut bytes, mut room, mut end) = (0, 0, 0);
    // SAFETY: writable outputs; the library checks the arguments.
    let code = unsafe { pmpi::type_size(datatype, &mut bytes) };
    if code == 0 && bytes.saturating_mul(i64::from(count)) > i64::from(c_int::MAX) {
        return Err(too_many());
    }
    // SAFETY: as above.
    match unsafe { pmpi::pack_size(count, datatype, comm, &mut room) } {
        0 => {}
        code => return Err(code),
    }
    let mut packed: Vec<u8> = Vec::new();
    let most = usize::try_from(room).unwrap_or(0);
    if packed.try_reserve_exact(most).is_err() {
        let why = format!("MPI_Isendrecv has no memory for {most} bytes");
        return Err(refuse(abi, &why, comm));
    }
    let to = packed.as_mut_ptr().cast();
    // SAFETY: the caller's promise; as much room as the library asked for.
    unsafe {
        match pmpi::pack(buffer, count, datatype, to, room, &mut end, comm) {
            0 => packed.set_len(usize::try_from(end).unwrap_or(0).min(most)),
            code => return Err(code),
        }
    }
    Ok(packed)
}

/// A send and a receive at the same time, of which the program gets the request of the receive:
/// what is sent is packed first, so its sender has nothing to wait for.
///
/// # Safety
///
/// As the MPI standard says of `MPI_Isendrecv`, and of `MPI_Irecv` for `receive`.
unsafe fn exchange<N: Count>(
    send: (*const c_void, N, Word),
    (dest, tag, comm): (c_int, c_int, Word),
    receive: impl FnOnce() -> c_int,
    request: *mut c_void,
) -> c_int {
    let abi = match abi::get() {
        Ok(abi) => abi,
        Err(why) => {
            complain(why);
            return 16;
        }
    };
    // SAFETY: the caller's promise.
    let packed = match unsafe { packed(abi, send, comm) } {
        Ok(packed) => packed,
        Err(code) => return code,
    };
    let code = receive();
    if code != 0 {
        return code;
    }
    let (from, len) = (packed.as_ptr().cast(), packed.len() as c_int);
    let mut own = 0;
    // Locked while it is sent, so that a thread that looks for what has been sent finds it.
    let mut sent = lock(&SENT);
    reap(&mut sent);
    let variable = (&raw mut own).cast();
    // SAFETY: the bytes stay until they have been sent; a word has room for either kind of handle.
    let code = unsafe { pmpi::isend(from, len, abi.packed, dest, tag, comm, variable) };
    if code != 0 {
        // SAFETY: the request was made just now, and nobody else has it.
        unsafe {
            pmpi::cancel(request);
            pmpi::request_free(request);
        }
        return code;
    }
    sent.push(Sent {
        request: own,
        _packed: packed,
    });
    reap(&mut sent);
    code
}

/// `MPI_Isendrecv`
///
/// # Safety
///
/// As the MPI standard says, for all functions below.
#[allow(clippy::too_many_arguments)]
pub unsafe fn isendrecv<N: Count>(
    send: *const c_void,
    send_count: N,
    send_type: Word,
    dest: c_int,
    send_tag: c_int,
    recv: *mut c_void,
    recv_count: N,
    recv_type: Word,
    source: c_int,
    recv_tag: c_int,
    comm: Word,
    request: *mut c_void,
) -> c_int {
    function!(FUNCTION = c"PMPI_Isendrecv");
    // SAFETY: the caller's promise.
    unsafe {
        if FUNCTION.if_any() != 0 {
            return forward::isendrecv(
                send, send_count, send_type, dest, send_tag, recv, recv_count, recv_type, source,
                recv_tag, comm, request,
            );
        }
        let receive = || pmpi::irecv(recv, recv_count, recv_type, source, recv_tag, comm, request);
        let what = (send, send_count, send_type);
        exchange(what, (dest, send_tag, comm), receive, request)
    }
}

/// `MPI_Isendrecv_replace`
///
/// # Safety
///
/// As above.
#[allow(clippy::too_many_arguments)]
pub unsafe fn isendrecv_replace<N: Count>(
    buffer: *mut c_void,
    count: N,
    datatype: Word,
    dest: c_int,
    send_tag: c_int,
    source: c_int,
    recv_tag: c_int,
    comm: Word,
    request: *mut c_void,
) -> c_int {
    function!(FUNCTION = c"PMPI_Isendrecv_replace");
    // SAFETY: the caller's promise.
    unsafe {
        if FUNCTION.if_any() != 0 {
            return forward::isendrecv_replace(
                buffer, count, datatype, dest, send_tag, source, recv_tag, comm, request,
            );
        }
        let receive = || pmpi::irecv(buffer, count, datatype, source, recv_tag, comm, request);
        let what = (buffer.cast_const(), count, datatype);
        exchange(what, (dest, send_tag, comm), receive, request)
    }
}

/// Persistent requests, of which an empty status means that they are inactive. Kept only where the
/// library has no function that says so.
static PERSISTENT: Table<()> = Table::new(Role::Persistent);

function!(STATUS_ANY = c"PMPI_Request_get_status_any");

/// A persistent request was made.
///
/// # Safety
///
/// The library wrote a handle there.
#[inline]
pub unsafe fn note_persistent(request: *const c_void) {
    let Ok(abi) = abi::get() else {
        return;
    };
    if STATUS_ANY.if_any() == 0 {
        // SAFETY: the caller's promise.
        let handle = unsafe { abi.handle_at(request, 0) } & abi.handle;
        PERSISTENT.insert(handle, ());
    }
}

/// A request is about to be freed.
pub fn forget_persistent(handle: Word) {
    PERSISTENT.remove(handle);
}

/// What is found out about one request: a code, whether it is active, and whether it is complete.
pub type Look = (c_int, bool, bool);

/// Asks the library about a request in a variable, and has its status written.
///
/// # Safety
///
/// As the MPI standard says of `MPI_Request_get_status`, for a status that is not ignored.
pub unsafe fn look(abi: &Abi, request: *mut c_void, status: *mut c_void) -> Look {
    let mut flag = 0;
    if STATUS_ANY.if_any() != 0 {
        let mut which = UNDEFINED;
        // SAFETY: one request of the caller's.
        let code =
            unsafe { pmpi::request_get_status_any(1, request, &mut which, &mut flag, status) };
        let inactive = flag != 0 && which == UNDEFINED;
        return (code, !inactive, flag != 0);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let handle = abi.handle_at(request, 0);
        // Some libraries leave most of a sender's status as it was.
        let view = Status::new(abi, status);
        view.fill_with_nobody();
        let code = pmpi::request_get_status(handle, &mut flag, status);
        if abi.same(handle, abi.request_null) {
            return (code, false, flag != 0);
        }
        if code != 0 || flag == 0 || !view.is_empty(abi) {
            return (code, true, flag != 0);
        }
        let is_persistent = PERSISTENT.read().contains_key(&(handle & abi.handle));
        (code, !is_persistent, true)
    }
}

/// The first of `count` requests for which `each` says that it is active: with its code;
/// [`UNDEFINED`] and an empty status if none is, nothing if those that are can say nothing yet.
///
/// # Safety
///
/// The status is writable, or ignored.
pub unsafe fn first(
    count: usize,
    status: *mut c_void,
    mut each: impl FnMut(usize) -> Option<(bool, c_int)>,
) -> Option<(c_int, c_int)> {
    let mut waiting = false;
    for i in 0..count {
        match each(i) {
            Some((true, code)) => return Some((i as c_int, code)),
            Some((false, _)) => {}
            None => waiting = true,
        }
    }
    if waiting {
        return None;
    }
    let (mut which, mut flag) = (UNDEFINED, 0);
    // SAFETY: no request at all.
    let code = unsafe { pmpi::testany(0, std::ptr::null_mut(), &mut which, &mut flag, status) };
    Some((UNDEFINED, code))
}

/// `MPI_Request_get_status_any` of `count` requests, each looked at by `look`.
///
/// # Safety
///
/// As the MPI standard says, for this and those below.
unsafe fn any_of(
    abi: &Abi,
    count: usize,
    call: &Completion,
    look: impl Fn(usize, *mut c_void) -> Look,
) -> c_int {
    let (index, flag, status) = (call.index, call.flag, call.statuses);
    let mut room = Room::new();
    let at = room.instead_of(status);
    // SAFETY: the caller's promise.
    unsafe {
        let found = first(count, status, |i| match look(i, at) {
            (0, true, false) => None,
            (code, active, _) => Some((active || code != 0, code)),
        });
        *flag = c_int::from(found.is_some());
        let (which, code) = found.unwrap_or((UNDEFINED, 0));
        *index = which;
        if found.is_some() && which == UNDEFINED && !is_ignored(status) {
            // MPI_Testany leaves this out, which belongs to an empty status here.
            Status::new(abi, status).set_error(0);
        }
        code
    }
}

/// `MPI_Request_get_status_all` in the same way.
///
/// # Safety
///
/// As above.
unsafe fn all_of(
    abi: &Abi,
    count: usize,
    call: &Completion,
    look: impl Fn(usize, *mut c_void) -> Look,
) -> c_int {
    let (flag, statuses) = (call.flag, call.statuses);
    let mut all = true;
    for i in 0..count {
        let mut room = Room::new();
        let status = if is_ignored(statuses) {
            room.pointer()
        } else {
            // SAFETY: the caller's promise.
            unsafe { Status::of_array(abi, statuses, i) }.pointer()
        };
        let (code, _, complete) = look(i, status);
        if code != 0 {
            return code;
        }
        all &= complete;
    }
    // SAFETY: the caller's promise.
    unsafe { *flag = c_int::from(all) };
    0
}

/// `MPI_Request_get_status_some` in the same way.
///
/// # Safety
///
/// As above.
unsafe fn some_of(
    abi: &Abi,
    count: usize,
    call: &Completion,
    look: impl Fn(usize, *mut c_void) -> Look,
) -> c_int {
    let (done, indices, statuses) = (call.done, call.index, call.statuses);
    let (mut any, mut found) = (false, 0usize);
    for i in 0..count {
        let mut room = Room::new();
        let (code, active, complete) = look(i, room.pointer());
        if code != 0 {
            return code;
        }
        any |= active;
        if active && complete {
            // SAFETY: both arrays have as many elements as there are requests.
            unsafe {
                *indices.add(found) = i as c_int;
                if !is_ignored(statuses) {
                    let from = Status::new(abi, room.pointer());
                    Status::of_array(abi, statuses, found).copy_all_but_error(from);
                }
            }
            found += 1;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { *done = if any { found as c_int } else { UNDEFINED } };
    0
}

/// A function that asks about several requests without completing them; `look` looks at each of
/// `count`.
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn ask_each(
    abi: &Abi,
    count: usize,
    call: &Completion,
    look: impl Fn(usize, *mut c_void) -> Look,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match call.which {
            Which::Any => any_of(abi, count, call, look),
            Which::Some => some_of(abi, count, call, look),
            Which::One | Which::All => all_of(abi, count, call, look),
        }
    }
}

/// `MPI_Request_get_status_any`, `_all` and `_some`. A library that has the function does what is
/// wanted itself, or complains.
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn ask(call: &Completion) -> c_int {
    let (count, requests, statuses) = (call.count, call.requests, call.statuses);
    let (index, flag, done) = (call.index, call.flag, call.done);
    let lacking = abi::get().ok().filter(|_| STATUS_ANY.if_any() == 0);
    // SAFETY: the caller's promise.
    unsafe {
        if let (Some(abi), Ok(number)) = (lacking, usize::try_from(count)) {
            let request = |i| requests.wrapping_byte_add(i * abi.handle_size());
            return ask_each(abi, number, call, |i, status| look(abi, request(i), status));
        }
        match call.which {
            Which::Any => forward::request_get_status_any(count, requests, index, flag, statuses),
            Which::Some => forward::request_get_status_some(count, requests, done, index, statuses),
            Which::One | Which::All => {
                forward::request_get_status_all(count, requests, flag, statuses)
            }
        }
    }
}
