// SPDX-License-Identifier: GPL-2.0

//! The module's own workqueue: what a notifier or a closing VMA must not do itself.
//!
//! A system-wide queue would not do: unloading has to wait until the last item has returned.

use crate::shim;
use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::workqueue::Queue;

static QUEUE: Atomic<*mut bindings::workqueue_struct> = Atomic::new(core::ptr::null_mut());

/// Keeps the queue alive; dropping it waits for what is queued.
pub(crate) struct Guard(*mut bindings::workqueue_struct);

// SAFETY: A workqueue may be destroyed from any thread.
unsafe impl Send for Guard {}
// SAFETY: Nothing can be done through a shared reference.
unsafe impl Sync for Guard {}

/// Creates the queue.
pub(crate) fn create() -> Result<Guard> {
    let queue = shim::workqueue_create()?;
    QUEUE.store(queue, Relaxed);
    Ok(Guard(queue))
}

/// The queue. Only for code that runs on behalf of an open file, which keeps the module loaded.
pub(crate) fn get() -> &'static Queue {
    // SAFETY: Created before the device is registered and destroyed after it is gone.
    unsafe { Queue::from_raw(QUEUE.load(Relaxed)) }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: The queue is ours, and nobody enqueues any more.
        unsafe { bindings::destroy_workqueue(self.0) };
    }
}
