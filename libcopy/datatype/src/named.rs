// SPDX-License-Identifier: MIT OR Apache-2.0

//! The named (predefined) datatypes of MPI: sizes, alignments, and how external32 stores them.
//!
//! Sources: MPI 4.1, tables 3.1 to 3.4 (which types there are), section 6.9.4 (value and index
//! pairs), table 14.2 (external32 sizes). Sizes and alignments are those of the System V ABI,
//! which x86-64 and AArch64 Linux share except for `long double`.

use std::sync::LazyLock;

use crate::nearest::nearest;

/// How the bytes of one basic element mean something; what a conversion needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Bytes without a meaning: never converted.
    Bytes,
    /// A two's complement integer.
    Signed,
    /// An unsigned integer, or a logical value.
    Unsigned,
    /// An IEEE 754 number; `long double` may be the x87 format.
    Float,
    /// Two floats, real part first.
    Complex,
    /// An IEEE 754 binary128 number, also where `long double` is something else.
    Quad,
    /// Two of those, real part first.
    QuadComplex,
}

macro_rules! named {
    ($($(#[$doc:meta])* $variant:ident $mpi:literal [$($class:ident $size:expr, $align:expr, $at:expr, $ext:expr);+] $total:expr;)+) => {
        /// A predefined datatype.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Named {
            $($(#[$doc])* $variant,)+
        }

        impl Named {
            /// All of them, in the order of their declaration.
            pub const ALL: &'static [Named] = &[$(Named::$variant),+];

            /// The name that MPI gives it.
            pub fn mpi_name(self) -> &'static str {
                match self { $(Named::$variant => $mpi,)+ }
            }

            /// The basic elements it consists of: one, or two for value and index pairs.
            pub fn elements(self) -> &'static [Element] {
                match self { $(Named::$variant => const { &[$(Element {
                    class: Class::$class, size: $size, align: $align, offset: $at, external: $ext,
                }),+] },)+ }
            }

            /// Distance from one to the next in an array, in bytes: the C compiler's `sizeof`.
            pub fn extent(self) -> u32 {
                match self { $(Named::$variant => $total,)+ }
            }
        }
    };
}

/// One basic element of a named type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Element {
    /// What its bytes mean.
    pub class: Class,
    /// Bytes in memory.
    pub size: u32,
    /// Alignment in memory, in bytes.
    pub align: u32,
    /// Where in the named type it lies, in bytes.
    pub offset: u32,
    /// Bytes in the external32 representation.
    pub external: u32,
}

named! {
    /// `char`, text.
    Char "MPI_CHAR" [Bytes 1, 1, 0, 1] 1;
    /// `signed char`.
    SignedChar "MPI_SIGNED_CHAR" [Signed 1, 1, 0, 1] 1;
    /// `unsigned char`.
    UnsignedChar "MPI_UNSIGNED_CHAR" [Unsigned 1, 1, 0, 1] 1;
    /// Uninterpreted bytes.
    Byte "MPI_BYTE" [Bytes 1, 1, 0, 1] 1;
    /// What `MPI_Pack` produces.
    Packed "MPI_PACKED" [Bytes 1, 1, 0, 1] 1;
    /// `wchar_t`; external32 has two bytes for it, a character of UTF-16.
    Wchar "MPI_WCHAR" [Unsigned 4, 4, 0, 2] 4;
    /// `short`.
    Short "MPI_SHORT" [Signed 2, 2, 0, 2] 2;
    /// `unsigned short`.
    UnsignedShort "MPI_UNSIGNED_SHORT" [Unsigned 2, 2, 0, 2] 2;
    /// `int`.
    Int "MPI_INT" [Signed 4, 4, 0, 4] 4;
    /// `unsigned`.
    Unsigned "MPI_UNSIGNED" [Unsigned 4, 4, 0, 4] 4;
    /// `long`; external32 gives it four bytes.
    Long "MPI_LONG" [Signed 8, 8, 0, 4] 8;
    /// `unsigned long`; external32 gives it four bytes.
    UnsignedLong "MPI_UNSIGNED_LONG" [Unsigned 8, 8, 0, 4] 8;
    /// `long long`.
    LongLong "MPI_LONG_LONG_INT" [Signed 8, 8, 0, 8] 8;
    /// `unsigned long long`.
    UnsignedLongLong "MPI_UNSIGNED_LONG_LONG" [Unsigned 8, 8, 0, 8] 8;
    /// `float`.
    Float "MPI_FLOAT" [Float 4, 4, 0, 4] 4;
    /// `double`.
    Double "MPI_DOUBLE" [Float 8, 8, 0, 8] 8;
    /// `long double`.
    LongDouble "MPI_LONG_DOUBLE" [Float 16, 16, 0, 16] 16;
    /// `_Bool`.
    CBool "MPI_C_BOOL" [Unsigned 1, 1, 0, 1] 1;
    /// `int8_t`.
    Int8 "MPI_INT8_T" [Signed 1, 1, 0, 1] 1;
    /// `int16_t`.
    Int16 "MPI_INT16_T" [Signed 2, 2, 0, 2] 2;
    /// `int32_t`.
    Int32 "MPI_INT32_T" [Signed 4, 4, 0, 4] 4;
    /// `int64_t`.
    Int64 "MPI_INT64_T" [Signed 8, 8, 0, 8] 8;
    /// `uint8_t`.
    Uint8 "MPI_UINT8_T" [Unsigned 1, 1, 0, 1] 1;
    /// `uint16_t`.
    Uint16 "MPI_UINT16_T" [Unsigned 2, 2, 0, 2] 2;
    /// `uint32_t`.
    Uint32 "MPI_UINT32_T" [Unsigned 4, 4, 0, 4] 4;
    /// `uint64_t`.
    Uint64 "MPI_UINT64_T" [Unsigned 8, 8, 0, 8] 8;
    /// `MPI_Aint`.
    Aint "MPI_AINT" [Signed 8, 8, 0, 8] 8;
    /// `MPI_Offset`.
    Offset "MPI_OFFSET" [Signed 8, 8, 0, 8] 8;
    /// `MPI_Count`.
    Count "MPI_COUNT" [Signed 8, 8, 0, 8] 8;
    /// `float _Complex`.
    CFloatComplex "MPI_C_FLOAT_COMPLEX" [Complex 8, 4, 0, 8] 8;
    /// `double _Complex`.
    CDoubleComplex "MPI_C_DOUBLE_COMPLEX" [Complex 16, 8, 0, 16] 16;
    /// `long double _Complex`.
    CLongDoubleComplex "MPI_C_LONG_DOUBLE_COMPLEX" [Complex 32, 16, 0, 32] 32;
    /// C++ `bool`.
    CxxBool "MPI_CXX_BOOL" [Unsigned 1, 1, 0, 1] 1;
    /// C++ `std::complex<float>`.
    CxxFloatComplex "MPI_CXX_FLOAT_COMPLEX" [Complex 8, 4, 0, 8] 8;
    /// C++ `std::complex<double>`.
    CxxDoubleComplex "MPI_CXX_DOUBLE_COMPLEX" [Complex 16, 8, 0, 16] 16;
    /// C++ `std::complex<long double>`.
    CxxLongDoubleComplex "MPI_CXX_LONG_DOUBLE_COMPLEX" [Complex 32, 16, 0, 32] 32;
    /// Fortran `INTEGER`.
    Integer "MPI_INTEGER" [Signed 4, 4, 0, 4] 4;
    /// Fortran `REAL`.
    Real "MPI_REAL" [Float 4, 4, 0, 4] 4;
    /// Fortran `DOUBLE PRECISION`.
    DoublePrecision "MPI_DOUBLE_PRECISION" [Float 8, 8, 0, 8] 8;
    /// Fortran `COMPLEX`.
    FComplex "MPI_COMPLEX" [Complex 8, 4, 0, 8] 8;
    /// Fortran `DOUBLE COMPLEX`.
    DoubleComplex "MPI_DOUBLE_COMPLEX" [Complex 16, 8, 0, 16] 16;
    /// Fortran `LOGICAL`.
    Logical "MPI_LOGICAL" [Unsigned 4, 4, 0, 4] 4;
    /// Fortran `CHARACTER`.
    Character "MPI_CHARACTER" [Bytes 1, 1, 0, 1] 1;
    /// Fortran `INTEGER*1`.
    Integer1 "MPI_INTEGER1" [Signed 1, 1, 0, 1] 1;
    /// Fortran `INTEGER*2`.
    Integer2 "MPI_INTEGER2" [Signed 2, 2, 0, 2] 2;
    /// Fortran `INTEGER*4`.
    Integer4 "MPI_INTEGER4" [Signed 4, 4, 0, 4] 4;
    /// Fortran `INTEGER*8`.
    Integer8 "MPI_INTEGER8" [Signed 8, 8, 0, 8] 8;
    /// Fortran `INTEGER*16`.
    Integer16 "MPI_INTEGER16" [Signed 16, 16, 0, 16] 16;
    /// Fortran `REAL*2`.
    Real2 "MPI_REAL2" [Float 2, 2, 0, 2] 2;
    /// Fortran `REAL*4`.
    Real4 "MPI_REAL4" [Float 4, 4, 0, 4] 4;
    /// Fortran `REAL*8`.
    Real8 "MPI_REAL8" [Float 8, 8, 0, 8] 8;
    /// Fortran `REAL*16`.
    Real16 "MPI_REAL16" [Quad 16, 16, 0, 16] 16;
    /// Fortran `COMPLEX*4`.
    Complex4 "MPI_COMPLEX4" [Complex 4, 2, 0, 4] 4;
    /// Fortran `COMPLEX*8`.
    Complex8 "MPI_COMPLEX8" [Complex 8, 4, 0, 8] 8;
    /// Fortran `COMPLEX*16`.
    Complex16 "MPI_COMPLEX16" [Complex 16, 8, 0, 16] 16;
    /// Fortran `COMPLEX*32`.
    Complex32 "MPI_COMPLEX32" [QuadComplex 32, 16, 0, 32] 32;
    /// Fortran `LOGICAL*1`.
    Logical1 "MPI_LOGICAL1" [Unsigned 1, 1, 0, 1] 1;
    /// Fortran `LOGICAL*2`.
    Logical2 "MPI_LOGICAL2" [Unsigned 2, 2, 0, 2] 2;
    /// Fortran `LOGICAL*4`.
    Logical4 "MPI_LOGICAL4" [Unsigned 4, 4, 0, 4] 4;
    /// Fortran `LOGICAL*8`.
    Logical8 "MPI_LOGICAL8" [Unsigned 8, 8, 0, 8] 8;
    /// Pair `{float, int}`.
    FloatInt "MPI_FLOAT_INT" [Float 4, 4, 0, 4; Signed 4, 4, 4, 4] 8;
    /// Pair `{double, int}`: 12 bytes of data, 16 from one to the next.
    DoubleInt "MPI_DOUBLE_INT" [Float 8, 8, 0, 8; Signed 4, 4, 8, 4] 16;
    /// Pair `{long, int}`.
    LongInt "MPI_LONG_INT" [Signed 8, 8, 0, 4; Signed 4, 4, 8, 4] 16;
    /// Pair `{int, int}`.
    TwoInt "MPI_2INT" [Signed 4, 4, 0, 4; Signed 4, 4, 4, 4] 8;
    /// Pair `{short, int}`: a hole in the middle.
    ShortInt "MPI_SHORT_INT" [Signed 2, 2, 0, 2; Signed 4, 4, 4, 4] 8;
    /// Pair `{long double, int}`.
    LongDoubleInt "MPI_LONG_DOUBLE_INT" [Float 16, 16, 0, 16; Signed 4, 4, 16, 4] 32;
    /// Fortran pair of `REAL`.
    TwoReal "MPI_2REAL" [Float 4, 4, 0, 4; Float 4, 4, 4, 4] 8;
    /// Fortran pair of `DOUBLE PRECISION`.
    TwoDoublePrecision "MPI_2DOUBLE_PRECISION" [Float 8, 8, 0, 8; Float 8, 8, 8, 8] 16;
    /// Fortran pair of `INTEGER`.
    TwoInteger "MPI_2INTEGER" [Signed 4, 4, 0, 4; Signed 4, 4, 4, 4] 8;
}

impl Named {
    /// Bytes of data, without padding.
    pub fn size(self) -> u32 {
        self.elements().iter().map(|e| e.size).sum()
    }

    /// Alignment in bytes.
    pub fn align(self) -> u32 {
        self.elements().iter().map(|e| e.align).max().unwrap_or(1)
    }

    /// Offset behind the last byte of data.
    pub fn true_extent(self) -> u32 {
        let elements = self.elements();
        elements.last().map_or(0, |last| last.offset + last.size)
    }

    /// Bytes of the external32 representation.
    pub fn external_size(self) -> u32 {
        self.elements().iter().map(|e| e.external).sum()
    }

    /// Finds a type by MPI's name, with or without `MPI_`, in any case.
    pub fn from_name(name: &str) -> Option<Named> {
        let wanted = name.to_ascii_uppercase();
        let wanted = wanted.strip_prefix("MPI_").unwrap_or(&wanted);
        Named::ALL
            .iter()
            .copied()
            .find(|n| &n.mpi_name()[4..] == wanted)
            .or(match wanted {
                "LONG_LONG" => Some(Named::LongLong),
                "C_COMPLEX" => Some(Named::CFloatComplex),
                _ => None,
            })
    }

    /// The name, without `MPI_` and in small letters, that is nearest to one that no type has.
    pub(crate) fn nearest(name: &str) -> Option<&'static str> {
        static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
            let names = Named::ALL.iter().map(|named| &named.mpi_name()[4..]);
            names.map(str::to_ascii_lowercase).collect()
        });
        nearest(name, NAMES.iter().map(String::as_str))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_c_compiler() {
        assert_eq!(Named::Long.size() as usize, size_of::<libc::c_long>());
        assert_eq!(Named::Wchar.size() as usize, size_of::<libc::wchar_t>());
        assert_eq!(Named::DoubleInt.size(), 12);
        assert_eq!(Named::DoubleInt.extent(), 16);
        assert_eq!(Named::ShortInt.size(), 6);
        assert_eq!(Named::ShortInt.true_extent(), 8);
        // Table 14.2: a wide character is two bytes long there.
        assert_eq!(Named::Wchar.external_size(), 2);
        assert_eq!(Named::from_name("real16").map(Named::size), Some(16));
        assert_eq!(Named::from_name("MPI_COMPLEX32").map(Named::size), Some(32));
        for named in Named::ALL {
            assert_eq!(named.extent() % named.align(), 0, "{named:?}");
            assert!(named.true_extent() <= named.extent());
            assert_eq!(Named::from_name(named.mpi_name()), Some(*named));
        }
    }
}
