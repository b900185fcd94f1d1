// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a function that receives does with what has come.

use std::ffi::{c_int, c_void};

use libcopy::p2p::header;

use crate::comm::processes::{World, world};
use crate::library::abi::Word;
use crate::library::status::Status;
use crate::messages::arguments::Elements;
use crate::messages::incoming::{Arrival, When, raise};
use crate::messages::truncation::is_truncation;

/// What such elements are received with, if a header may come for them.
pub fn arrival(
    world: &World,
    what: Elements,
    (source, comm): (c_int, Word),
    (least, when): (u64, When),
) -> Option<Arrival> {
    // Below zero are MPI_PROC_NULL and, with another number, MPI_ANY_SOURCE.
    if source < 0 && source != world.abi.any_source {
        return None;
    }
    Arrival::new(world, what, comm, (least, when))
}

/// After `MPI_Recv` or a relative with this code: what has come may be a header, or the beginning
/// of one.
///
/// # Safety
///
/// The library wrote the status if it did not fail, or says that a message was too long; the
/// elements are writable.
pub unsafe fn arrived(
    world: &World,
    what: Elements,
    (source, comm): (c_int, Word),
    status: *mut c_void,
    code: c_int,
) -> c_int {
    if source < 0 && source != world.abi.any_source {
        return code;
    }
    // SAFETY: the library wrote a status, which is looked at only then.
    let status = unsafe { Status::new(world.abi, status) };
    let is_cut = code != 0 && is_truncation(world, code);
    let is_named = || header::slot_of(status.bytes()).is_some_and(|slot| !world.is_unposted(slot));
    if !is_cut && (code != 0 || !is_named()) {
        return code;
    }
    let Some(arrival) = Arrival::of_any_length(world, what, comm, When::Here) else {
        return code;
    };
    match arrival.conclude(world, status, code) {
        0 => code,
        code => raise(comm, code),
    }
}

/// Whether a message of `bytes` bytes may be a header.
pub fn may_be_header(bytes: u64) -> bool {
    world().is_some_and(|world| header::slot_of(bytes).is_some_and(|slot| !world.is_unposted(slot)))
}

/// As [`arrived`], of what the library has received elsewhere and what was copied to host memory:
/// address and bytes of that.
///
/// # Safety
///
/// The library wrote the status if it did not fail; the memory is writable.
pub unsafe fn arrived_elsewhere(
    (buffer, room): (*mut c_void, usize),
    comm: Word,
    status: *mut c_void,
    code: c_int,
) -> c_int {
    let Some(world) = world() else {
        return code;
    };
    let what = Elements {
        buffer,
        count: Some(room),
        datatype: world.abi.byte,
    };
    // SAFETY: the caller's promise.
    unsafe { arrived(world, what, (world.abi.any_source, comm), status, code) }
}
