// SPDX-License-Identifier: MIT OR Apache-2.0

//! The type map, one basic element after the other.

use super::datatype::Contents;
use super::datatype::{Datatype, fastest_first};
use super::named::Element;
use crate::Result;

/// Iterator over the basic elements of a type and their offsets, in type-map order: what a
/// conversion needs, which must know what the bytes mean. To move bytes, use [`super::Layout`].
#[derive(Debug)]
pub struct Elements {
    stack: Vec<Frame>,
}

/// A type within the walk.
#[derive(Debug)]
struct Frame {
    datatype: Datatype,
    base: i64,
    /// The child, or basic element, that is next: of a block, and which block.
    within: u64,
    block: u64,
}

impl Elements {
    /// The elements of `count` of a type.
    ///
    /// # Errors
    ///
    /// A size or bounds that do not fit into 64 bits.
    pub fn new(datatype: &Datatype, count: u64) -> Result<Elements> {
        let mut elements = Elements { stack: Vec::new() };
        elements.enter(&datatype.contiguous(count)?, 0);
        Ok(elements)
    }

    fn enter(&mut self, datatype: &Datatype, base: i64) {
        if datatype.size() > 0 {
            self.stack.push(Frame {
                datatype: datatype.essence().clone(),
                base,
                within: 0,
                block: 0,
            });
        }
    }
}

impl Frame {
    /// The next child and its offset, for everything but named types.
    fn next(&mut self) -> Option<(Datatype, i64)> {
        let datatype = self.datatype.clone();
        loop {
            let (length, start, child) = block(datatype.contents(), self.block)?;
            // Children without data may be many.
            if self.within < length && child.size() > 0 {
                let step = (self.within as i64).wrapping_mul(child.extent());
                self.within += 1;
                let at = self.base.wrapping_add(start).wrapping_add(step);
                return Some((child.clone(), at));
            }
            self.within = 0;
            self.block += 1;
        }
    }
}

/// Block `i` of a type: how many children, where, which. `None` behind the last.
fn block(contents: &Contents, i: u64) -> Option<(u64, i64, &Datatype)> {
    let times = |n: i64, unit: i64| n.wrapping_mul(unit);
    let index = i as usize;
    match contents {
        Contents::Contiguous { count, child } => (i == 0).then_some((*count, 0, child)),
        Contents::Vector {
            count,
            blocklength,
            stride,
            child,
        } => {
            let at = times(times(i as i64, *stride), child.extent());
            (i < *count).then_some((*blocklength, at, child))
        }
        Contents::Hvector {
            count,
            blocklength,
            stride,
            child,
        } => (i < *count).then_some((*blocklength, times(i as i64, *stride), child)),
        Contents::Indexed {
            blocklengths,
            displacements,
            child,
        } => {
            let at = times(*displacements.get(index)?, child.extent());
            Some((blocklengths[index], at, child))
        }
        Contents::Hindexed {
            blocklengths,
            displacements,
            child,
        } => Some((*blocklengths.get(index)?, displacements[index], child)),
        Contents::IndexedBlock {
            blocklength,
            displacements,
            child,
        } => {
            let at = times(*displacements.get(index)?, child.extent());
            Some((*blocklength, at, child))
        }
        Contents::HindexedBlock {
            blocklength,
            displacements,
            child,
        } => Some((*blocklength, *displacements.get(index)?, child)),
        Contents::Struct {
            blocklengths,
            displacements,
            children,
        } => Some((
            *blocklengths.get(index)?,
            displacements[index],
            children.get(index)?,
        )),
        Contents::Subarray {
            sizes,
            subsizes,
            starts,
            order,
            child,
        } => {
            // Rows along the fastest dimension are the blocks.
            let mut stride = child.extent();
            let (mut at, mut rest, mut row) = (0i64, i, None);
            for d in fastest_first(sizes.len(), *order) {
                let index = match row {
                    None => {
                        row = Some(subsizes[d]);
                        0
                    }
                    Some(_) => {
                        let index = rest % subsizes[d];
                        rest /= subsizes[d];
                        index
                    }
                };
                at = at.wrapping_add(times((starts[d] + index) as i64, stride));
                stride = times(stride, sizes[d] as i64);
            }
            (rest == 0).then_some((row?, at, child))
        }
        // `essence` took these away; a named type has no children.
        Contents::Named(_)
        | Contents::Dup { .. }
        | Contents::Resized { .. }
        | Contents::Darray { .. } => None,
    }
}

impl Iterator for Elements {
    type Item = (Element, i64);

    fn next(&mut self) -> Option<(Element, i64)> {
        loop {
            let frame = self.stack.last_mut()?;
            if let Contents::Named(named) = frame.datatype.contents() {
                if let Some(element) = named.elements().get(frame.within as usize) {
                    frame.within += 1;
                    return Some((*element, frame.base + i64::from(element.offset)));
                }
                self.stack.pop();
                continue;
            }
            match frame.next() {
                Some((child, base)) => self.enter(&child, base),
                None => {
                    self.stack.pop();
                }
            }
        }
    }
}

impl Datatype {
    /// How many basic elements the first `bytes` bytes of the packed stream of any number of these
    /// are: `MPI_Get_elements`. `None` if they end within an element, or the type has no data.
    ///
    /// In O(depth + members of structs), however many elements there are.
    pub fn elements_in(&self, bytes: u64) -> Option<u64> {
        let (mut at, mut left, mut elements) = (self, bytes, 0);
        // All children of a type have the same bytes, one behind the other, but for a struct's.
        while left > 0 {
            let whole = left.checked_div(at.size())?;
            elements += whole.checked_mul(at.signature().elements())?;
            left %= at.size();
            at = at.essence();
            match at.contents() {
                Contents::Named(named) => {
                    for element in named.elements() {
                        if left > 0 {
                            left = left.checked_sub(element.size.into())?;
                            elements += 1;
                        }
                    }
                }
                Contents::Struct {
                    blocklengths,
                    children,
                    ..
                } => {
                    for (length, child) in blocklengths.iter().zip(children.iter()) {
                        at = child;
                        let bytes = length.wrapping_mul(child.size());
                        if left < bytes {
                            break;
                        }
                        left -= bytes;
                        elements += length.wrapping_mul(child.signature().elements());
                    }
                }
                contents => at = contents.children().next()?,
            }
        }
        Some(elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Named, Order};

    #[test]
    fn elements_are_counted_as_mpi_does() {
        let mixed: Datatype = "struct([2,1],[0,8],[int,double])".parse().unwrap();
        for (bytes, elements) in [
            (0, Some(0)),
            (4, Some(1)),
            (8, Some(2)),
            (12, None),
            (16, Some(3)),
            (20, Some(4)),
            (160, Some(30)),
            (161, None),
        ] {
            assert_eq!(mixed.elements_in(bytes), elements, "{bytes}");
        }
        let nothing: Datatype = "contiguous(0,int)".parse().unwrap();
        assert_eq!(
            (nothing.elements_in(0), nothing.elements_in(4)),
            (Some(0), None)
        );
    }

    #[test]
    fn many_elements_are_counted_at_once() {
        const MANY: u64 = 1_000_000_000_000;
        let row: Datatype = format!("contiguous({MANY},int)").parse().unwrap();
        assert_eq!(row.elements_in(4 * MANY + 4), Some(MANY + 1));
        assert_eq!(row.elements_in(6), None);
        // Of different kinds, so that no division does; a walk would take an hour.
        let pair: Datatype = "struct([1,1],[0,4],[int,short])".parse().unwrap();
        let half = 6 * (MANY / 2);
        for datatype in [
            pair.contiguous(MANY),
            pair.vector(MANY / 1000, 1000, 2000),
            pair.hvector(1000, MANY / 1000, 8),
            pair.indexed(&[MANY - 7, 7], &[5, 0]),
            pair.hindexed_block(MANY / 2, &[0, 8]),
            pair.subarray(
                &[2 * MANY / 1000, 1000],
                &[MANY / 1000, 1000],
                &[0, 0],
                Order::C,
            ),
            Datatype::structure(&[MANY, 1], &[0, 0], &[pair.clone(), Named::Byte.into()]),
        ] {
            let datatype = datatype.unwrap().contiguous(3).unwrap();
            let whole = datatype.signature().elements();
            for (bytes, elements) in [
                (half, Some(MANY)),
                (half + 4, Some(MANY + 1)),
                (half + 5, None),
                (datatype.size() + half + 10, Some(whole + MANY + 3)),
            ] {
                let found = datatype.elements_in(bytes);
                assert_eq!(found, elements, "{bytes} bytes of {datatype:?}");
            }
        }
    }
}
