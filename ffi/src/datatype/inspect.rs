// SPDX-License-Identifier: MIT OR Apache-2.0

//! References to a handle, and what a type is.

use super::constants::*;
use super::handle::libcopy_type_t;
use crate::arguments::{Handle, Out, Room, copy_text};
use crate::error::{Result, invalid};
use libcopy::datatype::{Combiner, Contents, Distribution, Order};
use libcopy_ffi_macros::c_api;
use std::ffi::{c_char, c_int};
use std::sync::Arc;

/// Takes another reference to the handle: it has to be freed once more.
#[c_api]
pub fn libcopy_type_retain(datatype: *mut libcopy_type_t) -> Result {
    if datatype.is_null() {
        return Err(invalid("datatype is null"));
    }
    // SAFETY: the caller guarantees a handle, and every one came from `Arc::into_raw`.
    unsafe { Arc::increment_strong_count(datatype.cast_const()) };
    Ok(())
}

/// Gives a reference up. Types built on this one stay as they are. Null is allowed.
#[c_api]
pub fn libcopy_type_free(datatype: Option<Arc<libcopy_type_t>>) -> Result {
    drop(datatype);
    Ok(())
}

/// Translates the type into the form that moves bytes; without it, the first use does it.
#[c_api]
pub fn libcopy_type_commit(datatype: &libcopy_type_t) -> Result {
    datatype.layout(1).map(drop)
}

/// Bytes of data.
#[c_api]
pub fn libcopy_type_size(datatype: &libcopy_type_t, size: Out<u64>) -> Result {
    size.put(datatype.datatype.size())
}

/// Lower bound, and distance from one element to the next, in bytes.
#[c_api]
pub fn libcopy_type_extent(
    datatype: &libcopy_type_t,
    lower_bound: Out<i64>,
    extent: Out<i64>,
) -> Result {
    lower_bound.put(datatype.datatype.lower_bound())?;
    extent.put(datatype.datatype.extent())
}

/// Offset of the lowest byte of data, and bytes from it to the end of the highest.
#[c_api]
pub fn libcopy_type_true_extent(
    datatype: &libcopy_type_t,
    true_lower_bound: Out<i64>,
    true_extent: Out<i64>,
) -> Result {
    true_lower_bound.put(datatype.datatype.true_lower_bound())?;
    true_extent.put(datatype.datatype.true_extent())
}

/// The type as an expression, at most `max` bytes with the zero at the end; `*length` is the
/// length of the whole text without it. A null `text` only asks for the length.
#[c_api]
pub fn libcopy_type_expression(
    datatype: &libcopy_type_t,
    #[len(max)] text: Option<&mut [c_char]>,
    max: usize,
    length: Out<usize>,
) -> Result {
    let expression = datatype.datatype.expression();
    length.put(expression.len())?;
    if let Some(text) = text {
        copy_text(&expression, text);
    }
    Ok(())
}

fn combiner_of(combiner: Combiner) -> Result<c_int> {
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
#[c_api]
pub fn libcopy_type_envelope(
    datatype: &libcopy_type_t,
    combiner: Out<c_int>,
    integers: Out<usize>,
    counts: Out<usize>,
    types: Out<usize>,
) -> Result {
    let envelope = datatype.datatype.envelope();
    combiner.put(combiner_of(envelope.combiner)?)?;
    integers.put(envelope.integers as usize)?;
    counts.put(envelope.large_counts as usize)?;
    types.put(envelope.datatypes as usize)
}

/// The arguments of a constructor in MPI's order: integers and counts.
// One line for the fields of each kind.
#[rustfmt::skip]
fn arguments(contents: &Contents) -> Result<(Vec<i64>, Vec<i64>)> {
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
            let why = "is predefined: it has no contents (see libcopy_type_expression)";
            return Err(invalid(format!("{} {why}", named.mpi_name())));
        }
        Contents::Contiguous { count, .. } => counts = wide(&[*count]),
        Contents::Vector { count, blocklength, stride, .. }
        | Contents::Hvector { count, blocklength, stride, .. } => {
            counts = wide(&[*count, *blocklength]);
            counts.push(*stride);
        }
        Contents::Indexed { blocklengths, displacements, .. }
        | Contents::Hindexed { blocklengths, displacements, .. }
        | Contents::Struct { blocklengths, displacements, .. } => {
            counts = n(displacements.len());
            counts.extend(wide(blocklengths));
            counts.extend_from_slice(displacements);
        }
        Contents::IndexedBlock { blocklength, displacements, .. }
        | Contents::HindexedBlock { blocklength, displacements, .. } => {
            counts = n(displacements.len());
            counts.extend(wide(&[*blocklength]));
            counts.extend_from_slice(displacements);
        }
        Contents::Subarray { sizes, subsizes, starts, order: o, .. } => {
            integers = n(sizes.len());
            integers.push(order(o));
            for list in [sizes, subsizes, starts] {
                counts.extend(wide(list));
            }
        }
        Contents::Darray { size, rank, sizes, distributions, processes, order: o, .. } => {
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
        Contents::Resized { lower_bound, extent, .. } => counts = vec![*lower_bound, *extent],
        _ => {}
    }
    Ok((integers, counts))
}

/// The arguments of the constructor that made the type, in the order of
/// `MPI_Type_get_contents_c`; the arrays have the lengths that `libcopy_type_envelope` says. Each
/// of `types` is a new handle, to be freed.
#[c_api]
pub fn libcopy_type_contents(
    datatype: &libcopy_type_t,
    max_integers: usize,
    #[len(max_integers)] integers: Room<i64>,
    max_counts: usize,
    #[len(max_counts)] counts: Room<i64>,
    max_types: usize,
    #[len(max_types)] types: Room<*mut libcopy_type_t>,
) -> Result {
    let contents = datatype.datatype.contents();
    let (all_integers, all_counts) = arguments(contents)?;
    let integers = integers.first(all_integers.len())?;
    let counts = counts.first(all_counts.len())?;
    let types = types.first(contents.envelope().datatypes as usize)?;
    integers.copy_from_slice(&all_integers);
    counts.copy_from_slice(&all_counts);
    for (to, child) in types.iter_mut().zip(contents.children()) {
        *to = libcopy_type_t::from(child.clone()).into_raw();
    }
    Ok(())
}
