// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether pieces of a layout overlap, and whether the order in which they are written matters.
//!
//! MPI forbids overlapping pieces where data is received, but programs unpack into them, and both
//! MPI libraries let the last entry of the type map win. Loop nests may be interchanged only if no
//! two of their blocks share a byte, so each nest is looked at once; see [`Form::is_free`].
//!
//! Proofs look at the description only. What they do not cover is decided by writing out the pieces
//! if they are few, and counts as overlapping otherwise, which costs speed and nothing else. So
//! does what memory has no room for.

use super::form::{Form, Node, NodeId};
use crate::room;

/// Lists of at most this many entries are interchanged with the streams around them.
pub(super) const FEW: usize = 32;

/// Layouts with at most this many pieces are written out where no proof is found.
const WRITTEN: i64 = 1 << 14;

/// Most nodes that a proof looks at. A node is looked at anew for each way that leads to it.
const PATIENCE: usize = 1 << 16;

/// A stream: the distance, and how many steps from the first to the last.
type Dim = (i64, i64);

/// A range of offsets: the first, and the one behind the last.
type Reach = (i64, i64);

impl Form {
    /// Whether no byte belongs to two pieces, as far as that can be told with little work; `false`
    /// means that some may overlap.
    pub fn is_disjoint(&self) -> bool {
        *self.overlap().is_disjoint.get_or_init(|| {
            self.root()
                .is_none_or(|root| self.disjoint(root, &mut PATIENCE.clone()))
        })
    }

    /// Whether loop nests may be interchanged: blocks of the same nest never share a byte. Entries
    /// of lists outside of nests are moved in the order of the type map anyway.
    pub(super) fn is_free(&self) -> bool {
        *self.overlap().is_free.get_or_init(|| {
            let mut patience = PATIENCE;
            let mut stack: Vec<NodeId> = self.root().into_iter().collect();
            let Ok(mut seen) = room::filled(false, self.nodes().len()) else {
                return false;
            };
            while let Some(id) = stack.pop() {
                if std::mem::replace(&mut seen[id as usize], true) {
                    continue;
                }
                let inner = match self.node(id) {
                    Node::Stream { .. } => {
                        let inner = self.innermost(id, |_, _| {});
                        if self.entries(inner) <= FEW {
                            if !self.disjoint(id, &mut patience) {
                                return false;
                            }
                            continue;
                        }
                        // Longer lists are moved one after the other.
                        inner
                    }
                    _ => id,
                };
                let pushed = match self.node(inner) {
                    Node::Blocks { child, .. } => room::push(&mut stack, *child),
                    Node::Sequence { parts } => {
                        room::extend(&mut stack, parts.iter().map(|part| part.child))
                    }
                    Node::Dense { .. } | Node::Pieces { .. } | Node::Stream { .. } => Ok(()),
                };
                if pushed.is_err() {
                    return false;
                }
            }
            true
        })
    }

    /// Follows nested streams, and calls `each` with strides and counts.
    fn innermost(&self, id: NodeId, mut each: impl FnMut(i64, i64)) -> NodeId {
        let mut at = id;
        while let Node::Stream {
            count,
            stride,
            child,
        } = self.node(at)
        {
            each(*stride, *count);
            at = *child;
        }
        at
    }

    /// Entries of a list; everything else is one.
    fn entries(&self, id: NodeId) -> usize {
        match self.node(id) {
            Node::Dense { .. } | Node::Stream { .. } => 1,
            Node::Blocks { offsets, .. } | Node::Pieces { offsets, .. } => offsets.len(),
            Node::Sequence { parts } => parts.len(),
        }
    }

    /// Whether no two pieces of a node overlap: by a proof, or written out.
    fn disjoint(&self, id: NodeId, patience: &mut usize) -> bool {
        if self.proven(id, &[], patience).is_some() {
            return true;
        }
        if self.extent(id).segments > WRITTEN {
            return false;
        }
        let Ok(mut pieces) = room::list(self.extent(id).segments) else {
            return false;
        };
        // No more than there is room for.
        self.write_out(id, 0, &mut pieces);
        apart(pieces)
    }

    fn write_out(&self, id: NodeId, at: i64, pieces: &mut Vec<Reach>) {
        match self.node(id) {
            Node::Dense { len } => pieces.push((at, at + len)),
            Node::Stream {
                count,
                stride,
                child,
            } => (0..*count).for_each(|i| self.write_out(*child, at + i * stride, pieces)),
            Node::Blocks { offsets, child } => {
                (0..offsets.len()).for_each(|i| self.write_out(*child, at + offsets.get(i), pieces))
            }
            Node::Pieces { offsets, starts } => pieces.extend((0..offsets.len()).map(|i| {
                let start = at + offsets.get(i);
                (start, start + starts.get(i + 1) - starts.get(i))
            })),
            Node::Sequence { parts } => parts
                .iter()
                .for_each(|part| self.write_out(part.child, at + part.offset, pieces)),
        }
    }

    /// Where a node that is repeated along `dims` lies, if none of its pieces overlap.
    ///
    /// The shorter strides repeat each entry of a list, the others the list as a whole: rows of a
    /// matrix whose columns are repeated are apart, although the columns are interleaved.
    fn proven(&self, id: NodeId, dims: &[Dim], patience: &mut usize) -> Option<Reach> {
        *patience = patience.checked_sub(1)?;
        let mut dims = dims.to_vec();
        let inner = self.innermost(id, |stride, count| dims.push((stride, count - 1)));
        dims.sort_unstable_by_key(|dim| dim.0.unsigned_abs());
        let own = self.extent(inner);
        let span = (own.high - own.low) as u64;
        let shorter = dims.partition_point(|dim| dim.0.unsigned_abs() < span);
        let (within, around) = dims.split_at(shorter);
        let list = |entries: &mut dyn Iterator<Item = (i64, i64, i64)>| {
            let (before, behind) = sweep(within);
            let reach = |(at, low, high)| (at + low + before, at + high + behind);
            room::gather(entries.map(reach)).is_ok_and(apart)
        };
        let is_apart = match self.node(inner) {
            Node::Dense { .. } => within.is_empty(),
            // It was followed to its end.
            Node::Stream { .. } => false,
            Node::Blocks { offsets, child } => {
                let (low, high) = self.one(*child);
                self.proven(*child, within, patience)?;
                list(&mut (0..offsets.len()).map(|i| (offsets.get(i), low, high)))
            }
            Node::Pieces { offsets, starts } => {
                let len = |i: usize| starts.get(i + 1) - starts.get(i);
                let longest = (0..offsets.len()).map(len).max().unwrap_or(0);
                around_of((0, longest), within)?;
                list(&mut (0..offsets.len()).map(|i| (offsets.get(i), 0, len(i))))
            }
            Node::Sequence { parts } => {
                let children = parts.iter().map(|part| part.child);
                let mut children: Vec<NodeId> = room::gather(children).ok()?;
                children.sort_unstable();
                children.dedup();
                for child in children {
                    self.proven(child, within, patience)?;
                }
                list(&mut parts.iter().map(|part| {
                    let (low, high) = self.one(part.child);
                    (part.offset, low, high)
                }))
            }
        };
        if !is_apart {
            return None;
        }
        let (before, behind) = sweep(within);
        around_of((own.low + before, own.high + behind), around)
    }

    fn one(&self, id: NodeId) -> Reach {
        let one = self.extent(id);
        (one.low, one.high)
    }
}

/// How far below and above its place something reaches that is repeated.
fn sweep(dims: &[Dim]) -> (i64, i64) {
    dims.iter().fold((0, 0), |(low, high), (stride, steps)| {
        let last = stride * steps;
        (low + last.min(0), high + last.max(0))
    })
}

/// Where something lies that is repeated along `dims`, the shortest strides first, if none of it
/// overlaps.
fn around_of((mut low, mut high): Reach, dims: &[Dim]) -> Option<Reach> {
    for &(stride, steps) in dims {
        if stride.unsigned_abs() < (high - low) as u64 {
            return None;
        }
        let last = stride * steps;
        (low, high) = (low + last.min(0), high + last.max(0));
    }
    Some((low, high))
}

/// Whether blocks of `len` bytes that are repeated along `dims` (strides and counts) are apart.
pub(super) fn blocks_apart(len: i64, dims: &[(i64, i64)]) -> bool {
    match dims {
        [] => true,
        [(stride, _)] => stride.unsigned_abs() >= len as u64,
        _ => {
            let mut dims: Vec<Dim> = dims.iter().map(|dim| (dim.0, dim.1 - 1)).collect();
            dims.sort_unstable_by_key(|dim| dim.0.unsigned_abs());
            around_of((0, len), &dims).is_some()
        }
    }
}

/// Whether ranges do not overlap.
fn apart(mut ranges: Vec<Reach>) -> bool {
    let ascending = |ranges: &[Reach]| ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0);
    ascending(&ranges) || {
        ranges.sort_unstable();
        ascending(&ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Datatype;

    fn form(text: &str) -> super::Form {
        text.parse::<Datatype>().unwrap().commit().unwrap().clone()
    }

    #[test]
    fn interleaved_pieces_are_apart() {
        for text in [
            // Transposition, columns that are lists, fields of different lengths.
            "contiguous(512,resized(0,8,vector(512,1,512,double)))",
            "contiguous(500,resized(0,8,indexed_block(1,[0,500,1500],double)))",
            "contiguous(400,resized(0,8,hindexed([3,1,8],[0,4000,9000],byte)))",
            "contiguous(9,resized(0,8,hindexed([3,1,2],[0,4,21],byte)))",
            "hvector(100000,1,-16,resized(0,8,indexed_block(1,[0,400000],double)))",
            "struct([1,1],[0,8],[vector(50,1,2,double),vector(50,1,2,double)])",
        ] {
            assert!(form(text).is_disjoint(), "{text}");
            assert!(form(text).is_free(), "{text}");
        }
    }

    #[test]
    fn shared_bytes_are_noticed_where_order_matters() {
        for text in [
            "hvector(3,1,4,double)",
            "hvector(3,1,0,double)",
            "hvector(30000,1,7,double)",
            "contiguous(512,resized(0,8,vector(512,1,511,double)))",
            "contiguous(500,resized(0,8,indexed_block(1,[0,499,1500],double)))",
            "contiguous(9,resized(0,8,hindexed([3,1,2],[0,3,18],byte)))",
        ] {
            assert!(!form(text).is_disjoint(), "{text}");
            assert!(!form(text).is_free(), "{text}");
        }
        // A list outside of streams is moved in order.
        let list = form("hindexed([3,1,2],[0,2,1],byte)");
        assert!(!list.is_disjoint() && list.is_free());
    }
}
