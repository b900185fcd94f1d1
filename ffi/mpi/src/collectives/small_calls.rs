// SPDX-License-Identifier: MIT OR Apache-2.0

//! The first question about calls whose ranks have parts of different lengths: whether the
//! communicator says that they are forwarded in any case. It has to cost next to nothing
//! ([`crate::decide::threshold`]).

use crate::comm::communicator;
use crate::decide::threshold::{handle_bits, least, size};
use crate::library::abi::Word;
use crate::library::count::Count;
use crate::library::stats::Function;

/// Whether counts that all ranks know, combined by `combine`, are to be forwarded in any case.
///
/// # Safety
///
/// There is a count for each rank of the communicator.
#[inline(always)]
unsafe fn are_small<N: Count>(
    function: Function,
    counts: *const N,
    datatype: Word,
    comm: Word,
    combine: impl Fn(usize, usize) -> Option<usize>,
) -> bool {
    // What is read behind the look at the thread's memory, a call, need not be kept meanwhile.
    let small = communicator::with_last(comm, handle_bits, |known| {
        let least = least(function);
        if least == 0 || counts.is_null() {
            return false;
        }
        if !known.is_plain() {
            return true;
        }
        let mut all = 0usize;
        for rank in 0..known.size {
            // SAFETY: the caller's promise.
            let count = unsafe { counts.add(rank).read() };
            match count.number().and_then(|count| combine(all, count)) {
                Some(combined) => all = combined,
                None => return false,
            }
        }
        let size = size(datatype);
        size.is_some_and(|size| (all as u128) * (size as u128) < u128::from(least))
    });
    small == Some(true)
}

/// Whether parts of these lengths are to be forwarded in any case.
///
/// # Safety
///
/// There is a count for each rank of the communicator.
#[inline(always)]
pub unsafe fn are_small_parts<N: Count>(
    function: Function,
    counts: *const N,
    datatype: Word,
    comm: Word,
) -> bool {
    let largest = |a: usize, b: usize| Some(a.max(b));
    // SAFETY: the caller's promise.
    unsafe { are_small(function, counts, datatype, comm, largest) }
}

/// Whether that many elements together are to be forwarded in any case.
///
/// # Safety
///
/// There is a count for each rank of the communicator.
#[inline(always)]
pub unsafe fn are_small_together<N: Count>(
    function: Function,
    counts: *const N,
    datatype: Word,
    comm: Word,
) -> bool {
    // SAFETY: the caller's promise.
    unsafe { are_small(function, counts, datatype, comm, usize::checked_add) }
}

/// Whether a call whose ranks know only their own parts is to be forwarded in any case: it was
/// small when they last agreed, and it is not time to agree. Then it has been counted.
#[inline(always)]
pub fn were_small(function: Function, comm: Word) -> bool {
    let small = communicator::with_last(comm, handle_bits, |known| {
        let least = least(function);
        // What a rank sends to itself alone is typed on both sides only there
        // (`vector::alltoallw`).
        let is_own = function == Function::Alltoallw && known.is_alone();
        least != 0 && (!(known.is_plain() || is_own) || known.stays_small(function, least))
    });
    small == Some(true)
}
