// SPDX-License-Identifier: MIT OR Apache-2.0

//! Broadcasts that are forwarded because their communicator has no team yet. Each has to be
//! counted, as its ranks ask for a team at certain calls, and nothing else: so a communicator says
//! how many calls may follow that are only counted, and these are forwarded before anything of it
//! is looked at. Between two calls a program does its own work, and what they look at is not in the
//! caches.
//!
//! All ranks must count the same calls, whichever way each goes on a rank. What is counted here
//! would be counted there: a broadcast of a predefined type, where the communicator has counted one
//! whose size has the same logarithm, and the answer is the same for all of these
//! ([`is_uniform`](crate::decide::prior::is_uniform)). The communicator adds what was counted here
//! before it counts a call itself, or has a team.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::decide::threshold::{handle_bits, is_below_or_between, size};
use crate::library::abi::Word;
use crate::library::count::Count;
use crate::library::stats::Function;

/// A communicator, 0 where there is none, and what is known of it: calls that may follow in the
/// lowest 16 bits, those that have followed in the next, and above a bit for each logarithm of a
/// size.
struct Entry {
    comm: AtomicUsize,
    state: AtomicU64,
}

/// Four, which fill a line of the cache. A communicator that finds none free is looked at each
/// time.
#[repr(align(64))]
struct Entries([Entry; 4]);

/// There are entries only where one thread calls MPI.
#[unsafe(link_section = "libcopy_hot")]
static ENTRIES: Entries = Entries(
    [const {
        Entry {
            comm: AtomicUsize::new(0),
            state: AtomicU64::new(0),
        }
    }; 4],
);

/// One that has followed, and one less that may.
const FOLLOWS: u64 = (1 << 16) - 1;

#[inline(always)]
fn find(comm: Word) -> Option<&'static Entry> {
    let is_it = |entry: &&Entry| entry.comm.load(Ordering::Relaxed) == comm;
    ENTRIES.0.iter().find(is_it)
}

/// The bit of a size; none of a call without bytes, and of one with 4 GiB and more.
#[inline(always)]
fn bit(bytes: u64) -> u64 {
    match bytes.checked_ilog2() {
        Some(power) if power < 32 => 1 << (32 + power),
        _ => 0,
    }
}

/// Whether `count` elements are to be forwarded in any case, or are a broadcast that only had to be
/// counted, and now is.
#[inline(always)]
pub fn is_small_or_counted<N: Count>(
    function: Function,
    count: N,
    datatype: Word,
    comm: Word,
) -> bool {
    let (Some(count), Some(size)) = (count.number(), size(datatype)) else {
        return false;
    };
    let Some(bytes) = (count as u64).checked_mul(size as u64) else {
        return false;
    };
    is_below_or_between(function, bytes) || function == Function::Bcast && follows(comm, bytes)
}

#[inline(always)]
fn follows(comm: Word, bytes: u64) -> bool {
    let Some(entry) = find(comm & handle_bits()) else {
        return false;
    };
    let state = entry.state.load(Ordering::Relaxed);
    let may_follow = state as u16 != 0 && state & bit(bytes) != 0;
    if may_follow {
        entry.state.store(state + FOLLOWS, Ordering::Relaxed);
    }
    may_follow
}

/// How many calls of a communicator were counted here since this was asked, and bytes that each has
/// moved at least. No more are counted before [`let_follow`].
pub fn followed(comm: Word) -> (u64, u64) {
    let Some(entry) = find(comm & handle_bits()) else {
        return (0, 0);
    };
    let state = entry.state.load(Ordering::Relaxed);
    let sizes = state >> 32;
    entry.state.store(sizes << 32, Ordering::Relaxed);
    (state >> 16 & 0xffff, sizes & sizes.wrapping_neg())
}

/// Notes that a communicator counts broadcasts of this size, and so all with the same logarithm.
pub fn counts(comm: Word, bytes: u64) {
    let comm = comm & handle_bits();
    if let Some(entry) = find(comm).or_else(|| find(0)) {
        entry.comm.store(comm, Ordering::Relaxed);
        entry.state.fetch_or(bit(bytes), Ordering::Relaxed);
    }
}

/// After [`followed`]: the next calls of a communicator may be counted here, as many as `calls`
/// says, if it counts any broadcasts.
pub fn let_follow(comm: Word, calls: impl FnOnce() -> u16) {
    if let Some(entry) = find(comm & handle_bits()) {
        entry.state.fetch_or(u64::from(calls()), Ordering::Relaxed);
    }
}

/// A communicator has a team, or is gone.
pub fn forget(comm: Word) {
    if let Some(entry) = find(comm & handle_bits()) {
        entry.state.store(0, Ordering::Relaxed);
        entry.comm.store(0, Ordering::Relaxed);
    }
}

/// What is counted may change: nothing is counted here before a communicator has said so again.
pub fn stop() {
    for entry in &ENTRIES.0 {
        let followed = entry.state.load(Ordering::Relaxed) & 0xffff_0000;
        entry.state.store(followed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;

    use super::*;
    use crate::decide::threshold::{LEARNING, learn, learn_size};
    use libcopy::lock::lock;

    #[test]
    fn what_follows_is_counted_and_no_more_than_may() {
        let _alone = lock(&LEARNING);
        let (comm, byte) = (0x7f00_0000_1000, 0x7f00_0000_2000);
        learn(usize::MAX, |_| (1, 0..0));
        learn_size(byte, 1);
        let goes = |function, bytes: c_int| is_small_or_counted(function, bytes, byte, comm);
        let_follow(comm, || 3);
        assert!(!goes(Function::Bcast, 9), "no size is known");
        counts(comm, 9);
        assert!(!goes(Function::Bcast, 9), "none may follow");
        let_follow(comm, || 3);
        assert!(goes(Function::Bcast, 15) && goes(Function::Bcast, 8));
        for other in [7, 16] {
            assert!(!goes(Function::Bcast, other), "{other} bytes are others");
        }
        assert!(!goes(Function::Ibcast, 9), "another function");
        assert!(goes(Function::Bcast, 9));
        assert!(!goes(Function::Bcast, 9), "three have followed");
        assert_eq!([followed(comm), followed(comm)], [(3, 8), (0, 8)]);

        let_follow(comm, || 2);
        assert!(goes(Function::Bcast, 9), "sizes stay");
        stop();
        assert!(!goes(Function::Bcast, 9));
        assert_eq!(followed(comm).0, 1, "what has followed is not lost");
        let_follow(comm, || 2);
        assert!(!goes(Function::Bcast, 9), "the sizes are");
        counts(comm, 9);

        // Others have no place, which are free when their communicators go.
        let others: Vec<Word> = (1..=4).map(|other| comm + 16 * other).collect();
        let lets = |comm| {
            counts(comm, 9);
            let_follow(comm, || 2);
        };
        others.iter().for_each(|comm| lets(*comm));
        let finds = |comm| is_small_or_counted(Function::Bcast, 9 as c_int, byte, comm);
        assert_eq!(
            [finds(others[0]), finds(others[2]), finds(others[3])],
            [true, true, false]
        );
        forget(comm);
        assert!(!finds(comm));
        lets(others[3]);
        assert!(finds(others[3]));
        others.iter().for_each(|comm| forget(*comm));
    }
}
