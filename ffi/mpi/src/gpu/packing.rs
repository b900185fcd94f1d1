// SPDX-License-Identifier: MIT OR Apache-2.0

//! `MPI_Pack` and `MPI_Unpack` where the elements, the packed bytes or both are in device memory.

use std::ffi::{c_int, c_void};

use libcopy_gpu::Driver;

use crate::gpu::elements::{Elements, device, said};
use crate::gpu::report::{Event, note};
use crate::gpu::{requests, watch};
use libcopy::scratch::Scratch;

use crate::decide::active::active;
use crate::library::abi::{Abi, Word};
use crate::library::buffers::{Packing, Side};
use crate::library::count::Count;
use crate::library::errors::{self, no_room};
use crate::types::buffer::Kind;

/// What a call is about.
struct Call<N> {
    driver: &'static Driver,
    abi: &'static Abi,
    /// The elements, if they are in device memory.
    elements: Option<Elements>,
    kind: Kind,
    base: *mut c_void,
    count: usize,
    /// The packed bytes of the elements, and the position behind them.
    packed: u64,
    bytes: usize,
    end: N,
}

impl<N: Count> Call<N> {
    /// `None` if neither side is in device memory, or if the library will refuse the arguments.
    unsafe fn new(what: &Packing<N, N>, comm: Word) -> Option<Call<N>> {
        let (base, packed) = what.places();
        let (count, datatype, position) = (what.count, what.datatype, what.position);
        requests::get_on();
        let (driver, abi) = (watch::driver()?, active()?);
        if packed.is_null() || position.is_null() {
            return None;
        }
        let number = count.number()?;
        let elements = Elements::on_device((driver, abi), base, Some(number), (datatype, comm));
        let is_packed_there = || device(driver, packed as u64).is_some();
        if elements.is_none() && !is_packed_there() {
            return None;
        }
        let kind = match &elements {
            Some(elements) => elements.kind.clone(),
            None => Kind::of(abi, datatype, comm)?,
        };
        let bytes = kind.bytes_of(number)?;
        // SAFETY: the caller's promise.
        let at = unsafe { position.read() }.number()?;
        let end = at
            .checked_add(bytes)
            .filter(|end| what.size.number() >= Some(*end))?;
        Some(Call {
            driver,
            abi,
            elements,
            kind,
            base,
            count: number,
            packed: (packed as u64) + at as u64,
            bytes,
            end: N::of(end)?,
        })
    }

    fn pack(&self) -> Result<(), c_int> {
        let both = (self.driver, self.abi);
        if let Some(elements) = &self.elements {
            return elements.pack(both, self.packed);
        }
        let mut packed = Scratch::new(self.bytes).map_err(no_room)?;
        // SAFETY: the program's elements, which a processor reaches, and its room for their bytes.
        unsafe {
            self.kind.copy_to(self.base, self.count, &mut packed)?;
            let from = packed.as_ptr() as u64;
            said(
                self.abi,
                libcopy_gpu::copy(self.driver, self.packed, from, self.bytes),
            )
        }
    }

    fn unpack(&self) -> Result<(), c_int> {
        let both = (self.driver, self.abi);
        if let Some(elements) = &self.elements {
            return elements.unpack(both, self.packed, self.bytes as u64);
        }
        let mut packed = Scratch::new(self.bytes).map_err(no_room)?;
        // SAFETY: the program's packed bytes, and its elements, which a processor reaches.
        unsafe {
            let to = packed.as_mut_ptr() as u64;
            said(
                self.abi,
                libcopy_gpu::copy(self.driver, to, self.packed, self.bytes),
            )?;
            self.kind.unpack_any(&packed, self.base, self.count)
        }
    }

    /// What the function returns.
    unsafe fn end(self, done: Result<(), c_int>, position: *mut N, comm: Word) -> c_int {
        match done {
            Ok(()) => {
                note(Event::Packed, 1);
                // SAFETY: the caller's promise.
                unsafe { position.write(self.end) };
                0
            }
            Err(code) => errors::raise(comm, code),
        }
    }
}

/// `MPI_Pack` and `MPI_Unpack`; `None` if nothing is in device memory.
///
/// # Safety
///
/// As the MPI standard says.
#[cold]
pub unsafe fn packed<N: Count>(what: Packing<N, N>, comm: Word) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        let call = Call::new(&what, comm)?;
        let done = match what.side {
            Side::Packs => call.pack(),
            Side::Unpacks => call.unpack(),
        };
        Some(call.end(done, what.position, comm))
    }
}
