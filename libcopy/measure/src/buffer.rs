// SPDX-License-Identifier: MIT OR Apache-2.0

//! Message buffers that are not better or worse off by where they happen to lie.

use anyhow::{Context, Result};
use memmap2::{Advice, MmapMut, MmapOptions};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;

const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;

/// What backs a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// 4 KiB pages only.
    Small,
    /// Transparent huge pages, as far as the kernel has any.
    Huge,
    /// Huge pages that were set aside (`vm.nr_hugepages`).
    Reserved,
}

impl Pages {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Small => "4k",
            Self::Huge => "thp",
            Self::Reserved => "hugetlb",
        }
    }
}

/// Memory that starts an odd number of pages after a 2 MiB boundary.
///
/// Buffers that start at the same offset from such a boundary in every process collide in the
/// software TLB of an emulated guest, and copies become up to ten times slower; on real machines
/// they collide in caches.
pub struct Skewed {
    map: MmapMut,
    start: usize,
    length: usize,
}

impl Skewed {
    /// Maps `length` bytes; `which` tells the buffers of all ranks apart.
    ///
    /// # Errors
    ///
    /// There is not that much memory.
    pub fn new(length: usize, which: usize) -> Result<Self> {
        Self::map(MmapOptions::new(), length, which)
    }

    /// Maps `length` bytes of a kind of pages, all of them touched.
    ///
    /// # Errors
    ///
    /// There is not that much memory of this kind.
    pub fn with_pages(length: usize, which: usize, pages: Pages) -> Result<Self> {
        let mut options = MmapOptions::new();
        if pages == Pages::Reserved {
            options.huge(Some(HUGE.trailing_zeros() as u8));
        }
        let mut buffer = Self::map(options, length, which).with_context(|| match pages {
            Pages::Reserved => "no huge pages set aside (see vm.nr_hugepages)",
            _ => "cannot map",
        })?;
        let advice = match pages {
            Pages::Small => Some(Advice::NoHugePage),
            Pages::Huge => Some(Advice::HugePage),
            Pages::Reserved => None,
        };
        if let Some(advice) = advice {
            // A kernel without transparent huge pages refuses: then all pages are small.
            let _ = buffer.map.advise(advice);
        }
        buffer.fill(0);
        Ok(buffer)
    }

    fn map(mut options: MmapOptions, length: usize, which: usize) -> Result<Self> {
        let skew = (2 * which + 1) * PAGE;
        let map = options
            .len((length + skew).next_multiple_of(HUGE) + HUGE)
            .map_anon()
            .with_context(|| format!("cannot map a message buffer of {length} bytes"))?;
        let address = map.as_ptr() as usize;
        let start = address.next_multiple_of(HUGE) - address + skew;
        Ok(Self { map, start, length })
    }

    /// Makes the buffer hold at least `length` bytes; what was in it may be lost.
    ///
    /// # Errors
    ///
    /// There is not that much memory; then the buffer is empty.
    pub fn reserve(&mut self, length: usize, which: usize) -> Result<()> {
        if self.length < length {
            // First away with the old one: two large buffers at a time may be more than there is.
            *self = Self::new(0, which)?;
            *self = Self::new(length, which)?;
        }
        Ok(())
    }
}

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
    /// The kernel has no file for them.
    pub fn new() -> Result<Self> {
        let fd = memfd_create(c"libcopy-bench", MFdFlags::MFD_CLOEXEC)
            .context("cannot create memory that peers can map")?;
        let file = File::from(fd);
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
    /// There is not that much memory.
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

impl Deref for Skewed {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.map[self.start..self.start + self.length]
    }
}

impl DerefMut for Skewed {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.map[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_start_an_odd_number_of_pages_after_a_boundary() {
        for which in 0..5 {
            let mut buffer = Skewed::new(1, which).unwrap();
            buffer.reserve(10_000, which).unwrap();
            let address = buffer.as_ptr() as usize;
            assert_eq!(address % HUGE, (2 * which + 1) * PAGE);
            assert_eq!(buffer.len(), 10_000);
        }
    }

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
