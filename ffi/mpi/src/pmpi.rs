// SPDX-License-Identifier: MIT OR Apache-2.0

//! The functions of the MPI library that we call, by their profiling names (MPI 4.1, section 15.2).

use std::ffi::{c_int, c_void};

use crate::abi::{Function, Word};

/// Declares functions that are called through the library's address. One that is missing answers
/// with an error code that no library uses for success.
macro_rules! functions {
    ($($(#[$doc:meta])* $rust:ident = $name:literal ($($argument:ident: $kind:ty),*);)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            ///
            /// As the MPI standard says.
            #[allow(clippy::too_many_arguments)]
            pub unsafe fn $rust($($argument: $kind),*) -> c_int {
                static FUNCTION: Function = Function::new($name);
                match FUNCTION.address() {
                    0 => MISSING,
                    address => {
                        // SAFETY: the MPI library's function of this name has this type.
                        unsafe {
                            let call: unsafe extern "C" fn($($kind),*) -> c_int =
                                std::mem::transmute(address);
                            call($($argument),*)
                        }
                    }
                }
            }
        )*
    };
}

/// Handles of Open MPI's Fortran as C's. No handle that is not one becomes one.
macro_rules! conversions {
    ($($(#[$doc:meta])* $rust:ident = $name:literal;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        pub unsafe fn $rust(handle: c_int) -> Word {
            static FUNCTION: Function = Function::new($name);
            match FUNCTION.address() {
                0 => 0,
                address => {
                    // SAFETY: the MPI library's function of this name has this type.
                    unsafe {
                        let call: unsafe extern "C" fn(c_int) -> Word =
                            std::mem::transmute(address);
                        call(handle)
                    }
                }
            }
        }
    )* };
}

conversions! {
    /// `MPI_Comm_f2c`
    comm_f2c = c"PMPI_Comm_f2c";
    /// `MPI_Type_f2c`
    type_f2c = c"PMPI_Type_f2c";
    /// `MPI_Op_f2c`
    op_f2c = c"PMPI_Op_f2c";
}

/// What a function that is not there answers: `MPI_ERR_OTHER` of Open MPI.
const MISSING: c_int = 16;

/// `MPI_Comm_copy_attr_function`
pub type CopyAttribute =
    unsafe extern "C" fn(Word, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
/// `MPI_Comm_delete_attr_function`
pub type DeleteAttribute = unsafe extern "C" fn(Word, c_int, *mut c_void, *mut c_void) -> c_int;

functions! {
    /// `MPI_Finalize`
    finalize = c"PMPI_Finalize"();
    /// `MPI_Bcast`
    bcast = c"PMPI_Bcast"(
        buffer: *mut c_void, count: c_int, datatype: Word, root: c_int, comm: Word
    );
    /// `MPI_Gather`
    gather = c"PMPI_Gather"(
        send: *const c_void, send_count: c_int, send_type: Word,
        recv: *mut c_void, recv_count: c_int, recv_type: Word, root: c_int, comm: Word
    );
    /// `MPI_Scatter`
    scatter = c"PMPI_Scatter"(
        send: *const c_void, send_count: c_int, send_type: Word,
        recv: *mut c_void, recv_count: c_int, recv_type: Word, root: c_int, comm: Word
    );
    /// `MPI_Allgather`
    allgather = c"PMPI_Allgather"(
        send: *const c_void, send_count: c_int, send_type: Word,
        recv: *mut c_void, recv_count: c_int, recv_type: Word, comm: Word
    );
    /// `MPI_Gatherv`
    gatherv = c"PMPI_Gatherv"(
        send: *const c_void, send_count: c_int, send_type: Word,
        recv: *mut c_void, counts: *const c_int, places: *const c_int, recv_type: Word,
        root: c_int, comm: Word
    );
    /// `MPI_Scatterv`
    scatterv = c"PMPI_Scatterv"(
        send: *const c_void, counts: *const c_int, places: *const c_int, send_type: Word,
        recv: *mut c_void, recv_count: c_int, recv_type: Word, root: c_int, comm: Word
    );
    /// `MPI_Allgatherv`
    allgatherv = c"PMPI_Allgatherv"(
        send: *const c_void, send_count: c_int, send_type: Word,
        recv: *mut c_void, counts: *const c_int, places: *const c_int, recv_type: Word,
        comm: Word
    );
    /// `MPI_Alltoall`
    alltoall = c"PMPI_Alltoall"(
        send: *const c_void, send_count: c_int, send_type: Word,
        recv: *mut c_void, recv_count: c_int, recv_type: Word, comm: Word
    );
    /// `MPI_Alltoallv`
    alltoallv = c"PMPI_Alltoallv"(
        send: *const c_void, send_counts: *const c_int, send_places: *const c_int,
        send_type: Word,
        recv: *mut c_void, recv_counts: *const c_int, recv_places: *const c_int,
        recv_type: Word, comm: Word
    );
    /// `MPI_Alltoallw`; arrays of datatypes are arrays of handles, whatever these are.
    alltoallw = c"PMPI_Alltoallw"(
        send: *const c_void, send_counts: *const c_int, send_places: *const c_int,
        send_types: *const c_void,
        recv: *mut c_void, recv_counts: *const c_int, recv_places: *const c_int,
        recv_types: *const c_void, comm: Word
    );
    /// `MPI_Reduce`
    reduce = c"PMPI_Reduce"(
        send: *const c_void, recv: *mut c_void, count: c_int, datatype: Word, op: Word,
        root: c_int, comm: Word
    );
    /// `MPI_Allreduce`
    allreduce = c"PMPI_Allreduce"(
        send: *const c_void, recv: *mut c_void, count: c_int, datatype: Word, op: Word,
        comm: Word
    );
    /// `MPI_Reduce_scatter`
    reduce_scatter = c"PMPI_Reduce_scatter"(
        send: *const c_void, recv: *mut c_void, counts: *const c_int, datatype: Word, op: Word,
        comm: Word
    );
    /// `MPI_Reduce_scatter_block`
    reduce_scatter_block = c"PMPI_Reduce_scatter_block"(
        send: *const c_void, recv: *mut c_void, count: c_int, datatype: Word, op: Word,
        comm: Word
    );
    /// `MPI_Reduce_local`
    reduce_local = c"PMPI_Reduce_local"(
        from: *const c_void, to: *mut c_void, count: c_int, datatype: Word, op: Word
    );
    /// `MPI_Comm_rank`
    comm_rank = c"PMPI_Comm_rank"(comm: Word, rank: *mut c_int);
    /// `MPI_Comm_size`
    comm_size = c"PMPI_Comm_size"(comm: Word, size: *mut c_int);
    /// `MPI_Comm_test_inter`
    comm_test_inter = c"PMPI_Comm_test_inter"(comm: Word, flag: *mut c_int);
    /// `MPI_Comm_split_type`
    comm_split_type = c"PMPI_Comm_split_type"(
        comm: Word, kind: c_int, key: c_int, info: Word, new: *mut Word
    );
    /// `MPI_Comm_free`
    comm_free = c"PMPI_Comm_free"(comm: *mut Word);
    /// `MPI_Comm_create_keyval`
    comm_create_keyval = c"PMPI_Comm_create_keyval"(
        copy: CopyAttribute, delete: DeleteAttribute, keyval: *mut c_int, extra: *mut c_void
    );
    /// `MPI_Comm_get_attr`
    comm_get_attr = c"PMPI_Comm_get_attr"(
        comm: Word, keyval: c_int, value: *mut *mut c_void, flag: *mut c_int
    );
    /// `MPI_Comm_set_attr`
    comm_set_attr = c"PMPI_Comm_set_attr"(comm: Word, keyval: c_int, value: *mut c_void);
    /// `MPI_Comm_call_errhandler`
    comm_call_errhandler = c"PMPI_Comm_call_errhandler"(comm: Word, code: c_int);
    /// `MPI_Type_size_x`
    type_size = c"PMPI_Type_size_x"(datatype: Word, size: *mut i64);
    /// `MPI_Type_get_extent`
    type_get_extent = c"PMPI_Type_get_extent"(
        datatype: Word, lower_bound: *mut isize, extent: *mut isize
    );
    /// `MPI_Type_get_envelope`
    type_get_envelope = c"PMPI_Type_get_envelope"(
        datatype: Word, integers: *mut c_int, addresses: *mut c_int, types: *mut c_int,
        combiner: *mut c_int
    );
    /// `MPI_Pack`
    pack = c"PMPI_Pack"(
        input: *const c_void, count: c_int, datatype: Word,
        output: *mut c_void, size: c_int, position: *mut c_int, comm: Word
    );
    /// `MPI_Unpack`
    unpack = c"PMPI_Unpack"(
        input: *const c_void, size: c_int, position: *mut c_int,
        output: *mut c_void, count: c_int, datatype: Word, comm: Word
    );
}
