// SPDX-License-Identifier: MIT OR Apache-2.0

//! Packing and unpacking that combines what arrives with what is there, as MPI's accumulate
//! operations and yaksa do.
//!
//! All basic elements of the type are of one kind, as MPI asks it of `MPI_Accumulate`. Data is
//! moved in steps through a buffer in the first-level cache, so that both sides of the operation
//! are dense or each place of the layout is read and written once.

use std::ops::Range;

use super::datatype::Datatype;
use super::elements::Elements;
use super::layout::Layout;
use super::named::{Class, Element};
use super::signature::Signature;
use crate::{Error, Result};

/// Bytes that are combined at a time.
const STEP: usize = 8 << 10;

/// How two values become one: MPI 4.1, section 6.9.2. Integers wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reduction {
    /// The value that arrives takes the other's place.
    Replace,
    /// The sum, of integers and of real and complex numbers.
    Sum,
    /// The product, of the same.
    Product,
    /// The lower one, of integers and real numbers.
    Min,
    /// The higher one, of the same.
    Max,
    /// 1 if both are not 0, else 0; of integers and logical values.
    LogicalAnd,
    /// 1 if one of them is not 0.
    LogicalOr,
    /// 1 if exactly one of them is not 0.
    LogicalXor,
    /// Bit by bit, of integers and bytes.
    BitAnd,
    /// Bit by bit.
    BitOr,
    /// Bit by bit.
    BitXor,
}

/// Combines `values` values: `into[i] = into[i] op from[i]`. Neither has to be aligned.
type Combine = unsafe fn(into: *mut u8, from: *const u8, values: usize);

/// # Safety
///
/// `values` values are readable at `from` and writable at `into`; the two do not overlap.
unsafe fn each<T: Copy>(into: *mut u8, from: *const u8, values: usize, op: impl Fn(T, T) -> T) {
    let (into, from) = (into.cast::<T>(), from.cast::<T>());
    for i in 0..values {
        // SAFETY: the caller's promise.
        unsafe {
            let value = op(into.add(i).read_unaligned(), from.add(i).read_unaligned());
            into.add(i).write_unaligned(value);
        }
    }
}

macro_rules! combine {
    ($type:ty, |$a:ident, $b:ident| $body:expr) => {{
        /// # Safety
        ///
        /// As for [`each`].
        unsafe fn run(into: *mut u8, from: *const u8, values: usize) {
            // SAFETY: the caller's promise.
            unsafe { each::<$type>(into, from, values, |$a, $b| $body) }
        }
        Some(run as Combine)
    }};
}

macro_rules! integer {
    ($type:ty, $op:expr) => {
        match $op {
            Reduction::Replace => combine!($type, |_a, b| b),
            Reduction::Sum => combine!($type, |a, b| a.wrapping_add(b)),
            Reduction::Product => combine!($type, |a, b| a.wrapping_mul(b)),
            Reduction::Min => combine!($type, |a, b| a.min(b)),
            Reduction::Max => combine!($type, |a, b| a.max(b)),
            Reduction::LogicalAnd => combine!($type, |a, b| <$type>::from(a != 0 && b != 0)),
            Reduction::LogicalOr => combine!($type, |a, b| <$type>::from(a != 0 || b != 0)),
            Reduction::LogicalXor => combine!($type, |a, b| <$type>::from((a != 0) != (b != 0))),
            Reduction::BitAnd => combine!($type, |a, b| a & b),
            Reduction::BitOr => combine!($type, |a, b| a | b),
            Reduction::BitXor => combine!($type, |a, b| a ^ b),
        }
    };
}

macro_rules! float {
    ($type:ty, $op:expr) => {
        match $op {
            Reduction::Sum => combine!($type, |a, b| a + b),
            Reduction::Product => combine!($type, |a, b| a * b),
            Reduction::Min => combine!($type, |a, b| if b < a { b } else { a }),
            Reduction::Max => combine!($type, |a, b| if b > a { b } else { a }),
            _ => None,
        }
    };
}

macro_rules! complex {
    ($type:ty, $op:expr) => {
        match $op {
            Reduction::Sum => combine!([$type; 2], |a, b| [a[0] + b[0], a[1] + b[1]]),
            Reduction::Product => combine!([$type; 2], |a, b| [
                a[0] * b[0] - a[1] * b[1],
                a[0] * b[1] + a[1] * b[0]
            ]),
            _ => None,
        }
    };
}

fn combine_of(element: &Element, op: Reduction) -> Option<Combine> {
    use Reduction::{BitAnd, BitOr, BitXor};
    match (element.class, element.size) {
        (Class::Bytes, 1) if matches!(op, BitAnd | BitOr | BitXor) => integer!(u8, op),
        (Class::Signed, 1) => integer!(i8, op),
        (Class::Signed, 2) => integer!(i16, op),
        (Class::Signed, 4) => integer!(i32, op),
        (Class::Signed, 8) => integer!(i64, op),
        (Class::Signed, 16) => integer!(i128, op),
        (Class::Unsigned, 1) => integer!(u8, op),
        (Class::Unsigned, 2) => integer!(u16, op),
        (Class::Unsigned, 4) => integer!(u32, op),
        (Class::Unsigned, 8) => integer!(u64, op),
        (Class::Float, 4) => float!(f32, op),
        (Class::Float, 8) => float!(f64, op),
        (Class::Complex, 8) => complex!(f32, op),
        (Class::Complex, 16) => complex!(f64, op),
        _ => None,
    }
}

impl Datatype {
    /// The basic element that all of the type consists of; `None` if they differ or there is none.
    pub fn uniform_element(&self) -> Option<Element> {
        let (first, _) = Elements::new(self, 1).ok()?.next()?;
        let all = Signature::of_element(&first).repeat(self.signature().elements());
        (all == *self.signature()).then_some(first)
    }
}

/// A reduction of the elements of one type.
///
/// ```
/// use libcopy_datatype::{Datatype, Layout, Named, Reducer, Reduction};
///
/// // The second column of two rows is added to what is there.
/// let column = Datatype::named(Named::Int32).vector(2, 1, 3)?;
/// let sum = Reducer::new(&column, Reduction::Sum)?;
/// let matrix: Vec<u8> = [1, 2, 3, 4, 5, 6i32].iter().flat_map(|x| x.to_ne_bytes()).collect();
/// let mut packed: Vec<u8> = [10, 20i32].iter().flat_map(|x| x.to_ne_bytes()).collect();
/// sum.pack(&Layout::new(&column, 1)?, &matrix, 4, 0, &mut packed)?;
/// assert_eq!(packed[..4], 12i32.to_ne_bytes());
/// assert_eq!(packed[4..], 25i32.to_ne_bytes());
/// # Ok::<(), libcopy_datatype::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Reducer {
    /// `None` is moving.
    combine: Option<Combine>,
    /// Bytes of an element; 1 if they are only moved.
    unit: usize,
}

impl Reducer {
    /// What combines elements of `datatype`, any number of them.
    ///
    /// # Errors
    ///
    /// An operation that MPI does not define for the elements of the type, elements of different
    /// kinds, or of a kind without arithmetic here (`long double`, `REAL*2`, `REAL*16`).
    pub fn new(datatype: &Datatype, op: Reduction) -> Result<Reducer> {
        if op == Reduction::Replace || datatype.size() == 0 {
            let (combine, unit) = (None, 1);
            return Ok(Reducer { combine, unit });
        }
        let refused = |value: String| {
            Error::argument(
                "the reduction",
                value,
                "one that MPI defines for the elements of the type, which are all of one kind",
            )
        };
        let Some(element) = datatype.uniform_element() else {
            return Err(refused(format!("{op:?} of elements of different kinds")));
        };
        match combine_of(&element, op) {
            Some(combine) => Ok(Reducer {
                combine: Some(combine),
                unit: element.size as usize,
            }),
            None => {
                let (class, size) = (element.class, element.size);
                Err(refused(format!(
                    "{op:?} of elements of {size} bytes, {class:?}"
                )))
            }
        }
    }

    /// Bytes of an element: positions and lengths are multiples of it.
    pub fn unit(&self) -> usize {
        self.unit
    }

    /// Combines the bytes from `position` of the packed stream on, as many as `packed` has, into
    /// `packed`.
    ///
    /// # Errors
    ///
    /// As for [`Layout::pack_range`]; a range that begins or ends within an element.
    pub fn pack(
        &self,
        layout: &Layout,
        buffer: &[u8],
        origin: isize,
        position: u64,
        packed: &mut [u8],
    ) -> Result<()> {
        let range = self.checked(layout, buffer.len(), origin, position, packed.len())?;
        let from = buffer.as_ptr().wrapping_offset(origin);
        // SAFETY: all data lies in `buffer`, the range in the stream, and the borrows are disjoint.
        unsafe { self.pack_raw(layout, from, range, packed.as_mut_ptr()) };
        Ok(())
    }

    /// Combines `packed`, which belongs at `position` of the packed stream, into the layout. Where
    /// pieces of the layout overlap, the result is one of those that MPI's rules allow.
    ///
    /// # Errors
    ///
    /// As for [`Layout::unpack_range`]; a range that begins or ends within an element.
    pub fn unpack(
        &self,
        layout: &Layout,
        packed: &[u8],
        position: u64,
        buffer: &mut [u8],
        origin: isize,
    ) -> Result<()> {
        let range = self.checked(layout, buffer.len(), origin, position, packed.len())?;
        let to = buffer.as_mut_ptr().wrapping_offset(origin);
        // SAFETY: all data lies in `buffer`, the range in the stream, and the borrows are disjoint.
        unsafe { self.unpack_raw(layout, packed.as_ptr(), range, to) };
        Ok(())
    }

    fn checked(
        &self,
        layout: &Layout,
        len: usize,
        origin: isize,
        position: u64,
        packed: usize,
    ) -> Result<Range<u64>> {
        layout.check(len, origin, position, packed)?;
        let range = position..position + packed as u64;
        self.check_units(&range)?;
        Ok(range)
    }

    /// Whether a range of the stream consists of whole elements.
    ///
    /// # Errors
    ///
    /// If it does not.
    pub fn check_units(&self, range: &Range<u64>) -> Result<()> {
        let unit = self.unit as u64;
        if range.start % unit == 0 && range.end % unit == 0 {
            return Ok(());
        }
        Err(Error::argument(
            "the range of packed bytes",
            format!("{} bytes at {}", range.end - range.start, range.start),
            format!("whole elements, of {unit} bytes each"),
        ))
    }

    /// As [`Reducer::pack`], without a check: `origin` is the address that displacements count
    /// from.
    ///
    /// # Safety
    ///
    /// The range lies in the packed stream and consists of whole elements, which are the type's of
    /// [`Reducer::new`]; its bytes are readable in the layout and writable at `packed`, and the two
    /// do not overlap.
    pub unsafe fn pack_raw(
        &self,
        layout: &Layout,
        origin: *const u8,
        range: Range<u64>,
        packed: *mut u8,
    ) {
        let Some(combine) = self.combine else {
            // SAFETY: the caller's promise.
            return unsafe { layout.pack_raw(origin, range, packed) };
        };
        let start = range.start;
        self.steps(range, |part, bytes, few| {
            let packed = packed.wrapping_add((part.start - start) as usize);
            // SAFETY: the caller's promise, for a part of the range; `few` has room for it.
            unsafe {
                layout.pack_raw(origin, part, few);
                combine(packed, few, bytes / self.unit);
            }
        });
    }

    /// As [`Reducer::unpack`], without a check.
    ///
    /// # Safety
    ///
    /// As for [`Reducer::pack_raw`]; the layout is also writable, and `packed` only read.
    pub unsafe fn unpack_raw(
        &self,
        layout: &Layout,
        packed: *const u8,
        range: Range<u64>,
        origin: *mut u8,
    ) {
        let Some(combine) = self.combine else {
            // SAFETY: the caller's promise.
            return unsafe { layout.unpack_raw(packed, range, origin) };
        };
        let start = range.start;
        self.steps(range, |part, bytes, few| {
            let packed = packed.wrapping_add((part.start - start) as usize);
            // SAFETY: as above.
            unsafe {
                layout.pack_raw(origin, part.clone(), few);
                combine(few, packed, bytes / self.unit);
                layout.unpack_raw(few, part, origin);
            }
        });
    }

    /// Calls `step` with parts of a range, whole elements each, and room for them.
    fn steps(&self, range: Range<u64>, step: impl Fn(Range<u64>, usize, *mut u8)) {
        let mut few = [0u8; STEP];
        let most = (STEP / self.unit * self.unit) as u64;
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at + most);
            step(at..end, (end - at) as usize, few.as_mut_ptr());
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Named;
    use super::*;

    fn bytes<const N: usize, T: Copy>(list: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        list.iter().flat_map(|x| to(*x)).collect()
    }

    #[test]
    fn every_operation_on_integers_is_what_it_says() {
        let (a, b) = ([12i32, -5, 0, i32::MAX], [10i32, 3, 0, 1]);
        let row = Datatype::named(Named::Int32).contiguous(4).unwrap();
        let layout = Layout::new(&row, 1).unwrap();
        for (op, wanted) in [
            (Reduction::Replace, [10, 3, 0, 1]),
            (Reduction::Sum, [22, -2, 0, i32::MIN]),
            (Reduction::Product, [120, -15, 0, i32::MAX]),
            (Reduction::Min, [10, -5, 0, 1]),
            (Reduction::Max, [12, 3, 0, i32::MAX]),
            (Reduction::LogicalAnd, [1, 1, 0, 1]),
            (Reduction::LogicalOr, [1, 1, 0, 1]),
            (Reduction::LogicalXor, [0, 0, 0, 0]),
            (Reduction::BitAnd, [8, 3, 0, 1]),
            (Reduction::BitOr, [14, -5, 0, i32::MAX]),
            (Reduction::BitXor, [6, -8, 0, i32::MAX - 1]),
        ] {
            let reducer = Reducer::new(&row, op).unwrap();
            let mut into = bytes(&a, i32::to_ne_bytes);
            let from = bytes(&b, i32::to_ne_bytes);
            reducer.pack(&layout, &from, 0, 0, &mut into).unwrap();
            assert_eq!(into, bytes(&wanted, i32::to_ne_bytes), "{op:?}");
            let mut into = bytes(&a, i32::to_ne_bytes);
            reducer.unpack(&layout, &from, 0, &mut into, 0).unwrap();
            assert_eq!(into, bytes(&wanted, i32::to_ne_bytes), "{op:?}");
        }
    }

    #[test]
    fn long_layouts_are_combined_in_ranges() {
        let column = Datatype::named(Named::Double).vector(5000, 1, 3).unwrap();
        let layout = Layout::new(&column, 1).unwrap();
        let sum = Reducer::new(&column, Reduction::Sum).unwrap();
        let matrix: Vec<f64> = (0..15_000).map(f64::from).collect();
        let start: Vec<f64> = (0..5000).map(|i| f64::from(i) * 0.5).collect();
        let mut buffer = bytes(&matrix, f64::to_ne_bytes);
        let mut packed = bytes(&start, f64::to_ne_bytes);
        for (from, till) in [(8000, 40_000), (0, 8000)] {
            sum.pack(&layout, &buffer, 0, from as u64, &mut packed[from..till])
                .unwrap();
        }
        let wanted: Vec<f64> = (0..5000).map(|i| f64::from(i) * 3.5).collect();
        assert_eq!(packed, bytes(&wanted, f64::to_ne_bytes));
        sum.unpack(&layout, &packed, 0, &mut buffer, 0).unwrap();
        let all = (0..15_000).map(|i| match i % 3 {
            0 => f64::from(i) + f64::from(i / 3) * 3.5,
            _ => f64::from(i),
        });
        assert_eq!(buffer, bytes(&all.collect::<Vec<_>>(), f64::to_ne_bytes));
        assert!(sum.pack(&layout, &buffer, 0, 4, &mut packed[..8]).is_err());
        assert!(sum.pack(&layout, &buffer[24..], 0, 0, &mut packed).is_err());
    }

    #[test]
    fn what_mpi_does_not_define_is_refused() {
        for (text, op) in [
            ("double", Reduction::BitAnd),
            ("double", Reduction::LogicalOr),
            ("byte", Reduction::Sum),
            ("c_double_complex", Reduction::Max),
            ("long_double", Reduction::Sum),
            ("double_int", Reduction::Sum),
            ("struct([1,1],[0,8],[int,double])", Reduction::Max),
        ] {
            let datatype: Datatype = text.parse().unwrap();
            assert!(Reducer::new(&datatype, op).is_err(), "{text} {op:?}");
            assert!(Reducer::new(&datatype, Reduction::Replace).is_ok());
        }
    }

    #[test]
    fn complex_numbers_are_multiplied_as_such() {
        let one = Datatype::named(Named::CDoubleComplex);
        let product = Reducer::new(&one, Reduction::Product).unwrap();
        let mut into = bytes(&[1.0, 2.0], f64::to_ne_bytes);
        let from = bytes(&[3.0, -1.0], f64::to_ne_bytes);
        let layout = Layout::new(&one, 1).unwrap();
        product.pack(&layout, &from, 0, 0, &mut into).unwrap();
        assert_eq!(into, bytes(&[5.0, 5.0], f64::to_ne_bytes));
    }
}
