// SPDX-License-Identifier: GPL-2.0

//! [`VmOperations`]: what a VMA shows, page frame by page frame (`struct vm_operations_struct`,
//! `include/linux/mm.h`).

use crate::abstractions::shim;
use core::marker::PhantomData;
use kernel::bindings;
#[cfg(CONFIG_ARCH_SUPPORTS_PMD_PFNMAP)]
use kernel::ffi::c_uint;
use kernel::mm::virt::VmaNew;
use kernel::page::PAGE_SIZE;
use kernel::sync::Arc;

/// What the VMAs show that come from one `mmap` by fork and split. They own one reference together.
/// The memory manager calls with the address space or the VMA locked.
pub(crate) trait VmOperations: Send + Sync + Sized + 'static {
    /// One more VMA shows it.
    fn shown(&self);

    /// A VMA is gone; returns whether it was the last one.
    fn hidden(&self) -> bool;

    /// The reference of the VMAs, when the last one is gone.
    fn give_back(this: Arc<Self>);

    /// A page is touched for the first time.
    fn fault(&self, fault: &VmFault<'_>) -> bindings::vm_fault_t;

    /// As [`fault`](Self::fault), while nothing else is mapped in the surrounding huge page. Only
    /// where the architecture can mark such an entry as one whose page is not to be looked at.
    #[cfg(CONFIG_ARCH_SUPPORTS_PMD_PFNMAP)]
    fn huge_fault(&self, fault: &VmFault<'_>) -> bindings::vm_fault_t;
}

/// A fault on a VMA that is locked.
///
/// # Invariants
///
/// The memory manager's `vm_fault` is valid for `'a`.
pub(crate) struct VmFault<'a>(*mut bindings::vm_fault, PhantomData<&'a ()>);

impl VmFault<'_> {
    fn place(&self) -> &bindings::vm_fault__bindgen_ty_1 {
        // SAFETY: Valid by the type invariant.
        unsafe { &(*self.0).__bindgen_anon_1 }
    }

    /// Page of the file's offsets.
    pub(crate) fn page_offset(&self) -> usize {
        self.place().pgoff
    }

    /// Page-aligned address that was touched.
    pub(crate) fn address(&self) -> usize {
        self.place().address & !(PAGE_SIZE - 1)
    }

    /// First address of the VMA, and the first one behind it.
    pub(crate) fn bounds(&self) -> (usize, usize) {
        // SAFETY: The VMA is locked for the duration of the fault.
        let range = unsafe { &(*self.place().vma).__bindgen_anon_1.__bindgen_anon_1 };
        (range.vm_start, range.vm_end)
    }

    /// Enters a page.
    ///
    /// # Safety
    ///
    /// The page stays for as long as the VMA, which the address is in.
    pub(crate) unsafe fn insert(
        &self,
        address: usize,
        page: *mut bindings::page,
    ) -> bindings::vm_fault_t {
        // SAFETY: As this function asks for.
        unsafe { bindings::vmf_insert_pfn(self.place().vma, address, shim::page_to_pfn(page)) }
    }

    /// Enters the huge page around what was touched, of which `page` is the first one.
    ///
    /// # Safety
    ///
    /// The pages stay for as long as the VMA, are contiguous and aligned, and all inside the VMA.
    #[cfg(CONFIG_ARCH_SUPPORTS_PMD_PFNMAP)]
    pub(crate) unsafe fn insert_huge(&self, page: *mut bindings::page) -> bindings::vm_fault_t {
        // SAFETY: As this function asks for; the fault is valid by the type invariant.
        unsafe {
            let write = (*self.0).flags & bindings::fault_flag_FAULT_FLAG_WRITE != 0;
            bindings::vmf_insert_pfn_pmd(self.0, shim::page_to_pfn(page), write)
        }
    }
}

/// Has a new VMA show something. `flags` are set, `forbidden` ones cleared.
pub(crate) fn show<T: VmOperations>(vma: &VmaNew, shown: Arc<T>, flags: usize, forbidden: usize) {
    let raw = vma.as_ptr();
    // SAFETY: The VMA is under construction, so its flags, operations and private data are ours
    // to set; from here on `close` owns the reference in `vm_private_data`.
    unsafe {
        shim::vm_flags_mod(raw, flags, forbidden);
        (*raw).vm_private_data = Arc::into_raw(shown).cast_mut().cast();
        (*raw).vm_ops = Table::<T>::OPERATIONS;
    }
}

struct Table<T>(PhantomData<T>);

impl<T: VmOperations> Table<T> {
    const OPERATIONS: &'static bindings::vm_operations_struct = &bindings::vm_operations_struct {
        open: Some(open::<T>),
        close: Some(close::<T>),
        fault: Some(fault::<T>),
        #[cfg(CONFIG_ARCH_SUPPORTS_PMD_PFNMAP)]
        huge_fault: Some(huge_fault::<T>),
        ..pin_init::zeroed()
    };
}

/// # Safety
///
/// `vma` is one that [`show`] was called for, or a copy, counted as showing it for `'a`.
unsafe fn of<'a, T>(vma: *mut bindings::vm_area_struct) -> &'a T {
    // SAFETY: Such a VMA has the pointer in its private data; the reference that all VMAs own
    // together stays while one of them is counted.
    unsafe { &*(*vma).vm_private_data.cast() }
}

/// # Safety
///
/// `vma` is a copy (fork, split) of one whose reference keeps what it shows.
unsafe extern "C" fn open<T: VmOperations>(vma: *mut bindings::vm_area_struct) {
    // SAFETY: The VMA that was copied is counted.
    unsafe { of::<T>(vma) }.shown();
}

/// # Safety
///
/// `vma` is counted, and is not used afterwards.
unsafe extern "C" fn close<T: VmOperations>(vma: *mut bindings::vm_area_struct) {
    // SAFETY: This VMA is still counted.
    if unsafe { of::<T>(vma) }.hidden() {
        // SAFETY: This takes back the reference that `show` gave to all VMAs together.
        T::give_back(unsafe { Arc::from_raw((*vma).vm_private_data.cast()) });
    }
}

/// # Safety
///
/// `vmf` is a fault on a VMA that is counted, and locked.
unsafe extern "C" fn fault<T: VmOperations>(vmf: *mut bindings::vm_fault) -> bindings::vm_fault_t {
    // INVARIANT: The memory manager's fault is valid for the duration of the call.
    let fault = VmFault(vmf, PhantomData);
    // SAFETY: The VMA is locked, so that it is not closed and stays counted.
    unsafe { of::<T>(fault.place().vma) }.fault(&fault)
}

/// # Safety
///
/// As for [`fault`].
#[cfg(CONFIG_ARCH_SUPPORTS_PMD_PFNMAP)]
unsafe extern "C" fn huge_fault<T: VmOperations>(
    vmf: *mut bindings::vm_fault,
    order: c_uint,
) -> bindings::vm_fault_t {
    if 1usize.checked_shl(order) != Some(shim::HUGE_PAGES) {
        return bindings::vm_fault_reason_VM_FAULT_FALLBACK;
    }
    // INVARIANT: The memory manager's fault is valid for the duration of the call.
    let fault = VmFault(vmf, PhantomData);
    // SAFETY: The VMA is locked, so that it is not closed and stays counted.
    unsafe { of::<T>(fault.place().vma) }.huge_fault(&fault)
}
