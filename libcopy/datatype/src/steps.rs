// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a plan is: loop nests with their kernels, one after the other.

use super::kernel::Nest;

/// One loop nest: where it is in the layout and in the packed stream, and what moves its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) offset: isize,
    pub(super) start: isize,
    pub(super) pack: Nest,
    pub(super) unpack: Nest,
}

/// What moves all bytes of a layout.
#[derive(Clone, Debug)]
pub(super) struct Steps {
    pub(super) list: Box<[Step]>,
    /// Bytes of data; as many as nobody has if there is no plan.
    pub(super) size: u64,
    /// Where the data is.
    pub(super) low: i64,
    pub(super) high: i64,
}

impl Default for Steps {
    fn default() -> Steps {
        Steps {
            list: Box::default(),
            size: u64::MAX,
            low: 0,
            high: 0,
        }
    }
}

impl Steps {
    /// Whether there is a plan.
    #[inline]
    pub(super) fn is_some(&self) -> bool {
        !self.list.is_empty()
    }

    /// Bytes of memory beside the value itself.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&*self.list)
    }

    /// Whether there is a plan, `packed` bytes are all of the data, and all of it lies in a buffer
    /// of `len` bytes that begins `origin` bytes before the layout's origin.
    #[inline]
    pub(super) fn fit(&self, len: usize, origin: isize, packed: usize) -> bool {
        let place = |at: i64| at.checked_add(origin as i64);
        packed as u64 == self.size
            && place(self.low).is_some_and(|low| low >= 0)
            // It is not below the low end.
            && place(self.high).is_some_and(|high| high as u64 <= len as u64)
    }

    /// Moves everything; `user` is the layout's origin.
    ///
    /// # Safety
    ///
    /// All bytes are valid for reading or writing at both ends, and the ends do not overlap.
    #[inline]
    pub(super) unsafe fn run<const PACK: bool>(&self, user: *mut u8, packed: *mut u8) {
        for step in &self.list {
            let user = user.wrapping_offset(step.offset);
            let packed = packed.wrapping_offset(step.start);
            // SAFETY: the caller's promise; the steps are the layout.
            unsafe {
                if PACK {
                    step.pack.run(packed, user);
                } else {
                    step.unpack.run(user, packed);
                }
            }
        }
    }
}
