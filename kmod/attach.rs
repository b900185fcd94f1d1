// SPDX-License-Identifier: GPL-2.0

//! [`Attachment`]: a region's pages in a peer's address space, for load and store.
//!
//! The pages stay for as long as they are attached, whatever becomes of their owner. So who attaches them
//! pays for them, see [`crate::account`].

use crate::errno;
use crate::pin::PinnedPages;
use crate::region::Region;
use crate::shim;
use crate::stats::Counter;
use crate::uapi::{RegionAttach, ATTACH_SHIFT, RIGHT_READ, RIGHT_WRITE};
use crate::user::User;
use crate::workqueue;
use core::mem::MaybeUninit;
use kernel::bindings;
use kernel::mm::virt::VmaNew;
use kernel::page::{PAGE_SHIFT, PAGE_SIZE};
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

    // Unpinning waits for the owner's invalidations, which is not possible under the lock that a VMA is
    // closed under; so the last reference is dropped here.
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
    // The offset's low bits steer the address that `mmap` chooses, see `get_unmapped_area`.
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

    /// Maps a region into the caller's new VMA, from page `first` on.
    pub(crate) fn map(self, region: Arc<Region>, first: usize, vma: &VmaNew) -> Result {
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
        let rights = attachment.region.rights;
        // Stores through an attachment leave no trace that the kernel would connect to the page.
        if rights & RIGHT_WRITE != 0 {
            attachment.pages().mark_written();
        }
        let mut forbidden = bindings::VM_MAYEXEC;
        if rights & RIGHT_WRITE == 0 {
            forbidden |= bindings::VM_MAYWRITE;
        }
        let flags =
            bindings::VM_PFNMAP | bindings::VM_DONTEXPAND | bindings::VM_DONTDUMP | bindings::VM_IO;
        let raw = vma.as_ptr();
        // SAFETY: The VMA is under construction, so its flags, operations and private data are ours
        // to set; from here on `vma_close` owns the reference in `vm_private_data`.
        unsafe {
            shim::vm_flags_mod(raw, flags, forbidden);
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

/// A table of operations; nobody writes to it.
struct VmOps(bindings::vm_operations_struct);

// SAFETY: The table is constant.
unsafe impl Sync for VmOps {}

static VM_OPS: VmOps = VmOps(bindings::vm_operations_struct {
    open: Some(vma_open),
    close: Some(vma_close),
    fault: Some(vma_fault),
    #[cfg(CONFIG_ARCH_SUPPORTS_PMD_PFNMAP)]
    huge_fault: Some(vma_huge_fault),
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
///
/// # Safety
///
/// `vma` is one of ours, and its reference keeps the attachment.
unsafe extern "C" fn vma_open(vma: *mut bindings::vm_area_struct) {
    // SAFETY: The VMA that was copied keeps the attachment.
    unsafe { attachment(vma) }.vmas.fetch_add(1, Relaxed);
}

/// The VMA goes away.
///
/// # Safety
///
/// `vma` is one of ours, which is counted, and is not used afterwards.
unsafe extern "C" fn vma_close(vma: *mut bindings::vm_area_struct) {
    // SAFETY: This VMA is still counted.
    if unsafe { attachment(vma) }.vmas.fetch_sub(1, Full) != 1 {
        return;
    }
    // SAFETY: This takes back the reference that `map` gave to all VMAs together.
    let held = unsafe { Arc::<Attachment>::from_raw((*vma).vm_private_data.cast()) };
    // It is queued only here, hence once, so that it cannot be queued already.
    let _ = workqueue::enqueue(held);
}

/// What a fault needs to know.
struct Fault<'a> {
    vma: *mut bindings::vm_area_struct,
    pages: &'a PinnedPages,
    /// Page of the region that was touched.
    index: usize,
    /// Page-aligned address that was touched.
    address: usize,
    /// Bounds of the VMA.
    start: usize,
    end: usize,
}

impl Fault<'_> {
    /// Reads a fault on one of our VMAs; `None` beyond the end of the region.
    ///
    /// # Safety
    ///
    /// `vmf` is what the memory manager passed, and the result is not kept beyond the fault.
    unsafe fn read(vmf: *mut bindings::vm_fault) -> Option<Self> {
        // SAFETY: The caller's promise; the VMA is ours and locked for the duration of the fault,
        // and its reference keeps the attachment.
        unsafe {
            let fault = &(*vmf).__bindgen_anon_1;
            let range = &(*fault.vma).__bindgen_anon_1.__bindgen_anon_1;
            let attachment = attachment(fault.vma);
            let index = decode(fault.pgoff).1.checked_sub(attachment.phase)?;
            (index < attachment.pages().pages().len()).then_some(Self {
                vma: fault.vma,
                pages: attachment.pages(),
                index,
                address: fault.address & !(PAGE_SIZE - 1),
                start: range.vm_start,
                end: range.vm_end,
            })
        }
    }

    /// Enters one page, given by its distance in pages from the one touched.
    fn insert(&self, distance: isize) -> bindings::vm_fault_t {
        let page = self.index.wrapping_add_signed(distance);
        let Some(page) = self.pages.pages().get(page) else {
            return bindings::vm_fault_reason_VM_FAULT_SIGBUS;
        };
        let address = self.address.wrapping_add_signed(distance << PAGE_SHIFT);
        // SAFETY: The page is pinned for as long as the attachment lives, which is longer than the
        // VMA; the callers keep the address inside the VMA.
        unsafe { bindings::vmf_insert_pfn(self.vma, address, shim::page_to_pfn(*page)) }
    }
}

/// A page is touched for the first time.
///
/// # Safety
///
/// `vmf` is a fault on a VMA of ours, which is locked.
unsafe extern "C" fn vma_fault(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
    // SAFETY: Called by the memory manager.
    let Some(fault) = (unsafe { Fault::read(vmf) }) else {
        return bindings::vm_fault_reason_VM_FAULT_SIGBUS;
    };
    let ret = fault.insert(0);
    if ret != bindings::vm_fault_reason_VM_FAULT_NOPAGE {
        return ret;
    }
    // The rest of the page-table page comes along: what is touched once is mostly touched all over,
    // and a fault costs more than a few hundred entries.
    let window = shim::HUGE_PAGES << PAGE_SHIFT;
    let low = usize::max(fault.address & !(window - 1), fault.start);
    let high = usize::min((fault.address | (window - 1)).saturating_add(1), fault.end);
    let pages = |from: usize, to: usize| ((to - from) >> PAGE_SHIFT) as isize;
    for distance in -pages(low, fault.address)..pages(fault.address, high) {
        if distance != 0 && fault.insert(distance) != ret {
            break;
        }
    }
    ret
}

/// The same, while nothing else is mapped in the surrounding huge page. Only where the architecture can
/// mark such an entry as one whose page is not to be looked at.
///
/// # Safety
///
/// `vmf` is a fault on a VMA of ours, which is locked.
#[cfg(CONFIG_ARCH_SUPPORTS_PMD_PFNMAP)]
unsafe extern "C" fn vma_huge_fault(
    vmf: *mut bindings::vm_fault,
    order: core::ffi::c_uint,
) -> bindings::vm_fault_t {
    let fallback = bindings::vm_fault_reason_VM_FAULT_FALLBACK;
    if 1usize.checked_shl(order) != Some(shim::HUGE_PAGES) {
        return fallback;
    }
    // SAFETY: Called by the memory manager.
    let Some(fault) = (unsafe { Fault::read(vmf) }) else {
        return bindings::vm_fault_reason_VM_FAULT_SIGBUS;
    };
    let bytes = shim::HUGE_PAGES << PAGE_SHIFT;
    let low = fault.address & !(bytes - 1);
    let before = (fault.address - low) >> PAGE_SHIFT;
    if low < fault.start || fault.end - low < bytes || fault.index < before {
        return fallback;
    }
    let first = fault.index - before;
    if !fault.pages.is_huge(first) {
        return fallback;
    }
    // SAFETY: The pages are pinned for as long as the attachment lives, physically contiguous and
    // aligned, and the whole huge page is inside the VMA.
    unsafe {
        let frame = shim::page_to_pfn(fault.pages.pages()[first]);
        let write = (*vmf).flags & bindings::fault_flag_FAULT_FLAG_WRITE != 0;
        bindings::vmf_insert_pfn_pmd(vmf, frame, write)
    }
}

/// Chooses where to map (without huge pages that is left to the memory manager): an address that is as far past a huge-page boundary as the offset says.
///
/// # Safety
///
/// `file` is an open file; the memory manager calls with the lock held.
#[cfg(CONFIG_TRANSPARENT_HUGEPAGE)]
pub(crate) unsafe extern "C" fn get_unmapped_area(
    file: *mut bindings::file,
    address: usize,
    length: usize,
    page_offset: usize,
    flags: usize,
) -> usize {
    // SAFETY: Called by the memory manager with an open file; the arguments are forwarded.
    unsafe { bindings::thp_get_unmapped_area(file, address, length, page_offset, flags) }
}
