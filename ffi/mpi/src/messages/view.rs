// SPDX-License-Identifier: MIT OR Apache-2.0

//! A buffer of the program's as the packed stream of its bytes.

use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use crate::abi::{Abi, Word};
use crate::buffer::Kind;
use crate::pmpi;
use crate::types::{self, Known, Prepared};

/// Elements that a program sends or receives.
#[derive(Debug)]
pub enum View {
    /// Bytes, one behind the other.
    Dense(*mut u8),
    /// A layout whose offsets count from the address.
    Typed(Arc<Prepared>, *mut u8),
    /// Elements of a type that only the MPI library knows.
    Opaque(Opaque),
}

/// Elements that only the MPI library can pack and unpack.
#[derive(Debug)]
pub struct Opaque {
    kind: Kind,
    base: *mut c_void,
    count: usize,
    datatype: Word,
}

// SAFETY: the addresses are the program's, which lent them until the message is complete.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl Drop for Opaque {
    fn drop(&mut self) {
        // SAFETY: a duplicate of our own.
        unsafe { pmpi::type_free(&mut self.datatype) };
    }
}

impl View {
    /// A view of `count` elements; `None` if there can be none.
    pub fn new(known: &Known, base: *mut c_void, count: usize) -> Option<View> {
        if known.dense {
            return Some(View::Dense(base.cast()));
        }
        let prepared = types::layout(known.datatype.as_ref()?, count as u64)?;
        Some(View::of(prepared, base))
    }

    fn of(prepared: Arc<Prepared>, base: *mut c_void) -> View {
        let form = prepared.layout.form();
        match form.segments() {
            1 => View::Dense(base.cast::<u8>().wrapping_offset(form.offset() as isize)),
            _ => View::Typed(prepared, base.cast()),
        }
    }

    /// A view of elements that are received; the library helps where we do not know their type.
    pub fn receiving(
        abi: &Abi,
        known: &Known,
        (base, count, datatype): (*mut c_void, usize, Word),
        comm: Word,
    ) -> Option<View> {
        if known.dense || known.datatype.is_some() {
            return View::new(known, base, count);
        }
        let mut own = 0;
        // SAFETY: a datatype of the program's; a word has room for either kind of handle.
        if unsafe { pmpi::type_dup(datatype, &mut own) } != 0 {
            return None;
        }
        let Some(kind) = Kind::of(abi, own, comm) else {
            // SAFETY: a duplicate of our own.
            unsafe { pmpi::type_free(&mut own) };
            return None;
        };
        Some(View::Opaque(Opaque {
            kind,
            base,
            count,
            datatype: own,
        }))
    }

    /// Packs a part of the stream; an error code of the library's if it cannot.
    ///
    /// # Safety
    ///
    /// The elements have this part; `to` is writable for its length.
    pub unsafe fn pack(&self, range: Range<u64>, to: *mut u8) -> Result<(), c_int> {
        match self {
            View::Dense(base) => {
                let from = base.wrapping_add(range.start as usize);
                let len = (range.end - range.start) as usize;
                // SAFETY: the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
            }
            // SAFETY: the caller's promise.
            View::Typed(prepared, origin) => unsafe {
                prepared.layout.pack_raw(*origin, range, to);
            },
            View::Opaque(opaque) => {
                let size = opaque.kind.size().max(1) as u64;
                let count = (range.end.div_ceil(size) as usize).min(opaque.count);
                // SAFETY: the caller's promise.
                let packed = unsafe { opaque.kind.copy_out(opaque.base, count)? };
                let part = &packed[range.start as usize..range.end as usize];
                // SAFETY: the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len()) };
            }
        }
        Ok(())
    }

    /// Unpacks a part of the stream; for opaque elements only the whole from its start.
    ///
    /// # Safety
    ///
    /// The elements have this part and are writable; `from` has its bytes.
    pub unsafe fn unpack(&self, from: *const u8, range: Range<u64>) -> Result<(), c_int> {
        match self {
            View::Dense(base) => {
                let to = base.wrapping_add(range.start as usize);
                let len = (range.end - range.start) as usize;
                // SAFETY: the caller's promise.
                unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
            }
            // SAFETY: the caller's promise.
            View::Typed(prepared, origin) => unsafe {
                prepared.layout.unpack_raw(from, range, *origin);
            },
            View::Opaque(opaque) => {
                let size = opaque.kind.size().max(1);
                let len = (range.end - range.start) as usize;
                let count = len.div_ceil(size).min(opaque.count);
                // SAFETY: the caller's promise. An element that comes in part keeps its rest.
                unsafe {
                    let mut whole = match len % size {
                        0 => Vec::new(),
                        _ => opaque.kind.copy_out(opaque.base, count)?,
                    };
                    let bytes = std::slice::from_raw_parts(from, len);
                    let bytes = match whole.get_mut(..len) {
                        Some(start) => {
                            start.copy_from_slice(bytes);
                            whole.as_slice()
                        }
                        None => bytes,
                    };
                    opaque.kind.unpack(bytes, opaque.base, count)?;
                }
            }
        }
        Ok(())
    }

    /// Whether parts can be unpacked one after the other.
    pub fn takes_parts(&self) -> bool {
        !matches!(self, View::Opaque(_))
    }
}
