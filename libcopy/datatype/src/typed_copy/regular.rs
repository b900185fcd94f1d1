// SPDX-License-Identifier: MIT OR Apache-2.0

//! Regular layouts: blocks of one length at counts and strides.

use super::super::form::{Form, Node, NodeId};
use super::buffer::LINE;

/// Most dimensions that two regular layouts may have together; more go strip by strip.
pub(super) const DIMS: usize = 8;

/// A part of a layout: where it is, from the layout's first byte and in the packed stream.
pub(super) struct Part {
    pub(super) at: i64,
    pub(super) start: i64,
    pub(super) regular: Regular,
}

/// A regular layout: the length of its blocks, and counts and strides, the innermost first.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Regular {
    pub(super) len: i64,
    pub(super) dims: [(i64, i64); DIMS],
    pub(super) n: usize,
}

impl Regular {
    pub(super) fn of(form: &Form, root: NodeId) -> Option<Regular> {
        let mut regular = Regular {
            len: 0,
            dims: [(0, 0); DIMS],
            n: 0,
        };
        let mut id = root;
        loop {
            match form.node(id) {
                Node::Dense { len } => {
                    regular.len = *len;
                    regular.dims[..regular.n].reverse();
                    return Some(regular);
                }
                Node::Stream {
                    count,
                    stride,
                    child,
                } if regular.n < DIMS => {
                    regular.dims[regular.n] = (*count, *stride);
                    regular.n += 1;
                    id = *child;
                }
                _ => return None,
            }
        }
    }

    /// The part between two positions of the stream, which must be where blocks begin, of blocks
    /// along one dimension.
    pub(super) fn slice(&self, start: i64, end: i64) -> Option<Part> {
        if self.n != 1 || start % self.len != 0 || end % self.len != 0 {
            return None;
        }
        let stride = self.dims[0].1;
        let mut regular = *self;
        regular.dims[0].0 = (end - start) / self.len;
        Some(Part {
            at: start / self.len * stride,
            start,
            regular,
        })
    }

    /// Without an end along the outermost dimension, if there is one.
    pub(super) fn endless(&self) -> Option<Regular> {
        let mut endless = *self;
        endless.dims[..self.n].last_mut()?.0 = i64::MAX;
        Some(endless)
    }

    /// Bytes of the stream in a step along the outermost dimension, and the step.
    pub(super) fn step(&self) -> (i64, i64) {
        let (last, inner) = match self.dims[..self.n].split_last() {
            Some((last, inner)) => (last.1, inner),
            None => (0, &[][..]),
        };
        (inner.iter().fold(self.len, |len, dim| len * dim.0), last)
    }

    /// Where a position of the stream is, from the first byte.
    pub(super) fn offset(&self, position: i64) -> i64 {
        let (mut index, mut offset) = (position / self.len, position % self.len);
        for &(count, stride) in &self.dims[..self.n] {
            offset += index % count * stride;
            index /= count;
        }
        offset
    }

    /// Bytes of the stream in blocks that are at most two cache lines apart each, and the bytes
    /// from the first to the end of the last of them; `None` if all blocks are.
    pub(super) fn cluster(&self) -> Option<(i64, i64)> {
        let (mut bytes, mut extent) = (self.len, self.len);
        for &(count, stride) in &self.dims[..self.n] {
            if !(extent..=extent + 2 * LINE as i64).contains(&stride) {
                return Some((bytes, extent));
            }
            bytes = bytes.saturating_mul(count);
            extent = extent.saturating_add(stride.saturating_mul(count - 1));
        }
        None
    }

    /// Cuts the blocks into shorter ones.
    pub(super) fn cut(&mut self, len: i64) -> Option<()> {
        if len < self.len {
            if self.len % len != 0 || self.n == DIMS {
                return None;
            }
            self.dims.copy_within(..self.n, 1);
            self.dims[0] = (self.len / len, len);
            self.n += 1;
            self.len = len;
        }
        Some(())
    }
}
