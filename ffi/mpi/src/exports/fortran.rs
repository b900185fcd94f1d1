// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fortran callers (`mpif.h`, `use mpi`, `use mpi_f08`).
//!
//! MPICH's Fortran functions call `MPI_Bcast` and so on, which are ours. Open MPI's call
//! `PMPI_Bcast`, past us, so there we are the Fortran functions: `mpi_bcast_`, and `ompi_bcast_f`,
//! which `use mpi_f08` comes to. They turn Fortran's handles and special addresses into C's.

use std::ffi::{CStr, c_int, c_void};

use crate::collectives::{barrier, irregular, neighbours, reductions, regular};
use crate::exports::fortran_nonblocking;
use crate::library::abi::function;
use crate::library::tools::Feature;
use crate::library::{pmpi, tools};
use crate::packing::pack;
use crate::types::datatype;
use crate::types::fortran_names::{buffer, past_us};

/// What an argument is in Fortran.
macro_rules! type_in_fortran {
    (buffer) => { *mut c_void };
    (place) => { *mut c_int };
    ($other:ident) => { *const c_int };
}

/// The same argument for C.
macro_rules! value_in_c {
    (buffer, $argument:ident) => {
        buffer($argument)
    };
    (integer, $argument:ident) => {
        *$argument
    };
    (integers, $argument:ident) => {
        $argument
    };
    (place, $argument:ident) => {
        $argument
    };
    (datatype, $argument:ident) => {
        pmpi::type_f2c(*$argument)
    };
    (operation, $argument:ident) => {
        pmpi::op_f2c(*$argument)
    };
    (comm, $argument:ident) => {
        pmpi::comm_f2c(*$argument)
    };
}

/// What a Fortran function belongs to, by its name; freeing a type belongs to nothing that is
/// switched off.
const fn feature(name: &CStr) -> Option<Feature> {
    let name = name.to_bytes();
    let start = if name[0] == b'o' { 5 } else { 4 };
    match name[start] {
        b'i' => Some(Feature::Nonblocking),
        b'p' | b'u' => Some(Feature::Packing),
        b't' => None,
        _ => Some(Feature::Collectives),
    }
}

/// Declares Fortran functions under both names; where we are not needed, or a tool wraps what they
/// belong to, the next ones of these names are called.
macro_rules! functions {
    ($($name:ident, $inner:ident => $c:path, ($($argument:ident: $kind:ident),*);)*) => { $(
        functions! { @one $name => $c, ($($argument: $kind),*) }
        functions! { @one $inner => $c, ($($argument: $kind),*) }
    )* };
    (@one $name:ident => $c:path, ($($argument:ident: $kind:ident),*)) => {
        /// The Fortran function of this name.
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[allow(clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            $($argument: type_in_fortran!($kind),)*
            error: *mut c_int,
        ) {
            const NAME: &CStr =
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zeros"),
                };
            function!(NEXT = NAME);
            if !past_us() || feature(NAME).and_then(tools::wrapped).is_some() {
                match NEXT.address() {
                    0 => return,
                    address => {
                        // SAFETY: the MPI library's function of this name has this type.
                        return unsafe {
                            let call: unsafe extern "C" fn(
                                $(type_in_fortran!($kind),)* *mut c_int
                            ) = std::mem::transmute(address);
                            call($($argument,)* error)
                        };
                    }
                }
            }
            // SAFETY: the caller's promise: Fortran gives the addresses of its arguments.
            unsafe {
                let code = $c($(value_in_c!($kind, $argument)),*);
                if !error.is_null() {
                    *error = code;
                }
            }
        }
    };
}

functions! {
    mpi_barrier_, ompi_barrier_f => barrier::barrier, (comm: comm);
    mpi_ibcast_, ompi_ibcast_f => fortran_nonblocking::ibcast,
        (data: buffer, count: integer, kind: datatype, root: integer, comm: comm, request: place);
    mpi_igather_, ompi_igather_f => fortran_nonblocking::igather,
        (send: buffer, send_count: integer, send_type: datatype,
         recv: buffer, recv_count: integer, recv_type: datatype, root: integer, comm: comm,
         request: place);
    mpi_iscatter_, ompi_iscatter_f => fortran_nonblocking::iscatter,
        (send: buffer, send_count: integer, send_type: datatype,
         recv: buffer, recv_count: integer, recv_type: datatype, root: integer, comm: comm,
         request: place);
    mpi_iallgather_, ompi_iallgather_f => fortran_nonblocking::iallgather,
        (send: buffer, send_count: integer, send_type: datatype,
         recv: buffer, recv_count: integer, recv_type: datatype, comm: comm, request: place);
    mpi_ialltoall_, ompi_ialltoall_f => fortran_nonblocking::ialltoall,
        (send: buffer, send_count: integer, send_type: datatype,
         recv: buffer, recv_count: integer, recv_type: datatype, comm: comm, request: place);
    mpi_ireduce_, ompi_ireduce_f => fortran_nonblocking::ireduce,
        (send: buffer, recv: buffer, count: integer, kind: datatype, op: operation,
         root: integer, comm: comm, request: place);
    mpi_iallreduce_, ompi_iallreduce_f => fortran_nonblocking::iallreduce,
        (send: buffer, recv: buffer, count: integer, kind: datatype, op: operation, comm: comm,
         request: place);
    mpi_bcast_, ompi_bcast_f => regular::bcast,
        (data: buffer, count: integer, kind: datatype, root: integer, comm: comm);
    mpi_gather_, ompi_gather_f => regular::gather,
        (send: buffer, send_count: integer, send_type: datatype,
         recv: buffer, recv_count: integer, recv_type: datatype, root: integer, comm: comm);
    mpi_gatherv_, ompi_gatherv_f => irregular::gatherv,
        (send: buffer, send_count: integer, send_type: datatype,
         recv: buffer, counts: integers, places: integers, recv_type: datatype,
         root: integer, comm: comm);
    mpi_scatter_, ompi_scatter_f => regular::scatter,
        (send: buffer, send_count: integer, send_type: datatype,
         recv: buffer, recv_count: integer, recv_type: datatype, root: integer, comm: comm);
    mpi_scatterv_, ompi_scatterv_f => irregular::scatterv,
        (send: buffer, counts: integers, places: integers, send_type: datatype,
         recv: buffer, recv_count: integer, recv_type: datatype, root: integer, comm: comm);
    mpi_allgather_, ompi_allgather_f => regular::allgather,
        (send: buffer, send_count: integer, send_type: datatype,
         recv: buffer, recv_count: integer, recv_type: datatype, comm: comm);
    mpi_allgatherv_, ompi_allgatherv_f => irregular::allgatherv,
        (send: buffer, send_count: integer, send_type: datatype,
         recv: buffer, counts: integers, places: integers, recv_type: datatype, comm: comm);
    mpi_alltoall_, ompi_alltoall_f => regular::alltoall,
        (send: buffer, send_count: integer, send_type: datatype,
         recv: buffer, recv_count: integer, recv_type: datatype, comm: comm);
    mpi_alltoallv_, ompi_alltoallv_f => irregular::alltoallv,
        (send: buffer, send_counts: integers, send_places: integers, send_type: datatype,
         recv: buffer, recv_counts: integers, recv_places: integers, recv_type: datatype,
         comm: comm);
    mpi_reduce_, ompi_reduce_f => reductions::reduce,
        (send: buffer, recv: buffer, count: integer, kind: datatype, op: operation,
         root: integer, comm: comm);
    mpi_allreduce_, ompi_allreduce_f => reductions::allreduce,
        (send: buffer, recv: buffer, count: integer, kind: datatype, op: operation, comm: comm);
    mpi_reduce_scatter_, ompi_reduce_scatter_f => reductions::reduce_scatter,
        (send: buffer, recv: buffer, counts: integers, kind: datatype, op: operation,
         comm: comm);
    mpi_reduce_scatter_block_, ompi_reduce_scatter_block_f =>
        reductions::reduce_scatter_block,
        (send: buffer, recv: buffer, count: integer, kind: datatype, op: operation, comm: comm);
    mpi_neighbor_alltoall_, ompi_neighbor_alltoall_f => neighbours::neighbor_alltoall,
        (send: buffer, send_count: integer, send_type: datatype,
         recv: buffer, recv_count: integer, recv_type: datatype, comm: comm);
    mpi_neighbor_alltoallv_, ompi_neighbor_alltoallv_f => neighbours::neighbor_alltoallv,
        (send: buffer, send_counts: integers, send_places: integers, send_type: datatype,
         recv: buffer, recv_counts: integers, recv_places: integers, recv_type: datatype,
         comm: comm);
    mpi_pack_, ompi_pack_f => pack::pack,
        (input: buffer, count: integer, kind: datatype, output: buffer, size: integer,
         position: place, comm: comm);
    mpi_unpack_, ompi_unpack_f => pack::unpack,
        (input: buffer, size: integer, position: place, output: buffer, count: integer,
         kind: datatype, comm: comm);
    mpi_type_free_, ompi_type_free_f => datatype::free_of_fortran, (datatype: place);
}

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
        pub unsafe extern "C" fn $name(error: *mut c_int) {
            const NAME: &CStr =
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zeros"),
                };
            function!(NEXT = NAME);
            let is_past_us = past_us();
            if is_past_us {
                crate::library::world_model::begin_end();
            }
            let address = NEXT.address();
            if address != 0 {
                // SAFETY: the MPI library's function of this name has this type.
                unsafe {
                    let call: unsafe extern "C" fn(*mut c_int) = std::mem::transmute(address);
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
