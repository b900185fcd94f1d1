// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies that fill or empty equal blocks at equal distances one after the other.

use super::super::form::{Form, Node};
use super::super::kernel::{self, Filler};
use super::thresholds::{MUCH, RATIO, SHORT};
use super::walk::walk;

/// Whether filling blocks of `len` bytes with what the other layout describes is faster than
/// going through a buffer.
///
/// ```text
/// both sides have the same blocks         each of them is one move
/// pieces a good deal shorter              few of them have to be cut where a block ends
/// pieces a good deal longer               most of each goes in whole blocks
/// a lot of bytes                          a buffer would take their place in the cache
/// ```
pub(super) fn suits(form: &Form, len: i64) -> bool {
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
pub(super) unsafe fn fill(
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
