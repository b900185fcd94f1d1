// SPDX-License-Identifier: GPL-2.0

//! Copies along layouts: nested streams over a block, on the region's side, the caller's or both.
//!
//! Fragmented layouts cost one ioctl and one user-access section per few thousand blocks, instead
//! of one call per segment.

use crate::copy::Progress;
use crate::region::Region;
use crate::shim;
use crate::stats::Counter;
use crate::uapi::{
    CopyStrided, Layout, Stream, COPY_COUNT_USE, COPY_FROM_REGION, COPY_TO_REGION, MAX_STREAMS,
    RIGHT_READ, RIGHT_WRITE,
};
use kernel::prelude::*;
use kernel::sync::Arc;

/// Bytes, and blocks, moved between two looks at signals.
const CHUNK_BYTES: usize = 64 * 1024;
const CHUNK_BLOCKS: usize = 4096;

/// A checked layout: nothing about it overflows.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    offset: i64,
    block: u64,
    streams: [Stream; MAX_STREAMS],
    depth: usize,
    /// Bytes in packed order.
    total: u64,
    /// Lowest byte touched, and the one after the highest; equal if nothing is touched.
    low: i64,
    high: i64,
}

impl Shape {
    /// A contiguous piece.
    fn contiguous(length: u64) -> Result<Self> {
        Self::new(&Layout {
            block: length,
            ..Layout::default()
        })
    }

    /// Checks a layout from user space.
    ///
    /// - `EINVAL`: too many streams, unused ones that are not zero, or an extent that overflows.
    pub(crate) fn new(layout: &Layout) -> Result<Self> {
        let given = layout.stream_count as usize;
        if given > MAX_STREAMS || layout.reserved != 0 {
            return Err(EINVAL);
        }
        if layout.streams[given..]
            .iter()
            .any(|stream| *stream != Stream::default())
        {
            return Err(EINVAL);
        }
        let mut this = Self {
            offset: layout.offset,
            block: layout.block,
            streams: [Stream::default(); MAX_STREAMS],
            depth: 0,
            total: layout.block,
            low: layout.offset,
            high: layout.offset,
        };
        let streams = &layout.streams[..given];
        if layout.block == 0 || streams.iter().any(|stream| stream.count == 0) {
            this.total = 0;
            return Ok(this);
        }
        for stream in streams {
            this.total = this.total.checked_mul(stream.count).ok_or(EINVAL)?;
            let steps = i64::try_from(stream.count - 1).map_err(|_| EINVAL)?;
            let reach = stream.stride.checked_mul(steps).ok_or(EINVAL)?;
            if reach < 0 {
                this.low = this.low.checked_add(reach).ok_or(EINVAL)?;
            } else {
                this.high = this.high.checked_add(reach).ok_or(EINVAL)?;
            }
            // A stream of one repetition says nothing.
            if stream.count > 1 {
                this.streams[this.depth] = *stream;
                this.depth += 1;
            }
        }
        let block = i64::try_from(this.block).map_err(|_| EINVAL)?;
        this.high = this.high.checked_add(block).ok_or(EINVAL)?;
        // The difference, too, must be a length.
        this.high.checked_sub(this.low).ok_or(EINVAL)?;
        // Innermost streams whose repetitions touch are one longer block.
        while this.depth > 0 {
            let inner = this.streams[this.depth - 1];
            if inner.stride < 0 || inner.stride as u64 != this.block {
                break;
            }
            this.block *= inner.count;
            this.depth -= 1;
        }
        Ok(this)
    }
}

/// Quotient and remainder; blocks and counts are not zero, but a kernel must not depend on it.
fn divide(value: u64, by: u64) -> (u64, u64) {
    match (value.checked_div(by), value.checked_rem(by)) {
        (Some(quotient), Some(remainder)) => (quotient, remainder),
        _ => (0, 0),
    }
}

/// A position in the packed order of a shape.
struct Cursor<'a> {
    shape: &'a Shape,
    index: [u64; MAX_STREAMS],
    /// Address of the current block, relative to the shape's origin.
    position: i64,
    /// Bytes of the current block that are behind us.
    within: u64,
}

impl<'a> Cursor<'a> {
    /// Goes to byte `skip`, which must lie before the end.
    fn at(shape: &'a Shape, skip: u64) -> Self {
        let mut this = Self {
            shape,
            index: [0; MAX_STREAMS],
            position: shape.offset,
            within: 0,
        };
        let mut blocks;
        (blocks, this.within) = divide(skip, shape.block);
        for level in (0..shape.depth).rev() {
            let stream = shape.streams[level];
            (blocks, this.index[level]) = divide(blocks, stream.count);
            // Within the extent that `Shape::new` checked.
            this.position += this.index[level] as i64 * stream.stride;
        }
        this
    }

    fn address(&self) -> i64 {
        self.position + self.within as i64
    }

    /// Contiguous bytes from here on.
    fn contiguous(&self) -> u64 {
        self.shape.block - self.within
    }

    /// Blocks from here to the end of the innermost stream, and their stride.
    fn row(&self) -> (u64, i64) {
        match self.shape.depth {
            0 => (1, 0),
            depth => {
                let stream = self.shape.streams[depth - 1];
                (stream.count - self.index[depth - 1], stream.stride)
            }
        }
    }

    /// Moves on by `bytes` within the current block.
    fn advance_bytes(&mut self, bytes: u64) {
        self.within += bytes;
        if self.within == self.shape.block {
            self.within = 0;
            self.advance_blocks(1);
        }
    }

    /// Moves on by `blocks`, at most to the end of the innermost stream.
    fn advance_blocks(&mut self, blocks: u64) {
        let mut step = blocks;
        for level in (0..self.shape.depth).rev() {
            let stream = self.shape.streams[level];
            self.index[level] += step;
            // One step too far may leave the extent for a moment, and even the number range.
            let moved = (step as i64).wrapping_mul(stream.stride);
            self.position = self.position.wrapping_add(moved);
            if self.index[level] < stream.count {
                return;
            }
            let back = (stream.count as i64).wrapping_mul(stream.stride);
            self.position = self.position.wrapping_sub(back);
            self.index[level] = 0;
            step = 1;
        }
    }
}

/// Kernel addresses of region bytes.
enum Access<'a> {
    /// All bytes follow this address.
    View(*mut u8),
    /// Bytes have to be looked up run by run.
    Runs(&'a Region, usize),
}

/// Performs [`crate::uapi::REGION_COPY_STRIDED`]; fills in `args.done`.
pub(crate) fn copy_strided(
    region: &Arc<Region>,
    args: &mut CopyStrided,
    region_layout: Option<&Layout>,
    user_layout: Option<&Layout>,
) -> Result {
    let from_region = match args.flags & (COPY_FROM_REGION | COPY_TO_REGION) {
        COPY_FROM_REGION => true,
        COPY_TO_REGION => false,
        _ => return Err(EINVAL),
    };
    region.permit(if from_region { RIGHT_READ } else { RIGHT_WRITE })?;
    let (region_shape, user_shape) = match (region_layout, user_layout) {
        (Some(r), Some(u)) => (Shape::new(r)?, Shape::new(u)?),
        (Some(r), None) => {
            let shape = Shape::new(r)?;
            (shape, Shape::contiguous(shape.total)?)
        }
        (None, Some(u)) => {
            let shape = Shape::new(u)?;
            (Shape::contiguous(shape.total)?, shape)
        }
        (None, None) => return Err(EINVAL),
    };
    let total = region_shape.total;
    if total != user_shape.total || args.skip > total {
        return Err(EINVAL);
    }
    if total != 0 && (region_shape.low < 0 || region_shape.high as u64 > region.length()) {
        return Err(ERANGE);
    }
    // The extent of the caller's side must be addresses; the hardware checks the rest.
    let base = i64::try_from(args.user_addr).map_err(|_| EFAULT)?;
    let low = base.checked_add(user_shape.low).ok_or(EFAULT)?;
    base.checked_add(user_shape.high).ok_or(EFAULT)?;
    if low < 0 {
        return Err(EFAULT);
    }
    let wanted = total - args.skip;
    let mut done = Progress {
        bytes: 0,
        fault: false,
    };
    if wanted != 0 {
        if !from_region {
            region.mapping.pages().mark_written();
        }
        let access = match region.mapping.view() {
            Some(view) => Access::View(view),
            None => Access::Runs(region, 0),
        };
        let kernel = Cursor::at(&region_shape, args.skip);
        let user = Cursor::at(&user_shape, args.skip);
        done = walk(access, kernel, user, base, wanted, from_region);
    }
    let stats = &region.owner.domain.stats;
    stats.add(Counter::BytesStrided, done.bytes as u64);
    if done.fault {
        stats.add(Counter::Faults, 1);
    }
    if done.bytes == 0 && wanted != 0 {
        return Err(if done.fault { EFAULT } else { EINTR });
    }
    args.done = done.bytes as u64;
    if args.done == wanted && args.flags & COPY_COUNT_USE != 0 {
        region.count_copy();
    }
    Ok(())
}

fn walk(
    mut access: Access<'_>,
    mut kernel: Cursor<'_>,
    mut user: Cursor<'_>,
    base: i64,
    wanted: u64,
    from_region: bool,
) -> Progress {
    let mut done = 0u64;
    let mut since_check = 0;
    let fault = |done: u64| Progress {
        bytes: done as usize,
        fault: true,
    };
    while done < wanted {
        let offset = kernel.address();
        let (address, reachable) = match &mut access {
            Access::View(view) => (view.wrapping_offset(offset as isize), usize::MAX),
            Access::Runs(region, hint) => {
                match region.mapping.pages().locate(offset as u64, hint) {
                    Some(found) => found,
                    None => return fault(done),
                }
            }
        };
        let target = (base + user.address()) as usize;
        let (kernel_len, user_len) = (kernel.contiguous(), user.contiguous());
        let is_view = matches!(access, Access::View(_));
        // The unit that both sides hold contiguously, and how many follow at constant strides: the
        // longer side, if it holds several units, is a row of units without gaps.
        let unit = u64::min(kernel_len, user_len);
        let row = |cursor: &Cursor<'_>, len: u64| {
            if len == unit && cursor.within == 0 {
                cursor.row()
            } else {
                (divide(len, unit).0, unit as i64)
            }
        };
        let (kernel_row, user_row) = (row(&kernel, kernel_len), row(&user, user_len));
        let mut count = u64::min(kernel_row.0, user_row.0);
        count = count
            .min(divide(CHUNK_BYTES as u64, unit).0.max(1))
            .min(CHUNK_BLOCKS as u64);
        if count <= 1 || !is_view {
            let len = (unit as usize).min(reachable).min(CHUNK_BYTES);
            // SAFETY: `len` bytes at `address` are part of the region: `Shape` bounds the view,
            // `locate` the run.
            let moved = unsafe {
                if from_region {
                    shim::bytes_to_user(target, address, len)
                } else {
                    shim::bytes_from_user(address, target, len)
                }
            };
            done += moved as u64;
            if moved < len {
                return fault(done);
            }
            kernel.advance_bytes(len as u64);
            user.advance_bytes(len as u64);
            since_check += len;
        } else {
            // SAFETY: All blocks lie in the region, because they are part of its shape, which is
            // inside; the user side's extent was checked for overflow.
            let moved = unsafe {
                if from_region {
                    shim::blocks_to_user(
                        target,
                        user_row.1,
                        address,
                        kernel_row.1,
                        unit as usize,
                        count as usize,
                    )
                } else {
                    shim::blocks_from_user(
                        address,
                        kernel_row.1,
                        target,
                        user_row.1,
                        unit as usize,
                        count as usize,
                    )
                }
            } as u64;
            done += moved * unit;
            if moved < count {
                return fault(done);
            }
            advance(&mut kernel, kernel_len, unit, count);
            advance(&mut user, user_len, unit, count);
            since_check += (count * unit) as usize;
        }
        if since_check >= CHUNK_BYTES {
            since_check = 0;
            if shim::cond_resched_interrupted() {
                break;
            }
        } else {
            // Tiny pieces cost time without adding up to bytes.
            since_check += 256;
        }
    }
    Progress {
        bytes: done as usize,
        fault: false,
    }
}

/// Moves a cursor on by `count` units; see the two kinds of row in `walk`.
fn advance(cursor: &mut Cursor<'_>, len: u64, unit: u64, count: u64) {
    if len == unit && cursor.within == 0 {
        cursor.advance_blocks(count);
    } else {
        cursor.advance_bytes(unit * count);
    }
}
