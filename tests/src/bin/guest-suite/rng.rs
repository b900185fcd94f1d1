// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pseudo-random numbers that a seed reproduces (splitmix64).

/// A generator; equal seeds give equal sequences.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6c69_6263_6f70_7921)
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit` (0 when `limit` is 0).
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.word() % limit }
    }

    /// As [`Rng::below`], for lengths and indices.
    pub fn index(&mut self, limit: usize) -> usize {
        self.below(limit as u64) as usize
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of the given values.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.index(values.len())]
    }
}

/// `len` bytes that no other seed gives.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ 0xa5a5);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&rng.word().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
