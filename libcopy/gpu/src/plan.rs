// SPDX-License-Identifier: MIT OR Apache-2.0

//! From the canonical form of a layout to what kernels can do: the kernel plan.
//!
//! Canonical forms of regular types are what TEMPI ("Translation", "Canonicalization") comes down
//! to: dense data under streams. Those become nests. Lists of offsets become tables; whatever else
//! there is becomes a list of pieces.

use std::ops::Range;

use libcopy_datatype::canonical::{Form, Node, NodeId, Offsets};
use libcopy_datatype::{Layout, room};

use crate::error::{Error, Result};
use crate::job::MAX_DIMS;

/// Parts of a sequence that get a job each, at most.
const MOST_PARTS: usize = 32;

/// Pieces that are listed one by one, at most: 256 MiB of tables.
const MOST_PIECES: u64 = 1 << 24;

/// Widest word, in bytes.
pub(crate) const WIDEST: u32 = 16;

/// A list of numbers in the plan's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// Where it begins in [`Plan::tables`], in bytes; a multiple of 8.
    pub(crate) at: u64,
    /// Whether its entries have 64 bits instead of 32.
    pub(crate) is_wide: bool,
}

/// From one repetition to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Bytes.
    Stride(i64),
    /// Listed offsets.
    Table(Table),
}

/// What is repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inner {
    /// Bytes without a gap.
    Block(u64),
    /// Listed pieces.
    Pieces {
        size: u64,
        offsets: Table,
        starts: Table,
        hints: u64,
        hint_shift: u32,
    },
}

/// A part of a layout that one job moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where its origin is, from the layout's.
    pub(crate) offset: i64,
    /// Bytes of the packed stream before it.
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) inner: Inner,
    /// The innermost first.
    pub(crate) dims: Vec<(u64, Step)>,
    /// Mean bytes of a run.
    pub(crate) mean: u64,
    /// What all lengths and distances inside are multiples of: 1, 2, 4, 8 or 16 bytes.
    pub(crate) grain: u32,
}

impl Part {
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start + self.size
    }
}

/// How kernels move the bytes of a layout; made once per layout, for any address and any range.
#[derive(Clone, Debug)]
pub struct Plan {
    parts: Vec<Part>,
    tables: Vec<u8>,
    size: u64,
    is_disjoint: bool,
}

impl Plan {
    /// The plan for a layout.
    ///
    /// # Errors
    ///
    /// [`Error::TooManyPieces`] if it would need a list of more than 2^24 pieces, which are better
    /// moved otherwise; [`Error::NoRoom`].
    pub fn of(layout: &Layout) -> Result<Plan> {
        let form = layout.form();
        let mut plan = Plan {
            parts: Vec::new(),
            tables: Vec::new(),
            size: layout.size(),
            is_disjoint: form.is_disjoint(),
        };
        if let Some(root) = form.root() {
            plan.add(form, root, form.offset(), 0)?;
        }
        Ok(plan)
    }

    /// Bytes of data: the length of the packed stream.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether no byte of the layout is there twice. Kernels copy in any order, so only such
    /// layouts can be written to.
    pub fn is_disjoint(&self) -> bool {
        self.is_disjoint
    }

    /// The lists that kernels read, to be copied to memory that they reach, at an address that is a
    /// multiple of 8.
    pub fn tables(&self) -> &[u8] {
        &self.tables
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    fn add(&mut self, form: &Form, id: NodeId, offset: i64, start: u64) -> Result<()> {
        if let Node::Sequence { parts } = form.node(id)
            && parts.len() + self.parts.len() <= MOST_PARTS
        {
            for part in parts.iter() {
                self.add(
                    form,
                    part.child,
                    offset + part.offset,
                    start + part.start as u64,
                )?;
            }
            return Ok(());
        }
        let extent = form.extent(id);
        let mut grain = Grain::default();
        let mut dims = Vec::new();
        let mut at = id;
        let inner = loop {
            if dims.len() == MAX_DIMS
                && !matches!(form.node(at), Node::Dense { .. } | Node::Pieces { .. })
            {
                break self.listed(form, at, &mut grain)?;
            }
            match form.node(at) {
                Node::Dense { len } => {
                    grain.add(*len);
                    break Inner::Block(*len as u64);
                }
                Node::Stream {
                    count,
                    stride,
                    child,
                } => {
                    grain.add(*stride);
                    dims.push((*count as u64, Step::Stride(*stride)));
                    at = *child;
                }
                Node::Blocks { offsets, child } => {
                    (0..offsets.len()).for_each(|i| grain.add(offsets.get(i)));
                    let entries = (0..offsets.len()).map(|i| offsets.get(i));
                    let table = self.table(entries, is_wide(offsets))?;
                    dims.push((offsets.len() as u64, Step::Table(table)));
                    at = *child;
                }
                Node::Pieces { .. } | Node::Sequence { .. } => {
                    break self.listed(form, at, &mut grain)?;
                }
            }
        };
        dims.reverse();
        self.parts.push(Part {
            offset,
            start,
            size: extent.size as u64,
            inner,
            dims,
            mean: (extent.size / extent.segments) as u64,
            grain: grain.bytes(),
        });
        Ok(())
    }

    /// The pieces below a node, in a list.
    fn listed(&mut self, form: &Form, id: NodeId, grain: &mut Grain) -> Result<Inner> {
        let extent = form.extent(id);
        if extent.segments as u64 > MOST_PIECES {
            return Err(Error::TooManyPieces);
        }
        // None of the lists grows below.
        let mut pieces: Vec<(i64, i64)> = room::list(extent.segments)?;
        for_each_piece(form, id, 0, &mut |offset, len| match pieces.last_mut() {
            Some(last) if last.0 + last.1 == offset => last.1 += len,
            _ => pieces.push((offset, len)),
        });
        let mut starts = room::list(pieces.len() + 1)?;
        let mut size = 0;
        for (offset, len) in &pieces {
            grain.add(*offset);
            grain.add(*len);
            starts.push(size);
            size += len;
        }
        starts.push(size);
        // A hint for about every eighth piece: a search takes three steps then.
        let hint_shift = (8 * size / pieces.len() as i64).ilog2().max(4);
        let mut hints = Vec::new();
        let mut piece = 0;
        for place in (0..size).step_by(1 << hint_shift) {
            while starts[piece + 1] <= place {
                piece += 1;
            }
            room::push(&mut hints, piece as i64)?;
        }
        room::push(&mut hints, pieces.len() as i64 - 1)?;
        let is_wide = size > i64::from(i32::MAX)
            || pieces.iter().any(|piece| i32::try_from(piece.0).is_err());
        Ok(Inner::Pieces {
            size: size as u64,
            offsets: self.table(pieces.iter().map(|piece| piece.0), is_wide)?,
            starts: self.table(starts.iter().copied(), is_wide)?,
            hints: self.table(hints.iter().copied(), false)?.at,
            hint_shift,
        })
    }

    fn table(
        &mut self,
        entries: impl ExactSizeIterator<Item = i64>,
        is_wide: bool,
    ) -> Result<Table> {
        let at = self.tables.len() as u64;
        // With what makes the length a multiple of 8.
        room::reserve(&mut self.tables, 8 * (entries.len() + 1))?;
        for entry in entries {
            if is_wide {
                self.tables.extend_from_slice(&entry.to_le_bytes());
            } else {
                self.tables.extend_from_slice(&(entry as i32).to_le_bytes());
            }
        }
        self.tables.resize(self.tables.len().next_multiple_of(8), 0);
        Ok(Table { at, is_wide })
    }
}

fn is_wide(offsets: &Offsets) -> bool {
    matches!(offsets, Offsets::Wide(_))
}

/// Offsets from the origin and lengths of the dense pieces below a node, in packed order.
fn for_each_piece(form: &Form, id: NodeId, origin: i64, visit: &mut impl FnMut(i64, i64)) {
    match form.node(id) {
        Node::Dense { len } => visit(origin, *len),
        Node::Stream {
            count,
            stride,
            child,
        } => (0..*count).for_each(|i| for_each_piece(form, *child, origin + i * stride, visit)),
        Node::Blocks { offsets, child } => (0..offsets.len())
            .for_each(|i| for_each_piece(form, *child, origin + offsets.get(i), visit)),
        Node::Pieces { offsets, starts } => (0..offsets.len())
            .for_each(|i| visit(origin + offsets.get(i), starts.get(i + 1) - starts.get(i))),
        Node::Sequence { parts } => parts
            .iter()
            .for_each(|part| for_each_piece(form, part.child, origin + part.offset, visit)),
    }
}

/// The largest power of two, up to [`WIDEST`], that divides all numbers that were added.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Grain(u64);

impl Grain {
    pub(crate) fn add(&mut self, number: i64) {
        self.0 |= number as u64;
    }

    pub(crate) fn bytes(self) -> u32 {
        1 << self.0.trailing_zeros().min(WIDEST.trailing_zeros())
    }
}
