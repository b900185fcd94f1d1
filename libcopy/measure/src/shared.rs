// SPDX-License-Identifier: MIT OR Apache-2.0

//! [`Shared`]: the buffers that all processes of a comparison measure with.

use crate::buffer::{HUGE, PAGE};
use anyhow::{Context, Result};
use libcopy::shm::anonymous;
use memmap2::{MmapMut, MmapOptions};
use std::fs::File;
use std::os::fd::AsRawFd;

/// Three buffers that several processes share, so that all of them measure with the same pages:
/// where pages lie decides what collides in the second-level cache.
pub struct Shared {
    file: File,
    map: MmapMut,
    lengths: [usize; 3],
}

impl Shared {
    /// Empty ones.
    ///
    /// # Errors
    ///
    /// There is no memory to share.
    pub fn new() -> Result<Self> {
        let file =
            anonymous::file(c"libcopy-bench").context("cannot create memory that peers can map")?;
        file.set_len(PAGE as u64)?;
        let map = Self::map(&file)?;
        Ok(Self {
            file,
            map,
            lengths: [0; 3],
        })
    }

    fn map(file: &File) -> Result<MmapMut> {
        // SAFETY: a file without a name, which only processes that are told its number map; they
        // use it in turns, and nobody makes it shorter than what is mapped here.
        unsafe { MmapOptions::new().populate().map_mut(file) }
            .context("cannot map memory for messages")
    }

    /// Makes the buffers hold these lengths; what was in them may be lost.
    ///
    /// # Errors
    ///
    /// There is not so much memory.
    pub fn resize(&mut self, lengths: [usize; 3]) -> Result<()> {
        self.lengths = lengths;
        let end = self.place(2) + lengths[2] + PAGE;
        if self.map.len() < end {
            // A page that was mapped stays the same page.
            self.file.set_len(end as u64)?;
            self.map = Self::map(&self.file)?;
        }
        Ok(())
    }

    /// Where a buffer begins: an odd number of pages after a 2 MiB boundary of the file.
    pub fn place(&self, which: usize) -> usize {
        let before = (0..which).map(|w| (self.lengths[w] + 16 * PAGE).next_multiple_of(HUGE));
        before.sum::<usize>() + (2 * which + 1) * PAGE
    }

    /// All of it: how others open it, and how many bytes there are.
    pub fn path(&self) -> (String, usize) {
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd());
        (path, self.map.len())
    }

    /// The buffers.
    pub fn parts(&mut self) -> [&mut [u8]; 3] {
        let (a, b, c) = (self.place(0), self.place(1), self.place(2));
        let lengths = self.lengths;
        let (first, rest) = self.map.split_at_mut(b);
        let (second, third) = rest.split_at_mut(c - b);
        [
            &mut first[a..a + lengths[0]],
            &mut second[..lengths[1]],
            &mut third[..lengths[2]],
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_buffers_are_apart_and_what_others_map() {
        let mut shared = Shared::new().unwrap();
        for lengths in [[1, 2, 3], [5_000_000, 1, 70_000], [0, 9, 4]] {
            shared.resize(lengths).unwrap();
            for (i, part) in shared.parts().into_iter().enumerate() {
                assert_eq!(part.len(), lengths[i]);
                part.fill(i as u8 + 1);
            }
            let (path, all) = shared.path();
            let seen = std::fs::read(path).unwrap();
            assert_eq!(seen.len(), all);
            for (i, &length) in lengths.iter().enumerate() {
                let place = shared.place(i);
                assert_eq!(place % HUGE, (2 * i + 1) * PAGE);
                assert!(
                    seen[place..place + length]
                        .iter()
                        .all(|&b| b == i as u8 + 1)
                );
            }
        }
    }
}
