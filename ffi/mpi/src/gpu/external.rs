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
use crate::library::buffers::{Packing, Side};
use crate::library::count::Count;
use crate::library::{errors, pmpi};

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
        what: &Packing<N, isize>,
    ) -> Option<Result<Call, c_int>> {
        let (base, packed) = what.places();
        let (count, datatype, position) = (what.count, what.datatype, what.position);
        requests::get_on();
        let (driver, abi) = (watch::driver()?, active()?);
        if packed.is_null() || position.is_null() || name.is_null() {
            return None;
        }
        // No communicator is in the call.
        let of = (datatype, abi.world);
        let elements = Elements::on_device((driver, abi), base, count.number(), of);
        let there = device(driver, packed as u64);
        if elements.is_none() && there.is_none() {
            return None;
        }
        // SAFETY: the caller's promise.
        let at = unsafe { position.read() };
        let left = usize::try_from(what.size.checked_sub(at)?).ok()?;
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

    /// Calls the function with host memory in the place of what is in device memory.
    ///
    /// # Safety
    ///
    /// As the MPI standard says.
    unsafe fn run<N: Count>(
        &self,
        what: Packing<N, isize>,
        call: impl FnOnce(Packing<N, isize>) -> c_int,
    ) -> Result<c_int, c_int> {
        let both = (self.driver, self.abi);
        let (mut base, mut packed) = what.places();
        if let Some((elements, staging, origin)) = &self.elements {
            // What lies between elements that are received keeps its bytes.
            elements.copy_image(both, staging.address(), true)?;
            base = *origin;
        }
        let Some((place, staging, bytes)) = &self.packed else {
            return self.ended(what.side, call(what.at(base, packed)));
        };
        let (here, mut end) = (staging.address(), 0);
        packed = here as *mut c_void;
        if what.side == Side::Unpacks {
            // SAFETY: the program's packed bytes, in which its position lies.
            let copied = unsafe { libcopy_gpu::copy(self.driver, here, *place, *bytes) };
            said(self.abi, copied)?;
        }
        let code = call(Packing {
            size: *bytes as isize,
            position: &mut end,
            ..what.at(base, packed)
        });
        if what.side == Side::Packs && code == 0 {
            // SAFETY: the program's room for the bytes, in which its position lies.
            let copied = unsafe { libcopy_gpu::copy(self.driver, *place, here, end as usize) };
            said(self.abi, copied)?;
        }
        if what.side == Side::Unpacks || code == 0 {
            // SAFETY: the program's variable.
            unsafe { *what.position += end };
        }
        self.ended(what.side, code)
    }

    /// Brings elements that have been unpacked to where they belong.
    fn ended(&self, side: Side, code: c_int) -> Result<c_int, c_int> {
        let written = self.elements.as_ref();
        if let Some((elements, staging, _)) = written.filter(|_| side == Side::Unpacks && code == 0)
        {
            elements.copy_image((self.driver, self.abi), staging.address(), false)?;
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
            // There is no other communicator.
            Err(code) => errors::raise(self.abi.world, code),
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

/// `MPI_Pack_external` and `MPI_Unpack_external`, of which `call` does what is left; `None` if
/// nothing is in device memory.
///
/// # Safety
///
/// As the MPI standard says.
#[cold]
pub unsafe fn external<N: Count>(
    name: *const c_char,
    what: Packing<N, isize>,
    call: impl FnOnce(Packing<N, isize>) -> c_int,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        match Call::new(name, &what)? {
            Ok(this) => Some(this.end(this.run(what, call))),
            Err(code) => Some(code),
        }
    }
}
