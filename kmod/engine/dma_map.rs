// SPDX-License-Identifier: GPL-2.0

//! [`DmaMap`]: pinned memory as one device sees it.

use crate::engine::device::Device;
use crate::engine::dmaengine;
use crate::memory::pin::PinnedPages;
use kernel::prelude::*;
use kernel::sync::Arc;

/// Contiguous bytes of mapped memory.
#[derive(Clone, Copy)]
struct Segment {
    /// Where they start, counted in bytes from the start of the region.
    offset: u64,
    /// Where the device finds them.
    address: u64,
    len: usize,
}

/// Pinned memory as one device sees it.
///
/// # Invariants
///
/// The segments cover the memory in order without gaps, each is mapped, and the memory stays pinned
/// for as long as this exists: it is held by the mapping it belongs to and by those who hold that.
pub(crate) struct DmaMap {
    device: Arc<Device>,
    segments: KVVec<Segment>,
    write: bool,
}

// SAFETY: What is mapped may be used and unmapped from any thread.
unsafe impl Send for DmaMap {}
// SAFETY: As above.
unsafe impl Sync for DmaMap {}

impl DmaMap {
    /// Maps all of the memory.
    ///
    /// - `EIO`: the DMA API refuses.
    pub(crate) fn new(device: &Arc<Device>, pages: &PinnedPages) -> Result<Self> {
        device.enter();
        let mut this = Self {
            device: device.clone(),
            segments: KVVec::new(),
            write: pages.writable(),
        };
        let dev = device.as_ptr();
        // SAFETY: The device is referenced.
        let most = unsafe { dmaengine::max_mapping(dev) }.clamp(1, 1 << 30);
        this.segments
            .reserve(pages.runs().len(), GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
        for run in pages.runs() {
            let mut done = 0;
            while done < run.len {
                let len = usize::min(run.len - done, most);
                // Before the mapping exists, so that it cannot be lost.
                this.segments
                    .reserve(1, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
                let from = run.address.wrapping_add(done);
                // SAFETY: The run is pinned, contiguous memory of the direct map.
                let address = unsafe { dmaengine::map(dev, from, len, this.write) }?;
                // INVARIANT: Mapped just now.
                let _ = this.segments.push_within_capacity(Segment {
                    offset: run.offset + done as u64,
                    address,
                    len,
                });
                done += len;
            }
        }
        Ok(this)
    }

    /// Whether every segment starts and ends at multiples of `alignment`.
    pub(crate) fn aligned(&self, alignment: u64) -> bool {
        alignment <= 1
            || self
                .segments
                .iter()
                .all(|segment| (segment.address | segment.len as u64) & (alignment - 1) == 0)
    }

    /// The contiguous bytes at `offset`: where the device finds them, and how many follow. `hint`
    /// is where the caller was last and is updated.
    pub(crate) fn locate(&self, offset: u64, hint: &mut usize) -> Option<(u64, usize)> {
        let inside = |segment: &Segment| {
            (segment.offset..segment.offset + segment.len as u64).contains(&offset)
        };
        if !self.segments.get(*hint).is_some_and(inside) {
            *hint = self
                .segments
                .partition_point(|segment| segment.offset + segment.len as u64 <= offset);
        }
        let segment = self.segments.get(*hint).filter(|segment| inside(segment))?;
        let skip = offset - segment.offset;
        Some((segment.address + skip, segment.len - skip as usize))
    }

    /// Calls `each` for the pieces of a range.
    fn pieces(&self, offset: u64, length: u64, mut each: impl FnMut(u64, usize)) {
        let (mut done, mut hint) = (0, usize::MAX);
        // In a callback, without a lock: bounded by the pages of a fragment, at most
        // `MAX_FRAGMENT_PAGES`.
        while done < length {
            let Some((address, len)) = self.locate(offset + done, &mut hint) else {
                return;
            };
            let len = u64::min(len as u64, length - done);
            each(address, len as usize);
            done += len;
        }
    }

    /// Hands a range to the device.
    pub(crate) fn for_device(&self, offset: u64, length: u64) {
        self.pieces(offset, length, |address, len| {
            // SAFETY: Part of a live mapping.
            unsafe { dmaengine::sync_for_device(self.device.as_ptr(), address, len, self.write) }
        });
    }

    /// Takes a range back from the device, whose writes are then visible.
    pub(crate) fn for_cpu(&self, offset: u64, length: u64) {
        self.pieces(offset, length, |address, len| {
            // SAFETY: Part of a live mapping.
            unsafe { dmaengine::sync_for_cpu(self.device.as_ptr(), address, len, self.write) }
        });
    }
}

impl Drop for DmaMap {
    fn drop(&mut self) {
        for segment in &self.segments {
            // SAFETY: Mapped by `new`, unmapped once; every user of the mapping holds it.
            unsafe {
                dmaengine::unmap(
                    self.device.as_ptr(),
                    segment.address,
                    segment.len,
                    self.write,
                )
            };
        }
        self.device.exit();
    }
}
