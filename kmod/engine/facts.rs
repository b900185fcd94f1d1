// SPDX-License-Identifier: GPL-2.0

//! [`Engine`]: the facts of what moves bytes without the caller: a group of channels that are
//! alike. Which there are, and which one works on a request, is in [`crate::engine::engines`].

use crate::engine::dma_device::DmaDevice;
use crate::engine::dmaengine::{Hardware, Info};
use crate::engine::leaving;
use crate::uapi::{self, ENGINE_DMA, ENGINE_KTHREAD};
use kernel::prelude::*;
use kernel::sync::atomic::{Atomic, Full, Relaxed};
use kernel::sync::{new_mutex, Arc, Mutex};

/// A group of channels that are alike and close to each other.
#[pin_data]
pub(crate) struct Engine {
    pub(crate) kind: u32,
    pub(crate) key: u64,
    pub(crate) node: i32,
    alignment: u32,
    pub(crate) driver: [u8; 24],
    device: [u8; 32],
    max_transfer: Atomic<u64>,
    fragments: Atomic<u64>,
    bytes: Atomic<u64>,
    /// Counts the processes that were given a channel.
    pub(crate) next: Atomic<u32>,
    /// Devices of the channels that were acquired.
    #[pin]
    devices: Mutex<KVec<Arc<DmaDevice>>>,
}

impl Engine {
    /// An engine without channels.
    pub(crate) fn new(kind: u32, info: &Info) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                kind,
                key: info.engine,
                node: info.node,
                alignment: u32::max(info.alignment, 1),
                driver: info.driver,
                device: info.device,
                max_transfer: Atomic::new(u64::max(info.max_transfer, 64)),
                fragments: Atomic::new(0),
                bytes: Atomic::new(0),
                next: Atomic::new(0),
                devices <- new_mutex!(KVec::new()),
            }),
            GFP_KERNEL,
        )
    }

    /// Whether the work is done by a kernel thread.
    pub(crate) fn is_thread(&self) -> bool {
        self.kind == ENGINE_KTHREAD
    }

    /// Whether a channel of dmaengine is one of this engine's. Its number alone does not say so:
    /// dmaengine gives the number of a device that went to the next one that comes, which may be
    /// another engine's.
    pub(crate) fn has(&self, info: &Info) -> bool {
        self.kind == ENGINE_DMA
            && self.key == info.engine
            && self.node == info.node
            && self.driver == info.driver
    }

    /// What addresses and lengths must be multiples of.
    pub(crate) fn alignment(&self) -> u64 {
        self.alignment.into()
    }

    /// Bytes per descriptor.
    pub(crate) fn max_transfer(&self) -> u64 {
        self.max_transfer.load(Relaxed)
    }

    /// The driver has no descriptors of `len` bytes: the next ones are shorter. Returns whether
    /// they can be.
    pub(crate) fn refused(&self, len: usize) -> bool {
        let shorter = u64::max(len as u64 / 2, 4096);
        if shorter < len as u64 {
            let _ = self.max_transfer.cmpxchg(len as u64, shorter, Full);
        }
        shorter < len as u64
    }

    /// A fragment was moved.
    pub(crate) fn moved(&self, bytes: u64) {
        self.fragments.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Name of the driver.
    pub(crate) fn driver_name(&self) -> &str {
        let len = self.driver.iter().position(|byte| *byte == 0);
        core::str::from_utf8(&self.driver[..len.unwrap_or(0)]).unwrap_or("?")
    }

    /// The device of a channel of this engine, which others may share.
    pub(crate) fn device_of(&self, hardware: &Hardware) -> Result<Arc<DmaDevice>> {
        let mut devices = self.devices.lock();
        if let Some(known) = devices.iter().find(|known| known.is(hardware)) {
            return Ok(known.clone());
        }
        let device = DmaDevice::new(hardware)?;
        devices.push(device.clone(), GFP_KERNEL)?;
        Ok(device)
    }

    /// Takes back what is mapped for devices that no channel uses any more.
    pub(crate) fn leave_devices(&self, which: impl Fn(&DmaDevice) -> bool) {
        loop {
            let device = {
                let mut devices = self.devices.lock();
                let index = devices.iter().position(|device| which(device));
                index.and_then(|index| devices.remove(index).ok())
            };
            // Without the lock, because that waits for those who use what is mapped.
            match device {
                Some(device) => device.leave(),
                None => return,
            }
        }
    }

    /// Takes back what is mapped for a device if it is losing its driver: its notifier may have
    /// come before the device was known.
    pub(crate) fn leave_device(&self, device: &Arc<DmaDevice>) {
        if leaving::has(device.device()) {
            self.leave_devices(|known| core::ptr::eq(known, &**device));
        }
    }

    /// Describes itself, without channels.
    pub(crate) fn info(&self, index: u32) -> uapi::EngineInfo {
        uapi::EngineInfo {
            index,
            kind: self.kind,
            node: self.node,
            alignment: self.alignment,
            max_transfer: self.max_transfer(),
            fragments: self.fragments.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            driver: self.driver,
            device: self.device,
            ..Default::default()
        }
    }
}
