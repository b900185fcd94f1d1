// SPDX-License-Identifier: GPL-2.0

//! The shrinker: what processes leave pinned for reuse goes when the machine is short of memory.
//!
//! A pinned page can be neither swapped nor moved. So the memory manager asks for the idle ones
//! back ([`crate::memory::idle`]), from within an allocation that somebody cannot get otherwise.
//! Nothing is waited for there: who holds a lock may be that somebody. A holder whose lock is taken
//! is passed over, and pages are unpinned by a workqueue, because that may wait.
//!
//! It is asked for the whole machine, not for a memory cgroup that has reached its limit. With
//! `SHRINKER_MEMCG_AWARE` it would be asked for a cgroup only while a `list_lru` has an element of
//! that cgroup (`mm/shrinker.c`, `set_shrinker_bit()`), so each idle mapping would need a node that
//! is charged to its cgroup and allocated with `kmem_cache_alloc_lru()`, and a lock of the list
//! around each reuse, which is the path that reuse is to make cheap. The gain is small: giving a
//! pin back frees nothing by itself, the page stays the process's. It can then be swapped, if the
//! cgroup has swap, or moved. Memory that the process unmaps or discards is not kept: its mapping
//! goes when the change is heard of. What a cgroup cannot swap is at most `reuse_pages` for each of
//! its processes.

use crate::abstractions::shim;
use core::ptr::NonNull;
use kernel::bindings;
use kernel::ffi::c_ulong;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNode};
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;

/// Who has idle pages.
pub(crate) trait Reclaim: Send + Sync {
    /// Gives up idle mappings of `pages` pages, or of a little more; returns of how many. Neither
    /// waits nor allocates.
    fn reclaim(&self, pages: u64) -> u64;
}

struct Holders {
    /// By address; none before the first one.
    all: Option<RBTree<usize, Arc<dyn Reclaim>>>,
    /// Whom to ask first the next time, or who comes next.
    next: usize,
}

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init before the device is registered.
    unsafe(uninit) static HOLDERS: Mutex<Holders> = Holders {
        all: None,
        next: 0,
    };
}

/// Idle pages of all holders.
static IDLE: Atomic<u64> = Atomic::new(0);

/// Counts pages that became idle.
pub(crate) fn add(pages: u64) {
    IDLE.fetch_add(pages, Relaxed);
}

/// Counts pages that are idle no more.
pub(crate) fn sub(pages: u64) {
    IDLE.fetch_sub(pages, Relaxed);
}

/// Has a holder asked from now on.
pub(crate) fn register(holder: Arc<dyn Reclaim>) -> Result {
    let key = Arc::as_ptr(&holder).addr();
    // Allocated before the lock is taken.
    let node = RBTreeNode::new(key, holder, GFP_KERNEL_ACCOUNT)?;
    let before = HOLDERS
        .lock()
        .all
        .get_or_insert_with(RBTree::new)
        .insert(node);
    drop(before);
    Ok(())
}

/// Has a holder asked no more.
pub(crate) fn unregister<T: Reclaim>(holder: &T) {
    let key = core::ptr::from_ref(holder).addr();
    let gone = HOLDERS
        .lock()
        .all
        .as_mut()
        .and_then(|all| all.remove_node(&key));
    // Not under the lock: it may be the last reference.
    drop(gone);
}

/// The registered shrinker; dropping it waits for calls under way.
///
/// # Invariants
///
/// The pointer is a registered shrinker.
pub(crate) struct Guard(NonNull<bindings::shrinker>);

// SAFETY: A shrinker may be unregistered from any thread.
unsafe impl Send for Guard {}
// SAFETY: Nothing can be done through a shared reference.
unsafe impl Sync for Guard {}

/// Registers the shrinker.
///
/// # Safety
///
/// Called exactly once, before anything else in this file.
pub(crate) unsafe fn init() -> Result<Guard> {
    // SAFETY: The caller calls this once, before any other use of the lock.
    unsafe { HOLDERS.init() };
    let shrinker = shim::shrinker_alloc(c"libcopy").ok_or(ENOMEM)?;
    // SAFETY: Allocated just now, and nobody else knows it before it is registered.
    unsafe {
        let raw = shrinker.as_ptr();
        (*raw).count_objects = Some(count);
        (*raw).scan_objects = Some(scan);
        bindings::shrinker_register(raw);
    }
    // INVARIANT: Registered just now.
    Ok(Guard(shrinker))
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: Registered by the type invariant, and freed once.
        unsafe { bindings::shrinker_free(self.0.as_ptr()) };
        // Statics are never dropped.
        let holders = HOLDERS.lock().all.take();
        drop(holders);
    }
}

/// How many pages could be had.
///
/// # Safety
///
/// Called by the memory manager while the shrinker is registered.
unsafe extern "C" fn count(
    _: *mut bindings::shrinker,
    _: *mut bindings::shrink_control,
) -> c_ulong {
    IDLE.load(Relaxed) as c_ulong
}

/// Gives pages back.
///
/// # Safety
///
/// Called by the memory manager while the shrinker is registered, with a valid request.
unsafe extern "C" fn scan(
    _: *mut bindings::shrinker,
    control: *mut bindings::shrink_control,
) -> c_ulong {
    // SAFETY: The memory manager passes a valid request.
    let control = unsafe { &mut *control };
    let wanted = control.nr_to_scan as u64;
    let mut freed = 0;
    if let Some(mut holders) = HOLDERS.try_lock() {
        let Holders { all, next } = &mut *holders;
        let first = *next;
        // Those from the first on, then those before it: each is asked at most once.
        for range in [first..usize::MAX, 0..first] {
            *next = range.start;
            while freed < wanted {
                let cursor = all.as_ref().and_then(|all| all.cursor_lower_bound(next));
                let Some((key, holder)) = cursor.as_ref().map(|cursor| cursor.current()) else {
                    break;
                };
                if !range.contains(key) {
                    break;
                }
                freed += holder.reclaim(wanted - freed);
                *next = key + 1;
            }
        }
    }
    if freed == 0 {
        return bindings::SHRINK_STOP as c_ulong;
    }
    control.nr_scanned = freed as c_ulong;
    freed as c_ulong
}
