// SPDX-License-Identifier: MIT OR Apache-2.0

//! The kernel module: one ioctl publishes a buffer, one per peer copies it.

use super::{Transport, TransportKind, TransportReport, Window};
use crate::device::{Device, Domain, RegionId};
use crate::error::{Error, Result};
use crate::uapi;

/// A member of the team's domain.
#[derive(Debug)]
pub(crate) struct Kmod {
    domain: Domain,
    /// The region that is open now. It is replaced by the next one rather than destroyed, which
    /// saves a system call per operation and leaves its pages pinned if they are used again.
    current: Option<RegionId>,
}

impl Kmod {
    pub(crate) fn new(domain: Domain) -> Self {
        Kmod {
            domain,
            current: None,
        }
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
        let piece = uapi::Piece {
            base: base as u64,
            len: len as u64,
        };
        let rights = if writable {
            uapi::RIGHT_WRITE
        } else {
            uapi::RIGHT_READ
        };
        // SAFETY: one piece is passed; what happens to the memory is the caller's promise.
        let created = unsafe {
            self.domain
                .create_region(&raw const piece, 1, rights, 0, 0, self.current)
        }?;
        let id = RegionId::new(created.id)?;
        self.current = Some(id);
        Ok([u64::from(id.get()), 0])
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
