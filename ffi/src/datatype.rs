// SPDX-License-Identifier: MIT OR Apache-2.0

//! Derived datatypes.
//!
//! A handle counts its references: types built on a type keep what they need of it, so it may be
//! freed as soon as nobody calls with it. Handles may be used by several threads at a time.

use crate::error::{Failure, LIBCOPY_EMISMATCH, guarded, invalid};
use libcopy::datatype::{Combiner, Contents, Datatype, Distribution, Layout, Named, Order};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The last index of an array varies fastest.
pub const LIBCOPY_ORDER_C: c_int = 0;
/// The first index of an array varies fastest.
pub const LIBCOPY_ORDER_FORTRAN: c_int = 1;

/// A dimension in one block for each process.
pub const LIBCOPY_DISTRIBUTE_BLOCK: c_int = 0;
/// A dimension in blocks that are dealt in turn.
pub const LIBCOPY_DISTRIBUTE_CYCLIC: c_int = 1;
/// A dimension that every process has as a whole.
pub const LIBCOPY_DISTRIBUTE_NONE: c_int = 2;

/// A predefined type.
pub const LIBCOPY_COMBINER_NAMED: c_int = 0;
/// Made by `libcopy_type_dup`.
pub const LIBCOPY_COMBINER_DUP: c_int = 1;
/// Made by `libcopy_type_contiguous`.
pub const LIBCOPY_COMBINER_CONTIGUOUS: c_int = 2;
/// Made by `libcopy_type_vector`.
pub const LIBCOPY_COMBINER_VECTOR: c_int = 3;
/// Made by `libcopy_type_hvector`.
pub const LIBCOPY_COMBINER_HVECTOR: c_int = 4;
/// Made by `libcopy_type_indexed`.
pub const LIBCOPY_COMBINER_INDEXED: c_int = 5;
/// Made by `libcopy_type_hindexed`.
pub const LIBCOPY_COMBINER_HINDEXED: c_int = 6;
/// Made by `libcopy_type_indexed_block`.
pub const LIBCOPY_COMBINER_INDEXED_BLOCK: c_int = 7;
/// Made by `libcopy_type_hindexed_block`.
pub const LIBCOPY_COMBINER_HINDEXED_BLOCK: c_int = 8;
/// Made by `libcopy_type_struct`.
pub const LIBCOPY_COMBINER_STRUCT: c_int = 9;
/// Made by `libcopy_type_subarray`.
pub const LIBCOPY_COMBINER_SUBARRAY: c_int = 10;
/// Made by `libcopy_type_darray`.
pub const LIBCOPY_COMBINER_DARRAY: c_int = 11;
/// Made by `libcopy_type_resized`.
pub const LIBCOPY_COMBINER_RESIZED: c_int = 12;

/// A datatype: which bytes lie where, relative to an address.
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct libcopy_type_t {
    datatype: Datatype,
    /// One element.
    single: OnceLock<Layout>,
    /// As many elements as the last call asked for.
    several: Mutex<Option<(u64, Layout)>>,
}

/// A dense piece of a layout.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct libcopy_segment_t {
    /// Bytes from the address that displacements count from.
    pub offset: i64,
    /// Bytes.
    pub length: u64,
}

impl libcopy_type_t {
    pub(crate) fn datatype(&self) -> &Datatype {
        &self.datatype
    }

    pub(crate) fn layout(&self, count: u64) -> Result<Layout, Failure> {
        if count == 1 {
            if let Some(layout) = self.single.get() {
                return Ok(layout.clone());
            }
            let layout = Layout::new(&self.datatype, 1)?;
            return Ok(self.single.get_or_init(|| layout).clone());
        }
        let mut several = self.several.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, layout)) = &*several {
            if *of == count {
                return Ok(layout.clone());
            }
        }
        let layout = Layout::new(&self.datatype, count)?;
        *several = Some((count, layout.clone()));
        Ok(layout)
    }
}

/// # Safety
///
/// `datatype` is null or a handle that was not freed.
pub(crate) unsafe fn handle<'a>(
    datatype: *const libcopy_type_t,
) -> Result<&'a libcopy_type_t, Failure> {
    // SAFETY: the caller vouches for a pointer that is not null.
    unsafe { datatype.as_ref() }.ok_or_else(|| invalid("the type is null"))
}

/// # Safety
///
/// `address` is null or readable for `length` values for `'a`.
pub(crate) unsafe fn list<'a, T>(
    what: &str,
    address: *const T,
    length: usize,
) -> Result<&'a [T], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    if address.is_null() || length > isize::MAX as usize / size_of::<T>() {
        return Err(invalid(format!(
            "{what}: {length} entries at {address:p}, which no array can be"
        )));
    }
    // SAFETY: not null, not too long, and the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts(address, length) })
}

/// # Safety
///
/// `address` is null or writable for `length` values for `'a`, and nobody else uses them.
pub(crate) unsafe fn list_mut<'a, T>(
    what: &str,
    address: *mut T,
    length: usize,
) -> Result<&'a mut [T], Failure> {
    if length == 0 {
        return Ok(&mut []);
    }
    if address.is_null() || length > isize::MAX as usize / size_of::<T>() {
        return Err(invalid(format!(
            "{what}: {length} entries at {address:p}, which no array can be"
        )));
    }
    // SAFETY: not null, not too long, and the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(address, length) })
}

/// # Safety
///
/// `to` is null or writable.
pub(crate) unsafe fn put<T>(what: &str, to: *mut T, value: T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(invalid(format!("the address for {what} is null")));
    }
    // SAFETY: not null, and the caller vouches for it.
    unsafe { to.write(value) };
    Ok(())
}

fn new_handle(datatype: Datatype) -> *mut libcopy_type_t {
    let new = Arc::new(libcopy_type_t {
        datatype,
        single: OnceLock::new(),
        several: Mutex::new(None),
    });
    Arc::into_raw(new).cast_mut()
}

/// Gives a new type to the caller.
///
/// # Safety
///
/// `to` is null or writable.
pub(crate) unsafe fn give(
    to: *mut *mut libcopy_type_t,
    make: impl FnOnce() -> Result<Datatype, Failure>,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { put("the new type", to, std::ptr::null_mut())? };
        let made = make()?;
        // SAFETY: as above.
        unsafe { put("the new type", to, new_handle(made)) }
    })
}

fn order_of(order: c_int) -> Result<Order, Failure> {
    match order {
        LIBCOPY_ORDER_C => Ok(Order::C),
        LIBCOPY_ORDER_FORTRAN => Ok(Order::Fortran),
        other => Err(invalid(format!(
            "order {other}: LIBCOPY_ORDER_C or LIBCOPY_ORDER_FORTRAN"
        ))),
    }
}

/// # Safety
///
/// `text` is null or a string.
unsafe fn text_of<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(invalid("the text is null"));
    }
    // SAFETY: the caller promises a string.
    unsafe { CStr::from_ptr(text) }
        .to_str()
        .map_err(|e| invalid(format!("the text is not UTF-8: {e}")))
}

/// A predefined type by MPI's name: "MPI_DOUBLE", or "double". `*type_out` is null after an error,
/// here and in all constructors.
///
/// # Safety
///
/// `name` is a string, `type_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_named(
    name: *const c_char,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        give(type_out, || {
            let name = text_of(name)?;
            let named = Named::from_name(name)
                .ok_or_else(|| invalid(format!("{name:?} is not a predefined type of MPI")))?;
            Ok(Datatype::named(named))
        })
    }
}

/// The type that an expression describes: "vector(3, 1, 4, double)". `libcopy type --help` shows
/// the language.
///
/// # Safety
///
/// `expression` is a string, `type_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_parse(
    expression: *const c_char,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { give(type_out, || Ok(text_of(expression)?.parse()?)) }
}

/// The same type with an identity of its own.
///
/// # Safety
///
/// `child` is a type, `type_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_dup(
    child: *const libcopy_type_t,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { give(type_out, || Ok(handle(child)?.datatype.dup())) }
}

/// `count` elements, one extent after the other.
///
/// # Safety
///
/// `child` is a type, `type_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_contiguous(
    count: u64,
    child: *const libcopy_type_t,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        give(type_out, || {
            Ok(handle(child)?.datatype.contiguous(count)?)
        })
    }
}

/// `count` blocks of `blocklength` elements, their starts `stride` extents apart.
///
/// # Safety
///
/// `child` is a type, `type_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_vector(
    count: u64,
    blocklength: u64,
    stride: i64,
    child: *const libcopy_type_t,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        give(type_out, || {
            Ok(handle(child)?.datatype.vector(count, blocklength, stride)?)
        })
    }
}

/// `count` blocks of `blocklength` elements, their starts `stride` bytes apart.
///
/// # Safety
///
/// `child` is a type, `type_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_hvector(
    count: u64,
    blocklength: u64,
    stride: i64,
    child: *const libcopy_type_t,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        give(type_out, || {
            Ok(handle(child)?
                .datatype
                .hvector(count, blocklength, stride)?)
        })
    }
}

/// `count` blocks of `blocklengths[i]` elements at `displacements[i]` extents.
///
/// # Safety
///
/// The arrays have `count` entries, `child` is a type, `type_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_indexed(
    count: usize,
    blocklengths: *const u64,
    displacements: *const i64,
    child: *const libcopy_type_t,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        give(type_out, || {
            let blocklengths = list("blocklengths", blocklengths, count)?;
            let displacements = list("displacements", displacements, count)?;
            Ok(handle(child)?
                .datatype
                .indexed(blocklengths, displacements)?)
        })
    }
}

/// `count` blocks of `blocklengths[i]` elements at `displacements[i]` bytes.
///
/// # Safety
///
/// The arrays have `count` entries, `child` is a type, `type_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_hindexed(
    count: usize,
    blocklengths: *const u64,
    displacements: *const i64,
    child: *const libcopy_type_t,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        give(type_out, || {
            let blocklengths = list("blocklengths", blocklengths, count)?;
            let displacements = list("displacements", displacements, count)?;
            Ok(handle(child)?
                .datatype
                .hindexed(blocklengths, displacements)?)
        })
    }
}

/// `count` blocks of `blocklength` elements at `displacements[i]` extents.
///
/// # Safety
///
/// The array has `count` entries, `child` is a type, `type_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_indexed_block(
    count: usize,
    blocklength: u64,
    displacements: *const i64,
    child: *const libcopy_type_t,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        give(type_out, || {
            let displacements = list("displacements", displacements, count)?;
            Ok(handle(child)?
                .datatype
                .indexed_block(blocklength, displacements)?)
        })
    }
}

/// `count` blocks of `blocklength` elements at `displacements[i]` bytes.
///
/// # Safety
///
/// The array has `count` entries, `child` is a type, `type_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_hindexed_block(
    count: usize,
    blocklength: u64,
    displacements: *const i64,
    child: *const libcopy_type_t,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        give(type_out, || {
            let displacements = list("displacements", displacements, count)?;
            Ok(handle(child)?
                .datatype
                .hindexed_block(blocklength, displacements)?)
        })
    }
}

/// `count` blocks of `blocklengths[i]` elements of `children[i]` at `displacements[i]` bytes.
///
/// # Safety
///
/// The arrays have `count` entries, the children are types, `type_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_struct(
    count: usize,
    blocklengths: *const u64,
    displacements: *const i64,
    children: *const *const libcopy_type_t,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        give(type_out, || {
            let children: Result<Vec<Datatype>, Failure> = list("children", children, count)?
                .iter()
                .map(|child| Ok(handle(*child)?.datatype.clone()))
                .collect();
            let blocklengths = list("blocklengths", blocklengths, count)?;
            let displacements = list("displacements", displacements, count)?;
            Ok(Datatype::structure(
                blocklengths,
                displacements,
                &children?,
            )?)
        })
    }
}

/// A box of `subsizes` at `starts` in an array of `sizes`; `order` is a `LIBCOPY_ORDER_*`.
///
/// # Safety
///
/// The arrays have `dimensions` entries, `child` is a type, `type_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_subarray(
    dimensions: usize,
    sizes: *const u64,
    subsizes: *const u64,
    starts: *const u64,
    order: c_int,
    child: *const libcopy_type_t,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        give(type_out, || {
            let sizes = list("sizes", sizes, dimensions)?;
            let subsizes = list("subsizes", subsizes, dimensions)?;
            let starts = list("starts", starts, dimensions)?;
            let order = order_of(order)?;
            Ok(handle(child)?
                .datatype
                .subarray(sizes, subsizes, starts, order)?)
        })
    }
}

/// The part of process `rank` of `size` of an array of `sizes`: each dimension is dealt out to
/// `processes[i]` as a `LIBCOPY_DISTRIBUTE_*` says, in blocks of `blocks[i]` elements; 0 is MPI's
/// default.
///
/// # Safety
///
/// The arrays have `dimensions` entries, `child` is a type, `type_out` points to a pointer.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "MPI_Type_create_darray's")]
pub unsafe extern "C" fn libcopy_type_darray(
    size: u64,
    rank: u64,
    dimensions: usize,
    sizes: *const u64,
    distributions: *const c_int,
    blocks: *const u64,
    processes: *const u64,
    order: c_int,
    child: *const libcopy_type_t,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        give(type_out, || {
            let sizes = list("sizes", sizes, dimensions)?;
            let blocks = list("blocks", blocks, dimensions)?;
            let processes = list("processes", processes, dimensions)?;
            let dealt: Result<Vec<Distribution>, Failure> =
                list("distributions", distributions, dimensions)?
                    .iter()
                    .zip(blocks)
                    .map(|(kind, block)| {
                        let block = (*block > 0).then_some(*block);
                        match *kind {
                            LIBCOPY_DISTRIBUTE_BLOCK => Ok(Distribution::Block(block)),
                            LIBCOPY_DISTRIBUTE_CYCLIC => Ok(Distribution::Cyclic(block)),
                            LIBCOPY_DISTRIBUTE_NONE => Ok(Distribution::None),
                            other => Err(invalid(format!(
                                "distribution {other}: a LIBCOPY_DISTRIBUTE_*"
                            ))),
                        }
                    })
                    .collect();
            let order = order_of(order)?;
            Ok(handle(child)?
                .datatype
                .darray(size, rank, sizes, &dealt?, processes, order)?)
        })
    }
}

/// The same data with another lower bound and extent, in bytes.
///
/// # Safety
///
/// `child` is a type, `type_out` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_resized(
    lower_bound: i64,
    extent: i64,
    child: *const libcopy_type_t,
    type_out: *mut *mut libcopy_type_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        give(type_out, || {
            Ok(handle(child)?.datatype.resized(lower_bound, extent)?)
        })
    }
}

/// Takes another reference to the handle: it has to be freed once more.
///
/// # Safety
///
/// `datatype` is a type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_retain(datatype: *mut libcopy_type_t) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise; every handle came from `Arc::into_raw`.
        unsafe {
            handle(datatype)?;
            Arc::increment_strong_count(datatype.cast_const());
        }
        Ok(())
    })
}

/// Gives a reference up. Types built on this one stay as they are. Null is allowed.
///
/// # Safety
///
/// `datatype` is null or a type with a reference that is the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_free(datatype: *mut libcopy_type_t) -> c_int {
    guarded(|| {
        if !datatype.is_null() {
            // SAFETY: it came from `Arc::into_raw`, and the caller gives the reference up.
            drop(unsafe { Arc::from_raw(datatype.cast_const()) });
        }
        Ok(())
    })
}

/// Translates the type into the form that moves bytes; without it, the first use does it.
///
/// # Safety
///
/// `datatype` is a type.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_commit(datatype: *const libcopy_type_t) -> c_int {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { handle(datatype)?.layout(1).map(|_| ()) })
}

/// Bytes of data.
///
/// # Safety
///
/// `datatype` is a type, `size` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_size(
    datatype: *const libcopy_type_t,
    size: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { put("the size", size, handle(datatype)?.datatype.size()) })
}

/// Lower bound, and distance from one element to the next, in bytes.
///
/// # Safety
///
/// `datatype` is a type, the others point to numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_extent(
    datatype: *const libcopy_type_t,
    lower_bound: *mut i64,
    extent: *mut i64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let datatype = &handle(datatype)?.datatype;
            put("the lower bound", lower_bound, datatype.lower_bound())?;
            put("the extent", extent, datatype.extent())
        }
    })
}

/// Offset of the lowest byte of data, and bytes from it to the end of the highest.
///
/// # Safety
///
/// `datatype` is a type, the others point to numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_true_extent(
    datatype: *const libcopy_type_t,
    true_lower_bound: *mut i64,
    true_extent: *mut i64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let datatype = &handle(datatype)?.datatype;
            put(
                "the true lower bound",
                true_lower_bound,
                datatype.true_lower_bound(),
            )?;
            put("the true extent", true_extent, datatype.true_extent())
        }
    })
}

/// The type as an expression, at most `max` bytes with the zero at the end; `*length` is the
/// length of the whole text without it. A null `text` only asks for the length.
///
/// # Safety
///
/// `datatype` is a type, `text` null or writable for `max` bytes, `length` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_expression(
    datatype: *const libcopy_type_t,
    text: *mut c_char,
    max: usize,
    length: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let expression = handle(datatype)?.datatype.expression();
            put("the length", length, expression.len())?;
            if !text.is_null() && max > 0 {
                let text = list_mut("text", text.cast::<u8>(), max)?;
                let fits = expression.len().min(max - 1);
                text[..fits].copy_from_slice(&expression.as_bytes()[..fits]);
                text[fits] = 0;
            }
            Ok(())
        }
    })
}

fn combiner_of(combiner: Combiner) -> Result<c_int, Failure> {
    Ok(match combiner {
        Combiner::Named => LIBCOPY_COMBINER_NAMED,
        Combiner::Dup => LIBCOPY_COMBINER_DUP,
        Combiner::Contiguous => LIBCOPY_COMBINER_CONTIGUOUS,
        Combiner::Vector => LIBCOPY_COMBINER_VECTOR,
        Combiner::Hvector => LIBCOPY_COMBINER_HVECTOR,
        Combiner::Indexed => LIBCOPY_COMBINER_INDEXED,
        Combiner::Hindexed => LIBCOPY_COMBINER_HINDEXED,
        Combiner::IndexedBlock => LIBCOPY_COMBINER_INDEXED_BLOCK,
        Combiner::HindexedBlock => LIBCOPY_COMBINER_HINDEXED_BLOCK,
        Combiner::Struct => LIBCOPY_COMBINER_STRUCT,
        Combiner::Subarray => LIBCOPY_COMBINER_SUBARRAY,
        Combiner::Darray => LIBCOPY_COMBINER_DARRAY,
        Combiner::Resized => LIBCOPY_COMBINER_RESIZED,
        other => return Err(invalid(format!("{other:?} has no number here"))),
    })
}

/// Which constructor made the type (a `LIBCOPY_COMBINER_*`), and how many integers, counts and
/// types `libcopy_type_contents` delivers: as many as `MPI_Type_get_envelope_c` says.
///
/// # Safety
///
/// `datatype` is a type, the others point to numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_envelope(
    datatype: *const libcopy_type_t,
    combiner: *mut c_int,
    integers: *mut usize,
    counts: *mut usize,
    types: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let envelope = handle(datatype)?.datatype.envelope();
            put("the combiner", combiner, combiner_of(envelope.combiner)?)?;
            put("the integers", integers, envelope.integers as usize)?;
            put("the counts", counts, envelope.large_counts as usize)?;
            put("the types", types, envelope.datatypes as usize)
        }
    })
}

/// The arguments of a constructor in MPI's order: integers and counts.
fn arguments(contents: &Contents) -> Result<(Vec<i64>, Vec<i64>), Failure> {
    let order = |order: &Order| match order {
        Order::C => i64::from(LIBCOPY_ORDER_C),
        Order::Fortran => i64::from(LIBCOPY_ORDER_FORTRAN),
    };
    // Counts above 63 bits belong to types without data.
    let wide = |list: &[u64]| -> Vec<i64> { list.iter().map(|n| *n as i64).collect() };
    let n = |len: usize| vec![len as i64];
    let (mut integers, mut counts) = (Vec::new(), Vec::new());
    match contents {
        Contents::Named(named) => {
            return Err(invalid(format!(
                "{} is predefined: it has no contents (see libcopy_type_expression)",
                named.mpi_name()
            )));
        }
        Contents::Contiguous { count, .. } => counts = wide(&[*count]),
        Contents::Vector {
            count,
            blocklength,
            stride,
            ..
        }
        | Contents::Hvector {
            count,
            blocklength,
            stride,
            ..
        } => {
            counts = wide(&[*count, *blocklength]);
            counts.push(*stride);
        }
        Contents::Indexed {
            blocklengths,
            displacements,
            ..
        }
        | Contents::Hindexed {
            blocklengths,
            displacements,
            ..
        }
        | Contents::Struct {
            blocklengths,
            displacements,
            ..
        } => {
            counts = n(displacements.len());
            counts.extend(wide(blocklengths));
            counts.extend_from_slice(displacements);
        }
        Contents::IndexedBlock {
            blocklength,
            displacements,
            ..
        }
        | Contents::HindexedBlock {
            blocklength,
            displacements,
            ..
        } => {
            counts = n(displacements.len());
            counts.extend(wide(&[*blocklength]));
            counts.extend_from_slice(displacements);
        }
        Contents::Subarray {
            sizes,
            subsizes,
            starts,
            order: o,
            ..
        } => {
            integers = n(sizes.len());
            integers.push(order(o));
            for list in [sizes, subsizes, starts] {
                counts.extend(wide(list));
            }
        }
        Contents::Darray {
            size,
            rank,
            sizes,
            distributions,
            processes,
            order: o,
            ..
        } => {
            integers = wide(&[*size, *rank, sizes.len() as u64]);
            let kinds = distributions.iter().map(|d| match d {
                Distribution::Block(_) => LIBCOPY_DISTRIBUTE_BLOCK,
                Distribution::Cyclic(_) => LIBCOPY_DISTRIBUTE_CYCLIC,
                Distribution::None => LIBCOPY_DISTRIBUTE_NONE,
            });
            integers.extend(kinds.map(i64::from));
            integers.extend(distributions.iter().map(|d| match d {
                Distribution::Block(Some(n)) | Distribution::Cyclic(Some(n)) => *n as i64,
                _ => 0,
            }));
            integers.extend(wide(processes));
            integers.push(order(o));
            counts = wide(sizes);
        }
        Contents::Resized {
            lower_bound,
            extent,
            ..
        } => counts = vec![*lower_bound, *extent],
        _ => {}
    }
    Ok((integers, counts))
}

/// The arguments of the constructor that made the type, in the order of
/// `MPI_Type_get_contents_c`; the arrays have the lengths that `libcopy_type_envelope` says. Each
/// of `types` is a new handle, to be freed.
///
/// # Safety
///
/// `datatype` is a type, the arrays have as many entries as is said beside them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_type_contents(
    datatype: *const libcopy_type_t,
    max_integers: usize,
    integers: *mut i64,
    max_counts: usize,
    counts: *mut i64,
    max_types: usize,
    types: *mut *mut libcopy_type_t,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let contents = handle(datatype)?.datatype.contents();
            let (all_integers, all_counts) = arguments(contents)?;
            let children = contents.children();
            for (what, room, needed) in [
                ("integers", max_integers, all_integers.len()),
                ("counts", max_counts, all_counts.len()),
                ("types", max_types, children.len()),
            ] {
                if room < needed {
                    return Err(invalid(format!(
                        "room for {room} {what}, but there are {needed}"
                    )));
                }
            }
            let integers = list_mut("integers", integers, all_integers.len())?;
            let counts = list_mut("counts", counts, all_counts.len())?;
            let types = list_mut("types", types, children.len())?;
            integers.copy_from_slice(&all_integers);
            counts.copy_from_slice(&all_counts);
            for (to, child) in types.iter_mut().zip(children) {
                // What stood there may be anything: it is written, not dropped.
                (&raw mut *to).write(new_handle(child.clone()));
            }
            Ok(())
        }
    })
}

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

/// The bytes of the packed stream that a call moves between elements at `buffer` and `packed`: those from
/// byte `offset` on, at most `max`; and how many. If there are any, neither address may be null.
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
/// at `buffer`; what lies behind the stream's end is left alone. `*actual` is how many. Where entries
/// of the type overlap, the last one in the type map wins, as in MPI libraries.
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
