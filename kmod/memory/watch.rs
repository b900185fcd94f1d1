// SPDX-License-Identifier: GPL-2.0

//! [`Watch`]: whether the memory that some pieces span may have changed since it was last looked
//! at.
//!
//! Pinning keeps a page from being freed, but not from being replaced behind its address; a copy by
//! address later must know. A watch is told nothing: it reads the log of its address space
//! ([`crate::memory::address_space`]) when it is asked.

use crate::abstractions::errno;
use crate::abstractions::shim;
use crate::base::few::Few;
use crate::memory::address_space::Registration;
use crate::memory::changed::Changed;
use crate::memory::changes::NEVER;
use crate::memory::spans::Spans;
use crate::uapi::Piece;
use kernel::bindings;
use kernel::page::PAGE_SHIFT;
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Release};
use kernel::sync::Arc;
use kernel::types::Opaque;

/// Milliseconds between two looks for the end of a change under way: a page table is changed in
/// less.
const NAP: u32 = 1;

/// A look at the page tables that has begun.
pub(crate) struct Look {
    /// The last change before it.
    number: u64,
    /// Where to look.
    pub(crate) changed: Changed,
}

/// Memory that is watched.
///
/// # Invariants
///
/// If there are spans, `node` is in the tree of the address space from construction to drop.
#[pin_data(PinnedDrop)]
pub(crate) struct Watch {
    /// What is watched.
    pieces: Few<Piece>,
    /// The pages that the pieces touch.
    spans: Spans,
    space: Arc<Registration>,
    /// The changes up to this one are known not to matter. Written under the lock of the address
    /// space.
    verified: Atomic<u64>,
    /// Whether the memory was found to be different.
    gone: Atomic<bool>,
    #[pin]
    node: Opaque<bindings::interval_tree_node>,
}

// SAFETY: The node is only touched under the lock of the address space; the rest is Send.
unsafe impl Send for Watch {}
// SAFETY: As above; the rest is Sync.
unsafe impl Sync for Watch {}

impl Watch {
    /// Starts to watch memory of the address space. What changes at this moment is found later, by
    /// a look.
    pub(crate) fn new(space: &Arc<Registration>, pieces: Few<Piece>) -> Result<Pin<KBox<Self>>> {
        let spans = Spans::new(&pieces)?;
        let this = KBox::pin_init(
            pin_init!(Self {
                pieces,
                spans,
                space: space.clone(),
                verified: Atomic::new(NEVER),
                gone: Atomic::new(false),
                node: Opaque::zeroed(),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let mut state = this.space.state().lock();
        if let Some((start, last)) = this.bounds() {
            // SAFETY: The node is in no tree, and pinned; drop takes it out.
            unsafe { state.watch(this.node.get(), start, last) };
        }
        // A change under way is not in the log for us: it is doubtful whether what is pinned next
        // is from after it.
        if !state.changes.any_under_way(|range| this.touches(range)) {
            this.verified.store(state.changes.count(), Release);
        }
        drop(state);
        Ok(this)
    }

    /// The first and the last byte of the spans.
    fn bounds(&self) -> Option<(usize, usize)> {
        let spans = self.spans.as_slice();
        let (first, last) = (spans.first()?, spans.last()?);
        Some((first.start << PAGE_SHIFT, (last.end << PAGE_SHIFT) - 1))
    }

    fn touches(&self, (start, end): (u64, u64)) -> bool {
        let last = end.saturating_sub(1) as usize >> PAGE_SHIFT;
        self.spans.touches(start as usize >> PAGE_SHIFT, last + 1)
    }

    /// The pieces under watch.
    pub(crate) fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The pages under watch.
    pub(crate) fn spans(&self) -> &Spans {
        &self.spans
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Acquire) || self.space.is_released()
    }

    /// Whether the memory may have changed. Does not sleep.
    pub(crate) fn is_stale(&self) -> bool {
        if self.is_gone() {
            return true;
        }
        // Nearly always nothing has changed.
        self.space.count() != self.verified.load(Acquire) && !self.read_on()
    }

    /// Reads the log on; returns whether nothing in it matters.
    fn read_on(&self) -> bool {
        let state = self.space.state().lock();
        let changes = &state.changes;
        let matters = match changes.since(self.verified.load(Acquire)) {
            Some(mut missed) => missed.any(|range| self.touches(range)),
            None => true,
        };
        if !matters {
            self.verified.store(changes.count(), Release);
        }
        !matters
    }

    /// Declares the memory changed for good.
    pub(crate) fn give_up(&self) {
        self.gone.store(true, Release);
    }

    /// Starts a look at the page tables; its result counts if [`confirm`](Self::confirm) accepts
    /// it.
    ///
    /// No change is under way when this returns: one announced before is over, a later one is
    /// announced before it touches a page table. Until somebody confirms, the memory stays stale
    /// for everybody, so that no third party trusts it meanwhile.
    ///
    /// - `ESTALE`: the memory is known to be different.
    /// - `EINTR`: a signal arrived while a change was under way.
    pub(crate) fn begin(&self) -> Result<Look> {
        // One look per hold: napping lets go of the lock.
        loop {
            if self.is_gone() {
                return Err(errno::estale());
            }
            {
                let state = self.space.state().lock();
                let changes = &state.changes;
                if !changes.any_under_way(|range| self.touches(range)) {
                    let mut changed = Changed::default();
                    match changes.since(self.verified.load(Acquire)) {
                        Some(missed) => missed
                            .filter(|range| self.touches(*range))
                            .for_each(|(start, end)| changed.add(start, end)),
                        None => changed.add(0, u64::MAX),
                    }
                    return Ok(Look {
                        number: changes.count(),
                        changed,
                    });
                }
            }
            if shim::cond_resched_interrupted() {
                return Err(EINTR);
            }
            shim::nap(NAP);
        }
    }

    /// Declares that the memory was unchanged, unless a change was announced since `begin`.
    pub(crate) fn confirm(&self, look: &Look) -> bool {
        let state = self.space.state().lock();
        let changes = &state.changes;
        let unchanged = match changes.since(look.number) {
            Some(mut missed) => !missed.any(|range| self.touches(range)),
            None => false,
        };
        if unchanged {
            self.verified.store(changes.count(), Release);
        }
        unchanged
    }
}

#[pinned_drop]
impl PinnedDrop for Watch {
    fn drop(self: Pin<&mut Self>) {
        if self.bounds().is_some() {
            // SAFETY: In the tree by the type invariant.
            unsafe { self.space.state().lock().forget(self.node.get()) };
        }
    }
}
