// SPDX-License-Identifier: MIT OR Apache-2.0

//! A position in a packed stream.
//!
//! ```text
//! root   Stream 4 × ─┐                  frames:  root, 2nd child of 4
//!                    ├─ Blocks 100 × ─┐          Blocks, 17th of 100
//!                    │                └─ Dense   and 3 bytes into the piece
//! ```
//!
//! A descent takes a division per stream and a binary search per irregular node. Going on to the
//! next piece touches only the innermost frames. If a tree is deeper than `DEPTH`, only the
//! innermost frames are kept; when they are used up, the walk descends from the root again.

use crate::tree::{Child, Node, NodeId, Offsets, PartList, Tree};
use crate::word::Word;

/// One level of a descent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Frame<W = i32> {
    /// The node.
    pub id: NodeId,
    /// Which child, or which piece, the position is in.
    pub index: W,
    /// Origin of the node.
    pub base: W,
}

/// A position in the packed stream of a tree; a copy of it is a checkpoint.
///
/// It belongs to the tree it was made with, but does not refer to it. With another tree nothing
/// panics, but the pieces are meaningless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct State<const DEPTH: usize, W = i32> {
    position: W,
    /// Bytes of the current piece that are behind the position.
    skip: W,
    /// Frames in use; 0 at the end.
    depth: u32,
    frames: [Frame<W>; DEPTH],
}

// The state is what is copied to the memory of a card, once per checkpoint.
const _: () = assert!(size_of::<State<8>>() == 108);
const _: () = assert!(size_of::<State<4>>() == 60);
const _: () = assert!(size_of::<Frame>() == 12);

/// Equal blocks at equal distances, or a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strip<W> {
    /// Where the first one is.
    pub offset: W,
    /// Bytes of each.
    pub len: W,
    /// Bytes between the beginnings of two.
    pub stride: W,
    /// How many.
    pub count: W,
}

impl<const DEPTH: usize, W: Word> State<DEPTH, W> {
    /// The start of a tree's packed stream.
    #[inline]
    pub fn start<T: Tree<Word = W>>(tree: T) -> Self {
        Self::at(tree, W::ZERO)
    }

    /// A position in a tree's packed stream; see [`State::seek`].
    #[inline]
    pub fn at<T: Tree<Word = W>>(tree: T, position: W) -> Self {
        const { assert!(DEPTH > 0, "a state needs at least one frame") };
        let mut state = State {
            position: W::ZERO,
            skip: W::ZERO,
            depth: 0,
            frames: [Frame::default(); DEPTH],
        };
        state.seek(tree, position);
        state
    }

    /// Bytes of the packed stream before it.
    #[inline(always)]
    pub fn position(&self) -> W {
        self.position
    }

    /// Whether no bytes are left.
    #[inline(always)]
    pub fn is_at_end(&self) -> bool {
        self.depth == 0
    }

    /// Moves to a position by a descent from the root, in O(depth · log blocks). A position outside
    /// the packed stream becomes its end.
    #[inline]
    pub fn seek<T: Tree<Word = W>>(&mut self, tree: T, position: W) {
        self.depth = 0;
        self.skip = W::ZERO;
        let size = tree.size();
        match tree.root() {
            Some(root) if W::ZERO <= position && position < size => {
                self.position = position;
                self.descend(tree, root, tree.origin(), position);
            }
            _ => self.position = size,
        }
    }

    /// [`State::seek`] to a position that is known to be within the packed stream of a tree with
    /// this root, expanded where it is called. With another position the pieces are meaningless, or
    /// the tree's lists panic.
    #[inline(always)]
    pub fn seek_within<T: Tree<Word = W>>(&mut self, tree: T, root: NodeId, position: W) {
        self.depth = 0;
        self.position = position;
        self.descend(tree, root, tree.origin(), position);
    }

    /// Moves to a position from the one it is at: climbs to the innermost node that has both, and
    /// descends from there. Never more than [`State::seek`] by more than the climb, much less for
    /// positions near by, before or behind.
    #[inline]
    pub fn resume<T: Tree<Word = W>>(&mut self, tree: T, position: W) {
        let ahead = position.minus(self.position);
        if ahead == W::ZERO {
            return;
        }
        // The position that is sought, in the packed stream of each frame's node.
        let mut target = self.skip.plus(ahead);
        while let Some(frame) = self.top() {
            target = target.plus(before(tree, &frame));
            self.depth -= 1;
            if W::ZERO <= target && target < tree.size_of(frame.id) {
                self.position = position;
                self.descend(tree, frame.id, frame.base, target);
                return;
            }
        }
        self.seek(tree, position);
    }

    /// Moves to a position as the segments of MPITypes do (paper, section 3.2.4): piece by piece if
    /// it lies ahead; from the start of the stream if it lies behind. Returns whether it started
    /// anew.
    ///
    /// [`State::resume`] is faster. This one is for strategies that are to cost what the paper's
    /// cost.
    #[inline]
    pub fn catch_up<T: Tree<Word = W>>(&mut self, tree: T, position: W) -> bool {
        let behind = position < self.position;
        if behind {
            self.seek(tree, W::ZERO);
        }
        let left = position.minus(self.position);
        self.pieces(tree, left, |_, _, _| {});
        behind
    }

    /// Gives the pieces of the next `len` bytes to `sink`, as many as are left, and moves behind
    /// them.
    ///
    /// `sink(memory, stream, len)`: `len` bytes at `memory`, in bytes from the layout's origin, are
    /// the bytes of the packed stream from `stream`, counted from where the state was.
    #[inline]
    pub fn pieces<T: Tree<Word = W>>(&mut self, tree: T, len: W, mut sink: impl FnMut(W, W, W)) {
        let mut at = W::ZERO;
        while at < len {
            let Some(frame) = self.top() else {
                break;
            };
            let base = frame.base;
            let left = len.minus(at);
            let run = Run {
                index: frame.index,
                skip: self.skip,
                at,
                left,
            };
            let (run, is_finished) = match tree.node(frame.id) {
                Node::Dense { len } => run.go(W::ONE, |_| base, |_| len, &mut sink),
                Node::Stream {
                    count,
                    stride,
                    child,
                } => {
                    let place = |i: W| base.plus(i.times(stride));
                    run.go(count, place, |_| child.size, &mut sink)
                }
                Node::Blocks { offsets, child } => {
                    let place = |i: W| base.plus(offsets.get(i.index()));
                    let count = W::from_index(offsets.len());
                    run.go(count, place, |_| child.size, &mut sink)
                }
                Node::Pieces { offsets, starts } => {
                    let place = |i: W| base.plus(offsets.get(i.index()));
                    let len = |i: W| {
                        let i = i.index();
                        starts.get(i.wrapping_add(1)).minus(starts.get(i))
                    };
                    run.go(W::from_index(offsets.len()), place, len, &mut sink)
                }
                Node::Sequence { parts } => {
                    // The part is dense; others have frames of their own.
                    let Some(part) = parts.get(frame.index.index()) else {
                        break;
                    };
                    let place = |_| base.plus(part.offset);
                    let next = frame.index.plus(W::ONE);
                    let (run, is_finished) = run.go(next, place, |_| part.child.size, &mut sink);
                    if is_finished {
                        self.position = self.position.plus(run.at.minus(at));
                        at = run.at;
                        self.enter_next(tree);
                        continue;
                    }
                    (run, false)
                }
            };
            let done = run.at.minus(at);
            at = run.at;
            self.position = self.position.plus(done);
            self.skip = run.skip;
            if let Some(top) = self.top_mut() {
                top.index = run.index;
            }
            if done <= W::ZERO {
                // Only in an image that was not checked, or with a state of another tree. So each
                // turn of the loop goes on by a byte at least.
                self.depth = 0;
            } else if is_finished {
                self.climb(tree);
            }
        }
    }

    /// The innermost node that the position is in, and which of its blocks or pieces begins there;
    /// `None` at the end, and within a block.
    #[inline]
    pub fn frame(&self) -> Option<Frame<W>> {
        self.top().filter(|_| self.skip == W::ZERO)
    }

    /// The blocks from the position on, as many as the innermost node has left; `None` at the end.
    #[inline]
    pub fn strip<T: Tree<Word = W>>(&self, tree: T) -> Option<Strip<W>> {
        let frame = self.top()?;
        let index = frame.index.index();
        let single = |offset: W, len: W| Strip {
            offset: frame.base.plus(offset).plus(self.skip),
            len: len.minus(self.skip),
            stride: W::ZERO,
            count: W::ONE,
        };
        Some(match tree.node(frame.id) {
            Node::Dense { len } => single(W::ZERO, len),
            Node::Stream {
                count,
                stride,
                child,
            } => {
                let offset = frame.index.times(stride);
                if self.skip > W::ZERO {
                    single(offset, child.size)
                } else {
                    Strip {
                        offset: frame.base.plus(offset),
                        len: child.size,
                        stride,
                        count: count.minus(frame.index),
                    }
                }
            }
            Node::Blocks { offsets, child } => single(offsets.get(index), child.size),
            Node::Pieces { offsets, starts } => single(
                offsets.get(index),
                starts.get(index.wrapping_add(1)).minus(starts.get(index)),
            ),
            Node::Sequence { parts } => {
                let part = parts.get(index)?;
                single(part.offset, part.child.size)
            }
        })
    }

    /// Goes on by `bytes`, at most to the end of the current strip.
    #[inline]
    pub fn advance<T: Tree<Word = W>>(&mut self, tree: T, bytes: W) {
        let Some(frame) = self.top() else {
            return;
        };
        self.position = self.position.plus(bytes);
        self.skip = self.skip.plus(bytes);
        let mut index = frame.index;
        let left = match tree.node(frame.id) {
            Node::Dense { len } => len.minus(self.skip),
            Node::Stream { count, child, .. } => {
                if self.skip < child.size {
                    return;
                }
                let blocks = self.skip.over(child.size);
                index = index.plus(blocks);
                self.skip = self.skip.minus(blocks.times(child.size));
                count.minus(index)
            }
            Node::Blocks { offsets, child } => {
                if self.skip < child.size {
                    return;
                }
                self.skip = W::ZERO;
                index = index.plus(W::ONE);
                W::from_index(offsets.len()).minus(index)
            }
            Node::Pieces { offsets, starts } => {
                let i = index.index();
                if self.skip < starts.get(i.wrapping_add(1)).minus(starts.get(i)) {
                    return;
                }
                self.skip = W::ZERO;
                index = index.plus(W::ONE);
                W::from_index(offsets.len()).minus(index)
            }
            Node::Sequence { parts } => {
                let part = parts.get(index.index());
                if part.is_none_or(|part| self.skip >= part.child.size) {
                    self.enter_next(tree);
                }
                return;
            }
        };
        if left > W::ZERO {
            if let Some(top) = self.top_mut() {
                top.index = index;
            }
            return;
        }
        self.climb(tree);
    }

    #[inline(always)]
    fn top(&self) -> Option<Frame<W>> {
        let last = (self.depth as usize).wrapping_sub(1);
        self.frames.get(last).copied()
    }

    #[inline(always)]
    fn top_mut(&mut self) -> Option<&mut Frame<W>> {
        let last = (self.depth as usize).wrapping_sub(1);
        self.frames.get_mut(last)
    }

    #[inline(always)]
    fn push(&mut self, frame: Frame<W>) {
        if self.depth as usize >= DEPTH {
            // The outer half is dropped, so that a deep descent does not move all frames at each
            // level.
            let kept = DEPTH / 2;
            for to in 0..kept {
                // Not `copy_within`, which can panic.
                let from = self.frames.get(DEPTH - kept + to).copied();
                if let (Some(from), Some(to)) = (from, self.frames.get_mut(to)) {
                    *to = from;
                }
            }
            self.depth = kept as u32;
        }
        if let Some(free) = self.frames.get_mut(self.depth as usize) {
            *free = frame;
            self.depth += 1;
        }
    }

    /// Leaves the node that is finished, and enters the next one.
    fn climb<T: Tree<Word = W>>(&mut self, tree: T) {
        self.depth = self.depth.saturating_sub(1);
        self.enter_next(tree);
    }

    /// Enters the next child of the innermost node, or of the innermost one that has another child.
    fn enter_next<T: Tree<Word = W>>(&mut self, tree: T) {
        self.skip = W::ZERO;
        while let Some(frame) = self.top_mut() {
            frame.index = frame.index.plus(W::ONE);
            let frame = *frame;
            let index = frame.index.index();
            let next = match tree.node(frame.id) {
                Node::Stream {
                    count,
                    stride,
                    child,
                } if frame.index < count => Some((child.id, frame.index.times(stride))),
                Node::Blocks { offsets, child } if index < offsets.len() => {
                    Some((child.id, offsets.get(index)))
                }
                Node::Sequence { parts } => match parts.get(index) {
                    // The frame of the sequence is the innermost one.
                    Some(part) if tree.is_dense(part.child) => return,
                    Some(part) => Some((part.child.id, part.offset)),
                    None => None,
                },
                _ => None,
            };
            if let Some((child, offset)) = next {
                if child < frame.id {
                    self.descend(tree, child, frame.base.plus(offset), W::ZERO);
                } else {
                    self.depth = 0;
                }
                return;
            }
            self.depth -= 1;
        }
        // The frames of outer nodes may have been dropped.
        if self.position < tree.size() {
            let position = self.position;
            self.seek(tree, position);
        }
    }

    /// Enters a node at a position of its packed stream. At its beginning, as when a walk goes on
    /// to the next child, nothing is divided or searched.
    #[inline(always)]
    fn descend<T: Tree<Word = W>>(&mut self, tree: T, id: NodeId, base: W, position: W) {
        let (mut id, mut base, mut position) = (id, base, position);
        loop {
            let mut frame = Frame {
                id,
                index: W::ZERO,
                base,
            };
            let (child, offset): (Child<W>, W) = match tree.node(id) {
                Node::Dense { .. } => {
                    self.push(frame);
                    break;
                }
                Node::Stream { stride, child, .. } => {
                    if position != W::ZERO {
                        frame.index = position.over(child.size);
                        position = position.minus(frame.index.times(child.size));
                    }
                    (child, frame.index.times(stride))
                }
                Node::Blocks { offsets, child } => {
                    if position != W::ZERO {
                        frame.index = position.over(child.size);
                        position = position.minus(frame.index.times(child.size));
                    }
                    (child, offsets.get(frame.index.index()))
                }
                Node::Pieces { starts, .. } => {
                    if position != W::ZERO {
                        let index = starts.last_not_above(position);
                        frame.index = W::from_index(index);
                        position = position.minus(starts.get(index));
                    }
                    self.push(frame);
                    break;
                }
                Node::Sequence { parts } => {
                    let mut index = 0;
                    if position != W::ZERO {
                        index = parts.last_not_above(position);
                        frame.index = W::from_index(index);
                    }
                    let Some(part) = parts.get(index) else {
                        self.depth = 0;
                        return;
                    };
                    position = position.minus(part.start);
                    (part.child, part.offset)
                }
            };
            self.push(frame);
            if tree.is_dense(child) {
                break;
            }
            if child.id >= id {
                // Not in a tree that was checked; it would not end.
                self.depth = 0;
                return;
            }
            id = child.id;
            base = base.plus(offset);
        }
        self.skip = position;
    }
}

/// Bytes of a frame's node before the child or the piece that the frame is in.
#[inline(always)]
fn before<T: Tree>(tree: T, frame: &Frame<T::Word>) -> T::Word {
    let index = frame.index.index();
    match tree.node(frame.id) {
        Node::Dense { .. } => T::Word::ZERO,
        Node::Stream { child, .. } | Node::Blocks { child, .. } => frame.index.times(child.size),
        Node::Pieces { starts, .. } => starts.get(index),
        Node::Sequence { parts } => parts.get(index).map_or(T::Word::ZERO, |part| part.start),
    }
}

/// A loop over the blocks of the innermost node.
#[derive(Clone, Copy)]
struct Run<W> {
    index: W,
    skip: W,
    at: W,
    left: W,
}

impl<W: Word> Run<W> {
    /// Gives blocks to `sink` until `left` bytes are done, or all `count` blocks, which it says.
    #[inline(always)]
    fn go(
        mut self,
        count: W,
        place: impl Fn(W) -> W,
        len: impl Fn(W) -> W,
        sink: &mut impl FnMut(W, W, W),
    ) -> (Self, bool) {
        while self.index < count {
            let block = len(self.index).minus(self.skip);
            if block <= W::ZERO {
                return (self, false);
            }
            let offset = place(self.index).plus(self.skip);
            if self.left < block {
                sink(offset, self.at, self.left);
                self.at = self.at.plus(self.left);
                self.skip = self.skip.plus(self.left);
                self.left = W::ZERO;
                return (self, false);
            }
            sink(offset, self.at, block);
            self.at = self.at.plus(block);
            self.left = self.left.minus(block);
            self.index = self.index.plus(W::ONE);
            self.skip = W::ZERO;
            if self.left == W::ZERO {
                break;
            }
        }
        let is_finished = self.index >= count;
        (self, is_finished)
    }
}
