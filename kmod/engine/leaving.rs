// SPDX-License-Identifier: GPL-2.0

//! Devices that are losing their drivers.
//!
//! The notifier first notes the device here, then stops its channels one by one (`Channel::held`),
//! then takes back what is mapped for it. Who acquires a channel first says whose it is (`held`),
//! then looks here, and gives it back if its device is there. So one of the two sees the other.

use crate::engine::device::Device;
use kernel::bindings;
use kernel::prelude::*;

/// Devices that are losing their drivers, by address.
struct Leaving {
    devices: KVec<usize>,
    /// Those that there was no memory to note: as long as there are any, every device may be one.
    unknown: usize,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init before the device is registered.
    unsafe(uninit) static LEAVING: Mutex<Leaving> = Leaving {
        devices: KVec::new(),
        unknown: 0,
    };
}

impl Leaving {
    fn has(&self, device: &Device) -> bool {
        self.devices
            .iter()
            .any(|dev| device.contains(*dev as *mut bindings::device))
    }
}

/// Prepares the list.
///
/// # Safety
///
/// Called exactly once, before anything else in this file.
pub(crate) unsafe fn init() {
    // SAFETY: The caller calls this once, before any other use of the lock.
    unsafe { LEAVING.init() };
}

/// Gives the list's memory back: statics are never dropped.
pub(crate) fn clear() {
    LEAVING.lock().devices = KVec::new();
}

/// Whether the device or a part of it may be losing its driver just now.
pub(crate) fn may_have(device: &Device) -> bool {
    let leaving = LEAVING.lock();
    leaving.unknown != 0 || leaving.has(device)
}

/// Whether the device or a part of it is known to be losing its driver.
pub(crate) fn has(device: &Device) -> bool {
    LEAVING.lock().has(device)
}

/// A device is about to lose its driver.
pub(crate) fn note(dev: *mut bindings::device) {
    let mut leaving = LEAVING.lock();
    if leaving.devices.push(dev as usize, GFP_KERNEL).is_err() {
        leaving.unknown += 1;
    }
}

/// A device has lost its driver.
pub(crate) fn forget(dev: *mut bindings::device) {
    let mut leaving = LEAVING.lock();
    let mut devices = leaving.devices.iter();
    match devices.position(|known| *known == dev as usize) {
        Some(index) => drop(leaving.devices.remove(index)),
        // Not noted for want of memory; or its beginning was not heard, because the bus came under
        // watch in between.
        None => leaving.unknown = leaving.unknown.saturating_sub(1),
    }
}
