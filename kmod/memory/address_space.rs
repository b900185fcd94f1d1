// SPDX-License-Identifier: GPL-2.0

//! [`AddressSpace`]: hears from the memory manager when a process's memory changes or goes.
//!
//! A thin layer over `mmu_notifier` (`include/linux/mmu_notifier.h`): one for each address space,
//! whatever files and mappings its process has. What is watched is in an interval tree; a change of
//! anything in it is remembered in a log ([`Changes`]), and whoever uses a mapping reads the log on
//! from where it was ([`crate::memory::watch`]).
//!
//! The callbacks run while somebody waits for memory (reclaim, `munmap`) and must be short: they do
//! not sleep, and their time depends neither on how many mappings watch the same memory nor on how
//! many pieces those have: one look into the tree, one entry of the log. Whoever wants to hear of
//! it at once hears from a workqueue.
//!
//! Nobody waits for the end of a change here, and giving a registration back waits for nobody
//! (`mmu_notifier_put()`): what it has is freed when callbacks that have begun have returned. Only
//! unloading waits for them (`mmu_notifier_synchronize()`).

use crate::abstractions::shim;
use crate::base::workqueue;
use crate::memory::changes::Changes;
use core::ptr::NonNull;
use kernel::bindings;
use kernel::ffi::c_int;
use kernel::mm::MmWithUser;
use kernel::prelude::*;
use kernel::rbtree::{RBTree, RBTreeNode};
use kernel::sync::atomic::{Acquire, Atomic, Full, Release};
use kernel::sync::{new_mutex, new_spinlock, Arc, ArcBorrow, Mutex, SpinLock};
use kernel::types::Opaque;
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

/// Who hears of changes, from a workqueue. Must not wait for anybody.
pub(crate) trait Listener: Send + Sync {
    /// Some of the memory that is watched may have changed.
    fn changed(&self);

    /// The address space is going away.
    fn released(&self);
}

/// What is watched, and what has happened to it.
pub(crate) struct State {
    tree: bindings::rb_root_cached,
    pub(crate) changes: Changes,
}

// SAFETY: The nodes in the tree are only touched under the lock that protects this.
unsafe impl Send for State {}

/// An address space of which somebody wants to hear.
///
/// # Invariants
///
/// While it is registered, the registration owns a reference.
#[pin_data]
pub(crate) struct AddressSpace {
    /// Number of the last change, to be read without the lock.
    count: Atomic<u64>,
    released: Atomic<bool>,
    /// Whether the listeners will be told anyway.
    called: Atomic<bool>,
    /// Held in callbacks: nothing is locked or allocated under it.
    #[pin]
    state: SpinLock<State>,
    /// By address.
    #[pin]
    listeners: Mutex<RBTree<usize, Arc<dyn Listener>>>,
    #[pin]
    work: Work<AddressSpace>,
    #[pin]
    notifier: Opaque<bindings::mmu_notifier>,
}

// SAFETY: The notifier is only touched by the memory manager, which has its own locks; the rest is
// Send.
unsafe impl Send for AddressSpace {}
// SAFETY: As above; the rest is Sync.
unsafe impl Sync for AddressSpace {}

impl_has_work! {
    impl HasWork<Self> for AddressSpace { self.work }
}

impl WorkItem for AddressSpace {
    type Pointer = Arc<AddressSpace>;

    fn run(this: Arc<AddressSpace>) {
        // Before anything is looked at: what comes later calls again.
        this.called.xchg(false, Full);
        let mut from = 0;
        // Bounded by the listeners, each of which is told once; none is locked in while it is.
        loop {
            let next = {
                let listeners = this.listeners.lock();
                let cursor = listeners.cursor_lower_bound(&from);
                cursor.map(|cursor| {
                    let (key, listener) = cursor.current();
                    (*key, listener.clone())
                })
            };
            let Some((key, listener)) = next else {
                return;
            };
            if this.is_released() {
                listener.released();
            } else {
                listener.changed();
            }
            from = key + 1;
            shim::cond_resched_interrupted();
        }
    }
}

const OPS: bindings::mmu_notifier_ops = bindings::mmu_notifier_ops {
    release: Some(AddressSpace::release),
    invalidate_range_start: Some(AddressSpace::change_begins),
    invalidate_range_end: Some(AddressSpace::change_ends),
    alloc_notifier: Some(AddressSpace::allocate),
    free_notifier: Some(AddressSpace::free),
    ..pin_init::zeroed()
};

/// By its address an address space is found again.
struct Ops(bindings::mmu_notifier_ops);

// SAFETY: Pointers to functions, which nobody changes.
unsafe impl Sync for Ops {}

static REGISTERED: Ops = Ops(OPS);

impl AddressSpace {
    fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                count: Atomic::new(Changes::new().count()),
                released: Atomic::new(false),
                called: Atomic::new(false),
                state <- new_spinlock!(State {
                    tree: pin_init::zeroed(),
                    changes: Changes::new(),
                }),
                listeners <- new_mutex!(RBTree::new()),
                work <- new_work!("libcopy::AddressSpace::work"),
                notifier: Opaque::zeroed(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Number of the last change of anything that is watched.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Acquire)
    }

    /// Whether it is going away or gone.
    pub(crate) fn is_released(&self) -> bool {
        self.released.load(Acquire)
    }

    /// The lock that callbacks take: held for a few steps only.
    pub(crate) fn state(&self) -> &SpinLock<State> {
        &self.state
    }

    /// Has a listener told from now on; no address stands for two of them.
    pub(crate) fn listen(&self, listener: Arc<dyn Listener>) -> Result {
        let key = Arc::as_ptr(&listener).addr();
        // Allocated before the lock is taken.
        let node = RBTreeNode::new(key, listener, GFP_KERNEL_ACCOUNT)?;
        let before = self.listeners.lock().insert(node);
        drop(before);
        Ok(())
    }

    /// Has a listener told no more, but by a call that has begun.
    pub(crate) fn ignore<T: Listener>(&self, listener: &T) {
        let key = core::ptr::from_ref(listener).addr();
        let gone = self.listeners.lock().remove_node(&key);
        // Not under the lock: it may be the last reference.
        drop(gone);
    }

    /// Has the listeners told, by a workqueue. Does not sleep.
    fn call(this: ArcBorrow<'_, Self>) {
        if !this.called.xchg(true, Full) {
            let _ = workqueue::enqueue(Arc::from(this));
        }
    }

    /// # Safety
    ///
    /// `notifier` is the field of an address space that is registered for as long as the result is
    /// used.
    unsafe fn of<'a>(notifier: *mut bindings::mmu_notifier) -> ArcBorrow<'a, Self> {
        let field = notifier.cast::<Opaque<bindings::mmu_notifier>>();
        // SAFETY: The pointer is to the field, by this function's clause; the registration has a
        // reference to what it is in, see `allocate`.
        unsafe { ArcBorrow::from_raw(kernel::container_of!(field, Self, notifier)) }
    }

    /// # Safety
    ///
    /// Called by the memory manager for an address space that has no notifier of ours.
    unsafe extern "C" fn allocate(_: *mut bindings::mm_struct) -> *mut bindings::mmu_notifier {
        match Self::new() {
            Ok(new) => {
                let raw = Arc::into_raw(new);
                // INVARIANT: The reference is the registration's; `free` takes it back.
                // SAFETY: The pointer is valid: it has just been made of a reference.
                unsafe { (*raw).notifier.get() }
            }
            Err(error) => error.to_ptr(),
        }
    }

    /// # Safety
    ///
    /// Called by the memory manager, once, when no callback uses the notifier any more. Must not
    /// sleep.
    unsafe extern "C" fn free(notifier: *mut bindings::mmu_notifier) {
        let field = notifier.cast::<Opaque<bindings::mmu_notifier>>();
        // SAFETY: The reference that `allocate` made is taken back here, once. What is dropped with
        // the last one has no listener any more, so that nothing sleeps.
        unsafe { drop(Arc::from_raw(kernel::container_of!(field, Self, notifier))) };
    }

    /// # Safety
    ///
    /// Called by the memory manager while the notifier is registered.
    unsafe extern "C" fn release(
        notifier: *mut bindings::mmu_notifier,
        _: *mut bindings::mm_struct,
    ) {
        // SAFETY: Registered for the duration of the call.
        let this = unsafe { Self::of(notifier) };
        this.released.store(true, Release);
        Self::call(this);
    }

    /// # Safety
    ///
    /// Called by the memory manager while the notifier is registered, with a valid range.
    unsafe extern "C" fn change_begins(
        notifier: *mut bindings::mmu_notifier,
        range: *const bindings::mmu_notifier_range,
    ) -> c_int {
        // SAFETY: Valid for the duration of the call.
        let Some(range) = matters(unsafe { &*range }) else {
            return 0;
        };
        // SAFETY: Registered for the duration of the call.
        let this = unsafe { Self::of(notifier) };
        let is_watched = {
            let mut state = this.state.lock();
            state.changes.begin(range);
            let is_watched = state.is_watched(range);
            if is_watched {
                state.changes.note(range);
                this.count.store(state.changes.count(), Release);
            }
            is_watched
        };
        if is_watched {
            Self::call(this);
        }
        0
    }

    /// # Safety
    ///
    /// As for [`Self::change_begins`], which was called for the same range.
    unsafe extern "C" fn change_ends(
        notifier: *mut bindings::mmu_notifier,
        range: *const bindings::mmu_notifier_range,
    ) {
        // SAFETY: Valid for the duration of the call.
        if let Some(range) = matters(unsafe { &*range }) {
            // SAFETY: Registered for the duration of the call.
            let this = unsafe { Self::of(notifier) };
            this.state.lock().changes.end(range);
        }
    }
}

/// The range of a change that may put other pages behind addresses. Changes of protection
/// (mprotect, fork) leave the page where it is.
fn matters(range: &bindings::mmu_notifier_range) -> Option<(u64, u64)> {
    match range.event {
        bindings::mmu_notifier_event_MMU_NOTIFY_UNMAP
        | bindings::mmu_notifier_event_MMU_NOTIFY_CLEAR => {
            Some((range.start as u64, range.end as u64))
        }
        _ => None,
    }
}

impl State {
    /// Whether anything in a range is watched. The logarithm of the number of nodes in steps.
    fn is_watched(&mut self, (start, end): (u64, u64)) -> bool {
        let last = (end as usize).saturating_sub(1);
        // SAFETY: The tree and its nodes are only touched under the lock that protects them.
        let first =
            unsafe { bindings::interval_tree_iter_first(&mut self.tree, start as usize, last) };
        !first.is_null()
    }

    /// Watches a range, `last` being the last byte in it.
    ///
    /// # Safety
    ///
    /// `node` is in no tree, and stays where it is until [`Self::forget`].
    pub(crate) unsafe fn watch(
        &mut self,
        node: *mut bindings::interval_tree_node,
        start: usize,
        last: usize,
    ) {
        // SAFETY: The node is ours until it is in the tree; the tree is only touched under the
        // lock.
        unsafe {
            (*node).start = start;
            (*node).last = last;
            bindings::interval_tree_insert(node, &mut self.tree);
        }
    }

    /// Watches it no more.
    ///
    /// # Safety
    ///
    /// `node` is in the tree.
    pub(crate) unsafe fn forget(&mut self, node: *mut bindings::interval_tree_node) {
        // SAFETY: The node is in the tree, which is only touched under the lock.
        unsafe { bindings::interval_tree_remove(node, &mut self.tree) };
    }
}

/// Has an address space heard of; dropping it waits for nobody.
///
/// # Invariants
///
/// The notifier counts one user for this.
pub(crate) struct Registration(Arc<AddressSpace>);

impl Registration {
    /// That of the calling process's address space.
    pub(crate) fn new(mm: &MmWithUser) -> Result<Self> {
        // SAFETY: The operations are static, and the caller's own address space is alive and not
        // locked by it.
        let notifier: NonNull<_> = unsafe { shim::notifier_get(&REGISTERED.0, mm) }?;
        // INVARIANT: The call has counted a user for us.
        // SAFETY: Only `allocate` makes notifiers with these operations, and a user is counted.
        Ok(Self(unsafe { AddressSpace::of(notifier.as_ptr()) }.into()))
    }
}

impl core::ops::Deref for Registration {
    type Target = AddressSpace;

    fn deref(&self) -> &AddressSpace {
        &self.0
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: One user is counted for this, by the type invariant; it is given back once.
        unsafe { bindings::mmu_notifier_put(self.0.notifier.get()) };
    }
}
