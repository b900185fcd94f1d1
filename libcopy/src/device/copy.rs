// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies between our memory and regions, or ranges of them.

use std::os::fd::AsFd;

use super::domain::Domain;
use super::ioctl::ioctl;
use super::region::piece_count;
use super::region_id::RegionId;
use crate::datatype::Places;
use crate::error::{Error, Result};
use crate::uapi;

impl Domain {
    /// Fills `bytes` from a region, starting at byte `offset` of it.
    ///
    /// # Errors
    ///
    /// [`Error::Ioctl`]: there is no such region (`ENOENT`), its rights do not allow it (`EACCES`),
    /// the range leaves it (`ERANGE`), its owner has unmapped the memory (`ESTALE`) or is gone
    /// (`EOWNERDEAD`), or our own memory cannot be accessed (`EFAULT`).
    pub fn copy_from(&self, region: RegionId, offset: u64, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: `bytes` is writable for its length.
        unsafe {
            self.copy_bytes(
                region,
                uapi::COPY_FROM_REGION,
                offset,
                bytes.as_mut_ptr(),
                bytes.len(),
            )
        }
    }

    /// Writes `bytes` into a region, starting at byte `offset` of it.
    ///
    /// # Errors
    ///
    /// As for [`Domain::copy_from`].
    pub fn copy_to(&self, region: RegionId, offset: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the kernel only reads `bytes` in this direction.
        unsafe {
            self.copy_bytes(
                region,
                uapi::COPY_TO_REGION,
                offset,
                bytes.as_ptr().cast_mut(),
                bytes.len(),
            )
        }
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
    ) -> Result<()> {
        // SAFETY: `base` is readable for `len` bytes, and writable if they are written.
        unsafe { self.copy(region, direction, offset, None, base, len as u64) }
    }

    /// Fills `bytes` from ranges of a region, laid end to end; the `base` of a range counts from
    /// byte `offset` of the region.
    ///
    /// # Errors
    ///
    /// As for [`Domain::copy_from`], and [`Error::Argument`] if the ranges have not as many bytes
    /// as `bytes`.
    pub fn copy_from_ranges(
        &self,
        region: RegionId,
        offset: u64,
        ranges: &mut [uapi::Piece],
        bytes: &mut [u8],
    ) -> Result<()> {
        let listed = ranges
            .iter()
            .try_fold(0u64, |sum, range| sum.checked_add(range.len));
        if listed != Some(bytes.len() as u64) {
            return Err(Error::argument(
                "length of all ranges",
                listed.map_or("over 2^64".to_owned(), |listed| listed.to_string()),
                bytes.len(),
            ));
        }
        // SAFETY: `bytes` is writable for its length.
        unsafe { self.gather_ranges(region, offset, ranges, bytes.as_mut_ptr()) }
    }

    /// [`Domain::copy_from_ranges`]; `ranges` are used up.
    ///
    /// # Safety
    ///
    /// `to` is writable for as many bytes as the ranges have together.
    pub(crate) unsafe fn gather_ranges(
        &self,
        region: RegionId,
        offset: u64,
        ranges: &mut [uapi::Piece],
        mut to: *mut u8,
    ) -> Result<()> {
        for some in ranges.chunks_mut(uapi::MAX_IOV as usize) {
            let len = some.iter().map(|range| range.len).sum();
            let flags = uapi::COPY_FROM_REGION;
            // SAFETY: the caller's promise.
            unsafe { self.copy(region, flags, offset, Some(some), to, len) }?;
            to = to.wrapping_add(len as usize);
        }
        Ok(())
    }

    /// Fills memory with the first `len` bytes of blocks of a region, laid end to end, whose
    /// offsets count from byte `offset` of it. Returns how many bytes were copied, at least one: a
    /// signal may end the copy early.
    ///
    /// # Safety
    ///
    /// `to` is writable for `len` bytes, which is not zero.
    pub(crate) unsafe fn gather_blocks(
        &self,
        region: RegionId,
        offset: u64,
        block_len: u64,
        places: Places<'_>,
        to: *mut u8,
        len: u64,
    ) -> Result<u64> {
        let piece = uapi::Piece {
            base: to as u64,
            len,
        };
        // A call takes no more blocks than this.
        let count = u32::try_from(places.count()).unwrap_or(u32::MAX);
        let length = len.min(block_len.saturating_mul(count.into()));
        let (list, stride) = match places {
            Places::Stride(_, stride) => (0, stride),
            Places::List(list) => (list.as_ptr() as u64, 0),
        };
        let mut arg = uapi::RegionCopy {
            region: region.get(),
            flags: uapi::COPY_FROM_REGION,
            offset,
            length,
            iov: &raw const piece as u64,
            iov_count: 1,
            region_iov: list,
            region_iov_count: count,
            block_len,
            stride,
            ..Default::default()
        };
        // SAFETY: the caller vouches for the memory; the list is read only.
        unsafe { ioctl(self.as_fd(), "REGION_COPY", uapi::REGION_COPY, &mut arg) }?;
        if arg.done == 0 || arg.done > length {
            return Err(Error::corrupt("bytes copied", arg.done));
        }
        Ok(arg.done)
    }

    /// Copies `length` bytes at `base`: from or to `ranges`, or, without them, the bytes from
    /// `offset` on.
    ///
    /// # Safety
    ///
    /// As for [`Domain::copy_bytes`].
    unsafe fn copy(
        &self,
        region: RegionId,
        flags: u32,
        mut offset: u64,
        mut ranges: Option<&mut [uapi::Piece]>,
        base: *mut u8,
        length: u64,
    ) -> Result<()> {
        let mut piece = uapi::Piece {
            base: base as u64,
            len: length,
        };
        loop {
            // A copy that had to stop half way continues with the bytes that are left.
            let listed = ranges.as_deref().unwrap_or_default();
            let mut arg = uapi::RegionCopy {
                region: region.get(),
                flags,
                offset,
                length: piece.len,
                iov: &raw const piece as u64,
                iov_count: 1,
                region_iov: ranges.as_ref().map_or(0, |ranges| ranges.as_ptr() as u64),
                region_iov_count: piece_count(listed.len())?,
                ..Default::default()
            };
            // SAFETY: the caller vouches for the memory.
            unsafe { ioctl(self.as_fd(), "REGION_COPY", uapi::REGION_COPY, &mut arg) }?;
            if arg.done > piece.len {
                return Err(Error::corrupt("bytes copied", arg.done));
            }
            if arg.done == piece.len {
                return Ok(());
            }
            // `done == 0` without an error: a signal. The next call meets what stopped it.
            piece.len -= arg.done;
            piece.base += arg.done;
            match ranges.take() {
                Some(listed) => ranges = Some(behind(listed, arg.done)),
                None => offset += arg.done,
            }
        }
    }
}

/// What is left of pieces behind their first `bytes` bytes.
fn behind(mut pieces: &mut [uapi::Piece], mut bytes: u64) -> &mut [uapi::Piece] {
    while bytes > 0 && pieces.first().is_some_and(|first| first.len <= bytes) {
        bytes -= pieces[0].len;
        pieces = &mut pieces[1..];
    }
    if let Some(first) = pieces.first_mut() {
        first.base += bytes;
        first.len -= bytes;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_copied_is_left_behind() {
        let piece = |base, len| uapi::Piece { base, len };
        let all = [piece(100, 5), piece(200, 0), piece(300, 7)];
        for (bytes, left) in [
            (0, &[piece(100, 5), piece(200, 0), piece(300, 7)][..]),
            (4, &[piece(104, 1), piece(200, 0), piece(300, 7)]),
            (5, &[piece(200, 0), piece(300, 7)]),
            (6, &[piece(301, 6)]),
            (12, &[]),
        ] {
            assert_eq!(behind(&mut all.clone(), bytes), left, "{bytes}");
        }
    }
}
