// SPDX-License-Identifier: MIT OR Apache-2.0

//! Packing and unpacking: a layout in any memory, packed bytes in any memory.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use libcopy_datatype::Layout;

use crate::driver::{Driver, Handle};
use crate::error::{Error, Result};
use crate::launch::{Kernel, Launch, Placed, THREADS};
use crate::memory::{Pointer, Space};
use crate::plan::Plan;
use crate::ptx::ptx;

/// Bytes of pinned memory that what a kernel cannot reach goes through.
const SCRATCH: usize = 4 << 20;

/// A layout's plan, and where its tables are in the memory of which context.
#[derive(Debug)]
pub struct GpuLayout {
    layout: Layout,
    plan: Plan,
    /// By context: the tables' address. Contexts of a process are few and live as long as it.
    tables: Mutex<HashMap<usize, u64>>,
}

impl GpuLayout {
    /// Makes the plan.
    ///
    /// # Errors
    ///
    /// A layout with too many irregular pieces.
    pub fn new(layout: Layout) -> Result<GpuLayout> {
        let plan = Plan::of(&layout).ok_or(Error::TooManyPieces)?;
        Ok(GpuLayout {
            layout,
            plan,
            tables: Mutex::default(),
        })
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

/// What is kept per context.
#[derive(Debug)]
pub(crate) struct Context {
    context: Handle,
    stream: Handle,
    functions: HashMap<Kernel, Handle>,
    /// Pinned memory, [`SCRATCH`] bytes, and who uses it.
    scratch: Mutex<u64>,
}

// SAFETY: handles of the driver may be used by any thread.
unsafe impl Send for Context {}
// SAFETY: as above; the scratch memory is behind a mutex.
unsafe impl Sync for Context {}

/// The contexts that were used so far, by their handle, and those that could not be.
static CONTEXTS: Mutex<Vec<(usize, Result<Arc<Context>>)>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// A context that is current for the calling thread as long as this lives.
pub(crate) struct Current<'a>(&'a Driver);

impl Current<'_> {
    pub(crate) fn new(driver: &Driver, context: Handle) -> Result<Current<'_>> {
        // SAFETY: the driver checks the handle.
        driver.check("cuCtxPushCurrent", unsafe {
            (driver.functions.ctx_push_current)(context)
        })?;
        Ok(Current(driver))
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: pops what was pushed.
        unsafe { (self.0.functions.ctx_pop_current)(&raw mut context) };
    }
}

impl Context {
    /// What is kept for a context, which is current.
    pub(crate) fn of(driver: &Driver, context: Handle) -> Result<Arc<Context>> {
        let mut contexts = lock(&CONTEXTS);
        if let Some((_, known)) = contexts.iter().find(|(of, _)| *of == context as usize) {
            return known.clone();
        }
        let made = Context::make(driver, context).map(Arc::new);
        contexts.push((context as usize, made.clone()));
        made
    }

    fn make(driver: &Driver, context: Handle) -> Result<Context> {
        let calls = &driver.functions;
        let (mut module, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        let text = ptx();
        // SAFETY: the text ends with a zero byte.
        let code = unsafe { (calls.module_load_data)(&raw mut module, text.as_ptr().cast()) };
        driver.check("cuModuleLoadData", code)?;
        let mut functions = HashMap::new();
        for kernel in Kernel::all() {
            let name = CString::new(kernel.to_string()).expect("a name without zero bytes");
            let mut function = std::ptr::null_mut();
            // SAFETY: a module of this context, and a name that ends with a zero byte.
            let code =
                unsafe { (calls.module_get_function)(&raw mut function, module, name.as_ptr()) };
            driver.check("cuModuleGetFunction", code)?;
            functions.insert(kernel, function);
        }
        // A stream without flags waits for what the program put into the legacy stream, and the other way round.
        // SAFETY: `stream` is written to.
        driver.check("cuStreamCreate", unsafe {
            (calls.stream_create)(&raw mut stream, 0)
        })?;
        let mut scratch = std::ptr::null_mut();
        /// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
        const MAPPED: u32 = 3;
        // SAFETY: `scratch` is written to.
        let code = unsafe { (calls.mem_host_alloc)(&raw mut scratch, SCRATCH, MAPPED) };
        driver.check("cuMemHostAlloc", code)?;
        Ok(Context {
            context,
            stream,
            functions,
            scratch: Mutex::new(scratch as u64),
        })
    }

    fn launch(&self, driver: &Driver, launches: &[Launch]) -> Result<()> {
        for launch in launches {
            let mut job = launch.job;
            let mut parameters: [*mut c_void; 1] = [(&raw mut job).cast()];
            // SAFETY: a function of this context, with the one parameter that it has, which is copied by the call.
            // The caller of pack and unpack promises the memory.
            let code = unsafe {
                (driver.functions.launch_kernel)(
                    self.functions[&launch.kernel],
                    launch.blocks,
                    1,
                    1,
                    THREADS,
                    1,
                    1,
                    0,
                    self.stream,
                    parameters.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            };
            driver.check("cuLaunchKernel", code)?;
        }
        Ok(())
    }

    /// Waits until everything so far is done.
    pub(crate) fn settle(&self, driver: &Driver) -> Result<()> {
        // SAFETY: a stream of this context.
        driver.check("cuStreamSynchronize", unsafe {
            (driver.functions.stream_synchronize)(self.stream)
        })
    }

    pub(crate) fn copy(&self, driver: &Driver, to: u64, from: u64, bytes: usize) -> Result<()> {
        // SAFETY: the driver knows what each address is; the caller of pack and unpack promises the memory.
        driver.check("cuMemcpyAsync", unsafe {
            (driver.functions.memcpy_async)(to, from, bytes, self.stream)
        })
    }

    /// Where the tables of a layout are in this context.
    fn tables(&self, driver: &Driver, layout: &GpuLayout) -> Result<u64> {
        let bytes = layout.plan.tables();
        if bytes.is_empty() {
            return Ok(0);
        }
        let mut known = lock(&layout.tables);
        if let Some(address) = known.get(&(self.context as usize)) {
            return Ok(*address);
        }
        let mut address = 0;
        // SAFETY: `address` is written to.
        let code = unsafe { (driver.functions.mem_alloc)(&raw mut address, bytes.len()) };
        driver.check("cuMemAlloc", code)?;
        let copied = self
            .copy(driver, address, bytes.as_ptr() as u64, bytes.len())
            .and_then(|()| self.settle(driver));
        if let Err(error) = copied {
            // SAFETY: just allocated.
            unsafe { (driver.functions.mem_free)(address) };
            return Err(error);
        }
        known.insert(self.context as usize, address);
        Ok(address)
    }
}

impl Drop for GpuLayout {
    fn drop(&mut self) {
        let Some(Ok(driver)) = Driver::loaded() else {
            return;
        };
        for (context, address) in lock(&self.tables).drain() {
            if let Ok(_current) = Current::new(driver, context as Handle) {
                // SAFETY: allocated for this layout in this context, and no kernel is using it: pack and unpack wait.
                unsafe { (driver.functions.mem_free)(address) };
            }
        }
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Pack,
    Unpack,
}

/// Packs a range of a layout's packed stream from `origin`, what its displacements count from, to `packed`. Each may be
/// memory of any [`Space`]. Returns when the bytes are there.
///
/// # Errors
///
/// A range that is not one of the layout's, memory without a context, a driver that fails.
///
/// # Safety
///
/// All bytes of the range are valid for reads in the layout, and for writes at `packed`; they do not overlap.
pub unsafe fn pack(
    driver: &Driver,
    layout: &GpuLayout,
    origin: u64,
    range: Range<u64>,
    packed: u64,
) -> Result<()> {
    move_range(driver, layout, origin, range, packed, Way::Pack)
}

/// Unpacks a range; see [`pack()`].
///
/// # Errors
///
/// Those of [`pack()`], and a layout that has bytes twice in memory that only kernels reach.
///
/// # Safety
///
/// All bytes of the range are valid for writes in the layout, and for reads at `packed`; they do not overlap.
pub unsafe fn unpack(
    driver: &Driver,
    layout: &GpuLayout,
    origin: u64,
    range: Range<u64>,
    packed: u64,
) -> Result<()> {
    move_range(driver, layout, origin, range, packed, Way::Unpack)
}

fn move_range(
    driver: &Driver,
    layout: &GpuLayout,
    origin: u64,
    range: Range<u64>,
    packed: u64,
    way: Way,
) -> Result<()> {
    let size = layout.plan.size();
    if range.start > range.end || range.end > size {
        return Err(Error::Range {
            start: range.start,
            end: range.end,
            size,
        });
    }
    if range.is_empty() {
        return Ok(());
    }
    // The first byte of data, since the origin itself may lie elsewhere.
    let first = origin.wrapping_add_signed(layout.layout.bounds().start);
    let user = Pointer::of(driver, first)?;
    let flat = Pointer::of(driver, packed)?;
    if user.space.is_reached_by_processor() && flat.space.is_reached_by_processor() {
        on_processor(layout, origin, &range, packed, way);
        return Ok(());
    }
    let device = if user.space == Space::Device {
        user
    } else {
        flat
    };
    if device.context.is_null() {
        return Err(Error::NoContext {
            address: device.address,
        });
    }
    // Bytes that are there twice are written in their order, which only the processor keeps.
    let in_order = way == Way::Unpack && !layout.plan.is_disjoint();
    if in_order && !user.space.is_reached_by_processor() {
        return Err(Error::Overlap);
    }
    let _current = Current::new(driver, device.context)?;
    let context = Context::of(driver, device.context)?;
    if in_order || !user.space.is_reached_by_kernels() {
        return through_scratch(&context, range, |part, scratch| {
            let stream = packed + part.start;
            let bytes = (part.end - part.start) as usize;
            if way == Way::Pack {
                on_processor(layout, origin, &part.of, scratch, way);
                let copied = context.copy(driver, stream, scratch, bytes);
                copied.and(context.settle(driver))
            } else {
                let copied = context.copy(driver, scratch, stream, bytes);
                copied.and(context.settle(driver))?;
                on_processor(layout, origin, &part.of, scratch, way);
                Ok(())
            }
        });
    }
    let place = Placed {
        plan: &layout.plan,
        origin,
        tables: context.tables(driver, layout)?,
    };
    let launched = |range: Range<u64>, stream: u64| {
        let launches = match way {
            Way::Pack => place.pack(range, stream),
            Way::Unpack => place.unpack(range, stream).ok_or(Error::Overlap)?,
        };
        let launched = context.launch(driver, &launches);
        // Those before one that failed still use the program's memory.
        launched.and(context.settle(driver))
    };
    if flat.space.is_reached_by_kernels() {
        return launched(range, packed);
    }
    through_scratch(&context, range, |part, scratch| {
        let bytes = (part.end - part.start) as usize;
        let (host, scratch_bytes) = ((packed + part.start) as *mut u8, scratch as *mut u8);
        if way == Way::Pack {
            launched(part.of, scratch)?;
            // SAFETY: pageable memory of the caller, and the scratch memory, which is this thread's for now.
            unsafe { std::ptr::copy_nonoverlapping(scratch_bytes, host, bytes) };
            Ok(())
        } else {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(host, scratch_bytes, bytes) };
            launched(part.of, scratch)
        }
    })
}

/// A part of a range that fits into the scratch memory.
struct Chunk {
    /// From the first byte of the range.
    start: u64,
    end: u64,
    /// In the packed stream.
    of: Range<u64>,
}

/// Goes through a range in chunks that fit into the context's scratch memory.
fn through_scratch(
    context: &Context,
    range: Range<u64>,
    mut each: impl FnMut(Chunk, u64) -> Result<()>,
) -> Result<()> {
    let scratch = lock(&context.scratch);
    let mut start = 0;
    let bytes = range.end - range.start;
    while start < bytes {
        let end = (start + SCRATCH as u64).min(bytes);
        let of = range.start + start..range.start + end;
        each(Chunk { start, end, of }, *scratch)?;
        start = end;
    }
    Ok(())
}

/// Packs or unpacks where the processor reaches both sides.
fn on_processor(layout: &GpuLayout, origin: u64, range: &Range<u64>, packed: u64, way: Way) {
    let bounds = layout.layout.bounds();
    let low = origin.wrapping_add_signed(bounds.start) as *mut u8;
    let len = (bounds.end - bounds.start) as usize;
    let bytes = (range.end - range.start) as usize;
    // SAFETY: the caller's promise: the bytes of the layout are valid. Between them there may be others, which are
    // neither read nor written.
    let moved = unsafe {
        match way {
            Way::Pack => layout.layout.pack_range(
                std::slice::from_raw_parts(low, len),
                -bounds.start as isize,
                range.start,
                std::slice::from_raw_parts_mut(packed as *mut u8, bytes),
            ),
            Way::Unpack => layout.layout.unpack_range(
                std::slice::from_raw_parts(packed as *const u8, bytes),
                range.start,
                std::slice::from_raw_parts_mut(low, len),
                -bounds.start as isize,
            ),
        }
    };
    moved.expect("the range was checked");
}
