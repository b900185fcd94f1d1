// SPDX-License-Identifier: MIT OR Apache-2.0

//! A buffer of the program's as the packed stream of its bytes.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use libcopy::datatype::{Datatype, memcpy};
use libcopy::p2p::{OpaqueElements, View};

use crate::library::abi::{Abi, Word};
use crate::library::pmpi;
use crate::types::buffer::Kind;
use crate::types::datatype::{self, Known};

/// Elements that only the MPI library can pack and unpack.
#[derive(Debug)]
struct Opaque {
    kind: Kind,
    base: *mut c_void,
    count: usize,
    datatype: Word,
}

// SAFETY: the addresses are the program's, which lent them until the message is complete.
unsafe impl Send for Opaque {}
// SAFETY: as above.
unsafe impl Sync for Opaque {}

impl Drop for Opaque {
    fn drop(&mut self) {
        // SAFETY: a duplicate of our own.
        unsafe { pmpi::type_free(&mut self.datatype) };
    }
}

/// A view of `count` elements; `None` if there can be none.
pub fn new(known: &Known, base: *mut c_void, count: usize) -> Option<View> {
    if known.dense {
        return Some(View::Dense(base.cast()));
    }
    of(known.datatype.as_ref()?, base, count)
}

fn of(datatype: &Datatype, base: *mut c_void, count: usize) -> Option<View> {
    let prepared = datatype::layout(datatype, count as u64)?;
    Some(View::of(prepared.described.clone(), base.cast()))
}

/// A view of elements that are received; the library helps where we do not know their type.
pub fn receiving(
    abi: &Abi,
    known: &Known,
    (base, count, datatype): (*mut c_void, usize, Word),
    comm: Word,
) -> Option<View> {
    if known.dense {
        return new(known, base, count);
    }
    if let Some(received) = known.received() {
        return of(received, base, count);
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
    Some(View::Opaque(Box::new(Opaque {
        kind,
        base,
        count,
        datatype: own,
    })))
}

impl OpaqueElements for Opaque {
    unsafe fn pack(&self, range: Range<u64>, to: *mut u8) -> Result<(), c_int> {
        let size = self.kind.size().max(1) as u64;
        let count = (range.end.div_ceil(size) as usize).min(self.count);
        // SAFETY: the caller's promise.
        let packed = unsafe { self.kind.copy_out(self.base, count)? };
        let part = &packed[range.start as usize..range.end as usize];
        // SAFETY: the caller's promise.
        unsafe { memcpy::copy(to, part.as_ptr(), part.len()) };
        Ok(())
    }

    unsafe fn unpack(&self, from: *const u8, range: Range<u64>) -> Result<(), c_int> {
        let size = self.kind.size().max(1);
        let len = (range.end - range.start) as usize;
        let count = len.div_ceil(size).min(self.count);
        // SAFETY: the caller's promise. An element that comes in part keeps its rest.
        unsafe {
            let mut whole = match len % size {
                0 => Vec::new(),
                _ => self.kind.copy_out(self.base, count)?,
            };
            let bytes = std::slice::from_raw_parts(from, len);
            let bytes = match whole.get_mut(..len) {
                Some(start) => {
                    start.copy_from_slice(bytes);
                    whole.as_slice()
                }
                None => bytes,
            };
            self.kind.unpack(bytes, self.base, count)
        }
    }
}
