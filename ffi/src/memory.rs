// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pointers from C become slices here, after a look at them.

use crate::error::{Failure, invalid};
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
