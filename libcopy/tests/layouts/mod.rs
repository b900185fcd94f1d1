// SPDX-License-Identifier: MIT OR Apache-2.0

//! Layouts for tests, drawn by a number.

use libcopy::datatype::{Datatype, Layout, Named};

/// A number that looks random.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ x >> 31
}

/// Numbers that look random; the same for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0) % end.max(1)
    }
}

/// A layout of `len` bytes, and a buffer for its elements with its origin.
pub fn layout(kind: u64, len: usize) -> (Layout, usize, isize) {
    let byte = Datatype::named(Named::Byte);
    let datatype = match kind % 4 {
        0 => byte.contiguous(len as u64).unwrap(),
        // Blocks with gaps, and what is left over at the end.
        1 | 2 => {
            let block = 1 + (kind / 4 % 97) as usize;
            let (blocks, rest) = (len / block, len % block);
            let stride = (block + 1 + (kind / 512 % 13) as usize) as i64;
            let all = byte.vector(blocks as u64, block as u64, stride).unwrap();
            let end = byte.contiguous(rest as u64).unwrap();
            let types = [all, end];
            Datatype::structure(&[1, 1], &[0, blocks as i64 * stride + 3], &types).unwrap()
        }
        // Irregular pieces, the later ones at lower addresses.
        _ => {
            let mut random = Random(kind);
            let (mut left, mut at) = (len as u64, 0);
            let (mut lengths, mut places) = (Vec::new(), Vec::new());
            let longest = (len as u64 / 8).max(8);
            while left > 0 {
                let n = (1 + random.below(longest)).min(left);
                at -= n as i64 + random.below(20) as i64;
                lengths.push(n);
                places.push(at);
                left -= n;
            }
            byte.hindexed(&lengths, &places).unwrap()
        }
    };
    let layout = Layout::new(&datatype, 1).unwrap();
    let bounds = layout.bounds();
    let room = (bounds.end - bounds.start) as usize + 10;
    (layout, room, 5 - bounds.start as isize)
}
