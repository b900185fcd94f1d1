// SPDX-License-Identifier: GPL-2.0

//! [`UserPieces`]: pieces of the caller's memory, as `struct iov_iter` has them
//! (`include/linux/uio.h`), to and from memory of the kernel that only raw pointers name.

use crate::abstractions::shim;
use core::marker::PhantomData;
use kernel::bindings;
use kernel::page::PAGE_SIZE;
use kernel::prelude::*;

/// What `import_iovec()` accepts at most (MAX_RW_COUNT in `include/linux/fs.h`).
pub(crate) const MAX_PER_CALL: usize = (i32::MAX as usize) & !(PAGE_SIZE - 1);

/// Pieces whose description fits on the stack.
const FEW: usize = 8;

/// Room for the description of a few pieces.
pub(crate) struct Room([bindings::iovec; FEW]);

impl Room {
    pub(crate) fn new() -> Self {
        Self(core::array::from_fn(|_| bindings::iovec::default()))
    }
}

/// The caller's pieces, checked by the kernel and consumed as bytes move.
pub(crate) struct UserPieces<'a> {
    iter: bindings::iov_iter,
    /// Where the kernel allocated the description of the pieces, if there are more than `FEW`.
    allocated: *mut bindings::iovec,
    _room: PhantomData<&'a mut Room>,
}

impl<'a> UserPieces<'a> {
    /// Reads the array of `struct iovec` at `address` once. `into` says whether the pieces will be
    /// written.
    pub(crate) fn import(address: u64, count: u32, into: bool, room: &'a mut Room) -> Result<Self> {
        let mut iter = bindings::iov_iter::default();
        let mut vector = room.0.as_mut_ptr();
        let direction = if into {
            bindings::ITER_DEST
        } else {
            bindings::ITER_SOURCE
        };
        // SAFETY: `vector` points to `FEW` elements, which outlive the iterator; the kernel
        // replaces it by what it allocated, or by null if it allocated nothing.
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
            _room: PhantomData,
        })
    }

    /// Bytes that the pieces still hold.
    pub(crate) fn left(&self) -> usize {
        // SAFETY: `count` is valid for every kind of iterator.
        unsafe { self.iter.__bindgen_anon_1.__bindgen_anon_1.as_ref().count }
    }

    /// Copies memory of the kernel's into the pieces. Returns how many bytes: fewer where the
    /// pieces cannot be written, or where the memory has lost what was in it (a machine check that
    /// `lib/iov_iter.c` recovers from, where the processor can).
    ///
    /// # Safety
    ///
    /// `from` has `len` readable bytes.
    #[inline(always)]
    pub(crate) unsafe fn write(&mut self, from: *const u8, len: usize) -> usize {
        #[cfg(CONFIG_ARCH_HAS_COPY_MC)]
        use bindings::_copy_mc_to_iter as copy;
        #[cfg(not(CONFIG_ARCH_HAS_COPY_MC))]
        use bindings::_copy_to_iter as copy;
        // SAFETY: `from` has `len` bytes; what the iterator names is checked as it is written.
        unsafe { copy(from.cast(), len, &mut self.iter) }
    }

    /// As [`write`](Self::write), from memory that is not broken.
    pub(crate) fn write_buffer(&mut self, from: &[u8]) -> usize {
        // SAFETY: A slice is readable; what the iterator names is checked as it is written.
        unsafe { bindings::_copy_to_iter(from.as_ptr().cast(), from.len(), &mut self.iter) }
    }

    /// Copies short pieces of memory, `total` bytes together, into the caller's. Returns `total`;
    /// or 0 if those are not one range, or not all of it can be written: then nothing is consumed.
    ///
    /// # Safety
    ///
    /// The pieces of memory are readable, and have `total` bytes together.
    pub(crate) unsafe fn write_pieces(&mut self, from: &[bindings::kvec], total: usize) -> usize {
        // SAFETY: As this function asks for; the iterator is valid.
        unsafe { shim::copy_pieces_to_iter(from, total, &mut self.iter) }
    }

    /// Copies out of the pieces; returns how many bytes: fewer where they cannot be read.
    ///
    /// # Safety
    ///
    /// `to` has `len` writable bytes.
    #[inline(always)]
    pub(crate) unsafe fn read(&mut self, to: *mut u8, len: usize) -> usize {
        // SAFETY: `to` has `len` bytes; what the iterator names is checked as it is read.
        unsafe { bindings::_copy_from_iter(to.cast(), len, &mut self.iter) }
    }
}

impl Drop for UserPieces<'_> {
    fn drop(&mut self) {
        // SAFETY: Null, or the array that `import_iovec()` allocated for us.
        unsafe { bindings::kfree(self.allocated.cast()) };
    }
}
