// SPDX-License-Identifier: MIT OR Apache-2.0

//! Values that the ranks of a communicator exchange through the MPI library, before they share
//! memory.

use std::ffi::c_int;
use std::mem::size_of;

use crate::library::abi::{Abi, Word};
use crate::library::pmpi;

/// What is sent as its bytes.
///
/// # Safety
///
/// Any bytes are a value.
pub unsafe trait Plain: Copy + Default {}

// SAFETY: integers only.
unsafe impl Plain for [u64; 2] {}
// SAFETY: integers only.
unsafe impl Plain for [u64; 16] {}

/// Gives all ranks the value of the first one; returns the library's code. Collective.
pub fn bcast<T: Plain>(abi: &Abi, comm: Word, value: &mut T) -> c_int {
    let (at, len) = ((&raw mut *value).cast(), size_of::<T>() as c_int);
    // SAFETY: all ranks are here; any bytes that come are a value.
    unsafe { pmpi::bcast(at, len, abi.byte, 0, comm) }
}

/// The value of each of `size` ranks, in their order; `None` if the library fails. Collective.
pub fn allgather<T: Plain>(abi: &Abi, comm: Word, mine: T, size: usize) -> Option<Vec<T>> {
    let mut all = vec![T::default(); size];
    let (from, to, len) = (
        (&raw const mine).cast(),
        all.as_mut_ptr().cast(),
        size_of::<T>() as c_int,
    );
    // SAFETY: all ranks are here; there is room for a value of each, which any bytes are.
    let code = unsafe { pmpi::allgather(from, len, abi.byte, to, len, abi.byte, comm) };
    (code == 0).then_some(all)
}
