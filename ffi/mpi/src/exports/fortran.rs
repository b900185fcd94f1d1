// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fortran callers (`mpif.h`, `use mpi`, `use mpi_f08`).
//!
//! MPICH's Fortran functions call `MPI_Bcast` and so on, which are ours. Open MPI's call
//! `PMPI_Bcast`, past us, so there we are the Fortran functions: `mpi_bcast_`, and `ompi_bcast_f`,
//! which `use mpi_f08` comes to. They turn Fortran's handles and special addresses into C's.

use std::ffi::{c_int, c_void};

use crate::exports::collectives;
use crate::exports::fortran_arguments::{
    Request, fortran_function, passed, type_in_fortran, types_in_c, value_in_c, written_back,
};
use crate::library::abi::{function, symbol_name};
use crate::library::pmpi::both_forms::Arrays;
use crate::library::tools::Feature;
use crate::library::{functions, pmpi, tools};
use crate::types::datatype;
use crate::types::fortran_names::{buffer, past_us};

/// An array of Fortran's datatypes as C's, which has as many as `$arrays` says.
macro_rules! types_in_c {
    (types, $argument:ident, $arrays:expr) => {
        types_in_c($argument, $arrays.all)
    };
    (sent_types, $argument:ident, $arrays:expr) => {
        types_in_c($argument, $arrays.sent)
    };
    ($other:ident, $argument:ident, $arrays:expr) => {
        $argument
    };
}

/// Declares a Fortran function under each of its names, as the C function `$c`; where we are not
/// needed, or a tool wraps what it belongs to, the next one of that name is called. `$arrays` are
/// the lengths of its arrays.
macro_rules! functions {
    ([$($name:ident)*] $feature:expr, $c:path, $arguments:tt $arrays:expr) => { $(
        functions!(@one $name $feature, $c, $arguments $arrays);
    )* };
    (@one $name:ident $feature:expr, $c:path, ($($argument:ident: $kind:ident),*) $arrays:expr) => {
        fortran_function! {
            $name ($($argument: type_in_fortran!($kind)),*) is_theirs($feature), {
                $(let $argument = value_in_c!($kind, $argument);)*
                $(let $argument = types_in_c!($kind, $argument, $arrays);)*
                let code = $c($(passed!($kind, $argument)),*);
                if code == 0 {
                    $(written_back!($kind, $argument);)*
                }
                code
            }
        }
    };
}

/// Whether the MPI library's function of Fortran does what belongs to a feature, or to none.
fn is_theirs(feature: Option<Feature>) -> bool {
    !past_us() || feature.and_then(tools::wrapped).is_some()
}

/// Declares the collectives that have Fortran's names in the table.
macro_rules! declare {
    ($($op:ident $arguments:tt {
         operation $operation:ident;
         arrays $arrays:tt;
         device $device:ident $buffers:tt $root:tt;
         small $small:tt;
         $($form:ident $rust:ident = $names:tt $fortran:tt $(=> $function:ident $module:ident)?;)*
     })*) => {
        $($( declare!(@$form $names $fortran $arguments $arrays); )*)*
    };
    (@blocking [$c:ident $large:ident] $fortran:tt ($($argument:ident: $kind:ident),*; $comm:ident) [$($arrays:tt)*]) => {
        functions!(
            $fortran Some(Feature::Collectives), collectives::$c,
            ($($argument: $kind,)* $comm: comm) Arrays::$($arrays)*.lengths($comm)
        );
    };
    (@nonblocking [$c:ident $large:ident] $fortran:tt ($($argument:ident: $kind:ident),*; $comm:ident) [$($arrays:tt)*]) => {
        functions!(
            $fortran Some(Feature::Nonblocking), collectives::$c,
            ($($argument: $kind,)* $comm: comm, request: request) Arrays::$($arrays)*.lengths($comm)
        );
    };
    (@persistent [$c:ident $large:ident $before:ident] $fortran:tt ($($argument:ident: $kind:ident),*; $comm:ident) [$($arrays:tt)*]) => {
        functions!(
            $fortran Some(Feature::Nonblocking), collectives::$c,
            ($($argument: $kind,)* $comm: comm, info: info, request: request) Arrays::$($arrays)*.lengths($comm)
        );
    };
}

functions::collectives!(declare);

functions!(
    [mpi_barrier_ ompi_barrier_f] Some(Feature::Collectives), collectives::MPI_Barrier, (comm: comm) ()
);
functions!(
    [mpi_pack_ ompi_pack_f] Some(Feature::Packing), collectives::MPI_Pack,
    (input: input, count: count, kind: datatype, output: output, size: count, position: position,
     comm: comm) ()
);
functions!(
    [mpi_unpack_ ompi_unpack_f] Some(Feature::Packing), collectives::MPI_Unpack,
    (input: input, size: count, position: position, output: output, count: count, kind: datatype,
     comm: comm) ()
);
// Freeing a type belongs to nothing that is switched off.
functions!(
    [mpi_type_free_ ompi_type_free_f] None, datatype::free_of_fortran, (datatype: variable) ()
);

/// `MPI_FINALIZE`: ours first, where the Fortran library does not come to C's function, then the
/// next one of the same name.
macro_rules! finalize {
    ($($name:ident)*) => { $(
        /// The Fortran function of this name.
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(error: *mut c_int) {
            function!(NEXT = symbol_name!(stringify!($name)));
            let is_past_us = past_us();
            if is_past_us {
                crate::library::world_model::begin_end();
            }
            let address = NEXT.address();
            if address != 0 {
                // SAFETY: the MPI library's function of this name has this type.
                unsafe {
                    let call: unsafe extern "C-unwind" fn(*mut c_int) = std::mem::transmute(address);
                    call(error);
                }
            }
            if is_past_us {
                crate::library::world_model::finish_end();
            }
        }
    )* };
}

finalize! { mpi_finalize_ ompi_finalize_f }
