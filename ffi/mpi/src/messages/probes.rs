// SPDX-License-Identifier: MIT OR Apache-2.0

//! Probes: a message whose length names a slot that is under way to us is as long as that slot
//! says.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};

use libcopy::p2p::header;

use crate::comm::communicator;
use crate::comm::processes::World;
use crate::library::abi::Word;
use crate::library::status::Status;
use crate::library::threads;
use crate::messages::remote;
use libcopy::lock::lock;

/// A message that was found, and whose length names a slot that is not under way to us: the sender,
/// the slot, and the sequence of the slot's last message. Either the program's own message has that
/// length, or another thread has received the header since it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone(usize, usize, u64);

impl Gone {
    /// Nothing is known of a message whose length is no length.
    const UNKNOWN: Gone = Gone(usize::MAX, 0, 0);

    /// Whether a second probe has found the same message.
    pub fn is_still(self, before: Option<Gone>) -> bool {
        self != Gone::UNKNOWN && before == Some(self)
    }
}

/// Corrects the length of a message that was found. `Some` if it may have been a header that
/// another thread has received since: then the caller probes again. A second probe that gives the
/// same [`Gone`] has found the program's own message, since a header leaves the library's queue
/// before its slot's state changes.
pub fn correct(world: &World, comm: Word, status: Status) -> Option<Gone> {
    // Open MPI 4.1 looks into a short message after another thread may have received it, and says
    // -14 bytes.
    if status.bytes() > i64::MAX as u64 && threads::are_several(world.abi) {
        return Some(Gone::UNKNOWN);
    }
    let number = header::slot_of(status.bytes())?;
    if let Some(total) = remote::true_length(world, comm, status) {
        status.set_bytes(total);
        return None;
    }
    let known = communicator::of(world.abi, comm).ok()?;
    let sender = world.peers(&known, comm).of(status.source())?;
    let slot = world.segment.slot(sender, number);
    let total = || {
        world.posted(slot, status)?;
        // It may have been received already without anybody having looked.
        world.settle();
        world.posted(slot, status)
    };
    match total() {
        Some(total) => {
            status.set_bytes(total);
            None
        }
        None if threads::are_several(world.abi) => {
            let sequence = slot.sequence(Ordering::Acquire);
            Some(Gone(sender, number, sequence))
        }
        None => None,
    }
}

/// What a matched probe has found.
#[derive(Clone, Copy, Debug)]
pub struct Matched {
    pub comm: Word,
    /// Its bytes, if it is a header.
    pub header: Option<u64>,
}

/// Messages that were taken out of the library's queue.
static MATCHED: LazyLock<Mutex<HashMap<Word, Matched>>> = LazyLock::new(Mutex::default);
static ANY: AtomicUsize = AtomicUsize::new(0);

/// A matched probe has found a message.
pub fn matched(world: &World, found: Matched, message: *const c_void) {
    // SAFETY: the library wrote a handle.
    let handle = unsafe { world.abi.handle_at(message, 0) } & world.abi.handle;
    if lock(&MATCHED).insert(handle, found).is_none() {
        ANY.fetch_add(1, Ordering::Relaxed);
    }
}

/// What is known of a message that is about to be received.
pub fn take_matched(world: &World, message: *const c_void) -> Option<Matched> {
    if ANY.load(Ordering::Relaxed) == 0 {
        return None;
    }
    // SAFETY: the program's message.
    let handle = unsafe { world.abi.handle_at(message, 0) } & world.abi.handle;
    let found = lock(&MATCHED).remove(&handle)?;
    ANY.fetch_sub(1, Ordering::Relaxed);
    Some(found)
}
