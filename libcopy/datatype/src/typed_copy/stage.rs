// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies over a buffer in the first-level cache.

use std::ops::Range;

use super::super::form::{Form, Node, NodeId};
use super::super::kernel::{self, Dim, Pieces, Row};
use super::super::offsets::Offsets;
use super::buffer::Buffer;
use super::walk::{Sink, walk};

/// Bytes of a [`Stage`], which stay in the first-level cache.
pub(super) const STAGE: usize = 16 << 10;

/// Equal blocks on one side, filled from a small buffer, or emptied into it, as many at a time as
/// it holds. Unlike [`bounce`], it never has to look for its place in a list.
struct Stage<const PACK: bool> {
    /// Where the next block is.
    at: *mut u8,
    len: usize,
    stride: isize,
    /// Blocks that have not been moved.
    left: usize,
    /// Bytes of the buffer that are used: what has not gone on yet.
    used: Range<usize>,
    capacity: usize,
    buffer: Buffer,
}

impl<const PACK: bool> Stage<PACK> {
    /// `count` blocks of `len` bytes, `stride` apart, the first one at `at`; neither they nor short
    /// pieces are longer than an eighth of the capacity.
    /// `None` if there is no memory for the buffer.
    fn new(
        at: *mut u8,
        (len, stride, count): (usize, isize, usize),
        capacity: usize,
    ) -> Option<Self> {
        Some(Stage {
            at,
            len,
            stride,
            left: count,
            used: 0..0,
            capacity,
            buffer: Buffer::of_thread(capacity)?,
        })
    }

    /// Bytes that the layout's side can take or give.
    #[inline(always)]
    fn room(&self) -> usize {
        if PACK {
            self.capacity - self.used.end
        } else {
            self.used.len()
        }
    }

    /// Where they are; the next `len` of them are done then.
    #[inline(always)]
    fn take(&mut self, len: usize) -> *mut u8 {
        let start = self.buffer.start();
        if PACK {
            let place = start.wrapping_add(self.used.end);
            self.used.end += len;
            place
        } else {
            let place = start.wrapping_add(self.used.start);
            self.used.start += len;
            place
        }
    }

    /// Moves as many whole blocks as there are in the buffer, or as it has room for.
    ///
    /// # Safety
    ///
    /// The blocks are readable or writable.
    unsafe fn turn(&mut self) {
        let start = self.buffer.start();
        let (unit, rest) = (self.len as isize, self.used.clone());
        let mut blocks = [Dim {
            count: 0,
            to: self.stride,
            from: unit,
        }];
        // SAFETY: the caller's promise; what is read in the buffer was written before. What is left
        // there is moved to its start.
        unsafe {
            if PACK {
                blocks[0].count = rest.len() / self.len;
                kernel::nest(self.at, start, self.len, &mut blocks);
                let done = blocks[0].count * self.len;
                std::ptr::copy(start.add(done), start, rest.len() - done);
                self.used = 0..rest.len() - done;
            } else {
                std::ptr::copy(start.add(rest.start), start, rest.len());
                blocks[0] = Dim {
                    count: ((self.capacity - rest.len()) / self.len).min(self.left),
                    to: unit,
                    from: self.stride,
                };
                kernel::nest(start.add(rest.len()), self.at, self.len, &mut blocks);
                self.used = 0..rest.len() + blocks[0].count * self.len;
            }
        }
        self.left -= blocks[0].count;
        self.at = self
            .at
            .wrapping_offset(blocks[0].count as isize * self.stride);
    }

    /// Calls `some` for `count` items of `len` bytes, a few at a time: which ones, and where in the
    /// buffer.
    ///
    /// # Safety
    ///
    /// As for [`Stage::turn`].
    #[inline(always)]
    unsafe fn each(
        &mut self,
        count: usize,
        len: usize,
        mut some: impl FnMut(Range<usize>, *mut u8),
    ) {
        let mut done = 0;
        while done < count {
            let n = (self.room() / len).min(count - done);
            if n == 0 {
                // SAFETY: the caller's promise.
                unsafe { self.turn() };
                continue;
            }
            some(done..done + n, self.take(n * len));
            done += n;
        }
    }
}

impl<const PACK: bool> Sink<PACK> for Stage<PACK> {
    unsafe fn piece(&mut self, user: *mut u8, len: usize) {
        let mut done = 0;
        while done < len {
            let n = self.room().min(len - done);
            // SAFETY: the caller's promise, for a part of the piece.
            unsafe {
                if n == 0 {
                    self.turn();
                    continue;
                }
                let (user, place) = (user.add(done), self.take(n));
                if PACK {
                    kernel::dense(place, user, n);
                } else {
                    kernel::dense(user, place, n);
                }
            }
            done += n;
        }
    }

    unsafe fn row(&mut self, row: Row) {
        let unit = row.len as isize;
        // SAFETY: the caller's promise, for some blocks of the row.
        unsafe {
            self.each(row.count, row.len, |some, place| {
                let user = row.user.wrapping_offset(some.start as isize * row.stride);
                let dim = |to, from| Dim {
                    count: some.len(),
                    to,
                    from,
                };
                if PACK {
                    kernel::nest(place, user, row.len, &mut [dim(unit, row.stride)]);
                } else {
                    kernel::nest(user, place, row.len, &mut [dim(row.stride, unit)]);
                }
            });
        }
    }

    unsafe fn list(&mut self, user: *mut u8, offsets: &Offsets, len: usize) {
        // SAFETY: the caller's promise, for some blocks of the list.
        unsafe {
            self.each(offsets.len(), len, |some, place| {
                kernel::scattered::<PACK>(user, offsets, (some.start, some.end), place, len);
            });
        }
    }

    unsafe fn pieces(&mut self, user: *mut u8, pieces: Pieces) {
        let Pieces {
            offsets, starts, ..
        } = pieces;
        let (mut first, n) = (0, offsets.len());
        while first < n {
            let start = starts.get(first);
            let end = starts.last_not_above(start + self.room() as i64).min(n);
            // SAFETY: the caller's promise, for some of the pieces.
            unsafe {
                if end > first {
                    let place = self.take((starts.get(end) - start) as usize);
                    kernel::pieces::<PACK>(user, pieces, (first, end), place);
                    first = end;
                } else if self.room() < self.capacity / 2 {
                    self.turn();
                } else {
                    let user = user.wrapping_offset(offsets.get(first) as isize);
                    self.piece(user, (starts.get(first + 1) - start) as usize);
                    first += 1;
                }
            }
        }
    }
}

/// Copies over a [`Stage`] of this capacity if one side is equal blocks at equal distances, and the
/// other one suits; whether so.
///
/// # Safety
///
/// As for [`fill`].
pub(super) unsafe fn staged(
    from: &Form,
    source: *const u8,
    to: &Form,
    target: *mut u8,
    capacity: usize,
    suits: impl Fn(&Form) -> bool,
) -> bool {
    let (Some(from_root), Some(to_root)) = (from.root(), to.root()) else {
        return false;
    };
    let flat = |form: &Form, other: &Form| match form.nodes() {
        [Node::Dense { len }, Node::Stream { stride, count, .. }]
            if *len <= capacity as i64 / 8 && suits(other) =>
        {
            Some((*len as usize, *stride as isize, *count as usize))
        }
        _ => None,
    };
    let source = source.cast_mut();
    if let Some(blocks) = flat(to, from) {
        let Some(mut stage) = Stage::<true>::new(target, blocks, capacity) else {
            return false;
        };
        // SAFETY: the caller's promise: both streams are equally long.
        unsafe {
            walk(from, from_root, source, &mut stage);
            stage.turn();
        }
        return true;
    }
    if let Some(blocks) = flat(from, to) {
        let Some(mut stage) = Stage::<false>::new(source, blocks, capacity) else {
            return false;
        };
        // SAFETY: as above; only the target is written.
        unsafe { walk(to, to_root, target, &mut stage) };
        return true;
    }
    false
}

/// Rows of at least this many blocks are worth a call each.
const LONG_ROW: i64 = 256;

/// Whether going over a [`Stage`] is faster than through a larger buffer: lists of short pieces, in
/// which [`bounce`] would look for its place each time, and long rows.
pub(super) fn is_staged(form: &Form) -> bool {
    let is_short = |len: i64| len <= STAGE as i64 / 8;
    let nodes = form.nodes();
    let dense = |id: NodeId| matches!(form.node(id), Node::Dense { len } if is_short(*len));
    nodes.iter().all(|node| match node {
        Node::Dense { .. } | Node::Sequence { .. } => true,
        Node::Pieces { .. } => is_short((form.size() / form.segments().max(1)) as i64),
        Node::Blocks { child, offsets } => dense(*child) && offsets.len() as i64 >= LONG_ROW,
        Node::Stream { child, count, .. } => !dense(*child) || *count >= LONG_ROW,
    })
}
