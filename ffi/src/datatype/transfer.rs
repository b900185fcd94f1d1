// SPDX-License-Identifier: MIT OR Apache-2.0

//! Packing, unpacking and copying, and the dense pieces of elements.

use super::handle::{handle, libcopy_segment_t, libcopy_type_t, list_mut, put};
use crate::error::{Failure, LIBCOPY_EMISMATCH, guarded, invalid};
use libcopy::datatype::{Datatype, Layout, Named};
use std::ffi::{c_int, c_void};
use std::ops::Range;

/// Bytes at the start of the address space that no process has.
const NEVER_MAPPED: i64 = 4096;

/// Refuses a null buffer unless the type's displacements are addresses.
pub(crate) fn addressed(what: &str, buffer: *const c_void, layout: &Layout) -> Result<(), Failure> {
    let low = layout.bounds().start;
    if buffer.is_null() && layout.size() > 0 && low < NEVER_MAPPED {
        return Err(invalid(format!(
            "{what} is null, and the data begin at offset {low}: only a type whose displacements are \
             addresses can be used with it"
        )));
    }
    Ok(())
}

/// The bytes of the packed stream that a call moves between elements at `buffer` and `packed`:
/// those from byte `offset` on, at most `max`; and how many. If there are any, neither address may
/// be null.
pub(crate) fn moved(
    layout: &Layout,
    offset: u64,
    max: usize,
    buffer: *const c_void,
    packed: *const c_void,
) -> Result<(Range<u64>, usize), Failure> {
    if offset > layout.size() {
        return Err(invalid(format!(
            "offset {offset} is behind the {} bytes of the layout",
            layout.size()
        )));
    }
    let bytes = (layout.size() - offset).min(max as u64);
    if bytes > 0 {
        addressed("the buffer", buffer, layout)?;
        if packed.is_null() {
            return Err(invalid("packed is null"));
        }
    }
    Ok((offset..offset + bytes, bytes as usize))
}

/// Packs bytes of `count` elements at `buffer`: those from byte `offset` of the packed stream on,
/// at most `max`. `*actual` is how many. A null `buffer` is for types whose displacements are
/// addresses, as with `MPI_BOTTOM`; here and in the calls below.
///
/// # Safety
///
/// The data of the layout is readable, `packed` writable for `max` bytes, `actual` points to a
/// number; `packed` does not overlap the data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_pack(
    buffer: *const c_void,
    count: u64,
    datatype: *const libcopy_type_t,
    offset: u64,
    packed: *mut c_void,
    max: usize,
    actual: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise; the range lies in the stream.
        unsafe {
            let layout = handle(datatype)?.layout(count)?;
            let (range, bytes) = moved(&layout, offset, max, buffer, packed)?;
            put("the number of bytes", actual, bytes)?;
            if bytes > 0 {
                layout.pack_raw(buffer.cast(), range, packed.cast());
            }
            Ok(())
        }
    })
}

/// Unpacks `length` bytes that belong at byte `offset` of the packed stream into `count` elements
/// at `buffer`; what lies behind the stream's end is left alone. `*actual` is how many. Where
/// entries of the type overlap, the last one in the type map wins, as in MPI libraries.
///
/// # Safety
///
/// `packed` is readable for `length` bytes, the data of the layout writable, `actual` points to a
/// number; `packed` does not overlap the data.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_unpack(
    packed: *const c_void,
    length: usize,
    buffer: *mut c_void,
    count: u64,
    datatype: *const libcopy_type_t,
    offset: u64,
    actual: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise; the range lies in the stream.
        unsafe {
            let layout = handle(datatype)?.layout(count)?;
            let (range, bytes) = moved(&layout, offset, length, buffer, packed)?;
            put("the number of bytes", actual, bytes)?;
            if bytes > 0 {
                layout.unpack_raw(packed.cast(), range, buffer.cast());
            }
            Ok(())
        }
    })
}

/// Copies `from_count` elements at `from` to `to_count` elements at `to`, from layout to layout.
/// Both have the same basic elements in the same order, or one of them consists of bytes.
///
/// # Safety
///
/// The data of the one layout is readable, that of the other writable, and no byte is both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_copy(
    from: *const c_void,
    from_count: u64,
    from_type: *const libcopy_type_t,
    to: *mut c_void,
    to_count: u64,
    to_type: *const libcopy_type_t,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise; the sizes are the same.
        unsafe {
            let source = handle(from_type)?.layout(from_count)?;
            let target = handle(to_type)?.layout(to_count)?;
            let bytes = Datatype::named(Named::Byte).contiguous(source.size())?;
            let bytes = bytes.signature();
            let fits = source.signature() == target.signature()
                || source.signature() == bytes
                || target.signature() == bytes;
            if source.size() != target.size() || !fits {
                return Err(Failure(
                    LIBCOPY_EMISMATCH,
                    format!(
                        "{} bytes in {} elements cannot be copied to {} bytes in {} elements of \
                         other types",
                        source.size(),
                        source.signature().elements(),
                        target.size(),
                        target.signature().elements()
                    ),
                ));
            }
            addressed("the buffer to copy from", from, &source)?;
            addressed("the buffer to copy to", to.cast_const(), &target)?;
            if source.size() > 0 {
                source.copy_raw(from.cast(), &target, to.cast());
            }
            Ok(())
        }
    })
}

/// The number of dense pieces of `count` elements.
///
/// # Safety
///
/// `datatype` is a type, `segments` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_segment_count(
    count: u64,
    datatype: *const libcopy_type_t,
    segments: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let layout = handle(datatype)?.layout(count)?;
            put("the number of segments", segments, layout.segment_count())
        }
    })
}

/// Writes up to `max` dense pieces of `count` elements, from number `first` on, in the order of
/// the packed stream. `*actual` is how many; fewer than `max` means that they are the last ones.
///
/// # Safety
///
/// `datatype` is a type, `segments` is writable for `max` entries, `actual` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_segments(
    count: u64,
    datatype: *const libcopy_type_t,
    first: u64,
    segments: *mut libcopy_segment_t,
    max: usize,
    actual: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let layout = handle(datatype)?.layout(count)?;
            let left = layout.segment_count().saturating_sub(first);
            let n = usize::try_from(left).unwrap_or(usize::MAX).min(max);
            let list = list_mut("segments", segments, n)?;
            for (i, to) in list.iter_mut().enumerate() {
                if let Some(segment) = layout.segment(first + i as u64) {
                    *to = libcopy_segment_t {
                        offset: segment.offset,
                        length: segment.len,
                    };
                }
            }
            put("the number of segments", actual, n)
        }
    })
}
