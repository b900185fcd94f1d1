// SPDX-License-Identifier: GPL-2.0

//! [`Thread`]: a kernel thread that is waited for.

use crate::abstractions::shim;
use core::ptr::NonNull;
use kernel::bindings;
use kernel::ffi::{c_int, c_void};
use kernel::prelude::*;

/// A kernel thread; dropping stops it and waits for its end.
pub(crate) struct Thread(NonNull<bindings::task_struct>);

// SAFETY: A kernel thread may be stopped from any thread.
unsafe impl Send for Thread {}
// SAFETY: Nothing can be done through a shared reference.
unsafe impl Sync for Thread {}

impl Thread {
    /// Starts a thread near a NUMA node (negative: anywhere).
    ///
    /// # Safety
    ///
    /// `body` may be called with `data`, from another thread, until the result is dropped; the
    /// thread that drops it makes `body` return.
    pub(crate) unsafe fn run(
        body: unsafe extern "C" fn(*mut c_void) -> c_int,
        data: *mut c_void,
        node: i32,
        name: &CStr,
    ) -> Result<Self> {
        // SAFETY: `body` and `data` are as `thread_run` asks for, by this function's own clause.
        unsafe { shim::thread_run(body, data, node, name) }
            .map(Self)
            .ok_or(ENOMEM)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        // SAFETY: We hold the reference that `run` took; waits for a thread that has not ended yet.
        unsafe { shim::thread_stop(self.0) }
    }
}
