// SPDX-License-Identifier: GPL-2.0

//! The VMAs that show an attachment: how one is set up, copied and closed.
//!
//! The memory manager calls with the address space locked. So nothing is unpinned here: the last
//! VMA leaves its reference to the workqueue.

use crate::abstractions::vm_operations::{self, VmFault, VmOperations};
use crate::attach::attachment::{Attachment, Room};
use crate::attach::fault::Fault;
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
    vm_operations::show(vma, attachment, flags, forbidden);
    Ok(())
}

impl VmOperations for Attachment {
    fn shown(&self) {
        self.count_vma();
    }

    fn hidden(&self) -> bool {
        self.uncount_vma()
    }

    fn give_back(this: Arc<Self>) {
        // It is queued only here, hence once, so that it cannot be queued already.
        let _ = workqueue::enqueue(this);
    }

    fn fault(&self, fault: &VmFault<'_>) -> bindings::vm_fault_t {
        match Fault::read(self, fault) {
            Some(fault) => fault.map(),
            None => bindings::vm_fault_reason_VM_FAULT_SIGBUS,
        }
    }

    #[cfg(CONFIG_ARCH_SUPPORTS_PMD_PFNMAP)]
    fn huge_fault(&self, fault: &VmFault<'_>) -> bindings::vm_fault_t {
        match Fault::read(self, fault) {
            Some(fault) => fault.map_huge(),
            None => bindings::vm_fault_reason_VM_FAULT_SIGBUS,
        }
    }
}
