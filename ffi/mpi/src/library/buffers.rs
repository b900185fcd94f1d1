// SPDX-License-Identifier: MIT OR Apache-2.0

//! The buffers of a collective as the program gives them. Each is an address, how many elements
//! there are, and of which type; `A` is the address, `N` what counts.

use std::ffi::c_void;
use std::ops::Range;

use libcopy::Parts;

use crate::library::abi::Word;
use crate::library::count::Count;

/// `count` elements of one type; for each rank, if the function says so.
#[derive(Clone, Copy)]
pub struct Buffer<A, N> {
    pub base: A,
    pub count: N,
    pub datatype: Word,
}

/// A buffer that is read.
pub type Sent<N> = Buffer<*const c_void, N>;
/// A buffer that is written.
pub type Received<N> = Buffer<*mut c_void, N>;

impl<A, N: Count> Buffer<A, N> {
    /// How many elements, if that is a number of elements, and of which type.
    pub fn pair(&self) -> (Option<usize>, Word) {
        (self.count.number(), self.datatype)
    }
}

impl<N> Sent<N> {
    /// The first bytes.
    ///
    /// # Safety
    ///
    /// There are so many, and they stay as they are for `'a`.
    pub unsafe fn bytes<'a>(&self, bytes: usize) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.base.cast(), bytes) }
    }
}

impl<N> Received<N> {
    /// The first bytes.
    ///
    /// # Safety
    ///
    /// There are so many, and nobody else uses them for `'a`.
    pub unsafe fn bytes<'a>(&self, bytes: usize) -> &'a mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.base.cast(), bytes) }
    }
}

/// A part of one type for each rank or neighbour: `counts` elements, `places` in elements.
#[derive(Clone, Copy)]
pub struct BufferV<A, N: Count> {
    pub base: A,
    pub counts: *const N,
    pub places: *const N::Place,
    pub datatype: Word,
}

/// A part for each rank or neighbour, each of its own type: `places` in bytes, each a `P`, `types`
/// an array of handles.
#[derive(Clone, Copy)]
pub struct BufferW<A, N, P> {
    pub base: A,
    pub counts: *const N,
    pub places: *const P,
    pub types: *const c_void,
}

impl<A, N, P> BufferW<A, N, P> {
    /// Whether it has arrays.
    pub fn is_there(&self) -> bool {
        !self.counts.is_null() && !self.places.is_null() && !self.types.is_null()
    }
}

/// Lengths and offsets of all ranks' parts.
pub struct Division {
    pub counts: Vec<usize>,
    pub offsets: Vec<usize>,
}

impl Division {
    /// A rank's bytes.
    pub fn range(&self, rank: usize) -> Range<usize> {
        self.offsets[rank]..self.offsets[rank] + self.counts[rank]
    }

    /// The parts that these are.
    pub fn parts(&self) -> Parts<'_> {
        Parts {
            counts: &self.counts,
            offsets: &self.offsets,
        }
    }
}

/// What a reduction combines, and where the result is; `C` is a count, or one for each rank.
#[derive(Clone, Copy)]
pub struct Reduction<C> {
    pub send: *const c_void,
    pub recv: *mut c_void,
    pub count: C,
    pub datatype: Word,
    pub op: Word,
}

impl<N: Count> Reduction<N> {
    /// How many elements, if that is a number of elements, and of which type.
    pub fn pair(&self) -> (Option<usize>, Word) {
        (self.count.number(), self.datatype)
    }
}

/// Which way a function packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `MPI_Pack` and its relatives.
    Packs,
    /// `MPI_Unpack` and its relatives.
    Unpacks,
}

/// What `MPI_Pack`, `MPI_Unpack` and their relatives for external32 are called with: `count`
/// elements at one address, `size` bytes with a position at the other. `P` is what counts bytes.
#[derive(Clone, Copy)]
pub struct Packing<N, P> {
    pub side: Side,
    pub input: *const c_void,
    pub output: *mut c_void,
    pub count: N,
    pub datatype: Word,
    pub size: P,
    pub position: *mut P,
}

impl<N, P> Packing<N, P> {
    /// Where the elements are, and where the packed bytes are.
    #[inline(always)]
    pub fn places(&self) -> (*mut c_void, *mut c_void) {
        let input = self.input.cast_mut();
        match self.side {
            Side::Packs => (input, self.output),
            Side::Unpacks => (self.output, input),
        }
    }

    /// The same with elements and packed bytes at other places.
    #[inline(always)]
    pub fn at(self, elements: *mut c_void, packed: *mut c_void) -> Self {
        let (input, output) = match self.side {
            Side::Packs => (elements, packed),
            Side::Unpacks => (packed, elements),
        };
        let input = input.cast_const();
        Packing {
            input,
            output,
            ..self
        }
    }
}

/// An address of the program's.
pub trait Address: Copy {
    fn get(self) -> *mut c_void;
    fn at(address: *mut c_void) -> Self;
}

impl Address for *const c_void {
    fn get(self) -> *mut c_void {
        self.cast_mut()
    }

    fn at(address: *mut c_void) -> Self {
        address
    }
}

impl Address for *mut c_void {
    fn get(self) -> *mut c_void {
        self
    }

    fn at(address: *mut c_void) -> Self {
        address
    }
}
