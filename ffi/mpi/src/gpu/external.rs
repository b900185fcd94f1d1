// SPDX-License-Identifier: MIT OR Apache-2.0

//! `MPI_Pack_external` and `MPI_Unpack_external` where the elements, the packed bytes or both are
//! in device memory: no kernel turns numbers round, so what is there is copied to host memory, and
//! back.

use std::ffi::{c_char, c_int, c_void};

use libcopy_gpu::Driver;

use crate::decide::active::active;
use crate::gpu::elements::{Elements, device, said};
use crate::gpu::report::{Event, note};
use crate::gpu::staging::Staging;
use crate::gpu::{requests, watch};
use crate::library::abi::{Abi, Word};
use crate::library::count::Count;
use crate::library::pmpi;

/// Elements, or packed bytes, and the host memory in their place, if they are in device memory.
struct Call {
    driver: &'static Driver,
    abi: &'static Abi,
    /// The elements, all bytes from the first to the last one, and where these begin.
    elements: Option<(Elements, Staging, *mut c_void)>,
    /// The address of the packed bytes at the position, what is in their place, and how many they
    /// are at most.
    packed: Option<(u64, Staging, usize)>,
}

impl Call {
    /// `None` if neither side is in device memory, or if the library will refuse the arguments; the
    /// code of the call where there is no room.
    unsafe fn new<N: Count>(
        name: *const c_char,
        (base, count, datatype): (*const c_void, N, Word),
        (packed, size, position): (*const c_void, isize, *const isize),
    ) -> Option<Result<Call, c_int>> {
        requests::get_on();
        let (driver, abi) = (watch::driver()?, active()?);
        if packed.is_null() || position.is_null() || name.is_null() {
            return None;
        }
        // No communicator is in the call.
        let what = (datatype, abi.world);
        let elements = Elements::on_device((driver, abi), base, count.number(), what);
        let there = device(driver, packed as u64);
        if elements.is_none() && there.is_none() {
            return None;
        }
        // SAFETY: the caller's promise.
        let at = unsafe { position.read() };
        let left = usize::try_from(size.checked_sub(at)?).ok()?;
        usize::try_from(at).ok()?;
        let elements = match elements {
            None => None,
            Some(elements) => {
                let (low, len) = elements.span()?;
                let staging = match Staging::new(driver, &elements.near, len) {
                    Ok(staging) => staging,
                    Err(code) => return Some(Err(code)),
                };
                let origin = staging.address().wrapping_add_signed(-low);
                Some((elements, staging, origin as *mut c_void))
            }
        };
        let packed = there.map(|near| {
            // Of a large buffer, what these elements need.
            // SAFETY: the caller's promise.
            let most = unsafe { needed(name, count, datatype) };
            let bytes = most.map_or(left, |most| most.min(left));
            let staging = Staging::new(driver, &near, bytes)?;
            let place = (packed as u64).wrapping_add_signed(at as i64);
            Ok((place, staging, bytes))
        });
        Some(packed.transpose().map(|packed| Call {
            driver,
            abi,
            elements,
            packed,
        }))
    }

    fn pack(
        &self,
        input: *const c_void,
        (output, size, position): (*mut c_void, isize, *mut isize),
        call: impl FnOnce(*const c_void, *mut c_void, isize, *mut isize) -> c_int,
    ) -> Result<c_int, c_int> {
        let both = (self.driver, self.abi);
        let input = match &self.elements {
            Some((elements, staging, origin)) => {
                elements.copy_out(both, staging.address())?;
                origin.cast_const()
            }
            None => input,
        };
        let Some((to, staging, bytes)) = &self.packed else {
            return Ok(call(input, output, size, position));
        };
        let mut end = 0;
        let from = staging.address();
        let code = call(input, from as *mut c_void, *bytes as isize, &mut end);
        if code == 0 {
            // SAFETY: the program's room for the bytes, in which its position lies.
            unsafe {
                let copied = libcopy_gpu::copy(self.driver, *to, from, end as usize);
                said(self.abi, copied)?;
                *position += end;
            }
        }
        Ok(code)
    }

    fn unpack(
        &self,
        (input, size, position): (*const c_void, isize, *mut isize),
        output: *mut c_void,
        call: impl FnOnce(*const c_void, isize, *mut isize, *mut c_void) -> c_int,
    ) -> Result<c_int, c_int> {
        let both = (self.driver, self.abi);
        let output = match &self.elements {
            Some((elements, staging, origin)) => {
                // What lies between the elements keeps its bytes.
                elements.copy_out(both, staging.address())?;
                *origin
            }
            None => output,
        };
        let code = match &self.packed {
            None => call(input, size, position, output),
            Some((from, staging, bytes)) => {
                let to = staging.address();
                // SAFETY: the program's packed bytes, in which its position lies.
                let copied = unsafe { libcopy_gpu::copy(self.driver, to, *from, *bytes) };
                said(self.abi, copied)?;
                let mut end = 0;
                let code = call(to as *const c_void, *bytes as isize, &mut end, output);
                // SAFETY: the program's variable.
                unsafe { *position += end };
                code
            }
        };
        if let Some((elements, staging, _)) = self.elements.as_ref().filter(|_| code == 0) {
            elements.copy_in(both, staging.address())?;
        }
        Ok(code)
    }

    /// What the function returns.
    fn end(&self, done: Result<c_int, c_int>) -> c_int {
        match done {
            Ok(code) => {
                note(Event::Packed, 1);
                code
            }
            Err(code) => {
                // SAFETY: there is no other communicator.
                unsafe { pmpi::comm_call_errhandler(self.abi.world, code) };
                code
            }
        }
    }
}

/// Bytes that elements are packed into; `None` if the library does not say.
///
/// # Safety
///
/// The name ends with a zero.
unsafe fn needed<N: Count>(name: *const c_char, count: N, datatype: Word) -> Option<usize> {
    let mut bytes = 0;
    // SAFETY: the caller's promise; a writable output.
    let code = unsafe { pmpi::pack_external_size(name, count.narrow()?, datatype, &mut bytes) };
    usize::try_from(bytes).ok().filter(|_| code == 0)
}

/// `MPI_Pack_external`, of which `call` does what is left; `None` if nothing is in device memory.
///
/// # Safety
///
/// As the MPI standard says.
#[cold]
pub unsafe fn pack_external<N: Count>(
    name: *const c_char,
    elements: (*const c_void, N, Word),
    (output, size, position): (*mut c_void, isize, *mut isize),
    call: impl FnOnce(*const c_void, *mut c_void, isize, *mut isize) -> c_int,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let this = match unsafe { Call::new(name, elements, (output, size, position))? } {
        Ok(this) => this,
        Err(code) => return Some(code),
    };
    let done = this.pack(elements.0, (output, size, position), call);
    Some(this.end(done))
}

/// `MPI_Unpack_external` in the same way.
///
/// # Safety
///
/// As the MPI standard says.
#[cold]
pub unsafe fn unpack_external<N: Count>(
    name: *const c_char,
    (input, size, position): (*const c_void, isize, *mut isize),
    (output, count, datatype): (*mut c_void, N, Word),
    call: impl FnOnce(*const c_void, isize, *mut isize, *mut c_void) -> c_int,
) -> Option<c_int> {
    let elements = (output.cast_const(), count, datatype);
    // SAFETY: the caller's promise.
    let this = match unsafe { Call::new(name, elements, (input, size, position))? } {
        Ok(this) => this,
        Err(code) => return Some(code),
    };
    let done = this.unpack((input, size, position), output, call);
    Some(this.end(done))
}
