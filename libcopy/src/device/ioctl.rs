// SPDX-License-Identifier: MIT OR Apache-2.0

//! Issuing an ioctl on the device, and what its errors mean.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::error::{Error, Result};

/// Issues one ioctl, again if a signal interrupts it.
///
/// # Safety
///
/// `command` takes a `T`, and memory that the argument points to is fit for what it does.
pub(super) unsafe fn ioctl<T>(
    fd: BorrowedFd<'_>,
    name: &'static str,
    command: u32,
    arg: &mut T,
) -> Result<()> {
    loop {
        // SAFETY: the caller vouches for the argument; the descriptor is open.
        let rc =
            unsafe { ioctl_sys::ioctl(fd.as_raw_fd(), command.into(), std::ptr::from_mut(arg)) };
        if rc >= 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        if source.raw_os_error() != Some(libc::EINTR) {
            let hint = hint(name, source.raw_os_error().unwrap_or(0));
            return Err(Error::Ioctl {
                ioctl: name,
                source,
                hint,
            });
        }
    }
}

/// What an errno of an ioctl means, after `uapi.rs`.
fn hint(ioctl: &str, errno: i32) -> &'static str {
    match (ioctl, errno) {
        (_, libc::ENOTTY) => "the module does not know this command: it is older than the library",
        (_, libc::E2BIG) => "the module is older than the library",
        (_, libc::ENOTCONN) => "the file belongs to no domain",
        (_, libc::EISCONN) => "the file belongs to a domain already",
        ("DOMAIN_JOIN", libc::ENOENT) => "no domain has this key: its creator left",
        ("DOMAIN_JOIN", libc::EPERM) => "only the creator's user may join",
        ("REGION_CREATE", libc::ENOMEM) => "RLIMIT_MEMLOCK would be exceeded: raise `ulimit -l`",
        ("REGION_CREATE", libc::EACCES) => "the memory is not writable, or not readable",
        ("REGION_CREATE", libc::EOPNOTSUPP) => {
            "this memory cannot be pinned: device or file mapping"
        }
        ("REGION_CREATE", libc::ENOSPC) => "too many regions: see the module parameter max_regions",
        ("REGION_CREATE", libc::EFAULT) => "a piece is not mapped",
        ("REGION_ATTACH", libc::EOPNOTSUPP) => "the pieces do not meet at page boundaries: copy",
        ("REQUEST_SUBMIT", libc::ENODEV) => "no engine: let a CPU copy",
        ("REQUEST_SUBMIT", libc::ENOSPC) => "too many requests: release those that have ended",
        ("REQUEST_SUBMIT", libc::EAGAIN) => {
            "no thread for the request: raise `ulimit -u` or pids.max, or let a CPU copy"
        }
        ("REQUEST_WAIT" | "REQUEST_SWITCH", libc::ETIMEDOUT) => "fragments are outstanding",
        ("REQUEST_WAIT" | "REQUEST_SWITCH", libc::ECANCELED) => "the request was cancelled",
        ("REQUEST_WAIT" | "REQUEST_SWITCH", libc::EIO) => {
            "bytes arrived damaged, and again when copied once more"
        }
        ("REQUEST_WAIT" | "REQUEST_CANCEL", libc::EPERM) => "another process submitted the request",
        ("REQUEST_WAIT" | "REQUEST_SWITCH" | "REQUEST_INFO" | "REQUEST_CANCEL", libc::ENOENT) => {
            "no such request: it was released, or its submitter is gone"
        }
        ("REGION_DESTROY", libc::EPERM) => "another process owns the region",
        (_, libc::ENOENT) => "no such region: its owner took it back",
        (_, libc::EACCES) => "the region's rights do not allow this",
        (_, libc::ERANGE) => "beyond the end of the region",
        (_, libc::ESTALE) => "the owner unmapped or replaced the memory",
        (_, libc::EOWNERDEAD) => "the owner of the region is gone",
        (_, libc::EFAULT) => "our own memory cannot be accessed",
        (_, libc::EINVAL) => "an argument does not fit",
        (_, libc::ENOMEM) => "the kernel is out of memory",
        _ => "unexpected",
    }
}

#[cfg(test)]
mod tests {
    use crate::uapi;

    #[test]
    fn commands_are_what_c_makes_of_them() {
        let c = ioctl_sys::iorw!(uapi::IOC_TYPE, 7, 24);
        assert_eq!(u64::from(uapi::iowr(7, 24)), c as u64);
    }
}
