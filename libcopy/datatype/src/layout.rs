// SPDX-License-Identifier: MIT OR Apache-2.0

//! A number of elements of a datatype, ready to move bytes.

use std::alloc::{Layout as Block, handle_alloc_error};
use std::ops::Range;
use std::sync::Arc;

use super::datatype::Datatype;
use super::form::{Form, Node};
use super::signature::Signature;
use crate::room::NoRoom;
use crate::{Error, Result};

/// `count` elements of a datatype, one extent apart: what an MPI call's `(type, count)` means.
///
/// Buffers are slices and an *origin*: the index in the slice of the address that the type's
/// displacements count from. It is the place of the first element's lower bound only if that is 0;
/// it may lie outside the slice, as long as all bytes of data lie within.
#[derive(Clone, Debug)]
pub struct Layout {
    pub(super) form: Arc<Form>,
    signature: Signature,
}

/// The shortest length and the greatest common divisor of two sets of lengths; of one, if the other
/// is (0, 0): empty.
fn both(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    let (mut x, mut y) = (a.1, b.1);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (if a.0 == 0 { b.0 } else { a.0.min(b.0) }, x)
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
    /// A size or bounds that do not fit into 64 bits; [`Error::NoRoom`].
    pub fn new(datatype: &Datatype, count: u64) -> Result<Layout> {
        let form = datatype.form()?;
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
            form: Arc::new(form.repeated(count, datatype.extent())?),
        })
    }

    /// The canonical form.
    pub fn form(&self) -> &Form {
        &self.form
    }

    pub(super) fn of_form(form: Arc<Form>, signature: Signature) -> Layout {
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
        self.form.bounds()
    }

    /// The form that enumerates segments. Who asks for a segment has no error to give: without room
    /// for it the process ends, as at any allocation of the standard library.
    pub(super) fn by_segments(&self) -> &Form {
        match self.form.by_segments() {
            Ok(form) => form,
            Err(NoRoom { bytes }) => {
                let list = Block::array::<u8>(usize::try_from(bytes).unwrap_or(usize::MAX));
                handle_alloc_error(list.unwrap_or(Block::new::<u8>()))
            }
        }
    }

    /// Number of segments: pieces without a gap that are as long as can be, in the order of the
    /// packed stream.
    pub fn segment_count(&self) -> u64 {
        self.by_segments().segments()
    }

    /// The length of the shortest segment and the greatest number that divides the lengths of all
    /// segments, in bytes; (0, 0) without data. In O(nodes and list entries of the form), however
    /// often these are repeated.
    pub fn segment_lengths(&self) -> (u64, u64) {
        let mut found: Vec<(u64, u64)> = Vec::new();
        for node in self.by_segments().nodes() {
            let of = |id: &u32| found[*id as usize];
            let one = match node {
                Node::Dense { len } => (*len as u64, *len as u64),
                Node::Stream { child, .. } | Node::Blocks { child, .. } => of(child),
                Node::Pieces { starts, .. } => (1..starts.len())
                    .map(|i| (starts.get(i) - starts.get(i - 1)) as u64)
                    .map(|len| (len, len))
                    .fold((0, 0), both),
                Node::Sequence { parts } => {
                    parts.iter().map(|part| of(&part.child)).fold((0, 0), both)
                }
            };
            found.push(one);
        }
        found.last().copied().unwrap_or((0, 0))
    }

    /// The segment with this index, in O(depth · log blocks); `None` behind the last.
    pub fn segment(&self, index: u64) -> Option<Segment> {
        let form = self.by_segments();
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
        let form = self.by_segments();
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
    pub(super) fn whole(&self, len: usize) -> Result<()> {
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
