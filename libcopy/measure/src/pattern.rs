// SPDX-License-Identifier: MIT OR Apache-2.0

//! Bytes that say which round, which rank and which position they belong to, so that a byte that
//! arrived late, from the wrong rank or at the wrong place is found.

/// The eight bytes at word `at` of what `from` sends in `round`.
fn word(round: u64, from: usize, at: usize) -> [u8; 8] {
    let mut x = (at as u64 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add((from as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9))
        .wrapping_add(round.wrapping_mul(0x94d0_49bb_1331_11eb));
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ (x >> 32)).to_le_bytes()
}

/// Fills a message of rank `from` in `round`.
pub fn fill(message: &mut [u8], round: u64, from: usize) {
    for (at, chunk) in message.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&word(round, from, at)[..chunk.len()]);
    }
}

/// Position of the first byte that is not what `from` sends in `round`.
pub fn first_difference(message: &[u8], round: u64, from: usize) -> Option<usize> {
    message.chunks(8).enumerate().find_map(|(at, chunk)| {
        let right = word(round, from, at);
        chunk
            .iter()
            .zip(right)
            .position(|(got, want)| *got != want)
            .map(|i| at * 8 + i)
    })
}

/// Bytes of the elements that reductions add: doubles.
pub const ELEMENT: usize = size_of::<f64>();

/// What `from` adds at element `at` in `round`: small numbers, whose sums do not round.
pub fn number(round: u64, from: usize, at: usize) -> f64 {
    f64::from(word(round, from, at)[0])
}

/// Adds doubles to others. It is here, and not in the tool, whose code is compiled to be small: a
/// loop of single additions would be what is measured of a reduction.
pub fn add(from: &[u8], to: &mut [u8]) {
    let value = |bytes: &[u8]| bytes.try_into().map_or(0.0, f64::from_ne_bytes);
    for (to, from) in to.chunks_exact_mut(ELEMENT).zip(from.chunks_exact(ELEMENT)) {
        let sum = value(to) + value(from);
        to.copy_from_slice(&sum.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_added() {
        let bytes = |from| {
            let numbers = (0..5).map(|at| number(3, from, at).to_ne_bytes());
            numbers.collect::<Vec<_>>().concat()
        };
        let mut sums = bytes(1);
        add(&bytes(2), &mut sums);
        for (at, sum) in sums.chunks(ELEMENT).enumerate() {
            assert_eq!(sum, (number(3, 1, at) + number(3, 2, at)).to_ne_bytes());
        }
        assert_ne!(bytes(1), bytes(2));
    }

    #[test]
    fn every_kind_of_mistake_is_found() {
        let mut message = vec![0; 1003];
        fill(&mut message, 7, 2);
        assert_eq!(first_difference(&message, 7, 2), None);
        assert!(first_difference(&message, 8, 2).is_some(), "an old round");
        assert!(first_difference(&message, 7, 3).is_some(), "another rank");
        assert!(
            first_difference(&message[8..], 7, 2).is_some(),
            "another place"
        );
        message[1002] ^= 1;
        assert_eq!(first_difference(&message, 7, 2), Some(1002));
    }
}
