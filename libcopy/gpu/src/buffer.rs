// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory that packed bytes are put into on their way, and copies of contiguous bytes.

use std::sync::Arc;

use crate::context::{Context, MAPPED};
use crate::driver::Driver;
use crate::error::Result;
use crate::memory::{Pointer, Space};
use crate::pending::{Pending, Work};

/// Memory of our own, pinned or on a GPU, which is freed when this is dropped.
#[derive(Debug)]
pub struct Buffer {
    address: u64,
    bytes: usize,
    space: Space,
    context: Arc<Context>,
}

impl Buffer {
    /// Host memory of `bytes` bytes that the kernels of all contexts can read and write. `near` is
    /// memory of a GPU, in whose context it is allocated.
    ///
    /// # Errors
    ///
    /// Memory without a context, a driver that fails.
    pub fn pinned(driver: &Driver, near: &Pointer, bytes: usize) -> Result<Buffer> {
        Buffer::new(driver, near, bytes, Space::Pinned, || {
            let mut address = std::ptr::null_mut();
            // SAFETY: `address` is written to.
            let code = unsafe {
                (driver.functions.mem_host_alloc)(&raw mut address, bytes.max(1), MAPPED)
            };
            driver.check("cuMemHostAlloc", code)?;
            Ok(address as u64)
        })
    }

    /// `bytes` bytes of memory of the GPU, and in the context, that `near` is in.
    ///
    /// # Errors
    ///
    /// Memory without a context, a driver that fails.
    pub fn device(driver: &Driver, near: &Pointer, bytes: usize) -> Result<Buffer> {
        Buffer::new(driver, near, bytes, Space::Device, || {
            let mut address = 0;
            // SAFETY: `address` is written to.
            let code = unsafe { (driver.functions.mem_alloc)(&raw mut address, bytes.max(1)) };
            driver.check("cuMemAlloc", code)?;
            Ok(address)
        })
    }

    /// Calls `allocate` in the context that `near` is in.
    fn new(
        driver: &Driver,
        near: &Pointer,
        bytes: usize,
        space: Space,
        allocate: impl FnOnce() -> Result<u64>,
    ) -> Result<Buffer> {
        let (_current, context) = Context::at(driver, near)?;
        Ok(Buffer {
            address: allocate()?,
            bytes,
            space,
            context,
        })
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// [`Space::Pinned`] or [`Space::Device`].
    pub fn space(&self) -> Space {
        self.space
    }

    /// Whether it was allocated in the context that `near` is in.
    pub fn is_near(&self, near: &Pointer) -> bool {
        self.context.handle() == near.context
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(Ok(driver)) = Driver::loaded() else {
            return;
        };
        // The memory of a context that was destroyed went with it.
        let Ok(_current) = self.context.enter(driver) else {
            return;
        };
        // SAFETY: allocated by `new`, and used by nobody any more.
        unsafe {
            match self.space {
                Space::Pinned => (driver.functions.mem_free_host)(self.address as *mut _),
                _ => (driver.functions.mem_free)(self.address),
            }
        };
    }
}

/// [`copy`] without waiting, where the driver need not. Several may be under way.
///
/// # Errors
///
/// Those of [`copy`].
///
/// # Safety
///
/// As for [`copy`], until the result is done.
pub unsafe fn start_copy(
    driver: &'static Driver,
    to: u64,
    from: u64,
    bytes: usize,
) -> Result<Pending> {
    let mut pending = Pending::new(driver, None);
    // SAFETY: the caller's promise.
    unsafe { copy_after(&mut pending, to, from, bytes)? };
    Ok(pending)
}

/// [`start_copy`] of bytes that are there when what is `pending` is done, which then includes this.
///
/// # Errors
///
/// Those of [`copy`]; what was pending stays so.
///
/// # Safety
///
/// As for [`start_copy`].
pub unsafe fn copy_after(pending: &mut Pending, to: u64, from: u64, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let (driver, work) = pending.work();
    let (_current, context) = Context::at(driver, &device_of(driver, to, from)?)?;
    let stream = || context.next_stream();
    Work::submit(driver, &context, work, stream, Vec::new(), |stream| {
        context.copy(driver, to, from, bytes, stream).map(|()| None)
    })
}

/// The side that is a GPU's.
fn device_of(driver: &Driver, to: u64, from: u64) -> Result<Pointer> {
    let [to, from] = [Pointer::of(driver, to)?, Pointer::of(driver, from)?];
    Ok(if to.space == Space::Device { to } else { from })
}

/// Copies contiguous bytes between memory of any two spaces, of which one at least is a GPU's.
/// Returns when the bytes are there.
///
/// # Errors
///
/// Memory without a context, a driver that fails.
///
/// # Safety
///
/// The bytes are valid for reads and writes; they do not overlap.
pub unsafe fn copy(driver: &Driver, to: u64, from: u64, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let (_current, context) = Context::at(driver, &device_of(driver, to, from)?)?;
    let stream = context.stream();
    let copied = context.copy(driver, to, from, bytes, stream);
    // What was submitted before uses memory of the program's.
    copied.and(context.settle(driver, stream))
}
