// SPDX-License-Identifier: GPL-2.0

//! [`Attachment`]: a region's pages in a peer's address space, for load and store.
//!
//! The pages stay for as long as they are attached, whatever becomes of their owner. So who
//! attaches them pays for them, see [`crate::memory::account`]. The VMAs are in vma.rs, their
//! faults in fault.rs.

use crate::abstractions::errno;
use crate::abstractions::shim;
use crate::base::stats::Counter;
use crate::base::workqueue;
use crate::domain::region::Region;
use crate::memory::pin::PinnedPages;
use crate::memory::user::User;
use crate::uapi::{RegionAttach, ATTACH_SHIFT, RIGHT_READ, RIGHT_WRITE};
use core::mem::MaybeUninit;
use kernel::mm::virt::VmaNew;
use kernel::page::PAGE_SHIFT;
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::{Arc, UniqueArc};
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

/// What a VMA of ours holds on to. The file keeps the module, this keeps the pages.
#[pin_data(PinnedDrop)]
pub(crate) struct Attachment {
    region: Arc<Region>,
    /// Who pays.
    user: User,
    /// Page of the offsets where the region's first page is.
    phase: usize,
    /// VMAs that show it; they own one reference together.
    vmas: Atomic<u32>,
    /// Whether it was ever part of an address space.
    attached: Atomic<bool>,
    #[pin]
    work: Work<Attachment>,
}

impl_has_work! {
    impl HasWork<Self> for Attachment { self.work }
}

impl WorkItem for Attachment {
    type Pointer = Arc<Attachment>;

    // Unpinning waits for the owner's invalidations, which is not possible under the lock that a
    // VMA is closed under; so the last reference is dropped here.
    fn run(this: Arc<Attachment>) {
        drop(this);
    }
}

#[pinned_drop]
impl PinnedDrop for Attachment {
    fn drop(self: Pin<&mut Self>) {
        if self.attached.load(Relaxed) {
            self.region.mapping.detach(&self.user);
            self.count(Counter::Detaches);
        }
    }
}

/// Performs [`crate::uapi::REGION_ATTACH`].
pub(crate) fn prepare(region: &Region, args: &mut RegionAttach) -> Result {
    if args.access == 0 {
        return Err(EINVAL);
    }
    region.permit(args.access | RIGHT_READ)?;
    let offset = region
        .mapping
        .pages()
        .linear_offset()
        .ok_or(errno::eopnotsupp())?;
    // The offset's low bits steer the address that `mmap` chooses, see abstractions/miscdevice.rs.
    let phase = region.mapping.pages().huge_phase() << PAGE_SHIFT;
    args.map_offset = u64::from(region.id) << ATTACH_SHIFT | phase as u64;
    args.map_length = region.mapping.page_bytes();
    args.data_offset = offset as u64;
    Ok(())
}

/// Region that an `mmap` offset names, and the page within its share of the offsets; the region's
/// first page is at its `huge_phase`.
pub(crate) fn decode(page_offset: usize) -> (u32, usize) {
    let per_region = ATTACH_SHIFT as usize - PAGE_SHIFT;
    (
        (page_offset >> per_region) as u32,
        page_offset & ((1 << per_region) - 1),
    )
}

/// Room for an attachment, allocated before the region is looked up: once a region is held, it must
/// not be dropped under the lock that `mmap` is called under, see `WorkItem::run`.
pub(crate) struct Room(UniqueArc<MaybeUninit<Attachment>>, User);

impl Room {
    /// Allocates, for the calling process's user.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(
            UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?,
            User::current()?,
        ))
    }

    /// What is to be shown in the caller's new VMA of a region, from page `first` on: allowed, and
    /// paid for. One VMA is counted.
    pub(crate) fn fill(
        self,
        region: Arc<Region>,
        first: usize,
        vma: &VmaNew,
    ) -> Result<Arc<Attachment>> {
        let attachment: Arc<Attachment> = self
            .0
            .pin_init_with(pin_init!(Attachment {
                phase: region.mapping.pages().huge_phase(),
                region,
                user: self.1,
                vmas: Atomic::new(1),
                attached: Atomic::new(false),
                work <- new_work!("libcopy::Attachment::work"),
            }))?
            .into();
        let allowed = attachment
            .check(first, vma)
            .and_then(|()| attachment.region.mapping.attach(&attachment.user));
        if let Err(error) = allowed {
            let _ = workqueue::enqueue(attachment);
            return Err(error);
        }
        attachment.attached.store(true, Relaxed);
        attachment.count(Counter::Attaches);
        // Stores through an attachment leave no trace that the kernel would connect to the page.
        if attachment.is_writable() {
            attachment.pages().mark_written();
        }
        Ok(attachment)
    }
}

impl Attachment {
    /// The pages of the region.
    pub(crate) fn pages(&self) -> &PinnedPages {
        self.region.mapping.pages()
    }

    fn count(&self, counter: Counter) {
        self.region.owner.domain.stats.add(counter, 1);
    }

    /// Page of the offsets where the region's first page is.
    pub(crate) fn phase(&self) -> usize {
        self.phase
    }

    /// Whether those who show it may write.
    pub(crate) fn is_writable(&self) -> bool {
        self.region.rights & RIGHT_WRITE != 0
    }

    /// One more VMA shows it.
    pub(crate) fn count_vma(&self) {
        self.vmas.fetch_add(1, Relaxed);
    }

    /// A VMA is gone; returns whether it was the last one.
    pub(crate) fn uncount_vma(&self) -> bool {
        self.vmas.fetch_sub(1, Full) == 1
    }

    /// Whether the VMA may show the region.
    fn check(&self, first: usize, vma: &VmaNew) -> Result {
        // A file opened for reading only has VM_SHARED taken from its shared mappings.
        if vma.flags() & shim::VM_MAYSHARE == 0 {
            return Err(EINVAL);
        }
        if vma.executable() {
            return Err(EACCES);
        }
        // Memory that can be written by stores can be read by loads.
        let mut right = RIGHT_READ;
        if vma.writable() {
            right |= RIGHT_WRITE;
        }
        self.region.permit_unless_stale(right)?;
        self.pages().linear_offset().ok_or(errno::eopnotsupp())?;
        let count = (vma.end() - vma.start()) >> PAGE_SHIFT;
        let first = first.checked_sub(self.phase).ok_or(EINVAL)?;
        match first.checked_add(count) {
            Some(end) if end <= self.pages().pages().len() => Ok(()),
            _ => Err(EINVAL),
        }
    }
}
