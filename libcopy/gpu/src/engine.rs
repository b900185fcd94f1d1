// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies by the GPU's copy engines, without kernels: a copy per block, which is what FALCON-X
//! (section 5.1) found in MPI libraries and what kernels are compared with, all of them in one call
//! of the driver, and a copy per plane of equally spaced rows.

use libcopy_datatype::canonical::{Form, Node};

use crate::context::Context;
use crate::driver::{BatchAttributes, Driver, Handle, Rectangle, RectangleEnd};
use crate::error::{Error, Result};
use crate::gpu::GpuLayout;
use crate::memory::{Pointer, Space};

/// Planes that [`copy_planes`] submits, at most: each takes the driver microseconds.
const MOST_PLANES: u64 = 4096;

/// `CU_DEVICE_ATTRIBUTE_MAX_PITCH` of all GPUs.
const MOST_PITCH: i64 = i32::MAX as i64;

/// Copies all bytes of one layout to another with one `cuMemcpyAsync` for each run that is
/// contiguous in both (the naive method of FALCON-X, section 5.1). Returns when the bytes are
/// there; says how many copies there were.
///
/// # Errors
///
/// `to` is smaller than `from`, memory without a context, a driver that fails.
///
/// # Safety
///
/// All bytes are valid for reads and writes; the layouts do not overlap each other.
pub unsafe fn copy_blocks(
    driver: &Driver,
    to: &GpuLayout,
    to_origin: u64,
    from: &GpuLayout,
    from_origin: u64,
) -> Result<u64> {
    let mut count = 0;
    let (target, source) = ((to, to_origin), (from, from_origin));
    on_stream(driver, target, source, |copy| {
        runs(target, source, |to, from, bytes| {
            count += 1;
            copy(Copy::Bytes { to, from, bytes })
        })
    })?;
    Ok(count)
}

/// Copies all bytes of one layout to another with one `cuMemcpyBatchAsync` for all runs that are
/// contiguous in both.
///
/// # Errors
///
/// [`Error::NoMethod`] where the driver has no such function (before CUDA 12.8); else those of
/// [`copy_blocks`].
///
/// # Safety
///
/// As for [`copy_blocks`].
pub unsafe fn copy_batch(
    driver: &Driver,
    to: &GpuLayout,
    to_origin: u64,
    from: &GpuLayout,
    from_origin: u64,
) -> Result<u64> {
    if driver.memcpy_batch.is_none() {
        return Err(Error::NoMethod {
            method: "cuMemcpyBatchAsync",
            why: "this driver has no such function: CUDA 12.8 brought it",
        });
    }
    let mut batch = Batch::default();
    let (target, source) = ((to, to_origin), (from, from_origin));
    runs(target, source, |to, from, bytes| {
        batch.to.push(to);
        batch.from.push(from);
        batch.bytes.push(bytes);
        Ok(())
    })?;
    let count = batch.to.len() as u64;
    on_stream(driver, target, source, |copy| copy(Copy::Batch(batch)))?;
    Ok(count)
}

/// Calls `each` with both addresses and the length of each run that is contiguous in both layouts,
/// as far as the source has bytes.
fn runs(
    (to, to_origin): (&GpuLayout, u64),
    (from, from_origin): (&GpuLayout, u64),
    mut each: impl FnMut(u64, u64, usize) -> Result<()>,
) -> Result<()> {
    let mut target = to.layout().cursor();
    let mut source = from.layout().cursor();
    while let Some(run) = source.next_segment(u64::MAX) {
        let mut done = 0;
        while done < run.len {
            let Some(part) = target.next_segment(run.len - done) else {
                // `on_stream` refuses a target that is smaller.
                return Ok(());
            };
            each(
                to_origin.wrapping_add_signed(part.offset),
                from_origin.wrapping_add_signed(run.offset + done as i64),
                part.len as usize,
            )?;
            done += part.len;
        }
    }
    Ok(())
}

/// Copies all bytes of one layout to another with one `cuMemcpy2DAsync` for each plane of rows:
/// both are blocks of one length under the same strides' counts, or one is contiguous. Uses no
/// multiprocessor. Returns when the bytes are there; says how many planes there were.
///
/// # Errors
///
/// [`Error::NoMethod`] for other layouts, `to` is smaller than `from`, memory without a context, a
/// driver that fails.
///
/// # Safety
///
/// As for [`copy_blocks`].
pub unsafe fn copy_planes(
    driver: &Driver,
    to: &GpuLayout,
    to_origin: u64,
    from: &GpuLayout,
    from_origin: u64,
) -> Result<u64> {
    let [target, source] = Rows::of_both(to.layout().form(), from.layout().form())?;
    let outer = &target.dims[1..];
    let planes: u64 = outer.iter().map(|(count, _)| *count).product();
    on_stream(driver, (to, to_origin), (from, from_origin), |copy| {
        for plane in 0..planes {
            let (mut to_at, mut from_at) = (target.offset, source.offset);
            let mut rest = plane;
            for (d, (count, stride)) in outer.iter().enumerate() {
                let index = (rest % count) as i64;
                rest /= count;
                to_at += index * stride;
                from_at += index * source.dims[1 + d].1;
            }
            copy(Copy::Plane(Rectangle {
                to: RectangleEnd::new(
                    to_origin.wrapping_add_signed(to_at),
                    target.dims[0].1 as usize,
                ),
                from: RectangleEnd::new(
                    from_origin.wrapping_add_signed(from_at),
                    source.dims[0].1 as usize,
                ),
                width: target.width as usize,
                height: target.dims[0].0 as usize,
            }))?;
        }
        Ok(())
    })?;
    Ok(planes)
}

/// What a copy engine is told.
enum Copy {
    Bytes { to: u64, from: u64, bytes: usize },
    Batch(Batch),
    Plane(Rectangle),
}

/// Many copies, with an entry in each list for each.
#[derive(Default)]
struct Batch {
    to: Vec<u64>,
    from: Vec<u64>,
    bytes: Vec<usize>,
}

impl Batch {
    fn submit(mut self, driver: &Driver, stream: Handle) -> Result<()> {
        let Some(function) = driver.memcpy_batch else {
            return Ok(());
        };
        let mut attributes = BatchAttributes::STREAM;
        let (mut first, mut wrong) = (0, 0);
        // SAFETY: the three lists have as many entries as is said, and the attributes are for all
        // copies from the first one on; the caller promises the memory.
        let code = unsafe {
            function(
                self.to.as_mut_ptr(),
                self.from.as_mut_ptr(),
                self.bytes.as_mut_ptr(),
                self.to.len(),
                &raw mut attributes,
                &raw mut first,
                1,
                &raw mut wrong,
                stream,
            )
        };
        driver.check("cuMemcpyBatchAsync", code)
    }
}

/// Calls `submit` with what submits a copy, in the context of the memory; waits for all copies.
fn on_stream(
    driver: &Driver,
    (to, to_origin): (&GpuLayout, u64),
    (from, from_origin): (&GpuLayout, u64),
    submit: impl FnOnce(&mut dyn FnMut(Copy) -> Result<()>) -> Result<()>,
) -> Result<()> {
    let (size, room) = (from.layout().size(), to.layout().size());
    if size > room {
        return Err(Error::Range {
            start: 0,
            end: size,
            size: room,
        });
    }
    if size == 0 {
        return Ok(());
    }
    let target = Pointer::of(driver, to.first_byte(to_origin))?;
    let source = Pointer::of(driver, from.first_byte(from_origin))?;
    let device = if target.space == Space::Device {
        target
    } else {
        source
    };
    let (_current, context) = Context::at(driver, &device)?;
    let stream = context.stream();
    let submitted = submit(&mut |copy| match copy {
        Copy::Bytes { to, from, bytes } => context.copy(driver, to, from, bytes, stream),
        Copy::Batch(batch) => batch.submit(driver, stream),
        Copy::Plane(rectangle) => {
            // SAFETY: the structure of CUDA 12.0; the caller promises the memory.
            let code = unsafe { (driver.functions.memcpy_2d_async)(&raw const rectangle, stream) };
            driver.check("cuMemcpy2DAsync", code)
        }
    });
    // What was submitted before something failed uses the program's memory.
    submitted.and(context.settle(driver, stream))
}

/// Rows of one length, equally spaced, under further strides.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rows {
    offset: i64,
    width: i64,
    /// Counts and strides in bytes, the innermost first; the first is that of the rows.
    dims: Vec<(u64, i64)>,
}

impl Rows {
    /// Those of a form; no dimensions if it is contiguous.
    fn of(form: &Form) -> Option<Rows> {
        let mut at = form.root()?;
        let mut dims = Vec::new();
        loop {
            match form.node(at) {
                Node::Dense { len } => {
                    dims.reverse();
                    return Some(Rows {
                        offset: form.offset(),
                        width: *len,
                        dims,
                    });
                }
                Node::Stream {
                    count,
                    stride,
                    child,
                } => {
                    dims.push((*count as u64, *stride));
                    at = *child;
                }
                _ => return None,
            }
        }
    }

    /// All bytes.
    fn size(&self) -> u64 {
        let rows: u64 = self.dims.iter().map(|(count, _)| *count).product();
        self.width as u64 * rows
    }

    /// The rows of two layouts, which correspond one by one.
    fn of_both(to: &Form, from: &Form) -> Result<[Rows; 2]> {
        let no = |why| {
            Err(Error::NoMethod {
                method: "the copy engine",
                why,
            })
        };
        let (Some(mut to), Some(mut from)) = (Rows::of(to), Rows::of(from)) else {
            return no("its blocks do not have one length and equal distances");
        };
        let size = from.size();
        if to.dims.is_empty() {
            to.divide_like(&from);
        }
        if from.dims.is_empty() {
            from.divide_like(&to);
        }
        let counts = |rows: &Rows| {
            rows.dims
                .iter()
                .map(|(count, _)| *count)
                .collect::<Vec<_>>()
        };
        // A contiguous source may be shorter than the rows that it was divided like.
        if to.width != from.width || counts(&to) != counts(&from) || from.size() != size {
            return no("the blocks of the two sides do not correspond");
        }
        for rows in [&to, &from] {
            let pitch = rows.dims[0].1;
            if pitch < rows.width || pitch > MOST_PITCH {
                return no("its rows overlap, run backwards, or are more than 2 GiB apart");
            }
        }
        let planes = to.dims[1..]
            .iter()
            .try_fold(1_u64, |product, (count, _)| product.checked_mul(*count));
        if planes.is_none_or(|planes| planes > MOST_PLANES) {
            return no("it has too many planes");
        }
        Ok([to, from])
    }

    /// Divides contiguous bytes into rows like those of another layout.
    fn divide_like(&mut self, other: &Rows) {
        let mut stride = other.width.min(self.width);
        self.width = stride;
        for (count, _) in &other.dims {
            self.dims.push((*count, stride));
            stride *= *count as i64;
        }
        if self.dims.is_empty() {
            self.dims.push((1, self.width));
        }
    }
}
