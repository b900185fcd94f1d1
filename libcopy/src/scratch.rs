// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory for packed bytes, which is used again: the kernel takes longer to zero fresh pages than
//! the bytes take to be packed.

use std::alloc::Layout;
use std::cell::RefCell;
use std::io;
use std::ops::{Deref, DerefMut};

use crate::error::{Error, Result};

/// Bytes of a piece of memory that is kept for the next call.
const MOST_BYTES: usize = 64 << 20;
/// Pieces that a thread keeps: what it sends, and what it receives.
const MOST: usize = 2;

thread_local! {
    static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// As many zeros, on pages that the kernel makes when they are touched. For lengths that a type, a
/// count or a peer says: without room for them a program gets an error, and does not end.
///
/// # Errors
///
/// [`Error::System`] with `ENOMEM` if there is no such room.
pub fn zeros(length: usize) -> Result<Vec<u8>> {
    let none = || no_memory(length);
    if length == 0 {
        return Ok(Vec::new());
    }
    let layout = Layout::array::<u8>(length).map_err(|_| none())?;
    // SAFETY: the length is not zero.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    if memory.is_null() {
        return Err(none());
    }
    // SAFETY: memory of this length, all written, from the allocator that the vector gives it back
    // to.
    Ok(unsafe { Vec::from_raw_parts(memory, length, length) })
}

/// That there is no room for `length` bytes.
#[cold]
pub fn no_memory(length: usize) -> Error {
    let what = format!("making room for {length} bytes");
    Error::system(what, io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Some bytes of anything, until somebody writes them.
#[derive(Debug, Default)]
pub struct Scratch {
    memory: Vec<u8>,
    length: usize,
}

impl Scratch {
    /// `length` bytes, out of memory that an earlier call kept if possible.
    ///
    /// # Errors
    ///
    /// As for [`zeros`].
    pub fn new(length: usize) -> Result<Self> {
        let kept = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            // The smallest that is long enough, or else the longest, which is made longer.
            let fits = |memory: &Vec<u8>| (memory.len() < length, memory.len().abs_diff(length));
            let best = (0..kept.len()).min_by_key(|index| fits(&kept[*index]));
            best.map(|index| kept.swap_remove(index))
        });
        let mut memory = kept.ok().flatten().unwrap_or_default();
        if memory.len() < length {
            // What is in it matters to nobody, so it is not moved.
            drop(memory);
            memory = zeros(length)?;
        }
        Ok(Scratch { memory, length })
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.length]
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.length]
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        if memory.is_empty() || memory.len() > MOST_BYTES {
            return;
        }
        // A thread that ends keeps nothing.
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < MOST {
                kept.push(memory);
            } else if let Some(shortest) = kept.iter_mut().min_by_key(|kept| kept.len()) {
                if shortest.len() < memory.len() {
                    *shortest = memory;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again() {
        let first = Scratch::new(1 << 20).unwrap();
        let place = first.as_ptr();
        drop(first);
        let again = Scratch::new(1000).unwrap();
        assert_eq!((again.as_ptr(), again.len()), (place, 1000));
        let other = Scratch::new(1000).unwrap();
        assert_ne!(other.as_ptr(), place);
    }

    #[test]
    fn what_is_kept_is_limited() {
        for round in 0..5 {
            let all: Vec<Scratch> = (1..5)
                .map(|n| Scratch::new(n * 5000 + round).unwrap())
                .collect();
            drop(all);
            KEPT.with_borrow(|kept| assert!(kept.len() <= MOST));
        }
        drop(Scratch::new(MOST_BYTES + 1).unwrap());
        assert!(Scratch::new(1 << 60).is_err() && Scratch::new(usize::MAX).is_err());
        KEPT.with_borrow(|kept| assert!(kept.iter().all(|memory| memory.len() <= MOST_BYTES)));
    }
}
