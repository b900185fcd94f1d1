// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two layouts as pairs of regular parts.

use std::ops::Range;

use super::super::form::{Form, Node, NodeId};
use super::super::kernel;
use super::joint::Joint;
use super::regular::{Part, Regular};
use super::thresholds::{FEW, MUCH, RATIO, SHORT};
use super::weave::weave;
use super::zip::zip;

/// The same for transpositions, which use up more of each line the more they have at a time.
const WIDE_CHUNK: u64 = 256 << 10;

/// Transpositions of more bytes, block by block, are faster in two steps, each of which has a dense
/// side.
const TRANSPOSED: u64 = 1 << 20;

/// Most regular parts of a layout that are looked at one by one.
const PARTS: usize = 32;

/// Most levels of lists of parts within each other.
const DEPTH: usize = 4;

/// The same bytes of two layouts, regular on both sides.
pub(super) struct Pair {
    pub(super) from_at: i64,
    pub(super) from: Regular,
    pub(super) to_at: i64,
    pub(super) to: Regular,
    pub(super) range: Range<u64>,
}

/// Two layouts as pairs of regular parts, if one of them is regular and can be cut where the parts
/// of the other one end.
pub(super) fn pairs(from: &Form, to: &Form) -> Option<Vec<Pair>> {
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
    pub(super) unsafe fn run(
        &self,
        read: *const u8,
        write: *mut u8,
        whole: u64,
        chunk: &mut u64,
    ) -> bool {
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
