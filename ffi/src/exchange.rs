// SPDX-License-Identifier: MIT OR Apache-2.0

//! What else a program asks of a datatype: cursors, `struct iovec`, external32, signatures, a
//! binary form, reductions.

use crate::datatype::{addressed, give, handle, libcopy_segment_t, libcopy_type_t, list, list_mut};
use crate::datatype::{moved, put};
use crate::error::{Failure, guarded, invalid};
use libc::iovec;
use libcopy::datatype::{Cursor, Datatype, Reducer, Reduction, Segment};
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

fn reduction_of(op: c_int) -> Result<Reduction, Failure> {
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
        other => {
            return Err(invalid(format!(
                "operation {other}: one of LIBCOPY_REPLACE to LIBCOPY_BXOR"
            )));
        }
    })
}

/// # Safety
///
/// `cursor` is null or one that was not freed and that nobody else uses.
unsafe fn cursor_of<'a>(cursor: *mut libcopy_cursor_t) -> Result<&'a mut Cursor, Failure> {
    // SAFETY: the caller vouches for a pointer that is not null.
    match unsafe { cursor.as_mut() } {
        Some(cursor) => Ok(&mut cursor.cursor),
        None => Err(invalid("the cursor is null")),
    }
}

/// The strictest alignment of the type's basic elements, in bytes.
///
/// # Safety
///
/// `datatype` is a type, `alignment` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_alignment(
    datatype: *const libcopy_type_t,
    alignment: *mut u32,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            put(
                "the alignment",
                alignment,
                handle(datatype)?.datatype().alignment(),
            )
        }
    })
}

/// How many basic elements the first `bytes` bytes of the packed stream of any number of elements
/// hold, as `MPI_Get_elements` counts them. Fails with `LIBCOPY_EINVAL` if they end within one.
///
/// # Safety
///
/// `datatype` is a type, `elements` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_elements(
    datatype: *const libcopy_type_t,
    bytes: u64,
    elements: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let datatype = handle(datatype)?.datatype();
            let Some(n) = datatype.elements_in(bytes) else {
                return Err(invalid(format!(
                    "{bytes} bytes end within a basic element: the type has {} in {} bytes",
                    datatype.signature().elements(),
                    datatype.size()
                )));
            };
            put("the elements", elements, n)
        }
    })
}

/// The signature of `count` elements.
///
/// # Safety
///
/// `datatype` is a type, `signature` points to one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_signature(
    count: u64,
    datatype: *const libcopy_type_t,
    signature: *mut libcopy_signature_t,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let all = handle(datatype)?.datatype().contiguous(count)?;
            let made = libcopy_signature_t {
                elements: all.signature().elements(),
                fingerprint: all.signature().fingerprint(),
            };
            put("the signature", signature, made)
        }
    })
}

/// The type as bytes, which `libcopy_type_unflatten` reads in any process: at most `max` of them;
/// `*length` is how many there are. A null `bytes` only asks for the length.
///
/// # Safety
///
/// `datatype` is a type, `bytes` null or writable for `max` bytes, `length` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_flatten(
    datatype: *const libcopy_type_t,
    bytes: *mut c_void,
    max: usize,
    length: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let flat = handle(datatype)?.datatype().flatten()?;
            put("the length", length, flat.len())?;
            if bytes.is_null() {
                return Ok(());
            }
            if max < flat.len() {
                let needed = flat.len();
                return Err(invalid(format!(
                    "room for {max} bytes, but the type has {needed}"
                )));
            }
            list_mut("bytes", bytes.cast::<u8>(), flat.len())?.copy_from_slice(&flat);
            Ok(())
        }
    })
}

/// The type that `libcopy_type_flatten` wrote. The bytes may come from anywhere: those of another
/// version, damaged ones and those that are no type are refused.
///
/// # Safety
///
/// `bytes` is readable for `length` bytes, `type_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_unflatten(
    bytes: *const c_void,
    length: usize,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        give(type_out, || {
            Ok(Datatype::unflatten(list(
                "bytes",
                bytes.cast::<u8>(),
                length,
            )?)?)
        })
    }
}

/// Bytes that `count` elements take in MPI's portable representation, external32.
///
/// # Safety
///
/// `datatype` is a type, `size` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_external_size(
    count: u64,
    datatype: *const libcopy_type_t,
    size: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            put(
                "the size",
                size,
                handle(datatype)?.datatype().external_size(count)?,
            )
        }
    })
}

/// Packs `count` elements at `buffer` in external32. `*actual` is how many bytes were written.
///
/// # Safety
///
/// The data of the layout is readable, `packed` writable for `max` bytes, `actual` points to a
/// number; `packed` does not overlap the data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_pack_external(
    buffer: *const c_void,
    count: u64,
    datatype: *const libcopy_type_t,
    packed: *mut c_void,
    max: usize,
    actual: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let datatype = handle(datatype)?;
            addressed("the buffer", buffer, &datatype.layout(count)?)?;
            let packed = list_mut("packed", packed.cast::<u8>(), max)?;
            let n = datatype
                .datatype()
                .pack_external_raw(count, buffer.cast(), packed)?;
            put("the number of bytes", actual, n)
        }
    })
}

/// Unpacks `count` elements in external32 to `buffer`. `*actual` is how many of the `length` bytes
/// were read.
///
/// # Safety
///
/// `packed` is readable for `length` bytes, the data of the layout writable, `actual` points to a
/// number; `packed` does not overlap the data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_unpack_external(
    packed: *const c_void,
    length: usize,
    buffer: *mut c_void,
    count: u64,
    datatype: *const libcopy_type_t,
    actual: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let datatype = handle(datatype)?;
            addressed("the buffer", buffer, &datatype.layout(count)?)?;
            let packed = list("packed", packed.cast::<u8>(), length)?;
            let n = datatype
                .datatype()
                .unpack_external_raw(count, packed, buffer.cast())?;
            put("the number of bytes", actual, n)
        }
    })
}

/// `libcopy_type_pack` that combines: each element of `packed` becomes itself `op` the one of the
/// layout, with `op` a `LIBCOPY_SUM` and so on. All basic elements are of one kind; `offset` and
/// `max` are multiples of their size (but for `LIBCOPY_REPLACE`).
///
/// # Safety
///
/// The data of the layout is readable, `packed` readable and writable for `max` bytes, `actual`
/// points to a number; `packed` does not overlap the data.
#[unsafe(no_mangle)]
#[allow(
    clippy::too_many_arguments,
    reason = "libcopy_type_pack's, and the operation"
)]
pub unsafe extern "C" fn libcopy_type_pack_reduce(
    buffer: *const c_void,
    count: u64,
    datatype: *const libcopy_type_t,
    op: c_int,
    offset: u64,
    packed: *mut c_void,
    max: usize,
    actual: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise; the range lies in the stream and is whole elements.
        unsafe {
            let datatype = handle(datatype)?;
            let layout = datatype.layout(count)?;
            let reducer = Reducer::new(datatype.datatype(), reduction_of(op)?)?;
            let (range, bytes) = moved(&layout, offset, max, buffer, packed)?;
            reducer.check_units(&range)?;
            if bytes > 0 {
                reducer.pack_raw(&layout, buffer.cast(), range, packed.cast());
            }
            put("the number of bytes", actual, bytes)
        }
    })
}

/// `libcopy_type_unpack` that combines: each element of the layout becomes itself `op` the one of
/// `packed`. As for `libcopy_type_pack_reduce`.
///
/// # Safety
///
/// `packed` is readable for `length` bytes, the data of the layout readable and writable, `actual`
/// points to a number; `packed` does not overlap the data.
#[unsafe(no_mangle)]
#[allow(
    clippy::too_many_arguments,
    reason = "libcopy_type_unpack's, and the operation"
)]
pub unsafe extern "C" fn libcopy_type_unpack_reduce(
    packed: *const c_void,
    length: usize,
    buffer: *mut c_void,
    count: u64,
    datatype: *const libcopy_type_t,
    op: c_int,
    offset: u64,
    actual: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise; the range lies in the stream and is whole elements.
        unsafe {
            let datatype = handle(datatype)?;
            let layout = datatype.layout(count)?;
            let reducer = Reducer::new(datatype.datatype(), reduction_of(op)?)?;
            let (range, bytes) = moved(&layout, offset, length, buffer, packed)?;
            reducer.check_units(&range)?;
            if bytes > 0 {
                reducer.unpack_raw(&layout, packed.cast(), range, buffer.cast());
            }
            put("the number of bytes", actual, bytes)
        }
    })
}

/// Which dense piece of `count` elements, as `libcopy_type_segments` numbers them, holds byte
/// `offset` of the packed stream, and how many bytes of the piece lie before it.
///
/// # Safety
///
/// `datatype` is a type, `segment` and `skip` point to numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_segment_at(
    count: u64,
    datatype: *const libcopy_type_t,
    offset: u64,
    segment: *mut u64,
    skip: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let layout = handle(datatype)?.layout(count)?;
            let Some((index, before)) = layout.segment_at(offset) else {
                return Err(invalid(format!(
                    "offset {offset} is not before the end of the {} bytes of the layout",
                    layout.size()
                )));
            };
            put("the segment", segment, index)?;
            put("the bytes before", skip, before)
        }
    })
}

/// How many whole dense pieces of `count` elements, from the first on, have at most `max_bytes`
/// bytes together, and how many they have.
///
/// # Safety
///
/// `datatype` is a type, `segments` and `bytes` point to numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_segments_within(
    count: u64,
    datatype: *const libcopy_type_t,
    max_bytes: u64,
    segments: *mut u64,
    bytes: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let layout = handle(datatype)?.layout(count)?;
            let (n, whole) = match layout.segment_at(max_bytes) {
                Some((index, skip)) => (index, max_bytes - skip),
                None => (layout.segment_count(), layout.size()),
            };
            put("the segments", segments, n)?;
            put("the bytes", bytes, whole)
        }
    })
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

/// # Safety
///
/// `list` is null or writable for `max` entries.
unsafe fn fill_iovec(
    cursor: &mut Cursor,
    buffer: *mut c_void,
    max_bytes: u64,
    list: *mut iovec,
    max: usize,
) -> Result<(usize, u64), Failure> {
    // SAFETY: the caller's promise.
    let list = unsafe { list_mut("the iovec", list, max)? };
    addressed("the buffer", buffer, cursor.layout())?;
    Ok(fill(cursor, max_bytes, max, |i, segment| {
        list[i] = iovec {
            iov_base: buffer
                .cast::<u8>()
                .wrapping_offset(segment.offset as isize)
                .cast(),
            iov_len: segment.len as usize,
        };
    }))
}

/// Writes up to `max` entries for `readv`, `process_vm_readv` and the like: the pieces of `count`
/// elements at `buffer` from byte `offset` of the packed stream on, at most `max_bytes` bytes
/// together. Adjacent pieces become one entry; the first and the last entry may be parts of pieces.
/// `*actual` is how many entries were written, `*bytes` how many bytes they have.
///
/// # Safety
///
/// `datatype` is a type, `list` is writable for `max` entries, `actual` and `bytes` point to
/// numbers.
#[unsafe(no_mangle)]
#[allow(
    clippy::too_many_arguments,
    reason = "a layout, a range, a list and what was done"
)]
pub unsafe extern "C" fn libcopy_type_iovec(
    buffer: *mut c_void,
    count: u64,
    datatype: *const libcopy_type_t,
    offset: u64,
    max_bytes: u64,
    list: *mut iovec,
    max: usize,
    actual: *mut usize,
    bytes: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let mut cursor = handle(datatype)?.layout(count)?.cursor();
            cursor.seek(offset)?;
            let (n, done) = fill_iovec(&mut cursor, buffer, max_bytes, list, max)?;
            put("the number of entries", actual, n)?;
            put("the number of bytes", bytes, done)
        }
    })
}

/// A cursor at the start of the packed stream of `count` elements; `libcopy_cursor_free` ends it.
/// The type may be freed before. `*cursor_out` is null after an error.
///
/// # Safety
///
/// `datatype` is a type, `cursor_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_cursor_new(
    count: u64,
    datatype: *const libcopy_type_t,
    cursor_out: *mut *mut libcopy_cursor_t,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            put("the cursor", cursor_out, std::ptr::null_mut())?;
            let cursor = handle(datatype)?.layout(count)?.cursor();
            let made = Box::into_raw(Box::new(libcopy_cursor_t { cursor }));
            put("the cursor", cursor_out, made)
        }
    })
}

/// Ends a cursor. Null is allowed.
///
/// # Safety
///
/// `cursor` is null or a cursor that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_cursor_free(cursor: *mut libcopy_cursor_t) -> c_int {
    guarded(|| {
        if !cursor.is_null() {
            // SAFETY: it came from `Box::into_raw`, and the caller gives it up.
            drop(unsafe { Box::from_raw(cursor) });
        }
        Ok(())
    })
}

/// Bytes of the packed stream before the cursor.
///
/// # Safety
///
/// `cursor` is a cursor, `position` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_cursor_position(
    cursor: *mut libcopy_cursor_t,
    position: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { put("the position", position, cursor_of(cursor)?.position()) })
}

/// Moves the cursor to any position, at most the size of the packed stream.
///
/// # Safety
///
/// `cursor` is a cursor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_cursor_seek(
    cursor: *mut libcopy_cursor_t,
    position: u64,
) -> c_int {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { Ok(cursor_of(cursor)?.seek(position)?) })
}

/// Writes up to `max` dense pieces from the cursor on, at most `max_bytes` bytes together, and
/// moves behind them. Adjacent pieces become one. `*actual` is how many; 0 at the end.
///
/// # Safety
///
/// `cursor` is a cursor, `segments` is writable for `max` entries, `actual` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_cursor_segments(
    cursor: *mut libcopy_cursor_t,
    max_bytes: u64,
    segments: *mut libcopy_segment_t,
    max: usize,
    actual: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let cursor = cursor_of(cursor)?;
            let list = list_mut("segments", segments, max)?;
            let (n, _) = fill(cursor, max_bytes, max, |i, segment| {
                list[i] = libcopy_segment_t {
                    offset: segment.offset,
                    length: segment.len,
                };
            });
            put("the number of segments", actual, n)
        }
    })
}

/// `libcopy_type_iovec` from the cursor on; moves it behind what was written.
///
/// # Safety
///
/// `cursor` is a cursor, `list` is writable for `max` entries, `actual` and `bytes` point to
/// numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_cursor_iovec(
    cursor: *mut libcopy_cursor_t,
    buffer: *mut c_void,
    max_bytes: u64,
    list: *mut iovec,
    max: usize,
    actual: *mut usize,
    bytes: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let cursor = cursor_of(cursor)?;
            let (n, done) = fill_iovec(cursor, buffer, max_bytes, list, max)?;
            put("the number of entries", actual, n)?;
            put("the number of bytes", bytes, done)
        }
    })
}

/// Packs the next bytes of the elements at `buffer`, at most `max`, and moves the cursor behind
/// them. `*actual` is how many; 0 at the end.
///
/// # Safety
///
/// The data of the layout is readable, `packed` writable for `max` bytes, `actual` points to a
/// number; `packed` does not overlap the data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_cursor_pack(
    cursor: *mut libcopy_cursor_t,
    buffer: *const c_void,
    packed: *mut c_void,
    max: usize,
    actual: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise; the range lies in the stream.
        unsafe {
            let cursor = cursor_of(cursor)?;
            let (layout, position) = (cursor.layout(), cursor.position());
            let (range, bytes) = moved(layout, position, max, buffer, packed)?;
            let end = range.end;
            if bytes > 0 {
                layout.pack_raw(buffer.cast(), range, packed.cast());
                cursor.seek(end)?;
            }
            put("the number of bytes", actual, bytes)
        }
    })
}

/// Unpacks `length` bytes into the elements at `buffer` from the cursor on, as far as they go, and
/// moves it behind them. `*actual` is how many.
///
/// # Safety
///
/// `packed` is readable for `length` bytes, the data of the layout writable, `actual` points to a
/// number; `packed` does not overlap the data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_cursor_unpack(
    cursor: *mut libcopy_cursor_t,
    packed: *const c_void,
    length: usize,
    buffer: *mut c_void,
    actual: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise; the range lies in the stream.
        unsafe {
            let cursor = cursor_of(cursor)?;
            let (layout, position) = (cursor.layout(), cursor.position());
            let (range, bytes) = moved(layout, position, length, buffer, packed)?;
            let end = range.end;
            if bytes > 0 {
                layout.unpack_raw(packed.cast(), range, buffer.cast());
                cursor.seek(end)?;
            }
            put("the number of bytes", actual, bytes)
        }
    })
}
