// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies along layouts, which the kernel walks.

use std::os::fd::AsFd;

use super::domain::Domain;
use super::ioctl::ioctl;
use super::region_id::RegionId;
use crate::error::{Error, Result};
use crate::uapi;

impl Domain {
    /// Copies from a region along layouts; `None` means contiguous. The caller's layout must stay
    /// inside `bytes`.
    ///
    /// # Errors
    ///
    /// As for [`Domain::copy_from`], and [`Error::Argument`] if the two layouts have different sizes or the
    /// caller's leaves `bytes`.
    pub fn copy_from_strided(
        &self,
        region: RegionId,
        region_layout: Option<&uapi::Layout>,
        bytes: &mut [u8],
        bytes_layout: Option<&uapi::Layout>,
        count_use: bool,
    ) -> Result<u64> {
        let size = strided_size(region_layout, bytes.len(), bytes_layout)?;
        // SAFETY: `strided_size` checked that the layout stays inside `bytes`, which is writable.
        unsafe {
            self.copy_strided(
                region,
                uapi::COPY_FROM_REGION,
                region_layout,
                bytes.as_mut_ptr(),
                bytes_layout,
                size,
                count_use,
            )
        }
    }

    /// Copies into a region along layouts; `None` means contiguous.
    ///
    /// # Errors
    ///
    /// As for [`Domain::copy_from_strided`].
    pub fn copy_to_strided(
        &self,
        region: RegionId,
        region_layout: Option<&uapi::Layout>,
        bytes: &[u8],
        bytes_layout: Option<&uapi::Layout>,
        count_use: bool,
    ) -> Result<u64> {
        let size = strided_size(region_layout, bytes.len(), bytes_layout)?;
        // SAFETY: `strided_size` checked that the layout stays inside `bytes`, and the kernel only
        // reads it in this direction.
        unsafe {
            self.copy_strided(
                region,
                uapi::COPY_TO_REGION,
                region_layout,
                bytes.as_ptr().cast_mut(),
                bytes_layout,
                size,
                count_use,
            )
        }
    }

    /// # Safety
    ///
    /// What `user_layout` reaches from `user` must be readable, and writable with
    /// [`uapi::COPY_FROM_REGION`].
    #[expect(clippy::too_many_arguments, reason = "as many as the ioctl has fields")]
    unsafe fn copy_strided(
        &self,
        region: RegionId,
        direction: u32,
        region_layout: Option<&uapi::Layout>,
        user: *mut u8,
        user_layout: Option<&uapi::Layout>,
        size: u64,
        count_use: bool,
    ) -> Result<u64> {
        // With both sides contiguous the ioctl could not know the size.
        let contiguous = uapi::Layout {
            block: size,
            ..Default::default()
        };
        let region_layout = region_layout.unwrap_or(&contiguous);
        let mut skip = 0;
        loop {
            let mut arg = uapi::CopyStrided {
                region: region.get(),
                flags: direction | if count_use { uapi::COPY_COUNT_USE } else { 0 },
                region_layout: std::ptr::from_ref(region_layout) as u64,
                user_addr: user as u64,
                user_layout: user_layout.map_or(0, |l| std::ptr::from_ref(l) as u64),
                skip,
                ..Default::default()
            };
            // SAFETY: both layouts outlive the call, the memory is the caller's promise.
            unsafe {
                ioctl(
                    self.as_fd(),
                    "REGION_COPY_STRIDED",
                    uapi::REGION_COPY_STRIDED,
                    &mut arg,
                )
            }?;
            skip = match skip.checked_add(arg.done) {
                Some(sum) if sum <= size => sum,
                _ => {
                    return Err(Error::Corrupt {
                        what: "bytes copied",
                        value: arg.done,
                    });
                }
            };
            if skip == size {
                return Ok(size);
            }
        }
    }
}

/// Bytes that a layout describes.
///
/// # Errors
///
/// [`Error::Argument`] if it has too many streams or describes more than 2^64 bytes.
pub fn layout_size(layout: &uapi::Layout) -> Result<u64> {
    layout_streams(layout)?
        .iter()
        .try_fold(layout.block, |size, stream| size.checked_mul(stream.count))
        .ok_or_else(|| Error::argument("size of a layout", "over 2^64", "below"))
}

fn layout_streams(layout: &uapi::Layout) -> Result<&[uapi::Stream]> {
    layout
        .streams
        .get(..layout.stream_count as usize)
        .ok_or_else(|| {
            Error::argument(
                "number of streams",
                layout.stream_count,
                format!("0 to {}", uapi::MAX_STREAMS),
            )
        })
}

/// First byte and end of what a layout reaches.
fn layout_extent(layout: &uapi::Layout) -> Result<(i128, i128)> {
    let mut low = i128::from(layout.offset);
    let mut high = low + i128::from(layout.block);
    for stream in layout_streams(layout)?.iter().filter(|s| s.count > 0) {
        // At most 2^64 * 2^63, so six of them stay below 2^127 together only if checked.
        let reach = i128::from(stream.count - 1)
            .checked_mul(i128::from(stream.stride))
            .ok_or_else(|| Error::argument("extent of a layout", "over 2^127", "below"))?;
        let end = if reach < 0 { &mut low } else { &mut high };
        *end = end
            .checked_add(reach)
            .ok_or_else(|| Error::argument("extent of a layout", "over 2^127", "below"))?;
    }
    Ok((low, high))
}

/// Checks the layouts of a strided copy against the caller's memory; returns the bytes to copy.
fn strided_size(
    region: Option<&uapi::Layout>,
    bytes: usize,
    user: Option<&uapi::Layout>,
) -> Result<u64> {
    let region = region.map(layout_size).transpose()?;
    let size = match user {
        Some(layout) => layout_size(layout)?,
        None => region.unwrap_or(bytes as u64),
    };
    if region.is_some_and(|r| r != size) {
        return Err(Error::argument(
            "size of the region's layout",
            region.unwrap_or(0),
            size,
        ));
    }
    let (low, high) = match user {
        Some(layout) if size > 0 => layout_extent(layout)?,
        Some(_) => (0, 0),
        None => (0, i128::from(size)),
    };
    if low < 0 || high > bytes as i128 {
        return Err(Error::argument(
            "extent of the layout",
            format!("{low}..{high}"),
            format!("within the buffer's {bytes} bytes"),
        ));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_kept_inside_the_buffer() {
        let mut layout = uapi::Layout {
            block: 8,
            stream_count: 1,
            ..Default::default()
        };
        layout.streams[0] = uapi::Stream {
            count: 4,
            stride: 16,
        };
        assert_eq!(strided_size(None, 56, Some(&layout)).unwrap(), 32);
        assert!(strided_size(None, 55, Some(&layout)).is_err());
        layout.streams[0].stride = -16;
        assert!(strided_size(None, 1000, Some(&layout)).is_err());
        layout.offset = 48;
        assert_eq!(strided_size(None, 56, Some(&layout)).unwrap(), 32);
        layout.streams[0] = uapi::Stream {
            count: u64::MAX,
            stride: i64::MAX,
        };
        assert!(strided_size(None, 1000, Some(&layout)).is_err());
        layout.stream_count = 7;
        assert!(strided_size(None, 1000, Some(&layout)).is_err());
        assert_eq!(strided_size(None, 12, None).unwrap(), 12);
    }

    #[test]
    fn extents_do_not_overflow() {
        let streams = [uapi::Stream {
            count: u64::MAX,
            stride: i64::MIN,
        }; uapi::MAX_STREAMS];
        let layout = uapi::Layout {
            block: 0,
            stream_count: 6,
            offset: i64::MIN,
            streams,
            reserved: 0,
        };
        assert!(layout_extent(&layout).is_err());
        assert_eq!(layout_size(&layout).unwrap(), 0);
    }
}
