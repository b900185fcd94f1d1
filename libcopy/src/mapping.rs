// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of a file that this process shares with others.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::refusal::{self, Service, without_signal};

/// Bytes of a file in our address space; dropping it unmaps them. Who uses the memory says how
/// threads and processes share it.
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

/// Gives a file the memory of `len` bytes from `at` on, which are made if there are none, and stay
/// as they are otherwise: a tmpfs that is full would kill a process that touches them. `EFBIG` if
/// this process may not make such files.
pub(crate) fn reserve(file: &File, at: usize, len: usize) -> io::Result<()> {
    let error = loop {
        let (at, len) = (at as libc::off_t, len as libc::off_t);
        match without_signal(|| posix_fallocate(file, at, len)) {
            Ok(()) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(errno @ (Errno::ENOSPC | Errno::EFBIG)) => return Err(errno.into()),
            Err(errno) => break errno.into(),
        }
    };
    // Refused, not exhausted: touched by the kernel, the pages are there, too.
    refusal::note(Service::Reserve, &error);
    if file.metadata()?.len() < (at + len) as u64 {
        set_len(file, at + len)?;
    }
    let start = at - at % PAGE;
    let mapping = SharedMapping::writable(file, start as u64, at - start + len)?;
    // SAFETY: our own mapping, whose bytes stay as they are.
    match unsafe { libc::madvise(mapping.base().cast(), mapping.len(), POPULATE_WRITE) } {
        0 => Ok(()),
        _ => Err(error),
    }
}

/// Has a file have this length. `EFBIG` if this process may not make such files.
pub(crate) fn set_len(file: &File, len: usize) -> io::Result<()> {
    without_signal(|| file.set_len(len as u64))
}

/// `MADV_POPULATE_WRITE` (Linux 5.14): an error where touching the pages would raise a signal.
const POPULATE_WRITE: libc::c_int = 23;
/// Bytes of a page.
const PAGE: usize = 4096;

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.cast(), self.len.get()) };
    }
}
