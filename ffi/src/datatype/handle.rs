// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handles of types.

use crate::arguments::Handle;
use crate::error::Result;
use libcopy::calibration;
use libcopy::datatype::{Datatype, Layout, Segment};
use libcopy::lock::lock;
use libcopy_gpu::GpuLayout;
use std::sync::{Arc, Mutex, OnceLock};

/// A datatype: which bytes lie where, relative to an address.
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct libcopy_type_t {
    pub(crate) datatype: Datatype,
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

impl From<Segment> for libcopy_segment_t {
    fn from(Segment { offset, len }: Segment) -> Self {
        libcopy_segment_t {
            offset,
            length: len,
        }
    }
}

impl libcopy_type_t {
    pub(crate) fn layout(&self, count: u64) -> Result<Layout> {
        if count == 1 {
            if let Some(layout) = self.single.get() {
                return Ok(layout.clone());
            }
            let layout = self.new_layout(1)?;
            return Ok(self.single.get_or_init(|| layout).clone());
        }
        let mut several = lock(&self.several);
        if let Some((_, layout)) = several.as_ref().filter(|(of, _)| *of == count) {
            return Ok(layout.clone());
        }
        let layout = self.new_layout(count)?;
        *several = Some((count, layout.clone()));
        Ok(layout)
    }

    fn new_layout(&self, count: u64) -> Result<Layout> {
        calibration::load_for(self.datatype.size().saturating_mul(count));
        Ok(Layout::new(&self.datatype, count)?)
    }

    /// The plan for the GPU of `count` elements. Dropping a plan frees its tables with `cuMemFree`,
    /// which waits for the kernels that read them.
    pub(crate) fn gpu_layout(&self, count: u64) -> Result<Arc<GpuLayout>> {
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

impl From<Datatype> for libcopy_type_t {
    fn from(datatype: Datatype) -> Self {
        libcopy_type_t {
            datatype,
            single: OnceLock::new(),
            several: Mutex::new(None),
            gpu: Mutex::default(),
        }
    }
}

impl Handle for libcopy_type_t {
    fn into_raw(self) -> *mut Self {
        Arc::into_raw(Arc::new(self)).cast_mut()
    }
}
