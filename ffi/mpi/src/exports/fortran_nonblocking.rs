// SPDX-License-Identifier: MIT OR Apache-2.0

//! Nonblocking collectives as Fortran calls them under Open MPI (see [`crate::exports::fortran`]):
//! requests are numbers there.

use std::ffi::{c_int, c_void};

use crate::library::abi::Word;
use crate::library::pmpi;

/// Declares functions with a request of Fortran's.
macro_rules! functions {
    ($($name:ident = $c:ident($($argument:ident: $kind:ty),*);)*) => { $(
        /// The C function of this name, with a request of Fortran's.
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name($($argument: $kind,)* request: *mut c_int) -> c_int {
            unsafe extern "C" {
                fn $c($($argument: $kind,)* request: *mut c_void) -> c_int;
            }
            let mut handle: Word = 0;
            // SAFETY: the caller's promise.
            unsafe {
                let code = $c($($argument,)* (&raw mut handle).cast());
                if code == 0 {
                    *request = pmpi::request_c2f(handle);
                }
                code
            }
        }
    )* };
}

functions! {
    ibcast = MPI_Ibcast(buffer: *mut c_void, count: c_int, datatype: Word, root: c_int, comm: Word);
    igather = MPI_Igather(
        send: *const c_void, send_count: c_int, send_type: Word, recv: *mut c_void,
        recv_count: c_int, recv_type: Word, root: c_int, comm: Word
    );
    iscatter = MPI_Iscatter(
        send: *const c_void, send_count: c_int, send_type: Word, recv: *mut c_void,
        recv_count: c_int, recv_type: Word, root: c_int, comm: Word
    );
    iallgather = MPI_Iallgather(
        send: *const c_void, send_count: c_int, send_type: Word, recv: *mut c_void,
        recv_count: c_int, recv_type: Word, comm: Word
    );
    ialltoall = MPI_Ialltoall(
        send: *const c_void, send_count: c_int, send_type: Word, recv: *mut c_void,
        recv_count: c_int, recv_type: Word, comm: Word
    );
    ireduce = MPI_Ireduce(
        send: *const c_void, recv: *mut c_void, count: c_int, datatype: Word, op: Word, root: c_int,
        comm: Word
    );
    iallreduce = MPI_Iallreduce(
        send: *const c_void, recv: *mut c_void, count: c_int, datatype: Word, op: Word, comm: Word
    );
}
