// SPDX-License-Identifier: MIT OR Apache-2.0

//! A guest for tests without one: memory with a ring of descriptors, and a driver's way to use it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::descriptor::{Descriptor, Operation, SIZE};
use crate::memory::tests::memfd;
use crate::memory::{Mappings, Memory};

/// Where memory begins on the bus.
pub(crate) const BASE: u64 = 0x1_0000_0000;
/// Bytes of memory.
pub(crate) const LENGTH: u64 = 16 << 20;
/// Where completions go.
pub(crate) const COMPLETION: u64 = BASE + 0x100;
/// Where rings are made.
pub(crate) const RING: u64 = BASE + 0x1000;
/// Where data can lie.
pub(crate) const DATA: u64 = BASE + (1 << 20);

pub(crate) struct Rig {
    pub(crate) file: File,
    pub(crate) memory: Arc<Memory>,
}

impl Rig {
    pub(crate) fn new(memory: Arc<Memory>) -> Self {
        let file = memfd(LENGTH);
        let clone = file.try_clone().expect("a descriptor is free");
        memory
            .map(&Mappings::default(), clone, 0, BASE, LENGTH, true)
            .expect("a memfd can be mapped");
        Self { file, memory }
    }

    pub(crate) fn put(&self, address: u64, bytes: &[u8]) {
        self.file
            .write_all_at(bytes, address - BASE)
            .expect("in range");
    }

    pub(crate) fn get(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.file
            .read_exact_at(&mut bytes, address - BASE)
            .expect("in range");
        bytes
    }

    /// The last completion: address of a descriptor, and state.
    pub(crate) fn completion(&self) -> (u64, u64) {
        let value = u64::from_le_bytes(self.get(COMPLETION, 8).try_into().expect("eight"));
        (value & !0x3f, value & 0x7)
    }

    /// Links the operations into a ring at `at`; each writes a completion, the last of each group
    /// of `interrupt` sends an interrupt.
    pub(crate) fn ring(&self, at: u64, operations: &[Operation], interrupt: usize) {
        for (index, operation) in operations.iter().enumerate() {
            let next = (index + 1) % operations.len();
            let descriptor = Descriptor {
                operation: *operation,
                interrupt: (index + 1) % interrupt == 0,
                completion: true,
                next: at + (next * SIZE) as u64,
            };
            self.put(at + (index * SIZE) as u64, &descriptor.encode());
        }
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}
