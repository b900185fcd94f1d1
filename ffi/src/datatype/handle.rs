// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handles of types, and the arrays and addresses that calls are given.

use crate::error::{Failure, guarded, invalid};
use libcopy::calibration;
use libcopy::datatype::{Datatype, Layout};
use libcopy::lock::lock;
use libcopy_gpu::GpuLayout;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, OnceLock};

/// A datatype: which bytes lie where, relative to an address.
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct libcopy_type_t {
    pub(super) datatype: Datatype,
    /// One element.
    single: OnceLock<Layout>,
    /// As many elements as the last call asked for.
    several: Mutex<Option<(u64, Layout)>>,
    /// Plans for the GPU by number of elements, the one that was used last at the end.
    gpu: Mutex<Vec<(u64, Arc<GpuLayout>)>>,
}

/// Plans for the GPU that a type keeps: each may have tables in device memory.
const GPU_LAYOUTS: usize = 4;

/// A dense piece of a layout.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct libcopy_segment_t {
    /// Bytes from the address that displacements count from.
    pub offset: i64,
    /// Bytes.
    pub length: u64,
}

impl libcopy_type_t {
    pub(crate) fn datatype(&self) -> &Datatype {
        &self.datatype
    }

    pub(crate) fn layout(&self, count: u64) -> Result<Layout, Failure> {
        if count == 1 {
            if let Some(layout) = self.single.get() {
                return Ok(layout.clone());
            }
            let layout = self.new_layout(1)?;
            return Ok(self.single.get_or_init(|| layout).clone());
        }
        let mut several = lock(&self.several);
        if let Some((of, layout)) = &*several {
            if *of == count {
                return Ok(layout.clone());
            }
        }
        let layout = self.new_layout(count)?;
        *several = Some((count, layout.clone()));
        Ok(layout)
    }

    fn new_layout(&self, count: u64) -> Result<Layout, Failure> {
        calibration::load_for(self.datatype.size().saturating_mul(count));
        Ok(Layout::new(&self.datatype, count)?)
    }

    /// The plan for the GPU of `count` elements. Dropping a plan frees its tables with `cuMemFree`,
    /// which waits for the kernels that read them.
    pub(crate) fn gpu_layout(&self, count: u64) -> Result<Arc<GpuLayout>, Failure> {
        let mut known = lock(&self.gpu);
        let used = match known.iter().position(|(of, _)| *of == count) {
            Some(index) => known.remove(index).1,
            None => Arc::new(GpuLayout::new(self.layout(count)?)?),
        };
        if known.len() == GPU_LAYOUTS {
            known.remove(0);
        }
        known.push((count, used.clone()));
        Ok(used)
    }
}

/// # Safety
///
/// `datatype` is null or a handle that was not freed.
pub(crate) unsafe fn handle<'a>(
    datatype: *const libcopy_type_t,
) -> Result<&'a libcopy_type_t, Failure> {
    // SAFETY: the caller vouches for a pointer that is not null.
    unsafe { datatype.as_ref() }.ok_or_else(|| invalid("the type is null"))
}

/// # Safety
///
/// `address` is null or readable for `length` values for `'a`.
pub(crate) unsafe fn list<'a, T>(
    what: &str,
    address: *const T,
    length: usize,
) -> Result<&'a [T], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    if address.is_null() || length > isize::MAX as usize / size_of::<T>() {
        return Err(invalid(format!(
            "{what}: {length} entries at {address:p}, which no array can be"
        )));
    }
    // SAFETY: not null, not too long, and the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts(address, length) })
}

/// # Safety
///
/// `address` is null or writable for `length` values for `'a`, and nobody else uses them.
pub(crate) unsafe fn list_mut<'a, T>(
    what: &str,
    address: *mut T,
    length: usize,
) -> Result<&'a mut [T], Failure> {
    if length == 0 {
        return Ok(&mut []);
    }
    if address.is_null() || length > isize::MAX as usize / size_of::<T>() {
        return Err(invalid(format!(
            "{what}: {length} entries at {address:p}, which no array can be"
        )));
    }
    // SAFETY: not null, not too long, and the caller vouches for the rest.
    Ok(unsafe { std::slice::from_raw_parts_mut(address, length) })
}

/// # Safety
///
/// `to` is null or writable.
pub(crate) unsafe fn put<T>(what: &str, to: *mut T, value: T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(invalid(format!("the address for {what} is null")));
    }
    // SAFETY: not null, and the caller vouches for it.
    unsafe { to.write(value) };
    Ok(())
}

pub(super) fn new_handle(datatype: Datatype) -> *mut libcopy_type_t {
    let new = Arc::new(libcopy_type_t {
        datatype,
        single: OnceLock::new(),
        several: Mutex::new(None),
        gpu: Mutex::default(),
    });
    Arc::into_raw(new).cast_mut()
}

/// Gives a new type to the caller.
///
/// # Safety
///
/// `to` is null or writable.
pub(crate) unsafe fn give(
    to: *mut *mut libcopy_type_t,
    make: impl FnOnce() -> Result<Datatype, Failure>,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { put("the new type", to, std::ptr::null_mut())? };
        let made = make()?;
        // SAFETY: as above.
        unsafe { put("the new type", to, new_handle(made)) }
    })
}
