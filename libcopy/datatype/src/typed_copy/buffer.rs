// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory that a thread keeps for copies through a buffer.

use std::cell::Cell;

/// A cache line.
pub(super) const LINE: usize = 64;

thread_local! {
    /// The buffer of the last copy that needed one.
    static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Memory that a thread keeps from one copy to the next: new memory would be new pages each time.
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    /// At least `size` bytes from [`Buffer::start`] on.
    pub(super) fn of_thread(size: usize) -> Buffer {
        // A thread that is about to end has nothing to keep.
        let mut kept = KEPT.try_with(Cell::take).unwrap_or_default();
        if kept.capacity() < size + LINE {
            kept = Vec::with_capacity(size + LINE);
        }
        Buffer(kept)
    }

    /// At a line's start, so that fewer vectors cross into the next one.
    pub(super) fn start(&mut self) -> *mut u8 {
        let start = self.0.as_mut_ptr();
        start.wrapping_add(start.addr().wrapping_neg() % LINE)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.0);
        let _ = KEPT.try_with(|kept| kept.set(buffer));
    }
}
