// SPDX-License-Identifier: MIT OR Apache-2.0

//! Packing and unpacking in the order of a CUDA stream.

use super::handle::libcopy_type_t;
use super::transfer::moved;
use crate::arguments::Out;
use crate::error::{Failure, LIBCOPY_EGPU, Result};
use libcopy_ffi_macros::c_api;
use libcopy_gpu::{Driver, pack_on, unpack_on};
use std::ffi::c_void;

/// The driver that the program has loaded.
fn driver() -> Result<&'static Driver> {
    let none = || {
        Failure(
            LIBCOPY_EGPU,
            "this program has not loaded the CUDA driver (libcuda.so.1): call cuInit or a function of the CUDA \
             runtime first, or libcopy_type_pack and libcopy_type_unpack for host memory"
                .to_owned(),
        )
    };
    Ok(Driver::loaded().ok_or_else(none)??)
}

/// `libcopy_type_pack` by kernels, submitted to a CUDA stream: returns before the bytes are there,
/// and what is submitted to `stream` later finds them. `buffer` and `packed` are device, managed or
/// pinned memory, and the program leaves both alone until the stream has done it. `stream` is a
/// `CUstream` or `cudaStream_t` of the context that the memory belongs to; null is the legacy
/// default stream. The type may be freed before the stream has done it; freeing it waits then.
/// `LIBCOPY_EINVAL`: pageable memory; `LIBCOPY_EGPU`: a program that has not loaded the CUDA driver
/// (12.0 or newer), a stream of another context, a call of the driver that failed.
#[c_api]
pub fn libcopy_type_pack_gpu(
    buffer: *const c_void,
    count: u64,
    datatype: &libcopy_type_t,
    offset: u64,
    packed: *mut c_void,
    max: usize,
    stream: *mut c_void,
    actual: Out<usize>,
) -> Result {
    // Before a plan is made that nobody could use.
    let driver = driver()?;
    let layout = datatype.gpu_layout(count)?;
    let (range, bytes) = moved(layout.layout(), offset, max, buffer, packed)?;
    actual.put(bytes)?;
    // SAFETY: the range lies in the stream of bytes, and the caller guarantees the memory of both.
    // The handle keeps the layout, or drops it with `cuMemFree`, which waits for the kernels.
    unsafe { pack_on(driver, &layout, buffer as u64, range, packed as u64, stream)? };
    Ok(())
}

/// `libcopy_type_unpack` by kernels, submitted to a CUDA stream; see `libcopy_type_pack_gpu`. Types
/// with entries that overlap give `LIBCOPY_EINVAL`: kernels write in any order.
#[c_api]
pub fn libcopy_type_unpack_gpu(
    packed: *const c_void,
    length: usize,
    buffer: *mut c_void,
    count: u64,
    datatype: &libcopy_type_t,
    offset: u64,
    stream: *mut c_void,
    actual: Out<usize>,
) -> Result {
    // Before a plan is made that nobody could use.
    let driver = driver()?;
    let layout = datatype.gpu_layout(count)?;
    let (range, bytes) = moved(layout.layout(), offset, length, buffer, packed)?;
    actual.put(bytes)?;
    // SAFETY: as in `libcopy_type_pack_gpu`.
    unsafe { unpack_on(driver, &layout, buffer as u64, range, packed as u64, stream)? };
    Ok(())
}
