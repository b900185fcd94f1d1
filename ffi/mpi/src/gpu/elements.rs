// SPDX-License-Identifier: MIT OR Apache-2.0

//! Elements of the program's in device memory.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use libcopy::datatype::memcpy;
use libcopy::scratch::zeros;
use libcopy_gpu::{Driver, Error, GpuLayout, Pending, Pointer, Space};

use crate::decide::threshold;
use crate::gpu::method::{self, Method, Size};
use crate::gpu::report::{Event, note, note_method};
use crate::gpu::staging::Pooled;
use crate::library::abi::{Abi, Word, complain};
use crate::library::errors::no_room;
use crate::library::{errors, pmpi};
use crate::types::buffer::Kind;
use crate::types::datatype::Prepared;

/// Elements in memory that only kernels reach.
#[derive(Clone, Debug)]
pub struct Elements {
    /// Their type.
    pub kind: Kind,
    base: *mut c_void,
    count: usize,
    /// The first byte of theirs.
    pub near: Pointer,
    /// Their layout; `None` if they are dense, or if nobody knows it.
    prepared: Option<Arc<Prepared>>,
}

// SAFETY: the addresses are the program's, which lent them until the call or the request is
// complete.
unsafe impl Send for Elements {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Elements {}

impl Elements {
    /// `None` if a processor may touch them, if there are none, and if the library will refuse
    /// them.
    pub fn on_device(
        (driver, abi): (&Driver, &Abi),
        base: *const c_void,
        count: Option<usize>,
        (datatype, comm): (Word, Word),
    ) -> Option<Elements> {
        let count = count.filter(|count| *count > 0)?;
        let is_predefined = threshold::size(datatype).is_some();
        let mut near = None;
        if is_predefined {
            near = Some(device(driver, base as u64)?);
        }
        let kind = Kind::of(abi, datatype, comm).filter(|kind| kind.size() > 0)?;
        let near = match near {
            Some(near) => near,
            None => {
                let (low, _) = true_extent(datatype)?;
                device(driver, (base as u64).wrapping_add_signed(low as i64))?
            }
        };
        Elements::at(kind, near, base.cast_mut(), count)
    }

    /// Elements of a type in the memory of `near`; `None` if they are too many bytes.
    fn at(kind: Kind, near: Pointer, base: *mut c_void, count: usize) -> Option<Elements> {
        let bytes = kind.bytes_of(count)?;
        let prepared = (!kind.is_dense())
            .then(|| kind.prepared(count, bytes))
            .flatten();
        Some(Elements {
            kind,
            base,
            count,
            near,
            prepared,
        })
    }

    /// The elements as they are now, where the program may have allocated memory anew since they
    /// were found; `None` if they are in device memory no longer.
    pub fn found_again(mut self, driver: &Driver) -> Option<Elements> {
        self.near = device(driver, self.near.address)?;
        Some(self)
    }

    /// Where they are.
    pub fn first(&self) -> u64 {
        self.base as u64
    }

    /// Bytes of data.
    pub fn bytes(&self) -> usize {
        self.count * self.kind.size()
    }

    /// Other elements of the same type, in the same memory; `None` if they are too many bytes.
    pub fn others(&self, base: *mut c_void, count: usize) -> Option<Elements> {
        Elements::at(self.kind.clone(), self.near, base, count)
    }

    /// Keeps the datatype for as long as these are used, whatever the program frees, if it is asked
    /// about later: for the bytes from the first to the last one, or since nobody knows its layout.
    ///
    /// # Errors
    ///
    /// The library's error code.
    pub fn keep(&mut self, abi: &Abi, is_image: bool) -> Result<(), c_int> {
        if self.prepared.is_none() && (is_image || !self.kind.is_dense()) {
            self.kind = self.kind.kept(abi)?;
        }
        Ok(())
    }

    /// Their bytes, and the mean length of their pieces.
    pub fn size(&self) -> Size {
        let bytes = self.bytes() as u64;
        let pieces = self
            .prepared
            .as_ref()
            .map_or(1, |prepared| prepared.layout.segment_count());
        Size {
            bytes,
            piece: bytes / pieces.max(1),
        }
    }

    /// Their layout, and how peers get to know it; `None` if they are dense, or if nobody knows it.
    pub fn prepared(&self) -> Option<&Arc<Prepared>> {
        self.prepared.as_ref()
    }

    /// Their layout, if kernels can pack it.
    pub fn layout(&self) -> Option<&GpuLayout> {
        self.prepared.as_ref().and_then(|known| known.gpu())
    }

    /// How their packed bytes get to and from memory at `flat`.
    fn method(&self, driver: &Driver, flat: u64) -> Method {
        match device(driver, flat) {
            Some(_) => Method::Device,
            None if self.kind.is_dense() => Method::Staged,
            None => method::to_host((driver, &self.near), self.size()),
        }
    }

    /// Packs them into as many bytes of memory of any space at `to`.
    pub fn pack(&self, (driver, abi): (&Driver, &Abi), to: u64) -> Result<(), c_int> {
        note(Event::Bytes, self.bytes() as u64);
        let bytes = self.bytes();
        let method = self.method(driver, to);
        note_method(self.size(), method, true);
        // SAFETY: the program's elements; the caller has room for their bytes.
        unsafe {
            if self.kind.is_dense() {
                return said(abi, libcopy_gpu::copy(driver, to, self.base as u64, bytes));
            }
            let Some(layout) = self.layout() else {
                let image = self.image((driver, abi))?;
                return self.pack_image((driver, abi), &image, to);
            };
            let pack =
                |to| libcopy_gpu::pack(driver, layout, self.base as u64, 0..bytes as u64, to);
            if method != Method::Staged {
                return said(abi, pack(to));
            }
            let staged =
                Pooled::new(driver, (Space::Device, &self.near), bytes).and_then(|packed| {
                    pack(packed.address())?;
                    libcopy_gpu::copy(driver, to, packed.address(), bytes)
                });
            said(abi, staged)
        }
    }

    /// [`Elements::pack`] without waiting, where kernels and copies do all.
    pub fn start_pack(
        &self,
        (driver, abi): (&'static Driver, &'static Abi),
        to: u64,
    ) -> Result<Started, c_int> {
        let bytes = self.bytes();
        let method = self.method(driver, to);
        let layout = self.layout();
        if layout.is_none() && !self.kind.is_dense() {
            self.pack((driver, abi), to)?;
            return Ok(Started { abi, pending: None });
        }
        note(Event::Bytes, bytes as u64);
        note_method(self.size(), method, true);
        // SAFETY: the program's elements, which it leaves alone until the message is complete; the
        // caller has room for their bytes for as long.
        let started = unsafe {
            match layout {
                None => libcopy_gpu::start_copy(driver, to, self.base as u64, bytes),
                Some(layout) => {
                    let pack = |to| {
                        let (base, all) = (self.base as u64, 0..bytes as u64);
                        libcopy_gpu::start_pack(driver, layout, base, all, to)
                    };
                    if method == Method::Staged {
                        Pooled::new(driver, (Space::Device, &self.near), bytes).and_then(|packed| {
                            let mut pending = pack(packed.address())?;
                            libcopy_gpu::copy_after(&mut pending, to, packed.address(), bytes)?;
                            pending.keep(packed);
                            Ok(pending)
                        })
                    } else {
                        pack(to)
                    }
                }
            }
        };
        Started::of(abi, started)
    }

    /// Unpacks their first `bytes` bytes from memory of any space at `from`.
    pub fn unpack(
        &self,
        both: (&'static Driver, &'static Abi),
        from: u64,
        bytes: u64,
    ) -> Result<(), c_int> {
        self.start_unpack(both, from, bytes)?.wait()
    }

    /// [`Elements::unpack`] without waiting, where kernels and copies do all.
    pub fn start_unpack(
        &self,
        (driver, abi): (&'static Driver, &'static Abi),
        from: u64,
        bytes: u64,
    ) -> Result<Started, c_int> {
        let done = Started { abi, pending: None };
        let bytes = bytes.min(self.bytes() as u64);
        if bytes == 0 {
            return Ok(done);
        }
        note(Event::Bytes, bytes);
        let method = self.method(driver, from);
        note_method(self.size(), method, false);
        let (base, count) = (self.base as u64, bytes as usize);
        let Some(layout) = self.layout() else {
            if !self.kind.is_dense() {
                self.unpack_image((driver, abi), from, count)?;
                return Ok(done);
            }
            // SAFETY: the program's elements, which it leaves alone until they are received; the
            // caller has `bytes` bytes at `from` for as long.
            return Started::of(abi, unsafe {
                libcopy_gpu::start_copy(driver, base, from, count)
            });
        };
        // SAFETY: as above.
        let started = unsafe {
            if method == Method::Staged {
                Pooled::new(driver, (Space::Device, &self.near), count).and_then(|packed| {
                    let at = packed.address();
                    let mut pending = libcopy_gpu::start_copy(driver, at, from, count)?;
                    libcopy_gpu::unpack_after(&mut pending, layout, base, 0..bytes, at)?;
                    pending.keep(packed);
                    Ok(pending)
                })
            } else {
                libcopy_gpu::start_unpack(driver, layout, base, 0..bytes, from)
            }
        };
        if matches!(started, Err(Error::Overlap)) {
            self.unpack_image((driver, abi), from, count)?;
            return Ok(done);
        }
        Started::of(abi, started)
    }

    /// Copies all bytes from the first to the last one of theirs to host memory, or back.
    pub fn copy_image(
        &self,
        (driver, abi): (&Driver, &Abi),
        host: u64,
        is_out: bool,
    ) -> Result<(), c_int> {
        let (low, len) = self.span().ok_or(abi.error)?;
        note(Event::Bytes, len as u64);
        let own = (self.base as u64).wrapping_add_signed(low);
        let (to, from) = if is_out { (host, own) } else { (own, host) };
        // SAFETY: the program's elements; the bytes between them are memory of the same allocation.
        // The caller has room.
        said(abi, unsafe { libcopy_gpu::copy(driver, to, from, len) })
    }

    /// Where the bytes between the first and the last one of theirs are, from the base on: the
    /// first, and how many.
    pub fn span(&self) -> Option<(i64, usize)> {
        if let Some(prepared) = &self.prepared {
            let bounds = prepared.layout.bounds();
            return Some((
                bounds.start,
                usize::try_from(bounds.end - bounds.start).ok()?,
            ));
        }
        let (low, true_extent) = true_extent(self.kind.datatype())?;
        let last = self.kind.extent().checked_mul(self.count as isize - 1)?;
        let (first, end) = (last.min(0), last.max(0).checked_add(true_extent)?);
        Some(((low + first) as i64, usize::try_from(end - first).ok()?))
    }

    /// A copy of all bytes from the first to the last one of theirs, where nobody knows the layout,
    /// or kernels cannot unpack it.
    fn image(&self, (driver, abi): (&Driver, &Abi)) -> Result<Vec<u8>, c_int> {
        let (_, len) = self.span().ok_or(abi.error)?;
        let mut image = zeros(len).map_err(no_room)?;
        self.copy_image((driver, abi), image.as_mut_ptr() as u64, true)?;
        Ok(image)
    }

    /// Where the elements begin in a copy.
    fn origin(&self, abi: &Abi, image: &[u8]) -> Result<*mut c_void, c_int> {
        let (low, _) = self.span().ok_or(abi.error)?;
        let origin = image.as_ptr().wrapping_offset(-low as isize);
        Ok(origin.cast_mut().cast())
    }

    /// Packs the elements of a copy.
    fn pack_image(
        &self,
        (driver, abi): (&Driver, &Abi),
        image: &[u8],
        to: u64,
    ) -> Result<(), c_int> {
        let mut packed = zeros(self.bytes()).map_err(no_room)?;
        let origin = self.origin(abi, image)?;
        // SAFETY: the copy has all bytes of the elements.
        unsafe { self.kind.pack(origin, self.count, &mut packed)? };
        self.place(driver, abi, to, &packed)
    }

    /// Writes packed bytes to memory of any space.
    fn place(&self, driver: &Driver, abi: &Abi, to: u64, packed: &[u8]) -> Result<(), c_int> {
        // SAFETY: the caller of `pack` has room for the bytes.
        unsafe {
            if device(driver, to).is_some() {
                let from = packed.as_ptr() as u64;
                return said(abi, libcopy_gpu::copy(driver, to, from, packed.len()));
            }
            memcpy::copy(to as *mut u8, packed.as_ptr(), packed.len());
        }
        Ok(())
    }

    /// Unpacks in a copy of the elements, and copies that back.
    fn unpack_image(
        &self,
        (driver, abi): (&Driver, &Abi),
        from: u64,
        bytes: usize,
    ) -> Result<(), c_int> {
        let mut image = self.image((driver, abi))?;
        let origin = self.origin(abi, &image)?;
        let mut packed = zeros(self.bytes()).map_err(no_room)?;
        // SAFETY: the copy has all bytes of the elements; the caller of `unpack` has `bytes` bytes.
        unsafe {
            if bytes < packed.len() {
                // An element that comes in part keeps its rest.
                self.kind.pack(origin, self.count, &mut packed)?;
            }
            if device(driver, from).is_some() {
                let to = packed.as_mut_ptr() as u64;
                said(abi, libcopy_gpu::copy(driver, to, from, bytes))?;
            } else {
                memcpy::copy(packed.as_mut_ptr(), from as *const u8, bytes);
            }
            self.kind.unpack(&packed, origin, self.count)?;
        }
        self.copy_image((driver, abi), image.as_mut_ptr() as u64, false)
    }
}

/// Packing or unpacking that was started. Dropping it waits.
#[derive(Debug)]
pub struct Started {
    abi: &'static Abi,
    pending: Option<Pending>,
}

impl Started {
    /// What a GPU was told to do.
    ///
    /// # Errors
    ///
    /// The error code if that has failed.
    pub fn of(abi: &'static Abi, started: libcopy_gpu::Result<Pending>) -> Result<Started, c_int> {
        let pending = Some(started.map_err(|error| failed(abi, &error))?);
        Ok(Started { abi, pending })
    }

    /// Whether the bytes are there.
    pub fn is_done(&mut self) -> Result<bool, c_int> {
        let done = self.pending.as_mut().map_or(Ok(true), Pending::is_done);
        done.map_err(|error| failed(self.abi, &error))
    }

    /// Waits until they are.
    pub fn wait(&mut self) -> Result<(), c_int> {
        let done = self.pending.as_mut().map_or(Ok(()), Pending::wait);
        said(self.abi, done)
    }
}

/// Waits for all.
///
/// # Errors
///
/// The first error code.
pub fn wait(all: &mut [Started]) -> Result<(), c_int> {
    all.iter_mut().try_for_each(Started::wait)
}

/// An address in device memory.
pub fn device(driver: &Driver, address: u64) -> Option<Pointer> {
    match Pointer::of(driver, address) {
        Ok(pointer) => Some(pointer).filter(|pointer| pointer.space == Space::Device),
        Err(error) => {
            complain(&format!("what a buffer is cannot be found out: {error}"));
            None
        }
    }
}

/// The place of the first byte of an element, and bytes from it to the last one.
fn true_extent(datatype: Word) -> Option<(isize, isize)> {
    let (mut low, mut extent) = (0, 0);
    // SAFETY: writable outputs; the library checks the datatype.
    let answer = unsafe { pmpi::type_get_true_extent(datatype, &mut low, &mut extent) };
    (answer == 0).then_some((low, extent))
}

/// The error code of what failed on the GPU.
pub fn said(abi: &Abi, result: libcopy_gpu::Result<()>) -> Result<(), c_int> {
    result.map_err(|error| failed(abi, &error))
}

fn failed(abi: &Abi, error: &Error) -> c_int {
    complain(&error.to_string());
    errors::failure(abi, &error.to_string())
}
