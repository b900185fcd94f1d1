// SPDX-License-Identifier: MIT OR Apache-2.0

//! Bytes of elements.

use crate::decide::threshold;
use crate::library::abi::{Abi, Word};
use crate::library::pmpi;

/// Bytes of data in `count` elements; `None` if the library does not accept the datatype, or if
/// that is not a number of bytes.
#[inline]
pub fn bytes(abi: &Abi, count: usize, datatype: Word) -> Option<usize> {
    match threshold::size(datatype) {
        Some(size) => size.checked_mul(count),
        None => size_of(abi, datatype)?.checked_mul(count),
    }
}

#[cold]
fn size_of(abi: &Abi, datatype: Word) -> Option<usize> {
    if !abi.is_type(datatype) {
        return None;
    }
    let (mut size, mut combiner) = (0i64, 0);
    // SAFETY: writable outputs; the library checks the datatype.
    let answers = unsafe {
        [
            pmpi::type_size(datatype, &mut size),
            pmpi::type_combiner(datatype, &mut combiner),
        ]
    };
    let size = usize::try_from(size).ok().filter(|_| answers == [0; 2])?;
    if combiner == abi.named && abi.has_wide_handles() {
        threshold::learn_size(datatype, size);
    }
    Some(size)
}
