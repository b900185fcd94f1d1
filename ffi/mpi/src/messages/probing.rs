// SPDX-License-Identifier: MIT OR Apache-2.0

//! Probes, whose statuses are corrected: what the library has found may be the header of a longer
//! message.

use std::ffi::{c_int, c_void};

use crate::comm::processes::World;
use crate::gpu;
use crate::library::abi::Word;
use crate::library::pmpi::forward;
use crate::library::status::{Room, Status, is_ignored};
use crate::messages::{probes, remote};

/// Calls a probe, which returns its code and whether it found a message, with a status, and
/// corrects what that says. Probes again if another thread has received the message before its
/// length was known.
///
/// # Safety
///
/// The status is writable, or ignored.
unsafe fn corrected(
    world: &World,
    comm: Word,
    status: *mut c_void,
    probe: impl Fn(*mut c_void) -> (c_int, bool),
) -> c_int {
    if is_ignored(status) {
        return probe(status).0;
    }
    let mut before = None;
    loop {
        let (code, found) = probe(status);
        if code != 0 || !found {
            return code;
        }
        // SAFETY: the library wrote a status.
        let gone = probes::correct(world, comm, unsafe { Status::new(world.abi, status) });
        if gone.is_none_or(|gone| gone.is_still(before)) {
            return code;
        }
        before = gone;
    }
}

pub unsafe fn probe(
    world: &World,
    source: c_int,
    tag: c_int,
    comm: Word,
    status: *mut c_void,
) -> Option<c_int> {
    gpu::before_waiting();
    // SAFETY: the caller's promise.
    Some(unsafe {
        corrected(world, comm, status, |status| {
            (forward::probe(source, tag, comm, status), true)
        })
    })
}

/// `MPI_Iprobe` where the library has found nothing, which is as a rule, or where nobody wants to
/// know what; else the library is to be asked again.
///
/// # Safety
///
/// As the MPI standard says.
#[inline]
pub unsafe fn iprobe_at_once(
    source: c_int,
    tag: c_int,
    comm: Word,
    flag: *mut c_int,
    status: *mut c_void,
) -> Option<c_int> {
    // SAFETY: the caller's promise; the library has written to the flag if there was no error.
    unsafe {
        let code = forward::iprobe(source, tag, comm, flag, status);
        (code != 0 || *flag == 0 || is_ignored(status)).then_some(code)
    }
}

pub unsafe fn iprobe(
    world: &World,
    source: c_int,
    tag: c_int,
    comm: Word,
    flag: *mut c_int,
    status: *mut c_void,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    Some(unsafe {
        corrected(world, comm, status, |status| {
            let code = forward::iprobe(source, tag, comm, flag, status);
            (code, *flag != 0)
        })
    })
}

pub unsafe fn mprobe(
    world: &World,
    source: c_int,
    tag: c_int,
    comm: Word,
    message: *mut c_void,
    status: *mut c_void,
) -> Option<c_int> {
    gpu::before_waiting();
    let none = std::ptr::null_mut();
    // SAFETY: the caller's promise.
    unsafe { improbe(world, source, tag, comm, none, message, status) }
}

pub unsafe fn improbe(
    world: &World,
    source: c_int,
    tag: c_int,
    comm: Word,
    flag: *mut c_int,
    message: *mut c_void,
    status: *mut c_void,
) -> Option<c_int> {
    let mut room = Room::new();
    let at = room.instead_of(status);
    // SAFETY: the caller's promise.
    unsafe {
        let (code, found) = if flag.is_null() {
            (forward::mprobe(source, tag, comm, message, at), true)
        } else {
            let code = forward::improbe(source, tag, comm, flag, message, at);
            (code, *flag != 0)
        };
        // Looked at where the library has written it.
        let status = Status::new(world.abi, at);
        if code == 0 && found && status.source() >= 0 {
            let found = status.bytes();
            probes::correct(world, comm, status);
            let header = (status.bytes() != found).then_some(found);
            if header.is_some() {
                remote::matched(world, comm, (found, status));
            }
            probes::matched(world, probes::Matched { comm, header }, message);
        }
        Some(code)
    }
}
