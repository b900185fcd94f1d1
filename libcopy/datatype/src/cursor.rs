// SPDX-License-Identifier: MIT OR Apache-2.0

//! A position in a packed stream, and what lies there.
//!
//! The mechanism is [`State`], which network cards use too, over the canonical form. Seeking
//! descends from the root: a division per stream, a binary search per irregular node. Going on from
//! one piece to the next touches only the innermost frames. A state that is kept is a checkpoint in
//! the sense of "Network-Accelerated Non-Contiguous Memory Transfers" (section 3.2.4): a later part
//! of the stream is processed from there.

use libcopy_walk::State;

use super::form::{Form, Node};
use super::layout::{Layout, Segment};
use super::offsets::Offsets;
use crate::{Error, Result};

/// Frames of a cursor; deeper forms are rare, and descended again from the root when the outer
/// frames are needed.
const DEPTH: usize = 6;

/// A position in the packed stream of a layout. Clones are independent.
#[derive(Clone, Debug)]
pub struct Cursor {
    layout: Layout,
    state: State<DEPTH, i64>,
}

/// Blocks of one length that follow each other in the packed stream: see [`Cursor::blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks<'a> {
    /// What their places count from, in bytes from the layout's origin.
    pub offset: i64,
    /// Bytes of each.
    pub len: u64,
    /// Where they begin.
    pub places: Places<'a>,
}

/// Where blocks begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places<'a> {
    /// So many, at equal distances, from 0 on.
    Stride(u64, i64),
    /// At these offsets.
    List(&'a [i32]),
}

impl Places<'_> {
    /// How many.
    pub fn count(&self) -> u64 {
        match self {
            Places::Stride(count, _) => *count,
            Places::List(list) => list.len() as u64,
        }
    }
}

impl Layout {
    /// A cursor at the start of the packed stream.
    pub fn cursor(&self) -> Cursor {
        Cursor::new(self)
    }
}

impl Cursor {
    pub(super) fn new(layout: &Layout) -> Cursor {
        Cursor {
            layout: layout.clone(),
            state: State::start(layout.form()),
        }
    }

    /// The layout it belongs to.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes before it.
    pub fn position(&self) -> u64 {
        self.state.position() as u64
    }

    /// Bytes behind it.
    pub fn remaining(&self) -> u64 {
        self.layout.size() - self.position()
    }

    /// Moves to any position, in O(depth · log blocks).
    ///
    /// # Errors
    ///
    /// A position behind the end of the packed stream.
    pub fn seek(&mut self, position: u64) -> Result<()> {
        let form: &Form = self.layout.form();
        let size = form.size();
        if position > size {
            return Err(Error::argument("the position", position, ..=size));
        }
        match form.root() {
            Some(root) if position < size => {
                self.state.seek_within(form, root, position as i64);
            }
            // The end.
            _ => self.state.seek(form, size as i64),
        }
        Ok(())
    }

    /// The next segment, or what is left of it, at most `most` bytes, and moves behind it; `None`
    /// at the end, and only there.
    ///
    /// If `most` is 0 the segment is empty: its offset is where the next byte lies, and the cursor
    /// stays where it is. So a loop that asks for what is left of a limit has to end when nothing
    /// is left.
    ///
    /// ```
    /// use libcopy_datatype::{Datatype, Layout, Named, Segment};
    /// let words = Datatype::named(Named::Byte).hindexed(&[8, 8], &[0, 100])?;
    /// let mut cursor = Layout::new(&words, 1)?.cursor();
    /// assert_eq!(cursor.next_segment(8), Some(Segment { offset: 0, len: 8 }));
    /// assert_eq!(cursor.next_segment(0), Some(Segment { offset: 100, len: 0 }));
    /// assert_eq!(cursor.position(), 8);
    /// assert_eq!(cursor.next_segment(20), Some(Segment { offset: 100, len: 8 }));
    /// assert_eq!(cursor.next_segment(0), None);
    /// # Ok::<(), libcopy_datatype::Error>(())
    /// ```
    pub fn next_segment(&mut self, most: u64) -> Option<Segment> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let form: &Form = self.layout.form();
        let strip = self.state.strip(form)?;
        let (offset, mut len) = (strip.offset, strip.len.min(most));
        self.state.advance(form, len);
        if strip.count > 1 && strip.stride != strip.len {
            // It does not touch the next one.
            return Some(Segment {
                offset,
                len: len as u64,
            });
        }
        // Pieces that touch are one.
        while len < most {
            let Some(strip) = self.state.strip(form) else {
                break;
            };
            if offset.checked_add(len) != Some(strip.offset) {
                break;
            }
            let more = strip.len.min(most - len);
            self.state.advance(form, more);
            len += more;
        }
        Some(Segment {
            offset,
            len: len as u64,
        })
    }

    /// Gives the segments of the next `most` bytes to `sink`, as many as are left, and moves behind
    /// them.
    ///
    /// They are those that [`Cursor::next_segment`] returns one by one, but a list of offsets is
    /// read in one loop, which takes a fraction of the instructions.
    ///
    /// ```
    /// use libcopy_datatype::{Datatype, Layout, Named};
    /// let words = Datatype::named(Named::Byte).hindexed(&[8, 8, 8], &[0, 100, 108])?;
    /// let mut cursor = Layout::new(&words, 1)?.cursor();
    /// let mut list = Vec::new();
    /// cursor.segments(20, |segment| list.push((segment.offset, segment.len)));
    /// assert_eq!(list, [(0, 8), (100, 12)]);
    /// assert_eq!(cursor.position(), 20);
    /// # Ok::<(), libcopy_datatype::Error>(())
    /// ```
    pub fn segments(&mut self, most: u64, mut sink: impl FnMut(Segment)) {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let mut segment = Segment::default();
        let mut join = |offset: i64, _, len: i64| {
            let len = len as u64;
            if segment.offset.checked_add(segment.len as i64) == Some(offset) {
                segment.len += len;
                return;
            }
            if segment.len > 0 {
                sink(segment);
            }
            segment = Segment { offset, len };
        };
        self.state.pieces(self.layout.form(), most, &mut join);
        if segment.len > 0 {
            sink(segment);
        }
    }

    /// The blocks from the position on, if it is at the beginning of one: as many as the innermost
    /// node of the form has left, as it has them. `None` for pieces of different lengths, within a
    /// block, for offsets that do not fit into 32 bits, and at the end.
    ///
    /// ```
    /// use libcopy_datatype::{Blocks, Datatype, Layout, Named, Places};
    /// let words = Datatype::named(Named::Byte).hindexed(&[8, 8, 8], &[5, 100, 50])?;
    /// let layout = Layout::new(&words, 1)?;
    /// let mut cursor = layout.cursor();
    /// cursor.seek(8)?;
    /// let places = Places::List(&[95, 45]);
    /// assert_eq!(cursor.blocks(), Some(Blocks { offset: 5, len: 8, places }));
    /// # Ok::<(), libcopy_datatype::Error>(())
    /// ```
    pub fn blocks(&self) -> Option<Blocks<'_>> {
        let form: &Form = self.layout.form();
        let frame = self.state.frame()?;
        let (offset, child, places) = match form.node(frame.id) {
            Node::Stream {
                count,
                stride,
                child,
            } => {
                let count = (count - frame.index) as u64;
                let offset = frame.base + frame.index * stride;
                (offset, child, Places::Stride(count, *stride))
            }
            Node::Blocks {
                offsets: Offsets::Narrow(list),
                child,
            } => {
                let list = &list[frame.index as usize..];
                (frame.base, child, Places::List(list))
            }
            _ => return None,
        };
        Some(Blocks {
            offset,
            len: form.extent(*child).size as u64,
            places,
        })
    }

    /// Fills a list with the next pieces, joining those that are adjacent, and moves behind them:
    /// the batches of an `iovec`. Returns how many entries were written; fewer than fit only at
    /// the end.
    ///
    /// ```
    /// use libcopy_datatype::{Datatype, Layout, Named, Segment};
    /// let column = Datatype::named(Named::Double).vector(1000, 1, 20)?;
    /// let mut cursor = Layout::new(&column, 1)?.cursor();
    /// let mut batch = [Segment::default(); 64];
    /// let mut bytes = 0;
    /// loop {
    ///     let n = cursor.fill(&mut batch);
    ///     if n == 0 {
    ///         break;
    ///     }
    ///     bytes += batch[..n].iter().map(|s| s.len).sum::<u64>();
    /// }
    /// assert_eq!(bytes, 8000);
    /// # Ok::<(), libcopy_datatype::Error>(())
    /// ```
    pub fn fill(&mut self, list: &mut [Segment]) -> usize {
        let form: &Form = self.layout.form();
        let mut n = 0usize;
        while let Some(strip) = self.state.strip(form) {
            let mut taken = 0;
            for i in 0..strip.count {
                let offset = strip.offset + i * strip.stride;
                let len = strip.len as u64;
                let adjacent = list[..n]
                    .last()
                    .is_some_and(|last| last.offset.checked_add(last.len as i64) == Some(offset));
                if adjacent {
                    list[n - 1].len += len;
                } else if n == list.len() {
                    break;
                } else {
                    list[n] = Segment { offset, len };
                    n += 1;
                }
                taken += strip.len;
            }
            if taken == 0 {
                break;
            }
            self.state.advance(form, taken);
        }
        n
    }

    /// Packs the next bytes, as many as fit into `packed` or are left; returns how many.
    ///
    /// # Errors
    ///
    /// Data outside `buffer`.
    pub fn pack(&mut self, buffer: &[u8], origin: isize, packed: &mut [u8]) -> Result<usize> {
        let n = self.at_most(packed.len());
        self.layout
            .pack_range(buffer, origin, self.position(), &mut packed[..n])?;
        self.seek(self.position() + n as u64)?;
        Ok(n)
    }

    /// Unpacks the next bytes, as many as `packed` has or are left; returns how many.
    ///
    /// # Errors
    ///
    /// Data outside `buffer`.
    pub fn unpack(&mut self, packed: &[u8], buffer: &mut [u8], origin: isize) -> Result<usize> {
        let n = self.at_most(packed.len());
        self.layout
            .unpack_range(&packed[..n], self.position(), buffer, origin)?;
        self.seek(self.position() + n as u64)?;
        Ok(n)
    }

    fn at_most(&self, len: usize) -> usize {
        usize::try_from(self.remaining()).map_or(len, |left| left.min(len))
    }
}

/// The states of a cursor at regular distances in the stream.
///
/// A receiver that gets parts of a message in any order starts each from the nearest state.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    layout: Layout,
    interval: u64,
    states: Vec<State<DEPTH, i64>>,
}

impl Checkpoints {
    /// States at 0, `interval`, 2 · `interval` and so on.
    ///
    /// # Errors
    ///
    /// An interval of 0, or one of which the states have no room in memory.
    pub fn new(layout: &Layout, interval: u64) -> Result<Checkpoints> {
        if interval == 0 {
            return Err(Error::argument("the interval", interval, 1u64..));
        }
        let mut states = Vec::new();
        let number = layout.size().div_ceil(interval).max(1);
        let room = usize::try_from(number).map(|number| states.try_reserve_exact(number));
        if !matches!(room, Ok(Ok(()))) {
            return Err(Error::argument(
                "the interval",
                interval,
                format!("so long that {number} states have room in memory"),
            ));
        }
        let mut cursor = layout.cursor();
        loop {
            states.push(cursor.state);
            match cursor.position().checked_add(interval) {
                Some(next) if next < layout.size() => cursor.seek(next)?,
                _ => break,
            }
        }
        Ok(Checkpoints {
            layout: layout.clone(),
            interval,
            states,
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.states.len()
    }

    /// Whether there are none; there is always the one at 0.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Bytes between two of them.
    pub fn interval(&self) -> u64 {
        self.interval
    }

    /// A cursor at `position`, made from the last state that is not behind it.
    ///
    /// # Errors
    ///
    /// A position behind the end of the packed stream.
    pub fn cursor(&self, position: u64) -> Result<Cursor> {
        let index = (position / self.interval).min(self.states.len() as u64 - 1);
        let mut cursor = Cursor {
            layout: self.layout.clone(),
            state: self.states[index as usize],
        };
        if position > self.layout.size() {
            cursor.seek(position)?;
        }
        cursor.state.resume(self.layout.form(), position as i64);
        Ok(cursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Datatype, Named};

    fn layout(lengths: &[u64], offsets: &[i64], count: u64) -> Layout {
        let list = Datatype::named(Named::Byte).hindexed(lengths, offsets);
        Layout::new(&list.unwrap(), count).unwrap()
    }

    /// Of which there is no room for a state of each byte.
    #[test]
    fn checkpoints_without_room_are_refused() {
        let many = Datatype::named(Named::Byte).vector(1 << 45, 1, 2).unwrap();
        let many = Layout::new(&many, 1).unwrap();
        let error = Checkpoints::new(&many, 1).unwrap_err().to_string();
        assert!(error.contains("35184372088832 states"), "{error}");
        assert_eq!(Checkpoints::new(&many, 1 << 44).unwrap().len(), 2);
    }

    #[test]
    fn blocks_are_those_that_are_left() {
        let column = Datatype::named(Named::Double).vector(9, 1, 20).unwrap();
        let column = Layout::new(&column, 1).unwrap();
        let mut cursor = column.cursor();
        cursor.seek(24).unwrap();
        let places = Places::Stride(6, 160);
        let offset = 480;
        assert_eq!(
            cursor.blocks(),
            Some(Blocks {
                offset,
                len: 8,
                places
            })
        );
        // Not at the beginning of one, and at the end.
        for position in [25, 31, 72] {
            cursor.seek(position).unwrap();
            assert_eq!(cursor.blocks(), None, "{position}");
        }
    }

    #[test]
    fn other_pieces_are_no_blocks() {
        // Of different lengths.
        let mixed = layout(&[8, 9, 10, 8], &[0, 100, 150, 300], 1);
        assert_eq!(mixed.cursor().blocks(), None);
        // Too far apart for 32 bits.
        let far = layout(&[8, 8, 8, 8], &[0, 100, 5 << 32, 7 << 32], 1);
        assert_eq!(far.cursor().blocks(), None);
        assert_eq!(layout(&[], &[], 1).cursor().blocks(), None);
    }

    #[test]
    fn a_list_that_repeats_is_one_list_each_time() {
        let lists = layout(&[8, 8, 8], &[16, 100, 50], 3);
        let mut cursor = lists.cursor();
        let mut seen = Vec::new();
        while let Some(blocks) = cursor.blocks() {
            let Places::List(list) = blocks.places else {
                panic!("{blocks:?}");
            };
            let bytes = list.iter().map(|at| blocks.offset + i64::from(*at));
            seen.extend(bytes);
            let behind = cursor.position() + blocks.len * blocks.places.count();
            cursor.seek(behind).unwrap();
        }
        assert_eq!(cursor.position(), lists.size());
        let all: Vec<i64> = lists.segments().map(|segment| segment.offset).collect();
        assert_eq!(seen, all);
    }
}
