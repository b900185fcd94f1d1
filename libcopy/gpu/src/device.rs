// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPUs, for tools: which there are, what they are called, their contexts.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write as _;

use crate::driver::{Driver, Handle};
use crate::error::Result;
use crate::memory::{Pointer, Space};

/// The number that a GPU has all over the world, as `nvidia-smi -L` prints it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl std::fmt::Display for Uuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GPU-")?;
        for (i, byte) in self.0.iter().enumerate() {
            if [4, 6, 8, 10].contains(&i) {
                f.write_char('-')?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its number in this process (`CUDA_VISIBLE_DEVICES` decides).
    pub ordinal: i32,
    /// Its name.
    pub name: String,
    /// Its number everywhere.
    pub uuid: Uuid,
    /// Major and minor compute capability.
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
}

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`, `_COMPUTE_CAPABILITY_MAJOR`,
/// `_COMPUTE_CAPABILITY_MINOR`.
const MULTIPROCESSORS: c_int = 16;
const MAJOR: c_int = 75;
const MINOR: c_int = 76;

impl Device {
    /// All GPUs that this process sees.
    ///
    /// # Errors
    ///
    /// A driver that fails.
    pub fn all(driver: &Driver) -> Result<Vec<Device>> {
        let mut count = 0;
        // SAFETY: `count` is written to.
        driver.check("cuDeviceGetCount", unsafe {
            (driver.functions.device_get_count)(&raw mut count)
        })?;
        (0..count)
            .map(|ordinal| Device::new(driver, ordinal))
            .collect()
    }

    /// The GPU of the current context.
    pub(crate) fn current(driver: &Driver) -> Result<Device> {
        let mut device = 0;
        // SAFETY: `device` is written to.
        driver.check("cuCtxGetDevice", unsafe {
            (driver.functions.ctx_get_device)(&raw mut device)
        })?;
        Device::described(driver, device, device)
    }

    fn new(driver: &Driver, ordinal: c_int) -> Result<Device> {
        let mut device = 0;
        // SAFETY: `device` is written to.
        driver.check("cuDeviceGet", unsafe {
            (driver.functions.device_get)(&raw mut device, ordinal)
        })?;
        Device::described(driver, device, ordinal)
    }

    fn described(driver: &Driver, device: c_int, ordinal: c_int) -> Result<Device> {
        let calls = &driver.functions;
        let mut name: [c_char; 256] = [0; 256];
        let mut uuid = [0; 16];
        // SAFETY: as many bytes as are said; the name ends with a zero byte.
        unsafe {
            let code = (calls.device_get_name)(name.as_mut_ptr(), name.len() as c_int - 1, device);
            driver.check("cuDeviceGetName", code)?;
            driver.check(
                "cuDeviceGetUuid",
                (calls.device_get_uuid)(&raw mut uuid, device),
            )?;
        }
        let attribute = |which: c_int| {
            let mut value = 0;
            // SAFETY: `value` is written to.
            let code = unsafe { (calls.device_get_attribute)(&raw mut value, which, device) };
            driver.check("cuDeviceGetAttribute", code).map(|()| value)
        };
        Ok(Device {
            ordinal,
            // SAFETY: the array ends with a zero byte.
            name: unsafe { CStr::from_ptr(name.as_ptr()) }
                .to_string_lossy()
                .into_owned(),
            uuid: Uuid(uuid),
            capability: (attribute(MAJOR)?, attribute(MINOR)?),
            multiprocessors: attribute(MULTIPROCESSORS)?.max(1) as u32,
        })
    }

    /// Whether this is no GPU but the stand-in for tests (`tests/fakecuda`), whose times say
    /// nothing about GPUs.
    pub fn is_stand_in(&self) -> bool {
        self.name.contains("stand-in")
    }

    /// Retains the device's primary context, the one that programs of the CUDA runtime use.
    ///
    /// # Errors
    ///
    /// A driver that fails.
    pub fn primary_context(&self, driver: &'static Driver) -> Result<PrimaryContext> {
        let mut context = std::ptr::null_mut();
        // SAFETY: `context` is written to.
        driver.check("cuDevicePrimaryCtxRetain", unsafe {
            (driver.functions.device_primary_ctx_retain)(&raw mut context, self.ordinal)
        })?;
        Ok(PrimaryContext {
            driver,
            context,
            device: self.ordinal,
        })
    }
}

/// A primary context, as long as this lives.
#[derive(Debug)]
pub struct PrimaryContext {
    driver: &'static Driver,
    context: Handle,
    device: c_int,
}

// SAFETY: handles of the driver may be used by any thread.
unsafe impl Send for PrimaryContext {}
// SAFETY: as above.
unsafe impl Sync for PrimaryContext {}

impl PrimaryContext {
    /// Stands for memory of this context, to allocate a [`Buffer`](crate::Buffer) near it.
    pub fn near(&self) -> Pointer {
        Pointer {
            address: 0,
            space: Space::Device,
            buffer: 0,
            context: self.context,
        }
    }

    /// The driver.
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // SAFETY: retained by this value.
        unsafe { (self.driver.functions.device_primary_ctx_release)(self.device) };
    }
}
