// SPDX-License-Identifier: MIT OR Apache-2.0

//! Asking for lines early.

/// Asks for a line that will be needed soon; any address is harmless.
#[inline(always)]
pub(super) fn prefetch(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults, and x86-64 has it. Newer compilers need no block.
    #[allow(unused_unsafe)]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}

/// Asks for a line that will be written soon; any address is harmless.
///
/// What is written may be memory that two processes share, whose lines the other's cache holds:
/// asked for as if it were only read, such a line would be asked for again to be written, which
/// took two and a half times as long in all.
#[inline(always)]
pub(super) fn prefetch_to_write(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch never faults; processors of 64 bits that do not know it do nothing.
    unsafe {
        std::arch::asm!("prefetchw byte ptr [{}]", in(reg) at, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = at;
}
