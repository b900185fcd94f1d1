// SPDX-License-Identifier: MIT OR Apache-2.0

//! The pieces of memory of a layout, and what the choice of a method has to know of them.

use libcopy_datatype::{Layout, Segment};

use crate::error::{Error, Result};
use libcopy_datatype::room;

/// One contiguous piece of memory: an IOV in the words of "Network-Assisted Noncontiguous Transfers
/// for GPU-Aware MPI Libraries" (section "Mkey Mapping").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Iov {
    /// Its address.
    pub addr: u64,
    /// Bytes, at least 1.
    pub len: u64,
}

impl Iov {
    /// The address behind its last byte.
    pub fn end(&self) -> u64 {
        self.addr + self.len
    }
}

/// The IOVs of a layout at an address, in the order of the packed stream; as few as there can be.
///
/// # Errors
///
/// [`Error::Address`] for a piece outside the address space, [`Error::NoRoom`] for more pieces than
/// memory has room for.
pub fn iovs(layout: &Layout, base: u64) -> Result<Vec<Iov>> {
    Elements::new(layout, base).iovs()
}

fn place(base: u64, segment: Segment) -> Result<Iov> {
    let addr = i128::from(base) + i128::from(segment.offset);
    let end = addr + i128::from(segment.len);
    if addr < 0 || end > i128::from(u64::MAX) {
        return Err(Error::Address {
            base,
            offset: segment.offset,
            len: segment.len,
        });
    }
    Ok(Iov {
        addr: addr as u64,
        len: segment.len,
    })
}

/// The first `bytes` bytes of the packed stream of a layout at an address: what a message has at
/// one end.
#[derive(Clone, Debug)]
pub struct Elements {
    /// The layout, of at least `bytes` bytes.
    pub layout: Layout,
    /// The address that the layout's offsets count from.
    pub base: u64,
    /// Bytes; a receiver's layout may have more.
    pub bytes: u64,
}

impl Elements {
    /// All elements of a layout.
    pub fn new(layout: &Layout, base: u64) -> Elements {
        Elements {
            layout: layout.clone(),
            base,
            bytes: layout.size(),
        }
    }

    /// Their IOVs, in the order of the packed stream.
    ///
    /// # Errors
    ///
    /// As for [`iovs`].
    pub fn iovs(&self) -> Result<Vec<Iov>> {
        let all = self.segments().map(|segment| place(self.base, segment));
        room::collect(all, self.most())
    }

    /// Checks that all pieces lie in the address space, without making a list of them.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] for a piece that does not.
    pub fn check(&self) -> Result<()> {
        let bounds = self.layout.bounds();
        let all = Segment {
            offset: bounds.start,
            len: bounds.end.abs_diff(bounds.start),
        };
        match place(self.base, all) {
            Ok(_) => Ok(()),
            // Which piece it is; a shorter message may have none that lies outside.
            Err(_) => self
                .segments()
                .try_for_each(|segment| place(self.base, segment).map(drop)),
        }
    }

    /// Their shape. A step per piece is only taken for a message that is shorter than its layout,
    /// whose pieces differ ([`Layout::segment_lengths`]).
    pub fn shape(&self) -> Shape {
        let whole = Shape::of(&self.layout);
        let is_equal = whole.min.checked_mul(whole.blocks) == Some(whole.bytes);
        if self.bytes == whole.bytes {
            return whole;
        }
        let last = self.bytes.checked_sub(1);
        match last.and_then(|last| self.layout.segment_at(last)) {
            Some((index, skip)) if is_equal => {
                let equal = Shape {
                    bytes: index * whole.min,
                    blocks: index,
                    min: whole.min,
                    unit: whole.min,
                };
                let before = if index > 0 { equal } else { Shape::default() };
                before.with(skip + 1)
            }
            _ => self
                .segments()
                .fold(Shape::default(), |shape, segment| shape.with(segment.len)),
        }
    }

    /// The lengths of their pieces.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`] for more pieces than memory has room for.
    pub fn lengths(&self) -> Result<Vec<u64>> {
        room::collect(self.segments().map(|segment| Ok(segment.len)), self.most())
    }

    /// As many pieces as there are, or more: those of the whole layout, or one for each byte.
    fn most(&self) -> u64 {
        self.layout.segment_count().min(self.bytes)
    }

    fn segments(&self) -> impl Iterator<Item = Segment> {
        let mut left = self.bytes;
        self.layout.segments().map_while(move |mut segment| {
            segment.len = segment.len.min(left);
            left -= segment.len;
            (segment.len > 0).then_some(segment)
        })
    }
}

/// Number and lengths of the pieces of a layout: what an RTS says of the sender's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape {
    /// All bytes.
    pub bytes: u64,
    /// Pieces.
    pub blocks: u64,
    /// Bytes of the shortest piece (`blockmin` of the paper); 0 if there is none.
    pub min: u64,
    /// The greatest number that divides the lengths of all pieces: their length if they are equal.
    pub unit: u64,
}

impl Shape {
    /// The shape of a layout, in O(nodes and list entries of its canonical form).
    pub fn of(layout: &Layout) -> Shape {
        let (min, unit) = layout.segment_lengths();
        Shape {
            bytes: layout.size(),
            blocks: layout.segment_count(),
            min,
            unit,
        }
    }

    /// The shape of a list.
    pub fn of_iovs(iovs: &[Iov]) -> Shape {
        iovs.iter()
            .fold(Shape::default(), |shape, iov| shape.with(iov.len))
    }

    fn with(self, len: u64) -> Shape {
        Shape {
            bytes: self.bytes + len,
            blocks: self.blocks + 1,
            min: if self.blocks == 0 {
                len
            } else {
                self.min.min(len)
            },
            unit: gcd(self.unit, len),
        }
    }

    /// Whether a layout can have it.
    pub fn is_possible(&self) -> bool {
        if self.bytes == 0 {
            return *self == Shape::default();
        }
        let shortest = self.min.checked_mul(self.blocks);
        self.min > 0
            && self.blocks > 0
            && self.unit > 0
            && shortest.is_some_and(|bytes| bytes <= self.bytes)
            && self.min % self.unit == 0
            && self.bytes % self.unit == 0
    }

    /// Bytes of a piece on average, rounded down; 0 without a piece.
    pub fn mean(&self) -> u64 {
        self.bytes.checked_div(self.blocks).unwrap_or(0)
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Ranges of memory to register for a list: one per part of the address space, as few as possible
/// without more than `max_gap` bytes between two pieces of one range. The members of a struct may
/// lie in different mappings, between which there is nothing to register.
///
/// The ranges are in the order of their addresses and do not overlap.
///
/// # Errors
///
/// [`Error::NoRoom`] for more pieces than memory has room for.
pub fn regions(iovs: &[Iov], max_gap: u64) -> Result<Vec<Iov>> {
    let mut sorted = room::list(iovs.len() as u64)?;
    sorted.extend_from_slice(iovs);
    sorted.sort_unstable_by_key(|iov| iov.addr);
    let mut regions: Vec<Iov> = Vec::new();
    for iov in sorted {
        match regions.last_mut() {
            Some(last) if iov.addr <= last.end().saturating_add(max_gap) => {
                last.len = last.end().max(iov.end()) - last.addr;
            }
            _ => room::push(&mut regions, iov)?,
        }
    }
    Ok(regions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use libcopy_datatype::{Datatype, Named};

    #[test]
    fn a_vector_has_an_iov_per_block() {
        let column = Datatype::named(Named::Double).vector(4, 2, 8).unwrap();
        let layout = Layout::new(&column, 1).unwrap();
        let list = iovs(&layout, 0x1000).unwrap();
        let expected: Vec<Iov> = (0..4)
            .map(|i| Iov {
                addr: 0x1000 + i * 64,
                len: 16,
            })
            .collect();
        assert_eq!(list, expected);
        let shape = Shape {
            bytes: 64,
            blocks: 4,
            min: 16,
            unit: 16,
        };
        assert_eq!(Shape::of(&layout), shape);
        assert_eq!(Shape::of_iovs(&list), shape);
        assert_eq!(
            Shape::of(&Layout::new(&column, 0).unwrap()),
            Shape::default()
        );
    }

    #[test]
    fn what_lies_outside_the_address_space_is_an_error() {
        let pair = Datatype::named(Named::Uint8).hvector(2, 1, -64).unwrap();
        let layout = Layout::new(&pair, 1).unwrap();
        assert!(iovs(&layout, 64).is_ok());
        assert_eq!(
            iovs(&layout, 63),
            Err(Error::Address {
                base: 63,
                offset: -64,
                len: 1
            })
        );
    }

    /// Of more pieces than there is memory for a list of: an error, not the end of the program.
    #[test]
    fn lists_without_room_are_refused() {
        let many = Datatype::named(Named::Uint8)
            .hvector(1 << 59, 1, 2)
            .unwrap();
        let layout = Layout::new(&many, 1).unwrap();
        let all = Elements::new(&layout, 1 << 20);
        let no_room = |bytes| Error::NoRoom(room::NoRoom { bytes });
        assert_eq!(all.iovs(), Err(no_room(16 << 59)));
        assert_eq!(all.lengths(), Err(no_room(8 << 59)));
        // A message with fewer bytes has no more pieces.
        let few = Elements { bytes: 3, ..all };
        assert_eq!(few.iovs().unwrap().len(), 3);
        assert_eq!(few.lengths().unwrap(), [1; 3]);
    }

    #[test]
    fn members_far_apart_are_registered_apart() {
        let iov = |addr, len| Iov { addr, len };
        let list = [iov(9000, 10), iov(100, 50), iov(150, 50), iov(300, 8)];
        assert_eq!(
            regions(&list, 0).unwrap(),
            [iov(100, 100), iov(300, 8), iov(9000, 10)]
        );
        assert_eq!(regions(&list, 100).unwrap(), [iov(100, 208), iov(9000, 10)]);
        assert_eq!(regions(&list, u64::MAX).unwrap(), [iov(100, 8910)]);
        // Pieces that overlap, as a receiver's may not and a sender's may.
        assert_eq!(
            regions(&[iov(10, 20), iov(12, 4)], 0).unwrap(),
            [iov(10, 20)]
        );
    }

    #[test]
    fn a_shorter_message_ends_within_a_piece() {
        let column = Datatype::named(Named::Double).vector(4, 2, 8).unwrap();
        let layout = Layout::new(&column, 1).unwrap();
        let mut elements = Elements::new(&layout, 0);
        elements.bytes = 40;
        let lens: Vec<u64> = elements.iovs().unwrap().iter().map(|iov| iov.len).collect();
        assert_eq!(lens, [16, 16, 8]);
        assert_eq!(elements.lengths().unwrap(), lens);
        let shape = elements.shape();
        assert_eq!((shape.bytes, shape.blocks, shape.min), (40, 3, 8));
        elements.bytes = 32;
        assert_eq!(elements.lengths().unwrap(), [16, 16]);
        elements.bytes = 0;
        assert_eq!(elements.shape(), Shape::default());
    }

    #[test]
    fn shapes_are_those_of_the_lists_however_short_the_message_is() {
        let byte = Datatype::named(Named::Uint8);
        let equal = byte.vector(5, 6, 9).unwrap();
        let uneven = byte.hindexed(&[6, 9, 4], &[0, 20, 40]).unwrap();
        // Far apart, so that the last block of an element does not touch the first of the next.
        let nested = uneven.hvector(3, 1, 100).unwrap();
        let nearly_equal = byte.hindexed(&[4, 5], &[0, 20]).unwrap();
        for datatype in [equal, uneven, nested, nearly_equal] {
            let layout = Layout::new(&datatype, 2).unwrap();
            for bytes in 0..=layout.size() {
                let elements = Elements {
                    layout: layout.clone(),
                    base: 64,
                    bytes,
                };
                let list = elements.iovs().unwrap();
                assert_eq!(elements.shape(), Shape::of_iovs(&list), "{bytes}");
            }
        }
    }

    #[test]
    fn a_check_finds_what_a_list_finds() {
        let byte = Datatype::named(Named::Uint8);
        let layout = Layout::new(&byte.hindexed(&[4, 4], &[-8, 16]).unwrap(), 1).unwrap();
        for base in [0, 7, 8, u64::MAX - 20, u64::MAX - 19] {
            for bytes in [0, 4, 8] {
                let elements = Elements {
                    layout: layout.clone(),
                    base,
                    bytes,
                };
                let listed = elements.iovs().map(drop);
                assert_eq!(elements.check(), listed, "{bytes} bytes at {base}");
            }
        }
    }

    #[test]
    fn shapes_that_no_layout_has() {
        let right = Shape {
            bytes: 40,
            blocks: 3,
            min: 8,
            unit: 8,
        };
        assert!(right.is_possible() && Shape::default().is_possible());
        for wrong in [
            Shape { bytes: 0, ..right },
            Shape { blocks: 0, ..right },
            Shape { blocks: 6, ..right },
            Shape {
                blocks: u64::MAX,
                ..right
            },
            Shape { min: 0, ..right },
            Shape { min: 12, ..right },
            Shape { unit: 0, ..right },
            Shape { bytes: 41, ..right },
        ] {
            assert!(!wrong.is_possible(), "{wrong:?}");
        }
    }

    #[test]
    fn the_unit_divides_every_length() {
        let list = [6, 9, 12].map(|len| Iov { addr: 0, len });
        let shape = Shape::of_iovs(&list);
        assert_eq!((shape.unit, shape.min, shape.mean()), (3, 6, 9));
    }
}
