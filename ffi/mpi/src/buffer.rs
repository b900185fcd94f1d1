// SPDX-License-Identifier: MIT OR Apache-2.0

//! A rank's buffers as bytes: in place where the datatype is dense, packed by the MPI library
//! where it is not.

use std::ffi::{c_int, c_void};

use crate::abi::{Abi, Word};
use crate::pmpi;

/// Bytes that are packed with one call: positions are `int`s.
const MOST: usize = 1 << 30;

/// Bytes of data in `count` elements; `None` if the library does not accept the datatype, or if
/// that is not a number of bytes.
pub fn bytes(count: c_int, datatype: Word) -> Option<usize> {
    let mut size = 0i64;
    // SAFETY: a writable output; the library checks the datatype.
    if unsafe { pmpi::type_size(datatype, &mut size) } != 0 {
        return None;
    }
    let count = usize::try_from(count).ok()?;
    usize::try_from(size).ok()?.checked_mul(count)
}

/// A datatype, as far as moving its bytes needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    datatype: Word,
    comm: Word,
    /// Bytes of data.
    size: usize,
    /// Bytes from one element to the next.
    extent: isize,
    /// Whether elements are dense, one behind the other.
    dense: bool,
}

impl Kind {
    /// Asks the library; `None` if it does not accept the datatype.
    pub fn of(abi: &Abi, datatype: Word, comm: Word) -> Option<Kind> {
        let (mut size, mut lower, mut extent) = (0i64, 0, 0);
        let (mut a, mut b, mut c, mut combiner) = (0, 0, 0, 0);
        // SAFETY: writable outputs; the library checks the datatype.
        let answers = unsafe {
            [
                pmpi::type_size(datatype, &mut size),
                pmpi::type_get_extent(datatype, &mut lower, &mut extent),
                pmpi::type_get_envelope(datatype, &mut a, &mut b, &mut c, &mut combiner),
            ]
        };
        if answers != [0; 3] {
            return None;
        }
        let size = usize::try_from(size).ok()?;
        Some(Kind {
            datatype,
            comm,
            size,
            extent,
            // A derived type of full extent may still have its bytes in another order.
            dense: combiner == abi.named && lower == 0 && usize::try_from(extent) == Ok(size),
        })
    }

    /// Bytes of data in `count` elements; `None` if that is not a number of bytes.
    pub fn bytes(&self, count: c_int) -> Option<usize> {
        usize::try_from(count).ok()?.checked_mul(self.size)
    }

    /// Whether `count` elements are their bytes.
    pub fn is_dense(&self) -> bool {
        self.dense
    }

    /// Where element `index` is.
    pub fn element(&self, base: *mut c_void, index: usize) -> *mut c_void {
        base.wrapping_byte_offset(self.extent.wrapping_mul(index as isize))
    }

    /// Elements that are packed with one call.
    fn batch(&self) -> usize {
        (MOST / self.size.max(1)).max(1)
    }

    /// Packs `count` elements.
    ///
    /// # Errors
    ///
    /// The library's error code.
    ///
    /// # Safety
    ///
    /// The elements are readable.
    pub unsafe fn pack(&self, base: *const c_void, count: usize) -> Result<Vec<u8>, c_int> {
        let mut packed = vec![0u8; count * self.size];
        let mut done = 0;
        while done < count {
            let n = (count - done).min(self.batch());
            let from = self.element(base.cast_mut(), done);
            let to = &mut packed[done * self.size..(done + n) * self.size];
            let mut position = 0;
            // SAFETY: the caller's promise; `to` has room for `n` elements.
            let answer = unsafe {
                let (size, out) = (to.len() as c_int, to.as_mut_ptr().cast());
                pmpi::pack(
                    from,
                    n as c_int,
                    self.datatype,
                    out,
                    size,
                    &mut position,
                    self.comm,
                )
            };
            if answer != 0 {
                return Err(answer);
            }
            done += n;
        }
        Ok(packed)
    }

    /// Unpacks `count` elements.
    ///
    /// # Errors
    ///
    /// The library's error code.
    ///
    /// # Safety
    ///
    /// The elements are writable, and `packed` has their bytes.
    pub unsafe fn unpack(
        &self,
        packed: &[u8],
        base: *mut c_void,
        count: usize,
    ) -> Result<(), c_int> {
        let mut done = 0;
        while done < count {
            let n = (count - done).min(self.batch());
            let to = self.element(base, done);
            let from = &packed[done * self.size..(done + n) * self.size];
            let mut position = 0;
            // SAFETY: the caller's promise.
            let answer = unsafe {
                let (size, input) = (from.len() as c_int, from.as_ptr().cast());
                pmpi::unpack(
                    input,
                    size,
                    &mut position,
                    to,
                    n as c_int,
                    self.datatype,
                    self.comm,
                )
            };
            if answer != 0 {
                return Err(answer);
            }
            done += n;
        }
        Ok(())
    }
}
