// SPDX-License-Identifier: MIT OR Apache-2.0

//! Point-to-point functions of the MPI library, in both their forms, and what starts requests.

use std::ffi::{c_int, c_void};

use crate::library::abi::{Word, complain, function};
use crate::library::async_guard;
use crate::library::count::Count;
use crate::library::pmpi::functions::{MISSING, start_settled};

/// `MPI_Start`
///
/// # Safety
///
/// As the MPI standard says.
pub unsafe fn start(request: *mut c_void) -> c_int {
    match async_guard::before() {
        // SAFETY: the caller's promise.
        Ok(()) => unsafe { start_settled(request) },
        Err(code) => code,
    }
}

/// Declares functions in both their forms; where a library has no form for large counts, the other
/// one does what it can. `or` gives the name that a function had in a library before it was in the
/// standard.
macro_rules! messages {
    (mod $module:ident: $($all:tt)*) => {
        messages!(@with address if_any known_address; $($all)*);

        pub mod $module {
            use super::*;

            messages!(@with next next_if_any known_next; $($all)*);
        }
    };
    (@with $address:ident $if_any:ident $known:ident;
     $($(#[$doc:meta])* $rust:ident = $name:literal $(or $before:literal)?, $large:literal
       ($($argument:ident: $kind:ident),*);)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        ///
        /// As the MPI standard says.
        #[allow(clippy::too_many_arguments)]
        #[inline]
        // Not every function is called both for the program and by us.
        #[allow(dead_code)]
        pub unsafe fn $rust<N: Count>($($argument: message_kind!($kind)),*) -> c_int {
            function!(FUNCTION = $name);
            function!(LARGE = $large);
            /// The same where something is pending, or the function has not been looked for.
            #[cold]
            #[inline(never)]
            #[allow(clippy::too_many_arguments)]
            unsafe extern "C" fn unusual<N: Count>($($argument: message_kind!($kind)),*) -> c_int {
                if let Err(code) = async_guard::before() {
                    return code;
                }
                let function = || {
                    $(
                        function!(BEFORE = $before);
                        if FUNCTION.$if_any() == 0 {
                            return BEFORE.$address();
                        }
                    )?
                    FUNCTION.$address()
                };
                let own = if N::LARGE { LARGE.$if_any() } else { function() };
                if own != 0 {
                    // SAFETY: the MPI library's function of this name has this type.
                    return unsafe {
                        let call: unsafe extern "C" fn($(message_kind!($kind)),*) -> c_int =
                            std::mem::transmute(own);
                        call($($argument),*)
                    };
                }
                let narrow = || {
                    let address = function();
                    if !N::LARGE || address == 0 {
                        return None;
                    }
                    $(let $argument = message_narrowed!($kind, $argument)?;)*
                    // SAFETY: the MPI library's function of this name has this type.
                    Some(unsafe {
                        let call: unsafe extern "C" fn($(narrow_message_kind!($kind)),*) -> c_int =
                            std::mem::transmute(address);
                        call($($argument),*)
                    })
                };
                narrow().unwrap_or_else(|| {
                    complain(concat!("no MPI library has ", stringify!($rust), " for this"));
                    MISSING
                })
            }
            // One call in any case, which is but a jump.
            let own = if N::LARGE { LARGE.$known() } else { FUNCTION.$known() };
            let call: unsafe extern "C" fn($(message_kind!($kind)),*) -> c_int =
                if own == 0 || async_guard::is_needed() {
                    unusual::<N>
                } else {
                    // SAFETY: the MPI library's function of this name has this type.
                    unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($(message_kind!($kind)),*) -> c_int>(own) }
                };
            // SAFETY: the caller's promise.
            unsafe { call($($argument),*) }
        }
    )* };
}

/// What an argument of a point-to-point function is.
macro_rules! message_kind {
    (input) => { *const c_void };
    (output) => { *mut c_void };
    (count) => { N };
    (handle) => { Word };
    (number) => { c_int };
}

/// What the same argument is where `int`s count.
macro_rules! narrow_message_kind {
    (count) => {
        c_int
    };
    ($other:ident) => {
        message_kind!($other)
    };
}

/// An argument as that; `None` if it does not fit.
macro_rules! message_narrowed {
    (count, $argument:ident) => {
        $argument.narrow()
    };
    ($other:ident, $argument:ident) => {
        Some($argument)
    };
}

messages! { mod forwarded_messages:
    /// `MPI_Send`
    send = c"PMPI_Send", c"PMPI_Send_c"(
        buffer: input, count: count, datatype: handle, dest: number, tag: number, comm: handle
    );
    /// `MPI_Ssend`
    ssend = c"PMPI_Ssend", c"PMPI_Ssend_c"(
        buffer: input, count: count, datatype: handle, dest: number, tag: number, comm: handle
    );
    /// `MPI_Isend`
    isend = c"PMPI_Isend", c"PMPI_Isend_c"(
        buffer: input, count: count, datatype: handle, dest: number, tag: number, comm: handle,
        request: output
    );
    /// `MPI_Issend`
    issend = c"PMPI_Issend", c"PMPI_Issend_c"(
        buffer: input, count: count, datatype: handle, dest: number, tag: number, comm: handle,
        request: output
    );
    /// `MPI_Recv`
    recv = c"PMPI_Recv", c"PMPI_Recv_c"(
        buffer: output, count: count, datatype: handle, source: number, tag: number,
        comm: handle, status: output
    );
    /// `MPI_Irecv`
    irecv = c"PMPI_Irecv", c"PMPI_Irecv_c"(
        buffer: output, count: count, datatype: handle, source: number, tag: number,
        comm: handle, request: output
    );
    /// `MPI_Sendrecv`
    sendrecv = c"PMPI_Sendrecv", c"PMPI_Sendrecv_c"(
        send: input, send_count: count, send_type: handle, dest: number, send_tag: number,
        recv: output, recv_count: count, recv_type: handle, source: number, recv_tag: number,
        comm: handle, status: output
    );
    /// `MPI_Sendrecv_replace`
    sendrecv_replace = c"PMPI_Sendrecv_replace", c"PMPI_Sendrecv_replace_c"(
        buffer: output, count: count, datatype: handle, dest: number, send_tag: number,
        source: number, recv_tag: number, comm: handle, status: output
    );
    /// `MPI_Isendrecv`
    isendrecv = c"PMPI_Isendrecv", c"PMPI_Isendrecv_c"(
        send: input, send_count: count, send_type: handle, dest: number, send_tag: number,
        recv: output, recv_count: count, recv_type: handle, source: number, recv_tag: number,
        comm: handle, request: output
    );
    /// `MPI_Isendrecv_replace`
    isendrecv_replace = c"PMPI_Isendrecv_replace", c"PMPI_Isendrecv_replace_c"(
        buffer: output, count: count, datatype: handle, dest: number, send_tag: number,
        source: number, recv_tag: number, comm: handle, request: output
    );
    /// `MPI_Send_init`
    send_init = c"PMPI_Send_init", c"PMPI_Send_init_c"(
        buffer: input, count: count, datatype: handle, dest: number, tag: number, comm: handle,
        request: output
    );
    /// `MPI_Ssend_init`
    ssend_init = c"PMPI_Ssend_init", c"PMPI_Ssend_init_c"(
        buffer: input, count: count, datatype: handle, dest: number, tag: number, comm: handle,
        request: output
    );
    /// `MPI_Recv_init`
    recv_init = c"PMPI_Recv_init", c"PMPI_Recv_init_c"(
        buffer: output, count: count, datatype: handle, source: number, tag: number,
        comm: handle, request: output
    );
    /// `MPI_Ibcast`
    ibcast = c"PMPI_Ibcast", c"PMPI_Ibcast_c"(
        buffer: output, count: count, datatype: handle, root: number, comm: handle, request: output
    );
    /// `MPI_Igather`
    igather = c"PMPI_Igather", c"PMPI_Igather_c"(
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, root: number, comm: handle,
        request: output
    );
    /// `MPI_Iscatter`
    iscatter = c"PMPI_Iscatter", c"PMPI_Iscatter_c"(
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, root: number, comm: handle,
        request: output
    );
    /// `MPI_Iallgather`
    iallgather = c"PMPI_Iallgather", c"PMPI_Iallgather_c"(
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, comm: handle, request: output
    );
    /// `MPI_Ialltoall`
    ialltoall = c"PMPI_Ialltoall", c"PMPI_Ialltoall_c"(
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, comm: handle, request: output
    );
    /// `MPI_Ireduce`
    ireduce = c"PMPI_Ireduce", c"PMPI_Ireduce_c"(
        send: input, recv: output, count: count, datatype: handle, op: handle, root: number,
        comm: handle, request: output
    );
    /// `MPI_Iallreduce`
    iallreduce = c"PMPI_Iallreduce", c"PMPI_Iallreduce_c"(
        send: input, recv: output, count: count, datatype: handle, op: handle, comm: handle,
        request: output
    );
    /// `MPI_Bcast_init`
    bcast_init = c"PMPI_Bcast_init" or c"PMPIX_Bcast_init", c"PMPI_Bcast_init_c"(
        buffer: output, count: count, datatype: handle, root: number, comm: handle,
        info: handle, request: output
    );
    /// `MPI_Gather_init`
    gather_init = c"PMPI_Gather_init" or c"PMPIX_Gather_init", c"PMPI_Gather_init_c"(
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, root: number, comm: handle,
        info: handle, request: output
    );
    /// `MPI_Scatter_init`
    scatter_init = c"PMPI_Scatter_init" or c"PMPIX_Scatter_init", c"PMPI_Scatter_init_c"(
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, root: number, comm: handle,
        info: handle, request: output
    );
    /// `MPI_Allgather_init`
    allgather_init = c"PMPI_Allgather_init" or c"PMPIX_Allgather_init", c"PMPI_Allgather_init_c"(
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, comm: handle,
        info: handle, request: output
    );
    /// `MPI_Alltoall_init`
    alltoall_init = c"PMPI_Alltoall_init" or c"PMPIX_Alltoall_init", c"PMPI_Alltoall_init_c"(
        send: input, send_count: count, send_type: handle,
        recv: output, recv_count: count, recv_type: handle, comm: handle,
        info: handle, request: output
    );
    /// `MPI_Reduce_init`
    reduce_init = c"PMPI_Reduce_init" or c"PMPIX_Reduce_init", c"PMPI_Reduce_init_c"(
        send: input, recv: output, count: count, datatype: handle, op: handle, root: number, comm: handle,
        info: handle, request: output
    );
    /// `MPI_Allreduce_init`
    allreduce_init = c"PMPI_Allreduce_init" or c"PMPIX_Allreduce_init", c"PMPI_Allreduce_init_c"(
        send: input, recv: output, count: count, datatype: handle, op: handle, comm: handle,
        info: handle, request: output
    );
    /// `MPI_Mrecv`
    mrecv = c"PMPI_Mrecv", c"PMPI_Mrecv_c"(
        buffer: output, count: count, datatype: handle, message: output, status: output
    );
    /// `MPI_Imrecv`
    imrecv = c"PMPI_Imrecv", c"PMPI_Imrecv_c"(
        buffer: output, count: count, datatype: handle, message: output, request: output
    );
}
