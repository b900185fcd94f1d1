// SPDX-License-Identifier: GPL-2.0

//! [`Attachment`]: a region's pages in a peer's address space, for load and store.

use crate::errno;
use crate::mapping::Mapping;
use crate::queue;
use crate::region::Region;
use crate::shim;
use crate::stats::Counter;
use crate::uapi::{RegionAttach, ATTACH_SHIFT, RIGHT_READ, RIGHT_WRITE};
use core::mem::ManuallyDrop;
use kernel::bindings;
use kernel::mm::virt::VmaNew;
use kernel::page::{PAGE_SHIFT, PAGE_SIZE};
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::workqueue::{impl_has_work, new_work, Work, WorkItem};

/// Pages entered into the page table per fault: one page-table page's worth.
const AROUND: usize = 512;

/// What a VMA of ours holds on to. The file keeps the module, this keeps the pages.
#[pin_data(PinnedDrop)]
struct Attachment {
    mapping: Arc<Mapping>,
    region: Arc<Region>,
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
        self.region.owner.domain.stats.add(Counter::Detaches, 1);
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

/// Maps a region into the caller's new VMA.
pub(crate) fn map(region: Arc<Region>, first: usize, vma: &VmaNew) -> Result {
    let flags = vma.flags();
    if flags & bindings::VM_SHARED as usize == 0 {
        return Err(EINVAL);
    }
    if vma.executable() {
        return Err(EACCES);
    }
    let mut right = RIGHT_READ;
    if vma.writable() {
        right |= RIGHT_WRITE;
    }
    // Write-only regions can be attached for writing; hardware that maps for writing only does not
    // exist, so reading follows from it only if the rights say so.
    if !vma.readable() {
        right &= !RIGHT_READ;
    }
    region.permit(right)?;
    let pages = region.mapping.pages();
    pages.linear_offset().ok_or(errno::eopnotsupp())?;
    let count = (vma.end() - vma.start()) >> PAGE_SHIFT;
    match first.checked_add(count) {
        Some(end) if end <= pages.pages().len() => {}
        _ => return Err(EINVAL),
    }
    let mut forbidden = bindings::VM_MAYEXEC as usize;
    if region.rights & RIGHT_WRITE == 0 {
        forbidden |= bindings::VM_MAYWRITE as usize;
    }
    if region.rights & RIGHT_READ == 0 {
        forbidden |= bindings::VM_MAYREAD as usize;
    }
    // Stores through an attachment leave no trace that the kernel would connect to the page.
    if region.rights & RIGHT_WRITE != 0 {
        pages.mark_written();
    }
    let stats_region = region.clone();
    let attachment = Arc::pin_init(
        pin_init!(Attachment {
            mapping: region.mapping.clone(),
            region,
            work <- new_work!("libcopy::Attachment::work"),
        }),
        GFP_KERNEL,
    )?;
    stats_region.owner.domain.stats.add(Counter::Attaches, 1);
    let raw = vma.as_ptr();
    // SAFETY: The VMA is under construction, so its flags, operations and private data are ours to
    // set; from here on `close` owns the reference in `vm_private_data`.
    unsafe {
        shim::vm_flags_mod(
            raw,
            (bindings::VM_PFNMAP
                | bindings::VM_DONTEXPAND
                | bindings::VM_DONTDUMP
                | bindings::VM_IO) as usize,
            forbidden,
        );
        (*raw).vm_private_data = Arc::into_raw(attachment).cast_mut().cast();
        (*raw).vm_ops = &VM_OPS.0;
    }
    Ok(())
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
    let pages = attachment.mapping.pages().pages();
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
