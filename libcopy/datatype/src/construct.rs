// SPDX-License-Identifier: MIT OR Apache-2.0

//! Datatypes and their constructors: MPI 4.1, section 5.1.
//!
//! Everything that a constructor knows about its result (size, bounds, alignment, signature) it
//! computes from its children's in time proportional to its arguments. Nothing here recurses, so
//! types may be nested to any depth; the last handle of a deep type is dropped in a loop.

use super::datatype::{
    Contents, Datatype, Dimensions, Distribution, Facts, Members, Order, fastest_first,
};
use super::signature::Signature;
use crate::{Error, Result, room};

/// `n` copies of something at a distance of `step`: the displacements' smallest and largest.
fn sweep(n: u64, step: i128) -> (i128, i128) {
    let last = i128::from(n.saturating_sub(1)) * step;
    (last.min(0), last.max(0))
}

/// Blocks of `lengths[i]` copies each: the smallest and largest displacement of a copy, `unit`
/// bytes each, and how many there are.
fn sweep_list(lengths: &[u64], places: &[i64], unit: i64, step: i64) -> (i128, i128, i128) {
    // Numbers of which all products and sums fit into 64 bits, which are most, take a tenth of the
    // time.
    const SMALL: u64 = 1 << 31;
    let longest = lengths.iter().fold(0, |all, &length| all | length);
    let farthest = places.iter().fold(0, |all, at| all | at.unsigned_abs());
    let is_small = longest < SMALL
        && step.unsigned_abs() < SMALL
        && farthest < 1 << 46
        && unit.unsigned_abs() < 1 << 16
        && (lengths.len() as u64) < SMALL;
    let blocks = || lengths.iter().zip(places);
    if is_small {
        let (mut low, mut high, mut copies) = (i64::MAX, i64::MIN, 0);
        for (&length, &place) in blocks() {
            let (at, last) = (place * unit, (length as i64 - 1) * step);
            let (first, end) = (at + last.min(0), at + last.max(0));
            low = if length > 0 { low.min(first) } else { low };
            high = if length > 0 { high.max(end) } else { high };
            copies += length;
        }
        return (low.into(), high.into(), copies.into());
    }
    let (mut low, mut high, mut copies) = (i128::MAX, i128::MIN, 0);
    for (&length, &place) in blocks().filter(|(length, _)| **length > 0) {
        let (before, behind) = sweep(length, step.into());
        let at = i128::from(place) * i128::from(unit);
        copies += i128::from(length);
        low = low.min(at.saturating_add(before));
        high = high.max(at.saturating_add(behind));
    }
    (low, high, copies)
}

/// A number of bytes in 64 bits.
fn narrow(what: &'static str, value: i128, how: impl FnOnce() -> String) -> Result<i64> {
    i64::try_from(value).map_err(|_| {
        Error::argument(
            what,
            format!("{value} bytes ({})", how()),
            "within 64 bits: use smaller counts, strides or displacements",
        )
    })
}

/// A number of copies of `child` in 64 bits. It matters only if the child has data.
fn elements(child: &Facts, copies: u128, how: impl FnOnce() -> String) -> Result<u64> {
    match u64::try_from(copies) {
        Ok(elements) => Ok(elements),
        Err(_) if child.size == 0 => Ok(0),
        Err(_) => Err(Error::argument(
            "the number of elements of the new type",
            format!("{copies} elements ({})", how()),
            "within 64 bits: use smaller counts",
        )),
    }
}

/// Collects the blocks of a new type.
struct Gathered {
    size: i128,
    external: i128,
    lb: Option<i128>,
    ub: Option<i128>,
    marked_lb: Option<i128>,
    marked_ub: Option<i128>,
    true_lb: Option<i128>,
    true_ub: Option<i128>,
    align: u32,
}

fn lower(to: &mut Option<i128>, value: i128) {
    *to = Some(to.map_or(value, |old| old.min(value)));
}

fn raise(to: &mut Option<i128>, value: i128) {
    *to = Some(to.map_or(value, |old| old.max(value)));
}

impl Gathered {
    fn new() -> Self {
        Gathered {
            size: 0,
            external: 0,
            lb: None,
            ub: None,
            marked_lb: None,
            marked_ub: None,
            true_lb: None,
            true_ub: None,
            align: 1,
        }
    }

    /// Adds copies of `child` whose displacements reach from `low` to `high`, `copies` in all.
    fn add(&mut self, child: &Facts, low: i128, high: i128, copies: i128) {
        if copies == 0 || !child.exists() {
            return;
        }
        // What leaves 128 bits leaves 64 as well, and is refused in the end.
        let sum = |to: i128, size: i64| to.saturating_add(copies.saturating_mul(size.into()));
        self.size = sum(self.size, child.size);
        self.external = sum(self.external, child.external);
        let lb = low.saturating_add(child.lb.into());
        let ub = high.saturating_add(child.ub.into());
        if child.lb_marked {
            lower(&mut self.marked_lb, lb);
        } else {
            lower(&mut self.lb, lb);
        }
        if child.ub_marked {
            raise(&mut self.marked_ub, ub);
        } else {
            raise(&mut self.ub, ub);
        }
        if child.size > 0 {
            lower(&mut self.true_lb, low.saturating_add(child.true_lb.into()));
            raise(&mut self.true_ub, high.saturating_add(child.true_ub.into()));
        }
        self.align = self.align.max(child.align);
    }

    fn finish(self, signature: Signature, how: impl Fn() -> String) -> Result<Facts> {
        let lb = self.marked_lb.or(self.lb).unwrap_or(0);
        let mut ub = self.marked_ub.or(self.ub).unwrap_or(0);
        narrow("the extent of the new type", ub.saturating_sub(lb), &how)?;
        if self.marked_ub.is_none() && ub > lb {
            // The epsilon of section 5.1.7: an array of these keeps its elements aligned. The
            // extent fits into 64 bits, in which a division takes less time.
            let align = u64::from(self.align);
            let behind = (ub - lb) as u64 % align;
            ub += i128::from(if behind > 0 { align - behind } else { 0 });
        }
        let true_lb = self.true_lb.unwrap_or(0);
        let true_ub = self.true_ub.unwrap_or(0);
        narrow("the extent of the new type", ub - lb, &how)?;
        let true_extent = true_ub.saturating_sub(true_lb);
        narrow("the true extent of the new type", true_extent, &how)?;
        Ok(Facts {
            size: narrow("the size of the new type", self.size, &how)?,
            external: narrow("the external32 size of the new type", self.external, &how)?,
            lb: narrow("the lower bound of the new type", lb, &how)?,
            ub: narrow("the upper bound of the new type", ub, &how)?,
            lb_marked: self.marked_lb.is_some(),
            ub_marked: self.marked_ub.is_some(),
            true_lb: narrow("the true lower bound of the new type", true_lb, &how)?,
            true_ub: narrow("the true upper bound of the new type", true_ub, &how)?,
            align: self.align,
            signature,
        })
    }
}

fn same_length(what: &'static str, got: usize, wanted: usize) -> Result<()> {
    if got == wanted {
        return Ok(());
    }
    Err(Error::argument(
        what,
        format!("{got} entries long"),
        format!("as long as the other arrays ({wanted})"),
    ))
}

impl Datatype {
    /// `MPI_Type_dup`: the same type, with an identity of its own.
    pub fn dup(&self) -> Datatype {
        let contents = Contents::Dup {
            child: self.clone(),
        };
        Datatype::new(contents, self.0.facts)
    }

    /// `MPI_Type_contiguous`: `count` of these, each one extent after the other.
    ///
    /// # Errors
    ///
    /// As for all constructors: sizes or bounds that do not fit into 64 bits.
    pub fn contiguous(&self, count: u64) -> Result<Datatype> {
        let facts = self.strided(1, count, 0, || {
            format!("{count} times an extent of {}", self.extent())
        })?;
        let child = self.clone();
        Ok(Datatype::new(Contents::Contiguous { count, child }, facts))
    }

    /// `MPI_Type_vector`: `count` blocks of `blocklength`, their starts `stride` extents apart.
    ///
    /// ```text
    /// vector(3, 2, 4) of a type X:   XX..XX..XX
    /// ```
    ///
    /// # Errors
    ///
    /// Sizes or bounds that do not fit into 64 bits.
    pub fn vector(&self, count: u64, blocklength: u64, stride: i64) -> Result<Datatype> {
        let bytes = i128::from(stride) * i128::from(self.extent());
        let facts = self.strided(count, blocklength, bytes, || {
            format!(
                "{count} blocks of {blocklength}, stride {stride}, extent {}",
                self.extent()
            )
        })?;
        let contents = Contents::Vector {
            count,
            blocklength,
            stride,
            child: self.clone(),
        };
        Ok(Datatype::new(contents, facts))
    }

    /// `MPI_Type_create_hvector`: as [`Datatype::vector`], the stride in bytes.
    ///
    /// # Errors
    ///
    /// Sizes or bounds that do not fit into 64 bits.
    pub fn hvector(&self, count: u64, blocklength: u64, stride: i64) -> Result<Datatype> {
        let facts = self.strided(count, blocklength, i128::from(stride), || {
            format!(
                "{count} blocks of {blocklength}, stride {stride} bytes, extent {}",
                self.extent()
            )
        })?;
        let contents = Contents::Hvector {
            count,
            blocklength,
            stride,
            child: self.clone(),
        };
        Ok(Datatype::new(contents, facts))
    }

    fn strided(
        &self,
        count: u64,
        blocklength: u64,
        stride: i128,
        how: impl Fn() -> String,
    ) -> Result<Facts> {
        let child = &self.0.facts;
        let (block_low, block_high) = sweep(blocklength, i128::from(child.extent()));
        // A stride that does not fit matters only if there is a second block that has something.
        let (low, high) = if count > 1 && blocklength > 0 && child.exists() {
            let stride = i128::from(narrow("the stride", stride, &how)?);
            sweep(count, stride)
        } else {
            (0, 0)
        };
        let copies = u128::from(count) * u128::from(blocklength);
        let elements = elements(child, copies, &how)?;
        let mut all = Gathered::new();
        all.add(
            child,
            low.saturating_add(block_low),
            high.saturating_add(block_high),
            copies.min(u64::MAX.into()) as i128,
        );
        all.finish(child.signature.repeat(elements), how)
    }

    /// `MPI_Type_indexed`: blocks of `blocklengths[i]` at `displacements[i]` extents.
    ///
    /// # Errors
    ///
    /// Arrays of different lengths; sizes or bounds that do not fit into 64 bits.
    pub fn indexed(&self, blocklengths: &[u64], displacements: &[i64]) -> Result<Datatype> {
        let facts = self.blocks(displacements, self.extent(), Lengths::Each(blocklengths))?;
        let contents = Contents::Indexed {
            blocklengths: room::copied(blocklengths)?.into(),
            displacements: room::copied(displacements)?.into(),
            child: self.clone(),
        };
        Ok(Datatype::new(contents, facts))
    }

    /// `MPI_Type_create_hindexed`: as [`Datatype::indexed`], the displacements in bytes.
    ///
    /// # Errors
    ///
    /// Arrays of different lengths; sizes or bounds that do not fit into 64 bits.
    pub fn hindexed(&self, blocklengths: &[u64], displacements: &[i64]) -> Result<Datatype> {
        let facts = self.blocks(displacements, 1, Lengths::Each(blocklengths))?;
        let contents = Contents::Hindexed {
            blocklengths: room::copied(blocklengths)?.into(),
            displacements: room::copied(displacements)?.into(),
            child: self.clone(),
        };
        Ok(Datatype::new(contents, facts))
    }

    /// `MPI_Type_create_indexed_block`: equal blocks at `displacements[i]` extents.
    ///
    /// # Errors
    ///
    /// Sizes or bounds that do not fit into 64 bits.
    pub fn indexed_block(&self, blocklength: u64, displacements: &[i64]) -> Result<Datatype> {
        let facts = self.blocks(displacements, self.extent(), Lengths::All(blocklength))?;
        let contents = Contents::IndexedBlock {
            blocklength,
            displacements: room::copied(displacements)?.into(),
            child: self.clone(),
        };
        Ok(Datatype::new(contents, facts))
    }

    /// `MPI_Type_create_hindexed_block`: as [`Datatype::indexed_block`], displacements in bytes.
    ///
    /// # Errors
    ///
    /// Sizes or bounds that do not fit into 64 bits.
    pub fn hindexed_block(&self, blocklength: u64, displacements: &[i64]) -> Result<Datatype> {
        let facts = self.blocks(displacements, 1, Lengths::All(blocklength))?;
        let contents = Contents::HindexedBlock {
            blocklength,
            displacements: room::copied(displacements)?.into(),
            child: self.clone(),
        };
        Ok(Datatype::new(contents, facts))
    }

    fn blocks(&self, displacements: &[i64], unit: i64, lengths: Lengths) -> Result<Facts> {
        let child = &self.0.facts;
        let mut copies = 0i128;
        // Smallest and largest displacement of a single child; the child is the same everywhere.
        let (mut low, mut high) = (i128::MAX, i128::MIN);
        match lengths {
            Lengths::All(0) => {}
            Lengths::All(length) => {
                copies = i128::from(length) * displacements.len() as i128;
                let least = displacements.iter().copied().min();
                let most = displacements.iter().copied().max();
                if let (Some(least), Some(most)) = (least, most) {
                    let (before, behind) = sweep(length, i128::from(child.extent()));
                    let (a, b) = (
                        i128::from(least) * i128::from(unit),
                        i128::from(most) * i128::from(unit),
                    );
                    low = a.min(b).saturating_add(before);
                    high = a.max(b).saturating_add(behind);
                }
            }
            Lengths::Each(lengths) => {
                same_length("blocklengths", lengths.len(), displacements.len())?;
                (low, high, copies) = sweep_list(lengths, displacements, unit, child.extent());
            }
        }
        let how = || {
            format!(
                "{} blocks, {copies} elements of extent {}",
                displacements.len(),
                self.extent()
            )
        };
        let mut all = Gathered::new();
        if copies > 0 {
            all.add(child, low, high, copies);
        }
        let elements = elements(child, copies as u128, how)?;
        all.finish(child.signature.repeat(elements), how)
    }

    /// `MPI_Type_create_struct`: `blocklengths[i]` of `children[i]` at `displacements[i]` bytes.
    ///
    /// # Errors
    ///
    /// Arrays of different lengths; sizes or bounds that do not fit into 64 bits.
    pub fn structure<'a>(
        blocklengths: &[u64],
        displacements: &[i64],
        children: impl IntoIterator<Item = &'a Datatype>,
    ) -> Result<Datatype> {
        let children = Members::new(children)?;
        Datatype::structure_of(blocklengths, displacements, children)
    }

    fn structure_of(
        blocklengths: &[u64],
        displacements: &[i64],
        children: Members,
    ) -> Result<Datatype> {
        same_length("blocklengths", blocklengths.len(), children.len())?;
        same_length("displacements", displacements.len(), children.len())?;
        let mut all = Gathered::new();
        let mut signature = Signature::EMPTY;
        let mut first = 0;
        // Neighbours of one type are blocks of it.
        for (n, child) in children.runs() {
            let range = first..first + n;
            first = range.end;
            let (lengths, places) = (&blocklengths[range.clone()], &displacements[range]);
            let child = &child.0.facts;
            let (low, high, copies) = match (lengths, places) {
                (&[length], &[place]) => {
                    let (before, behind) = sweep(length, i128::from(child.extent()));
                    let at = i128::from(place);
                    let (low, high) = (at.saturating_add(before), at.saturating_add(behind));
                    (low, high, i128::from(length))
                }
                _ => sweep_list(lengths, places, 1, child.extent()),
            };
            all.add(child, low, high, copies);
            // What does not fit has no bytes, or is refused.
            signature = signature.then(&child.signature.repeat(copies as u64));
            narrow("the size of the new type", all.size, || {
                format!("with {copies} elements of {} bytes", child.size)
            })?;
        }
        let facts = all.finish(signature, || format!("{} blocks", children.len()))?;
        let contents = Contents::Struct {
            blocklengths: room::copied(blocklengths)?.into(),
            displacements: room::copied(displacements)?.into(),
            children,
        };
        Ok(Datatype::new(contents, facts))
    }

    /// `MPI_Type_create_subarray`: a box of `subsizes` at `starts` in an array of `sizes`. Its
    /// extent is that of the whole array.
    ///
    /// ```text
    /// sizes [4, 6], subsizes [2, 3], starts [1, 2], order C:
    ///
    ///     . . . . . .
    ///     . . 0 1 2 .
    ///     . . 3 4 5 .
    ///     . . . . . .
    /// ```
    ///
    /// # Errors
    ///
    /// No dimension at all, arrays of different lengths, a box that is empty or not within the
    /// array; sizes or bounds that do not fit into 64 bits.
    pub fn subarray(
        &self,
        sizes: &[u64],
        subsizes: &[u64],
        starts: &[u64],
        order: Order,
    ) -> Result<Datatype> {
        same_length("subsizes", subsizes.len(), sizes.len())?;
        same_length("starts", starts.len(), sizes.len())?;
        if sizes.is_empty() {
            return Err(Error::argument("the number of dimensions", 0u64, 1u64..));
        }
        let child = &self.0.facts;
        let extent = i128::from(child.extent());
        let how = || {
            format!(
                "a box of {subsizes:?} at {starts:?} in an array of {sizes:?}, extent {}",
                self.extent()
            )
        };
        let mut stride = extent;
        let (mut low, mut high, mut copies) = (0i128, 0i128, 1u64);
        for dimension in fastest_first(sizes.len(), order) {
            let (size, subsize) = (sizes[dimension], subsizes[dimension]);
            let start = starts[dimension];
            if subsize == 0 || subsize > size || start > size - subsize {
                return Err(Error::argument(
                    "a dimension of the subarray",
                    format!("{subsize} at {start}"),
                    format!("at least 1, and within the array's {size}"),
                ));
            }
            let first = i128::from(start) * stride;
            let (before, behind) = sweep(subsize, stride);
            low += first + before;
            high += first + behind;
            stride *= i128::from(size);
            narrow("the extent of the new type", stride, how)?;
            copies = elements(child, u128::from(copies) * u128::from(subsize), how)?;
        }
        let mut all = Gathered::new();
        all.add(child, low, high, copies.into());
        let signature = child.signature.repeat(copies);
        let facts = resize(all.finish(signature, how)?, 0, stride, how)?;
        let contents = Contents::Subarray {
            sizes: Dimensions::new(sizes)?,
            subsizes: Dimensions::new(subsizes)?,
            starts: Dimensions::new(starts)?,
            order,
            child: self.clone(),
        };
        Ok(Datatype::new(contents, facts))
    }

    /// `MPI_Type_create_darray`: the part of process `rank` of an array of `sizes` that is dealt
    /// out to a grid of `processes`, as High Performance Fortran does it. The grid's processes are
    /// numbered with the last dimension fastest, whatever `order` says about the array.
    ///
    /// # Errors
    ///
    /// A grid that has not `size` processes, `rank` not within it, blocks too small to cover a
    /// block-distributed dimension; sizes or bounds that do not fit into 64 bits.
    #[allow(clippy::too_many_arguments)]
    pub fn darray(
        &self,
        size: u64,
        rank: u64,
        sizes: &[u64],
        distributions: &[Distribution],
        processes: &[u64],
        order: Order,
    ) -> Result<Datatype> {
        same_length("distributions", distributions.len(), sizes.len())?;
        same_length("processes", processes.len(), sizes.len())?;
        if sizes.is_empty() {
            return Err(Error::argument("the number of dimensions", 0u64, 1u64..));
        }
        let grid = processes
            .iter()
            .try_fold(1u64, |all, &n| all.checked_mul(n));
        if grid != Some(size) {
            return Err(Error::argument(
                "the grid of processes",
                format!("{processes:?}"),
                format!("one with {size} processes in all"),
            ));
        }
        if rank >= size {
            return Err(Error::argument("rank", rank, ..size));
        }
        let mut coordinates = room::filled(0, sizes.len())?;
        let mut rest = rank;
        for dimension in (0..sizes.len()).rev() {
            coordinates[dimension] = rest % processes[dimension];
            rest /= processes[dimension];
        }
        let how = || format!("an array of {sizes:?} of extent {}", self.extent());
        let mut stride = i128::from(self.extent());
        let mut part = self.clone();
        for dimension in fastest_first(sizes.len(), order) {
            let step = narrow("the extent of a dimension", stride, how)?;
            part = part.dealt(
                sizes[dimension],
                distributions[dimension],
                processes[dimension],
                coordinates[dimension],
                step,
            )?;
            stride = stride.saturating_mul(i128::from(sizes[dimension]));
        }
        let extent = narrow("the extent of the new type", stride, how)?;
        let expansion = part.resized(0, extent)?;
        let contents = Contents::Darray {
            size,
            rank,
            sizes: room::copied(sizes)?.into(),
            distributions: room::copied(distributions)?.into(),
            processes: room::copied(processes)?.into(),
            order,
            child: self.clone(),
        };
        let facts = expansion.0.facts;
        Ok(Datatype::with_expansion(contents, facts, Some(expansion)))
    }

    /// One dimension of a `darray`: those of `size` copies, `step` bytes apart, that belong to
    /// process `mine` of `processes`.
    fn dealt(
        &self,
        size: u64,
        distribution: Distribution,
        processes: u64,
        mine: u64,
        step: i64,
    ) -> Result<Datatype> {
        let too_small = |block: u64| {
            Error::argument(
                "the block of a dimension",
                block,
                format!("at least 1, and {processes} of them must cover {size} elements"),
            )
        };
        let at = |index: u64| {
            narrow(
                "a displacement",
                i128::from(index) * i128::from(step),
                || format!("{index} times {step}"),
            )
        };
        // Each copy as a type of one step, so that blocks of them can be counted.
        let one = self.resized(0, step)?;
        match distribution {
            Distribution::None if processes != 1 => Err(Error::argument(
                "the processes of a dimension that is not distributed",
                processes,
                1u64,
            )),
            Distribution::None => one.contiguous(size),
            Distribution::Block(block) => {
                let block = block.unwrap_or(size.div_ceil(processes));
                if block == 0 && size > 0 || u128::from(block) * u128::from(processes) < size.into()
                {
                    return Err(too_small(block));
                }
                // The product may exceed 64 bits only if it lies behind the array.
                let first = block.checked_mul(mine).unwrap_or(size).min(size);
                let here = block.min(size - first);
                one.hindexed(&[here], &[at(first)?])
            }
            Distribution::Cyclic(block) => {
                let block = block.unwrap_or(1);
                if block == 0 {
                    return Err(too_small(block));
                }
                let first = block.checked_mul(mine).unwrap_or(size).min(size);
                let rest = size - first;
                let round = block.saturating_mul(processes);
                let whole = rest / round;
                let last = (rest % round).min(block);
                let stride = if whole > 1 { at(round)? } else { 0 };
                let body = one.hvector(whole, block, stride)?;
                if last == 0 {
                    return Datatype::structure(&[1], &[at(first)?], &[body]);
                }
                let behind = at(first + whole * round)?;
                Datatype::structure(&[1, last], &[at(first)?, behind], &[body, one])
            }
        }
    }

    /// `MPI_Type_create_resized`: the same data, but arrays of it are spaced by `extent`, and its
    /// lower bound is `lower_bound`.
    ///
    /// # Errors
    ///
    /// An upper bound that does not fit into 64 bits.
    pub fn resized(&self, lower_bound: i64, extent: i64) -> Result<Datatype> {
        let facts = resize(
            self.0.facts,
            i128::from(lower_bound),
            i128::from(extent),
            || format!("lower bound {lower_bound}, extent {extent}"),
        )?;
        let contents = Contents::Resized {
            lower_bound,
            extent,
            child: self.clone(),
        };
        Ok(Datatype::new(contents, facts))
    }
}

enum Lengths<'a> {
    All(u64),
    Each(&'a [u64]),
}

fn resize(facts: Facts, lb: i128, extent: i128, how: impl Fn() -> String) -> Result<Facts> {
    narrow("the extent of the new type", extent, &how)?;
    Ok(Facts {
        lb: narrow("the lower bound of the new type", lb, &how)?,
        ub: narrow("the upper bound of the new type", lb + extent, &how)?,
        lb_marked: true,
        ub_marked: true,
        ..facts
    })
}

#[cfg(test)]
mod tests {
    use super::super::named::Named;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn strides_and_displacements_matter_only_where_they_are_used() {
        let wide = Datatype::named(Named::Double).resized(0, 16).unwrap();
        for (count, length) in [(0, 1), (1, 1), (2, 0), (u64::MAX, 0), (0, u64::MAX)] {
            let vector = wide.vector(count, length, i64::MAX).unwrap();
            assert_eq!(vector.size(), 8 * count.min(1) * length.min(1));
        }
        assert!(wide.vector(2, 1, i64::MAX).is_err());
        let nothing = wide.contiguous(0).unwrap();
        let empty = nothing.resized(0, i64::MAX).unwrap();
        assert_eq!(nothing.vector(9, u64::MAX, i64::MAX).unwrap().size(), 0);
        // The bounds of a resized type count, also without data.
        assert!(empty.vector(9, 1, i64::MAX).is_err());
    }

    #[test]
    fn places_at_the_ends_of_the_address_space_are_no_exception() {
        let far = (1 << 61) - 1;
        let pair = Datatype::named(Named::Double).hindexed(&[1, 1], &[far, 0]);
        let both = pair.unwrap().hindexed_block(3, &[0, 0]).unwrap();
        assert_eq!(both.commit().unwrap().size(), 96);
        let wide = Datatype::named(Named::Byte).hvector(2, 1, i64::MAX - 1);
        assert_eq!(wide.unwrap().commit().unwrap().segments(), 2);
    }

    #[test]
    fn neighbours_of_one_type_are_one_user_of_it() {
        let (a, b) = (
            Datatype::named(Named::Int).dup(),
            Datatype::named(Named::Byte).dup(),
        );
        let users = |of: &Datatype| std::sync::Arc::strong_count(&of.0);
        let order = [&a, &a, &a, &b, &a, &a, &b, &b];
        let places = [0, 4, 8, 12, 16, 20, 24, 25];
        let made = Datatype::structure(&[1; 8], &places, order).unwrap();
        assert_eq!((users(&a), users(&b)), (3, 3));
        let Contents::Struct { children, .. } = made.contents() else {
            panic!("{made:?}");
        };
        assert_eq!((children.len(), children.iter().len()), (8, 8));
        for (i, child) in order.into_iter().enumerate() {
            assert!(children.get(i).is_some_and(|same| same.is(child)), "{i}");
        }
        assert!(children.get(8).is_none());
        assert!(
            children
                .iter()
                .map(Datatype::id)
                .eq(order.map(Datatype::id))
        );
        assert!(
            made.contents()
                .children()
                .map(Datatype::id)
                .eq(order.map(Datatype::id))
        );
        assert!(children.runs().map(|(n, _)| n).eq([3, 1, 2, 2]));
        assert_eq!(made.envelope().datatypes, 8);
        let again = Datatype::unflatten(&made.flatten().unwrap()).unwrap();
        assert_eq!(again.expression(), made.expression());
        assert_eq!(again.commit().unwrap(), made.commit().unwrap());
        drop(made);
        assert_eq!((users(&a), users(&b)), (1, 1));
        let empty = Datatype::structure(&[], &[], []).unwrap();
        assert_eq!((empty.contents().children().count(), empty.size()), (0, 0));
    }

    #[test]
    fn messages_name_the_unit_of_what_is_too_large() {
        let double = Datatype::named(Named::Double);
        for (made, part) in [
            (double.contiguous(1 << 60), "9223372036854775808 bytes"),
            (
                double
                    .contiguous(u64::MAX)
                    .and_then(|_| double.contiguous(1)),
                "147573952589676412920 bytes",
            ),
            (
                double.vector(1 << 40, 1 << 40, 0),
                "1208925819614629174706176 elements",
            ),
            (
                double.subarray(&[1 << 40; 2], &[1 << 40; 2], &[0; 2], Order::C),
                "bytes",
            ),
            (
                double
                    .resized(0, 0)
                    .and_then(|d| d.subarray(&[1 << 40; 2], &[1 << 40; 2], &[0; 2], Order::C)),
                "1208925819614629174706176 elements",
            ),
        ] {
            let error = made.expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    /// Numbers at the borders of what can be written, and some in between.
    fn number() -> impl Strategy<Value = u64> {
        let near = (0..65u32, 0..3u64).prop_map(|(bit, more)| {
            let power = 1u64.checked_shl(bit).unwrap_or(0);
            power.wrapping_sub(1).wrapping_add(more)
        });
        prop_oneof![0..4u64, near]
    }

    proptest! {
        /// No constructor panics or wraps, whatever the numbers.
        #[test]
        fn huge_numbers_are_refused_or_right(
            steps in prop::collection::vec((0..9u32, prop::array::uniform4(number())), 1..5)
        ) {
            let mut at = Datatype::named(Named::Double);
            for (kind, [a, b, c, d]) in steps {
                let (x, y) = (c as i64, d as i64);
                let copies = match kind {
                    0 => u128::from(a),
                    1 | 2 => u128::from(a) * u128::from(b),
                    3 | 4 => u128::from(a) + u128::from(b),
                    5 | 6 => 2 * u128::from(a),
                    _ => 1,
                };
                let made = match kind {
                    0 => at.contiguous(a),
                    1 => at.vector(a, b, x),
                    2 => at.hvector(a, b, x),
                    3 => at.indexed(&[a, b], &[x, y]),
                    4 => at.hindexed(&[a, b], &[x, y]),
                    5 => at.indexed_block(a, &[x, y]),
                    6 => at.hindexed_block(a, &[x, y]),
                    7 => at.resized(x, y),
                    _ => at.subarray(&[a.max(1)], &[1], &[0], Order::C),
                };
                let Ok(made) = made else { continue };
                prop_assert_eq!(u128::from(made.size()), copies * u128::from(at.size()));
                let bounds = [made.true_lower_bound(), made.true_upper_bound()];
                prop_assert!(bounds[0] <= bounds[1]);
                prop_assert!(made.commit().unwrap().size() == made.size());
                at = made;
            }
        }
    }
}
