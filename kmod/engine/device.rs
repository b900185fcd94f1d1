// SPDX-License-Identifier: GPL-2.0

//! [`Device`]: a device that does transfers.

use crate::abstractions::shim;
use crate::engine::dmaengine::{self, Hardware};
use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full};

/// A reference to a device.
///
/// # Invariants
///
/// The pointer is valid and owns one reference.
pub(crate) struct Device {
    raw: *mut bindings::device,
    /// Mappings of memory that exist for it.
    live: Atomic<u32>,
}

// SAFETY: Devices are reference counted and may be used from any thread.
unsafe impl Send for Device {}
// SAFETY: As above; the counter is atomic.
unsafe impl Sync for Device {}

impl Device {
    /// The device of an acquired channel.
    pub(crate) fn of(hardware: &Hardware) -> Self {
        Self {
            // INVARIANT: The call takes a reference for us.
            // SAFETY: The channel keeps its device while we take a reference.
            raw: unsafe { bindings::get_device(hardware.device()) },
            live: Atomic::new(0),
        }
    }

    /// The raw device.
    pub(crate) fn as_ptr(&self) -> *mut bindings::device {
        self.raw
    }

    /// Whether `dev`, which the caller keeps, is this device or a part of it.
    pub(crate) fn contains(&self, dev: *mut bindings::device) -> bool {
        // SAFETY: Ours is valid by the invariant; the caller, a notifier, keeps `dev`.
        unsafe { dmaengine::part_of(dev, self.raw) }
    }

    /// Makes sure that we hear when the device goes. Called without locks.
    pub(crate) fn watch(&self) -> Result {
        // SAFETY: Valid by the invariant.
        unsafe { dmaengine::watch(self.raw) }
    }

    /// Counts a mapping that is about to be made.
    pub(crate) fn enter(&self) {
        self.live.fetch_add(1, Full);
    }

    /// A mapping that was counted is gone.
    pub(crate) fn exit(&self) {
        self.live.fetch_sub(1, Full);
    }

    /// Waits until every mapping is gone.
    pub(crate) fn wait_unmapped(&self) {
        while self.live.load(Acquire) != 0 {
            shim::nap(1);
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: Releases the reference that `of` took.
        unsafe { bindings::put_device(self.raw) }
    }
}
