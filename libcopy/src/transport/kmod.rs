// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel module: one ioctl publishes a buffer, one per peer copies it.

use super::{Transport, TransportKind, TransportReport, Window};
use crate::device::{Device, Domain, RegionId};
use crate::error::{Error, Result};
use crate::uapi;

/// Regions that stay open for the next operation on the same memory.
const KEPT: usize = 4;

/// Bytes that may stay pinned in kept regions, beside the newest one.
const KEPT_BYTES: usize = 64 << 20;

/// Opened memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Opened {
    base: usize,
    len: usize,
    writable: bool,
}

/// A member of the team's domain.
///
/// A region stays open after its operation: the next one on the same memory needs no system call
/// at all, because the kernel looks at every copy whether the pages are still the owner's. If they
/// are not, the copy fails, the operation takes another way, and [`Transport::doubt`] is called.
#[derive(Debug)]
pub(crate) struct Kmod {
    domain: Domain,
    /// Open regions, least recently used first.
    kept: Vec<(Opened, RegionId)>,
    /// Windows to open anew, whatever is kept.
    doubtful: u32,
    /// What `doubtful` will be after the next failure: programs that unmap a buffer after each
    /// operation should not pay with a failed copy each time.
    penalty: u32,
}

impl Kmod {
    pub(crate) fn new(domain: Domain) -> Self {
        Kmod {
            domain,
            kept: Vec::with_capacity(KEPT),
            doubtful: 0,
            penalty: 8,
        }
    }

    /// The domain that all ranks share.
    pub(crate) fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Closes all windows.
    pub(crate) fn close(&mut self) {
        for (_, id) in self.kept.drain(..) {
            // Gone already at worst.
            let _ = self.domain.destroy_region(id, 0);
        }
    }

    /// The region to replace by one over `wanted`: one over the same memory, or the oldest if
    /// there are enough. Others that are too many are closed.
    fn make_room(&mut self, wanted: Opened) -> Option<RegionId> {
        if let Some(index) = self.kept.iter().position(|(opened, _)| *opened == wanted) {
            return Some(self.kept.remove(index).1);
        }
        let mut replaced = None;
        let bytes = |kept: &[(Opened, RegionId)]| kept.iter().map(|(o, _)| o.len).sum::<usize>();
        while self.kept.len() == KEPT
            || !self.kept.is_empty() && bytes(&self.kept).saturating_add(wanted.len) > KEPT_BYTES
        {
            let oldest = self.kept.remove(0).1;
            if let Some(other) = replaced.replace(oldest) {
                // Gone already at worst.
                let _ = self.domain.destroy_region(other, 0);
            }
        }
        replaced
    }
}

fn region(window: Window) -> Result<RegionId> {
    u32::try_from(window[0])
        .map_err(|_| Error::Corrupt {
            what: "a region id",
            value: window[0],
        })
        .and_then(RegionId::new)
}

impl Transport for Kmod {
    unsafe fn open_window(&mut self, base: *mut u8, len: usize, writable: bool) -> Result<Window> {
        let wanted = Opened {
            base: base as usize,
            len,
            writable,
        };
        if self.doubtful > 0 {
            self.doubtful -= 1;
        } else if let Some(index) = self.kept.iter().position(|(opened, _)| *opened == wanted) {
            self.kept[index..].rotate_left(1);
            let (_, id) = self.kept[self.kept.len() - 1];
            return Ok([u64::from(id.get()), 0]);
        }
        let piece = uapi::Piece {
            base: base as u64,
            len: len as u64,
        };
        let rights = if writable {
            uapi::RIGHT_WRITE
        } else {
            uapi::RIGHT_READ
        };
        let replaced = self.make_room(wanted);
        // SAFETY: one piece is passed; what happens to the memory is the caller's promise.
        let created = unsafe {
            self.domain
                .create_region(&raw const piece, 1, rights, 0, 0, replaced)
        }?;
        let id = RegionId::new(created.id)?;
        self.kept.push((wanted, id));
        Ok([u64::from(id.get()), 0])
    }

    fn doubt(&mut self) {
        self.doubtful = self.penalty;
        self.penalty = self.penalty.saturating_mul(2);
    }

    unsafe fn pull(
        &self,
        _owner: usize,
        window: Window,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<()> {
        let (id, direction) = (region(window)?, uapi::COPY_FROM_REGION);
        // SAFETY: the caller's promise.
        unsafe {
            self.domain
                .copy_bytes(id, direction, offset, to, len, false)
        }
    }

    unsafe fn push(
        &self,
        _owner: usize,
        window: Window,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<()> {
        let (id, direction) = (region(window)?, uapi::COPY_TO_REGION);
        // SAFETY: the caller's promise; the kernel only reads in this direction.
        unsafe {
            self.domain
                .copy_bytes(id, direction, offset, from.cast_mut(), len, false)
        }
    }
}

/// Whether the module can be used on this machine.
pub(crate) fn probe() -> TransportReport {
    let (usable, why) = match Device::open().and_then(|device| device.info()) {
        Ok(info) => (
            true,
            format!("{}, ABI {}", uapi::DEVICE_PATH, info.abi_version),
        ),
        Err(error) => (false, error.to_string()),
    };
    TransportReport {
        kind: TransportKind::Kmod,
        usable,
        why,
    }
}
