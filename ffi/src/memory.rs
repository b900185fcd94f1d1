// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pointers from C become slices here, after a look at them.

use crate::error::{Failure, invalid};
use libcopy::Parts;
use std::ffi::c_void;

fn check(what: &str, address: *const c_void, length: usize) -> Result<(), Failure> {
    if address.is_null() && length > 0 {
        return Err(invalid(format!(
            "{what} is null, but {length} bytes are asked for"
        )));
    }
    if length > isize::MAX as usize {
        return Err(invalid(format!(
            "{what} of {length} bytes is longer than memory can be"
        )));
    }
    Ok(())
}

/// # Safety
///
/// `address` is readable for `length` bytes for `'a`, or null.
pub(crate) unsafe fn bytes<'a>(
    what: &str,
    address: *const c_void,
    length: usize,
) -> Result<&'a [u8], Failure> {
    check(what, address, length)?;
    if address.is_null() {
        return Ok(&[]);
    }
    // SAFETY: not null, not too long, and the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts(address.cast(), length) })
}

/// # Safety
///
/// `address` is writable for `length` bytes for `'a` and nobody else uses them, or null.
pub(crate) unsafe fn bytes_mut<'a>(
    what: &str,
    address: *mut c_void,
    length: usize,
) -> Result<&'a mut [u8], Failure> {
    check(what, address, length)?;
    if address.is_null() {
        return Ok(&mut []);
    }
    // SAFETY: not null, not too long, and the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(address.cast(), length) })
}

/// Refuses buffers that share bytes: as slices they would be undefined behaviour.
pub(crate) fn disjoint(
    send: *const c_void,
    send_length: usize,
    recv: *const c_void,
    recv_length: usize,
) -> Result<(), Failure> {
    let (s, r) = (send as usize, recv as usize);
    let apart = s.saturating_add(send_length) <= r || r.saturating_add(recv_length) <= s;
    if apart || send_length == 0 || recv_length == 0 {
        return Ok(());
    }
    Err(invalid(
        "send and recv overlap; give them memory of their own",
    ))
}

/// Bytes of `size` blocks.
pub(crate) fn total(length: usize, size: usize) -> Result<usize, Failure> {
    length.checked_mul(size).ok_or_else(|| {
        invalid(format!(
            "{size} blocks of {length} bytes are longer than memory can be"
        ))
    })
}

/// # Safety
///
/// `counts` and `offsets` point to `size` numbers each for `'a`, or are null.
pub(crate) unsafe fn parts<'a>(
    counts: *const usize,
    offsets: *const usize,
    size: usize,
) -> Result<(Parts<'a>, usize), Failure> {
    if counts.is_null() || offsets.is_null() {
        return Err(invalid(format!(
            "counts or offsets is null, but {size} numbers of each are needed, one per rank"
        )));
    }
    if !counts.is_aligned() || !offsets.is_aligned() {
        return Err(invalid("counts or offsets is not aligned as a size_t"));
    }
    // SAFETY: neither null nor unaligned, and the caller vouches for the rest; a team has far
    // fewer ranks than a slice may have elements.
    let (counts, offsets) = unsafe {
        (
            std::slice::from_raw_parts(counts, size),
            std::slice::from_raw_parts(offsets, size),
        )
    };
    let mut end = 0;
    for (&count, &offset) in counts.iter().zip(offsets) {
        let part = offset.checked_add(count).ok_or_else(|| {
            invalid(format!(
                "a part of {count} bytes at {offset} is longer than memory can be"
            ))
        })?;
        // An empty part needs no memory, wherever it is said to be, but must lie within it.
        end = end.max(part);
    }
    Ok((Parts { counts, offsets }, end))
}
