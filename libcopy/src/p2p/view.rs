// SPDX-License-Identifier: MIT OR Apache-2.0

//! A buffer of the program's as the packed stream of its bytes.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use libcopy_datatype::Layout;

/// A layout, and how a peer gets to know it.
#[derive(Debug)]
pub struct DescribedLayout {
    /// The layout.
    pub layout: Layout,
    described: OnceLock<(Vec<u64>, [u64; 2])>,
}

impl DescribedLayout {
    /// Nothing is described yet.
    pub fn new(layout: Layout) -> Self {
        DescribedLayout {
            layout,
            described: OnceLock::new(),
        }
    }

    /// The form in words, and a hash of them.
    pub fn described(&self) -> &(Vec<u64>, [u64; 2]) {
        self.described.get_or_init(|| {
            let words = self.layout.form().to_words();
            let hash = hash(&words);
            (words, hash)
        })
    }
}

/// A hash of words: nobody chooses them to collide, and a peer compares what it has not seen.
pub fn hash(words: &[u64]) -> [u64; 2] {
    let mut sums = [
        words.len() as u64 ^ 0x243f_6a88_85a3_08d3,
        0x1319_8a2e_0370_7344,
    ];
    for word in words {
        // Different primes and shifts: what one sum does not tell apart, the other does.
        for (sum, (prime, shift)) in sums
            .iter_mut()
            .zip([(0xff51_afd7_ed55_8ccd_u64, 32), (0xc4ce_b9fe_1a85_ec53, 29)])
        {
            *sum = (*sum ^ word).wrapping_mul(prime);
            *sum ^= *sum >> shift;
        }
    }
    sums
}

/// Elements that only another library can pack and unpack.
pub trait OpaqueElements: fmt::Debug + Send + Sync {
    /// Packs a part of the stream; an error code of that library if it cannot.
    ///
    /// # Errors
    ///
    /// An error code of that library.
    ///
    /// # Safety
    ///
    /// The elements have this part and are readable; `to` is writable for its length.
    unsafe fn pack(&self, range: Range<u64>, to: *mut u8) -> Result<(), i32>;

    /// Unpacks a part of the stream, from its start.
    ///
    /// # Errors
    ///
    /// An error code of that library.
    ///
    /// # Safety
    ///
    /// The elements have this part and are writable; `from` has its bytes.
    unsafe fn unpack(&self, from: *const u8, range: Range<u64>) -> Result<(), i32>;
}

/// Elements that a program sends or receives.
#[derive(Debug)]
pub enum View {
    /// Bytes, one behind the other.
    Dense(*mut u8),
    /// A layout whose offsets count from the address.
    Typed(Arc<DescribedLayout>, *mut u8),
    /// Elements of a type that only another library knows.
    Opaque(Box<dyn OpaqueElements>),
}

// SAFETY: the addresses are the program's, which lent them until the message is complete.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    /// A view of a layout's elements: dense if they are one piece.
    pub fn of(described: Arc<DescribedLayout>, base: *mut u8) -> View {
        let form = described.layout.form();
        match form.segments() {
            1 => View::Dense(base.wrapping_offset(form.offset() as isize)),
            _ => View::Typed(described, base),
        }
    }

    /// Packs a part of the stream.
    ///
    /// # Errors
    ///
    /// An error code of the library that packs opaque elements.
    ///
    /// # Safety
    ///
    /// The elements have this part; `to` is writable for its length.
    pub unsafe fn pack(&self, range: Range<u64>, to: *mut u8) -> Result<(), i32> {
        match self {
            View::Dense(base) => {
                let from = base.wrapping_add(range.start as usize);
                let len = (range.end - range.start) as usize;
                // SAFETY: the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
            }
            // SAFETY: the caller's promise.
            View::Typed(described, origin) => unsafe {
                described.layout.pack_raw(*origin, range, to);
            },
            // SAFETY: the caller's promise.
            View::Opaque(opaque) => unsafe { opaque.pack(range, to)? },
        }
        Ok(())
    }

    /// Unpacks a part of the stream; for opaque elements only the whole from its start.
    ///
    /// # Errors
    ///
    /// An error code of the library that unpacks opaque elements.
    ///
    /// # Safety
    ///
    /// The elements have this part and are writable; `from` has its bytes.
    pub unsafe fn unpack(&self, from: *const u8, range: Range<u64>) -> Result<(), i32> {
        match self {
            View::Dense(base) => {
                let to = base.wrapping_add(range.start as usize);
                let len = (range.end - range.start) as usize;
                // SAFETY: the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
            }
            // SAFETY: the caller's promise.
            View::Typed(described, origin) => unsafe {
                described.layout.unpack_raw(from, range, *origin);
            },
            // SAFETY: the caller's promise.
            View::Opaque(opaque) => unsafe { opaque.unpack(from, range)? },
        }
        Ok(())
    }

    /// Whether parts can be unpacked one after the other.
    pub fn takes_parts(&self) -> bool {
        !matches!(self, View::Opaque(_))
    }
}
