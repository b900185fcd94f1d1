// SPDX-License-Identifier: MIT OR Apache-2.0

//! Random datatypes, the same on every machine.

use libcopy_datatype::{Datatype, Named};

/// xorshift64*.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A datatype of up to four constructors, with data.
pub fn datatype(random: &mut Random) -> Datatype {
    let mut datatype = predefined(random);
    for _ in 0..random.below(5) {
        if datatype.size() > 2000 {
            break;
        }
        datatype = around(datatype, random);
    }
    datatype
}

fn predefined(random: &mut Random) -> Datatype {
    let all = [Named::Byte, Named::Int, Named::Double, Named::Uint16];
    Datatype::named(all[random.below(4) as usize])
}

/// A list of displacements that are apart by `extent` at least, mostly ascending.
fn displacements(count: u64, extent: i64, random: &mut Random) -> Vec<i64> {
    let mut at = random.below(9) as i64 - 4;
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(at);
        at += extent + random.below(4) as i64 * (1 + random.below(3) as i64);
    }
    if random.below(4) == 0 {
        all.reverse();
    }
    all
}

fn around(inner: Datatype, random: &mut Random) -> Datatype {
    let count = 1 + random.below(7);
    let extent = inner.extent();
    let made = match random.below(7) {
        0 => inner.contiguous(count),
        1 => {
            let block = 1 + random.below(3);
            inner.vector(count, block, (block + random.below(3)) as i64)
        }
        2 => inner.hvector(count, 1, extent + random.below(30) as i64),
        3 => {
            let block = 1 + random.below(3);
            inner.indexed_block(block, &displacements(count, block as i64, random))
        }
        4 => {
            let lengths: Vec<u64> = (0..count).map(|_| 1 + random.below(3)).collect();
            inner.indexed(&lengths, &displacements(count, 3, random))
        }
        5 => {
            let children: Vec<Datatype> = (0..count)
                .map(|_| {
                    if random.below(2) == 0 {
                        predefined(random)
                    } else {
                        inner.clone()
                    }
                })
                .collect();
            let lengths: Vec<u64> = (0..count).map(|_| 1 + random.below(2)).collect();
            let places = displacements(count, 2 * extent.max(8), random);
            Datatype::structure(&lengths, &places, &children)
        }
        _ => inner.resized(0, extent + random.below(12) as i64),
    };
    made.unwrap_or_else(|error| panic!("{error}"))
}
