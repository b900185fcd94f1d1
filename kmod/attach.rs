// SPDX-License-Identifier: GPL-2.0

//! [`Attachment`]: a region's pages in a peer's address space, for load and store.

use crate::errno;
use crate::pin::PinnedPages;
use crate::queue;
use crate::region::Region;
use crate::shim;
use crate::stats::Counter;
use crate::uapi::{RegionAttach, ATTACH_SHIFT, RIGHT_READ, RIGHT_WRITE};
use core::mem::{ManuallyDrop, MaybeUninit};
use kernel::bindings;
use kernel::mm::virt::VmaNew;
use kernel::page::{PAGE_SHIFT, PAGE_SIZE};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::{Arc, UniqueArc};
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

/// Pages entered into the page table per fault: one page-table page's worth.
const AROUND: usize = 512;

/// What a VMA of ours holds on to. The file keeps the module, this keeps the pages.
#[pin_data(PinnedDrop)]
pub(crate) struct Attachment {
    region: Arc<Region>,
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

    // Unpinning takes the owner's mmap_lock and may wait for its notifiers, neither of which is
    // possible under the lock that a VMA is closed under; so the last reference is dropped here.
    fn run(this: Arc<Attachment>) {
        drop(this);
    }
}

#[pinned_drop]
impl PinnedDrop for Attachment {
    fn drop(self: Pin<&mut Self>) {
        if self.attached.load(Relaxed) {
            self.count(Counter::Detaches);
        }
    }
}

/// Performs [`crate::uapi::REGION_ATTACH`].
pub(crate) fn prepare(region: &Region, args: &mut RegionAttach) -> Result {
    if args.access == 0 {
        return Err(EINVAL);
    }
    region.permit(args.access)?;
    let offset = region
        .mapping
        .pages()
        .linear_offset()
        .ok_or(errno::eopnotsupp())?;
    args.map_offset = (region.id as u64) << ATTACH_SHIFT;
    args.map_length = region.mapping.page_bytes();
    args.data_offset = offset as u64;
    Ok(())
}

/// Region that an `mmap` offset names, and the first page within it.
pub(crate) fn decode(page_offset: usize) -> (u32, usize) {
    let per_region = ATTACH_SHIFT as usize - PAGE_SHIFT;
    (
        (page_offset >> per_region) as u32,
        page_offset & ((1 << per_region) - 1),
    )
}

/// Room for an attachment, allocated before the region is looked up: once a region is held, it must
/// not be dropped under the lock that `mmap` is called under, see `WorkItem::run`.
pub(crate) struct Room(UniqueArc<MaybeUninit<Attachment>>);

impl Room {
    /// Allocates.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?))
    }

    /// Maps a region into the caller's new VMA, from page `first` on.
    pub(crate) fn map(self, region: Arc<Region>, first: usize, vma: &VmaNew) -> Result {
        let attachment: Arc<Attachment> = self
            .0
            .pin_init_with(pin_init!(Attachment {
                region,
                attached: Atomic::new(false),
                work <- new_work!("libcopy::Attachment::work"),
            }))?
            .into();
        if let Err(error) = attachment.check(first, vma) {
            let _ = queue::get().enqueue(attachment);
            return Err(error);
        }
        attachment.attached.store(true, Relaxed);
        attachment.count(Counter::Attaches);
        let rights = attachment.region.rights;
        // Stores through an attachment leave no trace that the kernel would connect to the page.
        if rights & RIGHT_WRITE != 0 {
            attachment.pages().mark_written();
        }
        let mut forbidden = bindings::VM_MAYEXEC as usize;
        if rights & RIGHT_WRITE == 0 {
            forbidden |= bindings::VM_MAYWRITE as usize;
        }
        if rights & RIGHT_READ == 0 {
            forbidden |= bindings::VM_MAYREAD as usize;
        }
        let flags =
            bindings::VM_PFNMAP | bindings::VM_DONTEXPAND | bindings::VM_DONTDUMP | bindings::VM_IO;
        let raw = vma.as_ptr();
        // SAFETY: The VMA is under construction, so its flags, operations and private data are ours
        // to set; from here on `vma_close` owns the reference in `vm_private_data`.
        unsafe {
            shim::vm_flags_mod(raw, flags as usize, forbidden);
            (*raw).vm_private_data = Arc::into_raw(attachment).cast_mut().cast();
            (*raw).vm_ops = &VM_OPS.0;
        }
        Ok(())
    }
}

impl Attachment {
    fn pages(&self) -> &PinnedPages {
        self.region.mapping.pages()
    }

    fn count(&self, counter: Counter) {
        self.region.owner.domain.stats.add(counter, 1);
    }

    /// Whether the VMA may show the region.
    fn check(&self, first: usize, vma: &VmaNew) -> Result {
        if vma.flags() & bindings::VM_SHARED as usize == 0 {
            return Err(EINVAL);
        }
        if vma.executable() {
            return Err(EACCES);
        }
        let mut right = 0;
        if vma.readable() {
            right |= RIGHT_READ;
        }
        if vma.writable() {
            right |= RIGHT_WRITE;
        }
        self.region.permit_unless_stale(right)?;
        self.pages().linear_offset().ok_or(errno::eopnotsupp())?;
        let count = (vma.end() - vma.start()) >> PAGE_SHIFT;
        match first.checked_add(count) {
            Some(end) if end <= self.pages().pages().len() => Ok(()),
            _ => Err(EINVAL),
        }
    }
}

/// A table of operations; nobody writes to it.
struct VmOps(bindings::vm_operations_struct);

// SAFETY: The table is constant.
unsafe impl Sync for VmOps {}

static VM_OPS: VmOps = VmOps(bindings::vm_operations_struct {
    open: Some(vma_open),
    close: Some(vma_close),
    fault: Some(vma_fault),
    ..pin_init::zeroed()
});

/// # Safety
///
/// `vma` is one of ours and stays valid for `'a`.
unsafe fn attachment<'a>(vma: *mut bindings::vm_area_struct) -> &'a Attachment {
    // SAFETY: `map` stored the pointer, and the VMA's reference keeps it alive.
    unsafe { &*(*vma).vm_private_data.cast() }
}

/// The VMA was copied (fork, split).
unsafe extern "C" fn vma_open(vma: *mut bindings::vm_area_struct) {
    // SAFETY: The pointer came from `Arc::into_raw`, and the VMA that was copied still holds it.
    let held = unsafe { Arc::<Attachment>::from_raw((*vma).vm_private_data.cast()) };
    let held = ManuallyDrop::new(held);
    let _ = ManuallyDrop::new((*held).clone());
}

/// The VMA goes away.
unsafe extern "C" fn vma_close(vma: *mut bindings::vm_area_struct) {
    // SAFETY: This takes back the reference that `map` or `vma_open` gave to the VMA.
    let held = unsafe { Arc::<Attachment>::from_raw((*vma).vm_private_data.cast()) };
    // If the work is queued already, it holds a reference, so that ours is not the last one.
    let _ = queue::get().enqueue(held);
}

/// A page is touched for the first time.
unsafe extern "C" fn vma_fault(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
    // SAFETY: The memory manager passes a valid description of the fault.
    let (vma, pgoff, address) = unsafe {
        let fault = &(*vmf).__bindgen_anon_1;
        (fault.vma, fault.pgoff, fault.address)
    };
    // SAFETY: The VMA is ours, and locked for the duration of the fault.
    let (attachment, start, end, vma_pgoff) = unsafe {
        let (start, end) = {
            let range = &(*vma).__bindgen_anon_1.__bindgen_anon_1;
            (range.vm_start, range.vm_end)
        };
        (attachment(vma), start, end, (*vma).vm_pgoff)
    };
    let pages = attachment.pages().pages();
    let (_, wanted) = decode(pgoff);
    let (_, first) = decode(vma_pgoff);
    let Some(last) = pages.len().checked_sub(1) else {
        return bindings::vm_fault_reason_VM_FAULT_SIGBUS;
    };
    if wanted > last || wanted < first {
        return bindings::vm_fault_reason_VM_FAULT_SIGBUS;
    }
    let insert = |index: usize| {
        let at = start + ((index - first) << PAGE_SHIFT);
        // SAFETY: The page is pinned for as long as the attachment lives, which is longer than the
        // VMA; `at` is inside the VMA.
        unsafe { bindings::vmf_insert_pfn(vma, at, shim::page_to_pfn(pages[index])) }
    };
    let ret = insert(wanted);
    if ret != bindings::vm_fault_reason_VM_FAULT_NOPAGE {
        return ret;
    }
    // The rest of the page-table page comes along: what is touched once is mostly touched all over,
    // and a fault costs more than a few hundred entries.
    let page = address >> PAGE_SHIFT;
    let low = usize::max(page & !(AROUND - 1), start >> PAGE_SHIFT);
    let high = usize::min((page | (AROUND - 1)) + 1, end >> PAGE_SHIFT);
    let base = start >> PAGE_SHIFT;
    for neighbour in low..high {
        let index = first + (neighbour - base);
        if index == wanted || index > last {
            continue;
        }
        if insert(index) != bindings::vm_fault_reason_VM_FAULT_NOPAGE {
            break;
        }
    }
    ret
}

const _: () = assert!(PAGE_SIZE == 1 << PAGE_SHIFT);
