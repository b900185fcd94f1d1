// SPDX-License-Identifier: MIT OR Apache-2.0

//! Indirect memory keys of mlx5 devices (user-mode memory registration, mlx5dv_create_mkey(3)).

use std::sync::{Arc, Mutex};

use super::device::{Device, INLINE_DATA, inline_entries};
use super::library::{Mlx5, failed};
use super::sys::{Mlx5Mkey, Mlx5MkeyInitAttr, constant};
use crate::error::{Error, Result};

/// An indirect memory key.
pub struct Mkey {
    /// Outlives the key.
    _device: Arc<Device>,
    mlx5: &'static Mlx5,
    key: *mut Mlx5Mkey,
    /// Bytes it is mapped to; 0 if it is not mapped.
    bytes: Mutex<u64>,
}

// SAFETY: the key is changed only by requests, which have a lock of their own.
unsafe impl Send for Mkey {}
// SAFETY: as above.
unsafe impl Sync for Mkey {}

impl std::fmt::Debug for Mkey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Mkey").field(&self.rkey()).finish()
    }
}

impl Mkey {
    /// Creates one. This takes a call of the kernel, and of the card's firmware.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] if the device has none, [`Error::Verbs`] if it has no more.
    pub fn new(device: &Arc<Device>) -> Result<Mkey> {
        let mlx5 = device
            .mlx5()
            .ok_or_else(|| Error::NoDevice(format!("{} has no memory keys", device.name())))?;
        let mut init = Mlx5MkeyInitAttr {
            pd: device.pd(),
            create_flags: constant::MLX5_MKEY_INIT_ATTR_FLAGS_INDIRECT,
            max_entries: inline_entries(INLINE_DATA) as u16,
        };
        // SAFETY: the domain exists.
        let key = unsafe { (mlx5.create_mkey)(&raw mut init) };
        if key.is_null() {
            return Err(failed("mlx5dv_create_mkey"));
        }
        Ok(Mkey {
            _device: device.clone(),
            mlx5,
            key,
            bytes: Mutex::new(0),
        })
    }

    /// Names it in work requests of this process.
    pub fn lkey(&self) -> u32 {
        // SAFETY: the key exists.
        unsafe { (*self.key).lkey }
    }

    /// Names it in work requests of peers.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the key exists.
        unsafe { (*self.key).rkey }
    }

    pub(super) fn as_ptr(&self) -> *mut Mlx5Mkey {
        self.key
    }

    /// Notes to how many bytes it is mapped from now on; gives back to how many it was.
    pub(super) fn set_bytes(&self, bytes: u64) -> u64 {
        let mut its = self.bytes.lock().unwrap_or_else(|e| e.into_inner());
        std::mem::replace(&mut its, bytes)
    }

    /// Bytes that it is mapped to.
    pub fn bytes(&self) -> u64 {
        *self.bytes.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Drop for Mkey {
    fn drop(&mut self) {
        // SAFETY: made by mlx5dv_create_mkey; the device still exists.
        unsafe { (self.mlx5.destroy_mkey)(self.key) };
    }
}
