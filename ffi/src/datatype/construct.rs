// SPDX-License-Identifier: MIT OR Apache-2.0

//! Constructors.

use super::constants::*;
use super::handle::{give, handle, libcopy_type_t, list};
use crate::error::{Failure, invalid};
use libcopy::datatype::{Datatype, Distribution, Named, Order};
use std::ffi::{CStr, c_char, c_int};

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

/// Gives the caller a type that is made of another one.
///
/// # Safety
///
/// `child` is a type, `type_out` points to a pointer.
unsafe fn derive(
    child: *const libcopy_type_t,
    type_out: *mut *mut libcopy_type_t,
    make: impl FnOnce(&Datatype) -> Result<Datatype, Failure>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { give(type_out, || make(&handle(child)?.datatype)) }
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
    unsafe { derive(child, type_out, |child| Ok(child.dup())) }
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
    unsafe { derive(child, type_out, |child| Ok(child.contiguous(count)?)) }
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
        derive(child, type_out, |child| {
            Ok(child.vector(count, blocklength, stride)?)
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
        derive(child, type_out, |child| {
            Ok(child.hvector(count, blocklength, stride)?)
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
        derive(child, type_out, |child| {
            let blocklengths = list("blocklengths", blocklengths, count)?;
            let displacements = list("displacements", displacements, count)?;
            Ok(child.indexed(blocklengths, displacements)?)
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
        derive(child, type_out, |child| {
            let blocklengths = list("blocklengths", blocklengths, count)?;
            let displacements = list("displacements", displacements, count)?;
            Ok(child.hindexed(blocklengths, displacements)?)
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
        derive(child, type_out, |child| {
            let displacements = list("displacements", displacements, count)?;
            Ok(child.indexed_block(blocklength, displacements)?)
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
        derive(child, type_out, |child| {
            let displacements = list("displacements", displacements, count)?;
            Ok(child.hindexed_block(blocklength, displacements)?)
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
            let children: Result<Vec<&Datatype>, Failure> = list("children", children, count)?
                .iter()
                .map(|child| Ok(&handle(*child)?.datatype))
                .collect();
            let blocklengths = list("blocklengths", blocklengths, count)?;
            let displacements = list("displacements", displacements, count)?;
            Ok(Datatype::structure(blocklengths, displacements, children?)?)
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
        derive(child, type_out, |child| {
            let sizes = list("sizes", sizes, dimensions)?;
            let subsizes = list("subsizes", subsizes, dimensions)?;
            let starts = list("starts", starts, dimensions)?;
            let order = order_of(order)?;
            Ok(child.subarray(sizes, subsizes, starts, order)?)
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
        derive(child, type_out, |child| {
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
            Ok(child.darray(size, rank, sizes, &dealt?, processes, order)?)
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
        derive(child, type_out, |child| {
            Ok(child.resized(lower_bound, extent)?)
        })
    }
}
