// SPDX-License-Identifier: MIT OR Apache-2.0

//! A buffer of the program's as the packed stream of its bytes.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use libcopy_datatype::Layout;

use crate::memcpy;

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

    /// The form in words, and a hash of them; `None` without room for the words.
    pub fn described(&self) -> Option<&(Vec<u64>, [u64; 2])> {
        if let Some(known) = self.described.get() {
            return Some(known);
        }
        let words = self.layout.form().to_words().ok()?;
        let hash = hash(&words);
        Some(self.described.get_or_init(|| (words, hash)))
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

/// Words of a [`DeviceHandle`]'s memory.
pub const HANDLE_WORDS: usize = 16;

/// What another process needs to reach memory of a device's, a GPU's: neither is looked at here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceHandle {
    /// Says which memory it is, from the lowest byte of the elements on.
    pub memory: [u64; HANDLE_WORDS],
    /// An address in the owner's host memory, where it has what is tried out before the first
    /// message.
    pub trial: u64,
}

/// Elements that are sent out of memory that processors do not reach.
pub trait DeviceElements: fmt::Debug + Send {
    /// How another process reaches them.
    fn handle(&self) -> DeviceHandle;

    /// Their layout; `None` if they are dense.
    fn described(&self) -> Option<&DescribedLayout>;

    /// Packs all of them into host memory.
    ///
    /// # Errors
    ///
    /// An error code of the library that they are sent for.
    fn packed(&self) -> Result<Box<dyn PackedBytes>, i32>;

    /// Whether somebody wants that their receiver copies them, however late that is.
    fn is_wanted(&self) -> bool;

    /// The message is over: whether its receiver has copied them, or they were packed for it.
    fn over(&self, were_copied: bool);
}

/// Packed bytes in host memory.
pub trait PackedBytes: fmt::Debug + Send {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

impl PackedBytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A copy out of memory that processors do not reach, which another process has handed over.
/// Dropping it waits until nothing is copied any more.
pub trait DeviceCopy: fmt::Debug + Send {
    /// Begins.
    ///
    /// # Errors
    ///
    /// Why nothing is copied.
    fn start(&mut self) -> Result<(), String>;

    /// Whether all bytes are there; does not wait.
    ///
    /// # Errors
    ///
    /// Why they never will be.
    fn is_done(&mut self) -> Result<bool, String>;
}

/// What a message is sent out of.
#[derive(Debug)]
pub enum Content {
    /// Elements in host memory.
    Host(View),
    /// Elements in memory that no processor may touch.
    Device(Box<dyn DeviceElements>),
}

impl From<View> for Content {
    fn from(view: View) -> Content {
        Content::Host(view)
    }
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
                unsafe { memcpy::cached(to, from, len) };
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
                unsafe { memcpy::cached(to, from, len) };
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
