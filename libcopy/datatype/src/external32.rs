// SPDX-License-Identifier: MIT OR Apache-2.0

//! The portable representation "external32": big-endian, with sizes that do not depend on the
//! machine. MPI 4.1, section 14.5.2.

use super::datatype::Datatype;
use super::elements::Elements;
use super::named::{Class, Element};
use crate::{Error, Result};

impl Datatype {
    /// Bytes that `count` elements take in external32: `MPI_Pack_external_size`.
    ///
    /// # Errors
    ///
    /// A size that does not fit into 64 bits.
    pub fn external_size(&self, count: u64) -> Result<u64> {
        Ok(self.contiguous(count)?.external_bytes())
    }

    /// `MPI_Pack_external`: `count` elements from `buffer`, whose origin is at `origin` (see
    /// [`super::Layout`]), to `packed`; returns how many bytes were written.
    ///
    /// # Errors
    ///
    /// Data outside `buffer`, too little room in `packed`, or a `long` whose value does not fit
    /// into the four bytes that external32 has for it.
    pub fn pack_external(
        &self,
        count: u64,
        buffer: &[u8],
        origin: isize,
        packed: &mut [u8],
    ) -> Result<usize> {
        let mut at = 0;
        for (element, offset) in Elements::new(self, count)? {
            let native = place(&element, offset, origin, buffer.len())?;
            let end = at + element.external as usize;
            let room = packed.len();
            let target = packed
                .get_mut(at..end)
                .ok_or_else(|| too_short(room, end))?;
            encode(&element, &buffer[native], target)?;
            at = end;
        }
        Ok(at)
    }

    /// `MPI_Unpack_external`: the way back; returns how many bytes of `packed` were read.
    ///
    /// # Errors
    ///
    /// Data outside `buffer`, or too few bytes in `packed`.
    pub fn unpack_external(
        &self,
        count: u64,
        packed: &[u8],
        buffer: &mut [u8],
        origin: isize,
    ) -> Result<usize> {
        let mut at = 0;
        for (element, offset) in Elements::new(self, count)? {
            let native = place(&element, offset, origin, buffer.len())?;
            let end = at + element.external as usize;
            let source = packed
                .get(at..end)
                .ok_or_else(|| too_short(packed.len(), end))?;
            decode(&element, source, &mut buffer[native]);
            at = end;
        }
        Ok(at)
    }
}

impl Datatype {
    /// As [`Datatype::pack_external`]; `origin` is the address that displacements count from.
    ///
    /// # Safety
    ///
    /// The data of `count` elements at `origin` is readable, and `packed` does not overlap it.
    ///
    /// # Errors
    ///
    /// As for [`Datatype::pack_external`], but for the buffer.
    pub unsafe fn pack_external_raw(
        &self,
        count: u64,
        origin: *const u8,
        packed: &mut [u8],
    ) -> Result<usize> {
        let mut at = 0;
        for (element, offset) in Elements::new(self, count)? {
            let end = at + element.external as usize;
            let room = packed.len();
            let target = packed
                .get_mut(at..end)
                .ok_or_else(|| too_short(room, end))?;
            let place = origin.wrapping_offset(offset as isize);
            // SAFETY: the caller's promise; the element is part of the data.
            let native = unsafe { std::slice::from_raw_parts(place, element.size as usize) };
            encode(&element, native, target)?;
            at = end;
        }
        Ok(at)
    }

    /// As [`Datatype::unpack_external`]; `origin` is the address that displacements count from.
    ///
    /// # Safety
    ///
    /// The data of `count` elements at `origin` is writable, and `packed` does not overlap it.
    ///
    /// # Errors
    ///
    /// Too few bytes in `packed`.
    pub unsafe fn unpack_external_raw(
        &self,
        count: u64,
        packed: &[u8],
        origin: *mut u8,
    ) -> Result<usize> {
        let mut at = 0;
        for (element, offset) in Elements::new(self, count)? {
            let end = at + element.external as usize;
            let source = packed
                .get(at..end)
                .ok_or_else(|| too_short(packed.len(), end))?;
            let place = origin.wrapping_offset(offset as isize);
            // SAFETY: the caller's promise; the element is part of the data. What was there are
            // bytes.
            let native = unsafe { std::slice::from_raw_parts_mut(place, element.size as usize) };
            decode(&element, source, native);
            at = end;
        }
        Ok(at)
    }
}

fn too_short(len: usize, wanted: usize) -> Error {
    let allowed = format!("at least {wanted}; see external_size");
    Error::argument("the length of the packed bytes", len, allowed)
}

fn place(
    element: &Element,
    offset: i64,
    origin: isize,
    len: usize,
) -> Result<std::ops::Range<usize>> {
    let start = i128::from(offset) + origin as i128;
    let end = start + i128::from(element.size);
    if start < 0 || end > len as i128 {
        return Err(Error::argument(
            "the buffer",
            format!("{len} bytes with the origin at {origin}"),
            format!(
                "such that the {} bytes at offset {offset} are inside",
                element.size
            ),
        ));
    }
    Ok(start as usize..end as usize)
}

/// Copies the bytes of a number in the other byte order, or as they are on a big-endian machine.
fn reordered(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
    if cfg!(target_endian = "little") {
        to.reverse();
    }
}

/// `long double` is the x87 format here, and IEEE binary128 in external32.
fn is_x87(element: &Element, size: usize) -> bool {
    cfg!(any(target_arch = "x86_64", target_arch = "x86"))
        && size == 16
        && matches!(element.class, Class::Float | Class::Complex)
}

fn encode(element: &Element, native: &[u8], external: &mut [u8]) -> Result<()> {
    match element.class {
        Class::Bytes => external.copy_from_slice(native),
        Class::Complex | Class::QuadComplex => {
            let (half, external_half) = (native.len() / 2, external.len() / 2);
            let (re, im) = external.split_at_mut(external_half);
            float(element, &native[..half], re, Way::Out);
            float(element, &native[half..], im, Way::Out);
        }
        Class::Float | Class::Quad => float(element, native, external, Way::Out),
        Class::Signed | Class::Unsigned if native.len() == external.len() => {
            reordered(native, external);
        }
        Class::Signed | Class::Unsigned => {
            if let ([a, b, c, d], [_, _]) = (native, &external) {
                let value = i32::from_ne_bytes([*a, *b, *c, *d]);
                let Ok(narrow) = u16::try_from(value) else {
                    let allowed =
                        "within 16 bits, which is what external32 has for a wide character";
                    return Err(Error::argument("a wide character", value, allowed));
                };
                external.copy_from_slice(&narrow.to_be_bytes());
                return Ok(());
            }
            // Else only `long` and `unsigned long` change their size, from eight bytes to four.
            let mut bytes = [0; 8];
            bytes.copy_from_slice(native);
            let value = i64::from_ne_bytes(bytes);
            let narrow = match element.class {
                Class::Signed => i32::try_from(value).ok().map(i32::to_be_bytes),
                _ => u32::try_from(value as u64).ok().map(u32::to_be_bytes),
            };
            let Some(narrow) = narrow else {
                let allowed = "within 32 bits, which is what external32 has for a long";
                return Err(Error::argument("a long", value, allowed));
            };
            external.copy_from_slice(&narrow);
        }
    }
    Ok(())
}

fn decode(element: &Element, external: &[u8], native: &mut [u8]) {
    match element.class {
        Class::Bytes => native.copy_from_slice(external),
        Class::Complex | Class::QuadComplex => {
            let (half, external_half) = (native.len() / 2, external.len() / 2);
            let (re, im) = native.split_at_mut(half);
            float(element, &external[..external_half], re, Way::In);
            float(element, &external[external_half..], im, Way::In);
        }
        Class::Float | Class::Quad => float(element, external, native, Way::In),
        Class::Signed | Class::Unsigned if native.len() == external.len() => {
            reordered(external, native);
        }
        Class::Signed | Class::Unsigned => {
            if let [high, low] = external {
                let value = u32::from(u16::from_be_bytes([*high, *low]));
                return native.copy_from_slice(&value.to_ne_bytes());
            }
            let mut bytes = [0; 4];
            bytes.copy_from_slice(external);
            let value = match element.class {
                Class::Signed => i64::from(i32::from_be_bytes(bytes)),
                _ => i64::from(u32::from_be_bytes(bytes)),
            };
            native.copy_from_slice(&value.to_ne_bytes());
        }
    }
}

/// Which way a conversion goes.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Out,
    In,
}

fn float(element: &Element, from: &[u8], to: &mut [u8], way: Way) {
    if !is_x87(element, from.len()) {
        return reordered(from, to);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(from);
    // The x87 side is little-endian, the external side big-endian.
    let result = match way {
        Way::Out => widen(u128::from_le_bytes(bytes)).to_be_bytes(),
        Way::In => narrow(u128::from_be_bytes(bytes)).to_le_bytes(),
    };
    to.copy_from_slice(&result);
}

/// From the x87 format (in the low 80 bits) to IEEE binary128. Both have a 15-bit exponent with
/// the same bias; the x87 one writes out the leading bit of its 64-bit significand.
fn widen(x87: u128) -> u128 {
    let sign = x87 >> 79 & 1;
    let exponent = x87 >> 64 & 0x7fff;
    let significand = x87 & u128::from(u64::MAX);
    let fraction = significand & u128::from(u64::MAX >> 1);
    if exponent == 0 {
        // A subnormal counts from the same place as exponent 1: with the leading bit set (a
        // pseudo-denormal) it is an ordinary number of that exponent.
        let exponent = significand >> 63;
        return sign << 127 | exponent << 112 | fraction << 49;
    }
    sign << 127 | exponent << 112 | fraction << 49
}

/// From IEEE binary128 to the x87 format, rounded to nearest, ties to even.
fn narrow(binary128: u128) -> u128 {
    let sign = binary128 >> 127;
    let exponent = binary128 >> 112 & 0x7fff;
    let fraction = binary128 & ((1 << 112) - 1);
    let (kept, rest) = (fraction >> 49, fraction & ((1 << 49) - 1));
    if exponent == 0x7fff {
        // Infinity, or a NaN, which must not become an infinity when its low bits go.
        let quiet = u128::from(fraction != 0) << 62;
        return sign << 79 | exponent << 64 | 1 << 63 | kept | quiet;
    }
    let half = 1 << 48;
    let up = rest > half || rest == half && kept & 1 == 1;
    // Exponent and fraction side by side: a carry out of the fraction raises the exponent, as it
    // should, up to infinity.
    let number = (exponent << 63 | kept) + u128::from(up);
    let (exponent, kept) = (number >> 63, number & ((1 << 63) - 1));
    let leading = u128::from(exponent != 0) << 63;
    sign << 79 | exponent << 64 | leading | kept
}

#[cfg(test)]
mod tests {
    use super::super::Named;
    use super::*;

    #[test]
    fn numbers_become_big_endian() {
        let int = Datatype::named(Named::Int);
        let pair = Datatype::structure(
            &[1, 1, 2],
            &[0, 8, 16],
            &[
                int.clone(),
                Datatype::named(Named::Double),
                Datatype::named(Named::Char),
            ],
        )
        .unwrap();
        let mut memory = [0u8; 24];
        memory[..4].copy_from_slice(&0x0102_0304i32.to_ne_bytes());
        memory[8..16].copy_from_slice(&1.5f64.to_ne_bytes());
        memory[16..18].copy_from_slice(b"ab");
        let mut packed = [0u8; 14];
        assert_eq!(pair.external_size(1).unwrap(), 14);
        assert_eq!(pair.pack_external(1, &memory, 0, &mut packed).unwrap(), 14);
        assert_eq!(
            packed,
            [1, 2, 3, 4, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, b'a', b'b']
        );
        let mut back = [0u8; 24];
        assert_eq!(pair.unpack_external(1, &packed, &mut back, 0).unwrap(), 14);
        assert_eq!(back, memory);
        assert!(
            pair.pack_external(1, &memory, 0, &mut packed[..13])
                .is_err()
        );
        assert!(pair.pack_external(2, &memory, 0, &mut [0; 28]).is_err());
    }

    #[test]
    fn a_long_has_four_bytes_and_must_fit() {
        let long = Datatype::named(Named::Long);
        let memory = [(-2i64).to_ne_bytes(), 5i64.to_ne_bytes()].concat();
        let mut packed = [0; 8];
        assert_eq!(long.external_size(2).unwrap(), 8);
        long.pack_external(2, &memory, 0, &mut packed).unwrap();
        assert_eq!(packed, [255, 255, 255, 254, 0, 0, 0, 5]);
        let mut back = vec![0; 16];
        long.unpack_external(2, &packed, &mut back, 0).unwrap();
        assert_eq!(back, memory);
        let large = (1i64 << 31).to_ne_bytes();
        assert!(long.pack_external(1, &large, 0, &mut packed).is_err());
        let unsigned = Datatype::named(Named::UnsignedLong);
        assert!(unsigned.pack_external(1, &large, 0, &mut packed).is_ok());
    }

    #[test]
    fn a_wide_character_has_two_bytes_and_must_fit() {
        let wide = Datatype::named(Named::Wchar);
        let memory = [0x41i32.to_ne_bytes(), 0x20ac_i32.to_ne_bytes()].concat();
        let mut packed = [0; 4];
        assert_eq!(wide.external_size(2).unwrap(), 4);
        wide.pack_external(2, &memory, 0, &mut packed).unwrap();
        assert_eq!(packed, [0, 0x41, 0x20, 0xac]);
        let mut back = vec![0; 8];
        wide.unpack_external(2, &packed, &mut back, 0).unwrap();
        assert_eq!(back, memory);
        for other in [-1, 0x1_f600] {
            let other: i32 = other;
            let error = wide.pack_external(1, &other.to_ne_bytes(), 0, &mut packed);
            assert!(error.unwrap_err().to_string().contains("wide character"));
        }
    }

    #[test]
    fn binary128_only_changes_its_byte_order() {
        let pair = Datatype::named(Named::Complex32);
        let memory: Vec<u8> = (1..=32).collect();
        let mut packed = [0; 32];
        pair.pack_external(1, &memory, 0, &mut packed).unwrap();
        let mut expected: Vec<u8> = memory.clone();
        if cfg!(target_endian = "little") {
            expected[..16].reverse();
            expected[16..].reverse();
        }
        assert_eq!(packed[..], expected);
        let mut back = [0; 32];
        pair.unpack_external(1, &packed, &mut back, 0).unwrap();
        assert_eq!(back[..], memory);
        let real = Datatype::named(Named::Real16).signature().elements();
        assert_eq!(real, 1);
    }

    #[test]
    fn long_doubles_change_their_format() {
        // 1.0, -2.0, the smallest subnormal, infinity: x87 and binary128.
        let one = (0x3fffu128 << 64 | 1 << 63, 0x3fffu128 << 112);
        let minus_two = (1 << 79 | 0x4000 << 64 | 1 << 63, 1 << 127 | 0x4000 << 112);
        let tiny = (1u128, 1u128 << 49);
        let infinity = (0x7fff << 64 | 1 << 63, 0x7fff << 112);
        for (x87, binary128) in [one, minus_two, tiny, infinity] {
            assert_eq!(widen(x87), binary128);
            assert_eq!(narrow(binary128), x87);
        }
        // Rounding: half goes to even, the largest fraction carries into the exponent.
        assert_eq!(narrow(one.1 | 1 << 48), one.0);
        assert_eq!(narrow(one.1 | 3 << 48), one.0 + 2);
        let almost_two = 0x3fff << 112 | ((1 << 112) - 1);
        assert_eq!(narrow(almost_two), 0x4000 << 64 | 1 << 63);
        let nan = narrow(0x7fff << 112 | 1);
        assert!(nan & ((1 << 63) - 1) != 0);
    }
}
