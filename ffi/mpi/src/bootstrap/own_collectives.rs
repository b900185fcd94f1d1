// SPDX-License-Identifier: MIT OR Apache-2.0

//! Values that the ranks of a communicator exchange through the MPI library, before they share
//! memory.

use std::ffi::c_int;
use std::mem::size_of;

use libcopy::topology::CPU_WORDS;

use crate::library::abi::{Abi, Word};
use crate::library::pmpi;

/// What is sent as its bytes.
///
/// # Safety
///
/// Any bytes are a value.
pub unsafe trait Plain: Copy + Default {}

// SAFETY: an integer.
unsafe impl Plain for u8 {}
// SAFETY: an integer.
unsafe impl Plain for c_int {}
// SAFETY: an integer.
unsafe impl Plain for u64 {}
// SAFETY: integers only.
unsafe impl Plain for [u8; 24] {}
// SAFETY: integers only.
unsafe impl Plain for [u64; 2] {}
// SAFETY: integers only.
unsafe impl Plain for [u64; CPU_WORDS + 1] {}

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

/// The texts of all `size` ranks, one behind the other, for rank 0; an empty one for the others.
/// `None` if the library fails, or if they are too long together. Collective.
pub fn gather(abi: &Abi, comm: Word, mine: &str, size: usize) -> Option<String> {
    let lengths = allgather(abi, comm, mine.len() as u64, size)?;
    let mut places = Vec::with_capacity(size);
    let mut all = 0u64;
    for length in &lengths {
        places.push(c_int::try_from(all).ok()?);
        all += length;
    }
    let counts = lengths.iter().map(|length| c_int::try_from(*length).ok());
    let counts: Vec<c_int> = counts.collect::<Option<_>>()?;
    c_int::try_from(all).ok()?;
    let mut rank = 0;
    // SAFETY: a communicator, and a writable output.
    if unsafe { pmpi::comm_rank(comm, &mut rank) } != 0 {
        return None;
    }
    let mut text = vec![0u8; if rank == 0 { all as usize } else { 0 }];
    // SAFETY: all ranks are here; the root has room for what each says that it sends.
    let code = unsafe {
        pmpi::gatherv(
            mine.as_ptr().cast(),
            mine.len() as c_int,
            abi.byte,
            text.as_mut_ptr().cast(),
            counts.as_ptr().cast(),
            places.as_ptr().cast(),
            abi.byte,
            0,
            comm,
        )
    };
    (code == 0).then(|| String::from_utf8_lossy(&text).into_owned())
}

/// Does something collective among some ranks of `MPI_COMM_WORLD`, of which this is one; the others
/// do not come here. `None` if the library has no communicator for them.
pub fn among<R>(abi: &Abi, ranks: &[c_int], work: impl FnOnce(Word) -> R) -> Option<R> {
    /// Of the messages by which they agree; not the program's, which has other contexts.
    const TAG: c_int = 0x11bc;
    let length = c_int::try_from(ranks.len()).ok()?;
    let (mut world, mut group, mut comm) = (0, 0, 0);
    // SAFETY: ranks of MPI_COMM_WORLD, as many as said; writable words, which have room for either
    // kind of handle.
    unsafe {
        let answers = [
            pmpi::comm_group(abi.world, &mut world),
            pmpi::group_incl(world, length, ranks.as_ptr(), &mut group),
            pmpi::comm_create_group(abi.world, group, TAG, &mut comm),
        ];
        pmpi::group_free(&mut group);
        pmpi::group_free(&mut world);
        if answers != [0; 3] {
            return None;
        }
        let result = work(comm);
        pmpi::comm_free(&mut comm);
        Some(result)
    }
}
