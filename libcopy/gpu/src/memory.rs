// SPDX-License-Identifier: MIT OR Apache-2.0

//! What memory an address belongs to.

use std::ffi::{c_int, c_uint, c_void};

use crate::driver::{Driver, Handle};
use crate::error::Result;

/// Who reaches memory, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// The processor only: a GPU's kernels cannot reach it.
    Host,
    /// Host memory that the driver has pinned and mapped for GPUs.
    Pinned,
    /// Memory that moves between processor and GPU.
    Managed,
    /// A GPU's memory, which the processor must not touch.
    Device,
}

impl Space {
    /// Whether kernels can read and write it.
    pub fn is_reached_by_kernels(self) -> bool {
        self != Space::Host
    }

    /// Whether the processor can read and write it.
    pub fn is_reached_by_processor(self) -> bool {
        self != Space::Device
    }
}

/// An address, and what the driver says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The address.
    pub address: u64,
    /// What it points to.
    pub space: Space,
    /// The number of the allocation, which no other of this process has or had; 0 for host memory.
    pub buffer: u64,
    /// The context that it was allocated in; null for host memory.
    pub(crate) context: Handle,
}

/// `CU_POINTER_ATTRIBUTE_CONTEXT`, `_MEMORY_TYPE`, `_IS_MANAGED`, `_BUFFER_ID`.
const ATTRIBUTES: [c_uint; 4] = [1, 2, 8, 7];

/// `CU_MEMORYTYPE_HOST`.
const HOST: c_uint = 1;

impl Pointer {
    /// Asks the driver what an address is, with one call (`cuPointerGetAttributes`, which reports
    /// no error for addresses that it does not know).
    ///
    /// # Errors
    ///
    /// A driver that fails, other than because no context was made yet.
    pub fn of(driver: &Driver, address: u64) -> Result<Pointer> {
        let (mut context, mut kind, mut is_managed): (Handle, c_uint, c_int) =
            (std::ptr::null_mut(), 0, 0);
        let mut buffer = 0_u64;
        let mut values: [*mut c_void; 4] = [
            (&raw mut context).cast(),
            (&raw mut kind).cast(),
            (&raw mut is_managed).cast(),
            (&raw mut buffer).cast(),
        ];
        // SAFETY: as many attributes as places, each of the size that the driver writes.
        let code = unsafe {
            (driver.functions.pointer_get_attributes)(
                ATTRIBUTES.len() as c_uint,
                ATTRIBUTES.as_ptr(),
                values.as_mut_ptr(),
                address,
            )
        };
        /// `CUDA_ERROR_NOT_INITIALIZED`, `_DEINITIALIZED`: nobody has allocated anything, or the
        /// program ends.
        const NOTHING_THERE: [c_int; 2] = [3, 4];
        if NOTHING_THERE.contains(&code) {
            kind = 0;
        } else {
            driver.check("cuPointerGetAttributes", code)?;
        }
        let space = match kind {
            0 => Space::Host,
            _ if is_managed != 0 => Space::Managed,
            HOST => Space::Pinned,
            _ => Space::Device,
        };
        if space == Space::Host {
            buffer = 0;
        }
        Ok(Pointer {
            address,
            space,
            buffer,
            context,
        })
    }
}
