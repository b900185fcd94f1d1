// SPDX-License-Identifier: GPL-2.0

//! [`Mapping`]: pinned pages that know whether they are still what the owner's addresses show.
//!
//! Unpinning a page that was written to waits for the page's lock, which its file system may hold.
//! Only processes wait for that: the threads that serve everybody (engines, their supervisor,
//! workqueues) and interrupts leave it to a queue of its own, see [`MappingRef`].

use crate::abstractions::errno;
use crate::abstractions::shim;
use crate::base::few::Few;
use crate::base::stats::Stats;
use crate::base::workqueue;
use crate::memory::account::Account;
use crate::memory::address_space::Registration;
use crate::memory::pin::PinnedPages;
use crate::memory::spans::page_range;
use crate::memory::user::User;
use crate::memory::watch::Watch;
use crate::uapi::Piece;
use core::mem::ManuallyDrop;
use kernel::mm::MmWithUser;
use kernel::page::PAGE_SHIFT;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{new_mutex, Arc, Mutex};
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

/// On whose behalf memory is pinned.
pub(crate) struct Owner<'a> {
    /// Of the address space.
    pub(crate) space: &'a Arc<Registration>,
    /// Of the domain.
    pub(crate) stats: &'a Arc<Stats>,
    pub(crate) user: &'a User,
}

/// Who is to hear that pages are about to be unpinned: a device that they are mapped for.
pub(crate) trait UnpinObserver: Send + Sync {
    /// Forgets the mapping with this id. May sleep.
    fn unpinning(&self, id: u64);
}

/// Ids given out.
static IDS: Atomic<u64> = Atomic::new(0);

/// Pinned memory of one process, shared by its regions, the reuse cache and attachments.
#[pin_data(PinnedDrop)]
pub(crate) struct Mapping {
    /// Unlike that of any other mapping, ever.
    id: u64,
    #[pin]
    observers: Mutex<KVec<Arc<dyn UnpinObserver>>>,
    pages: PinnedPages,
    watch: Pin<KBox<Watch>>,
    reusable: bool,
    // Paid for until the pages are gone. Only the list of users is locked under it.
    #[pin]
    account: Mutex<Account>,
    #[pin]
    work: Work<Mapping>,
}

impl_has_work! {
    impl HasWork<Self> for Mapping { self.work }
}

impl WorkItem for Mapping {
    type Pointer = Arc<Mapping>;

    fn run(this: Arc<Mapping>) {
        this.let_go();
        drop(this);
    }
}

/// A reference to a mapping, which may be dropped anywhere.
pub(crate) struct MappingRef(ManuallyDrop<Arc<Mapping>>);

impl Clone for MappingRef {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl core::ops::Deref for MappingRef {
    type Target = Mapping;

    fn deref(&self) -> &Mapping {
        &self.0
    }
}

impl Drop for MappingRef {
    fn drop(&mut self) {
        // SAFETY: Taken once, here.
        let this = unsafe { ManuallyDrop::take(&mut self.0) };
        if shim::may_wait() {
            return;
        }
        if let Some(last) = Arc::into_unique_or_drop(this) {
            // Nobody else can have queued it.
            let _ = workqueue::enqueue_unpinning(Arc::from(last));
        }
    }
}

impl MappingRef {
    /// The owner keeps the pages no more, and the reference is dropped, both by a workqueue.
    /// Neither waits nor allocates.
    pub(crate) fn let_go_later(self) {
        // What is about to go must not count against the next region, unless that would mean
        // waiting.
        if let Some(mut account) = self.account.try_lock() {
            account.let_go();
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: Taken once, here, since `this` is not dropped.
        let mapping = unsafe { ManuallyDrop::take(&mut this.0) };
        // One that is queued already has a reference, so that this is not the last one.
        let _ = workqueue::enqueue_unpinning(mapping);
    }
}

impl Mapping {
    /// Pins the pieces and watches them from before the first page is pinned.
    pub(crate) fn create(
        mm: &MmWithUser,
        owner: &Owner<'_>,
        pieces: Few<Piece>,
        write: bool,
        reusable: bool,
    ) -> Result<MappingRef> {
        let watch = Watch::new(owner.space, pieces)?;
        let touched = watch.pieces().iter().map(|piece| page_range(piece).len());
        // What has no bytes costs the kernel something, too.
        let charged = usize::max(touched.sum(), 1);
        let account = Account::new(mm, owner.user, charged, watch.spans().pages())?;
        let pages = PinnedPages::pin(mm, owner.stats, &watch, write)?;
        let this = Arc::pin_init(
            pin_init!(Self {
                id: IDS.fetch_add(1, Relaxed),
                observers <- new_mutex!(KVec::new()),
                pages,
                watch,
                reusable,
                account <- new_mutex!(account),
                work <- new_work!("libcopy::Mapping::work"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let this = MappingRef(ManuallyDrop::new(this));
        // Pinning itself breaks copy-on-write, which looks like a change: compare instead of
        // giving up.
        this.check()?;
        Ok(this)
    }

    /// Makes sure that the pages are still behind the owner's addresses.
    ///
    /// The memory manager also announces changes that end where they began (a huge page is split,
    /// a collapse is tried and given up), so a stale mark leads to a comparison.
    ///
    /// - `ESTALE`: they are not, and never will be again.
    /// - `EINTR`: a signal arrived while they were changing.
    pub(crate) fn check(&self) -> Result {
        if !self.watch.is_stale() {
            return Ok(());
        }
        loop {
            let look = self.watch.begin()?;
            if !self.pages.still_there(&self.watch, &look)? {
                self.watch.give_up();
                return Err(errno::estale());
            }
            if self.watch.confirm(&look) {
                return Ok(());
            }
            // Something was announced meanwhile, perhaps about another part of the memory.
            if shim::cond_resched_interrupted() {
                return Err(EINTR);
            }
        }
    }

    /// Whether the owner's memory may have changed.
    pub(crate) fn is_stale(&self) -> bool {
        self.watch.is_stale()
    }

    /// The pinned pages.
    pub(crate) fn pages(&self) -> &PinnedPages {
        &self.pages
    }

    /// Whether the mapping may wait in the reuse cache.
    pub(crate) fn reusable(&self) -> bool {
        self.reusable
    }

    /// Whether a region over `pieces` can be made from this mapping.
    pub(crate) fn serves(&self, pieces: &[Piece], write: bool) -> bool {
        // Pages pinned for writing would serve readers, too, but the rights of a region decide what
        // peers may do, not the pin; so a writable mapping serves both.
        (self.pages.writable() || !write) && self.watch.pieces() == pieces
    }

    /// Bytes of whole pages that the mapping takes up.
    pub(crate) fn page_bytes(&self) -> u64 {
        (self.pages.pages().len() as u64) << PAGE_SHIFT
    }

    /// The owner keeps the pages no more; each process that still does pays for them from now on.
    pub(crate) fn let_go(&self) {
        self.account.lock().let_go();
    }

    /// Charges the calling process's user for a view of the pages.
    ///
    /// - `ENOMEM`: the caller's `RLIMIT_MEMLOCK` would be exceeded.
    pub(crate) fn attach(&self, user: &User) -> Result {
        self.account.lock().attach(user)
    }

    /// Such a view is gone.
    pub(crate) fn detach(&self, user: &User) {
        let gone = self.account.lock().detach(user);
        drop(gone);
    }

    /// Tells this mapping from every other.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Remembers whom to tell when the pages go.
    pub(crate) fn observe(&self, observer: Arc<dyn UnpinObserver>) -> Result {
        let mut observers = self.observers.lock();
        let same = |known: &Arc<dyn UnpinObserver>| {
            core::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(&observer))
        };
        if !observers.iter().any(same) {
            observers.push(observer, GFP_KERNEL_ACCOUNT)?;
        }
        Ok(())
    }
}

#[pinned_drop]
impl PinnedDrop for Mapping {
    fn drop(self: Pin<&mut Self>) {
        let observers = core::mem::take(&mut *self.observers.lock());
        for observer in &observers {
            observer.unpinning(self.id);
        }
    }
}
