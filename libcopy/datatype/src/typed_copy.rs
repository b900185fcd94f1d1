// SPDX-License-Identifier: MIT OR Apache-2.0

//! From one layout straight to another one, without packing in between.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::form::{Form, Node, NodeId};
use super::kernel::{self, Dim, Filler, Piece, Repeats, Row, Weave};
use super::layout::Layout;
use super::named::Named;
use super::offsets::Offsets;
use super::signature::Signature;
use crate::{Error, Result};

/// Bytes that are packed and unpacked at a time where the pieces of both sides are short: they
/// never leave the second-level cache, and starting anew in the middle costs little.
const CHUNK: u64 = 64 << 10;

/// So many bytes go at once: starting anew would cost more than a smaller buffer saves.
const ONCE: u64 = 256 << 10;

/// The same for transpositions, which use up more of each line the more they have at a time.
const WIDE_CHUNK: u64 = 256 << 10;

/// Transpositions of more bytes, block by block, are faster in two steps, each of which has a dense
/// side.
const TRANSPOSED: u64 = 1 << 20;

/// A cache line.
const LINE: usize = 64;

/// Copies of at most so many bytes are done before the best way is found.
const FEW: u64 = 4096;

/// What goes through a buffer of at most so many bytes goes through the stack.
const STACK: usize = 16 << 10;

/// Pieces that are worth finding one by one: below, finding takes longer than moving.
const LONG: u64 = 4096;

/// Regular layouts whose blocks have at least so many bytes are walked side by side.
const SHORT: i64 = 64;

/// With fewer bytes, what goes through a buffer is still in the cache: two loops that need not
/// decide anything are faster than a walk that looks for the end of a block on each side.
const MUCH: u64 = 64 << 10;

/// Blocks so many times longer than the other side's are the packed form of a part of that side.
const RATIO: i64 = 16;

/// Copies the packed stream of `from` at `source` to that of `to` at `target`.
///
/// ```text
/// one side dense                   it is the packed form of the other side
/// both regular, counts fit         one loop nest over both (Joint)
/// one side equal blocks, and the   these are filled or emptied one after the other, see [`suits`]
///   other side's much shorter or longer
/// both regular                     by a pattern of fragments that repeats, see [`weave`]
/// both regular, blocks not short   fragment by fragment, as blocks end on one side or the other
/// a few regular parts              the same for each of them
/// one side equal blocks, the other lists or long rows, few bytes
///                                  over a buffer in the first-level cache, see [`Stage`]
/// long pieces on one side          each is the packed form of a part of the other side
/// anything else                    through a buffer that stays in the cache
/// the target's nests overlap       the same: the last piece of the type map wins
/// ```
///
/// # Safety
///
/// Both layouts have the same size; the source's bytes are readable, the target's writable, and
/// no byte is both.
pub(super) unsafe fn copy(from: &Layout, source: *const u8, to: &Layout, target: *mut u8) {
    let size = from.size();
    let read = source.wrapping_offset(from.form().offset() as isize);
    let write = target.wrapping_offset(to.form().offset() as isize);
    // SAFETY (all calls): the caller's promise; the ranges are those of the pieces, which make up
    // the whole stream.
    match (from.form().nodes(), to.form().nodes()) {
        // SAFETY: see above.
        ([Node::Dense { .. }], _) => return unsafe { to.unpack_raw(read, 0..size, target) },
        // SAFETY: see above.
        (_, [Node::Dense { .. }]) => return unsafe { from.pack_raw(source, 0..size, write) },
        // A small copy takes less time than looking for the best way. The first node of a regular
        // layout is its block.
        ([Node::Dense { len: a }, ..], [Node::Dense { len: b }, ..])
            if size <= FEW && a != b && *a.min(b) < SHORT =>
        {
            // SAFETY: see above.
            return unsafe { bounce(from, source, to, target, 0..size, CHUNK) };
        }
        _ => {}
    }
    let mut chunk = CHUNK;
    if !to.form().is_free() {
        // Only unpacking keeps to the order of the type map, in which the last piece wins.
        // SAFETY: see above.
        return unsafe { bounce(from, source, to, target, 0..size, CHUNK) };
    }
    let pairs = pairs(from.form(), to.form())
        // Parts that share bytes are written in order by all other ways.
        .filter(|pairs| pairs.len() == 1 || to.form().is_disjoint());
    let is_joint = |pairs: &Vec<Pair>| {
        let mut pairs = pairs.iter();
        pairs.all(|pair| Joint::of(pair.from, pair.to).is_some())
    };
    if !pairs.as_ref().is_some_and(is_joint) {
        // SAFETY: see above.
        let done = unsafe { fill(from.form(), read, to.form(), write, suits) };
        if done {
            return;
        }
    }
    let is_done = || {
        let (from, to) = (from.form(), to.form());
        // SAFETY: see above.
        (MUCH..=ONCE).contains(&size) && unsafe { staged(from, read, to, write, STAGE, is_staged) }
    };
    if let Some(pairs) = pairs {
        // Where what has not been copied begins.
        let mut left = 0;
        for pair in &pairs {
            let (read, write) = (
                read.wrapping_offset(pair.from_at as isize),
                write.wrapping_offset(pair.to_at as isize),
            );
            // SAFETY: see above.
            if unsafe { pair.run(read, write, size, &mut chunk) } {
                // SAFETY: see above.
                unsafe { bounce(from, source, to, target, left..pair.range.start, chunk) };
                left = pair.range.end;
            }
        }
        // SAFETY: see above.
        unsafe {
            if left > 0 || chunk != CHUNK || !is_done() {
                bounce(from, source, to, target, left..size, chunk);
            }
        }
        return;
    }
    let mean = |layout: &Layout| layout.size() / layout.form().segments().max(1);
    let (read, write) = (mean(from), mean(to));
    if read.max(write) < LONG {
        // SAFETY: see above.
        unsafe {
            if !is_done() {
                bounce(from, source, to, target, 0..size, chunk);
            }
        }
        return;
    }
    let (mut at, by_target) = (0, write >= read);
    let mut pieces = if by_target {
        to.cursor()
    } else {
        from.cursor()
    };
    while let Some(piece) = pieces.next_segment(u64::MAX) {
        let range = at..at + piece.len;
        at = range.end;
        let place = piece.offset as isize;
        // SAFETY: see above.
        unsafe {
            if by_target {
                from.pack_raw(source, range, target.wrapping_offset(place));
            } else {
                to.unpack_raw(source.wrapping_offset(place), range, target);
            }
        }
    }
}

/// Whether filling blocks of `len` bytes with what the other layout describes is faster than
/// going through a buffer.
///
/// ```text
/// both sides have the same blocks         each of them is one move
/// pieces a good deal shorter              few of them have to be cut where a block ends
/// pieces a good deal longer               most of each goes in whole blocks
/// a lot of bytes                          a buffer would take their place in the cache
/// ```
fn suits(form: &Form, len: i64) -> bool {
    let size = form.size();
    let has_pieces = || {
        let mut nodes = form.nodes().iter();
        nodes.any(|node| matches!(node, Node::Pieces { .. }))
    };
    if size < MUCH || has_pieces() {
        return false;
    }
    let mean = (size / form.segments().max(1)) as i64;
    mean == len
        || mean <= len / 8
        || mean >= RATIO.saturating_mul(len)
        || size >= kernel::second_level() && (mean <= len / 2 || len >= SHORT && mean >= 4 * len)
}

/// Copies if one side is equal blocks at equal distances, and the other one suits; whether so.
///
/// # Safety
///
/// As for [`copy`]; the pointers are where the origins of the roots are.
unsafe fn fill(
    from: &Form,
    source: *const u8,
    to: &Form,
    target: *mut u8,
    suits: impl Fn(&Form, i64) -> bool,
) -> bool {
    let (Some(from_root), Some(to_root)) = (from.root(), to.root()) else {
        return false;
    };
    let flat = |form: &Form| match form.nodes() {
        [Node::Dense { len }, Node::Stream { stride, .. }] if *len < kernel::LONGEST => {
            Some((*len, *stride as isize))
        }
        _ => None,
    };
    let total = from.size() as usize;
    match (flat(from), flat(to)) {
        // Of two such sides, the one with the longer blocks is filled or emptied.
        (a, Some((len, stride))) if a.is_none_or(|(other, _)| other <= len) && suits(from, len) => {
            let mut filler = Filler::<true>::new(target, len as usize, stride, total);
            // SAFETY: the caller's promise: both streams are equally long.
            unsafe { walk(from, from_root, source.cast_mut(), &mut filler) };
            true
        }
        (Some((len, stride)), b) if b.is_none_or(|(other, _)| other <= len) && suits(to, len) => {
            let source = source.cast_mut();
            let mut filler = Filler::<false>::new(source, len as usize, stride, total);
            // SAFETY: as above; only the target is written.
            unsafe { walk(to, to_root, target, &mut filler) };
            true
        }
        _ => false,
    }
}

/// What takes the bytes of a layout in the order of its stream (`PACK`), or gives them.
trait Sink<const PACK: bool> {
    /// # Safety
    ///
    /// As for [`Filler::piece`].
    unsafe fn piece(&mut self, user: *mut u8, len: usize);
    /// # Safety
    ///
    /// As for [`Filler::row`].
    unsafe fn row(&mut self, row: Row);
    /// # Safety
    ///
    /// As for [`Filler::list`].
    unsafe fn list(&mut self, user: *mut u8, offsets: &Offsets, len: usize);
    /// # Safety
    ///
    /// As for [`Filler::pieces`].
    unsafe fn pieces(&mut self, user: *mut u8, offsets: &Offsets, starts: &Offsets);
}

impl<const PACK: bool> Sink<PACK> for Filler<PACK> {
    #[inline(always)]
    unsafe fn piece(&mut self, user: *mut u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { Filler::piece(self, user, len) }
    }

    unsafe fn row(&mut self, row: Row) {
        // SAFETY: the caller's promise.
        unsafe { Filler::row(self, row) }
    }

    unsafe fn list(&mut self, user: *mut u8, offsets: &Offsets, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { Filler::list(self, user, offsets, len) }
    }

    unsafe fn pieces(&mut self, user: *mut u8, offsets: &Offsets, starts: &Offsets) {
        // SAFETY: the caller's promise.
        unsafe { Filler::pieces(self, user, offsets, starts) }
    }
}

/// Bytes of a [`Stage`], which stay in the first-level cache.
const STAGE: usize = 16 << 10;

/// Equal blocks on one side, filled from a small buffer, or emptied into it, as many at a time as it
/// holds. Unlike [`bounce`], it never has to look for its place in a list.
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
    fn new(at: *mut u8, (len, stride, count): (usize, isize, usize), capacity: usize) -> Self {
        Stage {
            at,
            len,
            stride,
            left: count,
            used: 0..0,
            capacity,
            buffer: Buffer::of_thread(capacity),
        }
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

    unsafe fn pieces(&mut self, user: *mut u8, offsets: &Offsets, starts: &Offsets) {
        let (mut first, n) = (0, offsets.len());
        while first < n {
            let start = starts.get(first);
            let end = starts.last_not_above(start + self.room() as i64).min(n);
            // SAFETY: the caller's promise, for some of the pieces.
            unsafe {
                if end > first {
                    let place = self.take((starts.get(end) - start) as usize);
                    kernel::pieces::<PACK>(user, offsets, starts, (first, end), place);
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
unsafe fn staged(
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
        let mut stage = Stage::<true>::new(target, blocks, capacity);
        // SAFETY: the caller's promise: both streams are equally long.
        unsafe {
            walk(from, from_root, source, &mut stage);
            stage.turn();
        }
        return true;
    }
    if let Some(blocks) = flat(from, to) {
        let mut stage = Stage::<false>::new(source, blocks, capacity);
        // SAFETY: as above; only the target is written.
        unsafe { walk(to, to_root, target, &mut stage) };
        return true;
    }
    false
}

/// Rows of so many blocks are worth a call each.
const LONG_ROW: i64 = 256;

/// Whether going over a [`Stage`] is faster than through a larger buffer: lists of short pieces, in
/// which [`bounce`] would look for its place each time, and long rows.
fn is_staged(form: &Form) -> bool {
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

/// Moves all bytes of a node in the order of its stream.
///
/// # Safety
///
/// As for [`Filler::piece`], for all pieces of the node.
unsafe fn walk<const PACK: bool>(
    form: &Form,
    id: NodeId,
    user: *mut u8,
    filler: &mut impl Sink<PACK>,
) {
    let at = |offset: i64| user.wrapping_offset(offset as isize);
    // SAFETY (all blocks): the caller's promise, for parts of the node.
    match form.node(id) {
        // SAFETY: see above.
        Node::Dense { len } => unsafe { filler.piece(user, *len as usize) },
        Node::Stream {
            count,
            stride,
            child,
        } => {
            let (count, stride, child) = (*count, *stride, *child);
            match form.node(child) {
                Node::Dense { len } => {
                    let row = Row {
                        user,
                        len: *len as usize,
                        stride: stride as isize,
                        count: count as usize,
                        next: at(count * stride),
                    };
                    // SAFETY: see above.
                    unsafe { filler.row(row) };
                }
                Node::Stream {
                    count: inner,
                    stride: step,
                    child: block,
                } if matches!(form.node(*block), Node::Dense { .. }) => {
                    for i in 0..count {
                        let row = Row {
                            user: at(i * stride),
                            len: form.extent(*block).size as usize,
                            stride: *step as isize,
                            count: *inner as usize,
                            next: at((i + 1) * stride),
                        };
                        // SAFETY: see above.
                        unsafe { filler.row(row) };
                    }
                }
                _ => {
                    for i in 0..count {
                        // SAFETY: see above.
                        unsafe { walk(form, child, at(i * stride), filler) };
                    }
                }
            }
        }
        Node::Blocks { offsets, child } => match form.node(*child) {
            // SAFETY: see above.
            Node::Dense { len } => unsafe { filler.list(user, offsets, *len as usize) },
            _ => {
                for i in 0..offsets.len() {
                    // SAFETY: see above.
                    unsafe { walk(form, *child, at(offsets.get(i)), filler) };
                }
            }
        },
        // SAFETY: see above.
        Node::Pieces { offsets, starts } => unsafe { filler.pieces(user, offsets, starts) },
        Node::Sequence { parts } => {
            for part in parts.iter() {
                // SAFETY: see above.
                unsafe { walk(form, part.child, at(part.offset), filler) };
            }
        }
    }
}

/// Most regular parts of a layout that are looked at one by one.
const PARTS: usize = 32;

/// Most levels of lists of parts within each other.
const DEPTH: usize = 4;

/// A part of a layout: where it is, from the layout's first byte and in the packed stream.
struct Part {
    at: i64,
    start: i64,
    regular: Regular,
}

/// The same bytes of two layouts, regular on both sides.
struct Pair {
    from_at: i64,
    from: Regular,
    to_at: i64,
    to: Regular,
    range: Range<u64>,
}

/// Two layouts as pairs of regular parts, if one of them is regular and can be cut where the parts
/// of the other one end.
fn pairs(from: &Form, to: &Form) -> Option<Vec<Pair>> {
    let is_list = |form: &Form, root: NodeId| matches!(form.node(root), Node::Sequence { .. });
    if is_list(from, from.root()?) || is_list(to, to.root()?) {
        // Where blocks are short and different, few parts go past the buffer.
        match (from.nodes(), to.nodes()) {
            ([Node::Dense { len: a }, ..], [Node::Dense { len: b }, ..])
                if a == b || *a.min(b) >= SHORT || from.size() >= MUCH => {}
            _ => return None,
        }
    }
    let (mut a, mut b) = (Vec::new(), Vec::new());
    add(from, from.root()?, (0, 0), DEPTH, &mut a)?;
    add(to, to.root()?, (0, 0), DEPTH, &mut b)?;
    let size = from.size() as i64;
    let cut = |whole: &Part, parts: &[Part], pair: &dyn Fn(&Part, Part, Range<u64>) -> Pair| {
        let ends = parts[1..].iter().map(|part| part.start).chain([size]);
        parts
            .iter()
            .zip(ends)
            .map(|(part, end)| {
                let other = whole.regular.slice(part.start, end)?;
                Some(pair(part, other, part.start as u64..end as u64))
            })
            .collect()
    };
    match (&a[..], &b[..]) {
        ([a], [b]) => Some(vec![Pair {
            from_at: 0,
            from: a.regular,
            to_at: 0,
            to: b.regular,
            range: 0..size as u64,
        }]),
        (parts, [whole]) => cut(whole, parts, &|part, other, range| Pair {
            from_at: part.at,
            from: part.regular,
            to_at: other.at,
            to: other.regular,
            range,
        }),
        ([whole], parts) => cut(whole, parts, &|part, other, range| Pair {
            from_at: other.at,
            from: other.regular,
            to_at: part.at,
            to: part.regular,
            range,
        }),
        _ => None,
    }
}

/// Adds the parts of a node; `None` if they are too many or not all regular.
fn add(
    form: &Form,
    id: NodeId,
    (at, start): (i64, i64),
    depth: usize,
    parts: &mut Vec<Part>,
) -> Option<()> {
    if let Node::Sequence { parts: list } = form.node(id) {
        if list.len() > PARTS || depth == 0 {
            return None;
        }
        for part in list.iter() {
            let place = (at + part.offset, start + part.start);
            add(form, part.child, place, depth - 1, parts)?;
        }
        return Some(());
    }
    if parts.len() == PARTS {
        return None;
    }
    let regular = Regular::of(form, id)?;
    parts.push(Part { at, start, regular });
    Some(())
}

impl Pair {
    /// Copies without a buffer, if that is faster; else it may say how large the buffer should be.
    /// `whole` bytes are copied in all.
    ///
    /// # Safety
    ///
    /// As for [`copy`], for the pair's bytes; the pointers are where the first of them are.
    unsafe fn run(&self, read: *const u8, write: *mut u8, whole: u64, chunk: &mut u64) -> bool {
        let size = self.range.end - self.range.start;
        let joint = Joint::of(self.from, self.to);
        let is_joint = joint.is_some();
        if let Some(mut joint) = joint {
            let dims = &mut joint.dims[..joint.n];
            if kernel::transposes_blocks(joint.len, dims) && size > TRANSPOSED {
                *chunk = WIDE_CHUNK;
            } else {
                // SAFETY: the nest visits the blocks of both streams, in pairs.
                unsafe { kernel::nest(write, read, joint.len, dims) };
                return true;
            }
        }
        // SAFETY: the caller's promise.
        let is_woven = || unsafe { weave(&self.from, read, &self.to, write, size as i64) };
        if !is_joint && whole >= MUCH && size >= FEW && is_woven() {
            return true;
        }
        let (a, b) = (self.from.len, self.to.len);
        let (short, long) = (a.min(b), a.max(b));
        if size < MUCH || short < SHORT || long >= short.saturating_mul(RATIO) {
            return false;
        }
        // SAFETY: the caller's promise.
        unsafe { zip(&self.from, read, &self.to, write) };
        true
    }
}

/// One side of two regular layouts that are walked together.
struct Side<'a> {
    regular: &'a Regular,
    /// Where the current block is, from the layout's first byte.
    block: i64,
    /// Blocks left along each dimension, this one included.
    left: [i64; DIMS],
    /// Bytes of the block that are done.
    done: i64,
}

impl<'a> Side<'a> {
    fn new(regular: &'a Regular) -> Side<'a> {
        Side {
            regular,
            block: 0,
            left: regular.dims.map(|dim| dim.0),
            done: 0,
        }
    }

    /// At a position of the stream, which is not its end.
    fn at(regular: &'a Regular, position: i64) -> Side<'a> {
        let mut side = Side::new(regular);
        side.done = position % regular.len;
        side.block = regular.offset(position) - side.done;
        let mut index = position / regular.len;
        for (left, &(count, _)) in side.left.iter_mut().zip(&regular.dims[..regular.n]) {
            *left = count - index % count;
            index /= count;
        }
        side
    }

    /// Goes on within the block, or to the next one; whether there is more.
    #[inline(always)]
    fn advance(&mut self, bytes: i64) -> bool {
        self.done += bytes;
        if self.done < self.regular.len {
            return true;
        }
        self.done = 0;
        for (left, &(count, stride)) in self
            .left
            .iter_mut()
            .zip(&self.regular.dims[..self.regular.n])
        {
            *left -= 1;
            if *left > 0 {
                self.block += stride;
                return true;
            }
            *left = count;
            self.block -= (count - 1) * stride;
        }
        false
    }
}

/// Most pieces of a pattern.
const WOVEN: i64 = 1024;

/// A pattern that repeats, and which parts of layouts it is for, however often.
struct Woven {
    from: Regular,
    to: Regular,
    /// Bytes of the stream.
    period: i64,
    /// How far apart the repetitions are.
    apart: (i64, i64),
    weave: Option<Weave>,
}

thread_local! {
    /// The pattern of the last copy that looked for one: finding it takes as long as moving some ten
    /// thousand bytes.
    static PATTERN: Cell<Option<Box<Woven>>> = const { Cell::new(None) };
}

impl Woven {
    /// The pattern of two parts of layouts of `size` bytes, if it comes often there.
    fn of(from: &Regular, to: &Regular, size: i64) -> Option<Box<Woven>> {
        let (from, to) = (from.endless()?, to.endless()?);
        let (from_step, to_step) = (from.step(), to.step());
        let common = gcd(from_step.0 as u64, to_step.0 as u64) as i64;
        let period = (from_step.0 / common).saturating_mul(to_step.0);
        if size / period < OFTEN {
            return None;
        }
        let kept = PATTERN.try_with(Cell::take).ok().flatten();
        if let Some(kept) = kept.filter(|kept| kept.from == from && kept.to == to) {
            return Some(kept);
        }
        let few = period / from.len + period / to.len <= WOVEN;
        Some(Box::new(Woven {
            from,
            to,
            period,
            apart: (
                period / from_step.0 * from_step.1,
                period / to_step.0 * to_step.1,
            ),
            weave: few
                .then(|| Weave::new(&pieces(&from, &to, period)))
                .flatten(),
        }))
    }
}

/// The pieces of one period of two layouts.
fn pieces(from: &Regular, to: &Regular, period: i64) -> Vec<Piece> {
    let (mut list, mut done) = (Vec::new(), 0);
    let cluster = from.cluster();
    let (mut a, mut b) = (Side::new(from), Side::new(to));
    while done < period {
        let len = (from.len - a.done).min(to.len - b.done);
        let at = a.block + a.done;
        let (low, high) = match cluster {
            Some((bytes, extent)) => {
                let start = from.offset(done / bytes * bytes);
                (start, start.saturating_add(extent))
            }
            None => (i64::MIN, i64::MAX),
        };
        list.push(Piece {
            to: b.block + b.done,
            from: at,
            len,
            low,
            high,
        });
        done += len;
        a.advance(len);
        b.advance(len);
    }
    list
}

/// Fewer repetitions along the outermost dimension are looked at one by one.
const REPEATED: i64 = 8;

/// Copies by a pattern of pieces that repeats, if there is one that is worth it; whether so.
///
/// # Safety
///
/// As for [`zip`]; both have `size` bytes.
unsafe fn weave(
    from: &Regular,
    source: *const u8,
    to: &Regular,
    target: *mut u8,
    size: i64,
) -> bool {
    // The one with fewer dimensions is cut where the other one's planes end.
    for (planes, rows, is_source) in [(from, to, true), (to, from, false)] {
        let Some((&(count, stride), inner)) = planes.dims[..planes.n].split_last() else {
            return false;
        };
        if inner.is_empty() || count > REPEATED {
            continue;
        }
        let mut plane = *planes;
        plane.n -= 1;
        plane.dims[plane.n] = (0, 0);
        let bytes = size / count;
        for i in 0..count {
            let Some(row) = rows.slice(i * bytes, (i + 1) * bytes) else {
                return false;
            };
            let (a, b) = ((i * stride) as isize, row.at as isize);
            // SAFETY: the caller's promise, for a plane.
            let done = unsafe {
                if is_source {
                    let (source, target) = (source.wrapping_offset(a), target.wrapping_offset(b));
                    weave_plane(&plane, source, &row.regular, target, bytes)
                } else {
                    let (source, target) = (source.wrapping_offset(b), target.wrapping_offset(a));
                    weave_plane(&row.regular, source, &plane, target, bytes)
                }
            };
            // All planes are alike.
            if !done {
                return false;
            }
        }
        return true;
    }
    // SAFETY: the caller's promise.
    unsafe { weave_plane(from, source, to, target, size) }
}

/// As [`weave`], by repetitions along the outermost dimensions.
///
/// # Safety
///
/// As for [`weave`].
unsafe fn weave_plane(
    from: &Regular,
    source: *const u8,
    to: &Regular,
    target: *mut u8,
    size: i64,
) -> bool {
    let Some(woven) = Woven::of(from, to, size) else {
        return false;
    };
    let is_woven = match &woven.weave {
        Some(weave) => {
            let count = size / woven.period;
            let repeats = Repeats {
                count: count as usize,
                to: woven.apart.1 as isize,
                from: woven.apart.0 as isize,
            };
            let done = count * woven.period;
            // SAFETY: the pieces are those of both streams, whose places repeat, and what is left of
            // them.
            unsafe {
                weave.run(target, source, repeats);
                if done < size {
                    go_on(Side::at(from, done), source, Side::at(to, done), target);
                }
            }
            true
        }
        None => false,
    };
    let _ = PATTERN.try_with(|kept| kept.set(Some(woven)));
    is_woven
}

/// A pattern that comes less often is not worth it.
const OFTEN: i64 = 4;

/// Copies between two regular layouts whose blocks do not fit each other.
///
/// # Safety
///
/// As for [`copy`]; the pointers are where the first bytes of the streams are.
unsafe fn zip(from: &Regular, source: *const u8, to: &Regular, target: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::arch::is_x86_feature_detected!("avx2") {
        /// # Safety
        ///
        /// As for [`zip`]; the processor has AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn with_avx2(from: &Regular, source: *const u8, to: &Regular, target: *mut u8) {
            // SAFETY: the caller's promise.
            unsafe { fragments(from, source, to, target) }
        }
        // SAFETY: the caller's promise; the processor has AVX2.
        return unsafe { with_avx2(from, source, to, target) };
    }
    // SAFETY: the caller's promise.
    unsafe { fragments(from, source, to, target) }
}

/// # Safety
///
/// As for [`zip`].
#[inline(always)]
unsafe fn fragments(from: &Regular, source: *const u8, to: &Regular, target: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { go_on(Side::new(from), source, Side::new(to), target) }
}

/// The rest of [`fragments`], from where both sides are.
///
/// # Safety
///
/// As for [`zip`].
#[inline(always)]
unsafe fn go_on(mut a: Side, source: *const u8, mut b: Side, target: *mut u8) {
    let (from, to) = (a.regular, b.regular);
    loop {
        let len = (from.len - a.done).min(to.len - b.done);
        let read = source.wrapping_offset((a.block + a.done) as isize);
        let write = target.wrapping_offset((b.block + b.done) as isize);
        // SAFETY: both sides are at the same position of the stream, with `len` bytes left.
        unsafe { kernel::fragment(write, read, len as usize) };
        // Streams of the same size end together.
        if !(a.advance(len) & b.advance(len)) {
            return;
        }
    }
}

/// Packs and unpacks a range of the stream, at most `most` bytes at a time.
///
/// # Safety
///
/// As for [`copy`]; the range lies in the stream.
unsafe fn bounce(
    from: &Layout,
    source: *const u8,
    to: &Layout,
    target: *mut u8,
    range: Range<u64>,
    most: u64,
) {
    let size = range.end - range.start;
    let most = if size <= ONCE { most.max(size) } else { most };
    if size <= STACK as u64 {
        let mut few = [MaybeUninit::<u8>::uninit(); STACK];
        let few = few.as_mut_ptr().cast::<u8>();
        // SAFETY: the caller's promise; there is room for everything, and what is read was
        // written before.
        unsafe {
            from.pack_raw(source, range.clone(), few);
            to.unpack_raw(few, range, target);
        }
        return;
    }
    // On the heap: the caller's stack may be a small one.
    let mut buffer = Buffer::of_thread(size.min(most) as usize);
    let chunk = buffer.start();
    let step = if size <= most {
        size
    } else {
        // Whole blocks of both sides, if they are all alike.
        let first = |layout: &Layout| layout.segment(0).map_or(1, |segment| segment.len);
        let (a, b) = (first(from), first(to));
        let unit = (a / gcd(a, b)).saturating_mul(b);
        most - most.checked_rem(unit).filter(|_| unit <= most).unwrap_or(0)
    };
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min(at + step);
        // SAFETY: the caller's promise; the chunk has room for the range, and the same range is
        // written before it is read.
        unsafe {
            from.pack_raw(source, at..end, chunk);
            to.unpack_raw(chunk, at..end, target);
        }
        at = end;
    }
}

thread_local! {
    /// The buffer of the last copy that needed one.
    static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Memory that a thread keeps from one copy to the next: new memory would be new pages each time.
struct Buffer(Vec<u8>);

impl Buffer {
    /// At least `size` bytes from [`Buffer::start`] on.
    fn of_thread(size: usize) -> Buffer {
        // A thread that is about to end has nothing to keep.
        let mut kept = KEPT.try_with(Cell::take).unwrap_or_default();
        if kept.capacity() < size + LINE {
            kept = Vec::with_capacity(size + LINE);
        }
        Buffer(kept)
    }

    /// At a line's start, so that fewer vectors cross into the next one.
    fn start(&mut self) -> *mut u8 {
        let start = self.0.as_mut_ptr();
        start.wrapping_add(start.addr().wrapping_neg() % LINE)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.0);
        let _ = KEPT.try_with(|kept| kept.set(buffer));
    }
}

/// The greatest common divisor, at least 1.
fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

/// Most dimensions that two regular layouts may have together; more go strip by strip.
const DIMS: usize = 8;

/// Two regular layouts as one loop nest that walks both.
///
/// ```text
/// from   Stream 6 × Dense 16             dims of 16 bytes:  6
/// to     Stream 2 × Stream 3 × Dense 16                     3, then 2
/// both   3 (inner), 2 (outer), 16 bytes
/// ```
struct Joint {
    len: usize,
    dims: [Dim; DIMS],
    n: usize,
}

/// A regular layout: the length of its blocks, and counts and strides, the innermost first.
#[derive(Clone, Copy, PartialEq)]
struct Regular {
    len: i64,
    dims: [(i64, i64); DIMS],
    n: usize,
}

impl Regular {
    fn of(form: &Form, root: NodeId) -> Option<Regular> {
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
    fn slice(&self, start: i64, end: i64) -> Option<Part> {
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
    fn endless(&self) -> Option<Regular> {
        let mut endless = *self;
        endless.dims[..self.n].last_mut()?.0 = i64::MAX;
        Some(endless)
    }

    /// Bytes of the stream in a step along the outermost dimension, and the step.
    fn step(&self) -> (i64, i64) {
        let (last, inner) = match self.dims[..self.n].split_last() {
            Some((last, inner)) => (last.1, inner),
            None => (0, &[][..]),
        };
        (inner.iter().fold(self.len, |len, dim| len * dim.0), last)
    }

    /// Where a position of the stream is, from the first byte.
    fn offset(&self, position: i64) -> i64 {
        let (mut index, mut offset) = (position / self.len, position % self.len);
        for &(count, stride) in &self.dims[..self.n] {
            offset += index % count * stride;
            index /= count;
        }
        offset
    }

    /// Bytes of the stream in blocks that are at most two cache lines apart each, and the bytes from
    /// the first to the end of the last of them; `None` if all blocks are.
    fn cluster(&self) -> Option<(i64, i64)> {
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
    fn cut(&mut self, len: i64) -> Option<()> {
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

impl Joint {
    fn of(from: Regular, to: Regular) -> Option<Joint> {
        let (mut a, mut b) = (from, to);
        let len = a.len.min(b.len);
        a.cut(len)?;
        b.cut(len)?;
        let mut joint = Joint {
            len: len as usize,
            dims: [Dim::default(); DIMS],
            n: 0,
        };
        let (mut i, mut k) = (0, 0);
        while i < a.n && k < b.n {
            let ((n, from), (m, to)) = (a.dims[i], b.dims[k]);
            let count = n.min(m);
            if n % count != 0 || m % count != 0 || joint.n == DIMS {
                return None;
            }
            joint.dims[joint.n] = Dim {
                count: count as usize,
                to: to as isize,
                from: from as isize,
            };
            joint.n += 1;
            match n / count {
                1 => i += 1,
                rest => a.dims[i] = (rest, from * count),
            }
            match m / count {
                1 => k += 1,
                rest => b.dims[k] = (rest, to * count),
            }
        }
        joint.order();
        Some(joint)
    }

    /// The order of the copies is free: what is dense on both sides becomes the block, and the
    /// small strides go inside.
    fn order(&mut self) {
        let dims = &mut self.dims[..self.n];
        dims.sort_unstable_by_key(|dim| dim.to.unsigned_abs() + dim.from.unsigned_abs());
        let len = |len: usize| len as isize;
        while self.n > 0 {
            let first = self.dims[0];
            if first.to != len(self.len) || first.from != len(self.len) {
                break;
            }
            self.len *= first.count;
            self.dims.copy_within(1..self.n, 0);
            self.n -= 1;
        }
    }
}

impl Layout {
    /// Copies from this layout in `buffer` to another one in `target`, without packing in between.
    /// Where pieces of the target overlap, the last one in the type map wins.
    ///
    /// # Errors
    ///
    /// Data outside one of the buffers; layouts that do not have the same signature, unless one
    /// of them consists of plain bytes (`MPI_BYTE`, `MPI_PACKED`, characters).
    pub fn copy(
        &self,
        buffer: &[u8],
        origin: isize,
        to: &Layout,
        target: &mut [u8],
        target_origin: isize,
    ) -> Result<()> {
        if self.size() != to.size() || !self.fits(to) {
            return Err(Error::argument(
                "the target's signature",
                format!(
                    "{} elements, {} bytes",
                    to.signature().elements(),
                    to.size()
                ),
                format!(
                    "the source's ({} elements, {} bytes)",
                    self.signature().elements(),
                    self.size()
                ),
            ));
        }
        self.check(buffer.len(), origin, 0, 0)?;
        to.check(target.len(), target_origin, 0, 0)?;
        let from = buffer.as_ptr().wrapping_offset(origin);
        let target = target.as_mut_ptr().wrapping_offset(target_origin);
        // SAFETY: all data of both lies within slices that do not overlap.
        unsafe { self.copy_raw(from, to, target) };
        Ok(())
    }

    /// As [`Layout::copy`], without a check; both origins are the addresses that displacements
    /// count from.
    ///
    /// # Safety
    ///
    /// Both layouts have the same size; the bytes of this layout at `origin` are readable, those
    /// of `to` at `target` writable, and no byte is both.
    pub unsafe fn copy_raw(&self, origin: *const u8, to: &Layout, target: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { copy(self, origin, to, target) }
    }

    fn fits(&self, other: &Layout) -> bool {
        let bytes = || Signature::of_named(Named::Byte).repeat(self.size());
        self.signature() == other.signature()
            || (self.signature().elements() == self.size()
                || other.signature().elements() == self.size())
                && (*self.signature() == bytes() || *other.signature() == bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Datatype, Segment};

    fn layout(expression: &str) -> Layout {
        Layout::new(&expression.parse::<Datatype>().unwrap(), 1).unwrap()
    }

    /// Copies by [`fill`] alone, and by [`staged`], to be compared with a copy piece by piece, gaps included.
    fn compare(from: &str, to: &str) {
        let (a, b) = (layout(from), layout(to));
        assert_eq!(a.size(), b.size(), "{from} {to}");
        let room = |layout: &Layout| {
            let bounds = layout.bounds();
            ((bounds.end - bounds.start) as usize, -bounds.start as isize)
        };
        let ((read, origin), (written, target_origin)) = (room(&a), room(&b));
        let source: Vec<u8> = (0..read).map(|i| (i * 167 / 5) as u8).collect();
        let mut target = vec![0xa5; written];
        let mut expected = target.clone();
        let bytes = a.segments().flat_map(|s| s.offset..s.offset + s.len as i64);
        let places = b.segments().flat_map(|s| s.offset..s.offset + s.len as i64);
        for (i, k) in bytes.zip(places) {
            expected[(k as isize + target_origin) as usize] =
                source[(i as isize + origin) as usize];
        }
        let read = source
            .as_ptr()
            .wrapping_offset(origin + a.form().offset() as isize);
        let write = target
            .as_mut_ptr()
            .wrapping_offset(target_origin + b.form().offset() as isize);
        // SAFETY: both buffers hold all bytes of their layouts.
        let done = unsafe { fill(a.form(), read, b.form(), write, |_, _| true) };
        assert!(done, "{from} to {to} is not for it");
        assert!(target == expected, "{from} to {to}");
        target.fill(0xa5);
        // Little enough that it is filled several times.
        let longest = a.segments().chain(b.segments()).map(|s| s.len).max();
        let capacity = 8 * longest.unwrap() as usize;
        // SAFETY: as above.
        let done = unsafe { staged(a.form(), read, b.form(), write, capacity, |_| true) };
        assert!(done, "{from} to {to} is not for it");
        assert!(target == expected, "{from} over a stage to {to}");
        // Whatever is chosen gives the same.
        target.fill(0xa5);
        a.copy(&source, origin, &b, &mut target, target_origin)
            .unwrap();
        assert!(target == expected, "{from} to {to}");
    }

    /// Copies by [`weave`] alone, if it does that; whether so.
    fn compare_woven(from: &str, to: &str) -> bool {
        let (a, b) = (layout(from), layout(to));
        assert_eq!(a.size(), b.size(), "{from} {to}");
        let regular = |layout: &Layout| {
            let form = layout.form();
            Regular::of(form, form.root().unwrap()).unwrap()
        };
        // Exactly as long as they must be, to their first and last byte.
        let room = |layout: &Layout| {
            let at = |segment: Segment| (segment.offset, segment.offset + segment.len as i64);
            let ends = layout.segments().map(at);
            ends.fold((i64::MAX, i64::MIN), |(low, high), (start, end)| {
                (low.min(start), high.max(end))
            })
        };
        let (read, written) = (room(&a), room(&b));
        let source: Vec<u8> = (read.0..read.1).map(|i| (i * 167 / 5) as u8).collect();
        let mut target = vec![0xa5; (written.1 - written.0) as usize];
        let mut expected = target.clone();
        let bytes = a.segments().flat_map(|s| s.offset..s.offset + s.len as i64);
        let places = b.segments().flat_map(|s| s.offset..s.offset + s.len as i64);
        for (i, k) in bytes.zip(places) {
            expected[(k - written.0) as usize] = source[(i - read.0) as usize];
        }
        let first = |layout: &Layout, low: i64| (layout.form().offset() - low) as usize;
        let read = source.as_ptr().wrapping_add(first(&a, read.0));
        let write = target.as_mut_ptr().wrapping_add(first(&b, written.0));
        let size = a.size() as i64;
        // SAFETY: both buffers hold all bytes of their layouts.
        let done = unsafe { weave(&regular(&a), read, &regular(&b), write, size) };
        assert!(!done || target == expected, "{from} {to}");
        done
    }

    #[test]
    fn repeated_patterns_are_woven() {
        let lengths: &[usize] = if cfg!(miri) {
            &[12, 33, 64]
        } else {
            &[4, 12, 20, 47, 64, 92, 129, 200]
        };
        let mut woven = 0;
        for &a in lengths {
            for &b in lengths.iter().filter(|b| **b != a) {
                let unit = a * b / gcd(a as u64, b as u64) as usize;
                // A few bytes more than whole patterns.
                let all = unit * 5;
                let (n, m) = (all / a, all / b);
                for (gap, apart) in [(4, 4), (1, 200), (32, 16), (112, 4), (-1000, 8), (8, -1000)] {
                    let step = |len: usize, gap: i64| len as i64 + gap;
                    let from = format!("vector({n},{a},{},byte)", step(a, gap));
                    let to = format!("vector({m},{b},{},byte)", step(b, apart));
                    woven += usize::from(compare_woven(&from, &to));
                    // Planes of rows, few and many.
                    for (planes, rows) in [(2, 5 * b), (8 * b, 3)] {
                        let bytes = planes * rows * a;
                        let plane = (step(a, gap) * rows as i64).abs() + 333;
                        let deep = format!(
                            "hvector({planes},1,{plane},vector({rows},{a},{},byte))",
                            step(a, gap)
                        );
                        let flat = format!("vector({},{b},{},byte)", bytes / b, step(b, apart));
                        woven += usize::from(compare_woven(&deep, &flat));
                        woven += usize::from(compare_woven(&flat, &deep));
                    }
                }
            }
        }
        assert!(woven > 20, "{woven}");
    }

    /// `count` times `length`, in this order, at places that nothing is regular about.
    fn places(count: usize, length: usize) -> String {
        let mut at = 7;
        let mut list = Vec::new();
        for i in 0..count {
            at += length + 1 + i * i % 3;
            list.push(at);
        }
        // Some of them backwards.
        list[count / 3..count / 2].reverse();
        let list: Vec<String> = list.iter().map(usize::to_string).collect();
        list.join(",")
    }

    #[test]
    fn blocks_are_filled_and_emptied_with_all_kinds_of_layouts() {
        let lengths: &[usize] = if cfg!(miri) {
            &[3, 12]
        } else {
            &[1, 4, 7, 12, 24, 47, 64, 129, 700]
        };
        let blocks: &[usize] = if cfg!(miri) {
            &[1, 5, 12]
        } else {
            &[1, 3, 5, 8, 12, 17, 32, 33, 64, 96, 128, 256, 513, 3000]
        };
        for &length in lengths {
            for &block in blocks {
                // As many bytes as make whole blocks on both sides.
                let unit = length * block / gcd(length as u64, block as u64) as usize;
                let count = (200_usize.div_ceil(unit)).max(4) / 4 * 4 * unit / length;
                let (rows, all) = (count / 2, count * length);
                let others = [
                    format!("vector({count},{length},{},byte)", length + 5),
                    format!("vector({count},{length},{},byte)", -(length as i64) - 600),
                    format!(
                        "hvector(2,1,100000,vector({rows},{length},{},byte))",
                        length + 520
                    ),
                    format!("indexed_block({length},[{}],byte)", places(count, length)),
                    format!(
                        "hvector(2,1,-90000,indexed_block({length},[{}],byte))",
                        places(rows, length)
                    ),
                    format!(
                        "struct([1,1],[3,-200000],[vector({rows},{length},{},byte),\
                         indexed_block({length},[{}],byte)])",
                        length + 1,
                        places(count - rows, length)
                    ),
                    // Pieces of two lengths.
                    format!(
                        "indexed([{}],[{}],byte)",
                        [length + 1, length - 1].map(|n| n.to_string()).join(",")
                            + &format!(",{length}").repeat(count - 2),
                        places(count, length + 1)
                    ),
                ];
                let n = all / block;
                for apart in [block as i64 + 1, -(block as i64) - 9] {
                    if n < 2 {
                        continue;
                    }
                    let flat = format!("vector({n},{block},{apart},byte)");
                    for other in &others {
                        compare(other, &flat);
                        compare(&flat, other);
                    }
                }
            }
        }
    }
}
