// SPDX-License-Identifier: MIT OR Apache-2.0

//! A buffer that is divided among the ranks as a caller of an irregular collective likes.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libcopy::p2p::DescribedLayout;
use libcopy::scratch::Scratch;
use libcopy::{Parts, RecvBuffer, SendBuffer};

use crate::decide::active::is_same;
use crate::library::abi::{Abi, Word};
use crate::library::buffers::{Address, BufferV, BufferW, Division};
use crate::library::count::Count;
use crate::library::failure::Failure;
use crate::types::buffer::Kind;

/// The parts of a buffer, one for each rank.
#[derive(Clone, Debug)]
pub struct Partition {
    /// One for all parts, or one for each; `None` for a part that has no elements.
    kinds: Vec<Option<Kind>>,
    counts: Vec<usize>,
    /// Where each part starts, in bytes.
    places: Vec<isize>,
}

/// Where the bytes of a part are that libcopy can pack and unpack.
enum Spot {
    Empty,
    /// So many bytes from an address on.
    Dense(*mut u8, usize),
    /// The elements of a layout at an address.
    Typed(*mut u8, Arc<DescribedLayout>),
}

/// Counts that are all possible.
///
/// # Safety
///
/// `counts` has `size` elements.
unsafe fn numbers<N: Count>(counts: *const N, size: usize) -> Option<Vec<usize>> {
    if counts.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let counts = unsafe { std::slice::from_raw_parts(counts, size) };
    counts.iter().map(|count| count.number()).collect()
}

impl Partition {
    /// Parts of one datatype; places are in extents of it.
    ///
    /// # Safety
    ///
    /// The buffer's arrays have `size` elements.
    pub unsafe fn uniform<N: Count>(
        abi: &Abi,
        comm: Word,
        size: usize,
        buffer: BufferV<impl Address, N>,
    ) -> Option<Partition> {
        let BufferV {
            counts,
            places,
            datatype,
            ..
        } = buffer;
        let kind = Kind::of(abi, datatype, comm)?;
        if places.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        let (counts, places) = unsafe {
            let places = std::slice::from_raw_parts(places, size);
            (numbers(counts, size)?, places)
        };
        let places = places
            .iter()
            .map(|place| N::place(*place).checked_mul(kind.extent()))
            .collect::<Option<_>>()?;
        Partition {
            kinds: vec![Some(kind)],
            counts,
            places,
        }
        .checked()
    }

    /// Parts with a datatype each; places are in bytes.
    ///
    /// # Safety
    ///
    /// All arrays have `size` elements; `types` are handles of the library.
    pub unsafe fn varied<N: Count>(
        abi: &Abi,
        comm: Word,
        size: usize,
        buffer: BufferW<impl Address, N, N::Place>,
    ) -> Option<Partition> {
        let BufferW {
            counts,
            places,
            types,
            ..
        } = buffer;
        if places.is_null() || types.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        let (counts, places) = unsafe {
            let places = std::slice::from_raw_parts(places, size);
            (numbers(counts, size)?, places)
        };
        let kind = |rank: usize| match counts[rank] {
            0 => Some(None),
            // SAFETY: the caller's promise.
            _ => Kind::of(abi, unsafe { abi.handle_at(types, rank) }, comm).map(Some),
        };
        Partition {
            kinds: (0..size).map(kind).collect::<Option<_>>()?,
            places: places.iter().map(|place| N::place(*place)).collect(),
            counts,
        }
        .checked()
    }

    /// One part alone, a rank's: `count` elements from the start of the buffer on.
    pub fn of_one(size: usize, rank: usize, kind: Kind, count: usize) -> Option<Partition> {
        let rank = c_int::try_from(rank).ok()?;
        let kind = Some(kind);
        Partition::of_some(size, &[rank], |_| Some((kind.clone(), count, 0)))
    }

    /// No parts.
    pub fn empty(size: usize) -> Partition {
        Partition {
            kinds: vec![None],
            counts: vec![0; size],
            places: vec![0; size],
        }
    }

    /// The same with datatypes that stay, whatever the program frees.
    ///
    /// # Errors
    ///
    /// The library's error code.
    pub fn kept(&self, abi: &Abi) -> Result<Partition, c_int> {
        let mut kept = self.clone();
        for kind in kept.kinds.iter_mut().flatten() {
            *kind = kind.kept(abi)?;
        }
        Ok(kept)
    }

    /// Parts for some of the ranks only: `part` gives a neighbour's datatype, count and place in
    /// bytes by its index; negative neighbours have none.
    pub fn of_some(
        size: usize,
        neighbours: &[c_int],
        part: impl Fn(usize) -> Option<(Option<Kind>, usize, isize)>,
    ) -> Option<Partition> {
        let mut partition = Partition {
            kinds: vec![None; size],
            counts: vec![0; size],
            places: vec![0; size],
        };
        for (index, rank) in neighbours.iter().enumerate() {
            let Ok(rank) = usize::try_from(*rank) else {
                continue;
            };
            let (kind, count, place) = part(index)?;
            *partition.kinds.get_mut(rank)? = kind;
            (partition.counts[rank], partition.places[rank]) = (count, place);
        }
        partition.checked()
    }

    /// Refuses what is more bytes than there can be.
    fn checked(self) -> Option<Partition> {
        let mut total = 0usize;
        for (rank, count) in self.counts.iter().enumerate() {
            let bytes = match self.kind(rank) {
                Some(kind) => kind.size().checked_mul(*count)?,
                None => 0,
            };
            total = total.checked_add(bytes)?;
        }
        isize::try_from(total).ok().map(|_| self)
    }

    fn kind(&self, rank: usize) -> Option<&Kind> {
        let kind = match self.kinds.len() {
            1 => &self.kinds[0],
            _ => &self.kinds[rank],
        };
        kind.as_ref()
    }

    /// Whether `count` elements at an address are a rank's part of a buffer, of the same datatype.
    pub fn is_at(
        &self,
        (base, rank): (*mut c_void, usize),
        (address, count): (*const c_void, Option<usize>),
    ) -> bool {
        let part = base.wrapping_byte_offset(self.places[rank]);
        self.bytes(rank) > 0 && count == Some(self.counts[rank]) && is_same(address, part)
    }

    /// Whether the parts of another buffer are the same bytes, if both buffers begin at one
    /// address.
    pub fn is_like(&self, other: &Partition) -> bool {
        let same = |rank: usize| match (self.kind(rank), other.kind(rank)) {
            _ if self.bytes(rank) != other.bytes(rank) => false,
            (Some(own), Some(kind)) if self.bytes(rank) > 0 => {
                self.places[rank] == other.places[rank]
                    && own.is_like(self.counts[rank], (kind, other.counts[rank]))
            }
            _ => true,
        };
        (0..self.counts.len()).all(same)
    }

    /// Where a rank's part begins, in bytes.
    pub fn place(&self, rank: usize) -> isize {
        self.places[rank]
    }

    /// Bytes of a rank's part.
    pub fn bytes(&self, rank: usize) -> usize {
        self.kind(rank)
            .map_or(0, |kind| kind.size() * self.counts[rank])
    }

    /// Bytes of the largest part.
    pub fn largest(&self) -> u64 {
        let parts = (0..self.counts.len()).map(|rank| self.bytes(rank) as u64);
        parts.max().unwrap_or(0)
    }

    /// Bytes of all parts.
    pub fn total(&self) -> usize {
        (0..self.counts.len()).map(|rank| self.bytes(rank)).sum()
    }

    /// Where the parts begin and how far they reach, if they are their bytes. Parts that are far
    /// from each other are not: a window of all that is between them would have to be opened.
    pub fn span(&self) -> Option<(isize, usize)> {
        let (mut first, mut end) = (isize::MAX, isize::MIN);
        for rank in 0..self.counts.len() {
            let bytes = self.bytes(rank);
            if bytes == 0 {
                continue;
            }
            if !self.kind(rank)?.is_dense() {
                return None;
            }
            first = first.min(self.places[rank]);
            end = end.max(self.places[rank].checked_add(isize::try_from(bytes).ok()?)?);
        }
        if first > end {
            return Some((0, 0));
        }
        let span = usize::try_from(end.checked_sub(first)?).ok()?;
        let near = self.total().saturating_mul(2).saturating_add(1 << 20);
        (span <= near).then_some((first, span))
    }

    /// Lengths in bytes, and offsets: behind `first`, or one behind the other.
    pub fn division(&self, first: Option<isize>) -> Division {
        let mut end = 0;
        let (mut counts, mut offsets) = (Vec::new(), Vec::new());
        for rank in 0..self.counts.len() {
            let bytes = self.bytes(rank);
            counts.push(bytes);
            offsets.push(match (first, bytes) {
                (_, 0) => 0,
                (Some(first), _) => self.places[rank].wrapping_sub(first) as usize,
                (None, _) => end,
            });
            end += bytes;
        }
        Division { counts, offsets }
    }

    /// Lengths and offsets of the parts in what [`Partition::pack`] makes.
    pub fn packed_parts(&self) -> Division {
        self.division(None)
    }

    /// Part of a packed buffer, and the elements that it is packed from, if there are any.
    fn elements(&self, rank: usize, base: *mut c_void) -> Option<(&Kind, *mut c_void, usize)> {
        let kind = self.kind(rank).filter(|_| self.bytes(rank) != 0)?;
        let place = base.wrapping_byte_offset(self.places[rank]);
        Some((kind, place, self.counts[rank]))
    }

    /// The bytes of all parts, one behind the other.
    ///
    /// # Safety
    ///
    /// The elements of all parts are readable.
    pub unsafe fn pack(&self, base: *const c_void) -> Result<Scratch, Failure> {
        let mut packed = Scratch::new(self.total())?;
        let parts = self.packed_parts();
        for rank in 0..self.counts.len() {
            // SAFETY: the caller's promise.
            unsafe { self.pack_part(base, rank, &mut packed, &parts)? };
        }
        Ok(packed)
    }

    /// Puts the bytes of a rank's part where they are among those of all parts.
    ///
    /// # Errors
    ///
    /// The library's error code.
    ///
    /// # Safety
    ///
    /// The elements of the part are readable.
    pub unsafe fn pack_part(
        &self,
        base: *const c_void,
        rank: usize,
        packed: &mut [u8],
        parts: &Division,
    ) -> Result<(), c_int> {
        match self.elements(rank, base.cast_mut()) {
            // SAFETY: the caller's promise.
            Some((kind, place, count)) => unsafe {
                kind.copy_to(place, count, &mut packed[parts.range(rank)])
            },
            None => Ok(()),
        }
    }

    /// Puts the bytes of all parts but that of the rank `keep` where they belong.
    ///
    /// # Errors
    ///
    /// The library's error code.
    ///
    /// # Safety
    ///
    /// The elements of these parts are writable, and used by nobody else.
    pub unsafe fn unpack(
        &self,
        base: *mut c_void,
        keep: Option<usize>,
        packed: &[u8],
    ) -> Result<(), c_int> {
        let parts = self.packed_parts();
        for rank in (0..self.counts.len()).filter(|rank| keep != Some(*rank)) {
            if let Some((kind, place, count)) = self.elements(rank, base) {
                // SAFETY: the caller's promise.
                unsafe { kind.unpack_any(&packed[parts.range(rank)], place, count)? };
            }
        }
        Ok(())
    }

    /// Whether elements are packed or unpacked.
    pub fn packs(&self) -> bool {
        self.span().is_none()
    }

    /// Copies a rank's part to the same rank's part of another partition, which is as many bytes,
    /// and leaves it out of both from then on.
    ///
    /// # Safety
    ///
    /// The elements here are readable, those there writable, and no byte is both.
    pub unsafe fn settle(
        &mut self,
        base: *const c_void,
        (to, target): (&mut Partition, *mut c_void),
        rank: usize,
    ) -> Result<(), Failure> {
        let from = self.elements(rank, base.cast_mut());
        if let (Some((kind, place, count)), Some((other, there, many))) =
            (from, to.elements(rank, target))
        {
            // SAFETY: the caller's promise.
            unsafe { kind.copy_across((place, count), other, (there, many))? };
        }
        self.counts[rank] = 0;
        to.counts[rank] = 0;
        Ok(())
    }

    /// Where the bytes of each rank's part are; `None` if only the MPI library can pack some.
    fn spots(&self, base: *mut c_void) -> Option<Vec<Spot>> {
        let spot = |rank| match self.elements(rank, base) {
            None => Some(Spot::Empty),
            Some((kind, place, _)) if kind.is_dense() => {
                Some(Spot::Dense(place.cast(), self.bytes(rank)))
            }
            Some((kind, place, count)) => {
                let prepared = kind.layout(place, count, self.bytes(rank))?;
                Some(Spot::Typed(place.cast(), prepared.described.clone()))
            }
        };
        (0..self.counts.len()).map(spot).collect()
    }

    /// The elements of all parts as libcopy sends them; `None` if it cannot pack some.
    ///
    /// # Safety
    ///
    /// The elements are readable, and stay as they are for as long as what is returned is used.
    pub unsafe fn to_send<'a>(&self, base: *const c_void) -> Option<Vec<SendBuffer<'a>>> {
        // SAFETY: dense elements are their bytes, and there are some; the caller's promise.
        let buffer = |spot| unsafe {
            match spot {
                Spot::Empty => SendBuffer::from(&[]),
                Spot::Dense(place, bytes) => {
                    SendBuffer::from(std::slice::from_raw_parts(place.cast_const(), bytes))
                }
                Spot::Typed(place, described) => SendBuffer::described(place, described),
            }
        };
        let spots = self.spots(base.cast_mut())?;
        Some(spots.into_iter().map(buffer).collect())
    }

    /// The elements of all parts as libcopy receives them; `None` if it cannot unpack some.
    ///
    /// # Safety
    ///
    /// The elements are writable, and used by nobody else for as long as what is returned is used.
    pub unsafe fn to_receive<'a>(&self, base: *mut c_void) -> Option<Vec<RecvBuffer<'a>>> {
        // SAFETY: dense elements are their bytes, and there are some; the caller's promise.
        let buffer = |spot| unsafe {
            match spot {
                Spot::Empty => RecvBuffer::from(&mut []),
                Spot::Dense(place, bytes) => {
                    RecvBuffer::from(std::slice::from_raw_parts_mut(place, bytes))
                }
                Spot::Typed(place, described) => RecvBuffer::described(place, described),
            }
        };
        Some(self.spots(base)?.into_iter().map(buffer).collect())
    }

    /// Does `work` with the bytes that are sent.
    ///
    /// # Safety
    ///
    /// The elements of all parts are readable, and stay as they are.
    pub unsafe fn outgoing(
        &self,
        base: *const c_void,
        work: impl FnOnce(&[u8], Parts<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let span = self.span();
        let division = self.division(span.map(|(first, _)| first));
        let parts = division.parts();
        match span {
            Some((_, 0)) => work(&[], parts),
            Some((first, length)) => {
                let first = base.wrapping_byte_offset(first).cast::<u8>();
                // SAFETY: dense elements are their bytes; only those of the parts are touched.
                work(unsafe { std::slice::from_raw_parts(first, length) }, parts)
            }
            // SAFETY: the caller's promise.
            None => work(&unsafe { self.pack(base)? }, parts),
        }
    }

    /// Has `work` fill the bytes of all parts but that of the rank `keep`, which are there already.
    ///
    /// # Safety
    ///
    /// The elements of all parts are writable, and used by nobody else.
    pub unsafe fn incoming(
        &self,
        base: *mut c_void,
        keep: Option<usize>,
        work: impl FnOnce(&mut [u8], Parts<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let span = self.span();
        let division = self.division(span.map(|(first, _)| first));
        let parts = division.parts();
        match span {
            Some((_, 0)) => return work(&mut [], parts),
            Some((first, length)) => {
                let first = base.wrapping_byte_offset(first).cast::<u8>();
                // SAFETY: dense elements are their bytes; only those of the parts are touched.
                let bytes = unsafe { std::slice::from_raw_parts_mut(first, length) };
                return work(bytes, parts);
            }
            None => {}
        }
        let mut packed = Scratch::new(self.total())?;
        if let Some(rank) = keep {
            // SAFETY: the caller's promise.
            unsafe { self.pack_part(base, rank, &mut packed, &division)? };
        }
        work(&mut packed, parts)?;
        // SAFETY: the caller's promise.
        unsafe { self.unpack(base, keep, &packed)? };
        Ok(())
    }
}
