// SPDX-License-Identifier: MIT OR Apache-2.0

//! Takes an access of any width and alignment apart into the registers that it touches.

use std::ops::Range;

/// A register: its offset and its width in bytes (1 to 8).
pub type Register = (u64, usize);

/// The part of an access that falls into one register.
#[derive(Debug, Eq, PartialEq)]
pub struct Part {
    /// Offset of the register.
    pub register: u64,
    /// Bytes of the register.
    pub of_register: Range<usize>,
    /// Bytes of the access.
    pub of_access: Range<usize>,
}

/// The registers of `layout` that `length` bytes at `offset` touch, in order. Bytes between
/// registers belong to none: they read as zero and ignore writes.
pub fn parts(layout: &[Register], offset: u64, length: usize) -> impl Iterator<Item = Part> + '_ {
    let end = offset.saturating_add(length as u64);
    layout.iter().filter_map(move |&(register, width)| {
        let first = register.max(offset);
        let last = (register + width as u64).min(end);
        (first < last).then(|| Part {
            register,
            of_register: (first - register) as usize..(last - register) as usize,
            of_access: (first - offset) as usize..(last - offset) as usize,
        })
    })
}

/// `value` with the bytes of `range` replaced by those of `data`.
pub fn merge(value: u64, range: Range<usize>, data: &[u8]) -> u64 {
    let mut bytes = value.to_le_bytes();
    bytes[range].copy_from_slice(data);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_touches_what_it_overlaps() {
        let layout = [(0x00, 2), (0x04, 1), (0x06, 2), (0x08, 8)];
        let touched: Vec<_> = parts(&layout, 0x03, 6).collect();
        let expected = [(0x04, 0..1, 1..2), (0x06, 0..2, 3..5), (0x08, 0..1, 5..6)].map(
            |(register, of_register, of_access)| Part {
                register,
                of_register,
                of_access,
            },
        );
        assert_eq!(touched, expected);
        assert_eq!(parts(&layout, 0x10, 8).count(), 0);
        assert_eq!(parts(&layout, 0x02, 2).count(), 0);
        assert_eq!(parts(&layout, u64::MAX, 8).count(), 0);
    }

    #[test]
    fn merging_keeps_the_other_bytes() {
        assert_eq!(
            merge(0x1122_3344_5566_7788, 4..8, &[1, 2, 3, 4]),
            0x0403_0201_5566_7788
        );
    }
}
