// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the uses of each derived datatype have been worth so far, by handle: a small table without
//! locks, since a type that is made for one use must cost a few nanoseconds.
//!
//! The table is advice. A handle that is freed where nobody sees it leaves its entry to the next
//! type with that handle, whose layout is made too early then; which layout a type has, its
//! attribute says ([`crate::types::datatype`]).

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Used never.
pub const NEVER: u64 = 0;
/// Used once, by a message of unknown length.
pub const ONCE: u64 = 1;

/// Where uses are counted down that need no closer look; all ones where the layout is worth its
/// making.
pub const SPARED: u32 = 48;
/// Most entries.
pub const MOST_SPARED: u64 = 0x7fff;

/// The layout is worth its making, or is there. The bits below say what was decided for a number of
/// elements, which the lowest 32 are.
pub const EARNED: u64 = 0xffff << SPARED;
/// Messages of this many elements to or from other processes are not packed or unpacked here.
pub const LEFT: u64 = 1 << 32;
/// Messages of this many elements are forwarded.
pub const PASSED: u64 = 1 << 33;
/// `MPI_Pack` and `MPI_Unpack` of any number of elements are forwarded.
pub const PACKED_THERE: u64 = 1 << 34;

/// A handle, and the worth of its uses: [`NEVER`], [`ONCE`], [`EARNED`] and more, or what
/// [`crate::types::earned`] writes.
pub struct Entry {
    handle: AtomicUsize,
    worth: AtomicU64,
}

impl Entry {
    /// The worth of its uses.
    #[inline(always)]
    pub fn worth(&self) -> u64 {
        self.worth.load(Ordering::Relaxed)
    }

    /// Another worth. Two threads that use a type at once may lose one use.
    #[inline(always)]
    pub fn set(&self, worth: u64) {
        self.worth.store(worth, Ordering::Relaxed);
    }

    /// Whether this use is forwarded without a closer look, since it is the first or one of those
    /// that cannot earn the layout; counts it then.
    #[inline(always)]
    pub fn spares(&self) -> bool {
        let worth = self.worth();
        if worth == NEVER {
            self.set(ONCE);
            return true;
        }
        let is_spared = (1 << SPARED..EARNED).contains(&worth);
        if is_spared {
            self.set(worth - (1 << SPARED));
        }
        is_spared
    }

    /// Whether this was decided for `count` elements.
    #[inline(always)]
    pub fn is(&self, decision: u64, count: usize) -> bool {
        let mask = EARNED | decision | u64::from(u32::MAX);
        self.worth() & mask == EARNED | decision | count as u64
    }

    /// Whether `MPI_Pack` of such elements is forwarded.
    #[inline(always)]
    pub fn is_packed_there(&self) -> bool {
        self.worth() & (EARNED | PACKED_THERE) == EARNED | PACKED_THERE
    }
}

/// Remembers what was decided for `count` elements of a type that has earned its layout.
pub fn decide(handle: usize, decision: u64, count: usize) {
    let Some(entry) = find(handle).filter(|entry| entry.worth() >= EARNED) else {
        return;
    };
    let worth = entry.worth();
    if decision == PACKED_THERE {
        return entry.set(worth | decision);
    }
    if let Ok(count) = u32::try_from(count) {
        let before = if worth as u32 == count {
            worth
        } else {
            // Of the number of elements before nothing is known any more.
            worth & (EARNED | PACKED_THERE) | u64::from(count)
        };
        entry.set(before | decision);
    }
}

/// Handles that share a place.
const WAYS: usize = 4;
const SETS: usize = 256;

/// One cache line.
#[repr(align(64))]
struct Set([Entry; WAYS]);

static TABLE: [Set; SETS] = [const {
    Set([const {
        Entry {
            handle: AtomicUsize::new(0),
            worth: AtomicU64::new(NEVER),
        }
    }; WAYS])
}; SETS];

/// Whether the table has any entry.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether any handle is known: only then the width of handles is, too.
#[inline(always)]
pub fn any() -> bool {
    ANY.load(Ordering::Relaxed)
}

#[inline(always)]
fn set_of(handle: usize) -> &'static Set {
    // Fibonacci hashing: addresses and small numbers spread alike.
    let mixed = (handle as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &TABLE[(mixed >> 56) as usize % SETS]
}

/// The entry of a handle, of which only the bits that count are there.
#[inline(always)]
pub fn find(handle: usize) -> Option<&'static Entry> {
    let set = &set_of(handle).0;
    set.iter()
        .find(|entry| entry.handle.load(Ordering::Relaxed) == handle)
}

/// Gives a handle an entry; the one of least worth makes room.
#[cold]
pub fn insert(handle: usize, worth: u64) {
    if let Some(entry) = find(handle) {
        return entry.set(worth);
    }
    let set = &set_of(handle).0;
    let is_free = |entry: &&Entry| entry.handle.load(Ordering::Relaxed) == 0;
    let least = || set.iter().min_by_key(|entry| entry.worth());
    if let Some(entry) = set.iter().find(is_free).or_else(least) {
        // The old handle does not get the new one's worth.
        entry.handle.store(0, Ordering::Relaxed);
        entry.set(worth);
        entry.handle.store(handle, Ordering::Relaxed);
    }
    ANY.store(true, Ordering::Relaxed);
}

/// The type is freed: the next one with its handle begins anew. The entry stays, since no
/// predefined type will have that handle.
#[inline(always)]
pub fn forget(handle: usize) {
    if let Some(entry) = find(handle) {
        entry.set(NEVER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_handle_begins_anew() {
        let handle = 0x5550_0000_1230;
        insert(handle, 17);
        assert_eq!(find(handle).map(Entry::worth), Some(17));
        forget(handle);
        assert_eq!(find(handle).map(Entry::worth), Some(NEVER));
    }

    #[test]
    fn decisions_are_those_of_a_number_of_elements() {
        let handle = 0x5550_0000_4560;
        insert(handle, ONCE);
        decide(handle, LEFT, 3);
        let entry = find(handle).unwrap();
        assert!(!entry.is(LEFT, 3) && !entry.spares());
        entry.set(EARNED);
        assert!(!entry.is(LEFT, 0));
        decide(handle, LEFT, 3);
        decide(handle, PACKED_THERE, 0);
        assert!(entry.is(LEFT, 3) && !entry.is(PASSED, 3) && !entry.is(LEFT, 4));
        decide(handle, PASSED, 3);
        assert!(entry.is(LEFT, 3) && entry.is(PASSED, 3) && entry.is_packed_there());
        decide(handle, PASSED, 4);
        assert!(!entry.is(LEFT, 4) && entry.is(PASSED, 4) && !entry.is(PASSED, 3));
        assert!(entry.is_packed_there() && !entry.spares());
        forget(handle);
        assert!(!entry.is(PASSED, 4) && !entry.is_packed_there());
        assert!(entry.spares() && !entry.spares());
        entry.set(2 << SPARED | 99);
        assert!(entry.spares() && entry.spares() && !entry.spares());
        assert_eq!(entry.worth(), 99);
    }

    #[test]
    fn what_is_worth_most_stays() {
        // Handles of one set.
        let place = set_of(0x7777_0000);
        let mut handles = (1usize..)
            .map(|i| i << 20)
            .filter(|handle| std::ptr::eq(set_of(*handle), place));
        let first = handles.next().unwrap();
        insert(first, EARNED);
        for handle in handles.take(3 * WAYS) {
            insert(handle, ONCE);
            assert!(find(handle).is_some());
        }
        assert_eq!(find(first).map(Entry::worth), Some(EARNED));
    }
}
