// SPDX-License-Identifier: GPL-2.0

//! [`Fault`]: a page of an attachment is touched for the first time.
//!
//! The memory manager calls with the VMA locked. The pages are pinned already: nothing is allocated
//! but page tables, and nothing is waited for.

use crate::abstractions::shim;
use crate::abstractions::vm_operations::VmFault;
use crate::attach::attachment::{decode, Attachment};
use crate::memory::pin::PinnedPages;
use kernel::bindings;
use kernel::page::PAGE_SHIFT;

/// What a fault needs to know.
pub(crate) struct Fault<'a> {
    fault: &'a VmFault<'a>,
    pages: &'a PinnedPages,
    /// Page of the region that was touched.
    index: usize,
    /// Page-aligned address that was touched.
    address: usize,
    /// Bounds of the VMA.
    start: usize,
    end: usize,
}

impl<'a> Fault<'a> {
    /// Reads a fault on a VMA that shows an attachment; `None` beyond the end of the region.
    pub(crate) fn read(attachment: &'a Attachment, fault: &'a VmFault<'_>) -> Option<Self> {
        let pages = attachment.pages();
        let index = decode(fault.page_offset())
            .1
            .checked_sub(attachment.phase())?;
        let (start, end) = fault.bounds();
        (index < pages.pages().len()).then_some(Self {
            fault,
            pages,
            index,
            address: fault.address(),
            start,
            end,
        })
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
        unsafe { self.fault.insert(address, *page) }
    }

    /// Enters the page, and the rest of its page-table page: what is touched once is mostly touched
    /// all over, and a fault costs more than a few hundred entries.
    pub(crate) fn map(&self) -> bindings::vm_fault_t {
        let ret = self.insert(0);
        if ret != bindings::vm_fault_reason_VM_FAULT_NOPAGE {
            return ret;
        }
        let window = shim::HUGE_PAGES << PAGE_SHIFT;
        let low = usize::max(self.address & !(window - 1), self.start);
        let high = usize::min((self.address | (window - 1)).saturating_add(1), self.end);
        let pages = |from: usize, to: usize| ((to - from) >> PAGE_SHIFT) as isize;
        for distance in -pages(low, self.address)..pages(self.address, high) {
            if distance != 0 && self.insert(distance) != ret {
                break;
            }
        }
        ret
    }

    /// Enters the huge page, if the region has one there.
    #[cfg(CONFIG_ARCH_SUPPORTS_PMD_PFNMAP)]
    pub(crate) fn map_huge(&self) -> bindings::vm_fault_t {
        let fallback = bindings::vm_fault_reason_VM_FAULT_FALLBACK;
        let bytes = shim::HUGE_PAGES << PAGE_SHIFT;
        let low = self.address & !(bytes - 1);
        let before = (self.address - low) >> PAGE_SHIFT;
        if low < self.start || self.end - low < bytes || self.index < before {
            return fallback;
        }
        let first = self.index - before;
        if !self.pages.is_huge(first) {
            return fallback;
        }
        // SAFETY: The pages are pinned for as long as the attachment lives, physically contiguous
        // and aligned, and the whole huge page is inside the VMA.
        unsafe { self.fault.insert_huge(self.pages.pages()[first]) }
    }
}
