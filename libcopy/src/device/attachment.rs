// SPDX-License-Identifier: MIT OR Apache-2.0

//! [`Attachment`]: a peer's region, mapped for load and store.

use std::os::fd::AsFd;

use nix::sys::mman::ProtFlags;

use super::domain::Domain;
use super::ioctl::ioctl;
use super::region_id::{RegionId, Rights};
use crate::error::{Error, Result, Value};
use crate::mapping::SharedMapping;
use crate::memcpy;
use crate::uapi;

impl Domain {
    /// Maps a region's pages for load and store.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`]: there is no such region (`ENOENT`), its rights do not allow it (`EACCES`),
    /// its pieces do not meet at page boundaries (`EOPNOTSUPP`), or its owner has unmapped the
    /// memory (`ESTALE`) or is gone (`EOWNERDEAD`). [`Error::System`] if the mapping fails.
    pub fn attach(&self, region: RegionId, rights: Rights) -> Result<Attachment> {
        let mut arg = uapi::RegionAttach {
            id: region.get(),
            access: rights.bits(),
            ..Default::default()
        };
        // SAFETY: REGION_ATTACH only touches the structure.
        unsafe { ioctl(self.as_fd(), "REGION_ATTACH", uapi::REGION_ATTACH, &mut arg) }?;
        let size = self.region_info(region)?.length;
        let too_large = |value| Error::corrupt("length of an attachment", value);
        let map_length = usize::try_from(arg.map_length).map_err(|_| too_large(arg.map_length))?;
        if arg
            .data_offset
            .checked_add(size)
            .is_none_or(|end| end > arg.map_length)
        {
            return Err(too_large(size));
        }
        let protection = match rights {
            Rights::Read => ProtFlags::PROT_READ,
            Rights::Write => ProtFlags::PROT_WRITE,
            Rights::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        let mapping = SharedMapping::new(self.as_fd(), arg.map_offset, map_length, protection);
        Ok(Attachment {
            mapping: mapping.map_err(|source| Error::system("mmap of a region", source))?,
            // Both fit: they are at most the mapping's.
            data: arg.data_offset as usize,
            size: size as usize,
            rights,
        })
    }
}

/// A peer's region in our address space; dropping it unmaps it.
///
/// The owner may change the bytes at any time, so there is no slice of them: they are copied in
/// and out, or accessed through raw pointers. They stay valid when the owner is gone.
#[derive(Debug)]
pub struct Attachment {
    mapping: SharedMapping,
    data: usize,
    size: usize,
    rights: Rights,
}

impl Attachment {
    /// Bytes of the region.
    pub fn len(&self) -> usize {
        self.size
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// First byte of the region. Peers may change what is behind it at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        // SAFETY: `data` is within the mapping, checked when it was made.
        unsafe { self.mapping.base().add(self.data) }
    }

    /// Copies bytes out of the region.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the range leaves the region, or if it was attached for writing alone.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.permit(Rights::Write, "read", "write, as attached")?;
        self.check(offset, bytes.len())?;
        // SAFETY: the range was checked, and `bytes` cannot overlap a mapping that only raw
        // pointers lead to.
        unsafe {
            let from = self.as_ptr().add(offset);
            memcpy::cached(bytes.as_mut_ptr(), from, bytes.len());
        }
        Ok(())
    }

    /// Copies bytes into the region.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if the range leaves the region, or if it was attached for reading alone.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.permit(Rights::Read, "write", "read, as attached")?;
        self.check(offset, bytes.len())?;
        // SAFETY: as in `read`, and the mapping is writable.
        unsafe {
            let to = self.as_ptr().add(offset);
            memcpy::cached(to, bytes.as_ptr(), bytes.len());
        }
        Ok(())
    }

    /// Refuses `access` if the attachment is for `other` alone.
    fn permit(&self, other: Rights, access: &'static str, allowed: &'static str) -> Result<()> {
        if self.rights == other {
            return Err(Error::argument("access to an attachment", access, allowed));
        }
        Ok(())
    }

    fn check(&self, offset: usize, len: usize) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(Error::argument(
                "range of an attachment",
                Value::span(offset, len),
                0..self.size,
            )),
        }
    }
}
