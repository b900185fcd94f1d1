// SPDX-License-Identifier: MIT OR Apache-2.0

//! Type signatures: the sequence of basic elements of a type, without their places.
//!
//! MPI asks that the sender's and the receiver's signatures agree. A signature may have 2⁶² basic
//! elements, so it is never written out: it is the number of elements and a polynomial fingerprint
//! of their sequence, which can be computed for concatenations and repetitions without looking at
//! the elements. Two different sequences get the same fingerprint with a probability below 2⁻⁹⁰.

use super::named::{Class, Element, Named};

const PRIME: u64 = (1 << 61) - 1;
const BASES: [u64; 2] = [0x0f3a_52c6_91d8_e74b, 0x1a7b_d93e_4c05_86f1];

/// The sequence of basic elements of a type, as a number of elements and a fingerprint.
///
/// ```
/// use libcopy_datatype::{Datatype, Named};
/// let double = Datatype::named(Named::Double);
/// let row = double.contiguous(6)?;
/// let column = double.vector(6, 1, 100)?;
/// assert_eq!(row.signature(), column.signature());
/// assert_ne!(row.signature(), double.contiguous(7)?.signature());
/// # Ok::<(), libcopy_datatype::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signature {
    elements: u64,
    hash: [u64; 2],
    power: [u64; 2],
}

fn multiply(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    let folded = (product & u128::from(PRIME)) as u64 + (product >> 61) as u64;
    if folded >= PRIME {
        folded - PRIME
    } else {
        folded
    }
}

fn add(a: u64, b: u64) -> u64 {
    let sum = a + b;
    if sum >= PRIME { sum - PRIME } else { sum }
}

impl Signature {
    /// The signature without elements.
    pub const EMPTY: Signature = Signature {
        elements: 0,
        hash: [0; 2],
        power: [1; 2],
    };

    /// How many basic elements there are.
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// A number that depends on the elements and their order: equal sequences have equal ones.
    pub fn fingerprint(&self) -> [u64; 2] {
        self.hash
    }

    pub(super) fn of_element(element: &Element) -> Signature {
        let class = match element.class {
            Class::Bytes => 1,
            Class::Signed => 2,
            Class::Unsigned => 3,
            Class::Float => 4,
            Class::Complex => 5,
            Class::Quad => 6,
            Class::QuadComplex => 7,
        };
        let letter = class << 16 | u64::from(element.size) << 8 | u64::from(element.external);
        Signature {
            elements: 1,
            hash: [letter; 2],
            power: BASES,
        }
    }

    pub(super) fn of_named(named: Named) -> Signature {
        named.elements().iter().fold(Signature::EMPTY, |all, e| {
            all.then(&Signature::of_element(e))
        })
    }

    /// This sequence, followed by another one. The number of elements wraps, which a type whose
    /// size is checked never reaches.
    pub fn then(&self, next: &Signature) -> Signature {
        let both = |i: usize| add(multiply(self.hash[i], next.power[i]), next.hash[i]);
        Signature {
            elements: self.elements.wrapping_add(next.elements),
            hash: [both(0), both(1)],
            power: [
                multiply(self.power[0], next.power[0]),
                multiply(self.power[1], next.power[1]),
            ],
        }
    }

    /// This sequence, `count` times.
    #[inline]
    pub fn repeat(&self, count: u64) -> Signature {
        match count {
            1 => *self,
            _ => self.repeat_often(count),
        }
    }

    fn repeat_often(&self, mut count: u64) -> Signature {
        // A concatenation takes six products; most counts are small.
        let mut result: Option<Signature> = None;
        let mut square = *self;
        while count > 0 {
            if count & 1 == 1 {
                result = Some(result.map_or(square, |result| result.then(&square)));
            }
            count >>= 1;
            if count > 0 {
                square = square.then(&square);
            }
        }
        result.unwrap_or(Signature::EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeating_is_concatenating() {
        let int = Signature::of_named(Named::Int);
        let double = Signature::of_named(Named::Double);
        let pair = int.then(&double);
        assert_eq!(pair.repeat(3), pair.then(&pair).then(&pair));
        assert_eq!(pair.repeat(0), Signature::EMPTY);
        assert_ne!(int.then(&double), double.then(&int));
        assert_ne!(int.repeat(2), int.repeat(3));
    }
}
