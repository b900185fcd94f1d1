// SPDX-License-Identifier: GPL-2.0

//! Copies by the CPU: a region, or ranges of it, to and from the caller's pieces, and region to
//! region.
//!
//! No lock is held while bytes move; a copy ends early, with what it has done so far, when a signal
//! is pending, and gives way to other tasks between chunks.

use crate::abstractions::iov_iter::{Room, UserPieces, MAX_PER_CALL};
use crate::abstractions::shim;
use crate::base::few::Few;
use crate::base::stats::Counter;
use crate::domain::region::Region;
use crate::memory::pin::PinnedPages;
use crate::uapi::{
    Piece, RegionCopy, COPY_FROM_REGION, COPY_TO_REGION, MAX_REGION_BYTES, RIGHT_READ, RIGHT_WRITE,
};
use core::mem::size_of;
use kernel::bindings;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::transmute::AsBytes;
use kernel::uaccess::{UserPtr, UserSlice};

/// Bytes copied between two looks at signals: long enough not to be felt, short enough to be
/// interrupted within a fraction of a millisecond.
const CHUNK: usize = 256 * 1024;

/// Bytes that take about as long as the search for a piece does, whatever its length.
const MIN_COST: usize = 256;

/// Pieces of up to this many bytes are batched.
const SHORT: usize = 256;
/// Pieces, and bytes, of a [`Batch`], which is on the stack.
const BATCH_PIECES: usize = 32;
const BATCH_BYTES: usize = 1024;

/// Offsets of blocks that are read together.
const OFFSETS_AT_ONCE: usize = 64;

/// Where the bytes of a copy are in the region.
pub(crate) enum Ranges {
    /// One behind the other, from the copy's offset on.
    Whole,
    /// In pieces, whose `base` counts from there.
    Listed(Few<Piece>),
    /// In blocks of one length.
    Blocks(Places),
}

/// Where blocks begin.
pub(crate) enum Places {
    /// At equal distances, in bytes.
    Stride(i64),
    /// At the offsets of a list at this address of the caller.
    List(usize),
}

/// Performs [`crate::uapi::REGION_COPY`]; fills in `args.done`.
pub(crate) fn region_copy(region: &Arc<Region>, args: &mut RegionCopy, ranges: &Ranges) -> Result {
    let from_region = match args.flags & (COPY_FROM_REGION | COPY_TO_REGION) {
        COPY_FROM_REGION => true,
        COPY_TO_REGION => false,
        _ => return Err(EINVAL),
    };
    region.permit(if from_region { RIGHT_READ } else { RIGHT_WRITE })?;
    check_ranges(region, args, ranges)?;
    let mut room = Room::new();
    let mut user = UserPieces::import(args.iov, args.iov_count, from_region, &mut room)?;
    let available = user.left();
    // The kernel never takes more than this from one iovec; the caller comes again for the rest.
    let wanted = u64::min(args.length, MAX_PER_CALL as u64) as usize;
    if available < wanted {
        return Err(EINVAL);
    }
    let pages = region.mapping.pages();
    if !from_region && wanted != 0 {
        pages.mark_written();
    }
    let mut mover = Mover {
        pages,
        user: &mut user,
        from_region,
        batch: Batch::new(),
        hint: 0,
        done: 0,
        left: wanted,
        since_check: 0,
    };
    let moved = mover.move_ranges(args, ranges);
    let done = mover.done as u64;
    let stats = &region.owner.domain.stats;
    stats.add(
        if from_region {
            Counter::BytesFromRegion
        } else {
            Counter::BytesToRegion
        },
        done,
    );
    if let Err(stop) = moved {
        if matches!(stop, Stop::Fault) {
            stats.add(Counter::Faults, 1);
        }
        if done == 0 && wanted != 0 {
            return Err(stop.into());
        }
    }
    args.done = done;
    Ok(())
}

/// Whether there are as many bytes as are to be copied, and they are in the region, as far as that
/// can be told before blocks are looked at.
fn check_ranges(region: &Region, args: &RegionCopy, ranges: &Ranges) -> Result {
    let held = match ranges {
        Ranges::Whole => {
            region.contains(args.offset, args.length)?;
            args.length
        }
        Ranges::Listed(pieces) => {
            let mut held = 0u64;
            for piece in pieces.iter() {
                let start = args.offset.checked_add(piece.base).ok_or(ERANGE)?;
                region.contains(start, piece.len)?;
                held = held.saturating_add(piece.len);
            }
            held
        }
        Ranges::Blocks(places) => {
            // So that no sum of it and an offset or a stride comes back into the region.
            region.contains(args.offset, 0)?;
            match places {
                Places::Stride(stride) if stride.unsigned_abs() > MAX_REGION_BYTES => {
                    return Err(ERANGE)
                }
                _ => u64::from(args.region_iov_count).saturating_mul(args.block_len),
            }
        }
    };
    if held < args.length {
        return Err(EINVAL);
    }
    Ok(())
}

/// What ends a copy early.
enum Stop {
    /// Memory of the caller.
    Fault,
    /// A signal.
    Signal,
    /// A block that is not in the region.
    Outside,
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Fault => EFAULT,
            Stop::Signal => EINTR,
            Stop::Outside => ERANGE,
        }
    }
}

/// Short pieces of pinned memory whose bytes go to or come from the caller together: to open and
/// close access to user memory costs more than to copy a few bytes.
struct Batch {
    pieces: [bindings::kvec; BATCH_PIECES],
    count: usize,
    bytes: usize,
}

impl Batch {
    fn new() -> Self {
        Self {
            pieces: [bindings::kvec {
                iov_base: core::ptr::null_mut(),
                iov_len: 0,
            }; BATCH_PIECES],
            count: 0,
            bytes: 0,
        }
    }

    /// Whether a piece of `len` bytes fits.
    fn takes(&self, len: usize) -> bool {
        self.count < BATCH_PIECES && self.bytes + len <= BATCH_BYTES
    }

    /// Moves the bytes of all pieces and forgets the pieces; returns the bytes moved.
    ///
    /// # Safety
    ///
    /// The pieces are pinned memory.
    unsafe fn flush(&mut self, user: &mut UserPieces<'_>, from_region: bool) -> usize {
        let pieces = &self.pieces[..core::mem::take(&mut self.count)];
        let wanted = core::mem::take(&mut self.bytes);
        if let &[bindings::kvec { iov_base, iov_len }] = pieces {
            // SAFETY: Pinned memory of `iov_len` bytes.
            return unsafe { move_piece(iov_base.cast(), iov_len, user, from_region) };
        }
        if from_region {
            // SAFETY: Pinned memory, of as many bytes together as `bytes` has counted.
            let moved = unsafe { user.write_pieces(pieces, wanted) };
            if moved == wanted {
                return moved;
            }
        }
        // SAFETY: Pinned memory, of as many bytes together.
        unsafe { move_by_buffer(pieces, wanted, user, from_region) }
    }
}

/// Moves the bytes of pieces over a buffer: into any pieces of the caller's, or as far as its
/// memory can be written; and out of the caller's memory. Returns how many.
///
/// # Safety
///
/// The pieces are pinned memory of `wanted` bytes together, at most [`BATCH_BYTES`].
#[inline(never)]
unsafe fn move_by_buffer(
    pieces: &[bindings::kvec],
    wanted: usize,
    user: &mut UserPieces<'_>,
    from_region: bool,
) -> usize {
    let mut buffer = [0u8; BATCH_BYTES];
    if from_region {
        let mut at = 0;
        for &bindings::kvec { iov_base, iov_len } in pieces {
            // SAFETY: The piece is readable; `takes` kept the sum of all lengths within the buffer.
            unsafe {
                core::ptr::copy_nonoverlapping(
                    iov_base.cast::<u8>(),
                    buffer.as_mut_ptr().add(at),
                    iov_len,
                )
            };
            at += iov_len;
        }
        return user.write_buffer(&buffer[..wanted]);
    }
    // SAFETY: The buffer has `wanted` bytes.
    let moved = unsafe { user.read(buffer.as_mut_ptr(), wanted) };
    let mut at = 0;
    for &bindings::kvec { iov_base, iov_len } in pieces {
        let (address, len) = (iov_base.cast::<u8>(), iov_len.min(moved - at));
        // SAFETY: The piece is writable; `moved` bytes of the buffer are the caller's.
        unsafe { core::ptr::copy_nonoverlapping(buffer.as_ptr().add(at), address, len) };
        at += len;
    }
    moved
}

/// Moves the bytes of one piece; returns how many.
///
/// # Safety
///
/// `address` is pinned memory of `len` bytes.
unsafe fn move_piece(
    address: *mut u8,
    len: usize,
    user: &mut UserPieces<'_>,
    from_region: bool,
) -> usize {
    // SAFETY: The memory is pinned and has `len` bytes.
    unsafe {
        if from_region {
            user.write(address, len)
        } else {
            user.read(address, len)
        }
    }
}

/// A copy between a region and the caller's pieces that is under way.
struct Mover<'a, 'u> {
    pages: &'a PinnedPages,
    user: &'a mut UserPieces<'u>,
    from_region: bool,
    batch: Batch,
    /// The run where the last piece was.
    hint: usize,
    /// Bytes that were moved.
    done: usize,
    /// Bytes that are neither moved nor in the batch.
    left: usize,
    /// What was moved since the last look at signals, in bytes.
    since_check: usize,
}

impl Mover<'_, '_> {
    /// Moves what is left, out of ranges that [`check_ranges`] has seen.
    fn move_ranges(&mut self, args: &RegionCopy, ranges: &Ranges) -> Result<(), Stop> {
        let moved = match ranges {
            Ranges::Whole => self.range(args.offset, args.length),
            Ranges::Listed(pieces) => self.pieces(pieces.len(), |index| {
                let piece = &pieces[index];
                (args.offset.wrapping_add(piece.base), piece.len)
            }),
            Ranges::Blocks(Places::Stride(stride)) => {
                self.pieces(args.region_iov_count as usize, |index| {
                    let distance = (index as u64).wrapping_mul(*stride as u64);
                    (args.offset.wrapping_add(distance), args.block_len)
                })
            }
            Ranges::Blocks(Places::List(address)) => self.listed_blocks(args, *address),
        };
        // What was not stopped by memory of the caller's is moved as far as it came.
        self.flush().and(moved)
    }

    /// Moves blocks whose offsets the caller lists, which are read and looked at as the copy comes
    /// to them.
    fn listed_blocks(&mut self, args: &RegionCopy, address: usize) -> Result<(), Stop> {
        let bytes = args.region_iov_count as usize * size_of::<i32>();
        let mut reader = UserSlice::new(UserPtr::from_addr(address), bytes).reader();
        let mut some = [0i32; OFFSETS_AT_ONCE];
        while self.left > 0 && !reader.is_empty() {
            let blocks = (self.left as u64).div_ceil(args.block_len);
            let count = usize::min(some.len(), reader.len() / size_of::<i32>());
            let count = u64::min(count as u64, blocks) as usize;
            let some = &mut some[..count];
            // Newer kernels have a method of this name in their prelude, too.
            reader
                .read_slice(AsBytes::as_bytes_mut(some))
                .map_err(|_| Stop::Fault)?;
            self.pieces(some.len(), |index| {
                let at = args.offset.wrapping_add_signed(some[index].into());
                (at, args.block_len)
            })?;
        }
        Ok(())
    }

    /// Moves pieces, of which `piece` tells the offset and the length, as far as bytes are left.
    #[inline(always)]
    fn pieces(&mut self, count: usize, piece: impl Fn(usize) -> (u64, u64)) -> Result<(), Stop> {
        let mut index = 0;
        while self.left > 0 {
            index += self.batch_pieces(index..count, &piece);
            if index >= count {
                break;
            }
            let (at, len) = piece(index);
            let short = u64::min(len, SHORT as u64) as usize;
            if self.batch.count > 0 && !self.batch.takes(short) {
                self.flush()?;
                continue;
            }
            let end = at.checked_add(len);
            if end.is_none_or(|end| end > self.pages.length()) {
                return Err(Stop::Outside);
            }
            self.range(at, len)?;
            index += 1;
        }
        Ok(())
    }

    /// Puts short pieces into the batch, as long as it has room for them and they lie in the run
    /// where the last piece was; returns how many.
    #[inline(always)]
    fn batch_pieces(
        &mut self,
        indices: core::ops::Range<usize>,
        piece: impl Fn(usize) -> (u64, u64),
    ) -> usize {
        let Some(run) = self.pages.runs().get(self.hint) else {
            return 0;
        };
        let Batch {
            pieces,
            count,
            bytes,
        } = &mut self.batch;
        let free = &mut pieces[*count..];
        let first = indices.start;
        let mut next = usize::min(indices.end, first + free.len());
        let most = usize::min(BATCH_BYTES - *bytes, self.left) as u64;
        let mut room = most;
        for (index, free) in indices.zip(free) {
            let (at, len) = piece(index);
            // Before the run this is larger than any length.
            let skip = at.wrapping_sub(run.offset);
            let inside = skip < run.len as u64 && len <= run.len as u64 - skip;
            if !inside || len > room || len > SHORT as u64 {
                next = index;
                break;
            }
            *free = bindings::kvec {
                iov_base: run.address.wrapping_add(skip as usize).cast(),
                iov_len: len as usize,
            };
            room -= len;
        }
        let used = (most - room) as usize;
        *count += next - first;
        *bytes += used;
        self.left -= used;
        next - first
    }

    /// Moves a range, which lies in the region, or puts it into the batch, as far as bytes are
    /// left.
    fn range(&mut self, mut at: u64, len: u64) -> Result<(), Stop> {
        let end = at + u64::min(len, self.left as u64);
        while at < end {
            let (address, held) = self.pages.locate(at, &mut self.hint).ok_or(Stop::Outside)?;
            let len = held.min((end - at) as usize).min(CHUNK);
            // The next byte is in the next run.
            self.hint += usize::from(len == held);
            if len > SHORT {
                self.flush()?;
                // SAFETY: `locate` returned pinned memory of at least `len` bytes.
                let moved = unsafe { move_piece(address, len, self.user, self.from_region) };
                self.left -= len;
                self.moved((moved, len), 1)?;
            } else {
                if !self.batch.takes(len) {
                    self.flush()?;
                }
                self.batch.pieces[self.batch.count] = bindings::kvec {
                    iov_base: address.cast(),
                    iov_len: len,
                };
                self.batch.count += 1;
                self.batch.bytes += len;
                self.left -= len;
            }
            at += len as u64;
        }
        Ok(())
    }

    /// Moves what is in the batch.
    fn flush(&mut self) -> Result<(), Stop> {
        let (pieces, wanted) = (self.batch.count, self.batch.bytes);
        if pieces == 0 {
            return Ok(());
        }
        // SAFETY: `locate` and the runs have told pinned memory.
        let moved = unsafe { self.batch.flush(self.user, self.from_region) };
        self.moved((moved, wanted), pieces)
    }

    /// Counts what was moved; whether the copy goes on.
    fn moved(&mut self, (moved, wanted): (usize, usize), pieces: usize) -> Result<(), Stop> {
        self.done += moved;
        if moved < wanted {
            return Err(Stop::Fault);
        }
        // Short pieces cost time without adding up to bytes.
        self.since_check += usize::max(moved, pieces * MIN_COST);
        if self.since_check >= CHUNK {
            self.since_check = 0;
            if shim::cond_resched_interrupted() {
                return Err(Stop::Signal);
            }
        }
        Ok(())
    }
}

/// Copies a range between pinned memory along the runs of both sides, whatever signals there are,
/// unless `stop` says so meanwhile. Returns whether all of it was copied.
pub(crate) fn between(
    from: &PinnedPages,
    from_offset: u64,
    to: &PinnedPages,
    to_offset: u64,
    length: u64,
    stop: impl Fn() -> bool,
) -> bool {
    let mut done = 0u64;
    let (mut from_hint, mut to_hint) = (0, 0);
    let mut since_check = 0;
    while done < length {
        let (Some((from_address, from_len)), Some((to_address, to_len))) = (
            from.locate(from_offset + done, &mut from_hint),
            to.locate(to_offset + done, &mut to_hint),
        ) else {
            break;
        };
        let left = usize::try_from(length - done).unwrap_or(usize::MAX);
        let len = from_len.min(to_len).min(left).min(CHUNK);
        // SAFETY: Both are pinned memory of at least `len` bytes. The two regions may be made of
        // the same pages (a process may publish memory twice), hence no assumption that they do
        // not overlap; user space may change them meanwhile, so they are only ever raw bytes.
        let moved = unsafe { shim::move_bytes(from_address, to_address, len) };
        done += moved as u64;
        if moved < len {
            break;
        }
        since_check += len;
        if since_check >= CHUNK {
            since_check = 0;
            shim::cond_resched_interrupted();
            if stop() {
                break;
            }
        }
    }
    done == length
}

/// CRC32C of a range of pinned memory; `None` if `stop` says so meanwhile.
pub(crate) fn checksum(
    pages: &PinnedPages,
    offset: u64,
    length: u64,
    stop: impl Fn() -> bool,
) -> Option<u32> {
    let (mut done, mut hint, mut sum, mut since_check) = (0, 0, !0, 0);
    while done < length {
        let Some((address, len)) = pages.locate(offset + done, &mut hint) else {
            break;
        };
        let len = u64::min(len as u64, length - done).min(CHUNK as u64);
        // SAFETY: Pinned memory of at least `len` bytes.
        sum = unsafe { shim::crc32c(sum, address, len as usize) };
        done += len;
        // Runs are as short as pages: only what adds up to a chunk is worth a look.
        since_check += len;
        if since_check >= CHUNK as u64 {
            since_check = 0;
            shim::cond_resched_interrupted();
            if stop() {
                return None;
            }
        }
    }
    Some(!sum)
}
