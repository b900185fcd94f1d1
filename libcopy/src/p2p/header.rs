// SPDX-License-Identifier: MIT OR Apache-2.0

//! What goes through the MPI library in place of a message's data.
//!
//! The number of bytes on the wire names the sender's slot: a receiver that sees the length of a
//! message, as a probe does, knows which slot says how long it really is. Only the first bytes mean
//! something. The lengths are odd multiples of 32: whole numbers of elements, since a library may
//! refuse to receive parts of them (MPICH does), and no powers of two, which programs like.

/// Slots of each process.
pub const SLOTS: usize = 60;

/// Bytes of a header that mean something.
pub const BYTES: usize = 8 * WORDS;

const WORDS: usize = 12;
const FIRST: usize = 160;
const STEP: usize = 64;

/// Bytes that a header takes which names this slot.
pub const fn wire_size(slot: usize) -> usize {
    FIRST + STEP * slot
}

/// The slot that a message of this length names, if it does.
#[inline]
pub fn slot_of(bytes: u64) -> Option<usize> {
    let above = bytes.wrapping_sub(FIRST as u64);
    let named = above <= (STEP * (SLOTS - 1)) as u64 && above % STEP as u64 == 0;
    named.then_some((above / STEP as u64) as usize)
}

/// Bytes that the shortest header takes.
pub const SHORTEST: u64 = FIRST as u64;

/// Whether a receive of `bytes` may get a header.
#[inline]
pub fn may_arrive(capacity: u64) -> bool {
    capacity >= SHORTEST
}

/// A message that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Random numbers of the processes of this job on this machine.
    pub magic: [u64; 2],
    /// Which of the messages of its slot this is.
    pub sequence: u64,
    /// Number of the sender in its machine.
    pub sender: u32,
    /// Its slot.
    pub slot: u32,
    /// Bytes of data.
    pub total: u64,
    /// The address in the sender's memory that the layout's offsets count from.
    pub origin: u64,
    /// Words of the layout; none if the data are dense.
    pub layout_words: u64,
    /// Where these are in the sender's memory.
    pub layout_at: u64,
    /// A hash of the layout.
    pub layout_hash: [u64; 2],
    /// What number the type was given that this has elements of; 0 if none.
    pub committed: u64,
}

impl Header {
    fn words(&self) -> [u64; WORDS] {
        let mut words = [
            self.magic[0],
            self.magic[1],
            self.sequence,
            u64::from(self.sender) << 32 | u64::from(self.slot),
            self.total,
            self.origin,
            self.layout_words,
            self.layout_at,
            self.layout_hash[0],
            self.layout_hash[1],
            self.committed,
            0,
        ];
        words[WORDS - 1] = checksum(&words[..WORDS - 1]);
        words
    }

    /// Writes it at the start of a buffer.
    pub fn write(&self, to: &mut [u8]) {
        for (bytes, word) in to.chunks_exact_mut(8).zip(self.words()) {
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
    }

    /// Reads one; `None` if these bytes are none of these processes.
    pub fn read(from: &[u8; BYTES], magic: [u64; 2]) -> Option<Header> {
        let mut words = [0u64; WORDS];
        for (word, bytes) in words.iter_mut().zip(from.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().ok()?);
        }
        let right = words[..2] == magic && words[WORDS - 1] == checksum(&words[..WORDS - 1]);
        right.then_some(Header {
            magic,
            sequence: words[2],
            sender: (words[3] >> 32) as u32,
            slot: words[3] as u32,
            total: words[4],
            origin: words[5],
            layout_words: words[6],
            layout_at: words[7],
            layout_hash: [words[8], words[9]],
            committed: words[10],
        })
    }
}

/// Bytes from the start on that say which message a header is of.
pub const START: usize = 32;

/// Which message a header is of that begins with these bytes: its sequence, its sender and its
/// slot; `None` if they are none of these processes.
pub fn read_start(from: &[u8; START], magic: [u64; 2]) -> Option<(u64, usize, usize)> {
    let mut words = [0u64; START / 8];
    for (word, bytes) in words.iter_mut().zip(from.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().ok()?);
    }
    let [first, second, sequence, who] = words;
    let right = [first, second] == magic;
    right.then_some((sequence, (who >> 32) as usize, who as u32 as usize))
}

fn checksum(words: &[u64]) -> u64 {
    words.iter().fold(0x9e37_79b9_7f4a_7c15, |sum, word| {
        (sum ^ word)
            .wrapping_mul(0xff51_afd7_ed55_8ccd)
            .rotate_left(29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_name_slots() {
        for slot in 0..SLOTS {
            let size = wire_size(slot);
            assert!(size % 64 == 32 && size >= BYTES);
            // Short enough to be sent at once by all libraries.
            assert!(size < 4000);
            assert_eq!(slot_of(size as u64), Some(slot));
            assert_eq!(slot_of(size as u64 + 1), None);
        }
        assert_eq!(slot_of(0), None);
        assert_eq!(slot_of(FIRST as u64 - STEP as u64), None);
        assert_eq!(slot_of(wire_size(SLOTS) as u64), None);
        assert_eq!(slot_of(u64::MAX), None);
    }

    #[test]
    fn only_our_own_headers_are_read() {
        let header = Header {
            magic: [1, 2],
            sequence: 3,
            sender: 4,
            slot: 5,
            total: 6,
            origin: 7,
            layout_words: 8,
            layout_at: 9,
            layout_hash: [10, 11],
            committed: 12,
        };
        let mut bytes = [0u8; BYTES];
        header.write(&mut bytes);
        assert_eq!(Header::read(&bytes, [1, 2]), Some(header));
        assert_eq!(Header::read(&bytes, [1, 3]), None);
        let mut start = [0u8; START];
        start.copy_from_slice(&bytes[..START]);
        assert_eq!(read_start(&start, [1, 2]), Some((3, 4, 5)));
        assert_eq!(read_start(&start, [2, 2]), None);
        for at in 0..BYTES {
            let mut other = bytes;
            other[at] ^= 0x10;
            assert_eq!(Header::read(&other, [1, 2]), None, "{at}");
        }
    }
}
