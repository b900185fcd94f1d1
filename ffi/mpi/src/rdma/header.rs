// SPDX-License-Identifier: MIT OR Apache-2.0

//! What goes through the MPI library in place of a message's data, in a message of one length.
//!
//! The length is that of a slot that no message inside a machine uses any more, so that all that
//! looks at lengths of headers looks at these, too.

use libcopy::p2p::header::{SLOTS, wire_size};

/// The slot whose length headers have.
pub const SLOT: usize = SLOTS - 1;

/// Bytes of a header on the wire.
pub const LENGTH: usize = wire_size(SLOT);

/// Bytes that mean something.
pub const BYTES: usize = 8 * WORDS;
const WORDS: usize = 6;

/// A message that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Random numbers of those who have met.
    pub magic: [u64; 2],
    /// Which message of its sender to us this is.
    pub sequence: u64,
    /// The sender's rank in `MPI_COMM_WORLD`.
    pub sender: u64,
    /// Bytes of data.
    pub total: u64,
}

impl Header {
    fn words(self) -> [u64; WORDS] {
        let [first, second] = self.magic;
        let mut words = [first, second, self.sequence, self.sender, self.total, 0];
        words[WORDS - 1] = checksum(&words[..WORDS - 1]);
        words
    }

    /// The bytes that go over the wire.
    pub fn to_bytes(self) -> Box<[u8]> {
        let mut bytes = vec![0; LENGTH];
        for (to, word) in bytes.chunks_exact_mut(8).zip(self.words()) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes.into_boxed_slice()
    }

    /// Reads one; `None` if these bytes are none of those who have met with these random numbers.
    pub fn from_bytes(bytes: &[u8; BYTES], magic: [u64; 2]) -> Option<Header> {
        let mut words = [0u64; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().ok()?);
        }
        let right = words[..2] == magic && words[WORDS - 1] == checksum(&words[..WORDS - 1]);
        right.then_some(Header {
            magic,
            sequence: words[2],
            sender: words[3],
            total: words[4],
        })
    }
}

fn checksum(words: &[u64]) -> u64 {
    words.iter().fold(0x6c62_272e_07bb_0142, |sum, word| {
        (sum ^ word)
            .wrapping_mul(0xff51_afd7_ed55_8ccd)
            .rotate_left(31)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_headers_are_read() {
        let header = Header {
            magic: [1, 2],
            sequence: 3,
            sender: 4,
            total: 5,
        };
        let bytes = header.to_bytes();
        assert_eq!(bytes.len(), LENGTH);
        let start = bytes.first_chunk::<BYTES>().unwrap();
        assert_eq!(Header::from_bytes(start, [1, 2]), Some(header));
        assert_eq!(Header::from_bytes(start, [1, 3]), None);
        for at in 0..BYTES {
            let mut other = *start;
            other[at] ^= 0x10;
            assert_eq!(Header::from_bytes(&other, [1, 2]), None, "{at}");
        }
    }
}
