// SPDX-License-Identifier: MIT OR Apache-2.0

//! The integers of offsets and positions.

use core::fmt::Debug;

mod sealed {
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
}

/// The integer of offsets and positions: `i32` in images, `i64` in forms of the library.
///
/// Arithmetic wraps. In a checked tree nothing overflows; with a state of another tree the result
/// is some other number, not a panic.
pub trait Word: Copy + Ord + Default + Debug + sealed::Sealed {
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;

    /// The sum.
    #[must_use]
    fn plus(self, other: Self) -> Self;
    /// The difference.
    #[must_use]
    fn minus(self, other: Self) -> Self;
    /// The product.
    #[must_use]
    fn times(self, other: Self) -> Self;
    /// The quotient; 0 if `other` is not positive.
    #[must_use]
    fn over(self, other: Self) -> Self;
    /// The number as an index; a negative one becomes an index that no list has.
    fn index(self) -> usize;
    /// The index of a list's entry as a number.
    fn from_index(index: usize) -> Self;
}

macro_rules! word {
    ($($integer:ident, $unsigned:ident);*) => {$(
        impl Word for $integer {
            const ZERO: Self = 0;
            const ONE: Self = 1;

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn over(self, other: Self) -> Self {
                // Unsigned: positions are not negative, and the division needs no sign.
                if other > 0 {
                    (self as $unsigned / other as $unsigned) as $integer
                } else {
                    0
                }
            }

            #[inline(always)]
            fn index(self) -> usize {
                self as usize
            }

            #[inline(always)]
            fn from_index(index: usize) -> Self {
                index as $integer
            }
        }
    )*};
}

word!(i32, u32; i64, u64);
