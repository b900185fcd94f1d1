// SPDX-License-Identifier: MIT OR Apache-2.0

//! Functions of the MPI library that pack and unpack, in both their forms.

use std::ffi::{c_char, c_int, c_void};
use std::mem::transmute;

use crate::library::abi::{Word, complain, function};
use crate::library::buffers::{Packing, Side};
use crate::library::count::Count;
use crate::library::pmpi::both_forms::refuse;
use crate::library::pmpi::functions::MISSING;
use crate::library::{abi, world_model};

/// `MPI_Pack` and `MPI_Unpack`, in the form in which they are called if the library has that; with
/// `int`s otherwise, as far as these reach.
///
/// # Safety
///
/// As the MPI standard says.
#[inline]
pub unsafe fn pack_any<N: Count>(call: Packing<N, N>, comm: Word) -> c_int {
    function!(PACK = c"PMPI_Pack");
    function!(PACK_C = c"PMPI_Pack_c");
    function!(UNPACK = c"PMPI_Unpack");
    function!(UNPACK_C = c"PMPI_Unpack_c");
    let own = match (call.side, N::LARGE) {
        (Side::Packs, false) => PACK.next(),
        (Side::Packs, true) => PACK_C.next_if_any(),
        (Side::Unpacks, false) => UNPACK.next(),
        (Side::Unpacks, true) => UNPACK_C.next_if_any(),
    };
    // SAFETY: the caller's promise.
    unsafe {
        match (own, N::LARGE) {
            (0, false) => MISSING,
            (0, true) => narrowed(call, comm),
            _ => pack_at(own, call, comm),
        }
    }
}

/// The same of the library's function at an address.
///
/// # Safety
///
/// As above.
#[inline(always)]
unsafe fn pack_at<N: Count>(own: usize, call: Packing<N, N>, comm: Word) -> c_int {
    type Pack<N> =
        unsafe extern "C-unwind" fn(*const c_void, N, Word, *mut c_void, N, *mut N, Word) -> c_int;
    type Unpack<N> =
        unsafe extern "C-unwind" fn(*const c_void, N, *mut N, *mut c_void, N, Word, Word) -> c_int;
    let Packing {
        side,
        input,
        output,
        count,
        datatype,
        size,
        position,
    } = call;
    // SAFETY: the MPI library's function has this type; the caller's promise.
    unsafe {
        match side {
            Side::Packs => {
                let pack: Pack<N> = transmute(own);
                pack(input, count, datatype, output, size, position, comm)
            }
            Side::Unpacks => {
                let unpack: Unpack<N> = transmute(own);
                unpack(input, size, position, output, count, datatype, comm)
            }
        }
    }
}

/// The same of a library without the large form.
///
/// # Safety
///
/// As above.
#[cold]
unsafe fn narrowed<N: Count>(call: Packing<N, N>, comm: Word) -> c_int {
    let done = || {
        if call.position.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let mut place = call.position.read().narrow()?;
            let narrow = Packing {
                side: call.side,
                input: call.input,
                output: call.output,
                count: call.count.narrow()?,
                datatype: call.datatype,
                size: call.size.narrow()?,
                position: &raw mut place,
            };
            let code = pack_any(narrow, comm);
            call.position.write(N::of(usize::try_from(place).ok()?)?);
            Some(code)
        }
    };
    let name = match call.side {
        Side::Packs => "MPI_Pack_c",
        Side::Unpacks => "MPI_Unpack_c",
    };
    done().unwrap_or_else(|| refuse(&format!("no MPI library has {name} for this"), Some(&comm)))
}

/// `MPI_Pack_external` and `MPI_Unpack_external` in both their forms, whose sizes are as wide.
///
/// # Safety
///
/// As the MPI standard says.
#[inline]
pub unsafe fn pack_external_any<N: Count>(name: *const c_char, call: Packing<N, isize>) -> c_int {
    function!(PACK = c"PMPI_Pack_external");
    function!(PACK_C = c"PMPI_Pack_external_c");
    function!(UNPACK = c"PMPI_Unpack_external");
    function!(UNPACK_C = c"PMPI_Unpack_external_c");
    let large = match call.side {
        _ if !N::LARGE => 0,
        Side::Packs => PACK_C.next_if_any(),
        Side::Unpacks => UNPACK_C.next_if_any(),
    };
    let (own, refused) = match call.side {
        _ if large != 0 => (large, ""),
        Side::Packs => (PACK.next(), "no MPI library has MPI_Pack_external for this"),
        Side::Unpacks => (
            UNPACK.next(),
            "no MPI library has MPI_Unpack_external for this",
        ),
    };
    // SAFETY: the caller's promise.
    unsafe {
        if large != 0 {
            return pack_external_at(own, name, call.count, call);
        }
        match (own, call.count.narrow()) {
            (0, _) | (_, None) => refuse_anywhere(refused),
            (own, Some(count)) => pack_external_at(own, name, count, call),
        }
    }
}

/// The same of the library's function at an address, with so many elements.
///
/// # Safety
///
/// As above.
#[inline(always)]
unsafe fn pack_external_at<C, N>(
    own: usize,
    name: *const c_char,
    count: C,
    call: Packing<N, isize>,
) -> c_int {
    type Name = *const c_char;
    type Input = *const c_void;
    type Output = *mut c_void;
    type Pack<C> =
        unsafe extern "C-unwind" fn(Name, Input, C, Word, Output, isize, *mut isize) -> c_int;
    type Unpack<C> =
        unsafe extern "C-unwind" fn(Name, Input, isize, *mut isize, Output, C, Word) -> c_int;
    let Packing {
        side,
        input,
        output,
        datatype,
        size,
        position,
        ..
    } = call;
    // SAFETY: the MPI library's function has this type; the caller's promise.
    unsafe {
        match side {
            Side::Packs => {
                let pack: Pack<C> = transmute(own);
                pack(name, input, count, datatype, output, size, position)
            }
            Side::Unpacks => {
                let unpack: Unpack<C> = transmute(own);
                unpack(name, input, size, position, output, count, datatype)
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
