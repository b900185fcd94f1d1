// SPDX-License-Identifier: MIT OR Apache-2.0

//! A canonical form as words, for a peer that has to know another process's layout.
//!
//! A few words for anything regular, whatever the number of its pieces; lists of offsets only where
//! the layout is irregular. What comes from a peer is checked completely before anything is moved
//! by it.

use std::sync::Arc;

use super::form::{Extent, Form, Node, NodeId, Part};
use super::layout::Layout;
use super::named::Named;
use super::offsets::Offsets;
use super::plan::assembled;
use super::signature::Signature;
use crate::{Error, Result, room};

const DENSE: u64 = 1;
const STREAM: u64 = 2;
const BLOCKS: u64 = 3;
const PIECES: u64 = 4;
const SEQUENCE: u64 = 5;

/// Levels that a form from a peer may have. Each level but the innermost at least doubles the
/// pieces, or is a sequence around one that does, so that no form that is made of a datatype comes
/// near this; copying recurses as deep as a form is.
const DEEPEST: u32 = 256;

/// Set in the length of a list whose offsets have four bytes each.
const NARROW: u64 = 1 << 63;

fn put(words: &mut Vec<u64>, list: &Offsets) -> room::Result<()> {
    match list {
        Offsets::Narrow(list) => {
            room::push(words, list.len() as u64 | NARROW)?;
            let pairs = list.chunks(2).map(|pair| {
                let high = pair.get(1).copied().unwrap_or(0);
                u64::from(pair[0] as u32) | u64::from(high as u32) << 32
            });
            room::extend(words, pairs)
        }
        Offsets::Wide(list) => {
            room::push(words, list.len() as u64)?;
            room::extend(words, list.iter().map(|&offset| offset as u64))
        }
    }
}

/// What is left to read.
struct Words<'a>(&'a [u64]);

fn damaged(what: &'static str, value: u64) -> Error {
    Error::Corrupt { what, value }
}

impl Words<'_> {
    fn next(&mut self) -> Result<u64> {
        let (first, rest) = self
            .0
            .split_first()
            .ok_or(damaged("the length of a layout", 0))?;
        self.0 = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<i64> {
        Ok(self.next()? as i64)
    }

    /// A node that was read before.
    fn child(&mut self, known: usize) -> Result<NodeId> {
        match self.next()? {
            id if id < known as u64 => Ok(id as NodeId),
            id => Err(damaged("a node of a layout", id)),
        }
    }

    fn list(&mut self) -> Result<Offsets> {
        let head = self.next()?;
        let narrow = head & NARROW != 0;
        let len = head & !NARROW;
        let words = if narrow { len.div_ceil(2) } else { len };
        if len == 0 || words > self.0.len() as u64 {
            return Err(damaged("the length of a list", head));
        }
        let (these, rest) = self.0.split_at(words as usize);
        self.0 = rest;
        Ok(if narrow {
            let both = these.iter().flat_map(|w| [*w as i32, (*w >> 32) as i32]);
            let mut list = room::list(len)?;
            list.extend(both.take(len as usize));
            Offsets::Narrow(Arc::new(list))
        } else {
            Offsets::Wide(Arc::new(room::gather(these.iter().map(|w| *w as i64))?))
        })
    }
}

/// Bounds and sizes of children that are put together.
struct Sum(Extent);

impl Sum {
    fn add(&mut self, child: &Extent, offset: i64, times: i64) -> Option<()> {
        let all = &mut self.0;
        all.size = all.size.checked_add(child.size.checked_mul(times)?)?;
        all.segments = all
            .segments
            .checked_add(child.segments.checked_mul(times)?)?;
        all.low = all.low.min(child.low.checked_add(offset)?);
        all.high = all.high.max(child.high.checked_add(offset)?);
        Some(())
    }
}

/// Size and bounds of a node; `None` if it is none.
fn extent(node: &Node, known: &[Extent]) -> Option<Extent> {
    let mut sum = Sum(Extent {
        size: 0,
        segments: 0,
        low: 0,
        high: 0,
    });
    match node {
        Node::Dense { len } => {
            let one = Extent {
                size: (*len >= 1).then_some(*len)?,
                segments: 1,
                low: 0,
                high: *len,
            };
            return Some(one);
        }
        Node::Stream {
            count,
            stride,
            child,
        } => {
            let child = known[*child as usize];
            let last = count.checked_sub(1).filter(|steps| *steps >= 1)?;
            let last = last.checked_mul(*stride)?;
            sum.add(&child, 0, *count)?;
            sum.add(&child, last, 0)?;
        }
        Node::Blocks { offsets, child } => {
            let child = known[*child as usize];
            (offsets.get(0) == 0).then_some(())?;
            for i in 0..offsets.len() {
                sum.add(&child, offsets.get(i), 1)?;
            }
        }
        Node::Pieces { offsets, starts } => {
            let whole = starts.len() == offsets.len() + 1;
            (whole && offsets.get(0) == 0 && starts.get(0) == 0).then_some(())?;
            for i in 0..offsets.len() {
                let len = starts.get(i + 1).checked_sub(starts.get(i))?;
                let one = Extent {
                    size: (len >= 1).then_some(len)?,
                    segments: 1,
                    low: 0,
                    high: len,
                };
                sum.add(&one, offsets.get(i), 1)?;
            }
        }
        Node::Sequence { parts } => {
            for part in parts.iter() {
                let right = part.start == sum.0.size && part.first_segment == sum.0.segments;
                right.then_some(())?;
                sum.add(&known[part.child as usize], part.offset, 1)?;
            }
            (parts.len() >= 2 && parts[0].offset == 0).then_some(())?;
        }
    }
    Some(sum.0)
}

/// Levels below a node and including it.
fn depth(node: &Node, known: &[u32]) -> u32 {
    let below = match node {
        Node::Dense { .. } | Node::Pieces { .. } => 0,
        Node::Stream { child, .. } | Node::Blocks { child, .. } => known[*child as usize],
        Node::Sequence { parts } => {
            let parts = parts.iter().map(|part| known[part.child as usize]);
            parts.max().unwrap_or(0)
        }
    };
    below + 1
}

impl Form {
    /// The form as words, which [`Form::from_words`] understands: a few for each node, and lists of
    /// offsets where the layout is irregular. Equal forms have equal words.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] where memory has no room for the words.
    pub fn to_words(&self) -> Result<Vec<u64>> {
        let mut words = vec![self.offset() as u64];
        let to = &mut words;
        for node in self.nodes() {
            match node {
                Node::Dense { len } => room::extend(to, [DENSE, *len as u64])?,
                Node::Stream {
                    count,
                    stride,
                    child,
                } => {
                    let numbers = [STREAM, *count as u64, *stride as u64, u64::from(*child)];
                    room::extend(to, numbers)?;
                }
                Node::Blocks { offsets, child } => {
                    room::extend(to, [BLOCKS, u64::from(*child)])?;
                    put(to, offsets)?;
                }
                Node::Pieces { offsets, starts } => {
                    room::push(to, PIECES)?;
                    put(to, offsets)?;
                    put(to, starts)?;
                }
                Node::Sequence { parts } => {
                    room::extend(to, [SEQUENCE, parts.len() as u64])?;
                    room::reserve(to, 2 * parts.len())?;
                    for part in parts.iter() {
                        to.extend([part.offset as u64, u64::from(part.child)]);
                    }
                }
            }
        }
        Ok(words)
    }

    /// The form that these words are.
    ///
    /// # Errors
    ///
    /// Words that are no form, one whose size or bounds do not fit into 64 bits, or one that is
    /// nested more than 256 levels deep: forms of datatypes never are.
    ///
    /// ```
    /// use libcopy_datatype::canonical::Form;
    /// use libcopy_datatype::{Datatype, Layout, Named};
    ///
    /// let column = Datatype::named(Named::Double).vector(1000, 1, 20)?;
    /// let words = column.commit()?.to_words()?;
    /// assert_eq!(words.len(), 7);
    /// let layout = Layout::from_form(Form::from_words(&words)?);
    /// assert_eq!(layout.segment_count(), 1000);
    /// # Ok::<(), libcopy_datatype::Error>(())
    /// ```
    pub fn from_words(words: &[u64]) -> Result<Form> {
        let mut words = Words(words);
        let offset = words.number()?;
        let (mut nodes, mut extents, mut depths) = (Vec::new(), Vec::new(), Vec::new());
        while !words.0.is_empty() {
            let known = nodes.len();
            let node = match words.next()? {
                DENSE => Node::Dense {
                    len: words.number()?,
                },
                STREAM => Node::Stream {
                    count: words.number()?,
                    stride: words.number()?,
                    child: words.child(known)?,
                },
                BLOCKS => Node::Blocks {
                    child: words.child(known)?,
                    offsets: words.list()?,
                },
                PIECES => Node::Pieces {
                    offsets: words.list()?,
                    starts: words.list()?,
                },
                SEQUENCE => {
                    let len = words.next()?;
                    if len > words.0.len() as u64 / 2 {
                        return Err(damaged("the length of a list", len));
                    }
                    let (mut start, mut first_segment) = (0i64, 0i64);
                    let mut parts = room::list(len)?;
                    for _ in 0..len {
                        let offset = words.number()?;
                        let child = words.child(known)?;
                        parts.push(Part {
                            offset,
                            start,
                            first_segment,
                            child,
                        });
                        let one: &Extent = &extents[child as usize];
                        // A sum that is too large is refused below.
                        start = start.saturating_add(one.size);
                        first_segment = first_segment.saturating_add(one.segments);
                    }
                    Node::Sequence {
                        parts: Arc::new(parts),
                    }
                }
                other => return Err(damaged("a kind of node", other)),
            };
            let bounds = extent(&node, &extents);
            let bounds = bounds.ok_or(damaged("the size of a layout", known as u64))?;
            room::push(&mut extents, bounds)?;
            let levels = depth(&node, &depths);
            if levels > DEEPEST {
                return Err(damaged("the depth of a layout", u64::from(levels)));
            }
            room::push(&mut depths, levels)?;
            room::push(&mut nodes, node)?;
        }
        if let Some(root) = extents.last() {
            let ends = [offset.checked_add(root.low), offset.checked_add(root.high)];
            if ends.contains(&None) {
                return Err(damaged("the offset of a layout", offset as u64));
            }
        }
        Ok(assembled(nodes, extents, offset)?)
    }
}

impl Layout {
    /// A layout that is known by its form only; its basic elements are taken for bytes.
    pub fn from_form(form: Form) -> Layout {
        let signature: Signature = Signature::of_named(Named::Byte).repeat(form.size());
        Layout::of_form(Arc::new(form), signature)
    }

    /// The layout of `count` elements, `extent` bytes apart, of a type that is known by its form
    /// only.
    ///
    /// # Errors
    ///
    /// A size or bounds that do not fit into 64 bits.
    pub fn from_repeated_form(form: &Form, count: u64, extent: i64) -> Result<Layout> {
        let bounds = form.bounds();
        let fits = || {
            let times = i64::try_from(count).ok()?;
            let last = (times - 1).max(0).checked_mul(extent)?;
            i64::try_from(form.size()).ok()?.checked_mul(times)?;
            i64::try_from(form.segments()).ok()?.checked_mul(times)?;
            bounds.start.checked_add(last)?;
            bounds.end.checked_add(last)
        };
        match fits() {
            Some(_) => Ok(Layout::from_form(form.repeated(count, extent)?)),
            None => Err(damaged("the number of elements of a layout", count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Datatype, Order};
    use super::*;

    fn types() -> Vec<Datatype> {
        let double = Datatype::named(Named::Double);
        let pair = Datatype::named(Named::DoubleInt);
        let face = double
            .subarray(&[9, 8, 7], &[9, 3, 2], &[0, 4, 1], Order::C)
            .unwrap();
        let pieces = double
            .indexed(&[3, 1, 4, 1, 5], &[40, 2, 11, 30, 70])
            .unwrap();
        let blocks = face
            .hindexed_block(1, &[0, 100_000, 20_000, 1 << 40])
            .unwrap();
        let all = [face.clone(), pieces.clone(), pair.clone(), blocks.clone()];
        let mixed = Datatype::structure(&[1, 2, 3, 1], &[0, 9000, -700, 1 << 50], &all).unwrap();
        let reversed = double.vector(50, 1, -3).unwrap();
        vec![double, face, pieces, pair, blocks, mixed, reversed]
    }

    #[test]
    fn a_form_survives_the_journey() {
        for datatype in types() {
            for count in [0, 1, 3] {
                let layout = Layout::new(&datatype, count).unwrap();
                let words = layout.form().to_words().unwrap();
                let form = Form::from_words(&words).unwrap();
                assert_eq!(&form, layout.form());
                let again = Layout::from_form(form);
                assert_eq!(again.size(), layout.size());
                assert_eq!(again.bounds(), layout.bounds());
                assert!(again.segments().eq(layout.segments()));
            }
        }
    }

    /// Blocks within blocks, each one single.
    fn nested(levels: u64) -> Vec<u64> {
        let mut words = vec![0, DENSE, 8];
        for child in 0..levels - 1 {
            words.extend([BLOCKS, child, 1, 0]);
        }
        words
    }

    #[test]
    fn what_is_nested_too_deeply_is_refused() {
        let form = Form::from_words(&nested(u64::from(DEEPEST))).unwrap();
        assert_eq!(form.size(), 8);
        let deeper = Form::from_words(&nested(u64::from(DEEPEST) + 1)).unwrap_err();
        assert_eq!(
            deeper.to_string(),
            damaged("the depth of a layout", u64::from(DEEPEST) + 1).to_string()
        );
        assert!(Form::from_words(&nested(100_000)).is_err());
    }

    #[test]
    fn deep_datatypes_have_forms_that_peers_accept() {
        let byte = Datatype::named(Named::Byte);
        let nests: [fn(&Datatype, i64) -> crate::Result<Datatype>; 4] = [
            |inner, end| {
                let parts = [Datatype::named(Named::Byte), inner.clone()];
                Datatype::structure(&[1, 1], &[-end, 3], &parts)
            },
            |inner, _| inner.hindexed_block(1, &[5]),
            |inner, end| inner.hvector(2, 1, end + 1),
            |inner, end| inner.hindexed(&[1, 2], &[0, end + 7]),
        ];
        for which in 0..=nests.len() {
            let mut datatype = byte.vector(3, 1, 3).unwrap();
            for level in 0..3000 {
                let kind = if which < nests.len() {
                    which
                } else {
                    level % nests.len()
                };
                let end = datatype.upper_bound() - datatype.lower_bound();
                match nests[kind](&datatype, end) {
                    Ok(deeper) if deeper.extent() < 1 << 40 => datatype = deeper,
                    _ => break,
                }
            }
            let form = datatype.commit().unwrap();
            let again = Form::from_words(&form.to_words().unwrap()).unwrap();
            assert_eq!(again, *form, "{which}");
        }
    }

    #[test]
    fn elements_that_are_known_by_their_form_are_repeated() {
        for datatype in types() {
            let form = Form::from_words(&datatype.commit().unwrap().to_words().unwrap()).unwrap();
            for count in [0, 1, 5] {
                let ours = Layout::new(&datatype, count).unwrap();
                let theirs = Layout::from_repeated_form(&form, count, datatype.extent()).unwrap();
                assert_eq!(theirs.form(), ours.form());
                assert_eq!(
                    theirs.form().to_words().unwrap(),
                    ours.form().to_words().unwrap()
                );
            }
            for (count, extent) in [(u64::MAX, 8), (3, i64::MAX), (1 << 62, 8), (4, i64::MIN)] {
                assert!(Layout::from_repeated_form(&form, count, extent).is_err());
            }
        }
    }

    #[test]
    fn damaged_words_are_refused_or_harmless() {
        for datatype in types() {
            let words = datatype.commit().unwrap().to_words().unwrap();
            for end in 0..words.len() {
                // What is cut off may end with a smaller form, never with a panic.
                let _ = Form::from_words(&words[..end]);
            }
            for at in 0..words.len() {
                for value in [0, 1, 6, 1 << 31, NARROW, NARROW | 3, u64::MAX, 1 << 62] {
                    let mut damaged = words.clone();
                    damaged[at] = value;
                    if let Ok(form) = Form::from_words(&damaged) {
                        let layout = Layout::from_form(form);
                        let last = layout.segment_count().saturating_sub(1);
                        let _ = (layout.segment(0), layout.segment(last));
                    }
                }
            }
        }
    }
}
