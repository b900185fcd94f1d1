// SPDX-License-Identifier: GPL-2.0

//! The VMAs that show an attachment: how one is set up, copied and closed.
//!
//! The memory manager calls with the address space locked. So nothing is unpinned here: the last
//! VMA leaves its reference to the workqueue.

use crate::attach::attachment::{Attachment, Room};
use crate::attach::fault::vma_fault;
#[cfg(CONFIG_ARCH_SUPPORTS_PMD_PFNMAP)]
use crate::attach::fault::vma_huge_fault;
use crate::base::shim;
use crate::base::workqueue;
use crate::domain::region::Region;
use kernel::bindings;
use kernel::mm::virt::VmaNew;
use kernel::prelude::*;
use kernel::sync::Arc;

/// Maps a region into the caller's new VMA, from page `first` on.
pub(crate) fn map(room: Room, region: Arc<Region>, first: usize, vma: &VmaNew) -> Result {
    let attachment = room.fill(region, first, vma)?;
    let mut forbidden = bindings::VM_MAYEXEC;
    if !attachment.is_writable() {
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

/// The VMA was copied (fork, split).
///
/// # Safety
///
/// `vma` is one of ours, and its reference keeps the attachment.
unsafe extern "C" fn vma_open(vma: *mut bindings::vm_area_struct) {
    // SAFETY: The VMA that was copied is counted.
    unsafe { Attachment::of(vma) }.shown();
}

/// The VMA goes away.
///
/// # Safety
///
/// `vma` is one of ours, which is counted, and is not used afterwards.
unsafe extern "C" fn vma_close(vma: *mut bindings::vm_area_struct) {
    // SAFETY: This VMA is still counted.
    if !unsafe { Attachment::of(vma) }.hidden() {
        return;
    }
    // SAFETY: This takes back the reference that `map` gave to all VMAs together.
    let held = unsafe { Arc::<Attachment>::from_raw((*vma).vm_private_data.cast()) };
    // It is queued only here, hence once, so that it cannot be queued already.
    let _ = workqueue::enqueue(held);
}

/// Chooses where to map: an address that is as far past a huge-page boundary as the offset says. A
/// kernel without huge pages leaves that to its memory manager.
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
