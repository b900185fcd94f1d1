// SPDX-License-Identifier: MIT OR Apache-2.0

//! How a rank sleeps until a peer has news for it.
//!
//! Each rank has one bell. A peer that changes something that the rank may wait for rings it; that
//! costs a fence and a load as long as the rank is awake. No wake-up is lost: the sleeper sets
//! its bit, then looks at what it waits for; the ringer changes that, then looks at the bit; the
//! fences on both sides order the two, so at least one sees the other.

use std::time::Duration;

use super::sync::{Futex, Ordering, fence};

/// The rank is about to sleep. The other bits count wake-ups, so that a sleeper that compares the
/// word cannot miss one.
const ASLEEP: u32 = 1;

#[cfg_attr(not(loom), repr(C, align(64)))]
pub(crate) struct Doorbell {
    futex: Futex,
}

impl Doorbell {
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Doorbell {
            futex: Futex::new(),
        }
    }

    /// Sleeps once, unless `ready` already has a result, until the bell rings or time is over.
    pub(crate) fn park<T>(
        &self,
        timeout: Duration,
        ready: &mut impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let word = self.futex.word.fetch_or(ASLEEP, Ordering::Relaxed) | ASLEEP;
        fence(Ordering::SeqCst);
        let result = ready();
        if result.is_none() {
            self.futex.wait(word, timeout);
        }
        self.futex.word.fetch_and(!ASLEEP, Ordering::Relaxed);
        result.or_else(ready)
    }

    /// Tells the owner that something it may wait for has changed.
    #[inline]
    pub(crate) fn ring(&self) {
        Self::ring_all([self]);
    }

    /// The same of several bells.
    #[inline]
    pub(crate) fn ring_all<'a>(bells: impl IntoIterator<Item = &'a Doorbell>) {
        fence(Ordering::SeqCst);
        for bell in bells {
            if bell.futex.word.load(Ordering::Relaxed) & ASLEEP != 0 {
                bell.wake();
            }
        }
    }

    #[cold]
    fn wake(&self) {
        // Adding 2 keeps the bit and changes the count, so nobody compares equal any more.
        self.futex.word.fetch_add(2, Ordering::Relaxed);
        self.futex.wake();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::shm::sync::AtomicU32;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn loom_no_ring_is_lost() {
        loom::model(|| {
            let shared = Arc::new((Doorbell::new(), AtomicU32::new(0)));
            let ringer = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.1.store(1, Ordering::Release);
                    shared.0.ring();
                })
            };
            // Sleeps for ever if the ring is lost; loom reports that as a deadlock.
            let (bell, word) = &*shared;
            let mut ready = || (word.load(Ordering::Acquire) == 1).then_some(());
            while bell.park(Duration::MAX, &mut ready).is_none() {}
            ringer.join().unwrap();
        });
    }
}
