// SPDX-License-Identifier: MIT OR Apache-2.0

//! Descriptors as they lie in memory: 64 bytes, little endian (Linux `drivers/dma/ioat/hw.h`,
//! `struct ioat_dma_descriptor`).

use crate::registers::{XFERCAP, chanerr};

/// Bytes of a descriptor; also its alignment (`IOAT_DESC_SZ`).
pub const SIZE: usize = 64;

/// What a descriptor asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operation {
    /// Nothing: memory is not touched, whatever the addresses say (`ctl_f.null`).
    Null,
    /// Copies bytes (`IOAT_OP_COPY`).
    Copy {
        /// Address of the first byte to read.
        source: u64,
        /// Address of the first byte to write.
        destination: u64,
        /// Number of bytes, 1 to 2^XFERCAP.
        size: u64,
    },
}

/// A descriptor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Descriptor {
    /// What it asks for.
    pub operation: Operation,
    /// An interrupt is sent when it is done (`ctl_f.int_en`, bit 0).
    pub interrupt: bool,
    /// A completion is written when it is done (`ctl_f.compl_write`, bit 3).
    pub completion: bool,
    /// Address of the descriptor that follows.
    pub next: u64,
}

const INTERRUPT: u32 = 1 << 0;
const COMPLETION: u32 = 1 << 3;
const NULL: u32 = 1 << 5;
const OPERATION_SHIFT: u32 = 24;

impl Descriptor {
    /// Reads a descriptor; an `Err` has the bits that CHANERR gets.
    pub fn decode(bytes: &[u8; SIZE]) -> Result<Self, u32> {
        let half = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        let (size, control) = (half(0), half(4));
        if control >> OPERATION_SHIFT != 0 {
            return Err(chanerr::CONTROL);
        }
        // The driver gives null descriptors the size 1: "channel returns error when size is 0".
        if size == 0 || u64::from(size) > 1 << XFERCAP {
            return Err(chanerr::LENGTH);
        }
        Ok(Self {
            operation: if control & NULL != 0 {
                Operation::Null
            } else {
                Operation::Copy {
                    source: word(8),
                    destination: word(16),
                    size: size.into(),
                }
            },
            interrupt: control & INTERRUPT != 0,
            completion: control & COMPLETION != 0,
            next: word(24),
        })
    }

    /// Writes a descriptor, as a driver would.
    pub fn encode(&self) -> [u8; SIZE] {
        let (source, destination, size, mut control) = match self.operation {
            Operation::Null => (0, 0, 1, NULL),
            Operation::Copy {
                source,
                destination,
                size,
            } => (source, destination, size, 0),
        };
        if self.interrupt {
            control |= INTERRUPT;
        }
        if self.completion {
            control |= COMPLETION;
        }
        let mut bytes = [0; SIZE];
        bytes[0..4].copy_from_slice(&(size as u32).to_le_bytes());
        bytes[4..8].copy_from_slice(&control.to_le_bytes());
        bytes[8..16].copy_from_slice(&source.to_le_bytes());
        bytes[16..24].copy_from_slice(&destination.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decode_reverses_encode(source: u64, destination: u64, size in 1..=1u64 << XFERCAP,
                                  null: bool, interrupt: bool, completion: bool, next: u64) {
            let operation = if null { Operation::Null } else { Operation::Copy { source, destination, size } };
            let descriptor = Descriptor { operation, interrupt, completion, next };
            prop_assert_eq!(Descriptor::decode(&descriptor.encode()), Ok(descriptor));
        }

        #[test]
        fn any_bytes_are_a_descriptor_or_an_error(bytes: [[u8; 32]; 2]) {
            let mut flat = [0; SIZE];
            flat[..32].copy_from_slice(&bytes[0]);
            flat[32..].copy_from_slice(&bytes[1]);
            match Descriptor::decode(&flat) {
                Ok(descriptor) => prop_assert!(flat[7] == 0 && descriptor.next == u64::from_le_bytes(flat[24..32].try_into().expect("8"))),
                Err(bits) => prop_assert!(bits == chanerr::CONTROL || bits == chanerr::LENGTH),
            }
        }
    }

    #[test]
    fn sizes_beyond_the_limit_are_refused() {
        let mut bytes = [0; SIZE];
        assert_eq!(Descriptor::decode(&bytes), Err(chanerr::LENGTH));
        bytes[0..4].copy_from_slice(&((1u32 << XFERCAP) + 1).to_le_bytes());
        assert_eq!(Descriptor::decode(&bytes), Err(chanerr::LENGTH));
        bytes[7] = 0x87;
        assert_eq!(Descriptor::decode(&bytes), Err(chanerr::CONTROL));
    }
}
