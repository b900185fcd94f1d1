// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the protocols need from the machine, so that `loom` can take the machine's place.
//!
//! The bell, the rings and the barrier use these names only. Built with `--cfg loom`, they run
//! under a checker that tries every interleaving and every reordering that the memory model
//! allows.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use std::time::Duration;

/// A word that a process can sleep on.
#[repr(transparent)]
#[cfg(not(loom))]
pub(crate) struct Futex {
    pub(crate) word: AtomicU32,
}

#[cfg(not(loom))]
impl Futex {
    /// Sleeps while the word is `expected`, at most for `timeout`.
    pub(crate) fn wait(&self, expected: u32, timeout: Duration) {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs() as _,
            tv_nsec: timeout.subsec_nanos() as _,
        };
        // Every outcome (woken, value changed, signal, timeout) leads the caller to look again.
        // SAFETY: the word outlives the call; it is shared between processes, hence no PRIVATE.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                libc::FUTEX_WAIT,
                expected,
                &raw const timeout,
            )
        };
    }

    /// Wakes everybody who sleeps on the word.
    pub(crate) fn wake(&self) {
        // SAFETY: the kernel only uses the address as a name.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.word.as_ptr(),
                libc::FUTEX_WAKE,
                i32::MAX,
            )
        };
    }
}

#[cfg(loom)]
pub(crate) struct Futex {
    pub(crate) word: AtomicU32,
    asleep: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

#[cfg(loom)]
impl Futex {
    pub(crate) fn new() -> Self {
        Futex {
            word: AtomicU32::new(0),
            asleep: (loom::sync::Mutex::new(()), loom::sync::Condvar::new()),
        }
    }

    pub(crate) fn wait(&self, expected: u32, _timeout: Duration) {
        // As in the kernel: comparing and going to sleep is one step for those who wake.
        let guard = self.asleep.0.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == expected {
            drop(self.asleep.1.wait(guard).unwrap());
        }
    }

    pub(crate) fn wake(&self) {
        let _guard = self.asleep.0.lock().unwrap();
        self.asleep.1.notify_all();
    }
}
