// SPDX-License-Identifier: MIT OR Apache-2.0

//! One copy, two workers: with CMA, either side can reach the other's memory, so the root does
//! not wait idly while a leaf copies. Both claim pieces from one counter until none is left; the
//! faster one does more, and if one of them has no processor, the other does all.

use super::{Call, Team};
use crate::error::Result;
use crate::team::mailbox::{Source, Step, Target};
use crate::transport::{TransportKind, Window};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the root's window to the leaf.
    ToLeaf,
    /// From the leaf to the root's window.
    ToRoot,
}

/// The root's view of what it shares with a leaf.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) leaf: usize,
    pub(super) call: Call,
    /// The leaf's memory, as its arrival told.
    pub(super) window: Window,
    /// The root's memory.
    pub(super) base: *mut u8,
    pub(super) len: usize,
}

/// Bytes per piece: large enough for a system call to be worth it, small enough for the two to
/// end at about the same time.
fn piece(len: usize) -> usize {
    (len / 4).next_multiple_of(4096).clamp(16 << 10, 256 << 10)
}

fn range(index: usize, len: usize) -> Option<(usize, usize)> {
    let start = index.checked_mul(piece(len))?;
    (start < len).then(|| (start, piece(len).min(len - start)))
}

impl Team {
    /// The root's side: helps with all jobs until nothing is left, then makes sure that the
    /// leaves are done. Returns the jobs whose copy failed on either side.
    ///
    /// # Safety
    ///
    /// Each job's `base` is readable for `len` bytes, and writable if they go to the root.
    pub(super) unsafe fn share_as_root(&mut self, jobs: Vec<Job>, way: Way) -> Result<Vec<Job>> {
        let root = self.rank();
        let mut open = vec![true; jobs.len()];
        let mut failed = vec![false; jobs.len()];
        while open.contains(&true) {
            for (index, job) in jobs.iter().enumerate() {
                if !open[index] {
                    continue;
                }
                let Some((start, len)) = range(self.mailbox.claim(root, job.leaf)?, job.len) else {
                    open[index] = false;
                    continue;
                };
                let cma = self.one_sided(TransportKind::Cma)?;
                // SAFETY: the piece is inside what the caller vouches for.
                let copied = unsafe {
                    let base = job.base.add(start);
                    match way {
                        Way::ToLeaf => cma.push(job.leaf, job.window, start as u64, base, len),
                        Way::ToRoot => cma.pull(job.leaf, job.window, start as u64, base, len),
                    }
                };
                if copied.is_err() {
                    failed[index] = true;
                    open[index] = false;
                }
            }
        }
        for (job, failed) in jobs.iter().zip(&failed) {
            let words = [u64::from(*failed), 0, 0, 0, 0, 0];
            self.mailbox
                .tell(Target::One(job.leaf), Step::Done, job.call, words)?;
        }
        let mut again = Vec::new();
        for (job, failed) in jobs.into_iter().zip(failed) {
            if !self.reported(job.leaf, job.call)? || failed {
                again.push(job);
            }
        }
        Ok(again)
    }

    /// The leaf's side; returns whether the copy worked on both sides.
    ///
    /// # Safety
    ///
    /// `base` is readable for the length of the call, and writable if the bytes go to the leaf.
    pub(super) unsafe fn share_as_leaf(
        &mut self,
        call: Call,
        window: Window,
        offset: u64,
        base: *mut u8,
        way: Way,
    ) -> Result<bool> {
        let (me, len) = (self.rank(), call.len as usize);
        let mut copied = Ok(());
        while copied.is_ok() {
            let Some((start, n)) = range(self.mailbox.claim(call.root, me)?, len) else {
                break;
            };
            let cma = self.one_sided(TransportKind::Cma)?;
            let at = offset + start as u64;
            // SAFETY: the piece is inside what the caller vouches for.
            copied = unsafe {
                match way {
                    Way::ToLeaf => cma.pull(call.root, window, at, base.add(start), n),
                    Way::ToRoot => cma.push(call.root, window, at, base.add(start), n),
                }
            };
        }
        let worked = self.report(call.root, call, copied)?;
        let header = self
            .mailbox
            .expect(Source::One(call.root), call, &[Step::Done])?;
        Ok(worked && header.words[0] == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once() {
        for len in [1, 4095, 65536, 65537, 1 << 20, (5 << 20) + 3] {
            let mut covered = 0;
            for index in 0.. {
                let Some((start, n)) = range(index, len) else {
                    break;
                };
                assert_eq!(start, covered);
                assert!(n > 0);
                covered += n;
            }
            assert_eq!(covered, len);
        }
        assert_eq!(range(usize::MAX, 100), None);
    }
}
