// SPDX-License-Identifier: GPL-2.0

//! [`Slot`]: a fragment that a channel's hardware works on.
//!
//! Nothing here is locked: who has a slot's task follows from atomic counts, see the invariant of
//! [`Slot`].

use crate::engine::queue::Entry;
use crate::requests::job::Job;
use core::cell::UnsafeCell;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;

/// Fragments that a channel may have in work at a time.
pub(crate) const MAX_DEPTH: usize = 16;

/// A fragment in work. The entry is referred to by the queue, too, for as long.
pub(crate) struct Task<J: Job> {
    pub(crate) entry: Arc<Entry<J>>,
    pub(crate) fragment: u64,
    /// Bytes that were submitted.
    pub(crate) submitted: u64,
}

/// Where a fragment is while the hardware works on it.
///
/// # Invariants
///
/// `task` belongs to the thread that set the slot's bit in [`crate::engine::queue::Queue::busy`]
/// until the last of `pending` is counted down, then to who did that; to the supervisor while the
/// hardware is stopped.
pub(crate) struct Slot<J: Job, C> {
    /// Whose slot it is, for callbacks.
    pub(crate) channel: Atomic<*mut C>,
    pub(crate) index: u32,
    /// Descriptors under way, and one more while they are being submitted.
    pub(crate) pending: Atomic<u32>,
    /// Whether one of them ended badly.
    pub(crate) failed: Atomic<u32>,
    /// When the fragment was submitted, in nanoseconds; 0: not in work.
    pub(crate) since: Atomic<i64>,
    pub(crate) task: UnsafeCell<Option<Task<J>>>,
}

// SAFETY: By the invariant one thread at a time has the task; the channel is only pointed to, and
// may be used from any thread.
unsafe impl<J: Job, C> Send for Slot<J, C> {}
// SAFETY: As above.
unsafe impl<J: Job, C> Sync for Slot<J, C> {}

impl<J: Job, C> Slot<J, C> {
    /// The slot number `index` of a channel, which is not known yet; without a fragment.
    pub(crate) fn new(index: u32) -> Self {
        Self {
            channel: Atomic::new(core::ptr::null_mut()),
            index,
            pending: Atomic::new(0),
            failed: Atomic::new(0),
            since: Atomic::new(0),
            task: UnsafeCell::new(None),
        }
    }

    /// Whether its fragment was submitted before `late`.
    pub(crate) fn is_late(&self, late: i64) -> bool {
        let since = self.since.load(Relaxed);
        since != 0 && since < late
    }
}
