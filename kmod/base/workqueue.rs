// SPDX-License-Identifier: GPL-2.0

//! The module's own workqueues: what a callback of the memory manager or a closing VMA must not do
//! itself.
//!
//! A system-wide queue would not do: unloading has to wait until the last item has returned.
//!
//! What is on the first queue, which serves everybody, waits for nobody. Mappings are unpinned on a
//! second one: that may wait for the lock of a page that was written to. A third one waits for user
//! workers ([`crate::requests::copier`]) that end.
//!
//! All are there for as long as the device is registered and anything is queued, so that code which
//! runs on behalf of an open file, or of what is queued, may enqueue.

use crate::abstractions::shim;
use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::workqueue::{Queue, RawWorkItem};

static QUEUE: Atomic<*mut bindings::workqueue_struct> = Atomic::new(core::ptr::null_mut());
static UNPINNING: Atomic<*mut bindings::workqueue_struct> = Atomic::new(core::ptr::null_mut());
static REAPING: Atomic<*mut bindings::workqueue_struct> = Atomic::new(core::ptr::null_mut());

/// A workqueue.
struct Owned(*mut bindings::workqueue_struct);

// SAFETY: A workqueue may be destroyed from any thread.
unsafe impl Send for Owned {}
// SAFETY: Nothing can be done through a shared reference.
unsafe impl Sync for Owned {}

/// Keeps the queues alive; dropping it waits for what is queued.
pub(crate) struct Guard([Owned; 3]);

/// Creates the queues.
pub(crate) fn create() -> Result<Guard> {
    let queue = Owned(shim::workqueue_create(c"libcopy")?);
    let unpinning = Owned(shim::workqueue_create(c"libcopy_unpin")?);
    let reaping = Owned(shim::workqueue_create(c"libcopy_reap")?);
    QUEUE.store(queue.0, Relaxed);
    UNPINNING.store(unpinning.0, Relaxed);
    REAPING.store(reaping.0, Relaxed);
    Ok(Guard([queue, unpinning, reaping]))
}

/// Puts something on the first queue. Does not sleep. Only for code that runs on behalf of an open
/// file or of what is queued.
pub(crate) fn enqueue<W>(work: W) -> W::EnqueueOutput
where
    W: RawWorkItem<0> + Send + 'static,
{
    // SAFETY: Created before the device is registered and destroyed after it is gone.
    unsafe { Queue::from_raw(QUEUE.load(Relaxed)) }.enqueue(work)
}

/// Puts something that unpins on the second queue; otherwise like [`enqueue`].
pub(crate) fn enqueue_unpinning<W>(work: W) -> W::EnqueueOutput
where
    W: RawWorkItem<0> + Send + 'static,
{
    // SAFETY: As above.
    unsafe { Queue::from_raw(UNPINNING.load(Relaxed)) }.enqueue(work)
}

/// Puts a user worker that ends on the third queue; otherwise like [`enqueue`].
pub(crate) fn enqueue_reaping<W>(work: W) -> W::EnqueueOutput
where
    W: RawWorkItem<0> + Send + 'static,
{
    // SAFETY: As above; unloading waits for all user workers before.
    unsafe { Queue::from_raw(REAPING.load(Relaxed)) }.enqueue(work)
}

impl Owned {
    /// Waits for what is queued.
    fn flush(&self) {
        // SAFETY: The queue is ours.
        unsafe { bindings::__flush_workqueue(self.0) };
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // What is on the first may put something on the second. With the last mapping the last
        // address space is given back; a callback that has begun before may still enqueue, which a
        // queue that is being destroyed refuses.
        self.0.iter().for_each(Owned::flush);
        shim::notifiers_synchronize();
        self.0.iter().for_each(Owned::flush);
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: The queue is ours, and nobody enqueues any more.
        unsafe { bindings::destroy_workqueue(self.0) };
    }
}
