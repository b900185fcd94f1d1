// SPDX-License-Identifier: MIT OR Apache-2.0

//! Packing, unpacking and copying, and the dense pieces of elements.

use super::handle::{libcopy_segment_t, libcopy_type_t};
use crate::arguments::{Out, Room};
use crate::error::{Failure, LIBCOPY_EMISMATCH, Result, invalid};
use libcopy::datatype::{Datatype, Layout, Named};
use libcopy_ffi_macros::c_api;
use std::ffi::c_void;
use std::ops::Range;

/// Bytes at the start of the address space that no process has.
const NEVER_MAPPED: i64 = 4096;

/// Refuses a null buffer unless the type's displacements are addresses.
pub(crate) fn addressed(what: &str, buffer: *const c_void, layout: &Layout) -> Result {
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
) -> Result<(Range<u64>, usize)> {
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
#[c_api]
pub fn libcopy_type_pack(
    buffer: *const c_void,
    count: u64,
    datatype: &libcopy_type_t,
    offset: u64,
    packed: *mut c_void,
    max: usize,
    actual: Out<usize>,
) -> Result {
    let layout = datatype.layout(count)?;
    let (range, bytes) = moved(&layout, offset, max, buffer, packed)?;
    if bytes > 0 {
        // SAFETY: the range lies in the stream, and the caller guarantees the memory of both.
        unsafe { layout.pack_raw(buffer.cast(), range, packed.cast()) };
    }
    actual.put(bytes)
}

/// Unpacks `length` bytes that belong at byte `offset` of the packed stream into `count` elements
/// at `buffer`; what lies behind the stream's end is left alone. `*actual` is how many. Where
/// entries of the type overlap, the last one in the type map wins, as in MPI libraries.
#[c_api]
pub fn libcopy_type_unpack(
    packed: *const c_void,
    length: usize,
    buffer: *mut c_void,
    count: u64,
    datatype: &libcopy_type_t,
    offset: u64,
    actual: Out<usize>,
) -> Result {
    let layout = datatype.layout(count)?;
    let (range, bytes) = moved(&layout, offset, length, buffer, packed)?;
    if bytes > 0 {
        // SAFETY: the range lies in the stream, and the caller guarantees the memory of both.
        unsafe { layout.unpack_raw(packed.cast(), range, buffer.cast()) };
    }
    actual.put(bytes)
}

/// Copies `from_count` elements at `from` to `to_count` elements at `to`, from layout to layout.
/// Both have the same basic elements in the same order, or one of them consists of bytes.
#[c_api]
pub fn libcopy_type_copy(
    from: *const c_void,
    from_count: u64,
    from_type: &libcopy_type_t,
    to: *mut c_void,
    to_count: u64,
    to_type: &libcopy_type_t,
) -> Result {
    let source = from_type.layout(from_count)?;
    let target = to_type.layout(to_count)?;
    let bytes = Datatype::named(Named::Byte).contiguous(source.size())?;
    let (sent, received) = (source.signature(), target.signature());
    let fits = sent == received || [sent, received].contains(&bytes.signature());
    if source.size() != target.size() || !fits {
        let why = format!(
            "{} bytes in {} elements cannot be copied to {} bytes in {} elements of other types",
            source.size(),
            sent.elements(),
            target.size(),
            received.elements()
        );
        return Err(Failure(LIBCOPY_EMISMATCH, why));
    }
    addressed("the buffer to copy from", from, &source)?;
    addressed("the buffer to copy to", to.cast_const(), &target)?;
    if source.size() > 0 {
        // SAFETY: the sizes are the same, and the caller guarantees the memory of both.
        unsafe { source.copy_raw(from.cast(), &target, to.cast()) };
    }
    Ok(())
}

/// The number of dense pieces of `count` elements.
#[c_api]
pub fn libcopy_type_segment_count(
    count: u64,
    datatype: &libcopy_type_t,
    segments: Out<u64>,
) -> Result {
    segments.put(datatype.layout(count)?.segment_count())
}

/// Writes up to `max` dense pieces of `count` elements, from number `first` on, in the order of
/// the packed stream. `*actual` is how many; fewer than `max` means that they are the last ones.
#[c_api]
pub fn libcopy_type_segments(
    count: u64,
    datatype: &libcopy_type_t,
    first: u64,
    #[len(max)] segments: Room<libcopy_segment_t>,
    max: usize,
    actual: Out<usize>,
) -> Result {
    let layout = datatype.layout(count)?;
    let left = layout.segment_count().saturating_sub(first);
    let n = usize::try_from(left).unwrap_or(usize::MAX).min(max);
    for (to, index) in segments.first(n)?.iter_mut().zip(first..) {
        if let Some(segment) = layout.segment(index) {
            *to = segment.into();
        }
    }
    actual.put(n)
}
