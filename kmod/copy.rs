// SPDX-License-Identifier: GPL-2.0

//! Copies by the CPU: a region, or ranges of it, to and from the caller's pieces, and region to region.
//!
//! No lock is held while bytes move; a copy ends early, with what it has done so far, when a signal
//! is pending, and gives way to other tasks between chunks.

use crate::pin::PinnedPages;
use crate::region::Region;
use crate::shim;
use crate::stats::Counter;
use crate::uapi::{
    Piece, RegionCopy, COPY_COUNT_USE, COPY_FROM_REGION, COPY_TO_REGION, RIGHT_READ, RIGHT_WRITE,
};
use core::marker::PhantomData;
use kernel::bindings;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;
use kernel::sync::Arc;

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

/// What `import_iovec()` accepts at most (MAX_RW_COUNT in `include/linux/fs.h`).
const MAX_PER_CALL: usize = (i32::MAX as usize) & !(PAGE_SIZE - 1);

/// Pieces whose description fits on the stack.
const FEW: usize = 8;

/// The caller's pieces, checked by the kernel and consumed as bytes move.
struct UserPieces<'a> {
    iter: bindings::iov_iter,
    /// Where the kernel allocated the description of the pieces, if there are more than `FEW`.
    allocated: *mut bindings::iovec,
    _few: PhantomData<&'a mut [bindings::iovec; FEW]>,
}

impl<'a> UserPieces<'a> {
    /// Reads the iovec at `address` once. `into` says whether the pieces will be written.
    fn import(
        address: u64,
        count: u32,
        into: bool,
        few: &'a mut [bindings::iovec; FEW],
    ) -> Result<Self> {
        let mut iter = bindings::iov_iter::default();
        let mut vector = few.as_mut_ptr();
        let direction = if into {
            bindings::ITER_DEST
        } else {
            bindings::ITER_SOURCE
        };
        // SAFETY: `uapi::Piece` has the layout of `struct iovec`. `vector` points to `FEW`
        // elements, which outlive the iterator; the kernel replaces it by what it allocated, or by
        // null if it allocated nothing.
        let ret = unsafe {
            bindings::import_iovec(
                direction as i32,
                address as usize as *const bindings::iovec,
                count,
                FEW as u32,
                &mut vector,
                &mut iter,
            )
        };
        if ret < 0 {
            return Err(Error::from_errno(ret as i32));
        }
        Ok(Self {
            iter,
            allocated: vector,
            _few: PhantomData,
        })
    }

    /// Bytes that the pieces still hold.
    fn left(&self) -> usize {
        // SAFETY: `count` is valid for every kind of iterator.
        unsafe { self.iter.__bindgen_anon_1.__bindgen_anon_1.as_ref().count }
    }
}

impl Drop for UserPieces<'_> {
    fn drop(&mut self) {
        // SAFETY: Null, or the array that `import_iovec()` allocated for us.
        unsafe { bindings::kfree(self.allocated.cast()) };
    }
}

/// Performs [`crate::uapi::REGION_COPY`]; fills in `args.done`. `ranges` are what the caller listed of the
/// region, if it did.
pub(crate) fn region_copy(
    region: &Arc<Region>,
    args: &mut RegionCopy,
    ranges: Option<&[Piece]>,
) -> Result {
    let from_region = match args.flags & (COPY_FROM_REGION | COPY_TO_REGION) {
        COPY_FROM_REGION => true,
        COPY_TO_REGION => false,
        _ => return Err(EINVAL),
    };
    region.permit(if from_region { RIGHT_READ } else { RIGHT_WRITE })?;
    let whole = [Piece {
        base: 0,
        len: args.length,
    }];
    let ranges = ranges.unwrap_or(&whole);
    let mut listed = 0u64;
    for range in ranges {
        let start = args.offset.checked_add(range.base).ok_or(ERANGE)?;
        region.contains(start, range.len)?;
        listed = listed.saturating_add(range.len);
    }
    if listed < args.length {
        return Err(EINVAL);
    }
    let mut few = core::array::from_fn(|_| bindings::iovec::default());
    let mut user = UserPieces::import(args.iov, args.iov_count, from_region, &mut few)?;
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
    let done = move_bytes(pages, (args.offset, ranges), wanted, &mut user, from_region);
    let stats = &region.owner.domain.stats;
    stats.add(
        if from_region {
            Counter::BytesFromRegion
        } else {
            Counter::BytesToRegion
        },
        done.bytes as u64,
    );
    if done.fault {
        stats.add(Counter::Faults, 1);
    }
    if done.bytes == 0 && wanted != 0 {
        return Err(if done.fault { EFAULT } else { EINTR });
    }
    args.done = done.bytes as u64;
    if args.done == args.length && args.flags & COPY_COUNT_USE != 0 {
        region.count_copy();
    }
    Ok(())
}

/// How far a copy came, and whether memory of the caller stopped it.
struct Progress {
    bytes: usize,
    fault: bool,
}

/// Short pieces of pinned memory whose bytes go to or come from the caller together: to open and close
/// access to user memory costs more than to copy a few bytes.
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
            let moved = unsafe { shim::copy_pieces_to_iter(pieces, wanted, &mut user.iter) };
            if moved == wanted {
                return moved;
            }
        }
        // SAFETY: Pinned memory, of as many bytes together.
        unsafe { move_by_buffer(pieces, wanted, user, from_region) }
    }
}

/// Moves the bytes of pieces over a buffer: into any pieces of the caller's, or as far as its memory can be written; and
/// out of the caller's memory. Returns how many.
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
        // SAFETY: The buffer has `wanted` bytes; the iterator is valid.
        return unsafe { bindings::_copy_to_iter(buffer.as_ptr().cast(), wanted, &mut user.iter) };
    }
    // SAFETY: As above.
    let moved =
        unsafe { bindings::_copy_from_iter(buffer.as_mut_ptr().cast(), wanted, &mut user.iter) };
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
    // SAFETY: The memory is pinned and has `len` bytes; user memory is checked as the iterator comes to it.
    unsafe {
        if from_region {
            bindings::_copy_to_iter(address.cast(), len, &mut user.iter)
        } else {
            bindings::_copy_from_iter(address.cast(), len, &mut user.iter)
        }
    }
}

/// Copies `wanted` bytes of the ranges, which lie in the region if they count from `offset`.
fn move_bytes(
    pages: &PinnedPages,
    (offset, ranges): (u64, &[Piece]),
    wanted: usize,
    user: &mut UserPieces<'_>,
    from_region: bool,
) -> Progress {
    let stopped = |bytes, fault| Progress { bytes, fault };
    let mut batch = Batch::new();
    // Bytes that were moved, and those that are in the batch.
    let (mut done, mut left) = (0, wanted);
    let mut hint = 0;
    let mut since_check = 0;
    for range in ranges {
        let mut at = offset + range.base;
        let end = at + u64::min(range.len, left as u64);
        while at < end {
            let Some((address, len)) = pages.locate(at, &mut hint) else {
                return stopped(done, false);
            };
            let len = len.min((end - at) as usize).min(CHUNK);
            let is_short = len <= SHORT;
            if batch.count > 0 && !(is_short && batch.takes(len)) {
                let wanted = batch.bytes;
                // SAFETY: `locate` returned pinned memory.
                let moved = unsafe { batch.flush(user, from_region) };
                done += moved;
                if moved < wanted {
                    return stopped(done, true);
                }
            }
            if is_short {
                batch.pieces[batch.count] = bindings::kvec {
                    iov_base: address.cast(),
                    iov_len: len,
                };
                batch.count += 1;
                batch.bytes += len;
            } else {
                // SAFETY: `locate` returned pinned memory of at least `len` bytes.
                let moved = unsafe { move_piece(address, len, user, from_region) };
                done += moved;
                if moved < len {
                    return stopped(done, true);
                }
            }
            at += len as u64;
            left -= len;
            // Short pieces cost time without adding up to bytes.
            since_check += usize::max(len, MIN_COST);
            if since_check >= CHUNK {
                since_check = 0;
                if shim::cond_resched_interrupted() {
                    return stopped(done, false);
                }
            }
        }
    }
    if batch.count == 0 {
        return stopped(done, false);
    }
    let wanted = batch.bytes;
    // SAFETY: As above.
    let moved = unsafe { batch.flush(user, from_region) };
    stopped(done + moved, moved < wanted)
}

/// Copies a range between pinned memory along the runs of both sides, whatever signals there are, unless `stop`
/// says so meanwhile. Returns whether all of it was copied.
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
        unsafe { core::ptr::copy(from_address, to_address, len) };
        done += len as u64;
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
