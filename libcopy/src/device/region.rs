// SPDX-License-Identifier: MIT OR Apache-2.0

//! [`Region`]: memory that a member of a domain has published.

use std::io::IoSlice;
use std::marker::PhantomData;
use std::os::fd::AsFd;

use super::domain::Domain;
use super::ioctl::ioctl;
use super::region_id::{RegionId, Rights};
use crate::error::{Error, Result};
use crate::process::Home;
use crate::uapi;

impl Domain {
    /// Publishes memory for reading.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`]: `RLIMIT_MEMLOCK` would be exceeded or the kernel is out of memory
    /// (`ENOMEM`), the memory cannot be pinned (`EOPNOTSUPP`), the rights do not fit its protection
    /// (`EACCES`), or the domain has too many regions (`ENOSPC`).
    pub fn share<'a>(&'a self, bytes: &'a [u8]) -> Result<Region<'a>> {
        self.share_slices(&[IoSlice::new(bytes)])
    }

    /// Publishes several slices as one region for reading.
    ///
    /// # Errors
    ///
    /// As for [`Domain::share`], and [`Error::Argument`] if there are too many slices.
    pub fn share_slices<'a>(&'a self, slices: &[IoSlice<'a>]) -> Result<Region<'a>> {
        // SAFETY: `IoSlice` has the layout of `struct iovec`, which is that of `Piece`; the slices
        // stay borrowed as long as the region lives, and peers get no right to write.
        unsafe {
            let pieces = slices.as_ptr().cast();
            self.region(pieces, slices.len(), Rights::Read, 0)
        }
    }

    /// Publishes memory with the given rights, so that peers may change it. No borrow ends when
    /// they are done: a copy or a request that has begun goes on when the region is taken back, a
    /// peer that has attached the memory writes to it for as long as it likes, and a region that is
    /// forgotten (`std::mem::forget`) is never taken back. Programs that want none of this use a
    /// [`Team`](crate::Team).
    ///
    /// ```compile_fail,E0133
    /// # use libcopy::device::{Domain, Rights};
    /// # fn main() -> libcopy::Result<()> {
    /// let domain = Domain::create()?;
    /// let mut bytes = vec![0; 4096];
    /// std::mem::forget(domain.share_mut(&mut bytes, Rights::Write)?);
    /// drop(bytes); // and peers write to what is there next
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Domain::share`].
    ///
    /// # Safety
    ///
    /// From this call until the region was dropped and every copy, request and attachment of a
    /// peer's is over, nobody reads or writes the memory but as agreed with the peers, and it is
    /// freed by nobody.
    pub unsafe fn share_mut<'a>(
        &'a self,
        bytes: &'a mut [u8],
        rights: Rights,
    ) -> Result<Region<'a>> {
        let piece = uapi::Piece {
            base: bytes.as_mut_ptr() as u64,
            len: bytes.len() as u64,
        };
        // SAFETY: one piece is passed, for which the caller keeps the promises.
        unsafe { self.region(&raw const piece, 1, rights, 0) }
    }

    /// Publishes memory for reading without borrowing it: for memory that others change as they
    /// like, whose peers have to know when it may be read.
    ///
    /// # Errors
    ///
    /// As for [`Domain::share`], and [`Error::Ioctl`] with `EFAULT` if the memory is not mapped.
    ///
    /// # Safety
    ///
    /// None of the program's for the owner: peers only read, and memory that is not the owner's is
    /// refused. Peers that copy while the owner writes get any mixture of old and new bytes.
    pub unsafe fn share_raw(&self, base: *const u8, len: usize) -> Result<Region<'_>> {
        let piece = uapi::Piece {
            base: base as u64,
            len: len as u64,
        };
        // SAFETY: one piece is passed, and peers get no right to write.
        unsafe { self.region(&raw const piece, 1, Rights::Read, 0) }
    }

    /// # Safety
    ///
    /// As for [`Domain::create_region`], for as long as the result lives.
    pub(super) unsafe fn region<'a>(
        &'a self,
        pieces: *const uapi::Piece,
        count: usize,
        rights: Rights,
        flags: u32,
    ) -> Result<Region<'a>> {
        // SAFETY: the caller keeps the promises of `create_region`.
        let arg = unsafe { self.create_region(pieces, count, rights.bits(), flags, None) }?;
        Ok(Region {
            domain: self,
            arg,
            live: true,
            home: Home::here(),
            memory: PhantomData,
        })
    }

    /// Publishes memory without a borrow; the caller destroys or replaces the region.
    ///
    /// # Safety
    ///
    /// `pieces` points to `count` pieces. Until the region is gone, nothing may rely on the
    /// memory's content if `rights` let peers write to it.
    pub(crate) unsafe fn create_region(
        &self,
        pieces: *const uapi::Piece,
        count: usize,
        rights: u32,
        flags: u32,
        replaces: Option<RegionId>,
    ) -> Result<uapi::RegionCreate> {
        let iov_count = piece_count(count)?;
        let mut arg = uapi::RegionCreate {
            iov: pieces as u64,
            iov_count,
            rights,
            flags,
            replaces: replaces.map_or(0, RegionId::get),
            ..Default::default()
        };
        // SAFETY: the kernel reads `iov_count` pieces, which the caller vouches for.
        unsafe { ioctl(self.as_fd(), "REGION_CREATE", uapi::REGION_CREATE, &mut arg) }?;
        Ok(arg)
    }

    pub(crate) fn destroy_region(&self, id: RegionId, flags: u32) -> Result<()> {
        let mut arg = uapi::RegionDestroy {
            id: id.get(),
            flags,
        };
        // SAFETY: REGION_DESTROY only reads the structure.
        unsafe {
            ioctl(
                self.as_fd(),
                "REGION_DESTROY",
                uapi::REGION_DESTROY,
                &mut arg,
            )
        }
    }

    /// The state of a region of any member.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`] with `ENOENT` if there is no such region.
    pub fn region_info(&self, id: RegionId) -> Result<uapi::RegionInfo> {
        let mut arg = uapi::RegionInfo {
            id: id.get(),
            ..Default::default()
        };
        // SAFETY: REGION_INFO only writes the structure.
        unsafe { ioctl(self.as_fd(), "REGION_INFO", uapi::REGION_INFO, &mut arg) }?;
        Ok(arg)
    }

    /// Whether a region of this process is still what is behind its addresses.
    pub fn is_unchanged(&self, id: RegionId) -> bool {
        self.region_info(id).is_ok_and(|info| info.state == 0)
    }
}

/// Published memory. Dropping it takes the memory back; its pages stay pinned for a while in case
/// the same memory is published again.
#[derive(Debug)]
pub struct Region<'a> {
    domain: &'a Domain,
    arg: uapi::RegionCreate,
    live: bool,
    home: Home,
    memory: PhantomData<&'a mut [u8]>,
}

impl Region<'_> {
    /// What to tell peers.
    pub fn id(&self) -> RegionId {
        RegionId::from_kernel(self.arg.id)
    }

    /// Bytes of all pieces together.
    pub fn len(&self) -> u64 {
        self.arg.length
    }

    /// Whether it has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.arg.length == 0
    }

    /// Pages that are pinned for it.
    pub fn pages(&self) -> u64 {
        self.arg.pages
    }

    /// Whether its pages were still pinned from an earlier region.
    pub fn was_reused(&self) -> bool {
        self.arg.result & uapi::RESULT_REUSED != 0
    }

    /// Its state as the kernel sees it.
    ///
    /// # Errors
    ///
    /// As for [`Domain::region_info`].
    pub fn info(&self) -> Result<uapi::RegionInfo> {
        self.domain.region_info(self.id())
    }

    /// Whether its pages are still behind the addresses that it was made of.
    pub fn is_unchanged(&self) -> bool {
        self.domain.is_unchanged(self.id())
    }

    /// Takes the memory back and unpins it at once.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`] with `ENOENT` if the region is gone already.
    pub fn unpin(mut self) -> Result<()> {
        self.live = false;
        self.domain.destroy_region(self.id(), uapi::DESTROY_UNPIN)
    }
}

impl Drop for Region<'_> {
    fn drop(&mut self) {
        // A forked child does not take back what its parent has published.
        if self.live && self.home.is_here() {
            // ENOENT is the only way this fails: then it is gone already.
            let _ = self.domain.destroy_region(self.id(), 0);
        }
    }
}

/// The number of pieces, as the kernel takes it.
pub(super) fn piece_count(count: usize) -> Result<u32> {
    match u32::try_from(count) {
        Ok(n) if n <= uapi::MAX_IOV => Ok(n),
        _ => Err(Error::argument("number of pieces", count, ..=uapi::MAX_IOV)),
    }
}
