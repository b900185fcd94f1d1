// SPDX-License-Identifier: MIT OR Apache-2.0

//! What an image from an untrusted source has to hold.

use core::fmt;

use crate::image::{
    BLOCKS, DENSE, HEADER_WORDS, Image, List, MAGIC, PART_WORDS, PIECES, RECORD_WORDS, SEQUENCE,
    STREAM,
};
use crate::tree::{Child, NodeId, Offsets, Tree};

/// Why words are not an image, or a layout cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageError {
    /// The words do not begin with the magic word: no image, or one of another version.
    Magic {
        /// The word that is there.
        found: u32,
    },
    /// The header names another number of words than there are.
    Words {
        /// The number in the header.
        named: u32,
        /// How many there are.
        found: usize,
    },
    /// A word of the header or of a record is wrong.
    Word {
        /// Its index.
        at: usize,
        /// Its value.
        value: u32,
        /// What it has to be.
        allowed: &'static str,
    },
    /// A size, an offset or an extent of the layout does not fit into 31 bits.
    TooLarge {
        /// The number.
        value: i64,
    },
    /// The builder was given too few words.
    NoRoom {
        /// How many it was given.
        words: usize,
    },
    /// A count or a length that is not positive, or a child that is not a node made before.
    Argument {
        /// The number.
        value: i64,
        /// What it has to be.
        allowed: &'static str,
    },
}

impl fmt::Display for ImageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImageError::Magic { found } => write!(
                f,
                "the image begins with {found:#010x}, not with \"LCW1\": it is no image, or one of another version"
            ),
            ImageError::Words { named, found } => {
                write!(f, "the image should have {named} words but has {found}")
            }
            ImageError::Word { at, value, allowed } => {
                let number = *value as i32;
                write!(
                    f,
                    "word {at} of the image is {number}; it must be {allowed}"
                )
            }
            ImageError::TooLarge { value } => write!(
                f,
                "{value} bytes do not fit into an image, whose numbers have 31 bits and a sign"
            ),
            ImageError::NoRoom { words } => {
                write!(f, "the image does not fit into {words} words")
            }
            ImageError::Argument { value, allowed } => {
                write!(f, "{value} is not {allowed}")
            }
        }
    }
}

impl core::error::Error for ImageError {}

/// The bytes of a child, relative to its origin.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) low: i64,
    pub(crate) high: i64,
    pub(crate) depth: u32,
}

/// A record that is being checked.
struct Record<'a> {
    image: Image<'a>,
    id: NodeId,
    words: [u32; RECORD_WORDS],
    /// Where its list may begin: behind the records and the lists of the records before. If lists
    /// could overlap, a check would read the same words once per record, and take the square of the
    /// number of words.
    free: i64,
}

impl<'a> Image<'a> {
    /// An image from any source: it accepts words only if every walk over them ends and all pieces
    /// lie within [`Image::low`]`..`[`Image::high`]. Takes time proportional to the number of
    /// words: each word belongs to one record or one list. A walk over it takes at most
    /// [`Image::depth`] steps, each with a binary search, per piece, and each piece has a byte of
    /// [`Tree::size`] at least; a caller that wants a tighter bound compares both.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong, and in which word.
    pub fn check(words: &'a [u32]) -> Result<Image<'a>, ImageError> {
        let image = Image::trusted(words);
        check(image)?;
        Ok(image)
    }
}

fn check(image: Image<'_>) -> Result<(), ImageError> {
    let words = image.words();
    let Some(header) = words.first_chunk::<HEADER_WORDS>() else {
        return Err(ImageError::Words {
            named: HEADER_WORDS as u32,
            found: words.len(),
        });
    };
    let [magic, named, records, origin, size, low, high, reserved] = header.map(u32::from_le);
    if magic != MAGIC {
        return Err(ImageError::Magic { found: magic });
    }
    if named as usize != words.len() {
        return Err(ImageError::Words {
            named,
            found: words.len(),
        });
    }
    let wrong = |at: usize, value: u32, allowed| Err(ImageError::Word { at, value, allowed });
    if reserved != 0 {
        return wrong(7, reserved, "0");
    }
    let room = (words.len() - HEADER_WORDS) / RECORD_WORDS;
    if records as usize > room {
        return wrong(2, records, "the number of records, which are in the words");
    }
    let mut free = HEADER_WORDS as i64 + image.records() * RECORD_WORDS as i64;
    for i in 0..records {
        let id = HEADER_WORDS as u32 + i * RECORD_WORDS as u32;
        let mut record = Record {
            image,
            id,
            words: image.record(id),
            free,
        };
        record.check()?;
        free = record.free;
    }
    let Some(root) = image.root() else {
        let zeros = [(3, origin), (4, size), (5, low), (6, high)];
        return match zeros.into_iter().find(|(_, value)| *value != 0) {
            None => Ok(()),
            Some((at, value)) => wrong(at, value, "0, as there are no records"),
        };
    };
    let (origin, low, high) = (number(origin), number(low), number(high));
    let [_, all, first, end, ..] = image.record(root);
    if size != all {
        return wrong(4, size, "the size of the root");
    }
    if low > origin + number(first) {
        return wrong(5, low as u32, "at most the lowest byte of the root");
    }
    if high < origin + number(end) {
        return wrong(6, high as u32, "at least the highest byte of the root");
    }
    Ok(())
}

/// A signed number of an image.
fn number(word: u32) -> i64 {
    i64::from(word as i32)
}

impl<'a> Record<'a> {
    fn wrong<V>(&self, word: usize, allowed: &'static str) -> Result<V, ImageError> {
        Err(ImageError::Word {
            at: self.id as usize + word,
            value: self.words.get(word).copied().unwrap_or_default(),
            allowed,
        })
    }

    fn check(&mut self) -> Result<(), ImageError> {
        let [kind, size, low, high, count, ..] = self.words;
        let (size, count) = (number(size), number(count));
        if size < 1 {
            return self.wrong(1, "positive: a node has data");
        }
        if number(low) > 0 {
            return self.wrong(2, "at most 0");
        }
        if number(high) < 0 {
            return self.wrong(3, "at least 0");
        }
        if kind & 0xff != DENSE && count < 1 {
            return self.wrong(4, "positive: a node has children");
        }
        let depth = match kind & 0xff {
            DENSE => self.dense(size)?,
            STREAM => self.stream(size, count)?,
            BLOCKS => self.blocks(size, count)?,
            PIECES => self.pieces(size, count)?,
            SEQUENCE => self.sequence(size, count)?,
            _ => return self.wrong(0, "a kind, 1 to 5, and the depth times 256"),
        };
        if kind >> 8 != depth {
            return self.wrong(0, "a kind, 1 to 5, and the depth times 256");
        }
        Ok(())
    }

    /// A child with its origin at `offset` has to lie within the record's bounds.
    fn holds(&self, offset: i64, child: Bounds) -> Result<(), ImageError> {
        if offset + child.low < number(self.words[2]) {
            return self.wrong(2, "at most the lowest byte of all children");
        }
        if offset + child.high > number(self.words[3]) {
            return self.wrong(3, "at least the highest byte of all children");
        }
        // The child's origin is where it is, as no bounds exclude 0.
        Ok(())
    }

    /// The child that is named `id`, with `size` bytes.
    fn child(&self, word: usize, id: u32, size: u32) -> Result<Bounds, ImageError> {
        if id == Child::<i32>::DENSE {
            if number(size) < 1 {
                return self.wrong(word, "a child with data");
            }
            return Ok(Bounds {
                low: 0,
                high: number(size),
                depth: 0,
            });
        }
        let is_record = id >= HEADER_WORDS as u32
            && (id - HEADER_WORDS as u32) % RECORD_WORDS as u32 == 0
            && id < self.id;
        if !is_record {
            return self.wrong(word, "0 or a record before");
        }
        let [kind, child_size, low, high, ..] = self.image.record(id);
        if child_size != size {
            return self.wrong(word, "a child whose size is the one beside it");
        }
        Ok(Bounds {
            low: number(low),
            high: number(high),
            depth: kind >> 8,
        })
    }

    fn list(&mut self, len: i64) -> Result<List<'a>, ImageError> {
        let all = self.image.words();
        let start = i64::from(self.words[5]);
        if start < self.free || start + len > all.len() as i64 {
            return self.wrong(
                5,
                "the beginning of a list behind the records and the lists of those before, all of it in the words",
            );
        }
        self.free = start + len;
        Ok(self.image.list(self.words[5], len as usize))
    }

    fn dense(&self, size: i64) -> Result<u32, ImageError> {
        let own = Bounds {
            low: 0,
            high: size,
            depth: 0,
        };
        self.holds(0, own)?;
        Ok(1)
    }

    fn stream(&self, size: i64, count: i64) -> Result<u32, ImageError> {
        let [.., stride, child, child_size] = self.words;
        let bounds = self.child(6, child, child_size)?;
        if count * number(child_size) != size {
            return self.wrong(1, "the number of children times their size");
        }
        self.holds(0, bounds)?;
        self.holds((count - 1) * number(stride), bounds)?;
        Ok(bounds.depth + 1)
    }

    fn blocks(&mut self, size: i64, count: i64) -> Result<u32, ImageError> {
        let [.., child, child_size] = self.words;
        let bounds = self.child(6, child, child_size)?;
        if count * number(child_size) != size {
            return self.wrong(1, "the number of children times their size");
        }
        let offsets = self.list(count)?;
        for i in 0..offsets.len() {
            self.holds(i64::from(offsets.get(i)), bounds)?;
        }
        Ok(bounds.depth + 1)
    }

    fn pieces(&mut self, size: i64, count: i64) -> Result<u32, ImageError> {
        let all = self.list(2 * count + 1)?;
        let count = count as usize;
        let start = |i: usize| i64::from(all.get(count + i));
        if start(0) != 0 || start(count) != size {
            return self.wrong(
                5,
                "the beginning of offsets and of starts from 0 to the size",
            );
        }
        for i in 0..count {
            let len = start(i + 1) - start(i);
            if len < 1 {
                return self.wrong(5, "the beginning of offsets and of ascending starts");
            }
            let piece = Bounds {
                low: 0,
                high: len,
                depth: 0,
            };
            self.holds(i64::from(all.get(i)), piece)?;
        }
        Ok(1)
    }

    fn sequence(&mut self, size: i64, count: i64) -> Result<u32, ImageError> {
        let all = self.list(count * PART_WORDS as i64)?;
        let (mut start, mut depth) = (0, 0);
        for i in 0..count as usize {
            let word = |at: usize| all.get(PART_WORDS * i + at);
            if i64::from(word(1)) != start {
                return self.wrong(
                    5,
                    "the beginning of parts, each starting where the last one ends",
                );
            }
            let bounds = self.child(5, word(2) as u32, word(3) as u32)?;
            self.holds(i64::from(word(0)), bounds)?;
            start += i64::from(word(3));
            depth = depth.max(bounds.depth);
        }
        if start != size {
            return self.wrong(1, "the sum of the sizes of the parts");
        }
        Ok(depth + 1)
    }
}
