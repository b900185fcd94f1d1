// SPDX-License-Identifier: MIT OR Apache-2.0

//! Constructors.

use super::constants::*;
use super::handle::libcopy_type_t;
use crate::arguments::New;
use crate::error::{Result, invalid};
use libcopy::datatype::{Datatype, Distribution, Named, Order};
use libcopy_ffi_macros::c_api;
use std::ffi::{CStr, c_int};

fn order_of(order: c_int) -> Result<Order> {
    let wrong = || format!("order {order}: LIBCOPY_ORDER_C or LIBCOPY_ORDER_FORTRAN");
    match order {
        LIBCOPY_ORDER_C => Ok(Order::C),
        LIBCOPY_ORDER_FORTRAN => Ok(Order::Fortran),
        _ => Err(invalid(wrong())),
    }
}

fn distribution_of(kind: c_int, block: u64) -> Result<Distribution> {
    let wrong = || format!("distribution {kind}: a LIBCOPY_DISTRIBUTE_*");
    let block = (block > 0).then_some(block);
    match kind {
        LIBCOPY_DISTRIBUTE_BLOCK => Ok(Distribution::Block(block)),
        LIBCOPY_DISTRIBUTE_CYCLIC => Ok(Distribution::Cyclic(block)),
        LIBCOPY_DISTRIBUTE_NONE => Ok(Distribution::None),
        _ => Err(invalid(wrong())),
    }
}

fn text_of(text: &CStr) -> Result<&str> {
    let wrong = |e| invalid(format!("the text is not UTF-8: {e}"));
    text.to_str().map_err(wrong)
}

/// A predefined type by MPI's name: "MPI_DOUBLE", or "double". `*type_out` is null after an error,
/// here and in all constructors.
#[c_api]
pub fn libcopy_type_named(name: &CStr, type_out: New<libcopy_type_t>) -> Result {
    let name = text_of(name)?;
    let named = Named::from_name(name)
        .ok_or_else(|| invalid(format!("{name:?} is not a predefined type of MPI")))?;
    type_out.put(Datatype::named(named))
}

/// The type that an expression describes: "vector(3, 1, 4, double)". `libcopy type --help` shows
/// the language.
#[c_api]
pub fn libcopy_type_parse(expression: &CStr, type_out: New<libcopy_type_t>) -> Result {
    type_out.put(text_of(expression)?.parse::<Datatype>()?)
}

/// The same type with an identity of its own.
#[c_api]
pub fn libcopy_type_dup(child: &libcopy_type_t, type_out: New<libcopy_type_t>) -> Result {
    type_out.put(child.datatype.dup())
}

/// `count` elements, one extent after the other.
#[c_api]
pub fn libcopy_type_contiguous(
    count: u64,
    child: &libcopy_type_t,
    type_out: New<libcopy_type_t>,
) -> Result {
    type_out.put(child.datatype.contiguous(count)?)
}

/// `count` blocks of `blocklength` elements, their starts `stride` extents apart.
#[c_api]
pub fn libcopy_type_vector(
    count: u64,
    blocklength: u64,
    stride: i64,
    child: &libcopy_type_t,
    type_out: New<libcopy_type_t>,
) -> Result {
    type_out.put(child.datatype.vector(count, blocklength, stride)?)
}

/// `count` blocks of `blocklength` elements, their starts `stride` bytes apart.
#[c_api]
pub fn libcopy_type_hvector(
    count: u64,
    blocklength: u64,
    stride: i64,
    child: &libcopy_type_t,
    type_out: New<libcopy_type_t>,
) -> Result {
    type_out.put(child.datatype.hvector(count, blocklength, stride)?)
}

/// `count` blocks of `blocklengths[i]` elements at `displacements[i]` extents.
#[c_api]
pub fn libcopy_type_indexed(
    count: usize,
    #[len(count)] blocklengths: &[u64],
    #[len(count)] displacements: &[i64],
    child: &libcopy_type_t,
    type_out: New<libcopy_type_t>,
) -> Result {
    type_out.put(child.datatype.indexed(blocklengths, displacements)?)
}

/// `count` blocks of `blocklengths[i]` elements at `displacements[i]` bytes.
#[c_api]
pub fn libcopy_type_hindexed(
    count: usize,
    #[len(count)] blocklengths: &[u64],
    #[len(count)] displacements: &[i64],
    child: &libcopy_type_t,
    type_out: New<libcopy_type_t>,
) -> Result {
    type_out.put(child.datatype.hindexed(blocklengths, displacements)?)
}

/// `count` blocks of `blocklength` elements at `displacements[i]` extents.
#[c_api]
pub fn libcopy_type_indexed_block(
    count: usize,
    blocklength: u64,
    #[len(count)] displacements: &[i64],
    child: &libcopy_type_t,
    type_out: New<libcopy_type_t>,
) -> Result {
    type_out.put(child.datatype.indexed_block(blocklength, displacements)?)
}

/// `count` blocks of `blocklength` elements at `displacements[i]` bytes.
#[c_api]
pub fn libcopy_type_hindexed_block(
    count: usize,
    blocklength: u64,
    #[len(count)] displacements: &[i64],
    child: &libcopy_type_t,
    type_out: New<libcopy_type_t>,
) -> Result {
    type_out.put(child.datatype.hindexed_block(blocklength, displacements)?)
}

/// `count` blocks of `blocklengths[i]` elements of `children[i]` at `displacements[i]` bytes.
#[c_api]
pub fn libcopy_type_struct(
    count: usize,
    #[len(count)] blocklengths: &[u64],
    #[len(count)] displacements: &[i64],
    #[len(count)] children: &[Option<&libcopy_type_t>],
    type_out: New<libcopy_type_t>,
) -> Result {
    let children: Option<Vec<_>> = children.iter().map(|c| c.map(|c| &c.datatype)).collect();
    let children = children.ok_or_else(|| invalid("one of the children is null"))?;
    type_out.put(Datatype::structure(blocklengths, displacements, children)?)
}

/// A box of `subsizes` at `starts` in an array of `sizes`: numbers of elements for each of the
/// `dimensions`. `order` is a `LIBCOPY_ORDER_*`.
#[c_api]
pub fn libcopy_type_subarray(
    dimensions: usize,
    #[len(dimensions)] sizes: &[u64],
    #[len(dimensions)] subsizes: &[u64],
    #[len(dimensions)] starts: &[u64],
    order: c_int,
    child: &libcopy_type_t,
    type_out: New<libcopy_type_t>,
) -> Result {
    let order = order_of(order)?;
    type_out.put(child.datatype.subarray(sizes, subsizes, starts, order)?)
}

/// The part of process `rank` of `size` of an array of `sizes`: each of the `dimensions` is dealt
/// out to `processes[i]` as a `LIBCOPY_DISTRIBUTE_*` in `distributions[i]` says, in blocks of
/// `blocks[i]` elements; 0 is MPI's default.
#[c_api]
pub fn libcopy_type_darray(
    size: u64,
    rank: u64,
    dimensions: usize,
    #[len(dimensions)] sizes: &[u64],
    #[len(dimensions)] distributions: &[c_int],
    #[len(dimensions)] blocks: &[u64],
    #[len(dimensions)] processes: &[u64],
    order: c_int,
    child: &libcopy_type_t,
    type_out: New<libcopy_type_t>,
) -> Result {
    let dealt = distributions.iter().zip(blocks);
    let dealt: Result<Vec<_>> = dealt.map(|(d, b)| distribution_of(*d, *b)).collect();
    let (dealt, order) = (dealt?, order_of(order)?);
    let child = &child.datatype;
    type_out.put(child.darray(size, rank, sizes, &dealt, processes, order)?)
}

/// The same data with another lower bound and extent, in bytes.
#[c_api]
pub fn libcopy_type_resized(
    lower_bound: i64,
    extent: i64,
    child: &libcopy_type_t,
    type_out: New<libcopy_type_t>,
) -> Result {
    type_out.put(child.datatype.resized(lower_bound, extent)?)
}
