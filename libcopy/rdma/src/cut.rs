// SPDX-License-Identifier: MIT OR Apache-2.0

//! How the packed stream of a message is cut, so that the pieces between two cuts fit into one
//! memory key at either end. Sender and receiver cut at the same bytes: one WRITE moves what one
//! pair of keys points to.
//!
//! ```text
//! sender    |--- 5 ---|-- 4 --|--- 5 ---|-- 4 --|      blocks
//! receiver  |-- 3 -|-- 3 -|-- 3 -|-- 3 -|-- 3 -|-- 3 -|
//! cuts      ^             ^             ^             ^
//! ```
//!
//! Here csize = 6: at most 3 blocks per window at both ends.
//!
//! Source: "Network-Assisted Noncontiguous Transfers for GPU-Aware MPI Libraries", sections "Mkey
//! Mapping" and "UMR-Based Design". Two corrections. The paper's csize = `MAX_IOVS` x A does not
//! keep to `MAX_IOVS`: a window of M A bytes can begin and end within a block and so touch M + 1.
//! With (M - 1) A it cannot; M A is used where every block of both sides is a multiple of A, as
//! where all are equal. And where A is tiny the keys become too many: then the message is packed
//! (see [`crate::choice`]).

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::iov::{Iov, Shape};
use libcopy_datatype::room;

/// What a card allows for one key and one WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Pieces that one key points to (`MAX_IOVS_PER_WQE` of the paper), at least 2.
    pub max_iovs: usize,
    /// Bytes of one WRITE (`max_msg_sz` of the port), at least 1.
    pub max_bytes: u64,
}

impl Limits {
    /// What both ends of a connection allow.
    pub fn common(&self, other: &Limits) -> Limits {
        Limits {
            max_iovs: self.max_iovs.min(other.max_iovs),
            max_bytes: self.max_bytes.min(other.max_bytes),
        }
    }
}

/// Which rule makes the cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CutRule {
    /// The paper's: equal windows of the agreed chunk size.
    #[default]
    Agreed,
    /// Ours: both layouts are known, and each window is as long as both ends allow.
    Maximal,
}

/// Where a message is cut.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cuts {
    /// The bytes of every window; the last one may be shorter.
    Every(u64),
    /// The bytes of each window.
    Lengths(Arc<Vec<u64>>),
}

impl Cuts {
    /// The windows' lengths of a message of `bytes`. They are not made into a list: a message may
    /// have as many windows as bytes.
    pub fn lengths(&self, bytes: u64) -> impl Iterator<Item = u64> {
        let (full, rest, listed): (_, _, &[u64]) = match self {
            Cuts::Every(csize) => ((bytes / csize, *csize), bytes % csize, &[]),
            Cuts::Lengths(lengths) => ((0, 0), 0, lengths),
        };
        (0..full.0)
            .map(move |_| full.1)
            .chain((rest > 0).then_some(rest))
            .chain(listed.iter().copied())
    }

    /// Windows of a message of `bytes`: the number of keys of either end and of WRITEs.
    pub fn count(&self, bytes: u64) -> u64 {
        match self {
            Cuts::Every(csize) => bytes.div_ceil(*csize),
            Cuts::Lengths(lengths) => lengths.len() as u64,
        }
    }
}

/// The agreed chunk size of the paper, corrected: A = min(blockmin of both), csize = (M - 1) A, or
/// M A if A divides the lengths of all blocks of both sides. At most what one WRITE moves. 0 for a
/// message without bytes.
pub fn chunk_size(sender: &Shape, receiver: &Shape, limits: &Limits) -> u64 {
    let agreed = sender.min.min(receiver.min);
    if agreed == 0 {
        return 0;
    }
    let is_multiple = sender.unit % agreed == 0 && receiver.unit % agreed == 0;
    let blocks = if is_multiple {
        limits.max_iovs
    } else {
        limits.max_iovs - 1
    } as u64;
    let csize = agreed.saturating_mul(blocks);
    if csize <= limits.max_bytes {
        return csize;
    }
    // A multiple of A still begins each window where a block may begin.
    match limits.max_bytes / agreed {
        0 => limits.max_bytes,
        whole => whole * agreed,
    }
}

/// The longest windows: each ends where one more byte would be one piece more than a key may have,
/// at either end. No rule that cuts both ends at the same bytes needs fewer windows, since a window
/// that begins later never has to end earlier.
///
/// # Errors
///
/// [`Error::Size`] if the lists have different numbers of bytes, [`Error::NoRoom`] for more windows
/// than memory has room for.
pub fn maximal_cuts(sender: &[Iov], receiver: &[Iov], limits: &Limits) -> Result<Cuts> {
    let bytes = |iovs: &[Iov]| iovs.iter().map(|iov| iov.len).sum::<u64>();
    let (total, room) = (bytes(sender), bytes(receiver));
    if total != room {
        return Err(Error::Size {
            sender: total,
            receiver: room,
        });
    }
    let mut sides = [Walk::new(sender), Walk::new(receiver)];
    let mut lengths = Vec::new();
    let mut done = 0;
    while done < total {
        let reach = |walk: &Walk| walk.reach(limits);
        let len = reach(&sides[0]).min(reach(&sides[1]));
        for side in &mut sides {
            side.advance(len);
        }
        room::push(&mut lengths, len)?;
        done += len;
    }
    Ok(Cuts::Lengths(Arc::new(lengths)))
}

/// A position in a list.
struct Walk<'a> {
    iovs: &'a [Iov],
    index: usize,
    /// Bytes of the piece that lie before the position.
    skip: u64,
}

impl<'a> Walk<'a> {
    fn new(iovs: &'a [Iov]) -> Walk<'a> {
        Walk {
            iovs,
            index: 0,
            skip: 0,
        }
    }

    /// Bytes from here on that one key can point to.
    fn reach(&self, limits: &Limits) -> u64 {
        let mut bytes = 0_u64;
        let mut skip = self.skip;
        for iov in self.iovs[self.index..].iter().take(limits.max_iovs) {
            bytes = bytes.saturating_add(iov.len - skip);
            skip = 0;
            if bytes >= limits.max_bytes {
                return limits.max_bytes;
            }
        }
        bytes
    }

    /// Goes on by `len` bytes and hands the pieces to `sink`.
    ///
    /// # Errors
    ///
    /// The first of the sink.
    fn take(&mut self, mut len: u64, mut sink: impl FnMut(Iov) -> Result<()>) -> Result<()> {
        while len > 0 {
            let iov = self.iovs[self.index];
            let part = len.min(iov.len - self.skip);
            sink(Iov {
                addr: iov.addr + self.skip,
                len: part,
            })?;
            len -= part;
            self.skip += part;
            if self.skip == iov.len {
                self.index += 1;
                self.skip = 0;
            }
        }
        Ok(())
    }

    fn advance(&mut self, len: u64) {
        // A sink that does nothing does not fail.
        let _ = self.take(len, |_| Ok(()));
    }
}

/// The pieces of every window of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    pieces: Vec<Iov>,
    /// Behind the last piece of each window.
    ends: Vec<usize>,
}

impl Windows {
    /// Slides the window over the list: over IOVs, not over the gaps between them.
    ///
    /// # Errors
    ///
    /// [`Error::Size`] if the cuts are for another number of bytes, [`Error::TooManyIovs`] if a
    /// window has more than `max_iovs` pieces, [`Error::NoRoom`] for more pieces and windows than
    /// memory has room for.
    pub fn new(iovs: &[Iov], cuts: &Cuts, max_iovs: usize) -> Result<Windows> {
        let bytes: u64 = iovs.iter().map(|iov| iov.len).sum();
        let covered = match cuts {
            // Every byte of any message, each once.
            Cuts::Every(_) => Some(bytes),
            Cuts::Lengths(lengths) => lengths
                .iter()
                .try_fold(0_u64, |sum, len| sum.checked_add(*len)),
        };
        let is_empty = |cuts: &Cuts| matches!(cuts, Cuts::Lengths(all) if all.contains(&0));
        if covered != Some(bytes) || is_empty(cuts) {
            return Err(Error::Size {
                sender: covered.unwrap_or(u64::MAX),
                receiver: bytes,
            });
        }
        let mut windows = Windows::default();
        let mut walk = Walk::new(iovs);
        for len in cuts.lengths(bytes) {
            let first = windows.pieces.len();
            walk.take(len, |iov| Ok(room::push(&mut windows.pieces, iov)?))?;
            let found = windows.pieces.len() - first;
            if found > max_iovs {
                return Err(Error::TooManyIovs {
                    found,
                    bytes: len,
                    max_iovs,
                });
            }
            room::push(&mut windows.ends, windows.pieces.len())?;
        }
        Ok(windows)
    }

    /// Windows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The pieces of one window; none behind the last.
    pub fn get(&self, index: usize) -> &[Iov] {
        let start = index
            .checked_sub(1)
            .map_or(Some(0), |before| self.ends.get(before).copied());
        match (start, self.ends.get(index)) {
            (Some(start), Some(end)) => &self.pieces[start..*end],
            _ => &[],
        }
    }

    /// The pieces of each window.
    pub fn iter(&self) -> impl Iterator<Item = &[Iov]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts
            .zip(&self.ends)
            .map(|(start, end)| &self.pieces[start..*end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(lens: &[u64]) -> Vec<Iov> {
        let mut addr = 1 << 20;
        lens.iter()
            .map(|len| {
                let iov = Iov { addr, len: *len };
                addr += len + 64;
                iov
            })
            .collect()
    }

    fn limits(max_iovs: usize) -> Limits {
        Limits {
            max_iovs,
            max_bytes: 1 << 31,
        }
    }

    #[test]
    fn equal_blocks_fill_the_keys() {
        // The paper's example: 4,096 blocks, 4 per key, 1,024 keys.
        let list = blocks(&[512; 4096]);
        let shape = Shape::of_iovs(&list);
        let csize = chunk_size(&shape, &shape, &limits(4));
        assert_eq!(csize, 4 * 512);
        let windows = Windows::new(&list, &Cuts::Every(csize), 4).unwrap();
        assert_eq!(windows.len(), 1024);
        assert!(windows.iter().all(|window| window.len() == 4));
        assert!(
            windows
                .iter()
                .enumerate()
                .all(|(index, window)| windows.get(index) == window)
        );
        assert!(windows.get(1024).is_empty());
    }

    #[test]
    fn the_papers_chunk_size_touches_one_block_too_many() {
        // Blocks of 10 at one end and of 11 at the other: the bytes 40 to 80 touch five blocks of
        // 11.
        let (sender, receiver) = (blocks(&[10; 12]), blocks(&[11; 11][..10]));
        let receiver = [receiver, blocks(&[10])].concat();
        let paper = Cuts::Every(4 * 10);
        assert_eq!(
            Windows::new(&receiver, &paper, 4),
            Err(Error::TooManyIovs {
                found: 5,
                bytes: 40,
                max_iovs: 4
            })
        );
        let csize = chunk_size(
            &Shape::of_iovs(&sender),
            &Shape::of_iovs(&receiver),
            &limits(4),
        );
        assert_eq!(csize, 3 * 10);
        assert!(Windows::new(&receiver, &Cuts::Every(csize), 4).is_ok());
    }

    #[test]
    fn multiples_of_the_smallest_block_are_exact() {
        let (sender, receiver) = (blocks(&[8; 6]), blocks(&[24, 8, 16]));
        let shapes = [&sender, &receiver].map(|list| Shape::of_iovs(list));
        assert_eq!(chunk_size(&shapes[0], &shapes[1], &limits(3)), 24);
    }

    #[test]
    fn a_write_is_not_longer_than_the_port_allows() {
        let shape = |min| Shape {
            bytes: 1 << 40,
            blocks: 4,
            min,
            unit: min,
        };
        let limits = Limits {
            max_iovs: 4,
            max_bytes: 1000,
        };
        assert_eq!(chunk_size(&shape(300), &shape(300), &limits), 900);
        assert_eq!(chunk_size(&shape(3000), &shape(3000), &limits), 1000);
        assert_eq!(chunk_size(&shape(0), &shape(300), &limits), 0);
        let one = blocks(&[2500]);
        assert_eq!(
            maximal_cuts(&one, &one, &limits)
                .unwrap()
                .lengths(2500)
                .collect::<Vec<_>>(),
            [1000, 1000, 500]
        );
    }

    #[test]
    fn one_short_block_does_not_shorten_maximal_windows() {
        // 63 blocks of 4 KiB and one of 8 bytes: the paper's rule makes a key of each 3 x 8 bytes.
        let mut lens = vec![4096; 63];
        lens.push(8);
        let list = blocks(&lens);
        let shape = Shape::of_iovs(&list);
        let csize = chunk_size(&shape, &shape, &limits(4));
        assert_eq!(csize, 32);
        assert_eq!(Cuts::Every(csize).count(shape.bytes), 8065);
        let maximal = maximal_cuts(&list, &list, &limits(4)).unwrap();
        assert_eq!(maximal.count(shape.bytes), 16);
    }

    #[test]
    fn cuts_of_another_message_are_refused() {
        let list = blocks(&[10, 10]);
        let wrong = |lengths: &[u64]| {
            Windows::new(&list, &Cuts::Lengths(Arc::new(lengths.to_vec())), 4).unwrap_err()
        };
        let size = |sender| Error::Size {
            sender,
            receiver: 20,
        };
        assert_eq!(wrong(&[10, 11]), size(21));
        assert_eq!(wrong(&[20, 0]), size(20));
        assert_eq!(wrong(&[u64::MAX, 21]), size(u64::MAX));
        assert_eq!(
            maximal_cuts(&list, &blocks(&[21]), &limits(2)),
            Err(Error::Size {
                sender: 20,
                receiver: 21
            })
        );
    }
}
