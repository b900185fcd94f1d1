// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers of elements, and where they are, in both forms of a function (MPI 4.1, section 2.5.6
//! and 2.5.8): `int`s, and `MPI_Count` with `MPI_Aint` in the functions whose names end in `_c`.

use std::ffi::c_int;

/// `MPI_Count`, which is as wide as an `MPI_Aint` at least, and 64 bits in all libraries.
pub type Large = i64;

/// What counts elements.
pub trait Count: Copy {
    /// What says where parts of a buffer are: in elements, or in bytes for `MPI_Alltoallw`.
    type Place: Copy + Send + TryFrom<usize> + TryInto<isize> + 'static;

    /// Whether this is the form for large counts.
    const LARGE: bool;

    /// This many; `None` if that is no number of elements.
    fn number(self) -> Option<usize>;

    /// This many; none if that is no number of elements.
    fn elements(self) -> usize {
        self.number().unwrap_or(0)
    }

    /// This number; `None` if it does not fit.
    fn of(number: usize) -> Option<Self>;

    /// A place as a number.
    fn place(place: Self::Place) -> isize;

    /// A number as a place; `None` if it does not fit.
    fn place_of(number: usize) -> Option<Self::Place>;

    /// The same as an `int`; `None` if it is none.
    fn narrow(self) -> Option<c_int>;

    /// A place as an `int`; `None` if it is none.
    fn narrow_place(place: Self::Place) -> Option<c_int> {
        c_int::try_from(Self::place(place)).ok()
    }
}

/// Numbers of a type, whose places have another one.
macro_rules! counts {
    ($($count:ty, $place:ty, $is_large:literal;)*) => { $(
        impl Count for $count {
            type Place = $place;

            const LARGE: bool = $is_large;

            #[inline]
            fn number(self) -> Option<usize> {
                usize::try_from(self).ok()
            }

            fn of(number: usize) -> Option<Self> {
                <$count>::try_from(number).ok()
            }

            fn place(place: $place) -> isize {
                place as isize
            }

            fn place_of(number: usize) -> Option<$place> {
                <$place>::try_from(number).ok()
            }

            fn narrow(self) -> Option<c_int> {
                c_int::try_from(self).ok()
            }
        }
    )* };
}

counts! {
    c_int, c_int, false;
    Large, isize, true;
}
