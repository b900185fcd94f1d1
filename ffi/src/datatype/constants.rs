// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers of orders, distributions and constructors.

use std::ffi::c_int;

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
