// SPDX-License-Identifier: MIT OR Apache-2.0

//! What higher layers know of messages, which also arrive in device memory and are sent from there.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use libcopy::p2p;

use crate::library::abi::Word;

/// What higher layers know of messages.
#[derive(Debug)]
pub struct Messages {
    /// Whether a message of this length in bytes has to be looked at when it is received.
    pub is_special: fn(u64) -> bool,
    /// Whether a message of this length in bytes may be a header, whose data are to be fetched.
    pub may_be_header: fn(u64) -> bool,
    /// What was received with this status and code, or its beginning, is in host memory (address
    /// and bytes). If it stands for a message, that is fetched.
    pub arrived: unsafe fn((*mut c_void, usize), Word, *mut c_void, c_int) -> c_int,
    /// Packs what was sent from device memory and that no receiver copies yet.
    pub pack_all: fn(),
    /// From now on receives may go into device memory.
    pub found_driver: fn(),
}

static MESSAGES: OnceLock<Messages> = OnceLock::new();

/// Says what higher layers know of messages.
pub fn register(messages: Messages) {
    MESSAGES.get_or_init(|| messages);
}

/// What they know; `None` before they have said so.
pub fn known() -> Option<&'static Messages> {
    MESSAGES.get()
}

/// Before a call that waits for other processes without letting messages get on: a receiver that
/// cannot copy out of device memory must not have to wait for this process.
#[inline]
pub fn before_waiting() {
    if p2p::any_on_device() {
        pack_all();
    }
}

#[cold]
fn pack_all() {
    if let Some(messages) = known() {
        (messages.pack_all)();
    }
}
