// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether the order in which a reduction combines elements may change from one call to the next.
//!
//! Ours is another one than the MPI library's, and where numbers are rounded, the order decides
//! about the last bits. An MPI library should give the same result for the same arguments (MPI 4.1,
//! section 6.9.1). So calls whose result depends on the order take one way, which all that decides
//! about it is known of before the first call. For others the governor may choose, and a team may
//! have to be earned.

use std::sync::OnceLock;

use libcopy::config;
use libcopy::datatype::{Class, Named};

use crate::decide::prior::Order;
use crate::library::abi::{self, Abi, Word};
use crate::library::predefined::Predefined;
use crate::types::datatype;

impl Order {
    /// That of a reduction between `ranks` ranks. A call that combines nothing has no `op`.
    pub fn of(abi: &Abi, ranks: usize, datatype: Word, op: Option<Word>) -> Order {
        let Some(op) = op else {
            return Order::Free;
        };
        let is_free = is_any() || {
            let kind = Arithmetic::of(abi, datatype);
            // Of two numbers there is one sum, whichever comes first.
            let of_two = match kind {
                Arithmetic::Exact => true,
                Arithmetic::Real => abi.same(op, abi.sum) || abi.same(op, abi.product),
                Arithmetic::Complex => abi.same(op, abi.sum),
                Arithmetic::Other => false,
            };
            kind == Arithmetic::Exact || ranks == 2 && of_two
        };
        if is_free { Order::Free } else { Order::Fixed }
    }
}

/// Whether the user does not mind.
fn is_any() -> bool {
    static ANY: OnceLock<bool> = OnceLock::new();
    *ANY.get_or_init(|| abi::asked_word(&config::REDUCTIONS) == Some("any"))
}

/// What elements of a datatype are to the predefined operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arithmetic {
    /// Integers, characters, bytes and truth values, of which all operations are associative.
    Exact,
    /// Floating-point numbers. Their sums and products depend on the order; the largest and the
    /// smallest of several do, too, where some are no numbers, or zeros of either sign.
    Real,
    /// Complex ones, of whose product a compiler may round one half earlier than the other.
    Complex,
    /// Pairs with floating-point numbers, and what is not known.
    Other,
}

/// Predefined datatypes that were asked for: their places in [`Arithmetic::ALL`].
static KNOWN: Predefined = Predefined::new();

impl Arithmetic {
    const ALL: [Arithmetic; 4] = [Self::Exact, Self::Real, Self::Complex, Self::Other];

    #[inline]
    fn of(abi: &Abi, datatype: Word) -> Arithmetic {
        let handle = datatype & abi.handle;
        if let Some(known) = KNOWN.get(handle) {
            return Self::ALL[known % 4];
        }
        let Some(named) = datatype::predefined(abi, datatype) else {
            return Arithmetic::Other;
        };
        let found = Self::of_named(named);
        KNOWN.put(handle, found as usize);
        found
    }

    fn of_named(named: Named) -> Arithmetic {
        let elements = named.elements();
        let is_exact = |class| matches!(class, Class::Bytes | Class::Signed | Class::Unsigned);
        match elements {
            _ if elements.iter().all(|element| is_exact(element.class)) => Arithmetic::Exact,
            [one] => match one.class {
                Class::Float | Class::Quad => Arithmetic::Real,
                _ => Arithmetic::Complex,
            },
            _ => Arithmetic::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_a_fraction_are_not_exact() {
        let named = |name: &str| {
            let named = Named::from_name(name);
            Arithmetic::of_named(named.unwrap_or_else(|| panic!("{name}")))
        };
        let cases = [
            (
                Arithmetic::Exact,
                "INT UINT64_T INTEGER8 BYTE CHAR LOGICAL C_BOOL AINT COUNT 2INT LONG_INT 2INTEGER",
            ),
            (
                Arithmetic::Real,
                "FLOAT DOUBLE LONG_DOUBLE REAL REAL2 REAL16 DOUBLE_PRECISION",
            ),
            (
                Arithmetic::Complex,
                "C_COMPLEX C_DOUBLE_COMPLEX COMPLEX DOUBLE_COMPLEX COMPLEX32",
            ),
            (
                Arithmetic::Other,
                "FLOAT_INT DOUBLE_INT LONG_DOUBLE_INT 2REAL 2DOUBLE_PRECISION",
            ),
        ];
        for (kind, names) in cases {
            for name in names.split(' ') {
                assert_eq!(named(name), kind, "{name}");
            }
        }
    }
}
