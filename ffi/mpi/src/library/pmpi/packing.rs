// SPDX-License-Identifier: MIT OR Apache-2.0

//! Functions of the MPI library that pack and unpack, in both their forms.

use std::ffi::{c_char, c_int, c_void};

use crate::library::abi::{Word, complain, function};
use crate::library::count::Count;
use crate::library::pmpi::both_forms::refuse;
use crate::library::pmpi::functions::{MISSING, forwarded_packing};
use crate::library::{abi, world_model};

/// A function that moves a position, in the form in which it is called if the library has that; the
/// other one does what it can.
///
/// # Safety
///
/// The position is the caller's variable.
unsafe fn moving<N: Count>(
    (own, position): (usize, *mut N),
    (name, comm): (&str, Word),
    call: impl FnOnce(usize) -> c_int,
    narrow: impl FnOnce(*mut c_int) -> Option<c_int>,
) -> c_int {
    if own != 0 {
        return call(own);
    }
    let moved = || {
        if position.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let mut place = position.read().narrow()?;
            let code = narrow(&raw mut place)?;
            position.write(N::of(usize::try_from(place).ok()?)?);
            Some(code)
        }
    };
    moved().unwrap_or_else(|| refuse(&format!("no MPI library has {name} for this"), Some(&comm)))
}

/// `MPI_Pack` in both its forms.
///
/// # Safety
///
/// As the MPI standard says.
#[allow(clippy::too_many_arguments)]
pub unsafe fn pack_any<N: Count>(
    input: *const c_void,
    count: N,
    datatype: Word,
    output: *mut c_void,
    size: N,
    position: *mut N,
    comm: Word,
) -> c_int {
    type Call<N> =
        unsafe extern "C" fn(*const c_void, N, Word, *mut c_void, N, *mut N, Word) -> c_int;
    function!(FUNCTION = c"PMPI_Pack");
    function!(LARGE = c"PMPI_Pack_c");
    let own = if N::LARGE {
        LARGE.next_if_any()
    } else {
        FUNCTION.next()
    };
    // SAFETY: the MPI library's function of this name has this type; the caller's promise.
    unsafe {
        moving(
            (own, position),
            ("MPI_Pack_c", comm),
            |own| {
                let call: Call<N> = std::mem::transmute(own);
                call(input, count, datatype, output, size, position, comm)
            },
            |place| {
                let (count, size) = (count.narrow()?, size.narrow()?);
                Some(forwarded_packing::pack(
                    input, count, datatype, output, size, place, comm,
                ))
            },
        )
    }
}

/// `MPI_Unpack` in the same way.
///
/// # Safety
///
/// As the MPI standard says.
#[allow(clippy::too_many_arguments)]
pub unsafe fn unpack_any<N: Count>(
    input: *const c_void,
    size: N,
    position: *mut N,
    output: *mut c_void,
    count: N,
    datatype: Word,
    comm: Word,
) -> c_int {
    type Call<N> =
        unsafe extern "C" fn(*const c_void, N, *mut N, *mut c_void, N, Word, Word) -> c_int;
    function!(FUNCTION = c"PMPI_Unpack");
    function!(LARGE = c"PMPI_Unpack_c");
    let own = if N::LARGE {
        LARGE.next_if_any()
    } else {
        FUNCTION.next()
    };
    // SAFETY: the MPI library's function of this name has this type; the caller's promise.
    unsafe {
        moving(
            (own, position),
            ("MPI_Unpack_c", comm),
            |own| {
                let call: Call<N> = std::mem::transmute(own);
                call(input, size, position, output, count, datatype, comm)
            },
            |place| {
                let (count, size) = (count.narrow()?, size.narrow()?);
                Some(forwarded_packing::unpack(
                    input, size, place, output, count, datatype, comm,
                ))
            },
        )
    }
}

/// `MPI_Pack_external` in both its forms, whose sizes are as wide.
///
/// # Safety
///
/// As the MPI standard says.
#[allow(clippy::too_many_arguments)]
pub unsafe fn pack_external_any<N: Count>(
    name: *const c_char,
    input: *const c_void,
    count: N,
    datatype: Word,
    output: *mut c_void,
    size: isize,
    position: *mut isize,
) -> c_int {
    type Call<N> = unsafe extern "C" fn(
        *const c_char,
        *const c_void,
        N,
        Word,
        *mut c_void,
        isize,
        *mut isize,
    ) -> c_int;
    function!(FUNCTION = c"PMPI_Pack_external");
    function!(LARGE = c"PMPI_Pack_external_c");
    // SAFETY: the MPI library's functions of these names have these types; the caller's promise.
    unsafe {
        if N::LARGE && LARGE.next_if_any() != 0 {
            let call: Call<N> = std::mem::transmute(LARGE.next());
            return call(name, input, count, datatype, output, size, position);
        }
        match (FUNCTION.next(), count.narrow()) {
            (0, _) | (_, None) => refuse_anywhere("no MPI library has MPI_Pack_external for this"),
            (own, Some(count)) => {
                let call: Call<c_int> = std::mem::transmute(own);
                call(name, input, count, datatype, output, size, position)
            }
        }
    }
}

/// `MPI_Unpack_external` in the same way.
///
/// # Safety
///
/// As the MPI standard says.
#[allow(clippy::too_many_arguments)]
pub unsafe fn unpack_external_any<N: Count>(
    name: *const c_char,
    input: *const c_void,
    size: isize,
    position: *mut isize,
    output: *mut c_void,
    count: N,
    datatype: Word,
) -> c_int {
    type Call<N> = unsafe extern "C" fn(
        *const c_char,
        *const c_void,
        isize,
        *mut isize,
        *mut c_void,
        N,
        Word,
    ) -> c_int;
    function!(FUNCTION = c"PMPI_Unpack_external");
    function!(LARGE = c"PMPI_Unpack_external_c");
    // SAFETY: the MPI library's functions of these names have these types; the caller's promise.
    unsafe {
        if N::LARGE && LARGE.next_if_any() != 0 {
            let call: Call<N> = std::mem::transmute(LARGE.next());
            return call(name, input, size, position, output, count, datatype);
        }
        match (FUNCTION.next(), count.narrow()) {
            (0, _) | (_, None) => {
                refuse_anywhere("no MPI library has MPI_Unpack_external for this")
            }
            (own, Some(count)) => {
                let call: Call<c_int> = std::mem::transmute(own);
                call(name, input, size, position, output, count, datatype)
            }
        }
    }
}

/// Has the error handler of `MPI_COMM_WORLD` hear of a call without a communicator that nobody can
/// do.
#[cold]
fn refuse_anywhere(why: &str) -> c_int {
    match abi::get() {
        Ok(abi) if world_model::is_active() => refuse(why, Some(&abi.world)),
        _ => {
            complain(why);
            MISSING
        }
    }
}
