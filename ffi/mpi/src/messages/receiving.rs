// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a function that receives does with what has come.

use std::ffi::{c_int, c_void};

use libcopy::p2p::header;

use super::arguments::Elements;
use super::incoming::{self, Arrival, When, raise};
use super::status::Status;
use super::world::{World, world};
use crate::abi::Word;

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
    Arrival::new(
        world,
        (what.buffer, what.count, what.datatype),
        comm,
        (least, when),
    )
}

/// After `MPI_Recv` or a relative with this code: what has come may be a header.
///
/// # Safety
///
/// The library wrote the status if it did not fail; the elements are writable.
pub unsafe fn arrived(
    world: &World,
    what: Elements,
    (source, comm): (c_int, Word),
    status: *mut c_void,
    code: c_int,
) -> c_int {
    if code != 0 {
        incoming::give_back(world, (what.buffer, what.count, what.datatype));
        return code;
    }
    if source < 0 && source != world.abi.any_source {
        return 0;
    }
    // SAFETY: the library wrote a status.
    let status = unsafe { Status::new(world.abi, status) };
    if header::slot_of(status.bytes()).is_none_or(|slot| world.is_unposted(slot)) {
        return 0;
    }
    let Some(arrival) = arrival(world, what, (source, comm), (0, When::Here)) else {
        return 0;
    };
    match arrival.conclude(world, status) {
        0 => 0,
        code => raise(arrival.comm(), code),
    }
}

/// Whether a message of `bytes` bytes may be a header.
pub fn may_be_header(bytes: u64) -> bool {
    world().is_some_and(|world| header::slot_of(bytes).is_some_and(|slot| !world.is_unposted(slot)))
}

/// The same as [`arrived`] for what the library has received elsewhere and what was copied to host memory: address and bytes
/// of that.
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
