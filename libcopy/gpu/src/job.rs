// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a kernel is given: the structures of `kernels/pack.cu`, field by field.

/// Most dimensions around the blocks or pieces of a side.
pub const MAX_DIMS: usize = 6;

/// Positions from here on are divided by plain division.
const SHORT: u64 = 1 << 31;

/// Division of numbers below 2^31 by a constant: a multiplication and a shift.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Divisor {
    by: u64,
    magic: u32,
    shift: u32,
}

impl Divisor {
    /// Division by `by`, at least 1.
    pub fn new(by: u64) -> Divisor {
        if by >= SHORT {
            // Every quotient is 0.
            return Divisor {
                by,
                magic: 0,
                shift: 0,
            };
        }
        // With 2^(log - 1) < by <= 2^log, magic = ceil(2^(31 + log) / by) has 32 bits and is too
        // large by less than by / by <= 2^log / by; times a number below 2^31 that is less than
        // 2^(31 + log) / by.
        let log = by.next_power_of_two().trailing_zeros();
        Divisor {
            by,
            magic: (1_u64 << (31 + log)).div_ceil(by) as u32,
            shift: 31 + log,
        }
    }

    /// What the kernels compute for numbers below 2^31.
    #[cfg(test)]
    fn quotient(&self, number: u32) -> u64 {
        (u64::from(number) * u64::from(self.magic)) >> self.shift
    }
}

/// One dimension of a side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Dim {
    /// How many.
    pub count: Divisor,
    /// Bytes from one to the next.
    pub stride: i64,
    /// The address of a list of offsets instead; 0: none.
    pub table: u64,
}

/// Side of the packed bytes.
pub const FLAT: u32 = 0;
/// Blocks of one length.
pub const NEST: u32 = 1;
/// Pieces of different lengths.
pub const PIECES: u32 = 2;

/// Bit of [`Side::wide`]: the lists of pieces have entries of 64 bits.
pub const WIDE_PIECES: u32 = 1 << 31;

/// Where the bytes of a job are on one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Side {
    /// Address of the first byte of a flat side, of the origin of others.
    pub base: u64,
    /// Position where the job begins, in units.
    pub skip: u64,
    /// Length of a block, or of a whole list of pieces, in units.
    pub inner: Divisor,
    /// Address of the pieces' offsets.
    pub offsets: u64,
    /// Address of the bytes before each piece, and all bytes.
    pub starts: u64,
    /// Address of the pieces at each multiple of `1 << hint_shift` bytes, and the last piece.
    pub hints: u64,
    /// See `hints`.
    pub hint_shift: u32,
    /// [`FLAT`], [`NEST`] or [`PIECES`].
    pub kind: u32,
    /// How many of `dim` are used.
    pub dims: u32,
    /// Bit `d`: the table of dimension `d` has entries of 64 bits. See [`WIDE_PIECES`].
    pub wide: u32,
    /// The innermost first.
    pub dim: [Dim; MAX_DIMS],
}

/// One range of a packed stream to be copied from one side to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Job {
    /// Where to.
    pub to: Side,
    /// Where from.
    pub from: Side,
    /// Units (words or bytes), those included that are moved in part.
    pub units: u64,
    /// Bytes of the first word that are not moved.
    pub lead: u32,
    /// Bytes of the last word that are moved; 0: all.
    pub trail: u32,
    /// Bytes of a unit.
    pub width: u32,
    /// `copy_runs`: threads that copy a run together, a power of two up to 32.
    pub lanes: u32,
    /// `copy_runs`, `copy_bulk`: units that a group of lanes or a block is given at a time; 0 for
    /// other kernels.
    pub chunk: u32,
    /// Whether positions do not stay below 2^31.
    pub is_long: u32,
}

impl Job {
    /// Whether a position of this job on a side reaches 2^31.
    pub(crate) fn reaches_far(&self) -> bool {
        [self.to.skip, self.from.skip]
            .iter()
            .any(|skip| skip.saturating_add(self.units) >= SHORT)
    }

    /// The bytes that a kernel is given.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: the structure has no padding: 8-byte fields, and 4-byte fields in pairs (checked
        // below).
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Job>()) }
    }
}

/// Where the jobs of one launch are; the parameter of `batch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BatchTable {
    /// Address of the [`Job`]s.
    pub jobs: u64,
    /// Address of `count + 1` 32-bit numbers: the first block of each job, and all blocks.
    pub first: u64,
    /// How many jobs.
    pub count: u64,
}

impl BatchTable {
    /// The bytes that the kernel is given.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: three 8-byte fields have no padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

const _: () = {
    // Shared memory gets whole words of 8 bytes.
    assert!(size_of::<Job>() % 8 == 0);
    assert!(size_of::<Dim>() == 32);
    assert!(size_of::<Side>() == 8 + 8 + 16 + 3 * 8 + 4 * 4 + MAX_DIMS * 32);
    assert!(size_of::<Job>() == 2 * size_of::<Side>() + 8 + 6 * 4);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn division_is_exact() {
        let mut noise: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut next = |most: u64| {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            noise % most
        };
        let edges = (0..31).flat_map(|bit| {
            let power = 1_u64 << bit;
            [power.saturating_sub(1).max(1), power, power + 1]
        });
        let divisors: Vec<u64> = edges
            .chain([SHORT - 2, SHORT - 1, SHORT, SHORT + 1, u64::MAX])
            .collect();
        for i in 0..200_000 {
            let by = match divisors.get(i) {
                Some(by) => *by,
                None => 1 + next(1 << (1 + i % 31)),
            };
            let divisor = Divisor::new(by);
            let multiple = by.saturating_mul(next((SHORT / by).max(1)));
            for number in [
                0,
                by - 1,
                by,
                multiple,
                multiple.saturating_sub(1),
                multiple.saturating_add(by - 1),
                SHORT - 1,
                next(SHORT),
            ] {
                if number < SHORT {
                    assert_eq!(
                        divisor.quotient(number as u32),
                        number / by,
                        "{number} / {by}"
                    );
                }
            }
        }
    }
}
