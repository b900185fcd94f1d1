// SPDX-License-Identifier: MIT OR Apache-2.0

//! A number of elements of a datatype, ready to move bytes.

use std::ops::Range;
use std::sync::Arc;

use super::canonical::{Form, Node};
use super::construct::Datatype;
use super::copy;
use super::cursor::Cursor;
use super::execute::Mover;
use super::named::Named;
use super::signature::Signature;
use crate::{Error, Result};

/// `count` elements of a datatype, one extent apart: what an MPI call's `(type, count)` means.
///
/// Buffers are slices and an *origin*: the index in the slice of the address that the type's
/// displacements count from. It is the place of the first element's lower bound only if that is 0;
/// it may lie outside the slice, as long as all bytes of data lie within.
#[derive(Clone, Debug)]
pub struct Layout {
    form: Arc<Form>,
    signature: Signature,
}

/// One dense piece of a layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Where it is, in bytes from the origin.
    pub offset: i64,
    /// Bytes.
    pub len: u64,
}

impl Layout {
    /// The layout of `count` elements; commits the type.
    ///
    /// # Errors
    ///
    /// A size or bounds that do not fit into 64 bits.
    pub fn new(datatype: &Datatype, count: u64) -> Result<Layout> {
        let form = datatype.form();
        if count == 1 {
            return Ok(Layout {
                form: form.clone(),
                signature: *datatype.signature(),
            });
        }
        // Lets the constructor check the arithmetic.
        let all = datatype.contiguous(count)?;
        Ok(Layout {
            signature: *all.signature(),
            form: Arc::new(form.repeated(count, datatype.extent())),
        })
    }

    /// The canonical form.
    pub fn form(&self) -> &Form {
        &self.form
    }

    pub(super) fn assembled(form: Arc<Form>, signature: Signature) -> Layout {
        Layout { form, signature }
    }

    /// Bytes of data: the length of the packed stream.
    pub fn size(&self) -> u64 {
        self.form.size()
    }

    /// The sequence of basic elements.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The range of offsets that the data lies in; `0..0` if there is none.
    pub fn bounds(&self) -> Range<i64> {
        match self.form.root() {
            Some(root) => {
                let extent = self.form.extent(root);
                self.form.offset() + extent.low..self.form.offset() + extent.high
            }
            None => 0..0,
        }
    }

    /// Number of segments: pieces without a gap that are as long as can be, in the order of the packed
    /// stream.
    pub fn segment_count(&self) -> u64 {
        self.form.by_segments().segments()
    }

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
                format!("{} elements, {} bytes", to.signature.elements(), to.size()),
                format!(
                    "the source's ({} elements, {} bytes)",
                    self.signature.elements(),
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
        unsafe { copy::copy(self, origin, to, target) }
    }

    fn fits(&self, other: &Layout) -> bool {
        let bytes = || Signature::of_named(Named::Byte).repeat(self.size());
        self.signature == other.signature
            || (self.signature.elements() == self.size()
                || other.signature.elements() == self.size())
                && (self.signature == bytes() || other.signature == bytes())
    }

    /// A cursor at the start of the packed stream.
    pub fn cursor(&self) -> Cursor {
        Cursor::new(self)
    }

    /// The segment with this index, in O(depth · log blocks); `None` behind the last.
    pub fn segment(&self, index: u64) -> Option<Segment> {
        let form = self.form.by_segments();
        if index >= form.segments() {
            return None;
        }
        let mut index = index as i64;
        let mut offset = form.offset();
        let mut id = form.root()?;
        loop {
            match form.node(id) {
                Node::Dense { len } => {
                    let len = *len as u64;
                    return Some(Segment { offset, len });
                }
                Node::Stream { stride, child, .. } => {
                    let each = form.extent(*child).segments;
                    offset += index / each * stride;
                    index %= each;
                    id = *child;
                }
                Node::Blocks { offsets, child } => {
                    let each = form.extent(*child).segments;
                    offset += offsets.get((index / each) as usize);
                    index %= each;
                    id = *child;
                }
                Node::Pieces { offsets, starts } => {
                    let i = index as usize;
                    return Some(Segment {
                        offset: offset + offsets.get(i),
                        len: (starts.get(i + 1) - starts.get(i)) as u64,
                    });
                }
                Node::Sequence { parts } => {
                    let i = parts.partition_point(|part| part.first_segment <= index) - 1;
                    offset += parts[i].offset;
                    index -= parts[i].first_segment;
                    id = parts[i].child;
                }
            }
        }
    }

    /// The index of the segment that holds a byte of the packed stream, and how many bytes of the
    /// segment lie before it, in O(depth · log blocks); `None` behind the end.
    pub fn segment_at(&self, position: u64) -> Option<(u64, u64)> {
        if position >= self.size() {
            return None;
        }
        let form = self.form.by_segments();
        let mut left = position as i64;
        let mut index = 0;
        let mut id = form.root()?;
        loop {
            match form.node(id) {
                Node::Dense { .. } => return Some((index as u64, left as u64)),
                Node::Stream { child, .. } | Node::Blocks { child, .. } => {
                    let one = form.extent(*child);
                    index += left / one.size * one.segments;
                    left %= one.size;
                    id = *child;
                }
                Node::Pieces { starts, .. } => {
                    let piece = starts.last_not_above(left);
                    let skip = left - starts.get(piece);
                    return Some(((index + piece as i64) as u64, skip as u64));
                }
                Node::Sequence { parts } => {
                    let part = &parts[parts.partition_point(|part| part.start <= left) - 1];
                    index += part.first_segment;
                    left -= part.start;
                    id = part.child;
                }
            }
        }
    }

    /// The segments in the order of the packed stream.
    pub fn segments(&self) -> Segments<'_> {
        Segments {
            layout: self,
            next: 0,
        }
    }

    #[inline]
    fn whole(&self, len: usize) -> Result<()> {
        if len as u64 == self.size() {
            return Ok(());
        }
        Err(self.wrong_length(len))
    }

    #[cold]
    fn wrong_length(&self, len: usize) -> Error {
        let allowed = format!("as many as the layout has ({})", self.size());
        Error::argument("the length of the packed bytes", len, allowed)
    }

    /// What packing or unpacking a range needs.
    #[inline]
    pub(super) fn check(
        &self,
        len: usize,
        origin: isize,
        position: u64,
        packed: usize,
    ) -> Result<()> {
        let end = position.checked_add(packed as u64);
        let bounds = self.bounds();
        let low = bounds.start.checked_add(origin as i64);
        let high = bounds.end.checked_add(origin as i64);
        match (end, low, high) {
            (Some(end), Some(low), Some(high))
                if end <= self.size() && low >= 0 && high as u64 <= len as u64 =>
            {
                Ok(())
            }
            _ => self.check_again(len, origin, position, packed),
        }
    }

    /// As [`Layout::check`], for what is wrong and for layouts without data.
    #[cold]
    fn check_again(&self, len: usize, origin: isize, position: u64, packed: usize) -> Result<()> {
        let end = position.checked_add(packed as u64);
        if end.is_none_or(|end| end > self.size()) {
            return Err(Error::argument(
                "the range of packed bytes",
                format!("{packed} bytes at {position}"),
                format!("within the {} bytes of the layout", self.size()),
            ));
        }
        let bounds = self.bounds();
        let low = i128::from(bounds.start) + origin as i128;
        let high = i128::from(bounds.end) + origin as i128;
        if self.size() > 0 && (low < 0 || high > len as i128) {
            return Err(Error::argument(
                "the buffer",
                format!("{len} bytes with the origin at {origin}"),
                format!(
                    "such that offsets {}..{} are inside",
                    bounds.start, bounds.end
                ),
            ));
        }
        Ok(())
    }
}

/// Iterator over the segments of a layout; see [`Layout::segments`].
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    layout: &'a Layout,
    next: u64,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let segment = self.layout.segment(self.next)?;
        self.next += 1;
        Some(segment)
    }

    fn nth(&mut self, n: usize) -> Option<Segment> {
        self.next = self.next.saturating_add(n as u64);
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.layout.segment_count().saturating_sub(self.next);
        let left = usize::try_from(left).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Segments<'_> {}
