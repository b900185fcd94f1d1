// SPDX-License-Identifier: GPL-2.0

//! [`IrqLock`]: a spinlock that may be taken where an engine's completion is delivered.
//!
//! The kernel crate's own spinlock leaves interrupts on, so that a completion on the same CPU could
//! wait for it for ever. What is done under such a lock must neither sleep nor take a lock of a
//! driver.

use crate::abstractions::shim;
use core::ffi::CStr;
use kernel::bindings;
use kernel::ffi::c_char;
use kernel::prelude::*;
use kernel::sync::lock::{Backend, Lock};
use kernel::sync::LockClassKey;

/// The lock.
pub(crate) type IrqLock<T> = Lock<T, IrqBackend>;

/// Makes a lock.
pub(crate) fn new<T>(
    value: T,
    name: &'static CStr,
    key: Pin<&'static LockClassKey>,
) -> impl PinInit<IrqLock<T>> {
    Lock::new(value, name, key)
}

/// `spin_lock_irqsave()`.
pub(crate) struct IrqBackend;

// SAFETY: The kernel's spinlock guarantees mutual exclusion; `relock` is the default, which calls
// the same method.
unsafe impl Backend for IrqBackend {
    type State = bindings::spinlock_t;
    type GuardState = usize;

    unsafe fn init(ptr: *mut Self::State, name: *const c_char, key: *mut bindings::lock_class_key) {
        // SAFETY: `Backend::init` is called with memory for a lock, and with a name and a class
        // that stay.
        unsafe { bindings::__spin_lock_init(ptr, name, key) }
    }

    unsafe fn lock(ptr: *mut Self::State) -> usize {
        // SAFETY: `Backend` calls this after `init` only.
        unsafe { shim::lock_irqsave(ptr) }
    }

    unsafe fn try_lock(ptr: *mut Self::State) -> Option<usize> {
        // SAFETY: `Backend` calls this after `init` only.
        unsafe { shim::trylock_irqsave(ptr) }
    }

    unsafe fn unlock(ptr: *mut Self::State, flags: &usize) {
        // SAFETY: The caller owns the lock; the flags are what taking it returned.
        unsafe { shim::unlock_irqrestore(ptr, *flags) }
    }

    unsafe fn assert_is_held(ptr: *mut Self::State) {
        // SAFETY: `Backend` calls this after `init` only.
        unsafe { bindings::spin_assert_is_held(ptr) }
    }
}
