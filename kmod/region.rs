// SPDX-License-Identifier: GPL-2.0

//! [`Region`]: a mapping that was published under an id, with rights and expected uses.

use crate::errno;
use crate::mapping::MappingRef;
use crate::member::Member;
use crate::uapi::{STATE_OWNER_DEAD, STATE_STALE};
use kernel::prelude::*;
use kernel::sync::atomic::{Acquire, Atomic, Full, Relaxed};
use kernel::sync::{Arc, CondVarTimeoutResult, UniqueArc};
use kernel::time::{Instant, Monotonic};

/// States of [`Region::finished`].
const PENDING: u32 = 0;
const FINISHED: u32 = 1;
const CLOSED: u32 = 2;

/// Published memory.
pub(crate) struct Region {
    pub(crate) id: u32,
    pub(crate) owner: Arc<Member>,
    pub(crate) mapping: MappingRef,
    pub(crate) rights: u32,
    /// Uses that were expected at creation; zero: nobody counts.
    expected: u32,
    left: Atomic<u32>,
    /// Whether all uses are over, and whether the region is gone.
    finished: Atomic<u32>,
    /// Deaths in the domain when the region was created.
    deaths: u64,
}

impl Region {
    /// A region that nobody knows yet.
    pub(crate) fn new(
        owner: &Arc<Member>,
        mapping: MappingRef,
        rights: u32,
        uses: u32,
    ) -> Result<UniqueArc<Self>> {
        Ok(UniqueArc::new(
            Self {
                id: 0,
                owner: owner.clone(),
                mapping,
                rights,
                expected: uses,
                left: Atomic::new(uses),
                finished: Atomic::new(PENDING),
                deaths: owner.domain.deaths.load(Acquire),
            },
            GFP_KERNEL_ACCOUNT,
        )?)
    }

    /// Bytes in the region.
    pub(crate) fn length(&self) -> u64 {
        self.mapping.pages().length()
    }

    /// Uses still expected.
    pub(crate) fn uses_left(&self) -> u32 {
        self.left.load(Relaxed)
    }

    /// `STATE_*` bits.
    ///
    /// - `EINTR`, `ENOMEM`: whether the memory has changed is not known; that is not a change.
    pub(crate) fn state(&self) -> Result<u32> {
        let mut state = 0;
        if self.owner.is_dead() {
            state |= STATE_OWNER_DEAD;
        }
        match self.mapping.check() {
            Ok(()) => {}
            Err(error) if error == errno::estale() => state |= STATE_STALE,
            Err(error) => return Err(error),
        }
        Ok(state)
    }

    /// Checks that the region may be used for `right` now.
    ///
    /// - `EACCES`, `EOWNERDEAD`, `ESTALE`: as in the ABI.
    pub(crate) fn permit(&self, right: u32) -> Result {
        let is_stale = |error: &Error| *error == errno::estale();
        match self.permit_unless_stale(right) {
            Err(error) if is_stale(&error) => self.mapping.check().map_err(|error| {
                // The memory went because its owner did, which is what the caller should hear.
                if is_stale(&error) && self.owner.is_dead() {
                    errno::eownerdead()
                } else {
                    error
                }
            }),
            result => result,
        }
    }

    /// Like [`permit`](Self::permit), but takes the slightest doubt for `ESTALE`; for callers that
    /// hold an mmap_lock and must not look at the owner's page tables.
    pub(crate) fn permit_unless_stale(&self, right: u32) -> Result {
        if self.rights & right != right {
            return Err(EACCES);
        }
        // In this order: a process is marked dead before its memory goes.
        let stale = self.mapping.is_stale();
        if self.owner.is_dead() {
            return Err(errno::eownerdead());
        }
        if stale {
            return Err(errno::estale());
        }
        Ok(())
    }

    /// Checks that `offset..offset + length` lies inside.
    pub(crate) fn contains(&self, offset: u64, length: u64) -> Result {
        match offset.checked_add(length) {
            Some(end) if end <= self.length() => Ok(()),
            _ => Err(ERANGE),
        }
    }

    /// Counts `count` uses down; returns what is left.
    pub(crate) fn count_use(&self, count: u32) -> Result<u32> {
        if count == 0 || self.expected == 0 {
            return Err(EINVAL);
        }
        let mut left = self.left.load(Relaxed);
        loop {
            let next = left.checked_sub(count).ok_or(EINVAL)?;
            match self.left.cmpxchg(left, next, Full) {
                Ok(_) => {
                    left = next;
                    break;
                }
                Err(now) => left = now,
            }
        }
        if left == 0 && self.finished.cmpxchg(PENDING, FINISHED, Full).is_ok() {
            self.owner.events.completed.fetch_add(1, Relaxed);
            self.owner.domain.wake();
        }
        Ok(left)
    }

    /// Counts one use if any is expected; for copies that say they were the last.
    pub(crate) fn count_copy(&self) {
        if self.expected != 0 {
            // More copies than expected uses are no error of the copy.
            let _ = self.count_use(1);
        }
    }

    /// The region was taken out of the domain; tells those who wait for it.
    pub(crate) fn close(&self) {
        if self.finished.xchg(CLOSED, Full) == FINISHED {
            self.owner.events.completed.fetch_sub(1, Relaxed);
        } else if self.expected != 0 {
            self.owner.domain.wake();
        }
    }

    /// Waits until all uses are over; `timeout` is in nanoseconds and updated, negative: for ever.
    pub(crate) fn wait(&self, timeout: &mut i64) -> Result {
        if self.expected == 0 {
            return Err(EINVAL);
        }
        let domain = &self.owner.domain;
        let start = Instant::<Monotonic>::now();
        let budget = *timeout;
        let mut guard = domain.wait_lock.lock();
        loop {
            if budget >= 0 {
                *timeout = i64::max(budget.saturating_sub(start.elapsed().as_nanos()), 0);
            }
            if self.uses_left() == 0 {
                return Ok(());
            }
            if self.owner.is_dead() {
                return Err(errno::eownerdead());
            }
            if self.finished.load(Relaxed) == CLOSED {
                return Err(ENOENT);
            }
            if domain.died_since(self.deaths) {
                return Err(errno::econnreset());
            }
            let jiffies = if budget < 0 {
                kernel::task::MAX_SCHEDULE_TIMEOUT as kernel::time::Jiffies
            } else {
                if *timeout == 0 {
                    return Err(ETIMEDOUT);
                }
                // Rounded up, and bounded: what is longer is slept in several naps.
                let millis = i64::min(*timeout / 1_000_000 + 1, 3_600_000);
                kernel::time::msecs_to_jiffies(millis as u32)
            };
            if let CondVarTimeoutResult::Signal { .. } = domain
                .changed
                .wait_interruptible_timeout(&mut guard, jiffies)
            {
                if budget >= 0 {
                    let left = budget.saturating_sub(start.elapsed().as_nanos());
                    *timeout = i64::max(left, 0);
                }
                return Err(EINTR);
            }
        }
    }
}
