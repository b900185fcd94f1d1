// SPDX-License-Identifier: MIT OR Apache-2.0

//! Members of structs that are nests of dense blocks.
//!
//! Their nodes are made at once: the general way remembers each type and its uses, and keeps a list
//! for it, which costs more than all else where each member has a type of its own.
//!
//! Many dense or small members are written as arrays of pieces. Their nodes (a hash look-up per
//! level of a nest) would be written out as a list of pieces in the end; what is regular in that is
//! found in the arrays as well, in passes over numbers. Whether members are so is seen from a
//! sample of them.

use super::super::datatype::{Contents, Datatype, Members, fastest_first};
use super::super::form::NodeId;
use super::arena::{Arena, Placed};
use super::lists::Number;
use super::long::List;
use super::peel::peel;
use crate::room;

/// Fewest members.
const ENOUGH: usize = 256;

/// Members that are looked at before all of them are written out.
const SAMPLE: usize = 16;

/// Most pieces of a member, and most bytes of a piece on average; see [`Arena::flattened`].
const PIECES: u64 = 16;
const BYTES: u64 = 128;

/// Most dimensions of a nest.
const DIMS: usize = 4;

/// Dense blocks, repeated along dimensions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Nest {
    /// Where the first block is.
    at: i64,
    /// Bytes of a block; none if there is no data.
    len: i64,
    /// Counts and strides, the innermost first; the counts are at least 2.
    dims: [(u64, i64); DIMS],
    used: usize,
    /// Blocks.
    pieces: u64,
}

impl Nest {
    /// A block of `len` bytes.
    fn dense(at: i64, len: i64) -> Nest {
        Nest {
            at,
            len,
            dims: [(1, 0); DIMS],
            used: 0,
            pieces: 1,
        }
    }

    /// Repeats it; `None` if it has too many dimensions.
    #[inline]
    fn repeat(&mut self, count: u64, stride: i64) -> Option<()> {
        match count {
            0 => self.len = 0,
            1 => {}
            _ if self.used == 0 && stride == self.len => {
                self.len = self.len.wrapping_mul(count as i64);
            }
            _ => {
                self.pieces = self.pieces.checked_mul(count)?;
                *self.dims.get_mut(self.used)? = (count, stride);
                self.used += 1;
            }
        }
        Some(())
    }

    /// The member of a struct: `length` of a type at a displacement.
    #[inline]
    fn of(length: u64, displacement: i64, child: &Datatype) -> Option<Nest> {
        let (inner, at) = peel(child);
        // Sizes and bounds were checked when the type was made.
        let offset = displacement.wrapping_add(at);
        let leaf = |datatype: &Datatype| {
            let (named, at) = peel(datatype);
            let is_dense = matches!(named.contents(), Contents::Named(_))
                && named.size() == named.true_extent() as u64;
            is_dense.then(|| (at, named.size() as i64, datatype.extent()))
        };
        let mut nest = match inner.contents() {
            Contents::Named(_) => {
                let (at, len, _) = leaf(inner)?;
                Nest::dense(offset.wrapping_add(at), len)
            }
            Contents::Contiguous { count, child } => {
                let (at, len, extent) = leaf(child)?;
                let mut nest = Nest::dense(offset.wrapping_add(at), len);
                nest.repeat(*count, extent)?;
                nest
            }
            Contents::Vector {
                count,
                blocklength,
                stride,
                child,
            } => {
                let (at, len, extent) = leaf(child)?;
                let mut nest = Nest::dense(offset.wrapping_add(at), len);
                nest.repeat(*blocklength, extent)?;
                nest.repeat(*count, stride.wrapping_mul(extent))?;
                nest
            }
            Contents::Hvector {
                count,
                blocklength,
                stride,
                child,
            } => {
                let (at, len, extent) = leaf(child)?;
                let mut nest = Nest::dense(offset.wrapping_add(at), len);
                nest.repeat(*blocklength, extent)?;
                nest.repeat(*count, *stride)?;
                nest
            }
            Contents::Subarray {
                sizes,
                subsizes,
                starts,
                order,
                child,
            } => {
                let (at, len, mut stride) = leaf(child)?;
                let mut nest = Nest::dense(offset.wrapping_add(at), len);
                for d in fastest_first(sizes.len(), *order) {
                    nest.at = nest
                        .at
                        .wrapping_add((starts[d] as i64).wrapping_mul(stride));
                    nest.repeat(subsizes[d], stride)?;
                    stride = stride.wrapping_mul(sizes[d] as i64);
                }
                nest
            }
            _ => return None,
        };
        nest.repeat(length, child.extent())?;
        Some(nest)
    }

    /// Calls `piece` with the place of each block, in the order of the type map.
    #[inline]
    fn each(&self, mut piece: impl FnMut(i64)) {
        match self.used {
            0 => piece(self.at),
            1 => {
                let (count, stride) = self.dims[0];
                for i in 0..count as i64 {
                    piece(self.at.wrapping_add(i.wrapping_mul(stride)));
                }
            }
            2 => {
                let ((count, stride), (outer, step)) = (self.dims[0], self.dims[1]);
                for k in 0..outer as i64 {
                    let at = self.at.wrapping_add(k.wrapping_mul(step));
                    for i in 0..count as i64 {
                        piece(at.wrapping_add(i.wrapping_mul(stride)));
                    }
                }
            }
            _ => {
                for n in 0..self.pieces {
                    let (mut at, mut rest) = (self.at, n);
                    for &(count, stride) in &self.dims[..self.used] {
                        at = at.wrapping_add(((rest % count) as i64).wrapping_mul(stride));
                        rest /= count;
                    }
                    piece(at);
                }
            }
        }
    }
}

/// The members of a struct: lengths, displacements, types.
struct Lists<'a>(&'a [u64], &'a [i64], &'a Members);

impl Lists<'_> {
    /// A member that is a small nest.
    fn nest(&self, i: usize, child: &Datatype) -> Option<Nest> {
        let nest = Nest::of(self.0[i], self.1[i], child);
        nest.filter(|nest| nest.pieces <= PIECES)
    }

    /// Whether some members, spread evenly, are dense, or small nests of short blocks.
    fn is_promising(&self) -> bool {
        let n = self.0.len();
        let (mut bytes, mut pieces) = (0u64, 0);
        for k in 0..SAMPLE {
            let i = k * (n - 1) / (SAMPLE - 1);
            let Some(nest) = self.2.get(i).and_then(|child| self.nest(i, child)) else {
                return false;
            };
            bytes = bytes.saturating_add((nest.len as u64).saturating_mul(nest.pieces));
            pieces += nest.pieces;
        }
        pieces == SAMPLE as u64 || bytes <= BYTES * pieces
    }

    /// Where the first byte is, and the pieces.
    fn list<N: Number, S: Number>(&self) -> room::Result<Option<(i64, List<N, S>)>> {
        let n = self.0.len();
        let mut origin = None;
        let mut offsets: Vec<N> = room::list(2 * n)?;
        let mut starts: Vec<S> = room::list(2 * n + 1)?;
        let mut total = S::default();
        starts.push(total);
        for (i, child) in self.2.iter().enumerate() {
            let Some(nest) = self.nest(i, child) else {
                return Ok(None);
            };
            // None of the lists grows below.
            let (most, pieces) = (offsets.capacity(), nest.pieces as usize);
            if most - offsets.len() < pieces {
                room::reserve(&mut offsets, most.max(pieces))?;
                room::reserve(&mut starts, most.max(pieces) + 1)?;
            }
            if nest.len == 0 {
                continue;
            }
            let origin = *origin.get_or_insert(nest.at);
            let len = S::of(nest.len);
            nest.each(|at| {
                offsets.push(N::of(at.wrapping_sub(origin)));
                total = total.plus(len);
                starts.push(total);
            });
        }
        Ok(origin.map(|origin| (origin, List::joined(offsets, starts))))
    }

    /// The pieces as a node, and where it is.
    fn node<N: Number, S: Number>(&self, arena: &mut Arena) -> room::Result<Option<Placed>> {
        match self.list::<N, S>()? {
            Some((origin, list)) => Ok(Some((origin, arena.long(list, None)?))),
            None => Ok(None),
        }
    }
}

/// The member of a struct that was placed last, at 0, and its node.
pub(super) type Last = Option<(Nest, NodeId)>;

/// A member of a struct as a node, if it is a nest with data.
pub(super) fn placed(
    arena: &mut Arena,
    last: &mut Last,
    (length, displacement, child): (u64, i64, &Datatype),
) -> room::Result<Option<Placed>> {
    let nest = Nest::of(length, displacement, child).filter(|nest| nest.len > 0);
    let Some(nest) = nest else {
        return Ok(None);
    };
    let shape = Nest { at: 0, ..nest };
    let id = match last {
        Some((known, id)) if *known == shape => *id,
        _ => {
            let dims = &nest.dims[..nest.used];
            let dense = arena.dense(nest.len)?;
            let id = dims
                .iter()
                .try_fold(dense, |id, &(n, stride)| arena.stream(n as i64, stride, id))?;
            *last = Some((shape, id));
            id
        }
    };
    Ok(Some((nest.at, id)))
}

/// The pieces of a struct as one node, if it has many members that are dense or small nests.
pub(super) fn written_out(
    arena: &mut Arena,
    datatype: &Datatype,
    offset: i64,
) -> room::Result<Option<Placed>> {
    let Contents::Struct {
        blocklengths,
        displacements,
        children,
    } = datatype.contents()
    else {
        return Ok(None);
    };
    let members = Lists(blocklengths, displacements, children);
    if children.len() < ENOUGH || !members.is_promising() {
        return Ok(None);
    }
    let narrow = |value: i64| i32::try_from(value).is_ok();
    let node = if !narrow(datatype.size() as i64) {
        members.node::<i64, i64>(arena)?
    } else if !narrow(datatype.true_extent()) {
        members.node::<i64, i32>(arena)?
    } else {
        members.node::<i32, i32>(arena)?
    };
    Ok(node.map(|(origin, id)| (offset.wrapping_add(origin), id)))
}
