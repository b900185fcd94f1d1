// SPDX-License-Identifier: GPL-2.0

//! [`Argument`]: what an ioctl reads from its caller and writes back.

use crate::abstractions::shim;
use crate::base::few::Few;
use crate::uapi;
use core::mem::size_of;
use kernel::prelude::*;
use kernel::transmute::{AsBytes, FromBytes};
use kernel::uaccess::{UserPtr, UserSlice};

/// An ioctl argument of the caller: read once, extended with zeros, written back once.
pub(crate) struct Argument {
    address: usize,
    size: usize,
}

impl Argument {
    /// The argument at an address of the caller, as long as the caller says.
    pub(crate) fn new(address: usize, size: usize) -> Self {
        Self { address, size }
    }

    /// Reads the structure. `least` is its size in the first version of the ABI.
    pub(crate) fn read<T: Default + FromBytes + AsBytes>(&self, least: usize) -> Result<T> {
        if self.size < least {
            return Err(EINVAL);
        }
        let known = usize::min(self.size, size_of::<T>());
        let mut reader = UserSlice::new(UserPtr::from_addr(self.address), self.size).reader();
        let mut value = T::default();
        reader.read_slice(&mut value.as_bytes_mut()[..known])?;
        while !reader.is_empty() {
            let mut tail = [0u8; 64];
            let len = usize::min(reader.len(), tail.len());
            reader.read_slice(&mut tail[..len])?;
            if tail[..len].iter().any(|byte| *byte != 0) {
                return Err(E2BIG);
            }
        }
        Ok(value)
    }

    /// Writes the structure back, as far as the caller knows it.
    pub(crate) fn write<T: AsBytes>(&self, value: &T) -> Result {
        let known = usize::min(self.size, size_of::<T>());
        let mut writer = UserSlice::new(UserPtr::from_addr(self.address), known).writer();
        writer.write_slice(&value.as_bytes()[..known])
    }
}

/// The structures of the ABI are `repr(C)` integers without padding (checked in uapi.rs by their
/// sizes), so that every byte pattern is a value, and every value consists of initialised bytes.
macro_rules! plain {
    ($($name:ident)*) => {$(
        // SAFETY: Integers and arrays of integers only.
        unsafe impl FromBytes for uapi::$name {}
        // SAFETY: No padding, and nothing is changed through a shared reference.
        unsafe impl AsBytes for uapi::$name {}
    )*};
}

plain! {
    Info DomainCreate DomainJoin DomainLeave RegionCreate RegionDestroy RegionInfo
    RegionCopy RegionAttach EngineInfo RequestSubmit RequestWait RequestSwitch
    RequestInfo RequestCancel Piece
}

/// Reads pieces of the caller's memory; see [`shim::untagged_address`].
pub(crate) fn read_pieces(address: u64, count: u32) -> Result<Few<uapi::Piece>> {
    let mut pieces = read_ranges(address, count)?;
    for piece in pieces.iter_mut() {
        piece.base = shim::untagged_address(piece.base);
    }
    Ok(pieces)
}

/// Reads an array of pieces, once.
///
/// - `EINVAL`: there are none, or more than [`uapi::MAX_IOV`].
pub(crate) fn read_ranges(address: u64, count: u32) -> Result<Few<uapi::Piece>> {
    if count == 0 || count > uapi::MAX_IOV {
        return Err(EINVAL);
    }
    let count = count as usize;
    let bytes = count * size_of::<uapi::Piece>();
    let mut reader = UserSlice::new(UserPtr::from_addr(address as usize), bytes).reader();
    let none = uapi::Piece::default();
    if count == 1 {
        let mut one = [none];
        reader.read_slice(one.as_bytes_mut())?;
        return Ok(Few::One(one));
    }
    let mut list = KVVec::from_elem(none, count, GFP_KERNEL_ACCOUNT)?;
    reader.read_slice(list.as_bytes_mut())?;
    Ok(Few::Many(list))
}

/// Refuses flags that are not known.
pub(crate) fn only(flags: u32, known: u32) -> Result {
    if flags & !known != 0 {
        return Err(EINVAL);
    }
    Ok(())
}

/// Refuses reserved fields that are not zero.
pub(crate) fn zero(reserved: u64) -> Result {
    if reserved != 0 {
        return Err(EINVAL);
    }
    Ok(())
}
