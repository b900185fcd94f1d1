// SPDX-License-Identifier: MIT OR Apache-2.0

//! One word that says whether calls have more to do than they usually have, so that functions that
//! are forwarded ask once.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Beside the number of orphans: the time in functions is taken.
const TIMED: usize = 1 << (usize::BITS - 1);

#[unsafe(link_section = "libcopy_hot_words")]
static WORD: AtomicUsize = AtomicUsize::new(0);

/// Whether there is anything.
#[inline(always)]
pub fn is_any() -> bool {
    WORD.load(Ordering::Relaxed) != 0
}

/// Whether the time in functions is taken, for the statistics.
#[inline(always)]
pub fn is_timed() -> bool {
    WORD.load(Ordering::Relaxed) & TIMED != 0
}

/// Has the time in functions be taken from now on.
pub fn set_timed() {
    WORD.fetch_or(TIMED, Ordering::Relaxed);
}

/// Whether requests are under way that nobody will ask for, as the program has freed them.
#[inline(always)]
pub fn has_orphans() -> bool {
    WORD.load(Ordering::Relaxed) & !TIMED != 0
}

/// There is one more.
pub fn add_orphan() {
    WORD.fetch_add(1, Ordering::Relaxed);
}

/// One of them is over.
pub fn remove_orphan() {
    WORD.fetch_sub(1, Ordering::Relaxed);
}

/// There are none, in a forked child: those of its parent are not its own.
pub fn forget_orphans() {
    WORD.fetch_and(TIMED, Ordering::Relaxed);
}
