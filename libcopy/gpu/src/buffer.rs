// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory that packed bytes are put into on their way, and copies of contiguous bytes.

use crate::driver::{Driver, Handle};
use crate::error::{Error, Result};
use crate::gpu::{Context, Current};
use crate::memory::{Pointer, Space};

/// Memory of our own, pinned or on a GPU, which is freed when this is dropped.
#[derive(Debug)]
pub struct Buffer {
    address: u64,
    bytes: usize,
    space: Space,
    context: Handle,
}

// SAFETY: handles and addresses of the driver may be used by any thread.
unsafe impl Send for Buffer {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Host memory of so many bytes that the kernels of all contexts can read and write. `near` is memory of a GPU,
    /// in whose context it is allocated.
    ///
    /// # Errors
    ///
    /// Memory without a context, a driver that fails.
    pub fn pinned(driver: &Driver, near: &Pointer, bytes: usize) -> Result<Buffer> {
        /// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
        const MAPPED: u32 = 3;
        Buffer::new(near, bytes, Space::Pinned, || {
            let _current = Current::new(driver, near.context)?;
            let mut address = std::ptr::null_mut();
            // SAFETY: `address` is written to.
            let code = unsafe {
                (driver.functions.mem_host_alloc)(&raw mut address, bytes.max(1), MAPPED)
            };
            driver.check("cuMemHostAlloc", code)?;
            Ok(address as u64)
        })
    }

    /// Memory of so many bytes of the GPU, and in the context, that `near` is in.
    ///
    /// # Errors
    ///
    /// Memory without a context, a driver that fails.
    pub fn device(driver: &Driver, near: &Pointer, bytes: usize) -> Result<Buffer> {
        Buffer::new(near, bytes, Space::Device, || {
            let _current = Current::new(driver, near.context)?;
            let mut address = 0;
            // SAFETY: `address` is written to.
            let code = unsafe { (driver.functions.mem_alloc)(&raw mut address, bytes.max(1)) };
            driver.check("cuMemAlloc", code)?;
            Ok(address)
        })
    }

    fn new(
        near: &Pointer,
        bytes: usize,
        space: Space,
        allocate: impl FnOnce() -> Result<u64>,
    ) -> Result<Buffer> {
        if near.context.is_null() {
            return Err(Error::NoContext {
                address: near.address,
            });
        }
        Ok(Buffer {
            address: allocate()?,
            bytes,
            space,
            context: near.context,
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
        self.context == near.context
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(Ok(driver)) = Driver::loaded() else {
            return;
        };
        let Ok(_current) = Current::new(driver, self.context) else {
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

/// Copies contiguous bytes between memory of any two spaces, of which one at least is a GPU's. Returns when the bytes
/// are there.
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
    let [to, from] = [Pointer::of(driver, to)?, Pointer::of(driver, from)?];
    let device = if to.space == Space::Device { to } else { from };
    if device.context.is_null() {
        return Err(Error::NoContext {
            address: device.address,
        });
    }
    let _current = Current::new(driver, device.context)?;
    let context = Context::of(driver, device.context)?;
    let copied = context.copy(driver, to.address, from.address, bytes);
    // What was submitted before uses memory of the program's.
    copied.and(context.settle(driver))
}
