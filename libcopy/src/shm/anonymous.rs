// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory that the processes of one machine share: an anonymous file that the others open through
//! `/proc`, so that nothing of it can be left over.

use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{FromRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mapping::{self, SharedMapping};

/// Bytes in front of what is shared, where it says which memory it is.
const PAGE: usize = 4096;

/// An anonymous file without bytes; `name` is what `/proc` shows.
///
/// It is made by the system call's number: glibc has a function for it from 2.27 on, and programs
/// with an older one can have `libcopy_mpi.so` preloaded.
///
/// # Errors
///
/// Those of `memfd_create`.
pub fn file(name: &CStr) -> io::Result<File> {
    // SAFETY: a valid name; the new descriptor is ours.
    unsafe {
        match libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd as RawFd)),
        }
    }
}

/// Memory of an anonymous file, mapped; all zeros at first.
#[derive(Debug)]
pub struct AnonymousSegment {
    mapping: SharedMapping,
}

impl AnonymousSegment {
    /// Makes memory of `bytes` bytes; the file is for the others to open.
    ///
    /// # Errors
    ///
    /// Those of `memfd_create`, `ftruncate` and `mmap`.
    pub fn create(
        name: &CStr,
        bytes: usize,
        magic: [u64; 2],
    ) -> io::Result<(AnonymousSegment, File)> {
        let file = file(name)?;
        mapping::set_len(&file, PAGE.saturating_add(bytes))?;
        let segment = AnonymousSegment::map(&file, bytes)?;
        for (place, word) in segment.magic().iter().zip(magic) {
            place.store(word, Ordering::Release);
        }
        Ok((segment, file))
    }

    /// Opens what the process `pid` has made with this descriptor.
    ///
    /// # Errors
    ///
    /// Those of `open` and `mmap`; `InvalidData` if the file has another length or other magic
    /// numbers.
    pub fn open(pid: i32, fd: i32, bytes: usize, magic: [u64; 2]) -> io::Result<AnonymousSegment> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() != PAGE.saturating_add(bytes) as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let segment = AnonymousSegment::map(&file, bytes)?;
        let found: Vec<u64> = segment
            .magic()
            .iter()
            .map(|word| word.load(Ordering::Acquire))
            .collect();
        // Another process namespace may have another process of this number.
        if found == magic {
            Ok(segment)
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    }

    fn map(file: &File, bytes: usize) -> io::Result<AnonymousSegment> {
        let mapping = SharedMapping::writable(file, 0, PAGE + bytes)?;
        Ok(AnonymousSegment { mapping })
    }

    fn magic(&self) -> &[AtomicU64; 2] {
        // SAFETY: the first page; all zeros are valid.
        unsafe { &*self.mapping.base().cast() }
    }

    /// Where byte `at` is, on whole pages where that is a multiple of one.
    ///
    /// # Panics
    ///
    /// If `len` bytes from there on are not all there.
    pub fn place(&self, at: usize, len: usize) -> *mut u8 {
        let (end, all) = (at.checked_add(len), self.mapping.len() - PAGE);
        assert!(end.is_some_and(|end| end <= all), "shared memory");
        self.mapping.base().wrapping_add(PAGE + at)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn others_see_the_same_memory() {
        let (own, file) = AnonymousSegment::create(c"libcopy-test", 64, [3, 4]).unwrap();
        let pid = std::process::id() as i32;
        let other = AnonymousSegment::open(pid, file.as_raw_fd(), 64, [3, 4]).unwrap();
        // SAFETY: within both mappings.
        unsafe {
            own.place(63, 1).write(7);
            assert_eq!(other.place(63, 1).read(), 7);
        }
        assert!(AnonymousSegment::open(pid, file.as_raw_fd(), 64, [3, 5]).is_err());
        assert!(AnonymousSegment::open(pid, file.as_raw_fd(), 65, [3, 4]).is_err());
    }
}
