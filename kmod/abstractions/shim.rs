// SPDX-License-Identifier: GPL-2.0

//! Safe faces of `shim.c`: kernel macros and inline functions that Rust cannot call.

use crate::abstractions::declarations as raw;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use kernel::bindings;
use kernel::ffi::{c_int, c_void};
use kernel::mm::{Mm, MmWithUser};
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;

/// `include/linux/mm.h`; the kernel's bindings have a wrong value.
pub(crate) const VM_MAYSHARE: usize = 0x80;

/// Pages that one entry of the second-lowest page-table level maps.
pub(crate) const HUGE_PAGES: usize = PAGE_SIZE / core::mem::size_of::<usize>();

/// Address of a page in the kernel's direct map.
///
/// # Safety
///
/// `page` must be a valid page that the caller keeps from being freed.
pub(crate) unsafe fn page_address(page: *mut bindings::page) -> *mut u8 {
    // SAFETY: The page is valid and stays; the direct map covers it (checked in shim.c).
    unsafe { raw::libcopy_page_address(page).cast() }
}

/// Frame number of a page.
///
/// # Safety
///
/// `page` must be a valid page that the caller keeps from being freed.
pub(crate) unsafe fn page_to_pfn(page: *mut bindings::page) -> usize {
    // SAFETY: The page is valid and stays, as this function asks for.
    unsafe { raw::libcopy_page_to_pfn(page) }
}

/// How many pages from the first on follow each other in physical memory: 1 or more.
///
/// # Safety
///
/// `pages` must be valid pages that the caller keeps from being freed, and not none.
pub(crate) unsafe fn contiguous_pages(pages: &[*mut bindings::page]) -> usize {
    // SAFETY: The pages are valid and stay, as this function asks for.
    unsafe { raw::libcopy_contiguous_pages(pages.as_ptr(), pages.len()) }
}

/// How many pages from `start` on, of those expected, the page tables show, as far as that can be
/// seen without faulting anything in (`mm/hmm.c`, `hmm_range_fault()`). Addresses without a mapping
/// show no page. The caller has not locked the address space.
pub(crate) fn same_pages(
    mm: &MmWithUser,
    start: usize,
    expected: &[*mut bindings::page],
    room: &mut [MaybeUninit<usize>],
) -> usize {
    let count = usize::min(expected.len(), room.len());
    // SAFETY: There is room for as many words, and the address space is alive and not locked.
    unsafe {
        raw::libcopy_same_pages(
            mm.as_raw(),
            start,
            expected.as_ptr(),
            room.as_mut_ptr().cast(),
            count,
        )
    }
}

/// The notifier with these operations of an address space, which is registered if it has none;
/// counts a user of it. Waits killably for the address space's lock.
///
/// # Safety
///
/// The operations are complete, and stay for as long as any notifier with them.
pub(crate) unsafe fn notifier_get(
    ops: &'static bindings::mmu_notifier_ops,
    mm: &MmWithUser,
) -> Result<NonNull<bindings::mmu_notifier>> {
    // SAFETY: The address space is alive; the operations are as asked for by this function's
    // clause.
    let raw = unsafe { raw::libcopy_notifier_get(ops, mm.as_raw()) };
    NonNull::new(kernel::error::from_err_ptr(raw)?).ok_or(ENOMEM)
}

/// Waits for callbacks of notifiers that have begun, and until those are freed that are not
/// registered any more.
pub(crate) fn notifiers_synchronize() {
    // SAFETY: No preconditions but that it may sleep, as the unloading of the module may.
    unsafe { bindings::mmu_notifier_synchronize() };
}

/// Pins pages of the address space of another process, as many as fit into `pages`; returns how
/// many from the first on. Waits killably, and without the address space's lock, for pages that
/// somebody else must bring in.
///
/// - `EINTR`: a signal arrived.
pub(crate) fn pin_remote(
    mm: &MmWithUser,
    start: usize,
    flags: u32,
    pages: &mut [MaybeUninit<*mut bindings::page>],
) -> Result<usize> {
    // SAFETY: The address space is alive, and there is room for as many pages.
    let got = unsafe {
        raw::libcopy_pin_remote(
            mm.as_raw(),
            start,
            pages.len(),
            flags,
            pages.as_mut_ptr().cast(),
        )
    };
    usize::try_from(got).map_err(|_| Error::from_errno(got as i32))
}

/// An address of the calling process without the bits that its architecture ignores: the memory
/// manager's notifiers, page numbers and comparisons know nothing of them. The caller has an
/// address space.
pub(crate) fn untagged_address(address: u64) -> u64 {
    // SAFETY: Only ioctls call this: the caller has an address space, whose lock it does not hold.
    unsafe { raw::libcopy_untagged_addr(address as usize) as u64 }
}

/// Whether the caller may wait for a process: it is one itself, and not in an interrupt.
pub(crate) fn may_wait() -> bool {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_may_wait() }
}

/// Whether the caller may lock any number of pages.
pub(crate) fn may_lock_any() -> bool {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_may_lock_any() }
}

/// Pages of this machine.
pub(crate) fn total_pages() -> u64 {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_total_pages() as u64 }
}

/// Counts pages as pinned by an address space.
///
/// - `ENOMEM`: with what it has locked and with `other` pages that would be more than the caller's
///   `RLIMIT_MEMLOCK`, and it is not `unlimited`.
pub(crate) fn charge_mm(mm: &Mm, pages: u64, other: u64, unlimited: bool) -> Result {
    // SAFETY: The address space is referenced, and only its counters are touched.
    let charged =
        unsafe { raw::libcopy_charge_mm(mm.as_raw(), pages as usize, other as usize, unlimited) };
    charged.then_some(()).ok_or(ENOMEM)
}

/// Takes back what [`charge_mm`] counted.
pub(crate) fn uncharge_mm(mm: &Mm, pages: u64) {
    // SAFETY: The address space is referenced, and only its counters are touched.
    unsafe { raw::libcopy_uncharge_mm(mm.as_raw(), pages as usize) }
}

/// Creates a workqueue.
pub(crate) fn workqueue_create(name: &CStr) -> Result<*mut bindings::workqueue_struct> {
    // SAFETY: The name ends with a zero and is copied.
    let queue = unsafe { raw::libcopy_workqueue_create(name.as_char_ptr()) };
    if queue.is_null() {
        return Err(ENOMEM);
    }
    Ok(queue)
}

/// Allocates a shrinker with the default costs, to be filled in and registered.
pub(crate) fn shrinker_alloc(name: &CStr) -> Option<NonNull<bindings::shrinker>> {
    // SAFETY: The name ends with a zero and is copied.
    NonNull::new(unsafe { raw::libcopy_shrinker_alloc(name.as_char_ptr()) })
}

/// Sets and clears flags of a VMA.
///
/// # Safety
///
/// `vma` must be under construction or write-locked.
pub(crate) unsafe fn vm_flags_mod(vma: *mut bindings::vm_area_struct, set: usize, clear: usize) {
    // SAFETY: Nobody else changes the flags of a VMA that is new or write-locked.
    unsafe { raw::libcopy_vm_flags_mod(vma, set, clear) }
}

/// Gives way to other tasks; returns whether a signal is pending.
pub(crate) fn cond_resched_interrupted() -> bool {
    // SAFETY: No preconditions but a context that may sleep, where all our ioctls run.
    unsafe { raw::libcopy_cond_resched_interrupted() }
}

/// Nanoseconds of the monotonic clock; never 0, so that 0 can stand for "never".
pub(crate) fn now() -> i64 {
    // SAFETY: No preconditions.
    i64::max(unsafe { bindings::ktime_get() }, 1)
}

/// Whether a warning may be logged: there were not too many of late. The kernel says how many there
/// were not.
pub(crate) fn may_warn() -> bool {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_may_warn() }
}

/// Id of the calling process if it is exiting.
pub(crate) fn exiting_process() -> Option<i32> {
    // SAFETY: No preconditions.
    match unsafe { raw::libcopy_exiting_process() } {
        0 => None,
        id => Some(id),
    }
}

/// Id of the calling process.
pub(crate) fn current_process() -> i32 {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_current_process() }
}

/// Whether the caller is being killed.
pub(crate) fn fatal_signal_pending() -> bool {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_fatal_signal_pending() }
}

/// The caller was about to sleep and does not.
pub(crate) fn set_running() {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_set_running() }
}

/// The calling kernel thread is frozen with the machine from now on, in [`try_to_freeze`] and where
/// it waits freezably.
pub(crate) fn set_freezable() {
    // SAFETY: Called by kernel threads of ours, without locks.
    unsafe { raw::libcopy_set_freezable() }
}

/// Waits while the machine is being suspended.
pub(crate) fn try_to_freeze() {
    // SAFETY: As above.
    unsafe { raw::libcopy_try_to_freeze() }
}

/// Starts a kernel thread near a NUMA node (negative: anywhere), and takes a reference to it.
///
/// # Safety
///
/// `body` may be called with `data`, from another thread, until [`thread_stop`] has returned.
pub(crate) unsafe fn thread_run(
    body: unsafe extern "C" fn(*mut c_void) -> c_int,
    data: *mut c_void,
    node: i32,
    name: &CStr,
) -> Option<NonNull<bindings::task_struct>> {
    // SAFETY: `body` may be called with `data` by this function's clause; the name is copied.
    NonNull::new(unsafe { raw::libcopy_thread_run(Some(body), data, node, name.as_char_ptr()) })
}

/// Stops a thread, waits for its end and releases it.
///
/// # Safety
///
/// `task` is from [`thread_run`] and is not used afterwards.
pub(crate) unsafe fn thread_stop(task: NonNull<bindings::task_struct>) {
    // SAFETY: The reference that `thread_run` took is released here, once.
    unsafe { raw::libcopy_thread_stop(task.as_ptr()) }
}

/// NUMA nodes, ascending.
pub(crate) fn nodes() -> impl Iterator<Item = i32> {
    // SAFETY: No preconditions.
    let next = |after| unsafe { raw::libcopy_next_node(after) };
    core::iter::successors(Some(next(-1)), move |node| Some(next(*node)))
        .take_while(|node| *node >= 0)
}

/// The caller's NUMA node.
pub(crate) fn current_node() -> i32 {
    // SAFETY: No preconditions.
    unsafe { raw::libcopy_current_node() }
}

/// # Safety
///
/// The lock is initialised.
pub(crate) unsafe fn lock_irqsave(lock: *mut bindings::spinlock_t) -> usize {
    // SAFETY: The lock is initialised, as this function asks for.
    unsafe { raw::libcopy_lock_irqsave(lock) }
}

/// Takes the lock if nobody has it.
///
/// # Safety
///
/// The lock is initialised.
pub(crate) unsafe fn trylock_irqsave(lock: *mut bindings::spinlock_t) -> Option<usize> {
    let mut flags = 0;
    // SAFETY: The lock is initialised, as this function asks for; `flags` outlives the call.
    unsafe { raw::libcopy_trylock_irqsave(lock, &mut flags) }.then_some(flags)
}

/// # Safety
///
/// The caller holds the lock and got `flags` when it took it.
pub(crate) unsafe fn unlock_irqrestore(lock: *mut bindings::spinlock_t, flags: usize) {
    // SAFETY: The lock is held, and `flags` are what taking it returned.
    unsafe { raw::libcopy_unlock_irqrestore(lock, flags) }
}

/// Copies memory of the kernel's that may overlap; returns how many bytes: fewer where the memory
/// has lost what was in it (a machine check, where the processor can go on after one).
///
/// # Safety
///
/// `from` is readable and `to` writable for `len` bytes.
pub(crate) unsafe fn move_bytes(from: *const u8, to: *mut u8, len: usize) -> usize {
    // SAFETY: Both have `len` bytes.
    unsafe { raw::libcopy_move(to.cast(), from.cast(), len) }
}

/// Continues a CRC32C over `len` bytes.
///
/// # Safety
///
/// `data` is readable for `len` bytes.
pub(crate) unsafe fn crc32c(crc: u32, data: *const u8, len: usize) -> u32 {
    // SAFETY: `data` has `len` readable bytes.
    unsafe { raw::libcopy_crc32c(crc, data.cast(), len) }
}

/// Sleeps a moment.
pub(crate) fn nap(milliseconds: u32) {
    // SAFETY: All callers may sleep.
    unsafe { bindings::msleep(milliseconds) }
}

/// Copies short pieces, `total` bytes together, to user memory, and moves the iterator behind them.
/// Returns `total`; or 0 if the iterator is not one range of user memory, or not all of it can be
/// written: then it is where it was.
///
/// # Safety
///
/// The pieces must be readable, and have `total` bytes together.
pub(crate) unsafe fn copy_pieces_to_iter(
    pieces: &[bindings::kvec],
    total: usize,
    to: &mut bindings::iov_iter,
) -> usize {
    // SAFETY: The pieces are readable; the iterator is valid, and user memory is checked as it is
    // written.
    unsafe { raw::libcopy_copy_pieces_to_iter(pieces.as_ptr(), pieces.len(), total, to) }
}
