// SPDX-License-Identifier: GPL-2.0

//! [`PinnedPages`]: user pages held in place, and released exactly once.
//!
//! A page is pinned once however many pieces name it. Pages of another process are looked at, never
//! waited for with its lock held: its memory may be up to somebody who does not answer.

use crate::abstractions::errno;
use crate::abstractions::shim;
use crate::base::few::Few;
use crate::base::stats::{self, Counter, Stats};
use crate::memory::spans::page_range;
use crate::memory::watch::{Look, Watch};
use crate::uapi::Piece;
use kernel::bindings;
use kernel::mm::{Mm, MmWithUser};
use kernel::page::{PAGE_SHIFT, PAGE_SIZE};
use kernel::prelude::*;
use kernel::sync::aref::ARef;
use kernel::sync::atomic::{Atomic, Relaxed};
use kernel::sync::Arc;

/// Pages pinned per call into the memory manager, so that a kill is noticed in time.
const BATCH: usize = 16384;

/// Pages that are compared at a time.
const CHUNK: usize = 256;

/// Physically contiguous bytes of the pinned memory.
///
/// Huge pages and neighbours that happen to be adjacent form one run; one run is one copy.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    /// Where the run starts, counted in bytes from the start of the first piece.
    pub(crate) offset: u64,
    /// Where it starts in the kernel's direct map.
    pub(crate) address: *mut u8,
    /// Bytes.
    pub(crate) len: usize,
}

/// User memory pinned with FOLL_LONGTERM; who pays for it is [`crate::memory::account`]'s affair.
///
/// # Invariants
///
/// - Every element of `pins` holds one pin that this object owns.
/// - `pages` holds elements of `pins` only.
/// - The runs cover the pieces in order without gaps, and each lies within pinned pages.
/// - `counted` says whether the domain's `Maps` counter includes this object.
pub(crate) struct PinnedPages {
    mm: ARef<Mm>,
    /// Of the domain.
    stats: Arc<Stats>,
    /// The pages of the spans, in their order.
    pins: KVVec<*mut bindings::page>,
    /// The pages of the pieces, in their order, where that is another one.
    pages: Option<KVVec<*mut bindings::page>>,
    runs: Few<Run>,
    length: u64,
    /// Whether construction came to its end, so that dropping is an unmapping.
    counted: bool,
    /// Whether the memory may be written through us.
    writable: bool,
    /// Whether it has been; then the pages are dirty when they are released.
    written: Atomic<bool>,
    /// Offset of the first byte in the first page, if the pieces tile their pages without gaps.
    linear_offset: Option<usize>,
}

// SAFETY: The page pointers are owned pins, which any thread may use and release.
unsafe impl Send for PinnedPages {}
// SAFETY: Nothing is changed through a shared reference but an atomic.
unsafe impl Sync for PinnedPages {}

impl PinnedPages {
    /// Pins the caller's memory, which has been charged: the kernel's memory for it grows with what
    /// the caller asks for.
    ///
    /// `pieces` must have been checked: no piece wraps around the address space. With `write` the
    /// memory must be writable; without it writable anonymous memory is pinned for writing all the
    /// same, because only then does it keep its page when the owner writes to it for the first
    /// time (a page never written to is the shared zero page).
    pub(crate) fn pin(
        mm: &MmWithUser,
        stats: &Arc<Stats>,
        watch: &Watch,
        write: bool,
    ) -> Result<Self> {
        let (pieces, spans) = (watch.pieces(), watch.spans());
        let mut this = Self {
            mm: ARef::from(&**mm),
            stats: stats.clone(),
            pins: KVVec::new(),
            pages: None,
            runs: Few::new(),
            length: pieces.iter().map(|piece| piece.len).sum(),
            counted: false,
            writable: write,
            written: Atomic::new(false),
            linear_offset: None,
        };
        this.pins
            .reserve(spans.pages(), GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
        for span in spans.as_slice() {
            let mut page = span.start;
            while page < span.end {
                let (until, pin_writable) = if write {
                    (span.end, true)
                } else {
                    writable_anonymous(mm, page, span.end)
                };
                this.pin_range(page << PAGE_SHIFT, until - page, pin_writable)
                    .map_err(|error| explain(mm, page, until, write, error))?;
                page = until;
            }
        }
        if !spans.in_order() {
            let count = pieces.iter().map(|piece| page_range(piece).len()).sum();
            let mut pages = KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
            for page in pieces.iter().flat_map(page_range) {
                let pin = spans.index(page).and_then(|index| this.pins.get(index));
                // INVARIANT: An element of `pins`.
                pages.push(*pin.ok_or(EINVAL)?, GFP_KERNEL_ACCOUNT)?;
            }
            this.pages = Some(pages);
        }
        this.find_runs(pieces)?;
        stats::TOTAL.add_alone(Counter::PinnedRuns, this.runs.len() as u64);
        stats.add(Counter::Maps, 1);
        // INVARIANT: Counted just now.
        this.counted = true;
        Ok(this)
    }

    /// Pins `count` pages from `start` on; on error what was pinned before it stays recorded.
    fn pin_range(&mut self, start: usize, count: usize, write: bool) -> Result {
        let mut flags = bindings::FOLL_LONGTERM;
        if write {
            flags |= bindings::FOLL_WRITE;
        }
        let mut done = 0;
        while done < count {
            let batch = usize::min(count - done, BATCH);
            let room = self.pins.spare_capacity_mut();
            if room.len() < batch {
                return Err(EINVAL);
            }
            // SAFETY: `room` has space for `batch` pointers; no lock is held.
            let ret = unsafe {
                bindings::pin_user_pages_fast(
                    start + (done << PAGE_SHIFT),
                    batch as i32,
                    flags,
                    room.as_mut_ptr().cast(),
                )
            };
            if ret <= 0 {
                return Err(if ret < 0 {
                    Error::from_errno(ret)
                } else {
                    EFAULT
                });
            }
            // INVARIANT: The kernel pinned `ret` pages and stored them in the spare capacity.
            // SAFETY: `ret <= batch` elements were initialised just now.
            unsafe { self.pins.inc_len(ret as usize) };
            self.stats.add(Counter::Pins, ret as u64);
            done += ret as usize;
            if shim::fatal_signal_pending() {
                return Err(EINTR);
            }
        }
        Ok(())
    }

    /// Fills `runs` from `pages`.
    fn find_runs(&mut self, pieces: &[Piece]) -> Result {
        let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
        let (pages, mut index) = (self.pages(), 0);
        let mut runs = Few::new();
        let mut run: Option<Run> = None;
        let mut offset = 0u64;
        let mut linear = true;
        let mut first_offset = None;
        for piece in pieces {
            let mut within = piece.base as usize & (PAGE_SIZE - 1);
            let mut left = piece.len as usize;
            if left == 0 {
                continue;
            }
            match first_offset {
                None => first_offset = Some(within),
                // A later piece continues the mapping only if it starts on a page boundary and the
                // one before it ended on one.
                Some(first) => {
                    linear &= within == 0 && (first as u64 + offset) % PAGE_SIZE as u64 == 0;
                }
            }
            while left > 0 {
                let touched = (within + left).div_ceil(PAGE_SIZE);
                let some = pages.get(index..index + touched).ok_or(EINVAL)?;
                // SAFETY: The pages are pinned, see the type invariant; they are not none.
                let (address, many) = unsafe {
                    let address = shim::page_address(some[0]).add(within);
                    (address, shim::contiguous_pages(some))
                };
                let len = usize::min(left, many * PAGE_SIZE - within);
                index += many;
                match &mut run {
                    Some(run) if run.address.wrapping_add(run.len) == address => run.len += len,
                    _ => {
                        let next = Run {
                            offset,
                            address,
                            len,
                        };
                        if let Some(last) = run.replace(next) {
                            runs.push(last, flags)?;
                        }
                    }
                }
                offset += len as u64;
                left -= len;
                within = 0;
            }
        }
        if let Some(last) = run {
            runs.push(last, flags)?;
        }
        self.runs = runs;
        self.linear_offset = if linear {
            Some(first_offset.unwrap_or(0))
        } else {
            None
        };
        Ok(())
    }

    /// Bytes in all pieces.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The pinned pages in the order of the pieces: one that several pieces touch is there as
    /// often.
    pub(crate) fn pages(&self) -> &[*mut bindings::page] {
        self.pages.as_ref().unwrap_or(&self.pins)
    }

    /// The contiguous runs, ascending by offset.
    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Whether the pages were pinned for writing through us.
    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    /// Where the pages sit relative to huge-page boundaries: a mapping whose address is this many
    /// pages past such a boundary can use huge page-table entries.
    pub(crate) fn huge_phase(&self) -> usize {
        let per_huge = shim::HUGE_PAGES;
        let mut index = 0;
        while index + per_huge <= self.pages().len() {
            // SAFETY: The page is pinned, see the type invariant.
            let phase = unsafe { shim::page_to_pfn(self.pages()[index]) } % per_huge;
            let boundary = index + (per_huge - phase) % per_huge;
            if self.is_huge(boundary) {
                return (per_huge - boundary % per_huge) % per_huge;
            }
            index += per_huge;
        }
        0
    }

    /// Whether the pages from `index` on are one physically aligned huge page.
    pub(crate) fn is_huge(&self, index: usize) -> bool {
        let Some(pages) = self.pages().get(index..index + shim::HUGE_PAGES) else {
            return false;
        };
        // SAFETY: The pages are pinned, see the type invariant.
        let frame = |at: usize| unsafe { shim::page_to_pfn(pages[at]) };
        let first = frame(0);
        // Huge pages are whole: its ends tell, the rest is checked because runs may just happen.
        first % shim::HUGE_PAGES == 0
            && frame(shim::HUGE_PAGES - 1) == first + shim::HUGE_PAGES - 1
            && (1..shim::HUGE_PAGES).all(|at| frame(at) == first + at)
    }

    /// Where the first byte is if the pages laid side by side hold the memory without gaps.
    pub(crate) fn linear_offset(&self) -> Option<usize> {
        self.linear_offset
    }

    /// Remembers that memory was, or is about to be, written through us.
    pub(crate) fn mark_written(&self) {
        // Checked first so that parallel writers do not fight for the cache line.
        if !self.written.load(Relaxed) {
            self.written.store(true, Relaxed);
        }
    }

    /// The contiguous bytes at `offset`: kernel address and how many follow. `hint` is the index
    /// of the run where the caller was last and is updated.
    pub(crate) fn locate(&self, offset: u64, hint: &mut usize) -> Option<(*mut u8, usize)> {
        let runs = &*self.runs;
        let at = |index: usize| {
            let run = runs.get(index)?;
            // Before the run this is larger than any length.
            let skip = offset.wrapping_sub(run.offset);
            let inside = skip < run.len as u64;
            inside.then(|| {
                let skip = skip as usize;
                (run.address.wrapping_add(skip), run.len - skip)
            })
        };
        for index in [*hint, *hint + 1] {
            if let Some(found) = at(index) {
                *hint = index;
                return Some(found);
            }
        }
        let index = runs.partition_point(|run| run.offset + run.len as u64 <= offset);
        let found = at(index)?;
        *hint = index;
        Some(found)
    }

    /// Whether the same pages are still behind those of the owner's addresses that may have
    /// changed.
    pub(crate) fn still_there(&self, watch: &Watch, look: &Look) -> Result<bool> {
        let Some(mm) = self.mm.mmget_not_zero() else {
            return Ok(false);
        };
        // If the owner exits meanwhile, its memory is not for us to tear down.
        let mm = MmWithUser::into_mmput_async(mm);
        let mut frames = KVec::with_capacity(CHUNK, GFP_KERNEL)?;
        for span in watch.spans().as_slice() {
            let old = &self.pins[span.before..][..span.end - span.start];
            let (first, end) = (span.start << PAGE_SHIFT, span.end << PAGE_SHIFT);
            let mut address = first;
            while let Some((low, high)) = look.changed.first(address as u64, end as u64) {
                let index = (low as usize - first) >> PAGE_SHIFT;
                address = first + (index << PAGE_SHIFT);
                let left = (high as usize - address).div_ceil(PAGE_SIZE);
                let expected = &old[index..index + usize::min(left, CHUNK)];
                let room = frames.spare_capacity_mut();
                let plain = shim::same_pages(&mm, address, expected, room);
                let hidden = &expected[plain..];
                if !hidden.is_empty() && !same_pinned(&mm, address + (plain << PAGE_SHIFT), hidden)?
                {
                    return Ok(false);
                }
                address += expected.len() << PAGE_SHIFT;
                if shim::cond_resched_interrupted() && shim::fatal_signal_pending() {
                    return Err(EINTR);
                }
            }
        }
        Ok(true)
    }
}

/// Whether these pages are behind the addresses from `address` on, which may be protected or not
/// mapped just now: they are faulted in.
fn same_pinned(
    mm: &MmWithUser,
    mut address: usize,
    mut expected: &[*mut bindings::page],
) -> Result<bool> {
    let mut now = KVec::with_capacity(expected.len(), GFP_KERNEL)?;
    while !expected.is_empty() {
        let room = &mut now.spare_capacity_mut()[..expected.len()];
        let got = match pin_now(mm, address, room) {
            Ok(got) => got,
            // No page there is an answer; that this caller is being killed is none.
            Err(error) if error == EFAULT || error == errno::ehwpoison() => return Ok(false),
            Err(error) => return Err(error),
        };
        let same = room[..got].iter().zip(expected).all(
            // SAFETY: The first `got` slots were filled by the call above.
            |(slot, old)| unsafe { slot.assume_init() == *old },
        );
        // SAFETY: The call above pinned these pages for us; they are released once.
        unsafe { bindings::unpin_user_pages(room.as_mut_ptr().cast(), got) };
        if !same {
            return Ok(false);
        }
        address += got << PAGE_SHIFT;
        expected = &expected[got..];
    }
    Ok(true)
}

/// Pins the pages that are behind addresses now; returns how many, at least one.
///
/// A comparison needs no permission, and the owner may have protected its memory meanwhile (that is
/// how a buffer is guarded): FORCE looks behind PROT_NONE, too.
fn pin_now(
    mm: &MmWithUser,
    address: usize,
    room: &mut [core::mem::MaybeUninit<*mut bindings::page>],
) -> Result<usize> {
    let flags = bindings::FOLL_FORCE;
    let own = kernel::current!()
        .mm()
        .is_some_and(|own| own.as_raw() == mm.as_raw());
    let got = if own {
        let pages = room.as_mut_ptr().cast();
        // For the owner itself there is a way without the lock, and several times as fast.
        // SAFETY: These are the caller's own addresses; there is room for the pages.
        let got =
            unsafe { bindings::pin_user_pages_fast(address, room.len() as i32, flags, pages) };
        usize::try_from(got).map_err(|_| Error::from_errno(got))?
    } else {
        shim::pin_remote(mm, address, flags | bindings::FOLL_INTERRUPTIBLE, room)?
    };
    match got {
        0 => Err(EFAULT),
        got => Ok(got),
    }
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        let dirty = self.writable && self.written.load(Relaxed);
        for batch in self.pins.chunks_mut(BATCH) {
            let count = batch.len();
            // SAFETY: By the type invariant these pins are ours, and each is released once.
            unsafe {
                bindings::unpin_user_pages_dirty_lock(batch.as_mut_ptr(), count, dirty);
            }
            self.stats.add(Counter::Unpins, count as u64);
        }
        if self.counted {
            self.stats.add(Counter::Unmaps, 1);
        }
    }
}

/// The page where the mapping of page `start` ends, or `end` if that comes first, and whether it is
/// private or shared memory without a file that may be written.
fn writable_anonymous(mm: &MmWithUser, start: usize, end: usize) -> (usize, bool) {
    let guard = mm.mmap_read_lock();
    let Some(vma) = guard.vma_lookup(start << PAGE_SHIFT) else {
        return (end, false);
    };
    // SAFETY: The VMA is valid while the lock is held.
    let file = unsafe { (*vma.as_ptr()).vm_file };
    let writable = file.is_null() && vma.flags() & bindings::VM_WRITE != 0;
    (usize::min(end, vma.end() >> PAGE_SHIFT), writable)
}

/// Whether the owner may still do with its memory what a fresh pin would ask for.
pub(crate) fn permitted(mm: &MmWithUser, pieces: &[Piece], write: bool) -> bool {
    let mut wanted = bindings::VM_READ;
    if write {
        wanted |= bindings::VM_WRITE;
    }
    let guard = mm.mmap_read_lock();
    pieces.iter().filter(|piece| piece.len != 0).all(|piece| {
        let end = (piece.base + piece.len) as usize;
        let mut address = piece.base as usize;
        while address < end {
            match guard.vma_lookup(address) {
                Some(vma) if vma.flags() & wanted == wanted => address = vma.end(),
                _ => return false,
            }
        }
        true
    })
}

/// Turns the memory manager's EFAULT into an errno that says what is wrong with the pages from
/// `start` to `end`.
fn explain(mm: &MmWithUser, start: usize, end: usize, write: bool, error: Error) -> Error {
    // The fast path says EOVERFLOW for the last page of the address space.
    if error != EFAULT && error != EOVERFLOW {
        return error;
    }
    let guard = mm.mmap_read_lock();
    let mut address = start << PAGE_SHIFT;
    while address >> PAGE_SHIFT < end {
        let Some(vma) = guard.vma_lookup(address) else {
            return EFAULT;
        };
        let flags = vma.flags();
        if flags & (bindings::VM_IO | bindings::VM_PFNMAP) != 0 {
            return errno::eopnotsupp();
        }
        if flags & bindings::VM_READ == 0 || (write && flags & bindings::VM_WRITE == 0) {
            return EACCES;
        }
        // SAFETY: The VMA is valid while the lock is held.
        let file = unsafe { (*vma.as_ptr()).vm_file };
        if !file.is_null() && write && flags & bindings::VM_SHARED != 0 {
            return errno::eopnotsupp();
        }
        address = vma.end();
    }
    EFAULT
}
