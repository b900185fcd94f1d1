// SPDX-License-Identifier: GPL-2.0

//! [`Fault`]: a page of an attachment is touched for the first time.
//!
//! The memory manager calls with the VMA locked. The pages are pinned already: nothing is allocated
//! but page tables, and nothing is waited for.

use crate::attach::attachment::{decode, Attachment};
use crate::base::shim;
use crate::memory::pin::PinnedPages;
use kernel::bindings;
use kernel::page::{PAGE_SHIFT, PAGE_SIZE};

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
        // SAFETY: The memory manager's `vmf` is valid; its VMA is ours and locked for the duration
        // of the fault, so that it is not closed and stays counted.
        unsafe {
            let fault = &(*vmf).__bindgen_anon_1;
            let range = &(*fault.vma).__bindgen_anon_1.__bindgen_anon_1;
            let attachment = Attachment::of(fault.vma);
            let index = decode(fault.pgoff).1.checked_sub(attachment.phase())?;
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
pub(crate) unsafe extern "C" fn vma_fault(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
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

/// A page is touched for the first time while nothing else is mapped in the surrounding huge page.
/// Only where the architecture can mark such an entry as one whose page is not to be looked at.
///
/// # Safety
///
/// `vmf` is a fault on a VMA of ours, which is locked.
#[cfg(CONFIG_ARCH_SUPPORTS_PMD_PFNMAP)]
pub(crate) unsafe extern "C" fn vma_huge_fault(
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
