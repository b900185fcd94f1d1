// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages between two ranks of a team.

use crate::datatype::{addressed, handle as type_handle, libcopy_type_t};
use crate::error::{Failure, guarded, invalid};
use crate::memory::{bytes, bytes_mut};
use crate::team::{handle, libcopy_team_t};
use libcopy::p2p::Request;
use libcopy::{ANY_SOURCE, RecvBuffer, SendBuffer, Status};
use std::ffi::{c_int, c_void};

/// Receives from any rank.
pub const LIBCOPY_ANY_SOURCE: isize = -1;
/// Receives with any tag.
pub const LIBCOPY_ANY_TAG: c_int = -1;

/// What has become of a message.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct libcopy_status_t {
    /// The rank that sent it.
    pub source: usize,
    /// Its tag.
    pub tag: c_int,
    /// Its bytes, packed.
    pub bytes: u64,
}

/// A message that may be under way.
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct libcopy_request_t {
    request: Request,
}

/// # Safety
///
/// `buffer` is readable for `count` elements, or bytes if `datatype` is null, until the message is
/// complete.
unsafe fn sent<'a>(
    buffer: *const c_void,
    count: u64,
    datatype: *const libcopy_type_t,
) -> Result<SendBuffer<'a>, Failure> {
    // SAFETY: the caller's promise.
    unsafe {
        if datatype.is_null() {
            return Ok(bytes("the buffer", buffer, length(count)?)?.into());
        }
        let layout = type_handle(datatype)?.layout(count)?;
        addressed("the buffer", buffer, &layout)?;
        Ok(SendBuffer::raw(buffer.cast(), &layout))
    }
}

/// # Safety
///
/// `buffer` is writable for `count` elements, or bytes if `datatype` is null, until the message is
/// complete.
unsafe fn received<'a>(
    buffer: *mut c_void,
    count: u64,
    datatype: *const libcopy_type_t,
) -> Result<RecvBuffer<'a>, Failure> {
    // SAFETY: the caller's promise.
    unsafe {
        if datatype.is_null() {
            return Ok(bytes_mut("the buffer", buffer, length(count)?)?.into());
        }
        let layout = type_handle(datatype)?.layout(count)?;
        addressed("the buffer", buffer, &layout)?;
        Ok(RecvBuffer::raw(buffer.cast(), &layout))
    }
}

fn length(count: u64) -> Result<usize, Failure> {
    usize::try_from(count).map_err(|_| invalid(format!("{count} bytes are more than memory has")))
}

fn source(from: isize) -> Result<usize, Failure> {
    match from {
        LIBCOPY_ANY_SOURCE => Ok(ANY_SOURCE),
        from => usize::try_from(from).map_err(|_| invalid(format!("rank {from} is below 0"))),
    }
}

/// # Safety
///
/// `status` is null or writable.
unsafe fn tell(status: *mut libcopy_status_t, found: Status) {
    if !status.is_null() {
        let Status { source, tag, bytes } = found;
        // SAFETY: not null, and the caller vouches for it.
        unsafe { status.write(libcopy_status_t { source, tag, bytes }) };
    }
}

/// # Safety
///
/// `request` is null or writable.
unsafe fn give(request: *mut *mut libcopy_request_t, made: Request) -> Result<(), Failure> {
    let boxed = Box::new(libcopy_request_t { request: made });
    // SAFETY: `place` has refused null before; the caller vouches for the rest.
    unsafe { request.write(Box::into_raw(boxed)) };
    Ok(())
}

/// Refuses null before a message begins that nobody could wait for.
fn place(request: *mut *mut libcopy_request_t) -> Result<(), Failure> {
    if request.is_null() {
        return Err(invalid("the address for the request is null"));
    }
    Ok(())
}

/// Sends `count` elements, or `count` bytes if `datatype` is null, to rank `to` with a tag of 0 or
/// more. Returns when `buffer` may be used again.
///
/// # Safety
///
/// `team` is a team, `datatype` is null or a type, `buffer` is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_send(
    team: *mut libcopy_team_t,
    buffer: *const c_void,
    count: u64,
    datatype: *const libcopy_type_t,
    to: usize,
    tag: c_int,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (team, data) = unsafe { (handle(team)?, sent(buffer, count, datatype)?) };
        Ok(team.lock()?.send(data, to, tag)?)
    })
}

/// Receives a message of rank `from`, or `LIBCOPY_ANY_SOURCE`, with this tag, or `LIBCOPY_ANY_TAG`.
/// Fails with `LIBCOPY_ETRUNCATE`, and the team stays whole, if it is longer than `count` elements.
/// `status` may be null.
///
/// # Safety
///
/// `team` is a team, `datatype` is null or a type, `buffer` is writable, `status` is null or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_recv(
    team: *mut libcopy_team_t,
    buffer: *mut c_void,
    count: u64,
    datatype: *const libcopy_type_t,
    from: isize,
    tag: c_int,
    status: *mut libcopy_status_t,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (team, data) = unsafe { (handle(team)?, received(buffer, count, datatype)?) };
        let found = team.lock()?.recv(data, source(from)?, tag)?;
        // SAFETY: the caller's promise.
        unsafe { tell(status, found) };
        Ok(())
    })
}

/// Sends a message and receives one at the same time. `status` is that of the one that is received,
/// and may be null.
///
/// # Safety
///
/// As for `libcopy_team_send` and `libcopy_team_recv`; the buffers do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_sendrecv(
    team: *mut libcopy_team_t,
    send: *const c_void,
    send_count: u64,
    send_type: *const libcopy_type_t,
    to: usize,
    send_tag: c_int,
    recv: *mut c_void,
    recv_count: u64,
    recv_type: *const libcopy_type_t,
    from: isize,
    recv_tag: c_int,
    status: *mut libcopy_status_t,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (team, out, into) = unsafe {
            let out = sent(send, send_count, send_type)?;
            (handle(team)?, out, received(recv, recv_count, recv_type)?)
        };
        let (to, from) = ((to, send_tag), (source(from)?, recv_tag));
        let found = team.lock()?.sendrecv(out, to, into, from)?;
        // SAFETY: the caller's promise.
        unsafe { tell(status, found) };
        Ok(())
    })
}

/// Begins to send a message. `buffer` must not change until `libcopy_team_wait` or
/// `libcopy_team_test` has completed the request, or a call of the team has failed with another
/// code than `LIBCOPY_EINVAL` and `LIBCOPY_ETRUNCATE`. Messages get on in calls of this team that
/// are about messages.
///
/// # Safety
///
/// As for `libcopy_team_send`; `request` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_isend(
    team: *mut libcopy_team_t,
    buffer: *const c_void,
    count: u64,
    datatype: *const libcopy_type_t,
    to: usize,
    tag: c_int,
    request: *mut *mut libcopy_request_t,
) -> c_int {
    guarded(|| {
        place(request)?;
        // SAFETY: the caller's promise.
        let (team, data) = unsafe { (handle(team)?, sent(buffer, count, datatype)?) };
        // SAFETY: the caller leaves the buffer alone for as long as that needs.
        let made = unsafe { team.lock()?.isend(data, to, tag)? };
        // SAFETY: the caller's promise.
        unsafe { give(request, made) }
    })
}

/// Begins to receive a message. `buffer` must not be used until then, as for `libcopy_team_isend`.
///
/// # Safety
///
/// As for `libcopy_team_recv`; `request` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_irecv(
    team: *mut libcopy_team_t,
    buffer: *mut c_void,
    count: u64,
    datatype: *const libcopy_type_t,
    from: isize,
    tag: c_int,
    request: *mut *mut libcopy_request_t,
) -> c_int {
    guarded(|| {
        place(request)?;
        // SAFETY: the caller's promise.
        let (team, data) = unsafe { (handle(team)?, received(buffer, count, datatype)?) };
        let from = source(from)?;
        // SAFETY: the caller leaves the buffer alone for as long as that needs.
        let made = unsafe { team.lock()?.irecv(data, from, tag)? };
        // SAFETY: the caller's promise.
        unsafe { give(request, made) }
    })
}

/// Waits until a request is complete, and frees it, also if it fails: `*request` is null then.
/// `status` may be null.
///
/// # Safety
///
/// `team` is the team of the request, `request` points to a request, `status` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_wait(
    team: *mut libcopy_team_t,
    request: *mut *mut libcopy_request_t,
    status: *mut libcopy_status_t,
) -> c_int {
    guarded(|| {
        place(request)?;
        // SAFETY: the caller's promise.
        let (team, own) = unsafe { (handle(team)?, request.read()) };
        let mut team = team.lock()?;
        if own.is_null() {
            return Err(invalid("the request is null"));
        }
        // SAFETY: the caller's promise; nobody uses it any more.
        let own = unsafe {
            request.write(std::ptr::null_mut());
            Box::from_raw(own)
        };
        let found = team.wait(own.request)?;
        // SAFETY: the caller's promise.
        unsafe { tell(status, found) };
        Ok(())
    })
}

/// Whether a request is complete: then `*flag` is 1, and as after `libcopy_team_wait`.
///
/// # Safety
///
/// As for `libcopy_team_wait`; `flag` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_test(
    team: *mut libcopy_team_t,
    request: *mut *mut libcopy_request_t,
    flag: *mut c_int,
    status: *mut libcopy_status_t,
) -> c_int {
    guarded(|| {
        place(request)?;
        if flag.is_null() {
            return Err(invalid("the address for the flag is null"));
        }
        // SAFETY: the caller's promise.
        let (team, own) = unsafe { (handle(team)?, request.read()) };
        let mut team = team.lock()?;
        // SAFETY: the caller's promise.
        let Some(known) = (unsafe { own.as_mut() }) else {
            return Err(invalid("the request is null"));
        };
        let tested = team.test(&mut known.request);
        let is_over = !matches!(tested, Ok(None));
        // SAFETY: the caller's promise; a request that is over is used by nobody.
        unsafe {
            flag.write(is_over.into());
            if is_over {
                request.write(std::ptr::null_mut());
                drop(Box::from_raw(own));
            }
            if let Some(found) = tested? {
                tell(status, found);
            }
        }
        Ok(())
    })
}

/// Whether a message is there that `libcopy_team_recv` would receive: then `*flag` is 1, and
/// `status` says how long it is.
///
/// # Safety
///
/// `team` is a team, `flag` points to a number, `status` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_iprobe(
    team: *mut libcopy_team_t,
    from: isize,
    tag: c_int,
    flag: *mut c_int,
    status: *mut libcopy_status_t,
) -> c_int {
    guarded(|| {
        if flag.is_null() {
            return Err(invalid("the address for the flag is null"));
        }
        // SAFETY: the caller's promise.
        let team = unsafe { handle(team)? };
        let found = team.lock()?.iprobe(source(from)?, tag)?;
        // SAFETY: the caller's promise.
        unsafe {
            flag.write(found.is_some().into());
            if let Some(found) = found {
                tell(status, found);
            }
        }
        Ok(())
    })
}
