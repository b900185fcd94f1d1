// SPDX-License-Identifier: MIT OR Apache-2.0

//! The bytes of a layout in the order of its stream, given to what fills or empties equal blocks.

use super::super::form::{Form, Node, NodeId};
use super::super::kernel::{Filler, Pieces, Row};
use super::super::offsets::Offsets;

/// What takes the bytes of a layout in the order of its stream (`PACK`), or gives them.
pub(super) trait Sink<const PACK: bool> {
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
    unsafe fn pieces(&mut self, user: *mut u8, pieces: Pieces);
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

    unsafe fn pieces(&mut self, user: *mut u8, pieces: Pieces) {
        // SAFETY: the caller's promise.
        unsafe { Filler::pieces(self, user, pieces.offsets, pieces.starts) }
    }
}

/// Moves all bytes of a node in the order of its stream.
///
/// # Safety
///
/// As for [`Filler::piece`], for all pieces of the node.
pub(super) unsafe fn walk<const PACK: bool>(
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
        Node::Pieces { offsets, starts } => {
            let order = form.order(id);
            let pieces = Pieces {
                offsets,
                starts,
                order,
            };
            // SAFETY: see above.
            unsafe { filler.pieces(user, pieces) }
        }
        Node::Sequence { parts } => {
            for part in parts.iter() {
                // SAFETY: see above.
                unsafe { walk(form, part.child, at(part.offset), filler) };
            }
        }
    }
}
