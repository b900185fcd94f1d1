// SPDX-License-Identifier: MIT OR Apache-2.0

//! Walks a canonical form and moves the bytes of any range of the packed stream.
//!
//! A range cuts through at most two children of each node on the way down; all children in
//! between are whole, and whole streams become loop nests for the kernels.

use std::ops::Range;

use super::form::{Form, Node, NodeId};
use super::kernel::{self, Dim, Pieces};
use super::layout::Layout;
use super::overlap::FEW;
use crate::Result;

/// Dimensions that are collected before a kernel runs them; deeper nests loop around it.
const DIMS: usize = 6;

/// Bytes of packed data between two entries of an interchanged list, so that they stay cached.
const BATCH: i64 = 4096;

/// The streams around a node: how often, and the strides in the layout and in the packed stream.
#[derive(Clone, Copy)]
struct Around {
    dims: [Dim; DIMS],
    len: usize,
}

impl Around {
    const NONE: Around = Around {
        dims: [Dim {
            count: 0,
            to: 0,
            from: 0,
        }; DIMS],
        len: 0,
    };

    /// With a stream further inside.
    fn within<const PACK: bool>(&self, count: i64, stride: i64, size: i64) -> Around {
        let mut inner = *self;
        inner.dims.copy_within(0..self.len, 1);
        inner.dims[0] = dim::<PACK>(count, stride, size);
        inner.len += 1;
        inner
    }
}

fn dim<const PACK: bool>(count: i64, stride: i64, size: i64) -> Dim {
    let (stride, size) = (stride as isize, size as isize);
    let (to, from) = if PACK { (size, stride) } else { (stride, size) };
    Dim {
        count: count as usize,
        to,
        from,
    }
}

/// A form, and the way the bytes go: from the layout to the packed stream, or back.
pub(super) struct Mover<'a, const PACK: bool> {
    form: &'a Form,
    /// Whether pieces are written one after the other, in the order of the type map, because some
    /// of a loop nest may overlap: the last one wins.
    in_order: bool,
}

impl<'a, const PACK: bool> Mover<'a, PACK> {
    pub(super) fn new(form: &'a Form) -> Self {
        let in_order = !PACK && !form.is_free();
        Mover { form, in_order }
    }

    /// Moves the bytes from `low` up to `high` of a node's packed stream. `user` is the node's
    /// origin, `packed` is where byte `low` is. `PACK` writes only at `packed`, the other way only
    /// in the layout.
    ///
    /// # Safety
    ///
    /// The bytes of that range are valid for reading or writing at both ends, and the ends do not
    /// overlap; `0 <= low <= high <= size`.
    pub(super) unsafe fn range(
        &self,
        id: NodeId,
        user: *mut u8,
        low: i64,
        high: i64,
        packed: *mut u8,
    ) {
        if low >= high {
            return;
        }
        let form = self.form;
        if low == 0 && high == form.extent(id).size {
            // SAFETY: the caller's promise.
            return unsafe { self.whole(id, user, packed, &Around::NONE) };
        }
        let at = |offset: i64| user.wrapping_offset(offset as isize);
        // Where a byte of the stream goes.
        let to = |position: i64| packed.wrapping_offset((position - low) as isize);
        // SAFETY (all blocks below): a node's packed stream is that of its children, one after
        // the other, so each call gets a part of the caller's range and the places of that part.
        match form.node(id) {
            Node::Dense { .. } => {
                // SAFETY: see above.
                unsafe { self.piece(at(low), packed, (high - low) as usize) };
            }
            Node::Stream { stride, child, .. } => {
                let size = form.extent(*child).size;
                let (first, skip) = (low / size, low % size);
                let (last, rest) = (high / size, high % size);
                if first == last {
                    // SAFETY: see above.
                    return unsafe {
                        self.range(*child, at(first * stride), skip, rest, packed);
                    };
                }
                let start = first + i64::from(skip > 0);
                // SAFETY: see above.
                unsafe {
                    if skip > 0 {
                        self.range(*child, at(first * stride), skip, size, packed);
                    }
                    if start < last {
                        let (at, to) = (at(start * stride), to(start * size));
                        self.stream((last - start, *stride, *child), at, to, &Around::NONE);
                    }
                    self.range(*child, at(last * stride), 0, rest, to(last * size));
                }
            }
            Node::Blocks { offsets, child } => {
                let size = form.extent(*child).size;
                let (first, skip) = (low / size, low % size);
                let (last, rest) = (high / size, high % size);
                let place = |i: i64| at(offsets.get(i as usize));
                if first == last {
                    // SAFETY: see above.
                    return unsafe { self.range(*child, place(first), skip, rest, packed) };
                }
                let start = first + i64::from(skip > 0);
                // SAFETY: see above.
                unsafe {
                    if skip > 0 {
                        self.range(*child, place(first), skip, size, packed);
                    }
                    if start < last {
                        let range = (start as usize, last as usize);
                        self.blocks(id, user, range, to(start * size));
                    }
                    if rest > 0 {
                        self.range(*child, place(last), 0, rest, to(last * size));
                    }
                }
            }
            Node::Pieces { offsets, starts } => {
                let first = starts.last_not_above(low);
                let mut last = starts.last_not_above(high).min(offsets.len());
                if starts.get(last) == high {
                    last -= 1;
                }
                // The pieces of both ends may be cut, those between them are whole.
                let end = |i: usize| {
                    let (start, end) = (starts.get(i).max(low), starts.get(i + 1).min(high));
                    let user = at(offsets.get(i) + (start - starts.get(i)));
                    // SAFETY: see above.
                    unsafe { self.piece(user, to(start), (end - start) as usize) };
                };
                end(first);
                if first + 1 < last {
                    let packed = to(starts.get(first + 1));
                    let order = form.order(id);
                    let pieces = Pieces {
                        offsets,
                        starts,
                        order,
                    };
                    // SAFETY: see above.
                    unsafe {
                        kernel::pieces::<PACK>(user, pieces, (first + 1, last), packed);
                    }
                }
                if first < last {
                    end(last);
                }
            }
            Node::Sequence { parts } => {
                let first = parts.partition_point(|part| part.start <= low) - 1;
                for part in &parts[first..] {
                    if part.start >= high {
                        break;
                    }
                    let start = low.max(part.start);
                    let end = high.min(part.start + form.extent(part.child).size);
                    let (from, till) = (start - part.start, end - part.start);
                    // SAFETY: see above.
                    unsafe {
                        self.range(part.child, at(part.offset), from, till, to(start));
                    }
                }
            }
        }
    }

    /// Moves whole nodes: as many as the streams around say.
    ///
    /// # Safety
    ///
    /// As for [`Mover::range`].
    unsafe fn whole(&self, id: NodeId, user: *mut u8, packed: *mut u8, around: &Around) {
        let form = self.form;
        if around.len == 0 {
            // SAFETY: the caller's promise.
            if unsafe { self.simple(id, user, packed) } {
                return;
            }
        }
        match form.node(id) {
            Node::Dense { len } => {
                let mut around = *around;
                let dims = &mut around.dims[..around.len];
                // SAFETY: the caller's promise.
                unsafe {
                    if PACK {
                        kernel::nest(packed, user, *len as usize, dims);
                    } else {
                        kernel::nest(user, packed, *len as usize, dims);
                    }
                }
            }
            Node::Stream {
                count,
                stride,
                child,
            } => {
                // SAFETY: the caller's promise.
                unsafe { self.stream((*count, *stride, *child), user, packed, around) };
            }
            Node::Blocks { offsets, child } => {
                let each = |i: usize| (offsets.get(i), i as i64 * form.extent(*child).size, *child);
                let n = offsets.len();
                // SAFETY: the caller's promise.
                unsafe {
                    self.list(id, user, packed, around, n, each, |user, packed| {
                        self.blocks(id, user, (0, n), packed);
                    });
                }
            }
            Node::Pieces { offsets, starts } => {
                let n = offsets.len();
                if around.len == 0 || n > FEW {
                    let order = form.order(id);
                    let pieces = Pieces {
                        offsets,
                        starts,
                        order,
                    };
                    // SAFETY: the caller's promise; each call of the closure is one node.
                    return self.each(user, packed, around, |user, packed| unsafe {
                        kernel::pieces::<PACK>(user, pieces, (0, n), packed);
                    });
                }
                let size = form.extent(id).size;
                self.batches(user, packed, around, size, |user, packed, around| {
                    for i in 0..n {
                        let (start, end) = (starts.get(i) as isize, starts.get(i + 1) as isize);
                        let user = user.wrapping_offset(offsets.get(i) as isize);
                        let packed = packed.wrapping_offset(start);
                        let mut around = *around;
                        let dims = &mut around.dims[..around.len];
                        let len = (end - start) as usize;
                        // SAFETY: the caller's promise.
                        unsafe {
                            if PACK {
                                kernel::nest(packed, user, len, dims);
                            } else {
                                kernel::nest(user, packed, len, dims);
                            }
                        }
                    }
                });
            }
            Node::Sequence { parts } => {
                let each = |i: usize| (parts[i].offset, parts[i].start, parts[i].child);
                // SAFETY: the caller's promise.
                unsafe {
                    self.list(
                        id,
                        user,
                        packed,
                        around,
                        parts.len(),
                        each,
                        |user, packed| {
                            for part in parts.iter() {
                                let user = user.wrapping_offset(part.offset as isize);
                                let packed = packed.wrapping_offset(part.start as isize);
                                self.whole(part.child, user, packed, &Around::NONE);
                            }
                        },
                    );
                }
            }
        }
    }

    /// Moves a stream: count, stride and child.
    ///
    /// # Safety
    ///
    /// As for [`Mover::range`].
    unsafe fn stream(
        &self,
        (count, stride, child): (i64, i64, NodeId),
        user: *mut u8,
        packed: *mut u8,
        around: &Around,
    ) {
        // SAFETY: the caller's promise.
        if around.len == 0 && unsafe { self.row((count, stride, child), user, packed) } {
            return;
        }
        let size = self.form.extent(child).size;
        if self.in_order {
            for i in 0..count {
                let user = user.wrapping_offset((i * stride) as isize);
                let packed = packed.wrapping_offset((i * size) as isize);
                // SAFETY: the caller's promise, for one child.
                unsafe { self.whole(child, user, packed, &Around::NONE) };
            }
            return;
        }
        if around.len < DIMS {
            let inner = around.within::<PACK>(count, stride, size);
            // SAFETY: the caller's promise.
            return unsafe { self.whole(child, user, packed, &inner) };
        }
        // SAFETY: the caller's promise; each call of the closure is one node.
        self.each(user, packed, around, |user, packed| unsafe {
            let inner = Around::NONE.within::<PACK>(count, stride, size);
            self.whole(child, user, packed, &inner);
        });
    }

    /// Moves a dense node, or a stream of dense ones, which most small types are, without the
    /// bookkeeping of nests. Returns whether the node is one.
    ///
    /// # Safety
    ///
    /// As for [`Mover::range`].
    #[inline]
    unsafe fn simple(&self, id: NodeId, user: *mut u8, packed: *mut u8) -> bool {
        match self.form.node(id) {
            Node::Dense { len } => {
                // SAFETY: the caller's promise.
                unsafe { self.piece(user, packed, *len as usize) };
                true
            }
            Node::Stream {
                count,
                stride,
                child,
            } => {
                // SAFETY: the caller's promise.
                unsafe { self.row((*count, *stride, *child), user, packed) }
            }
            _ => false,
        }
    }

    /// Moves a stream of dense children. Returns whether it did: not if the child is of another
    /// kind, or the blocks may overlap and have to be written in order.
    ///
    /// # Safety
    ///
    /// As for [`Mover::range`].
    #[inline]
    unsafe fn row(
        &self,
        (count, stride, child): (i64, i64, NodeId),
        user: *mut u8,
        packed: *mut u8,
    ) -> bool {
        let Node::Dense { len } = self.form.node(child) else {
            return false;
        };
        if self.in_order && stride.unsigned_abs() < *len as u64 {
            return false;
        }
        let mut dims = [dim::<PACK>(count, stride, *len)];
        let (to, from) = if PACK { (packed, user) } else { (user, packed) };
        // SAFETY: the caller's promise; blocks that are apart may be written in any order.
        unsafe { kernel::nest(to, from, *len as usize, &mut dims) };
        true
    }

    /// Moves a list of `n` children within streams: child by child along the streams if the list
    /// is short, else list by list.
    ///
    /// # Safety
    ///
    /// As for [`Mover::range`]; `each` and `one` describe the node.
    #[allow(clippy::too_many_arguments)]
    unsafe fn list(
        &self,
        id: NodeId,
        user: *mut u8,
        packed: *mut u8,
        around: &Around,
        n: usize,
        each: impl Fn(usize) -> (i64, i64, NodeId),
        one: impl Fn(*mut u8, *mut u8),
    ) {
        if around.len == 0 || n > FEW {
            return self.each(user, packed, around, one);
        }
        let size = self.form.extent(id).size;
        self.batches(user, packed, around, size, |user, packed, around| {
            for i in 0..n {
                let (offset, start, child) = each(i);
                let user = user.wrapping_offset(offset as isize);
                let packed = packed.wrapping_offset(start as isize);
                // SAFETY: the caller's promise.
                unsafe { self.whole(child, user, packed, around) };
            }
        });
    }

    /// Calls `one` for each node that the streams around repeat.
    fn each(
        &self,
        user: *mut u8,
        packed: *mut u8,
        around: &Around,
        one: impl Fn(*mut u8, *mut u8),
    ) {
        fn nested<const PACK: bool>(
            user: *mut u8,
            packed: *mut u8,
            dims: &[Dim],
            one: &dyn Fn(*mut u8, *mut u8),
        ) {
            let [faster @ .., slowest] = dims else {
                return one(user, packed);
            };
            let (ustep, pstep) = steps::<PACK>(slowest);
            let (mut user, mut packed) = (user, packed);
            for _ in 0..slowest.count {
                nested::<PACK>(user, packed, faster, one);
                user = user.wrapping_offset(ustep);
                packed = packed.wrapping_offset(pstep);
            }
        }
        if around.len == 0 {
            return one(user, packed);
        }
        nested::<PACK>(user, packed, &around.dims[..around.len], &one);
    }

    /// Calls `one` for batches along the innermost stream around.
    fn batches(
        &self,
        user: *mut u8,
        packed: *mut u8,
        around: &Around,
        size: i64,
        one: impl Fn(*mut u8, *mut u8, &Around),
    ) {
        let inner = around.dims[0];
        let (ustep, pstep) = steps::<PACK>(&inner);
        let most = (BATCH / size).clamp(1, inner.count as i64) as usize;
        let mut outer = *around;
        outer.dims.copy_within(1..around.len, 0);
        outer.len -= 1;
        self.each(user, packed, &outer, |user, packed| {
            let mut i = 0;
            while i < inner.count {
                let count = most.min(inner.count - i);
                let mut batch = Around::NONE;
                batch.dims[0] = Dim { count, ..inner };
                batch.len = usize::from(count > 1);
                let user = user.wrapping_offset(i as isize * ustep);
                let packed = packed.wrapping_offset(i as isize * pstep);
                one(user, packed, &batch);
                i += count;
            }
        });
    }

    /// Moves whole children of a `Blocks` node.
    ///
    /// # Safety
    ///
    /// As for [`Mover::range`].
    unsafe fn blocks(
        &self,
        id: NodeId,
        user: *mut u8,
        (first, end): (usize, usize),
        packed: *mut u8,
    ) {
        let Node::Blocks { offsets, child } = self.form.node(id) else {
            return;
        };
        if let Node::Dense { len } = self.form.node(*child) {
            // SAFETY: the caller's promise.
            return unsafe {
                kernel::scattered::<PACK>(user, offsets, (first, end), packed, *len as usize)
            };
        }
        let size = self.form.extent(*child).size as isize;
        let mut packed = packed;
        for i in first..end {
            let user = user.wrapping_offset(offsets.get(i) as isize);
            // SAFETY: the caller's promise.
            unsafe { self.whole(*child, user, packed, &Around::NONE) };
            packed = packed.wrapping_offset(size);
        }
    }

    /// # Safety
    ///
    /// As for [`kernel::dense`].
    unsafe fn piece(&self, user: *mut u8, packed: *mut u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if PACK {
                kernel::dense(packed, user, len);
            } else {
                kernel::dense(user, packed, len);
            }
        }
    }
}

/// The strides of a dimension in the layout and in the packed stream.
fn steps<const PACK: bool>(dim: &Dim) -> (isize, isize) {
    if PACK {
        (dim.from, dim.to)
    } else {
        (dim.to, dim.from)
    }
}

impl Layout {
    /// Packs everything: the slice `packed` must be [`Layout::size`] bytes long.
    ///
    /// # Errors
    ///
    /// Data outside `buffer`, or a wrong length of `packed`.
    #[inline]
    pub fn pack(&self, buffer: &[u8], origin: isize, packed: &mut [u8]) -> Result<()> {
        let steps = self.form.steps();
        // What else there is to decide would take as long as moving a few hundred bytes.
        if steps.fit(buffer.len(), origin, packed.len()) {
            let from = buffer.as_ptr().wrapping_offset(origin).cast_mut();
            // SAFETY: all data lies in `buffer`, and the borrows are disjoint; packing writes only
            // at `packed`.
            unsafe { steps.run::<true>(from, packed.as_mut_ptr()) };
            return Ok(());
        }
        self.pack_unplanned(buffer, origin, packed)
    }

    #[inline(never)]
    fn pack_unplanned(&self, buffer: &[u8], origin: isize, packed: &mut [u8]) -> Result<()> {
        self.whole(packed.len())?;
        self.pack_range(buffer, origin, 0, packed)
    }

    /// Packs the `packed.len()` bytes of the packed stream that start at `position`.
    ///
    /// # Errors
    ///
    /// Data outside `buffer`, or a range outside the packed stream.
    pub fn pack_range(
        &self,
        buffer: &[u8],
        origin: isize,
        position: u64,
        packed: &mut [u8],
    ) -> Result<()> {
        self.check(buffer.len(), origin, position, packed.len())?;
        let from = buffer.as_ptr().wrapping_offset(origin);
        let end = position + packed.len() as u64;
        // SAFETY: all data lies in `buffer`, the range in the stream, and the borrows are disjoint.
        unsafe { self.pack_raw(from, position..end, packed.as_mut_ptr()) };
        Ok(())
    }

    /// Unpacks everything: the slice `packed` must be [`Layout::size`] bytes long. Bytes between
    /// the data are not touched. If pieces of the layout overlap, which MPI forbids for receiving,
    /// the bytes that several pieces share get the value of the last one in the type map.
    ///
    /// # Errors
    ///
    /// Data outside `buffer`, or a wrong length of `packed`.
    #[inline]
    pub fn unpack(&self, packed: &[u8], buffer: &mut [u8], origin: isize) -> Result<()> {
        let steps = self.form.steps();
        if steps.fit(buffer.len(), origin, packed.len()) {
            let to = buffer.as_mut_ptr().wrapping_offset(origin);
            // SAFETY: all data lies in `buffer`, and the borrows are disjoint; unpacking only reads
            // at `packed`.
            unsafe { steps.run::<false>(to, packed.as_ptr().cast_mut()) };
            return Ok(());
        }
        self.unpack_unplanned(packed, buffer, origin)
    }

    #[inline(never)]
    fn unpack_unplanned(&self, packed: &[u8], buffer: &mut [u8], origin: isize) -> Result<()> {
        self.whole(packed.len())?;
        self.unpack_range(packed, 0, buffer, origin)
    }

    /// Unpacks `packed.len()` bytes that belong at `position` of the packed stream. Of overlapping
    /// pieces within the range, the last one in the type map wins.
    ///
    /// # Errors
    ///
    /// Data outside `buffer`, or a range outside the packed stream.
    pub fn unpack_range(
        &self,
        packed: &[u8],
        position: u64,
        buffer: &mut [u8],
        origin: isize,
    ) -> Result<()> {
        self.check(buffer.len(), origin, position, packed.len())?;
        let to = buffer.as_mut_ptr().wrapping_offset(origin);
        let end = position + packed.len() as u64;
        // SAFETY: all data lies in `buffer`, the range in the stream, and the borrows are disjoint.
        unsafe { self.unpack_raw(packed.as_ptr(), position..end, to) };
        Ok(())
    }

    /// As [`Layout::pack_range`], without a check: `origin` is the address that displacements
    /// count from.
    ///
    /// # Safety
    ///
    /// The range lies in the packed stream; its bytes are readable in the layout at `origin` and
    /// writable at `packed`, and the two do not overlap.
    pub unsafe fn pack_raw(&self, origin: *const u8, range: Range<u64>, packed: *mut u8) {
        if self.is_planned(&range) {
            // SAFETY: the caller's promise; packing writes only at `packed`.
            return unsafe { self.form.steps().run::<true>(origin.cast_mut(), packed) };
        }
        if let Some(root) = self.form.root() {
            let user = origin
                .wrapping_offset(self.form.offset() as isize)
                .cast_mut();
            let (low, high) = (range.start as i64, range.end as i64);
            // SAFETY: the caller's promise; packing writes only at `packed`.
            unsafe { Mover::<true>::new(&self.form).range(root, user, low, high, packed) };
        }
    }

    /// As [`Layout::unpack_range`], without a check. Several threads may unpack disjoint ranges
    /// of a layout without overlapping pieces at the same time.
    ///
    /// # Safety
    ///
    /// The range lies in the packed stream; its bytes are readable at `packed` and writable in the
    /// layout at `origin`, and the two do not overlap.
    pub unsafe fn unpack_raw(&self, packed: *const u8, range: Range<u64>, origin: *mut u8) {
        let packed = packed.cast_mut();
        if self.is_planned(&range) {
            // SAFETY: the caller's promise; unpacking writes only in the layout.
            return unsafe { self.form.steps().run::<false>(origin, packed) };
        }
        if let Some(root) = self.form.root() {
            let user = origin.wrapping_offset(self.form.offset() as isize);
            let (low, high) = (range.start as i64, range.end as i64);
            // SAFETY: the caller's promise; unpacking writes only in the layout.
            unsafe { Mover::<false>::new(&self.form).range(root, user, low, high, packed) };
        }
    }

    /// Whether the whole stream is wanted, and there is a plan for it.
    #[inline]
    fn is_planned(&self, range: &Range<u64>) -> bool {
        range.start == 0 && range.end == self.size() && self.form.steps().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::datatype::Datatype;
    use super::super::kernel::InstructionSet;
    use super::*;

    /// However long they are on average; all but short lists, whose branches the processor
    /// remembers, and those that leave every cache.
    #[test]
    #[cfg_attr(miri, ignore = "too much for it")]
    fn without_masks_no_branch_depends_on_the_length_of_a_piece_of_a_long_list() {
        for set in [InstructionSet::Portable, InstructionSet::Avx2] {
            set.limit();
            for (count, longest, is_sorted) in [
                (1000, 16, false),
                (4000, 6, false),
                (20_000, 16, true),
                (65_535, 16, true),
                (70_000, 2, true),
                (70_000, 16, true),
                (3_000_000, 2, true),
                (3_000_000, 16, false),
            ] {
                let lengths: Vec<u64> = (0..count).map(|i| 1 + i * 7919 % 101 % longest).collect();
                let mut end = 0;
                let places: Vec<i64> = lengths
                    .iter()
                    .map(|length| {
                        let at = end;
                        end += *length as i64 + 1 + at % 3;
                        at
                    })
                    .collect();
                let double: Datatype = "double".parse().unwrap();
                let list = double.indexed(&lengths, &places).unwrap();
                let plan = Layout::new(&list, 1).unwrap().form().plan();
                assert_eq!(
                    plan.contains("sorted by length"),
                    is_sorted,
                    "{count}, 1..{longest}: {plan}"
                );
            }
        }
    }
}
