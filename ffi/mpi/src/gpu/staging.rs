// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory that packed bytes of device memory are put into, pinned or on the GPU, which is used
//! again: to allocate or pin memory takes the driver much longer than to copy.

use std::ffi::c_int;
use std::sync::Mutex;

use libcopy::lock::lock;
use libcopy::scratch::zeros;
use libcopy_gpu::{Buffer, Driver, Pointer, Space};

use crate::library::errors::no_room;

/// Bytes that are kept for the next calls.
const MOST_BYTES: usize = 256 << 20;

/// The least that is allocated.
const LEAST_BYTES: usize = 64 << 10;

static POOL: Mutex<Vec<Buffer>> = Mutex::new(Vec::new());

/// A buffer of the driver's that is kept for the next calls when this goes.
#[derive(Debug)]
pub struct Pooled(Option<Buffer>);

impl Pooled {
    /// Room for packed bytes of memory that is `near`: pinned, so that kernels reach it, or of the
    /// GPU that `near` is on.
    ///
    /// # Errors
    ///
    /// The GPU has no memory left, or the driver fails.
    pub fn new(
        driver: &Driver,
        (space, near): (Space, &Pointer),
        bytes: usize,
    ) -> libcopy_gpu::Result<Pooled> {
        let buffer = match (kept(driver, (space, near), bytes), space) {
            (Some(buffer), _) => buffer,
            (None, Space::Pinned) => Buffer::pinned(driver, near, rounded(bytes))?,
            (None, _) => Buffer::device(driver, near, rounded(bytes))?,
        };
        Ok(Pooled(Some(buffer)))
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.0.as_ref().map_or(0, Buffer::address)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Some(buffer) = self.0.take() {
            keep(buffer);
        }
    }
}

/// Host memory for packed bytes.
#[derive(Debug)]
pub enum Staging {
    Pinned(Pooled),
    /// Pageable, where the driver pins no more.
    Host(Vec<u8>),
}

impl Staging {
    /// `bytes` bytes, for packed bytes of memory that is `near`; the code of the call where there
    /// is no room.
    pub fn new(driver: &Driver, near: &Pointer, bytes: usize) -> Result<Staging, c_int> {
        match Pooled::new(driver, (Space::Pinned, near), bytes) {
            Ok(buffer) => Ok(Staging::Pinned(buffer)),
            Err(_) => zeros(bytes).map(Staging::Host).map_err(no_room),
        }
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        match self {
            Staging::Pinned(buffer) => buffer.address(),
            Staging::Host(bytes) => bytes.as_ptr() as u64,
        }
    }
}

/// Memory that the MPI library is handed in the place of a buffer in device memory.
#[derive(Debug)]
pub enum Place {
    /// Host memory.
    Host(Staging),
    /// Device memory with packed bytes, for a library that takes that.
    Device(Pooled),
    /// The buffer itself, for the same.
    Own(u64),
}

impl Place {
    /// Where it is.
    pub fn address(&self) -> u64 {
        match self {
            Place::Host(staging) => staging.address(),
            Place::Device(memory) => memory.address(),
            Place::Own(address) => *address,
        }
    }

    /// Whether it is device memory.
    pub fn is_handed_over(&self) -> bool {
        !matches!(self, Place::Host(_))
    }
}

/// The length that is allocated where `bytes` are needed.
fn rounded(bytes: usize) -> usize {
    bytes
        .max(LEAST_BYTES)
        .checked_next_power_of_two()
        .unwrap_or(bytes)
}

/// A kept buffer of at least `bytes` bytes, and not many more.
fn kept(driver: &Driver, (space, near): (Space, &Pointer), bytes: usize) -> Option<Buffer> {
    let mut pool = lock(&POOL);
    // Pinned memory is mapped for all contexts.
    let fits = |buffer: &Buffer| {
        buffer.space() == space
            && (space == Space::Pinned || buffer.is_near(near))
            && buffer.bytes() >= bytes
            && buffer.bytes() / 4 <= bytes.max(LEAST_BYTES)
    };
    let best = (0..pool.len())
        .filter(|i| fits(&pool[*i]))
        .min_by_key(|i| pool[*i].bytes())?;
    let buffer = pool.swap_remove(best);
    drop(pool);
    // The program may have reset its context, with which the memory goes.
    if Pointer::of(driver, buffer.address()).is_ok_and(|known| known.space == space) {
        Some(buffer)
    } else {
        std::mem::forget(buffer);
        None
    }
}

/// Keeps a buffer, if there are not too many.
fn keep(buffer: Buffer) {
    let mut pool = lock(&POOL);
    let bytes: usize = pool.iter().map(Buffer::bytes).sum();
    if bytes + buffer.bytes() <= MOST_BYTES {
        pool.push(buffer);
    }
}
