// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages between two ranks of a team.

use crate::arguments::{FromC, Handle, InOut, Out, Shared};
use crate::datatype::{addressed, libcopy_type_t};
use crate::error::{Failure, Result, invalid};
use crate::team::libcopy_team_t;
use libcopy::p2p::Request;
use libcopy::{ANY_SOURCE, RecvBuffer, SendBuffer, Status};
use libcopy_ffi_macros::c_api;
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

impl Handle for libcopy_request_t {}

impl From<Status> for libcopy_status_t {
    fn from(Status { source, tag, bytes }: Status) -> Self {
        libcopy_status_t { source, tag, bytes }
    }
}

/// Elements, or bytes where the type is null.
macro_rules! elements {
    ($buffer:ident: $c:ty, $bytes:ty) => {
        impl FromC<(u64, Option<&libcopy_type_t>)> for $buffer<'_> {
            type C = $c;

            unsafe fn from_c(
                name: &'static str,
                from: $c,
                (count, datatype): (u64, Option<&libcopy_type_t>),
            ) -> Result<Self> {
                let Some(datatype) = datatype else {
                    // SAFETY: the caller guarantees the bytes.
                    let bytes = unsafe { <$bytes>::from_c(name, from.cast(), length(count)?)? };
                    return Ok(bytes.into());
                };
                let layout = datatype.layout(count)?;
                addressed(name, from, &layout)?;
                // SAFETY: the caller guarantees the elements.
                Ok(unsafe { $buffer::raw(from.cast(), &layout) })
            }
        }
    };
}

elements!(SendBuffer: *const c_void, &[u8]);
elements!(RecvBuffer: *mut c_void, &mut [u8]);

fn length(count: u64) -> Result<usize> {
    usize::try_from(count).map_err(|_| invalid(format!("{count} bytes are more than memory has")))
}

fn source(from: isize) -> Result<usize> {
    match from {
        LIBCOPY_ANY_SOURCE => Ok(ANY_SOURCE),
        from => usize::try_from(from).map_err(|_| invalid(format!("rank {from} is below 0"))),
    }
}

fn no_request() -> Failure {
    invalid("the request is null")
}

fn tell(status: Option<Out<libcopy_status_t>>, found: Status) -> Result {
    status.map_or(Ok(()), |status| status.put(found.into()))
}

/// Sends `count` elements, or `count` bytes if `datatype` is null, to rank `to` with a tag of 0 or
/// more. Returns when `buffer` may be used again.
#[c_api]
pub fn libcopy_team_send(
    team: Shared<libcopy_team_t>,
    #[bytes(count, datatype)] buffer: SendBuffer,
    count: u64,
    datatype: Option<&libcopy_type_t>,
    to: usize,
    tag: c_int,
) -> Result {
    Ok(team.lock()?.send(buffer, to, tag)?)
}

/// Receives a message of rank `from`, or `LIBCOPY_ANY_SOURCE`, with this tag, or `LIBCOPY_ANY_TAG`.
/// Fails with `LIBCOPY_ETRUNCATE`, and the team stays whole, if it is longer than `count` elements,
/// or `count` bytes if `datatype` is null. `status` may be null.
#[c_api]
pub fn libcopy_team_recv(
    team: Shared<libcopy_team_t>,
    #[bytes(count, datatype)] buffer: RecvBuffer,
    count: u64,
    datatype: Option<&libcopy_type_t>,
    from: isize,
    tag: c_int,
    status: Option<Out<libcopy_status_t>>,
) -> Result {
    tell(status, team.lock()?.recv(buffer, source(from)?, tag)?)
}

/// Sends a message and receives one at the same time, as `libcopy_team_send` and
/// `libcopy_team_recv`. `status` is that of the one that is received, and may be null.
#[c_api]
pub fn libcopy_team_sendrecv(
    team: Shared<libcopy_team_t>,
    #[bytes(send_count, send_type)] send: SendBuffer,
    send_count: u64,
    send_type: Option<&libcopy_type_t>,
    to: usize,
    send_tag: c_int,
    #[bytes(recv_count, recv_type)] recv: RecvBuffer,
    recv_count: u64,
    recv_type: Option<&libcopy_type_t>,
    from: isize,
    recv_tag: c_int,
    status: Option<Out<libcopy_status_t>>,
) -> Result {
    let (to, from) = ((to, send_tag), (source(from)?, recv_tag));
    tell(status, team.lock()?.sendrecv(send, to, recv, from)?)
}

/// Begins to send a message. `buffer` must not change until `libcopy_team_wait` or
/// `libcopy_team_test` has completed the request, or a call of the team has failed with another
/// code than `LIBCOPY_EINVAL` and `LIBCOPY_ETRUNCATE`. Messages get on in calls of this team that
/// are about messages.
#[c_api]
pub fn libcopy_team_isend(
    team: Shared<libcopy_team_t>,
    #[bytes(count, datatype)] buffer: SendBuffer,
    count: u64,
    datatype: Option<&libcopy_type_t>,
    to: usize,
    tag: c_int,
    request: Out<*mut libcopy_request_t>,
) -> Result {
    // SAFETY: the caller leaves the buffer alone for as long as that needs.
    let made = unsafe { team.lock()?.isend(buffer, to, tag)? };
    request.put(libcopy_request_t { request: made }.into_raw())
}

/// Begins to receive a message. `buffer` must not be used until then, as for `libcopy_team_isend`.
#[c_api]
pub fn libcopy_team_irecv(
    team: Shared<libcopy_team_t>,
    #[bytes(count, datatype)] buffer: RecvBuffer,
    count: u64,
    datatype: Option<&libcopy_type_t>,
    from: isize,
    tag: c_int,
    request: Out<*mut libcopy_request_t>,
) -> Result {
    let from = source(from)?;
    // SAFETY: the caller leaves the buffer alone for as long as that needs.
    let made = unsafe { team.lock()?.irecv(buffer, from, tag)? };
    request.put(libcopy_request_t { request: made }.into_raw())
}

/// Waits until a request of this team is complete, and frees it, also if it fails: `*request` is
/// null then. `status` may be null.
#[c_api]
pub fn libcopy_team_wait(
    team: Shared<libcopy_team_t>,
    request: InOut<libcopy_request_t>,
    status: Option<Out<libcopy_status_t>>,
) -> Result {
    let mut team = team.lock()?;
    let own = request.0.take().ok_or_else(no_request)?;
    tell(status, team.wait(own.request)?)
}

/// Whether a request of this team is complete: then `*flag` is 1, and as after `libcopy_team_wait`.
#[c_api]
pub fn libcopy_team_test(
    team: Shared<libcopy_team_t>,
    request: InOut<libcopy_request_t>,
    flag: Out<c_int>,
    status: Option<Out<libcopy_status_t>>,
) -> Result {
    let mut team = team.lock()?;
    let known = request.0.as_mut().ok_or_else(no_request)?;
    let tested = team.test(&mut known.request);
    let is_over = !matches!(tested, Ok(None));
    flag.put(is_over.into())?;
    if is_over {
        *request.0 = None;
    }
    tested?.map_or(Ok(()), |found| tell(status, found))
}

/// Whether a message is there that `libcopy_team_recv` would receive: then `*flag` is 1, and
/// `status` says how long it is. `status` may be null.
#[c_api]
pub fn libcopy_team_iprobe(
    team: Shared<libcopy_team_t>,
    from: isize,
    tag: c_int,
    flag: Out<c_int>,
    status: Option<Out<libcopy_status_t>>,
) -> Result {
    let found = team.lock()?.iprobe(source(from)?, tag)?;
    flag.put(found.is_some().into())?;
    found.map_or(Ok(()), |found| tell(status, found))
}
