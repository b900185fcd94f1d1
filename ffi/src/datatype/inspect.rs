// SPDX-License-Identifier: MIT OR Apache-2.0

//! References to a handle, and what a type is.

use super::constants::*;
use super::handle::{handle, libcopy_type_t, list_mut, new_handle, put};
use crate::error::{Failure, guarded, invalid};
use libcopy::datatype::{Combiner, Contents, Distribution, Order};
use std::ffi::{c_char, c_int};
use std::sync::Arc;

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
            let number = contents.envelope().datatypes as usize;
            for (what, room, needed) in [
                ("integers", max_integers, all_integers.len()),
                ("counts", max_counts, all_counts.len()),
                ("types", max_types, number),
            ] {
                if room < needed {
                    return Err(invalid(format!(
                        "room for {room} {what}, but there are {needed}"
                    )));
                }
            }
            let integers = list_mut("integers", integers, all_integers.len())?;
            let counts = list_mut("counts", counts, all_counts.len())?;
            let types = list_mut("types", types, number)?;
            integers.copy_from_slice(&all_integers);
            counts.copy_from_slice(&all_counts);
            for (to, child) in types.iter_mut().zip(contents.children()) {
                // What stood there may be anything: it is written, not dropped.
                (&raw mut *to).write(new_handle(child.clone()));
            }
            Ok(())
        }
    })
}
