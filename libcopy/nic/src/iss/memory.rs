// SPDX-License-Identifier: MIT OR Apache-2.0

//! The memory that a core sees: regions with rights, and a window of device registers.

use super::compressed::expand;
use super::instruction::Instruction;
use std::fmt;
use std::sync::Arc;

/// What a core does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads an instruction.
    Fetch,
    /// Reads data.
    Load,
    /// Writes data.
    Store,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Fetch => "a fetch",
            Access::Load => "a load",
            Access::Store => "a store",
        })
    }
}

/// Device registers: what is stored there is a command.
pub trait Device {
    /// A store of `value` at `offset` bytes into the window, after `cycles` cycles of the core;
    /// false if there is no such register.
    fn store(&mut self, offset: u32, value: u32, cycles: u64) -> bool;
    /// A load of a word at `offset`.
    fn load(&mut self, offset: u32) -> Option<u32>;
}

/// No device.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDevice;

impl Device for NoDevice {
    fn store(&mut self, _: u32, _: u32, _: u64) -> bool {
        false
    }

    fn load(&mut self, _: u32) -> Option<u32> {
        None
    }
}

/// An instruction and its length in bytes.
type Decoded = Option<(Instruction, u8)>;

/// Bytes at fixed addresses.
#[derive(Clone, Debug)]
pub struct Region {
    base: u32,
    bytes: Vec<u8>,
    is_writable: bool,
    /// Cycles that an access waits, beyond the one of the instruction.
    wait: u32,
    /// What was decoded, by half words; empty if nothing may be executed.
    decoded: Arc<[Decoded]>,
    loads: Loads,
}

/// Loads of data from a region since [`Region::forget_loads`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loads {
    /// How many.
    pub count: u64,
    /// Cycles of the core at the first one; 0 if there is none.
    pub first: u64,
    /// Cycles of the core at the last one; 0 if there is none.
    pub last: u64,
}

impl Region {
    /// Data that can be read and written, without waiting.
    pub fn data(base: u32, bytes: Vec<u8>) -> Region {
        Region {
            base,
            bytes,
            is_writable: true,
            wait: 0,
            decoded: Arc::default(),
            loads: Loads::default(),
        }
    }

    /// Code and constants: read and executed, not written.
    pub fn code(base: u32, bytes: Vec<u8>) -> Region {
        let decoded = (0..bytes.len() / 2)
            .map(|i| decode(&bytes[2 * i..]))
            .collect();
        Region {
            base,
            bytes,
            is_writable: false,
            wait: 0,
            decoded,
            loads: Loads::default(),
        }
    }

    /// Lets accesses take `wait` more cycles from now on.
    pub fn set_wait(&mut self, wait: u32) {
        self.wait = wait;
    }

    /// The region without the right to write.
    #[must_use]
    pub fn read_only(mut self) -> Region {
        self.is_writable = false;
        self
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes, to be changed from outside; code that was decoded stays.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// What was loaded from it.
    pub fn loads(&self) -> Loads {
        self.loads
    }

    /// Counts loads anew.
    pub fn forget_loads(&mut self) {
        self.loads = Loads::default();
    }

    fn place(&self, address: u32, bytes: u32) -> Option<usize> {
        let at = address.checked_sub(self.base)? as usize;
        (at + bytes as usize <= self.bytes.len()).then_some(at)
    }
}

fn decode(bytes: &[u8]) -> Decoded {
    let low = u16::from_le_bytes([bytes[0], bytes[1]]);
    if low & 3 != 3 {
        return Some((Instruction::decode(expand(low)?)?, 2));
    }
    let word: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    Some((Instruction::decode(u32::from_le_bytes(word))?, 4))
}

/// All regions.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    regions: Vec<Region>,
}

/// What a fetch has found.
pub(super) enum Fetched {
    Instruction(Instruction, u8),
    Illegal(u32),
    Nothing,
}

impl Memory {
    /// Regions, which must not overlap.
    ///
    /// # Panics
    ///
    /// If two overlap, or one passes the end of the address space.
    pub fn new(regions: Vec<Region>) -> Memory {
        let mut spans: Vec<(u64, u64)> = regions
            .iter()
            .map(|r| (u64::from(r.base), u64::from(r.base) + r.bytes.len() as u64))
            .collect();
        spans.sort_unstable();
        assert!(
            spans.windows(2).all(|pair| pair[0].1 <= pair[1].0)
                && spans.last().is_none_or(|span| span.1 <= 1 << 32),
            "regions overlap or pass the end of the address space: {spans:x?}"
        );
        Memory { regions }
    }

    /// The region at `index`, in the order they were given in.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn region(&self, index: usize) -> &Region {
        &self.regions[index]
    }

    /// The region at `index`, in the order they were given in, to be changed.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn region_mut(&mut self, index: usize) -> &mut Region {
        &mut self.regions[index]
    }

    pub(super) fn fetch(&self, pc: u32) -> Fetched {
        for region in &self.regions {
            let Some(at) = region.place(pc, 2) else {
                continue;
            };
            return match region.decoded.get(at / 2) {
                Some(Some((instruction, length))) => Fetched::Instruction(*instruction, *length),
                Some(None) => {
                    let end = region.bytes.len().min(at + 4);
                    let mut bits = [0; 4];
                    bits[..end - at].copy_from_slice(&region.bytes[at..end]);
                    let bits = u32::from_le_bytes(bits);
                    Fetched::Illegal(if bits & 3 == 3 { bits } else { bits & 0xffff })
                }
                None => Fetched::Nothing,
            };
        }
        Fetched::Nothing
    }

    /// Reads 1, 2 or 4 bytes, little-endian, after `cycles` cycles of the core, and says how many
    /// cycles that waits.
    pub(super) fn load(&mut self, address: u32, bytes: u32, cycles: u64) -> Option<(u32, u32)> {
        let (region, at) = self.regions.iter_mut().find_map(|region| {
            let at = region.place(address, bytes)?;
            Some((region, at))
        })?;
        if region.loads.count == 0 {
            region.loads.first = cycles;
        }
        region.loads.count += 1;
        region.loads.last = cycles;
        let mut word = [0; 4];
        word[..bytes as usize].copy_from_slice(&region.bytes[at..at + bytes as usize]);
        Some((u32::from_le_bytes(word), region.wait))
    }

    /// Writes the low bytes of `value`, and says how many cycles that waits.
    pub(super) fn store(&mut self, address: u32, bytes: u32, value: u32) -> Option<u32> {
        let (region, at) = self.regions.iter_mut().find_map(|region| {
            let at = region.place(address, bytes)?;
            Some((region, at))
        })?;
        if !region.is_writable {
            return None;
        }
        region.bytes[at..at + bytes as usize]
            .copy_from_slice(&value.to_le_bytes()[..bytes as usize]);
        Some(region.wait)
    }
}
