// SPDX-License-Identifier: MIT OR Apache-2.0

//! Message buffers that are not better or worse off by where they happen to lie.

use anyhow::{Context, Result};
use memmap2::{Advice, MmapMut, MmapOptions};
use std::ops::{Deref, DerefMut};

/// Bytes of a huge page.
pub const HUGE: usize = 2 << 20;
/// Bytes of a page.
pub const PAGE: usize = 4096;

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
}
