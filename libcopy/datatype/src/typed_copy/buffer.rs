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
    /// At least `size` bytes from [`Buffer::start`] on; `None` if there is no room for them.
    pub(super) fn of_thread(size: usize) -> Option<Buffer> {
        // A thread that is about to end has nothing to keep.
        let mut kept = KEPT.try_with(Cell::take).unwrap_or_default();
        let all = size.checked_add(LINE)?;
        if kept.capacity() < all {
            kept = Vec::new();
            kept.try_reserve_exact(all).ok()?;
        }
        Some(Buffer(kept))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_without_room_is_none() {
        assert!(Buffer::of_thread(usize::MAX).is_none());
        assert!(Buffer::of_thread(isize::MAX as usize).is_none());
        let mut buffer = Buffer::of_thread(1000).unwrap();
        assert_eq!(buffer.start().addr() % LINE, 0);
    }
}
