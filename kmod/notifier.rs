// SPDX-License-Identifier: GPL-2.0

//! [`Notifier`]: hears from the memory manager when a process's memory changes or goes.
//!
//! A thin layer over `mmu_interval_notifier` (`include/linux/mmu_notifier.h`). Pinning keeps a page
//! from being freed, but not from being replaced behind its address; a copy by address
//! later must know.
//!
//! `invalidate` runs while somebody waits for memory (reclaim, `munmap`) and must be short: it does not
//! sleep, and its time does not depend on how many pieces the user named, see [`Spans`].

use crate::changed::Changed;
use crate::errno;
use crate::few::Few;
use crate::shim;
use crate::spans::Spans;
use crate::stats::{Counter, TOTAL};
use crate::uapi::Piece;
use core::mem::MaybeUninit;
use kernel::bindings;
use kernel::mm::MmWithUser;
use kernel::page::PAGE_SHIFT;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Release};
use kernel::sync::{new_spinlock, Arc, SpinLock};
use kernel::types::Opaque;

/// A look at the page tables that has begun.
pub(crate) struct Look {
    token: u64,
    /// Of the notifier.
    sequence: usize,
    /// Where to look.
    pub(crate) changed: Changed,
}

/// Who hears what a notifier hears. Called by the memory manager: does not sleep.
pub(crate) trait Listener: Send + Sync {
    /// Some of the memory may have changed, for the first time since it was found to be the same.
    fn changed(self: Arc<Self>);

    /// The address space is going away.
    fn released(self: Arc<Self>);
}

/// A registered notifier over the memory that some pieces span.
///
/// # Invariants
///
/// `notifier` is registered from construction to drop.
#[pin_data(PinnedDrop)]
pub(crate) struct Notifier {
    /// What is watched; empty: only the end of the address space matters.
    pieces: Few<Piece>,
    /// The pages that the pieces touch.
    spans: Spans,
    /// Changes announced so far.
    changes: Atomic<u64>,
    /// Value of `changes` for which the memory was found to be the same as before.
    verified: Atomic<u64>,
    /// What was announced since the last verification. Held while `changes` grows and while a
    /// verification is confirmed, so that neither misses the other.
    #[pin]
    changed: SpinLock<Changed>,
    /// Whether the memory was found to be different.
    gone: Atomic<bool>,
    listener: Arc<dyn Listener>,
    #[pin]
    notifier: Opaque<bindings::mmu_interval_notifier>,
}

// SAFETY: The notifier may be removed from any thread; the rest is Send.
unsafe impl Send for Notifier {}
// SAFETY: The notifier is only touched by the memory manager, which has its own locks.
unsafe impl Sync for Notifier {}

const OPS: bindings::mmu_interval_notifier_ops = bindings::mmu_interval_notifier_ops {
    invalidate: Some(Notifier::invalidate),
    ..pin_init::zeroed()
};

impl Notifier {
    /// Starts to watch the caller's memory on behalf of `listener`.
    pub(crate) fn new(
        mm: &MmWithUser,
        listener: &Arc<dyn Listener>,
        pieces: Few<Piece>,
    ) -> Result<Pin<KBox<Self>>> {
        let spans = Spans::new(&pieces)?;
        let (low, high) = match spans.as_slice() {
            [first, .., last] => (first.start, last.end),
            [only] => (only.start, only.end),
            // Nothing but the end of the address space is of interest.
            [] => (0, 1),
        };
        let mm = mm.as_raw();
        let this: Pin<KBox<Self>> = KBox::try_pin_init(
            try_pin_init!(Self {
                pieces,
                spans,
                changes: Atomic::new(0),
                verified: Atomic::new(0),
                changed <- new_spinlock!(Changed::default()),
                gone: Atomic::new(false),
                listener: listener.clone(),
                // INVARIANT: Registered if construction succeeds.
                notifier <- Opaque::try_ffi_init(move |slot| {
                    // SAFETY: The slot is ours and stays where it is; the mm is the caller's own
                    // and alive, its lock is not held.
                    kernel::error::to_result(unsafe {
                        bindings::mmu_interval_notifier_insert(
                            slot,
                            mm,
                            low << PAGE_SHIFT,
                            (high - low) << PAGE_SHIFT,
                            &OPS,
                        )
                    })
                }),
            }? Error),
            GFP_KERNEL_ACCOUNT,
        )?;
        // While somebody else changes this address space, the notifier is not yet, or not fully, in
        // effect; a change under way is not announced to it.
        // SAFETY: Registered just now; no lock that an invalidation could wait for is held.
        unsafe { bindings::mmu_interval_read_begin(this.notifier.get()) };
        Ok(this)
    }

    /// The pieces under watch.
    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The pages under watch.
    pub(crate) fn spans(&self) -> &Spans {
        &self.spans
    }

    /// Whether the memory may have changed.
    pub(crate) fn is_stale(&self) -> bool {
        self.gone.load(Acquire) || self.changes.load(Acquire) != self.verified.load(Acquire)
    }

    /// Declares the memory changed for good.
    pub(crate) fn give_up(&self) {
        self.gone.store(true, Release);
    }

    /// Starts a look at the page tables; its result counts if [`confirm`](Self::confirm) accepts it.
    ///
    /// Waits until no change is under way: a change announced before is over when this returns, a
    /// later one is announced before it touches a page table. Until somebody confirms, the memory
    /// stays stale for everybody, so that no third party trusts it meanwhile.
    ///
    /// - `ESTALE`: the memory is known to be different.
    pub(crate) fn begin(&self) -> Result<Look> {
        if self.gone.load(Acquire) {
            return Err(errno::estale());
        }
        let (token, changed) = {
            let changed = self.changed.lock();
            (self.changes.load(Acquire), *changed)
        };
        // SAFETY: The notifier is registered by the type invariant; no lock that an invalidation
        // could wait for is held.
        let sequence = unsafe { bindings::mmu_interval_read_begin(self.notifier.get()) };
        Ok(Look {
            token,
            sequence,
            changed,
        })
    }

    /// How many of the expected pages the page tables show from `address` on; the next one may be
    /// there, too, but not plainly. `mm` is the address space under watch.
    pub(crate) fn same(
        &self,
        look: &Look,
        mm: &MmWithUser,
        address: usize,
        expected: &[*mut bindings::page],
        room: &mut [MaybeUninit<usize>],
    ) -> usize {
        // SAFETY: Set at registration and never changed.
        if mm.as_raw() != unsafe { (*self.notifier.get()).mm } {
            return 0;
        }
        // SAFETY: The notifier is registered by the type invariant, the sequence is from `begin`, and
        // `mm`, which is alive, was just compared with the notifier's address space.
        unsafe { shim::same_pages(self.notifier.get(), look.sequence, address, expected, room) }
    }

    /// Declares that the memory was unchanged, unless a change was announced since `begin`.
    pub(crate) fn confirm(&self, look: &Look) -> bool {
        let mut changed = self.changed.lock();
        if self.changes.load(Acquire) != look.token {
            return false;
        }
        *changed = Changed::default();
        self.verified.store(look.token, Release);
        true
    }

    fn touches(&self, range: &bindings::mmu_notifier_range) -> bool {
        let end = range.end.saturating_sub(1) >> PAGE_SHIFT;
        let (found, looks) = self.spans.touches(range.start >> PAGE_SHIFT, end + 1);
        TOTAL.note(Counter::LongestInvalidation, looks);
        found
    }

    /// Called by the memory manager before it changes page tables.
    ///
    /// # Safety
    ///
    /// `notifier` is the field of a live `Notifier`, `range` is valid.
    unsafe extern "C" fn invalidate(
        notifier: *mut bindings::mmu_interval_notifier,
        range: *const bindings::mmu_notifier_range,
        sequence: usize,
    ) -> bool {
        let field = notifier.cast::<Opaque<bindings::mmu_interval_notifier>>();
        // SAFETY: The pointer is to the `notifier` field of a `Notifier`, which cannot be dropped
        // while this runs, because drop waits for us.
        let this = unsafe { &*kernel::container_of!(field, Self, notifier) };
        // SAFETY: Valid for the duration of the call.
        let range = unsafe { &*range };
        // SAFETY: The memory manager serialises writers of this field; this is what
        // `mmu_interval_set_seq()` does.
        unsafe {
            core::ptr::addr_of_mut!((*notifier).invalidate_seq).write_volatile(sequence);
        }
        match range.event {
            bindings::mmu_notifier_event_MMU_NOTIFY_RELEASE => {
                this.listener.clone().released();
                this.give_up();
            }
            bindings::mmu_notifier_event_MMU_NOTIFY_UNMAP
            | bindings::mmu_notifier_event_MMU_NOTIFY_CLEAR => {
                // Changes of protection (mprotect, fork) leave the page where it is.
                if this.touches(range) {
                    let mut changed = this.changed.lock();
                    let first = !this.is_stale();
                    changed.add(range.start as u64, range.end as u64);
                    this.changes.fetch_add(1, Full);
                    drop(changed);
                    if first {
                        this.listener.clone().changed();
                    }
                }
            }
            _ => {}
        }
        true
    }
}

#[pinned_drop]
impl PinnedDrop for Notifier {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered by the type invariant; watches are dropped where sleeping is allowed
        // and never from within `invalidate`.
        unsafe { bindings::mmu_interval_notifier_remove(self.notifier.get()) };
    }
}
