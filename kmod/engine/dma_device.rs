// SPDX-License-Identifier: GPL-2.0

//! [`DmaDevice`]: a device that does transfers, with the memory that is mapped for it.

use crate::engine::device::Device;
use crate::engine::dma_map::DmaMap;
use crate::engine::dmaengine::Hardware;
use crate::memory::mapping::{Mapping, UnpinObserver};
use kernel::prelude::*;
use kernel::rbtree::RBTree;
use kernel::sync::{new_mutex, Arc, Mutex};

/// A device that does transfers, with the memory that is mapped for it.
#[pin_data]
pub(crate) struct DmaDevice {
    device: Arc<Device>,
    /// What is mapped, by the id of the [`Mapping`]; `None` once the device has left.
    #[pin]
    maps: Mutex<Option<RBTree<u64, Arc<DmaMap>>>>,
}

impl DmaDevice {
    /// The device of an acquired channel.
    pub(crate) fn new(hardware: &Hardware) -> Result<Arc<Self>> {
        let device = Arc::new(Device::of(hardware), GFP_KERNEL)?;
        Arc::pin_init(
            pin_init!(Self {
                device,
                maps <- new_mutex!(Some(RBTree::new())),
            }),
            GFP_KERNEL,
        )
    }

    /// Whether this is the device of `hardware`.
    pub(crate) fn is(&self, hardware: &Hardware) -> bool {
        self.device.as_ptr() == hardware.device()
    }

    /// The device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Memory as the device sees it; mapped by the first call, kept for as long as the memory is
    /// pinned.
    ///
    /// - `ENODEV`: the device has left.
    /// - `EIO`: the DMA API refuses.
    pub(crate) fn map(self: &Arc<Self>, mapping: &Mapping) -> Result<Arc<DmaMap>> {
        let known = |maps: &Option<RBTree<u64, Arc<DmaMap>>>| -> Result<Option<Arc<DmaMap>>> {
            let maps = maps.as_ref().ok_or(ENODEV)?;
            Ok(maps.get(&mapping.id()).cloned())
        };
        if let Some(map) = known(&self.maps.lock())? {
            return Ok(map);
        }
        // Without the lock: a large mapping takes a while.
        let map = Arc::new(
            DmaMap::new(&self.device, mapping.pages())?,
            GFP_KERNEL_ACCOUNT,
        )?;
        mapping.observe(self.clone())?;
        let node = kernel::rbtree::RBTreeNode::new(mapping.id(), map.clone(), GFP_KERNEL_ACCOUNT)?;
        let mut maps = self.maps.lock();
        let other = known(&maps)?;
        if let (None, Some(maps)) = (&other, &mut *maps) {
            maps.insert(node);
        }
        drop(maps);
        Ok(other.unwrap_or(map))
    }

    /// The device leaves: takes back every mapping, those too that others are about to let go.
    pub(crate) fn leave(&self) {
        let maps = self.maps.lock().take();
        drop(maps);
        self.device.wait_unmapped();
    }
}

impl UnpinObserver for DmaDevice {
    fn unpinning(&self, id: u64) {
        let gone = match &mut *self.maps.lock() {
            Some(maps) => maps.remove(&id),
            None => None,
        };
        drop(gone);
    }
}
