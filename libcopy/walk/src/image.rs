// SPDX-License-Identifier: MIT OR Apache-2.0

//! A layout as words that can be copied anywhere.
//!
//! All words are 32 bits, little endian. An `id` is the index of a record's first word.
//!
//! ```text
//! header    magic  words  records  origin  size  low  high  0
//! record    kind | depth << 8  size  low  high  count  stride or list  child  child's size
//! ...       children before their parents, the root last
//! lists     Blocks: offsets. Pieces: offsets, then starts, one more.
//!           Sequence: offset, start, child, child's size
//!           in the order of their records, none within another
//! ```
//!
//! `low` and `high` bound the bytes of a node, relative to its origin; in the header, relative to
//! the origin of the layout. The child 0 is `child's size` bytes without a gap and has no record.

use crate::tree::{Child, Node, NodeId, Offsets, Part, PartList, Tree};

/// Words of the header.
pub const HEADER_WORDS: usize = 8;
/// Words of a node's record.
pub const RECORD_WORDS: usize = 8;
/// Words of one part of a sequence.
pub const PART_WORDS: usize = 4;

/// "LCW1".
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"LCW1");

pub(crate) const DENSE: u32 = 1;
pub(crate) const STREAM: u32 = 2;
pub(crate) const BLOCKS: u32 = 3;
pub(crate) const PIECES: u32 = 4;
pub(crate) const SEQUENCE: u32 = 5;

/// What is read where an image has no record: nothing.
static NO_RECORD: [u32; RECORD_WORDS] = [0; RECORD_WORDS];

/// A layout as 32-bit words: relocatable, little endian, at most 2 GiB of data and of extent.
///
/// Reading it never goes outside the words, whatever they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image<'a> {
    words: &'a [u32],
}

impl<'a> Image<'a> {
    /// An image that [`Image::check`] accepted before, or that [`Builder`](crate::Builder) made:
    /// for example in the memory of a card, where the host put it.
    ///
    /// With other words walks end and nothing panics, but the pieces may lie anywhere.
    #[inline]
    pub const fn trusted(words: &'a [u32]) -> Image<'a> {
        Image { words }
    }

    /// All words.
    #[inline]
    pub fn words(self) -> &'a [u32] {
        self.words
    }

    /// Bytes of memory it takes.
    pub fn bytes(self) -> usize {
        size_of_val(self.words)
    }

    /// The lowest byte that a piece may have, in bytes from the layout's origin.
    #[inline]
    pub fn low(self) -> i32 {
        self.number(5)
    }

    /// Behind the highest byte that a piece may have, in bytes from the layout's origin.
    #[inline]
    pub fn high(self) -> i32 {
        self.number(6)
    }

    /// Levels of nodes: the `DEPTH` of a [`State`](crate::State) that never has to descend from the
    /// root again. In an image that was checked, at most the number of records.
    pub fn depth(self) -> u32 {
        self.root().map_or(0, |root| self.record(root)[0] >> 8)
    }

    /// How many records there should be.
    pub(crate) fn records(self) -> i64 {
        i64::from(self.number(2) as u32)
    }

    #[inline(always)]
    pub(crate) fn number(self, at: usize) -> i32 {
        self.words.get(at).map_or(0, |word| u32::from_le(*word)) as i32
    }

    /// The words of a record, still little endian.
    #[inline(always)]
    fn raw(self, id: NodeId) -> &'a [u32; RECORD_WORDS] {
        self.words
            .get(id as usize..)
            .and_then(|rest| rest.first_chunk())
            .unwrap_or(&NO_RECORD)
    }

    #[inline(always)]
    pub(crate) fn record(self, id: NodeId) -> [u32; RECORD_WORDS] {
        self.raw(id).map(u32::from_le)
    }

    /// `len` words from `start`; fewer if there are fewer.
    #[inline(always)]
    pub(crate) fn list(self, start: u32, len: usize) -> List<'a> {
        let words = self.words.get(start as usize..).unwrap_or_default();
        List {
            words: words.get(..len).unwrap_or(words),
        }
    }
}

impl<'a> Tree for Image<'a> {
    type Word = i32;
    type Offsets = List<'a>;
    type Parts = Parts<'a>;

    #[inline(always)]
    fn root(self) -> Option<NodeId> {
        match self.number(2) {
            0 => None,
            records => Some((records as u32).wrapping_mul(RECORD_WORDS as u32)),
        }
    }

    #[inline(always)]
    fn origin(self) -> i32 {
        self.number(3)
    }

    #[inline(always)]
    fn size(self) -> i32 {
        self.number(4)
    }

    #[inline(always)]
    fn node(self, id: NodeId) -> Node<Self> {
        let [kind, size, _, _, count, list, child, child_size] = self.record(id);
        let child = Child {
            id: child,
            size: child_size as i32,
        };
        match kind & 0xff {
            STREAM => Node::Stream {
                count: count as i32,
                stride: list as i32,
                child,
            },
            BLOCKS => Node::Blocks {
                offsets: self.list(list, count as usize),
                child,
            },
            PIECES => Node::Pieces {
                offsets: self.list(list, count as usize),
                starts: self.list(list.wrapping_add(count), (count as usize).saturating_add(1)),
            },
            SEQUENCE => Node::Sequence {
                parts: Parts {
                    list: self.list(list, (count as usize).saturating_mul(PART_WORDS)),
                },
            },
            _ => Node::Dense { len: size as i32 },
        }
    }

    #[inline(always)]
    fn size_of(self, id: NodeId) -> i32 {
        u32::from_le(self.raw(id)[1]) as i32
    }

    #[inline(always)]
    fn is_dense(self, child: Child<i32>) -> bool {
        child.id == Child::<i32>::DENSE
    }
}

/// A list of an [`Image`].
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    words: &'a [u32],
}

impl Offsets<i32> for List<'_> {
    #[inline(always)]
    fn len(self) -> usize {
        self.words.len()
    }

    #[inline(always)]
    fn get(self, i: usize) -> i32 {
        self.words.get(i).map_or(0, |word| u32::from_le(*word)) as i32
    }

    #[inline(always)]
    fn last_not_above(self, value: i32) -> usize {
        last_not_above(self.words.len(), |i| self.get(i) <= value)
    }
}

/// The parts of a sequence of an [`Image`].
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    list: List<'a>,
}

impl PartList<i32> for Parts<'_> {
    #[inline(always)]
    fn len(self) -> usize {
        self.list.words.len() / PART_WORDS
    }

    #[inline(always)]
    fn get(self, i: usize) -> Option<Part<i32>> {
        let from = i.wrapping_mul(PART_WORDS);
        let words: &[u32; PART_WORDS] = self.list.words.get(from..)?.first_chunk()?;
        let [offset, start, id, size] = words.map(u32::from_le);
        Some(Part {
            offset: offset as i32,
            start: start as i32,
            child: Child {
                id,
                size: size as i32,
            },
        })
    }

    #[inline(always)]
    fn last_not_above(self, position: i32) -> usize {
        let start = |i: usize| self.list.get(i.wrapping_mul(PART_WORDS).wrapping_add(1));
        last_not_above(self.len(), |i| start(i) <= position)
    }
}

/// The last of `len` entries that holds, where those that hold come first; 0 if none does.
#[inline(always)]
fn last_not_above(len: usize, holds: impl Fn(usize) -> bool) -> usize {
    // Entries before `low` hold, those from `high` on do not.
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low.saturating_sub(1)
}
