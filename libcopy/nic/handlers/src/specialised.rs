// SPDX-License-Identifier: MIT OR Apache-2.0

//! Payload handlers for one kind of datatype each (paper, section 3.2.3).

use libcopy_walk::{Child, Image, List, Node, Offsets, PartList, Parts, Tree};

use crate::{Nic, Packet, Segment};

/// A datatype that has a handler of its own. Its descriptor is the root of the image.
#[derive(Clone, Copy, Debug)]
pub enum Specialised<'a> {
    /// Bytes without a gap.
    Contiguous {
        /// Bytes.
        len: i32,
    },
    /// Equal blocks at equal distances.
    Vector {
        /// Blocks.
        count: i32,
        /// Bytes between the beginnings of two.
        stride: i32,
        /// Bytes of each.
        block: i32,
    },
    /// Equal blocks at irregular offsets.
    IndexedBlock {
        /// Where each one is.
        offsets: List<'a>,
        /// Bytes of each.
        block: i32,
    },
    /// Blocks of different lengths at irregular offsets; the block of a packet is found by binary
    /// search.
    Indexed {
        /// Where each one is.
        offsets: List<'a>,
        /// Bytes before each one, and all bytes.
        starts: List<'a>,
    },
    /// Members of the four kinds above; the member of a packet is found by binary search.
    Struct {
        /// The members.
        parts: Parts<'a>,
    },
}

impl<'a> Specialised<'a> {
    /// The specialised handler of an image, if it has one. For structs the time is proportional to
    /// the number of members: the host asks at commit; handlers use [`Specialised::of_root`].
    pub fn of(image: Image<'a>) -> Option<Specialised<'a>> {
        let handler = Self::of_root(image)?;
        if let Specialised::Struct { parts } = handler {
            let flat = |child: Child<i32>| {
                image.is_dense(child) || Self::of_leaf(image.node(child.id)).is_some()
            };
            let all = (0..parts.len()).all(|i| parts.get(i).is_some_and(|part| flat(part.child)));
            return all.then_some(handler);
        }
        Some(handler)
    }

    /// As [`Specialised::of`], without looking at the members of a struct. Members of another kind
    /// are walked by [`seek`](crate::seek).
    #[inline(always)]
    pub fn of_root(image: Image<'a>) -> Option<Specialised<'a>> {
        match image.node(image.root()?) {
            Node::Sequence { parts } => Some(Specialised::Struct { parts }),
            leaf => Self::of_leaf(leaf),
        }
    }

    #[inline(always)]
    fn of_leaf(node: Node<Image<'a>>) -> Option<Specialised<'a>> {
        let is_dense = |child: Child<i32>| child.id == Child::<i32>::DENSE;
        match node {
            Node::Dense { len } => Some(Specialised::Contiguous { len }),
            Node::Stream {
                count,
                stride,
                child,
            } if is_dense(child) => Some(Specialised::Vector {
                count,
                stride,
                block: child.size,
            }),
            Node::Blocks { offsets, child } if is_dense(child) => Some(Specialised::IndexedBlock {
                offsets,
                block: child.size,
            }),
            Node::Pieces { offsets, starts } => Some(Specialised::Indexed { offsets, starts }),
            _ => None,
        }
    }

    /// Its name, as the paper says it.
    pub fn name(&self) -> &'static str {
        match self {
            Specialised::Contiguous { .. } => "contiguous",
            Specialised::Vector { .. } => "vector",
            Specialised::IndexedBlock { .. } => "indexed-block",
            Specialised::Indexed { .. } => "indexed",
            Specialised::Struct { .. } => "struct",
        }
    }

    /// The payload handler. `image` is the one it was made from.
    ///
    /// It is a part of its caller, so that a handler of one kind has no code of the others, and
    /// keeps nothing on its stack.
    #[inline(always)]
    pub fn payload(&self, image: Image, packet: Packet, nic: &mut impl Nic) {
        let position = packet.position as i32;
        let mut run = Run {
            at: 0,
            left: (packet.len as i32).min(image.size().wrapping_sub(position)),
            nic,
        };
        match self {
            Specialised::Struct { parts } => run.members(image, *parts, position),
            leaf => run.leaf(leaf, image.origin(), position),
        }
    }
}

/// The bytes of a packet that have no place yet.
struct Run<'n, N> {
    at: i32,
    left: i32,
    nic: &'n mut N,
}

impl<N: Nic> Run<'_, N> {
    /// Issues the write for the next bytes, at most `len`, to `host`.
    #[inline(always)]
    fn write(&mut self, host: i32, len: i32) {
        let len = len.min(self.left);
        self.nic.dma_to_host(host, self.at as u32, len as u32);
        self.at = self.at.wrapping_add(len);
        self.left = self.left.wrapping_sub(len);
    }

    /// A node with its origin at `base`, from `position` of its packed stream on.
    #[inline(always)]
    fn leaf(&mut self, node: &Specialised, base: i32, position: i32) {
        match *node {
            Specialised::Contiguous { len } => {
                if self.left > 0 {
                    self.write(base.wrapping_add(position), len.wrapping_sub(position));
                }
            }
            Specialised::Vector {
                count,
                stride,
                block,
            } => {
                let mut index = quotient(position, block);
                let skip = position.wrapping_sub(index.wrapping_mul(block));
                let mut host = base.wrapping_add(index.wrapping_mul(stride));
                if skip > 0 && self.left > 0 {
                    self.write(host.wrapping_add(skip), block.wrapping_sub(skip));
                    host = host.wrapping_add(stride);
                    index = index.wrapping_add(1);
                }
                while self.left > 0 && index < count {
                    self.write(host, block);
                    host = host.wrapping_add(stride);
                    index = index.wrapping_add(1);
                }
            }
            Specialised::IndexedBlock { offsets, block } => {
                let index = quotient(position, block);
                let mut skip = position.wrapping_sub(index.wrapping_mul(block));
                let mut index = index as usize;
                while self.left > 0 && index < offsets.len() {
                    let host = base.wrapping_add(offsets.get(index)).wrapping_add(skip);
                    self.write(host, block.wrapping_sub(skip));
                    skip = 0;
                    index = index.wrapping_add(1);
                }
            }
            Specialised::Indexed { offsets, starts } => {
                let mut index = starts.last_not_above(position);
                let mut start = position;
                while self.left > 0 && index < offsets.len() {
                    let skip = start.wrapping_sub(starts.get(index));
                    let host = base.wrapping_add(offsets.get(index)).wrapping_add(skip);
                    index = index.wrapping_add(1);
                    let end = starts.get(index);
                    self.write(host, end.wrapping_sub(start));
                    start = end;
                }
            }
            Specialised::Struct { .. } => {}
        }
    }

    fn members(&mut self, image: Image, parts: Parts, position: i32) {
        let mut index = parts.last_not_above(position);
        let mut position = position;
        while self.left > 0 {
            let Some(part) = parts.get(index) else {
                break;
            };
            let base = image.origin().wrapping_add(part.offset);
            let inner = position.wrapping_sub(part.start);
            if image.is_dense(part.child) {
                let leaf = Specialised::Contiguous {
                    len: part.child.size,
                };
                self.leaf(&leaf, base, inner);
            } else if let Some(leaf) = Specialised::of_leaf(image.node(part.child.id)) {
                self.leaf(&leaf, base, inner);
            } else {
                let len = self.left.min(part.child.size.wrapping_sub(inner));
                Segment::at(image, position).pieces(image, len, |memory, _, len| {
                    self.write(memory, len);
                });
            }
            index = index.wrapping_add(1);
            position = part.start.wrapping_add(part.child.size);
        }
    }
}

/// How many `block`s lie before `position`.
#[inline(always)]
fn quotient(position: i32, block: i32) -> i32 {
    (position as u32).checked_div(block as u32).unwrap_or(0) as i32
}
