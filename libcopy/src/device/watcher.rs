// SPDX-License-Identifier: MIT OR Apache-2.0

//! [`Watcher`]: says whether memory of this process is still what it was, to those who keep
//! something that was made of its pages: registered memory and memory keys of an RDMA device.
//!
//! Memory is watched as a region of a domain that has no other member. The module pins its pages,
//! and compares them with those behind the addresses whenever the memory manager has announced a
//! change, so that `munmap`, `mremap` and `madvise(MADV_DONTNEED)` are noticed, and what leaves the
//! pages where they are is not: `fork`, `mprotect`, a huge page that is split.

use std::sync::Arc;

use super::domain::Domain;
use super::owned_region::OwnedRegion;
use crate::error::Result;
use crate::lru::Lru;
use crate::policy::backoff::Backoff;
use crate::uapi::{CREATE_NO_REUSE, MAX_IOV, Piece};

/// Pieces of memory that are known at a time.
const KNOWN: usize = 256;
/// Bytes that may stay pinned in those that are watched.
const WATCHED_BYTES: usize = 1 << 30;
/// How often memory is asked for before it is watched again when some could not be.
const REFUSED_FOR: u32 = 64;
/// When other memory is watched, this number of those that were not used for longest are looked at.
const SWEPT: usize = 16;

/// Memory that is watched.
#[derive(Debug)]
struct Watched {
    region: OwnedRegion,
    generation: u64,
    /// Whether it was found unchanged.
    was_of_use: bool,
}

/// Memory that was asked for.
#[derive(Debug)]
struct Known {
    /// Ranges of whole pages, in the order of their addresses, that do not touch each other.
    ranges: Vec<Piece>,
    /// None after the first time: most memory is asked for once.
    watched: Option<Watched>,
}

impl Known {
    /// Bytes that are pinned.
    fn bytes(&self) -> usize {
        let bytes = self.ranges.iter().map(|range| range.len as usize).sum();
        self.watched.as_ref().map_or(0, |_| bytes)
    }
}

/// Gives memory numbers that change when it is unmapped or replaced.
///
/// What is watched counts against `RLIMIT_MEMLOCK`, beside what was made of the same pages.
#[derive(Debug)]
pub struct Watcher {
    domain: Arc<Domain>,
    known: Lru<Known>,
    /// The number that was given last.
    last: u64,
    /// Numbers that nobody is given any more.
    over: Vec<u64>,
    backoff: Backoff,
    page: u64,
}

impl Watcher {
    /// Watches nothing yet.
    ///
    /// # Errors
    ///
    /// As for [`Domain::create`]: among others, the module is not loaded.
    pub fn new() -> Result<Watcher> {
        let domain = Arc::new(Domain::create()?);
        // SAFETY: no memory is passed.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        Ok(Watcher {
            domain,
            known: Lru::default(),
            last: 0,
            over: Vec::new(),
            backoff: Backoff::default(),
            page,
        })
    }

    /// The generation of the pages that these pieces touch: the same number as before if they are
    /// still the same pages. As long as nobody unmaps or replaces them, what is made of them from
    /// now on is right whenever this gives the number again.
    ///
    /// None the first time, for memory that cannot be watched, in a forked child, whose memory is
    /// another one, and now and then where watching has been of no use: the caller then keeps
    /// nothing.
    pub fn generation(&mut self, pieces: impl IntoIterator<Item = Piece>) -> Option<u64> {
        if !self.domain.is_at_home() {
            return None;
        }
        let ranges = page_ranges(pieces, self.page)?;
        // Whoever is known comes to the end of the list, from which nothing is taken while there
        // are others.
        let Some(mut known) = self.known.take(|known| known.ranges == ranges) else {
            self.make_room(0);
            self.known.push(Known {
                ranges,
                watched: None,
            });
            return None;
        };
        let now = match known.watched.take() {
            Some(mut watched) if watched.region.is_unchanged() => {
                if !std::mem::replace(&mut watched.was_of_use, true) {
                    self.backoff.note(true);
                }
                Some(watched)
            }
            before => {
                before.into_iter().for_each(|watched| self.end(watched));
                self.watch(&known.ranges)
            }
        };
        let generation = now.as_ref().map(|watched| watched.generation);
        known.watched = now;
        self.known.push(known);
        generation
    }

    fn watch(&mut self, ranges: &[Piece]) -> Option<Watched> {
        if !self.backoff.admits() {
            return None;
        }
        self.sweep();
        self.make_room(ranges.iter().map(|range| range.len as usize).sum());
        // SAFETY: nobody else is in the domain.
        match unsafe { OwnedRegion::new(&self.domain, ranges, CREATE_NO_REUSE) } {
            Ok(region) => {
                self.last += 1;
                Some(Watched {
                    region,
                    generation: self.last,
                    was_of_use: false,
                })
            }
            Err(_) => {
                self.backoff.skip(REFUSED_FOR);
                None
            }
        }
    }

    fn make_room(&mut self, coming: usize) {
        let limits = (KNOWN, WATCHED_BYTES);
        while let Some(surplus) = self.known.take_surplus(limits, coming, Known::bytes) {
            surplus
                .watched
                .into_iter()
                .for_each(|watched| self.end(watched));
        }
    }

    /// Finds memory that was unmapped and is asked for no more.
    fn sweep(&mut self) {
        let watched = self.known.iter_mut().filter(|its| its.watched.is_some());
        let is_changed = |its: &Watched| !its.region.is_unchanged();
        let changed: Vec<Watched> = watched
            .take(SWEPT)
            .filter_map(|its| its.watched.take_if(|watched| is_changed(watched)))
            .collect();
        changed.into_iter().for_each(|watched| self.end(watched));
    }

    fn end(&mut self, watched: Watched) {
        if !watched.was_of_use {
            self.backoff.note(false);
        }
        self.over.push(watched.generation);
    }

    /// The generations that have ended since this was called last: what was kept for them is of no
    /// use any more.
    pub fn take_over(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.over)
    }

    /// Watches nothing for a while: what is locked is needed by others.
    pub fn give_up(&mut self) {
        let watched: Vec<Watched> = self
            .known
            .drain()
            .filter_map(|known| known.watched)
            .collect();
        self.over
            .extend(watched.iter().map(|watched| watched.generation));
        self.backoff.skip(REFUSED_FOR);
    }
}

/// The ranges of pages that pieces touch, as few as possible; none if there are more than a region
/// may have, or nothing to watch.
fn page_ranges(pieces: impl IntoIterator<Item = Piece>, page: u64) -> Option<Vec<Piece>> {
    let mut ranges: Vec<Piece> = Vec::new();
    let mut is_sorted = true;
    for piece in pieces {
        if piece.len == 0 {
            continue;
        }
        let base = piece.base - piece.base % page;
        let end = piece
            .base
            .checked_add(piece.len)?
            .checked_next_multiple_of(page)?;
        match ranges.last_mut() {
            Some(last) if base >= last.base && base <= last.base + last.len => {
                last.len = last.len.max(end - last.base);
            }
            last => {
                is_sorted &= last.is_none_or(|last| base > last.base);
                ranges.push(Piece {
                    base,
                    len: end - base,
                });
            }
        }
    }
    if !is_sorted {
        ranges.sort_unstable_by_key(|range| range.base);
        let sorted = ranges;
        return page_ranges(sorted, page);
    }
    (!ranges.is_empty() && ranges.len() <= MAX_IOV as usize).then_some(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(pieces: &[(u64, u64)]) -> Option<Vec<(u64, u64)>> {
        let pieces = pieces.iter().map(|(base, len)| Piece {
            base: *base,
            len: *len,
        });
        let ranges = page_ranges(pieces, 4096)?;
        Some(ranges.iter().map(|range| (range.base, range.len)).collect())
    }

    #[test]
    fn ranges_are_whole_pages_and_as_few_as_possible() {
        assert_eq!(ranges(&[(5000, 10)]), Some(vec![(4096, 4096)]));
        assert_eq!(ranges(&[(4095, 2)]), Some(vec![(0, 8192)]));
        // A column: blocks in each page, and none in every second one.
        let column = |stride: u64| (0..8).map(|i| (8192 + i * stride, 100)).collect::<Vec<_>>();
        assert_eq!(ranges(&column(1024)), Some(vec![(8192, 8192)]));
        assert_eq!(ranges(&column(8192)).map(|all| all.len()), Some(8));
        // In any order, and with parts of each other.
        let mixed = [(20000, 1), (100, 50), (0, 0), (4000, 200), (0, 9000)];
        assert_eq!(ranges(&mixed), Some(vec![(0, 12288), (16384, 4096)]));
        assert_eq!(
            ranges(&[(0, 100), (100, 4000), (0, 10)]),
            Some(vec![(0, 8192)])
        );
    }

    #[test]
    fn what_no_region_can_be_is_not_watched() {
        assert_eq!(ranges(&[]), None);
        assert_eq!(ranges(&[(4096, 0)]), None);
        assert_eq!(ranges(&[(u64::MAX - 10, 5)]), None);
        assert_eq!(ranges(&[(u64::MAX - 10, 50)]), None);
        let many: Vec<(u64, u64)> = (0..2048).map(|i| (i * 8192, 1)).collect();
        assert_eq!(ranges(&many[..1024]).map(|all| all.len()), Some(1024));
        assert_eq!(ranges(&many), None);
        // Of which pairs touch the same pages.
        let pairs: Vec<(u64, u64)> = (0..2048).map(|i| (i / 2 * 8192 + i % 2, 1)).collect();
        assert_eq!(ranges(&pairs).map(|all| all.len()), Some(1024));
    }

    #[test]
    fn without_the_module_there_is_no_watcher() {
        if !std::path::Path::new(crate::uapi::DEVICE_PATH).exists() {
            assert!(Watcher::new().is_err());
        }
    }
}
