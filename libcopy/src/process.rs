// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which process this is: a forked child is another one than its parent.
//!
//! What a process shares with others, a child has inherited and does not own: its parent goes on to
//! use it. So whatever refers to such a thing keeps the [`Home`] that it was made in, and asks it
//! before it touches the thing. Asking costs two loads. There is no system call in it, and no hook
//! that a child made by `clone(2)` would go past: the kernel itself clears the page behind it in a
//! child that has memory of its own (madvise(2), `MADV_WIPEONFORK`, Linux 4.14). A child of
//! `vfork(2)` borrows its parent's memory, and may only execute a program.

use std::ffi::c_uint;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::ptr::{self, NonNull};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use crate::error::{Error, Result};

/// What names a process. All zeros in one that has not asked yet.
#[derive(Debug)]
#[repr(C)]
struct Name {
    /// A number that no other process has.
    word: AtomicU64,
    pid: AtomicU32,
}

/// The name of this process.
static NAME: LazyLock<&'static Name> = LazyLock::new(|| wiped(libc::MADV_WIPEONFORK));

/// The same where the kernel does not clear pages.
static WITHOUT_WIPING: Name = Name {
    word: AtomicU64::new(0),
    pid: AtomicU32::new(0),
};

/// A name that is gone in a forked child. `advice` is what has the kernel clear it there.
fn wiped(advice: libc::c_int) -> &'static Name {
    // SAFETY: a new mapping, which nobody unmaps; the kernel says where it is.
    let page = unsafe {
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let page = libc::mmap(ptr::null_mut(), 4096, access, kind, -1, 0);
        let page = NonNull::new(page).filter(|page| page.as_ptr() != libc::MAP_FAILED);
        page.filter(|page| libc::madvise(page.as_ptr(), 4096, advice) == 0)
    };
    match page {
        // SAFETY: a page of our own, aligned; all zeros are valid.
        Some(page) => unsafe { page.cast::<Name>().as_ref() },
        None => {
            // SAFETY: the function does nothing but a store.
            unsafe { libc::pthread_atfork(None, None, Some(forget)) };
            &WITHOUT_WIPING
        }
    }
}

/// What the C library calls in a child.
extern "C" fn forget() {
    WITHOUT_WIPING.word.store(0, Ordering::Relaxed);
}

/// A process, as one of its handles knows it.
#[derive(Clone, Copy, Debug)]
pub struct Home {
    now: &'static AtomicU64,
    name: u64,
    /// Its number, for those who read an error.
    pid: u32,
}

impl Home {
    /// This process.
    pub fn here() -> Home {
        let here: &'static Name = *NAME;
        let mut name = here.word.load(Ordering::Acquire);
        if name == 0 {
            // The first call, or the first one in a forked child.
            here.pid.store(std::process::id(), Ordering::Relaxed);
            let fresh = random() | 1;
            let order = (Ordering::AcqRel, Ordering::Acquire);
            name = match here.word.compare_exchange(0, fresh, order.0, order.1) {
                Ok(_) => fresh,
                Err(other) => other,
            };
        }
        Home {
            now: &here.word,
            name,
            pid: here.pid.load(Ordering::Relaxed),
        }
    }

    /// Whether this is that process still, and no child of it.
    #[inline(always)]
    pub fn is_here(&self) -> bool {
        self.now.load(Ordering::Relaxed) == self.name
    }

    /// Fails unless it is. `what` belongs to the process, as an error has it.
    ///
    /// # Errors
    ///
    /// [`Error::Forked`].
    #[inline]
    pub fn check(&self, what: &'static str) -> Result<()> {
        if self.is_here() {
            Ok(())
        } else {
            Err(self.error(what))
        }
    }

    #[cold]
    fn error(&self, what: &'static str) -> Error {
        Error::Forked {
            what,
            owner: self.pid,
        }
    }

    /// A number that no other process has, also in another pid namespace; never 0.
    pub fn name(&self) -> u64 {
        self.name
    }
}

/// The pid namespace of this process (namespaces(7)), if `/proc` shows it: a number that no other
/// one of this machine has.
pub(crate) fn pid_namespace() -> Option<u64> {
    let namespace = std::fs::metadata("/proc/self/ns/pid").ok()?;
    Some(namespace.ino())
}

/// Random bytes of the kernel's.
///
/// By the system call's number: glibc has a function for it from 2.25 on, and programs with an
/// older one can have `libcopy_mpi.so` preloaded.
///
/// # Errors
///
/// Those of `getrandom`, but for `EINTR`, after which it is called again.
pub(crate) fn fill_random(mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // SAFETY: `bytes` is writable for its length.
        let n = unsafe {
            libc::syscall(
                libc::SYS_getrandom,
                bytes.as_mut_ptr(),
                bytes.len(),
                0 as c_uint,
            )
        };
        match usize::try_from(n) {
            Ok(n) => bytes = &mut bytes[n..],
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

/// 64 bits that no other process has.
fn random() -> u64 {
    let mut word = [0; 8];
    match fill_random(&mut word) {
        Ok(()) => u64::from_ne_bytes(word),
        // Where a filter of system calls forbids that.
        Err(_) => RandomState::new().hash_one((std::process::id(), Instant::now())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a forked child says of itself.
    fn in_child(work: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child only calls `work`, which neither allocates nor locks, and ends.
        match unsafe { libc::fork() } {
            0 => {
                let code = i32::from(!work());
                // SAFETY: ends the child.
                unsafe { libc::_exit(code) }
            }
            child => {
                let mut status = -1;
                // SAFETY: our own child, a writable output.
                let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
                ended == child && status == 0
            }
        }
    }

    #[test]
    fn a_child_is_somewhere_else() {
        let home = Home::here();
        assert!(home.is_here() && home.check("it").is_ok());
        assert_eq!(home.name(), Home::here().name());
        assert!(in_child(|| !home.is_here()));
        assert!(in_child(|| {
            let child = Home::here();
            child.is_here() && child.name() != home.name() && !home.is_here()
        }));
        assert!(home.is_here());
        let text = home.error("this team").to_string();
        assert!(text.contains(&std::process::id().to_string()), "{text}");
    }

    #[test]
    fn a_kernel_that_clears_no_pages_is_not_needed() {
        let name = wiped(-1);
        assert!(ptr::eq(name, &WITHOUT_WIPING));
        name.word.store(7, Ordering::Relaxed);
        assert!(in_child(|| name.word.load(Ordering::Relaxed) == 0));
        assert_eq!(name.word.load(Ordering::Relaxed), 7);
    }
}
