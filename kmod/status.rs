// SPDX-License-Identifier: GPL-2.0

//! [`StatusTable`]: the state of a domain's requests, in pages that its members map for reading.
//!
//! What is in the table is a copy that the kernel writes and never reads.

use crate::shim;
use crate::uapi::{RequestStatus, MAX_REQUESTS, REQUEST_RUNNING, STATUS_BYTES};
use core::mem::{offset_of, size_of};
use kernel::bindings;
use kernel::error::to_result;
use kernel::mm::virt::VmaNew;
use kernel::page::{Page, PAGE_SIZE};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed, Release};
use kernel::sync::Arc;

/// `include/linux/mm.h`; the kernel's bindings have a wrong value.
const VM_MAYSHARE: usize = 0x80;

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

    /// Maps the table into the caller's new VMA.
    pub(crate) fn map(self: Arc<Self>, vma: &VmaNew) -> Result {
        // A file opened for reading only has VM_SHARED taken from its shared mappings.
        if vma.flags() & VM_MAYSHARE == 0 || vma.end() - vma.start() > STATUS_BYTES as usize {
            return Err(EINVAL);
        }
        if vma.writable() || vma.executable() {
            return Err(EACCES);
        }
        let raw = vma.as_ptr();
        let set = bindings::VM_DONTEXPAND | bindings::VM_DONTDUMP;
        let clear = bindings::VM_MAYWRITE | bindings::VM_MAYEXEC;
        // SAFETY: The VMA is under construction; the pages are inside it, and the table, which the
        // VMA holds from here on (see `vma_close`), keeps them.
        unsafe {
            shim::vm_flags_mod(raw, set as usize, clear as usize);
            for (address, page) in (vma.start()..vma.end()).step_by(PAGE_SIZE).zip(&self.pages) {
                to_result(bindings::remap_pfn_range(
                    raw,
                    address,
                    shim::page_to_pfn(page.as_ptr()),
                    PAGE_SIZE,
                    (*raw).vm_page_prot,
                ))?;
            }
            (*raw).vm_private_data = Arc::into_raw(self).cast_mut().cast();
            (*raw).vm_ops = &VM_OPS.0;
        }
        Ok(())
    }
}

/// A table of operations; nobody writes to it.
struct VmOps(bindings::vm_operations_struct);

// SAFETY: The table is constant.
unsafe impl Sync for VmOps {}

static VM_OPS: VmOps = VmOps(bindings::vm_operations_struct {
    open: Some(vma_open),
    close: Some(vma_close),
    ..pin_init::zeroed()
});

/// The VMA was copied (fork, split).
unsafe extern "C" fn vma_open(vma: *mut bindings::vm_area_struct) {
    // SAFETY: The VMA that was copied holds a reference; the copy takes its own.
    unsafe {
        let held = Arc::<StatusTable>::from_raw((*vma).vm_private_data.cast());
        core::mem::forget(held.clone());
        core::mem::forget(held);
    }
}

/// The VMA goes away.
unsafe extern "C" fn vma_close(vma: *mut bindings::vm_area_struct) {
    // SAFETY: This takes back the VMA's reference; freeing pages takes no lock of the memory manager.
    drop(unsafe { Arc::<StatusTable>::from_raw((*vma).vm_private_data.cast()) });
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
        self.short(offset_of!(RequestStatus, mode))
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

    /// `MODE_*` bits.
    pub(crate) fn mode(&self, bits: u32) {
        self.short(offset_of!(RequestStatus, mode))
            .store(bits, Relaxed);
    }

    /// The end.
    pub(crate) fn end(&self, state: u32, error: i32) {
        self.short(offset_of!(RequestStatus, error))
            .store(error as u32, Relaxed);
        self.short(offset_of!(RequestStatus, state))
            .store(state, Release);
    }
}
