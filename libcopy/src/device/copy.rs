// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies between our memory and regions, and from region to region.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;

use super::domain::Domain;
use super::ioctl::ioctl;
use super::region::piece_count;
use super::region_id::RegionId;
use crate::error::{Error, Result};
use crate::uapi;

impl Domain {
    /// Fills `bytes` from a region, starting at byte `offset` of it. `count_use` counts one
    /// expected use down when everything has arrived.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`]: there is no such region (`ENOENT`), its rights do not allow it (`EACCES`), the range
    /// leaves it (`ERANGE`), its owner has unmapped the memory (`ESTALE`) or is gone (`EOWNERDEAD`), or our own
    /// memory cannot be accessed (`EFAULT`).
    pub fn copy_from(
        &self,
        region: RegionId,
        offset: u64,
        bytes: &mut [u8],
        count_use: bool,
    ) -> Result<()> {
        // SAFETY: `bytes` is writable for its length.
        unsafe {
            self.copy_bytes(
                region,
                uapi::COPY_FROM_REGION,
                offset,
                bytes.as_mut_ptr(),
                bytes.len(),
                count_use,
            )
        }
    }

    /// Writes `bytes` into a region, starting at byte `offset` of it.
    ///
    /// # Errors
    ///
    /// As for [`Domain::copy_from`].
    pub fn copy_to(
        &self,
        region: RegionId,
        offset: u64,
        bytes: &[u8],
        count_use: bool,
    ) -> Result<()> {
        // SAFETY: the kernel only reads `bytes` in this direction.
        unsafe {
            self.copy_bytes(
                region,
                uapi::COPY_TO_REGION,
                offset,
                bytes.as_ptr().cast_mut(),
                bytes.len(),
                count_use,
            )
        }
    }

    /// Fills several slices, one after the other, from a region.
    ///
    /// # Errors
    ///
    /// As for [`Domain::copy_from`], and [`Error::Argument`] if there are too many slices.
    pub fn copy_from_vectored(
        &self,
        region: RegionId,
        offset: u64,
        slices: &mut [IoSliceMut<'_>],
        count_use: bool,
    ) -> Result<()> {
        let mut pieces: Vec<uapi::Piece> = slices
            .iter_mut()
            .map(|s| uapi::Piece {
                base: s.as_mut_ptr() as u64,
                len: s.len() as u64,
            })
            .collect();
        // SAFETY: the pieces are writable slices.
        unsafe {
            self.copy_pieces(
                region,
                uapi::COPY_FROM_REGION,
                offset,
                &mut pieces,
                count_use,
            )
        }
    }

    /// Writes several slices, one after the other, into a region.
    ///
    /// # Errors
    ///
    /// As for [`Domain::copy_from_vectored`].
    pub fn copy_to_vectored(
        &self,
        region: RegionId,
        offset: u64,
        slices: &[IoSlice<'_>],
        count_use: bool,
    ) -> Result<()> {
        let mut pieces: Vec<uapi::Piece> = slices
            .iter()
            .map(|s| uapi::Piece {
                base: s.as_ptr() as u64,
                len: s.len() as u64,
            })
            .collect();
        // SAFETY: the kernel only reads the pieces in this direction.
        unsafe { self.copy_pieces(region, uapi::COPY_TO_REGION, offset, &mut pieces, count_use) }
    }

    /// # Safety
    ///
    /// `base` must be readable for `len` bytes, and writable with [`uapi::COPY_FROM_REGION`].
    pub(crate) unsafe fn copy_bytes(
        &self,
        region: RegionId,
        direction: u32,
        offset: u64,
        base: *mut u8,
        len: usize,
        count_use: bool,
    ) -> Result<()> {
        let mut piece = [uapi::Piece {
            base: base as u64,
            len: len as u64,
        }];
        // SAFETY: passed on to the caller.
        unsafe { self.copy_pieces(region, direction, offset, &mut piece, count_use) }
    }

    /// # Safety
    ///
    /// As for [`Domain::copy_bytes`], for each piece.
    unsafe fn copy_pieces(
        &self,
        region: RegionId,
        direction: u32,
        mut offset: u64,
        pieces: &mut [uapi::Piece],
        count_use: bool,
    ) -> Result<()> {
        let mut length: u64 = pieces.iter().map(|p| p.len).sum();
        let mut first = 0;
        loop {
            // A copy that had to stop half way continues with the pieces that are left, so the
            // kernel counts the use only once: when the last call is complete.
            let rest = &pieces[first..];
            let mut arg = uapi::RegionCopy {
                region: region.get(),
                flags: direction | if count_use { uapi::COPY_COUNT_USE } else { 0 },
                offset,
                length,
                iov: rest.as_ptr() as u64,
                iov_count: piece_count(rest.len())?,
                ..Default::default()
            };
            // SAFETY: the caller vouches for the memory behind the pieces.
            unsafe { ioctl(self.as_fd(), "REGION_COPY", uapi::REGION_COPY, &mut arg) }?;
            if arg.done > length {
                return Err(Error::Corrupt {
                    what: "bytes copied",
                    value: arg.done,
                });
            }
            if arg.done == length {
                return Ok(());
            }
            // `done == 0` without an error: a signal. The next call meets what stopped it.
            offset += arg.done;
            length -= arg.done;
            let mut skip = arg.done;
            while skip > 0 && skip >= pieces[first].len {
                skip -= pieces[first].len;
                first += 1;
            }
            pieces[first].base += skip;
            pieces[first].len -= skip;
        }
    }

    /// Copies between two regions, neither of which needs to be ours.
    ///
    /// # Errors
    ///
    /// As for [`Domain::copy_from`].
    pub fn transfer(
        &self,
        (source, source_offset): (RegionId, u64),
        (destination, destination_offset): (RegionId, u64),
        length: u64,
        count_use: bool,
    ) -> Result<()> {
        let mut done = 0;
        loop {
            let mut arg = uapi::Transfer {
                source: source.get(),
                destination: destination.get(),
                source_offset: source_offset.saturating_add(done),
                destination_offset: destination_offset.saturating_add(done),
                length: length - done,
                flags: if count_use { uapi::COPY_COUNT_USE } else { 0 },
                ..Default::default()
            };
            // SAFETY: TRANSFER touches no memory of ours that is not published as a region.
            unsafe { ioctl(self.as_fd(), "TRANSFER", uapi::TRANSFER, &mut arg) }?;
            if arg.done > length - done {
                return Err(Error::Corrupt {
                    what: "bytes transferred",
                    value: arg.done,
                });
            }
            done += arg.done;
            if done == length {
                return Ok(());
            }
        }
    }
}
