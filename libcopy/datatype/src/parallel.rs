// SPDX-License-Identifier: MIT OR Apache-2.0

//! Packing and unpacking with several threads, for messages that are worth starting them.

use std::ops::Range;

use super::layout::Layout;
use crate::Result;

/// A thread that gets less than this is not worth starting.
const LEAST: u64 = 256 << 10;

/// An address that threads may share; what they do there is disjoint.
#[derive(Clone, Copy)]
struct Shared(*mut u8);

// SAFETY: it is only an address; the functions below hand out disjoint ranges.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn get(self) -> *mut u8 {
        self.0
    }
}

/// Cuts a stream into about equal ranges that begin at page boundaries of the stream.
fn shares(size: u64, threads: usize) -> Vec<Range<u64>> {
    let most = (size / LEAST).clamp(1, threads.max(1) as u64);
    let each = size.div_ceil(most).next_multiple_of(4096);
    (0..most)
        .map(|i| (i * each).min(size)..((i + 1) * each).min(size))
        .filter(|range| !range.is_empty())
        .collect()
}

fn run(ranges: &[Range<u64>], work: impl Fn(Range<u64>) + Sync) {
    let Some((first, others)) = ranges.split_first() else {
        return;
    };
    std::thread::scope(|scope| {
        for range in others {
            let work = &work;
            scope.spawn(move || work(range.clone()));
        }
        work(first.clone());
    });
}

impl Layout {
    /// As [`Layout::pack`], by up to `threads` threads, the caller's among them. Small messages use
    /// fewer.
    ///
    /// # Errors
    ///
    /// As for [`Layout::pack`].
    pub fn pack_parallel(
        &self,
        buffer: &[u8],
        origin: isize,
        packed: &mut [u8],
        threads: usize,
    ) -> Result<()> {
        self.check_whole(buffer.len(), origin, packed.len())?;
        let from = Shared(buffer.as_ptr().wrapping_offset(origin).cast_mut());
        let to = Shared(packed.as_mut_ptr());
        run(&shares(self.size(), threads), |range| {
            let to = to.get().wrapping_add(range.start as usize);
            // SAFETY: all data lies in the buffer, which is only read; the ranges are disjoint.
            unsafe { self.pack_raw(from.get(), range, to) };
        });
        Ok(())
    }

    /// As [`Layout::unpack`], by up to `threads` threads, the caller's among them. A layout whose
    /// pieces may overlap is unpacked by the caller alone.
    ///
    /// # Errors
    ///
    /// As for [`Layout::unpack`].
    pub fn unpack_parallel(
        &self,
        packed: &[u8],
        buffer: &mut [u8],
        origin: isize,
        threads: usize,
    ) -> Result<()> {
        self.check_whole(buffer.len(), origin, packed.len())?;
        let threads = if self.form().is_disjoint() {
            threads
        } else {
            1
        };
        let to = Shared(buffer.as_mut_ptr().wrapping_offset(origin));
        let from = Shared(packed.as_ptr().cast_mut());
        run(&shares(self.size(), threads), |range| {
            let from = from.get().wrapping_add(range.start as usize);
            // SAFETY: all data lies in the buffer; no byte of it belongs to two ranges.
            unsafe { self.unpack_raw(from, range, to.get()) };
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Datatype, Named};
    use super::*;

    #[test]
    fn shares_cover_the_stream_once() {
        for size in [0, 1, 4096, LEAST, 3 * LEAST + 5, 100 * LEAST + 1] {
            for threads in [0, 1, 2, 3, 64] {
                let shares = shares(size, threads);
                assert!(shares.len() <= threads.max(1));
                let mut next = 0;
                for share in shares {
                    assert_eq!(share.start, next);
                    next = share.end;
                }
                assert_eq!(next, size);
            }
        }
    }

    #[test]
    fn threads_do_what_one_thread_does() {
        let column = Datatype::named(Named::Double).vector(700, 1, 500).unwrap();
        let matrix = column.resized(0, 8).unwrap();
        let layout = Layout::new(&matrix, 500).unwrap();
        assert!(layout.form().is_disjoint());
        let buffer: Vec<u8> = (0..700 * 500 * 8).map(|i| (i % 251) as u8).collect();
        let mut alone = vec![0; buffer.len()];
        let mut together = alone.clone();
        layout.pack(&buffer, 0, &mut alone).unwrap();
        layout.pack_parallel(&buffer, 0, &mut together, 3).unwrap();
        assert!(alone == together);
        let mut back = vec![0; buffer.len()];
        layout.unpack_parallel(&together, &mut back, 0, 3).unwrap();
        assert!(back == buffer);
    }

    #[test]
    fn overlapping_pieces_are_noticed() {
        let double = Datatype::named(Named::Double);
        let disjoint = |datatype: &Datatype| datatype.commit().is_disjoint();
        assert!(!disjoint(&double.hvector(3, 1, 4).unwrap()));
        assert!(!disjoint(&double.indexed(&[2, 1], &[0, 1]).unwrap()));
        assert!(!disjoint(&double.hindexed_block(1, &[0, 20, 13]).unwrap()));
        assert!(disjoint(&double.hindexed_block(1, &[40, 20, 8]).unwrap()));
        assert!(disjoint(&double.vector(3, 1, -2).unwrap()));
    }
}
