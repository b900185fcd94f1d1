// SPDX-License-Identifier: MIT OR Apache-2.0

//! What else a program asks of a datatype: cursors, `struct iovec`, external32, signatures, a
//! binary form, reductions.

use crate::arguments::{Handle, New, Out, Room};
use crate::datatype::{addressed, libcopy_segment_t, libcopy_type_t, moved};
use crate::error::{Result, invalid};
use libc::iovec;
use libcopy::datatype::{Cursor, Datatype, Reducer, Reduction, Segment};
use libcopy_ffi_macros::c_api;
use std::ffi::{c_int, c_void};

/// What arrives takes the place of what is there.
pub const LIBCOPY_REPLACE: c_int = 0;
/// The sum of integers, real or complex numbers.
pub const LIBCOPY_SUM: c_int = 1;
/// The product of integers, real or complex numbers.
pub const LIBCOPY_PROD: c_int = 2;
/// The lower of two integers or real numbers.
pub const LIBCOPY_MIN: c_int = 3;
/// The higher of two integers or real numbers.
pub const LIBCOPY_MAX: c_int = 4;
/// 1 if both integers are not 0, else 0.
pub const LIBCOPY_LAND: c_int = 5;
/// 1 if one of two integers is not 0, else 0.
pub const LIBCOPY_LOR: c_int = 6;
/// 1 if exactly one of two integers is not 0, else 0.
pub const LIBCOPY_LXOR: c_int = 7;
/// Bit by bit, of integers and bytes.
pub const LIBCOPY_BAND: c_int = 8;
/// Bit by bit, of integers and bytes.
pub const LIBCOPY_BOR: c_int = 9;
/// Bit by bit, of integers and bytes.
pub const LIBCOPY_BXOR: c_int = 10;

/// A place in the packed stream of a number of elements. One thread uses it at a time.
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct libcopy_cursor_t {
    cursor: Cursor,
}

impl Handle for libcopy_cursor_t {}

impl From<Cursor> for libcopy_cursor_t {
    fn from(cursor: Cursor) -> Self {
        libcopy_cursor_t { cursor }
    }
}

/// The sequence of basic elements of some data; equal ones have equal signatures, and different
/// ones have different signatures but for a chance below 2^-90.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct libcopy_signature_t {
    /// How many.
    pub elements: u64,
    /// Depends on their kinds, sizes and order.
    pub fingerprint: [u64; 2],
}

fn reduction_of(op: c_int) -> Result<Reduction> {
    let wrong = || format!("operation {op}: one of LIBCOPY_REPLACE to LIBCOPY_BXOR");
    Ok(match op {
        LIBCOPY_REPLACE => Reduction::Replace,
        LIBCOPY_SUM => Reduction::Sum,
        LIBCOPY_PROD => Reduction::Product,
        LIBCOPY_MIN => Reduction::Min,
        LIBCOPY_MAX => Reduction::Max,
        LIBCOPY_LAND => Reduction::LogicalAnd,
        LIBCOPY_LOR => Reduction::LogicalOr,
        LIBCOPY_LXOR => Reduction::LogicalXor,
        LIBCOPY_BAND => Reduction::BitAnd,
        LIBCOPY_BOR => Reduction::BitOr,
        LIBCOPY_BXOR => Reduction::BitXor,
        _ => return Err(invalid(wrong())),
    })
}

/// The strictest alignment of the type's basic elements, in bytes.
#[c_api]
pub fn libcopy_type_alignment(datatype: &libcopy_type_t, alignment: Out<u32>) -> Result {
    alignment.put(datatype.datatype.alignment())
}

/// How many basic elements the first `bytes` bytes of the packed stream of any number of elements
/// hold, as `MPI_Get_elements` counts them. Fails with `LIBCOPY_EINVAL` if they end within one.
#[c_api]
pub fn libcopy_type_elements(datatype: &libcopy_type_t, bytes: u64, elements: Out<u64>) -> Result {
    let datatype = &datatype.datatype;
    let Some(n) = datatype.elements_in(bytes) else {
        return Err(invalid(format!(
            "{bytes} bytes end within a basic element: the type has {} in {} bytes",
            datatype.signature().elements(),
            datatype.size()
        )));
    };
    elements.put(n)
}

/// The signature of `count` elements.
#[c_api]
pub fn libcopy_type_signature(
    count: u64,
    datatype: &libcopy_type_t,
    signature: Out<libcopy_signature_t>,
) -> Result {
    let all = datatype.datatype.contiguous(count)?;
    signature.put(libcopy_signature_t {
        elements: all.signature().elements(),
        fingerprint: all.signature().fingerprint(),
    })
}

/// The type as bytes, which `libcopy_type_unflatten` reads in any process: at most `max` of them;
/// `*length` is how many there are. A null `bytes` only asks for the length.
#[c_api]
pub fn libcopy_type_flatten(
    datatype: &libcopy_type_t,
    #[bytes(max)] bytes: Room<u8>,
    max: usize,
    length: Out<usize>,
) -> Result {
    let flat = datatype.datatype.flatten()?;
    length.put(flat.len())?;
    if !bytes.is_null() {
        bytes.first(flat.len())?.copy_from_slice(&flat);
    }
    Ok(())
}

/// The type that `libcopy_type_flatten` wrote. The bytes may come from anywhere: those of another
/// version, damaged ones and those that are no type are refused.
#[c_api]
pub fn libcopy_type_unflatten(
    #[bytes(length)] bytes: &[u8],
    length: usize,
    type_out: New<libcopy_type_t>,
) -> Result {
    type_out.put(Datatype::unflatten(bytes)?)
}

/// Bytes that `count` elements take in MPI's portable representation, external32.
#[c_api]
pub fn libcopy_type_external_size(count: u64, datatype: &libcopy_type_t, size: Out<u64>) -> Result {
    size.put(datatype.datatype.external_size(count)?)
}

/// Packs `count` elements at `buffer` in external32. `*actual` is how many bytes were written.
#[c_api]
pub fn libcopy_type_pack_external(
    buffer: *const c_void,
    count: u64,
    datatype: &libcopy_type_t,
    #[bytes(max)] packed: &mut [u8],
    max: usize,
    actual: Out<usize>,
) -> Result {
    addressed("the buffer", buffer, &datatype.layout(count)?)?;
    let datatype = &datatype.datatype;
    // SAFETY: the caller guarantees the elements.
    actual.put(unsafe { datatype.pack_external_raw(count, buffer.cast(), packed)? })
}

/// Unpacks `count` elements in external32 to `buffer`. `*actual` is how many of the `length` bytes
/// were read.
#[c_api]
pub fn libcopy_type_unpack_external(
    #[bytes(length)] packed: &[u8],
    length: usize,
    buffer: *mut c_void,
    count: u64,
    datatype: &libcopy_type_t,
    actual: Out<usize>,
) -> Result {
    addressed("the buffer", buffer, &datatype.layout(count)?)?;
    let datatype = &datatype.datatype;
    // SAFETY: the caller guarantees the elements.
    actual.put(unsafe { datatype.unpack_external_raw(count, packed, buffer.cast())? })
}

/// `libcopy_type_pack` that combines: each element of `packed` becomes itself `op` the one of the
/// layout, with `op` a `LIBCOPY_SUM` and so on. All basic elements are of one kind; `offset` and
/// `max` are multiples of their size (but for `LIBCOPY_REPLACE`).
#[c_api]
pub fn libcopy_type_pack_reduce(
    buffer: *const c_void,
    count: u64,
    datatype: &libcopy_type_t,
    op: c_int,
    offset: u64,
    packed: *mut c_void,
    max: usize,
    actual: Out<usize>,
) -> Result {
    let layout = datatype.layout(count)?;
    let reducer = Reducer::new(&datatype.datatype, reduction_of(op)?)?;
    let (range, bytes) = moved(&layout, offset, max, buffer, packed)?;
    reducer.check_units(&range)?;
    if bytes > 0 {
        // SAFETY: the range is whole elements of the stream, and the caller guarantees the memory.
        unsafe { reducer.pack_raw(&layout, buffer.cast(), range, packed.cast()) };
    }
    actual.put(bytes)
}

/// `libcopy_type_unpack` that combines: each element of the layout becomes itself `op` the one of
/// `packed`. As for `libcopy_type_pack_reduce`.
#[c_api]
pub fn libcopy_type_unpack_reduce(
    packed: *const c_void,
    length: usize,
    buffer: *mut c_void,
    count: u64,
    datatype: &libcopy_type_t,
    op: c_int,
    offset: u64,
    actual: Out<usize>,
) -> Result {
    let layout = datatype.layout(count)?;
    let reducer = Reducer::new(&datatype.datatype, reduction_of(op)?)?;
    let (range, bytes) = moved(&layout, offset, length, buffer, packed)?;
    reducer.check_units(&range)?;
    if bytes > 0 {
        // SAFETY: the range is whole elements of the stream, and the caller guarantees the memory.
        unsafe { reducer.unpack_raw(&layout, packed.cast(), range, buffer.cast()) };
    }
    actual.put(bytes)
}

/// Which dense piece of `count` elements, as `libcopy_type_segments` numbers them, holds byte
/// `offset` of the packed stream, and how many bytes of the piece lie before it.
#[c_api]
pub fn libcopy_type_segment_at(
    count: u64,
    datatype: &libcopy_type_t,
    offset: u64,
    segment: Out<u64>,
    skip: Out<u64>,
) -> Result {
    let layout = datatype.layout(count)?;
    let Some((index, before)) = layout.segment_at(offset) else {
        return Err(invalid(format!(
            "offset {offset} is not before the end of the {} bytes of the layout",
            layout.size()
        )));
    };
    segment.put(index)?;
    skip.put(before)
}

/// How many whole dense pieces of `count` elements, from the first on, have at most `max_bytes`
/// bytes together, and how many they have.
#[c_api]
pub fn libcopy_type_segments_within(
    count: u64,
    datatype: &libcopy_type_t,
    max_bytes: u64,
    segments: Out<u64>,
    bytes: Out<u64>,
) -> Result {
    let layout = datatype.layout(count)?;
    let (n, whole) = match layout.segment_at(max_bytes) {
        Some((index, skip)) => (index, max_bytes - skip),
        None => (layout.segment_count(), layout.size()),
    };
    segments.put(n)?;
    bytes.put(whole)
}

/// Fills in what comes next, at most `max_bytes` of it; adjacent pieces become one.
fn fill(
    cursor: &mut Cursor,
    max_bytes: u64,
    entries: usize,
    mut put: impl FnMut(usize, Segment),
) -> (usize, u64) {
    let (mut n, mut bytes) = (0, 0);
    let mut last: Option<Segment> = None;
    while bytes < max_bytes {
        let here = cursor.position();
        let Some(next) = cursor.next_segment(max_bytes - bytes) else {
            break;
        };
        match &mut last {
            Some(one) if one.offset.checked_add(one.len as i64) == Some(next.offset) => {
                one.len += next.len;
                put(n - 1, *one);
            }
            _ if n == entries => {
                // It stays for the next call.
                let _ = cursor.seek(here);
                break;
            }
            _ => {
                put(n, next);
                last = Some(next);
                n += 1;
            }
        }
        bytes += next.len;
    }
    (n, bytes)
}

fn fill_iovec(
    cursor: &mut Cursor,
    buffer: *mut c_void,
    max_bytes: u64,
    list: &mut [iovec],
    (actual, bytes): (Out<usize>, Out<u64>),
) -> Result {
    addressed("the buffer", buffer, cursor.layout())?;
    let (n, done) = fill(cursor, max_bytes, list.len(), |i, segment| {
        let start = buffer.cast::<u8>().wrapping_offset(segment.offset as isize);
        list[i] = iovec {
            iov_base: start.cast(),
            iov_len: segment.len as usize,
        };
    });
    actual.put(n)?;
    bytes.put(done)
}

/// Writes up to `max` entries for `readv`, `process_vm_readv` and the like: the pieces of `count`
/// elements at `buffer` from byte `offset` of the packed stream on, at most `max_bytes` bytes
/// together. Adjacent pieces become one entry; the first and the last entry may be parts of pieces.
/// `*actual` is how many entries were written, `*bytes` how many bytes they have.
#[c_api]
pub fn libcopy_type_iovec(
    buffer: *mut c_void,
    count: u64,
    datatype: &libcopy_type_t,
    offset: u64,
    max_bytes: u64,
    #[len(max)] list: &mut [iovec],
    max: usize,
    actual: Out<usize>,
    bytes: Out<u64>,
) -> Result {
    let mut cursor = datatype.layout(count)?.cursor();
    cursor.seek(offset)?;
    fill_iovec(&mut cursor, buffer, max_bytes, list, (actual, bytes))
}

/// A cursor at the start of the packed stream of `count` elements; `libcopy_cursor_free` ends it.
/// The type may be freed before. `*cursor_out` is null after an error.
#[c_api]
pub fn libcopy_cursor_new(
    count: u64,
    datatype: &libcopy_type_t,
    cursor_out: New<libcopy_cursor_t>,
) -> Result {
    cursor_out.put(datatype.layout(count)?.cursor())
}

/// Ends a cursor. Null is allowed.
#[c_api]
pub fn libcopy_cursor_free(cursor: Option<Box<libcopy_cursor_t>>) -> Result {
    drop(cursor);
    Ok(())
}

/// Bytes of the packed stream before the cursor.
#[c_api]
pub fn libcopy_cursor_position(cursor: &mut libcopy_cursor_t, position: Out<u64>) -> Result {
    position.put(cursor.cursor.position())
}

/// Moves the cursor to any position, at most the size of the packed stream.
#[c_api]
pub fn libcopy_cursor_seek(cursor: &mut libcopy_cursor_t, position: u64) -> Result {
    Ok(cursor.cursor.seek(position)?)
}

/// Writes up to `max` dense pieces from the cursor on, at most `max_bytes` bytes together, and
/// moves behind them. Adjacent pieces become one. `*actual` is how many; 0 at the end.
#[c_api]
pub fn libcopy_cursor_segments(
    cursor: &mut libcopy_cursor_t,
    max_bytes: u64,
    #[len(max)] segments: &mut [libcopy_segment_t],
    max: usize,
    actual: Out<usize>,
) -> Result {
    let (n, _) = fill(&mut cursor.cursor, max_bytes, max, |i, segment| {
        segments[i] = segment.into();
    });
    actual.put(n)
}

/// `libcopy_type_iovec` from the cursor on; moves it behind what was written.
#[c_api]
pub fn libcopy_cursor_iovec(
    cursor: &mut libcopy_cursor_t,
    buffer: *mut c_void,
    max_bytes: u64,
    #[len(max)] list: &mut [iovec],
    max: usize,
    actual: Out<usize>,
    bytes: Out<u64>,
) -> Result {
    let cursor = &mut cursor.cursor;
    fill_iovec(cursor, buffer, max_bytes, list, (actual, bytes))
}

/// Packs the next bytes of the elements at `buffer`, at most `max`, and moves the cursor behind
/// them. `*actual` is how many; 0 at the end.
#[c_api]
pub fn libcopy_cursor_pack(
    cursor: &mut libcopy_cursor_t,
    buffer: *const c_void,
    packed: *mut c_void,
    max: usize,
    actual: Out<usize>,
) -> Result {
    let (layout, position) = (cursor.cursor.layout(), cursor.cursor.position());
    let (range, bytes) = moved(layout, position, max, buffer, packed)?;
    if bytes > 0 {
        // SAFETY: the range lies in the stream, and the caller guarantees the memory of both.
        unsafe { layout.pack_raw(buffer.cast(), range, packed.cast()) };
        cursor.cursor.seek(position + bytes as u64)?;
    }
    actual.put(bytes)
}

/// Unpacks `length` bytes into the elements at `buffer` from the cursor on, as far as they go, and
/// moves it behind them. `*actual` is how many.
#[c_api]
pub fn libcopy_cursor_unpack(
    cursor: &mut libcopy_cursor_t,
    packed: *const c_void,
    length: usize,
    buffer: *mut c_void,
    actual: Out<usize>,
) -> Result {
    let (layout, position) = (cursor.cursor.layout(), cursor.cursor.position());
    let (range, bytes) = moved(layout, position, length, buffer, packed)?;
    if bytes > 0 {
        // SAFETY: the range lies in the stream, and the caller guarantees the memory of both.
        unsafe { layout.unpack_raw(packed.cast(), range, buffer.cast()) };
        cursor.cursor.seek(position + bytes as u64)?;
    }
    actual.put(bytes)
}
