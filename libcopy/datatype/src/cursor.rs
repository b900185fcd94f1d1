// SPDX-License-Identifier: MIT OR Apache-2.0

//! A position in a packed stream, and what lies there.
//!
//! ```text
//! root   Stream 4 × ─┐                  frames:  root, 2nd child of 4
//!                    ├─ Blocks 100 × ─┐          Blocks, 17th of 100
//!                    │                └─ Dense   and 3 bytes into the piece
//! ```
//!
//! Seeking descends from the root: a division per stream, a binary search per irregular node.
//! Going on from one piece to the next touches only the innermost frames. A cursor that is cloned
//! and kept is a checkpoint in the sense of "Network-Accelerated Non-Contiguous Memory Transfers"
//! (section 3.2.4): the state from which a later part of the stream can be processed.

use super::form::{Form, Node, NodeId};
use super::layout::{Layout, Segment};
use crate::{Error, Result};

/// One level of the descent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    id: NodeId,
    /// Origin of the node.
    base: i64,
    /// Which child, or which piece, the position is in.
    index: i64,
}

/// Equal blocks at equal distances, or a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Strip {
    pub(super) offset: i64,
    pub(super) len: i64,
    pub(super) stride: i64,
    pub(super) count: i64,
}

/// A position in the packed stream of a layout. Clones are independent.
#[derive(Clone, Debug)]
pub struct Cursor {
    layout: Layout,
    position: u64,
    /// From the root to the node whose pieces are dense; empty at the end.
    frames: Vec<Frame>,
    /// Bytes of the current piece that are behind the position.
    skip: i64,
}

impl Layout {
    /// A cursor at the start of the packed stream.
    pub fn cursor(&self) -> Cursor {
        Cursor::new(self)
    }
}

impl Cursor {
    pub(super) fn new(layout: &Layout) -> Cursor {
        let mut cursor = Cursor {
            layout: layout.clone(),
            position: 0,
            frames: Vec::with_capacity(4),
            skip: 0,
        };
        cursor.descend_to(0);
        cursor
    }

    /// The layout it belongs to.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes before it.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes behind it.
    pub fn remaining(&self) -> u64 {
        self.layout.size() - self.position
    }

    /// Moves to any position, in O(depth · log blocks).
    ///
    /// # Errors
    ///
    /// A position behind the end of the packed stream.
    pub fn seek(&mut self, position: u64) -> Result<()> {
        if position > self.layout.size() {
            return Err(Error::argument(
                "the position",
                position,
                ..=self.layout.size(),
            ));
        }
        self.descend_to(position);
        Ok(())
    }

    fn descend_to(&mut self, position: u64) {
        self.position = position;
        self.frames.clear();
        self.skip = 0;
        if position == self.layout.size() {
            return;
        }
        let form = self.layout.form();
        if let Some(root) = form.root() {
            self.skip = descend(&mut self.frames, form, root, form.offset(), position as i64);
        }
    }

    /// The blocks from the position on, as many as the innermost node has left.
    pub(super) fn strip(&self) -> Option<Strip> {
        let frame = self.frames.last()?;
        let form = self.layout.form();
        let single = |offset: i64, len: i64| Strip {
            offset: offset + self.skip,
            len: len - self.skip,
            stride: 0,
            count: 1,
        };
        Some(match form.node(frame.id) {
            Node::Dense { len } => single(frame.base, *len),
            Node::Stream {
                count,
                stride,
                child,
            } => {
                let len = form.extent(*child).size;
                let offset = frame.base + frame.index * stride;
                if self.skip > 0 {
                    single(offset, len)
                } else {
                    Strip {
                        offset,
                        len,
                        stride: *stride,
                        count: count - frame.index,
                    }
                }
            }
            Node::Blocks { offsets, child } => {
                let offset = frame.base + offsets.get(frame.index as usize);
                single(offset, form.extent(*child).size)
            }
            Node::Pieces { offsets, starts } => {
                let i = frame.index as usize;
                let offset = frame.base + offsets.get(i);
                single(offset, starts.get(i + 1) - starts.get(i))
            }
            // Descending ends at a node with dense pieces.
            Node::Sequence { .. } => return None,
        })
    }

    /// Goes on by `bytes`, at most to the end of the current strip.
    pub(super) fn advance(&mut self, bytes: i64) {
        self.position += bytes as u64;
        let form = self.layout.form();
        let Some(frame) = self.frames.last_mut() else {
            return;
        };
        self.skip += bytes;
        let left = match form.node(frame.id) {
            Node::Dense { len } => len - self.skip,
            Node::Stream { count, child, .. } => {
                let len = form.extent(*child).size;
                if self.skip < len {
                    return;
                }
                frame.index += self.skip / len;
                self.skip %= len;
                count - frame.index
            }
            Node::Blocks { offsets, child } => {
                if self.skip < form.extent(*child).size {
                    return;
                }
                self.skip = 0;
                frame.index += 1;
                offsets.len() as i64 - frame.index
            }
            Node::Pieces { offsets, starts } => {
                let i = frame.index as usize;
                if self.skip < starts.get(i + 1) - starts.get(i) {
                    return;
                }
                self.skip = 0;
                frame.index += 1;
                offsets.len() as i64 - frame.index
            }
            Node::Sequence { .. } => 0,
        };
        if left > 0 {
            return;
        }
        self.skip = 0;
        self.climb();
    }

    /// Leaves the node that is finished, and enters the next one.
    fn climb(&mut self) {
        self.frames.pop();
        let form = self.layout.form();
        while let Some(frame) = self.frames.last_mut() {
            frame.index += 1;
            let next = match form.node(frame.id) {
                Node::Stream {
                    count,
                    stride,
                    child,
                } if frame.index < *count => Some((*child, frame.index * stride)),
                Node::Blocks { offsets, child } if (frame.index as usize) < offsets.len() => {
                    Some((*child, offsets.get(frame.index as usize)))
                }
                Node::Sequence { parts } if (frame.index as usize) < parts.len() => {
                    let part = &parts[frame.index as usize];
                    Some((part.child, part.offset))
                }
                _ => None,
            };
            if let Some((child, offset)) = next {
                let base = frame.base + offset;
                descend(&mut self.frames, form, child, base, 0);
                return;
            }
            self.frames.pop();
        }
    }

    /// The next segment, or what is left of it, at most `most` bytes, and moves behind it; `None` at
    /// the end.
    pub fn next_segment(&mut self, most: u64) -> Option<Segment> {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let strip = self.strip()?;
        let (offset, mut len) = (strip.offset, strip.len.min(most));
        self.advance(len);
        // Pieces that touch are one.
        while len < most {
            let Some(strip) = self.strip() else {
                break;
            };
            if offset.checked_add(len) != Some(strip.offset) {
                break;
            }
            let more = strip.len.min(most - len);
            self.advance(more);
            len += more;
        }
        Some(Segment {
            offset,
            len: len as u64,
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
        let mut n = 0usize;
        while let Some(strip) = self.strip() {
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
            self.advance(taken);
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
            .pack_range(buffer, origin, self.position, &mut packed[..n])?;
        self.descend_to(self.position + n as u64);
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
            .unpack_range(&packed[..n], self.position, buffer, origin)?;
        self.descend_to(self.position + n as u64);
        Ok(n)
    }

    fn at_most(&self, len: usize) -> usize {
        usize::try_from(self.remaining()).map_or(len, |left| left.min(len))
    }
}

/// Enters a node at a position of its packed stream; returns the bytes into the piece.
fn descend(frames: &mut Vec<Frame>, form: &Form, id: NodeId, base: i64, position: i64) -> i64 {
    let (mut id, mut base, mut position) = (id, base, position);
    loop {
        let is_dense = |id: NodeId| matches!(form.node(id), Node::Dense { .. });
        let (index, child, offset, before) = match form.node(id) {
            Node::Dense { .. } => {
                frames.push(Frame { id, base, index: 0 });
                return position;
            }
            Node::Stream { stride, child, .. } => {
                let size = form.extent(*child).size;
                let index = position / size;
                (index, *child, index.wrapping_mul(*stride), index * size)
            }
            Node::Blocks { offsets, child } => {
                let size = form.extent(*child).size;
                let index = position / size;
                (index, *child, offsets.get(index as usize), index * size)
            }
            Node::Pieces { starts, .. } => {
                let index = starts.last_not_above(position);
                frames.push(Frame {
                    id,
                    base,
                    index: index as i64,
                });
                return position - starts.get(index);
            }
            Node::Sequence { parts } => {
                let index = parts.partition_point(|part| part.start <= position) - 1;
                let part = &parts[index];
                frames.push(Frame {
                    id,
                    base,
                    index: index as i64,
                });
                id = part.child;
                base += part.offset;
                position -= part.start;
                continue;
            }
        };
        frames.push(Frame { id, base, index });
        position -= before;
        if is_dense(child) {
            return position;
        }
        id = child;
        base += offset;
    }
}

/// The states of a cursor at regular distances in the stream.
///
/// A receiver that gets parts of a message in any order starts each from the nearest state.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    interval: u64,
    states: Vec<Cursor>,
}

impl Checkpoints {
    /// States at 0, `interval`, 2 · `interval` and so on.
    ///
    /// # Errors
    ///
    /// An interval of 0.
    pub fn new(layout: &Layout, interval: u64) -> Result<Checkpoints> {
        if interval == 0 {
            return Err(Error::argument("the interval", interval, 1u64..));
        }
        let mut states = Vec::new();
        let mut cursor = layout.cursor();
        loop {
            states.push(cursor.clone());
            match cursor.position().checked_add(interval) {
                Some(next) if next < layout.size() => cursor.seek(next)?,
                _ => return Ok(Checkpoints { interval, states }),
            }
        }
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
        let mut cursor = self.states[index as usize].clone();
        if position > cursor.layout.size() {
            cursor.seek(position)?;
        }
        // Near by, going on is cheaper than descending again.
        while cursor.position < position {
            let Some(strip) = cursor.strip() else {
                break;
            };
            let left = (position - cursor.position) as i64;
            cursor.advance(left.min(strip.len * strip.count));
        }
        Ok(cursor)
    }
}
