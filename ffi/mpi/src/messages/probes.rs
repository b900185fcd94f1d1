// SPDX-License-Identifier: MIT OR Apache-2.0

//! Probes: a message whose length names a slot that is under way to us is as long as that slot says.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};

use super::board::state;
use super::outgoing::lock;
use super::status::Status;
use super::{World, header, requests};
use crate::abi::Word;
use crate::group;

/// Corrects the length of a message that was found.
pub fn correct(world: &World, comm: Word, status: Status) {
    let Some(number) = header::slot_of(status.bytes()) else {
        return;
    };
    let total = || {
        let known = group::of(world.abi, comm).ok()?;
        let sender = world.peers(&known, comm).of(status.source())?;
        let slot = world.board.slot(sender, number);
        let is_ours = || {
            slot.state.load(Ordering::Acquire) == state::POSTED
                && slot.to.load(Ordering::Relaxed) == world.me as u32
                && slot.tag.load(Ordering::Relaxed) == status.tag()
        };
        if !is_ours() {
            return None;
        }
        // It may have been received already without anybody having looked.
        requests::settle(world);
        is_ours().then(|| slot.total.load(Ordering::Relaxed))
    };
    if let Some(total) = total() {
        status.set_bytes(total);
    }
}

/// Messages that were taken out of the library's queue, and their communicators.
static MATCHED: LazyLock<Mutex<HashMap<Word, Word>>> = LazyLock::new(Mutex::default);
static ANY: AtomicUsize = AtomicUsize::new(0);

/// A matched probe has found a message.
pub fn matched(world: &World, comm: Word, message: *const c_void) {
    // SAFETY: the library wrote a handle.
    let handle = unsafe { world.abi.handle_at(message, 0) } & world.abi.handle;
    if lock(&MATCHED).insert(handle, comm).is_none() {
        ANY.fetch_add(1, Ordering::Relaxed);
    }
}

/// The communicator of a message that is about to be received.
pub fn communicator(world: &World, message: *const c_void) -> Option<Word> {
    if ANY.load(Ordering::Relaxed) == 0 {
        return None;
    }
    // SAFETY: the program's message.
    let handle = unsafe { world.abi.handle_at(message, 0) } & world.abi.handle;
    let comm = lock(&MATCHED).remove(&handle)?;
    ANY.fetch_sub(1, Ordering::Relaxed);
    Some(comm)
}
