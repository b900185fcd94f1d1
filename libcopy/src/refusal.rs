// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the kernel refuses. A program has not asked for the services that are used on its behalf,
//! so their errors are not its own. One rule for all of them: whatever the kernel answers (no
//! right, no such system call, memory that is not read for others, a limit), the next way is taken,
//! and the statistics name the service, how often it was refused, and the first error.

use std::io::{self, Write};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// A service of the kernel's that there is another way for.
#[derive(Clone, Copy, Debug)]
pub enum Service {
    /// Reading another process's memory. Otherwise its owner copies it into shared memory.
    Read,
    /// Writing into it. Otherwise its owner reads ours.
    Write,
    /// Giving a file its memory. Otherwise its pages are touched, or it is not made.
    Reserve,
    /// Watching a process. Otherwise a signal is tried.
    Watch,
}

/// All of them, with the names of their system calls.
const SERVICES: [(Service, &str); 4] = [
    (Service::Read, "process_vm_readv"),
    (Service::Write, "process_vm_writev"),
    (Service::Reserve, "fallocate"),
    (Service::Watch, "pidfd_open"),
];

/// How often one was refused, and the first error.
struct Refused {
    times: AtomicU64,
    errno: AtomicI32,
}

static REFUSED: [Refused; SERVICES.len()] = [const {
    Refused {
        times: AtomicU64::new(0),
        errno: AtomicI32::new(0),
    }
}; SERVICES.len()];

/// Counts what was refused.
#[cold]
pub fn note(service: Service, error: &io::Error) {
    let refused = &REFUSED[service as usize];
    if refused.times.fetch_add(1, Ordering::Relaxed) == 0 {
        let errno = error.raw_os_error().unwrap_or(0);
        refused.errno.store(errno, Ordering::Relaxed);
    }
}

/// The system calls that were refused, how often, and the first error; 0 if one did nothing.
pub fn refused() -> impl Iterator<Item = (&'static str, u64, i32)> {
    let counts = SERVICES.iter().zip(&REFUSED).map(|((_, name), refused)| {
        let times = refused.times.load(Ordering::Relaxed);
        (*name, times, refused.errno.load(Ordering::Relaxed))
    });
    counts.filter(|(_, times, _)| *times != 0)
}

/// Does what may make a file longer than this process's limit (`RLIMIT_FSIZE`): that is the error
/// `EFBIG` then, and not the signal `SIGXFSZ` (setrlimit(2)), which ends programs that have written
/// no file.
pub fn without_signal<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: sets of signals are plain words, all zeros are one; all calls get sets and a time
    // that live. Whether they fail does not matter: then nothing is blocked.
    unsafe {
        let mut own: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut own);
        libc::sigaddset(&mut own, libc::SIGXFSZ);
        let is_pending = || {
            let mut pending: libc::sigset_t = std::mem::zeroed();
            libc::sigpending(&mut pending) == 0
                && libc::sigismember(&raw const pending, libc::SIGXFSZ) == 1
        };
        let was_pending = is_pending();
        let mut before: libc::sigset_t = std::mem::zeroed();
        if libc::pthread_sigmask(libc::SIG_BLOCK, &own, &mut before) != 0 {
            return work();
        }
        let result = work();
        if !was_pending && is_pending() {
            let at_once: libc::timespec = std::mem::zeroed();
            libc::sigtimedwait(&own, std::ptr::null_mut(), &at_once);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

/// Prints what has its line's end among the errors, in one call, so that the lines of processes do
/// not mix. Nobody hears of it if that is refused.
pub fn say(text: &str) {
    let _ = without_signal(|| io::stderr().write_all(text.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_kept() {
        for errno in [libc::EFAULT, libc::ENOSYS] {
            note(Service::Watch, &io::Error::from_raw_os_error(errno));
        }
        let watch = refused().find(|(name, ..)| *name == "pidfd_open");
        assert!(watch.is_some_and(|(_, times, errno)| times >= 2 && errno != 0));
    }
}
