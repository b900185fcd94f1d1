// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers that look random and follow from a seed: splitmix64 (Steele, Lea and Flood, OOPSLA
//! 2014).

/// A sequence.
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A number below `bound`, or 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)).checked_rem(bound).unwrap_or(0)
    }
}
