// SPDX-License-Identifier: MIT OR Apache-2.0

//! The processes of this job on this machine, between which messages go past the MPI library.

use std::ffi::c_int;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering, fence};

use libcopy::p2p::Endpoint;
use libcopy::p2p::segment::{Slot, UNCOUNTED, state};

use crate::bootstrap;
use crate::decide::prior::Choice;
use crate::library::abi::Abi;
use crate::library::status::Status;

/// The processes of this job on this machine.
#[derive(Debug)]
pub struct World {
    pub abi: &'static Abi,
    /// The ranks that have agreed.
    pub agreed: &'static bootstrap::World,
    /// Their ranks in `MPI_COMM_WORLD`.
    pub ranks: Vec<c_int>,
    /// Which messages are worth it.
    pub choice: &'static Choice,
    /// Bytes from which on a dense message is intercepted, and one that is not dense, as the first
    /// process says.
    pub least: [u64; 2],
    /// What moves messages.
    pub endpoint: Endpoint,
}

impl Deref for World {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// The world, once it is there; never freed.
#[unsafe(link_section = "libcopy_hot_words")]
pub static WORLD: AtomicPtr<World> = AtomicPtr::new(std::ptr::null_mut());

/// The world, if messages are intercepted at all.
#[inline(always)]
pub fn world() -> Option<&'static World> {
    // SAFETY: what is stored once stays.
    unsafe { WORLD.load(Ordering::Acquire).as_ref() }
}

/// Says whether this process has lost the right to read others' memory, or may have: messages from
/// it and to it go through the MPI library then. Returns what was said before.
pub fn lose_rights(lost: bool) -> bool {
    world().is_some_and(|world| {
        let word = world.segment.lost_rights(world.me);
        word.swap(u32::from(lost), Ordering::SeqCst) != 0
    })
}

/// Whether this process has lost the right to read others' memory.
pub fn has_lost_rights() -> bool {
    world().is_some_and(|world| world.segment.lost_rights(world.me).load(Ordering::Relaxed) != 0)
}

/// Says that this process does not count all its requests that receive any more, since some receive
/// into device memory.
pub fn stop_counting() {
    if let Some(world) = world() {
        let requests = world.segment.receive_requests(world.me);
        requests.fetch_or(UNCOUNTED, Ordering::Relaxed);
    }
}

/// Goes on with requests that are under way.
static SETTLE: OnceLock<fn(&World)> = OnceLock::new();

/// Says how to go on with requests that are under way.
pub fn register(settle: fn(&World)) {
    let _ = SETTLE.set(settle);
}

impl World {
    /// Goes on with requests that are under way.
    pub fn settle(&self) {
        if let Some(settle) = SETTLE.get() {
            settle(self);
        }
    }

    /// The length of the message that a slot stands for, if that is under way to us with the
    /// status's tag.
    pub fn posted(&self, slot: &Slot, status: Status) -> Option<u64> {
        let sequence = slot.sequence(Ordering::Acquire);
        let is_ours = slot.state(Ordering::Acquire) == state::POSTED
            && slot.to(Ordering::Relaxed) == self.me as u32
            && slot.tag(Ordering::Relaxed) == status.tag();
        let total = slot.total(Ordering::Relaxed);
        // Another thread may receive it meanwhile, and the sender use the slot again.
        fence(Ordering::Acquire);
        let is_same = slot.sequence(Ordering::Relaxed) == sequence
            && slot.state(Ordering::Relaxed) == state::POSTED;
        (is_ours && is_same).then_some(total)
    }
}
