// SPDX-License-Identifier: GPL-2.0

//! [`StatusTable`]: the state of a domain's requests, in pages that its members map for reading.
//!
//! What is in the table is a copy that the kernel writes and never reads.

use crate::abstractions::shim;
use crate::uapi::{RequestStatus, MAX_REQUESTS, REQUEST_RUNNING, STATUS_BYTES};
use core::mem::{offset_of, size_of};
use kernel::mm::virt::VmaNew;
use kernel::page::{Page, PAGE_SIZE};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed, Release};
use kernel::sync::Arc;

const PER_PAGE: usize = PAGE_SIZE / size_of::<RequestStatus>();

/// The table of a domain.
pub(crate) struct StatusTable {
    pages: KVec<Page>,
}

impl StatusTable {
    /// All zero.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let count = (MAX_REQUESTS as usize).div_ceil(PER_PAGE);
        let mut pages = KVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..count {
            pages.push(
                Page::alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO)?,
                GFP_KERNEL_ACCOUNT,
            )?;
        }
        Ok(Arc::new(Self { pages }, GFP_KERNEL_ACCOUNT)?)
    }

    /// Maps the table into the caller's new VMA, which keeps the pages from there on.
    pub(crate) fn map(&self, vma: &VmaNew) -> Result {
        // A file opened for reading only has VM_SHARED taken from its shared mappings.
        if vma.flags() & shim::VM_MAYSHARE == 0 || vma.end() - vma.start() > STATUS_BYTES as usize {
            return Err(EINVAL);
        }
        if vma.writable() || vma.executable() {
            return Err(EACCES);
        }
        vma.try_clear_maywrite()?;
        vma.try_clear_mayexec()?;
        vma.set_dontexpand();
        vma.set_dontdump();
        // Nobody pins what the kernel writes to.
        vma.set_io();
        // Page by page: the kernel crate does not wrap `vm_map_pages()`, and the table has 16
        // pages. The memory manager takes back what is mapped when a later one fails.
        let mixed = vma.set_mixedmap();
        for (address, page) in (vma.start()..vma.end()).step_by(PAGE_SIZE).zip(&self.pages) {
            mixed.vm_insert_page(address, page)?;
        }
        Ok(())
    }
}

/// One entry, for the request it belongs to.
pub(crate) struct Status {
    table: Arc<StatusTable>,
    index: usize,
}

impl Status {
    /// The entry of a slot of the domain.
    pub(crate) fn new(table: Arc<StatusTable>, slot: u32) -> Self {
        let index = slot as usize;
        debug_assert!(index < MAX_REQUESTS as usize);
        Self { table, index }
    }

    fn word(&self, offset: usize) -> *mut u8 {
        let page = &self.table.pages[self.index / PER_PAGE];
        // SAFETY: The table keeps the page.
        let base = unsafe { shim::page_address(page.as_ptr()) };
        base.wrapping_add(self.index % PER_PAGE * size_of::<RequestStatus>() + offset)
    }

    fn long(&self, offset: usize) -> &Atomic<u64> {
        // SAFETY: An aligned word of a page that the table keeps, which only atomics touch.
        unsafe { Atomic::from_ptr(self.word(offset).cast()) }
    }

    fn short(&self, offset: usize) -> &Atomic<u32> {
        // SAFETY: As in `long`.
        unsafe { Atomic::from_ptr(self.word(offset).cast()) }
    }

    /// Starts the entry of a new request.
    pub(crate) fn begin(&self, id: u32) {
        self.short(offset_of!(RequestStatus, id)).xchg(0, Full);
        for offset in [
            offset_of!(RequestStatus, next),
            offset_of!(RequestStatus, done),
            offset_of!(RequestStatus, front),
        ] {
            self.long(offset).store(0, Relaxed);
        }
        self.short(offset_of!(RequestStatus, error))
            .store(0, Relaxed);
        self.short(offset_of!(RequestStatus, state))
            .store(REQUEST_RUNNING, Relaxed);
        self.short(offset_of!(RequestStatus, id)).store(id, Release);
    }

    /// Fragments were claimed.
    pub(crate) fn claimed(&self, many: u64) {
        self.long(offset_of!(RequestStatus, next))
            .fetch_add(many, Relaxed);
    }

    /// Bytes are in place; `advanced` of them joined the front.
    pub(crate) fn moved(&self, bytes: u64, advanced: u64) {
        self.long(offset_of!(RequestStatus, done))
            .fetch_add(bytes, Full);
        if advanced != 0 {
            self.long(offset_of!(RequestStatus, front))
                .fetch_add(advanced, Full);
        }
    }

    /// The end.
    pub(crate) fn end(&self, state: u32, error: i32) {
        self.short(offset_of!(RequestStatus, error))
            .store(error as u32, Relaxed);
        self.short(offset_of!(RequestStatus, state))
            .store(state, Release);
    }
}
