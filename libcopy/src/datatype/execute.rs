// SPDX-License-Identifier: MIT OR Apache-2.0

//! Walks a canonical form and moves the bytes of any range of the packed stream.

use super::canonical::{Form, Node, NodeId};
use super::kernel;

/// Which way bytes go.
pub(super) trait Direction {
    /// Moves `count` blocks of `len` bytes between a layout, `stride` apart, and the packed
    /// stream, where they are adjacent.
    ///
    /// # Safety
    ///
    /// As for [`kernel::blocks`].
    unsafe fn blocks(user: *mut u8, stride: isize, packed: *mut u8, len: usize, count: usize);
}

/// From a layout to the packed stream; writes nothing through the user's pointer.
pub(super) struct Pack;

/// From the packed stream to a layout; writes nothing through the packed pointer.
pub(super) struct Unpack;

impl Direction for Pack {
    #[inline]
    unsafe fn blocks(user: *mut u8, stride: isize, packed: *mut u8, len: usize, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { kernel::blocks(packed, len as isize, user, stride, len, count) }
    }
}

impl Direction for Unpack {
    #[inline]
    unsafe fn blocks(user: *mut u8, stride: isize, packed: *mut u8, len: usize, count: usize) {
        // SAFETY: the caller's promise.
        unsafe { kernel::blocks(user, stride, packed, len as isize, len, count) }
    }
}

/// Moves the bytes from `low` up to `high` of a node's packed stream. `user` is the node's
/// origin, `packed` is where byte `low` is.
///
/// # Safety
///
/// The bytes of that range are valid for reading or writing at both ends, and the ends do not
/// overlap; `0 <= low <= high <= size`.
pub(super) unsafe fn range<D: Direction>(
    form: &Form,
    id: NodeId,
    user: *mut u8,
    low: i64,
    high: i64,
    packed: *mut u8,
) {
    if low >= high {
        return;
    }
    let at = |offset: i64| user.wrapping_offset(offset as isize);
    // Where a byte of the stream goes.
    let to = |position: i64| packed.wrapping_offset((position - low) as isize);
    // SAFETY (all blocks below): a node's packed stream is that of its children, one after the
    // other, so each call gets a part of the caller's range and the places that belong to it.
    match form.node(id) {
        // SAFETY: see above.
        Node::Dense { .. } => unsafe { D::blocks(at(low), 0, packed, (high - low) as usize, 1) },
        Node::Stream {
            count,
            stride,
            child,
        } => {
            if low == 0 && high == form.extent(id).size {
                // SAFETY: see above.
                return unsafe { whole_stream::<D>(form, *child, *count, *stride, user, packed) };
            }
            let size = form.extent(*child).size;
            let (mut i, skip) = (low / size, low % size);
            let mut position = low;
            if skip > 0 {
                let end = high.min((i + 1) * size);
                // SAFETY: see above.
                unsafe {
                    range::<D>(form, *child, at(i * stride), skip, end - i * size, packed);
                }
                position = end;
                i += 1;
            }
            let whole = (high - position) / size;
            if whole > 0 {
                let (user, packed) = (at(i * stride), to(position));
                // SAFETY: see above.
                unsafe { whole_stream::<D>(form, *child, whole, *stride, user, packed) };
                position += whole * size;
                i += whole;
            }
            if position < high {
                // SAFETY: see above.
                unsafe {
                    let rest = high - position;
                    range::<D>(form, *child, at(i * stride), 0, rest, to(position));
                }
            }
        }
        Node::Blocks { offsets, child } => {
            let size = form.extent(*child).size;
            let mut position = low;
            while position < high {
                let (i, skip) = (position / size, position % size);
                let end = high.min((i + 1) * size);
                let user = at(offsets.get(i as usize));
                // SAFETY: see above.
                unsafe { range::<D>(form, *child, user, skip, end - i * size, to(position)) };
                position = end;
            }
        }
        Node::Pieces { offsets, starts } => {
            let mut i = starts.last_not_above(low);
            let mut position = low;
            while position < high {
                let (start, end) = (starts.get(i), starts.get(i + 1).min(high));
                let user = at(offsets.get(i) + (position - start));
                // SAFETY: see above.
                unsafe { D::blocks(user, 0, to(position), (end - position) as usize, 1) };
                position = end;
                i += 1;
            }
        }
        Node::Sequence { parts } => {
            let mut i = parts.partition_point(|part| part.start <= low) - 1;
            let mut position = low;
            while position < high {
                let part = &parts[i];
                let size = form.extent(part.child).size;
                let end = high.min(part.start + size);
                // SAFETY: see above.
                unsafe {
                    range::<D>(
                        form,
                        part.child,
                        at(part.offset),
                        position - part.start,
                        end - part.start,
                        to(position),
                    );
                }
                position = end;
                i += 1;
            }
        }
    }
}

/// Moves `count` whole children.
///
/// # Safety
///
/// As for [`range`].
unsafe fn whole_stream<D: Direction>(
    form: &Form,
    child: NodeId,
    count: i64,
    stride: i64,
    user: *mut u8,
    packed: *mut u8,
) {
    let size = form.extent(child).size;
    if let Node::Dense { len } = form.node(child) {
        // SAFETY: the caller's promise.
        return unsafe { D::blocks(user, stride as isize, packed, *len as usize, count as usize) };
    }
    for i in 0..count {
        let user = user.wrapping_offset((i * stride) as isize);
        let packed = packed.wrapping_offset((i * size) as isize);
        // SAFETY: the caller's promise.
        unsafe { range::<D>(form, child, user, 0, size, packed) };
    }
}
