// SPDX-License-Identifier: MIT OR Apache-2.0

//! One-sided writes to another rank's memory that are under way, so that a rank whose operation has
//! failed does not get its memory back before they are over.
//!
//! The writer says to whom it writes, and looks then whether the team is broken. The rank that
//! fails breaks the team, and looks then who writes to it. Between its two steps each has a full
//! fence, so at least one sees the other.

use super::sync::{AtomicU64, Ordering, fence};

/// To whom a rank writes now: 0 to nobody, as at first.
#[cfg_attr(not(loom), repr(transparent))]
pub(crate) struct Puts(AtomicU64);

impl Puts {
    /// Writes to `rank`'s memory, if `check` finds the team whole.
    ///
    /// # Errors
    ///
    /// What `check` says: nothing was written.
    pub(crate) fn run<T, E>(
        &self,
        rank: usize,
        check: impl FnOnce() -> Result<(), E>,
        write: impl FnOnce() -> T,
    ) -> Result<T, E> {
        self.0.store(rank as u64 + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let written = check().map(|()| write());
        self.0.store(0, Ordering::Release);
        written
    }

    /// Whether one to `rank` is under way. Asked by this rank, after the team was broken and a
    /// sequentially consistent fence; if not, none begins any more.
    pub(crate) fn are_to(&self, rank: usize) -> bool {
        self.0.load(Ordering::Acquire) == rank as u64 + 1
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn loom_memory_that_was_given_back_is_not_written_to() {
        loom::model(|| {
            let (puts, broken) = (Puts(AtomicU64::new(0)), AtomicU64::new(0));
            let shared = Arc::new((puts, broken, UnsafeCell::new(0u64)));
            let other = shared.clone();
            let writer = thread::spawn(move || {
                let (puts, broken, memory) = &*other;
                let check = || match broken.load(Ordering::Acquire) {
                    0 => Ok(()),
                    _ => Err(()),
                };
                puts.run(3, check, || memory.with_mut(|at| unsafe { *at = 1 }))
            });
            let (puts, broken, memory) = &*shared;
            broken.store(1, Ordering::Release);
            fence(Ordering::SeqCst);
            assert!(!puts.are_to(2));
            while puts.are_to(3) {
                thread::yield_now();
            }
            // loom fails if the writer may write at the same time.
            memory.with_mut(|at| unsafe { *at += 2 });
            let was_written = writer.join().unwrap().is_ok();
            let expected = 2 + u64::from(was_written);
            assert_eq!(memory.with(|at| unsafe { *at }), expected);
        });
    }
}
