// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes images.

use crate::check::{Bounds, ImageError};
use crate::image::{
    BLOCKS, DENSE, HEADER_WORDS, Image, MAGIC, PART_WORDS, PIECES, RECORD_WORDS, SEQUENCE, STREAM,
};
use crate::tree::{Child, NodeId};

/// Writes an image into words that are given: first the children, then their parents, the root
/// last.
///
/// An image has 8 words, 8 per node, 1 per offset of [`Builder::blocks`], 2 per piece and 1 of
/// [`Builder::pieces`], and 4 per part of [`Builder::sequence`].
#[derive(Debug)]
pub struct Builder<'a> {
    words: &'a mut [u32],
    /// Records there is room for.
    records: usize,
    /// Records written.
    done: usize,
    /// Where the next list begins.
    list: usize,
}

/// A record without the bounds of its node.
struct Draft {
    kind: u32,
    size: i64,
    bounds: Bounds,
    count: i64,
    /// Stride, or where the list is.
    fifth: i64,
    child: Child<i64>,
}

impl<'a> Builder<'a> {
    /// Begins an image of exactly `records` nodes.
    ///
    /// # Errors
    ///
    /// [`ImageError::NoRoom`]: fewer words than the header and the records need.
    pub fn new(words: &'a mut [u32], records: usize) -> Result<Builder<'a>, ImageError> {
        let needed = records
            .checked_mul(RECORD_WORDS)
            .and_then(|words| words.checked_add(HEADER_WORDS));
        match needed {
            Some(list) if list <= words.len() => Ok(Builder {
                words,
                records,
                done: 0,
                list,
            }),
            _ => Err(ImageError::NoRoom { words: words.len() }),
        }
    }

    /// `len` bytes without a gap, as a node. Only a root needs one; elsewhere [`Child::dense`]
    /// takes no memory.
    ///
    /// # Errors
    ///
    /// A length that is not positive or has more than 31 bits; no room.
    pub fn dense(&mut self, len: i64) -> Result<Child<i64>, ImageError> {
        positive(len)?;
        self.record(Draft {
            kind: DENSE,
            size: len,
            bounds: Bounds {
                low: 0,
                high: len,
                depth: 0,
            },
            count: 0,
            fifth: 0,
            child: Child::dense(0),
        })
    }

    /// `count` children, `stride` bytes apart.
    ///
    /// # Errors
    ///
    /// A count that is not positive; a child that was not made before; a size or an extent of more
    /// than 31 bits; no room.
    pub fn stream(
        &mut self,
        count: i64,
        stride: i64,
        child: Child<i64>,
    ) -> Result<Child<i64>, ImageError> {
        positive(count)?;
        let inner = self.bounds(child)?;
        let last = fit((count - 1).checked_mul(stride).unwrap_or(i64::MAX))?;
        let size = count.checked_mul(child.size).unwrap_or(i64::MAX);
        self.record(Draft {
            kind: STREAM,
            size,
            bounds: within(within(EMPTY, 0, inner), last, inner),
            count,
            fifth: stride,
            child,
        })
    }

    /// The same child at each of `offsets`.
    ///
    /// # Errors
    ///
    /// No offsets; otherwise as [`Builder::stream`].
    pub fn blocks(
        &mut self,
        offsets: impl ExactSizeIterator<Item = i64>,
        child: Child<i64>,
    ) -> Result<Child<i64>, ImageError> {
        let count = offsets.len() as i64;
        positive(count)?;
        let inner = self.bounds(child)?;
        let list = self.reserve(offsets.len())?;
        let mut bounds = EMPTY;
        for (i, offset) in offsets.enumerate() {
            self.write(list + i, offset)?;
            bounds = within(bounds, offset, inner);
        }
        let size = count.checked_mul(child.size).unwrap_or(i64::MAX);
        self.record(Draft {
            kind: BLOCKS,
            size,
            bounds,
            count,
            fifth: list as i64,
            child,
        })
    }

    /// Dense pieces: offset and length of each.
    ///
    /// # Errors
    ///
    /// No pieces, or a length that is not positive; otherwise as [`Builder::stream`].
    pub fn pieces(
        &mut self,
        pieces: impl ExactSizeIterator<Item = (i64, i64)>,
    ) -> Result<Child<i64>, ImageError> {
        let count = pieces.len();
        positive(count as i64)?;
        let words = count.checked_mul(2).and_then(|words| words.checked_add(1));
        let list = self.reserve(words.unwrap_or(usize::MAX))?;
        let mut bounds = EMPTY;
        let mut size = 0;
        for (i, (offset, len)) in pieces.enumerate() {
            positive(len)?;
            self.write(list + i, offset)?;
            self.write(list + count + i, size)?;
            let piece = self.bounds(Child::dense(len))?;
            bounds = within(bounds, offset, piece);
            size += len;
        }
        self.write(list + 2 * count, size)?;
        self.record(Draft {
            kind: PIECES,
            size,
            bounds,
            count: count as i64,
            fifth: list as i64,
            child: Child::dense(0),
        })
    }

    /// Different children: offset and child of each.
    ///
    /// # Errors
    ///
    /// No parts; otherwise as [`Builder::stream`].
    pub fn sequence(
        &mut self,
        parts: impl ExactSizeIterator<Item = (i64, Child<i64>)>,
    ) -> Result<Child<i64>, ImageError> {
        let count = parts.len();
        positive(count as i64)?;
        let list = self.reserve(count.saturating_mul(PART_WORDS))?;
        let mut bounds = EMPTY;
        let mut size = 0;
        for (i, (offset, child)) in parts.enumerate() {
            let inner = self.bounds(child)?;
            let at = list + i * PART_WORDS;
            self.write(at, offset)?;
            self.write(at + 1, size)?;
            self.write(at + 2, i64::from(child.id))?;
            self.write(at + 3, child.size)?;
            bounds = within(bounds, offset, inner);
            size += child.size;
        }
        self.record(Draft {
            kind: SEQUENCE,
            size,
            bounds,
            count: count as i64,
            fifth: list as i64,
            child: Child::dense(0),
        })
    }

    /// The image of `root`, which is the node made last, with its origin at `origin`.
    ///
    /// # Errors
    ///
    /// Another root, fewer records than were announced, or an extent of more than 31 bits.
    pub fn finish(mut self, root: Child<i64>, origin: i64) -> Result<Image<'a>, ImageError> {
        let last = (self.done * RECORD_WORDS) as NodeId;
        if self.done == 0 || self.done != self.records || root.id != last {
            return Err(ImageError::Argument {
                value: i64::from(root.id),
                allowed: "the last of the announced records",
            });
        }
        let bounds = self.bounds(root)?;
        let origin = fit(origin)?;
        self.header(
            origin,
            root.size,
            (origin + bounds.low, origin + bounds.high),
        )
    }

    /// The image of a layout without data.
    ///
    /// # Errors
    ///
    /// Records that were announced.
    pub fn finish_empty(mut self) -> Result<Image<'a>, ImageError> {
        if self.records != 0 {
            return Err(ImageError::Argument {
                value: self.records as i64,
                allowed: "0, the number of records of an empty layout",
            });
        }
        self.header(0, 0, (0, 0))
    }

    fn header(
        &mut self,
        origin: i64,
        size: i64,
        (low, high): (i64, i64),
    ) -> Result<Image<'a>, ImageError> {
        let used = self.list;
        let header = [
            i64::from(MAGIC as i32),
            used as i64,
            self.done as i64,
            origin,
        ];
        for (at, value) in (0..).zip(header.into_iter().chain([size, low, high, 0])) {
            self.write(at, value)?;
        }
        let words: &'a mut [u32] = core::mem::take(&mut self.words);
        let words: &'a [u32] = words;
        Ok(Image::trusted(words.get(..used).unwrap_or_default()))
    }

    /// Room for a list.
    fn reserve(&mut self, len: usize) -> Result<usize, ImageError> {
        let start = self.list;
        match start.checked_add(len) {
            Some(end) if end <= self.words.len() => {
                self.list = end;
                Ok(start)
            }
            _ => Err(ImageError::NoRoom {
                words: self.words.len(),
            }),
        }
    }

    fn write(&mut self, at: usize, value: i64) -> Result<(), ImageError> {
        let number = fit(value)? as i32;
        let words = self.words.len();
        match self.words.get_mut(at) {
            Some(word) => {
                *word = (number as u32).to_le();
                Ok(())
            }
            None => Err(ImageError::NoRoom { words }),
        }
    }

    /// The bounds of a child: of its record, or of its bytes.
    fn bounds(&self, child: Child<i64>) -> Result<Bounds, ImageError> {
        positive(child.size)?;
        if child.id == Child::<i64>::DENSE {
            return Ok(Bounds {
                low: 0,
                high: fit(child.size)?,
                depth: 0,
            });
        }
        let end = HEADER_WORDS + self.done * RECORD_WORDS;
        let at = child.id as usize;
        let record = Image::trusted(self.words).record(child.id);
        let is_record = at >= HEADER_WORDS && at < end && (at - HEADER_WORDS) % RECORD_WORDS == 0;
        if !is_record || i64::from(record[1]) != child.size {
            return Err(ImageError::Argument {
                value: i64::from(child.id),
                allowed: "a child that this builder made",
            });
        }
        Ok(Bounds {
            low: i64::from(record[2] as i32),
            high: i64::from(record[3] as i32),
            depth: record[0] >> 8,
        })
    }

    fn record(&mut self, draft: Draft) -> Result<Child<i64>, ImageError> {
        if self.done == self.records {
            return Err(ImageError::NoRoom {
                words: self.words.len(),
            });
        }
        let id = HEADER_WORDS + self.done * RECORD_WORDS;
        let kind = i64::from(draft.kind) | i64::from(draft.bounds.depth + 1) << 8;
        let record = [kind, draft.size, draft.bounds.low, draft.bounds.high];
        let rest = [
            draft.count,
            draft.fifth,
            i64::from(draft.child.id),
            draft.child.size,
        ];
        for (at, value) in (id..).zip(record.into_iter().chain(rest)) {
            self.write(at, value)?;
        }
        self.done += 1;
        Ok(Child {
            id: id as NodeId,
            size: draft.size,
        })
    }
}

const EMPTY: Bounds = Bounds {
    low: 0,
    high: 0,
    depth: 0,
};

/// Bounds with a child at `offset`.
fn within(bounds: Bounds, offset: i64, child: Bounds) -> Bounds {
    Bounds {
        low: bounds.low.min(offset + child.low),
        high: bounds.high.max(offset + child.high),
        depth: bounds.depth.max(child.depth),
    }
}

/// A number of an image.
fn fit(value: i64) -> Result<i64, ImageError> {
    match i32::try_from(value) {
        Ok(_) => Ok(value),
        Err(_) => Err(ImageError::TooLarge { value }),
    }
}

fn positive(value: i64) -> Result<(), ImageError> {
    if value > 0 {
        fit(value)?;
        return Ok(());
    }
    Err(ImageError::Argument {
        value,
        allowed: "positive",
    })
}
