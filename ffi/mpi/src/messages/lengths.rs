// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lengths of messages, in bytes: from which one on a message is intercepted, and which ones a
//! header has, whose length says in which slot the sender has described its message.

use std::sync::atomic::{AtomicU64, Ordering};

use libcopy::p2p::header::{self, slot_of};

use crate::comm::processes::World;

/// Slots whose length is the program's own, to be looked at without a lock.
#[unsafe(link_section = "libcopy_hot_words")]
static RETIRED: AtomicU64 = AtomicU64::new(0);

/// Whether a length names a slot that may still be used.
#[inline]
pub fn is_special(bytes: u64) -> bool {
    slot_of(bytes).is_some_and(|slot| RETIRED.load(Ordering::Acquire) >> slot & 1 == 0)
}

/// Dense messages of fewer bytes are forwarded; until it is known whether any are, what is shorter
/// than headers.
#[unsafe(link_section = "libcopy_hot_words")]
static LEAST: AtomicU64 = AtomicU64::new(header::SHORTEST);

/// Messages of fewer bytes are forwarded, dense ones or others; 0 until that is known.
#[unsafe(link_section = "libcopy_hot_words")]
static LEAST_OF_ALL: AtomicU64 = AtomicU64::new(0);

/// Learns from how many bytes on messages are intercepted, dense ones and others; `None` if none
/// are.
pub fn learn(least: Option<[u64; 2]>) {
    let [dense, other] = least.unwrap_or([u64::MAX; 2]);
    LEAST.store(dense, Ordering::Relaxed);
    LEAST_OF_ALL.store(dense.min(other), Ordering::Relaxed);
}

/// Whether no message of `bytes` is intercepted.
#[inline(always)]
pub fn is_short(bytes: u64) -> bool {
    bytes < LEAST_OF_ALL.load(Ordering::Relaxed)
}

/// Whether no messages are intercepted, as all processes know.
#[inline(always)]
pub fn is_off() -> bool {
    LEAST.load(Ordering::Relaxed) == u64::MAX
}

/// Whether a dense message of `bytes` is forwarded without a closer look.
#[inline(always)]
pub fn is_passed(bytes: u64) -> bool {
    bytes < LEAST.load(Ordering::Relaxed) && !is_special(bytes)
}

/// Slots that messages inside this machine do not use any more, whose length is to be looked at all
/// the same.
static RESERVED: AtomicU64 = AtomicU64::new(0);

/// Takes a slot for something else than messages inside this machine.
pub fn reserve(world: &World, slot: usize) {
    world.endpoint.retire(slot);
    RESERVED.fetch_or(1 << slot, Ordering::Relaxed);
    RETIRED.fetch_and(!(1 << slot), Ordering::Release);
}

/// A message of the program's own has the length that names this slot: the slot is never used
/// again.
#[cold]
pub fn retire(world: &World, slot: usize) {
    let retired = world.endpoint.retire(slot) & !RESERVED.load(Ordering::Relaxed);
    RETIRED.fetch_or(retired, Ordering::Release);
}
