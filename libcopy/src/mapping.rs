// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of a file that this process shares with others.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of a file in our address space; dropping it unmaps them. Who uses the memory says how threads and processes
/// share it.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    base: NonNull<u8>,
    len: NonZero<usize>,
}

// SAFETY: the mapping is not tied to a thread.
unsafe impl Send for SharedMapping {}
// SAFETY: it is but an address, through which nothing is read or written here.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `len` bytes of a file from `at` on, which is a multiple of a page.
    pub(crate) fn new(
        file: impl AsFd,
        at: u64,
        len: usize,
        protection: ProtFlags,
    ) -> io::Result<SharedMapping> {
        let len = NonZero::new(len).ok_or(Errno::EINVAL)?;
        let at = at.try_into().map_err(|_| Errno::EOVERFLOW)?;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, file, at) }?.cast();
        Ok(SharedMapping { base, len })
    }

    /// Maps memory to read and write.
    pub(crate) fn writable(file: &File, at: u64, len: usize) -> io::Result<SharedMapping> {
        SharedMapping::new(file, at, len, ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)
    }

    /// Its first byte, on a page of its own.
    #[inline]
    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// How many bytes there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.cast(), self.len.get()) };
    }
}
