// SPDX-License-Identifier: MIT OR Apache-2.0

//! What was found out about the MPI library's predefined datatypes, which never go, so that it
//! stays true: a small table by their handles, where asking again and again would cost too much.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::library::abi::Word;

/// Bits of an address.
const ADDRESS: u32 = 48;

/// Numbers of less than 16 bits, by handles that are no longer than an address: the handle in the
/// low bits, the number above.
#[derive(Debug)]
pub struct Predefined([AtomicU64; 32]);

impl Predefined {
    /// Nothing is known.
    pub const fn new() -> Self {
        Predefined([const { AtomicU64::new(0) }; 32])
    }

    #[inline(always)]
    fn place(&self, handle: Word) -> &AtomicU64 {
        // Addresses differ in higher bits, the standard ABI's numbers in the lowest.
        &self.0[(handle ^ handle >> 4 ^ handle >> 9) % self.0.len()]
    }

    /// What is known of a handle.
    #[inline(always)]
    pub fn get(&self, handle: Word) -> Option<usize> {
        let known = self.place(handle).load(Ordering::Relaxed);
        let is_known = known & ((1 << ADDRESS) - 1) == handle as u64 && handle != 0;
        is_known.then_some((known >> ADDRESS) as usize)
    }

    /// Notes a number for a handle; nothing if either is too large.
    pub fn put(&self, handle: Word, number: usize) {
        let word = handle as u64;
        if word < 1 << ADDRESS && number < 1 << (64 - ADDRESS) {
            self.place(handle)
                .store(word | (number as u64) << ADDRESS, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_handle_is_known_in_each_place() {
        let known = Predefined::new();
        assert_eq!(known.get(0), None);
        let handle = 0x7f12_3456_7890;
        known.put(handle, 65_535);
        assert_eq!(known.get(handle), Some(65_535));
        known.put(handle, 65_536);
        known.put(1 << ADDRESS, 1);
        assert_eq!(
            (known.get(handle), known.get(1 << ADDRESS)),
            (Some(65_535), None)
        );
        let other = (0..).map(|it| handle + 64 * it);
        let mut other = other
            .skip(1)
            .filter(|it| std::ptr::eq(known.place(*it), known.place(handle)));
        let other = other.next().unwrap();
        known.put(other, 0);
        assert_eq!((known.get(handle), known.get(other)), (None, Some(0)));
    }
}
