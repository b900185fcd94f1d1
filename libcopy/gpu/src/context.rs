// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is kept per CUDA context: the kernels, streams, events, pinned memory, memory for tables of
//! jobs.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::device::Device;
use crate::driver::{Driver, Handle};
use crate::error::{Error, Result};
use crate::launch::{Batch, Kernel, Launch};
use crate::mapping::Shaped;
use crate::memory::Pointer;
use crate::ptx::Ptx;

/// Bytes of pinned memory that what a kernel cannot reach goes through.
pub(crate) const SCRATCH: usize = 4 << 20;

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`.
pub(crate) const MAPPED: u32 = 3;

/// Streams: the first for calls that wait, the others in turns for those that do not.
const STREAMS: usize = 5;

/// Launches from which one launch of their table is cheaper.
const BATCH_FROM: usize = 4;

/// Bytes of memory for a table of jobs that is kept for the next one; longer ones have memory of
/// their own.
const TABLE: usize = 64 << 10;

/// What is kept per context.
#[derive(Debug)]
pub(crate) struct Context {
    context: Handle,
    /// `cuCtxGetId`: a context that is made after another was destroyed may have its handle, but
    /// not this.
    id: u64,
    device: Device,
    streams: [Handle; STREAMS],
    next: AtomicUsize,
    functions: HashMap<Kernel, Handle>,
    /// What benchmarks compare with; loaded when it is used.
    baselines: Mutex<HashMap<Kernel, Handle>>,
    /// Pinned memory, [`SCRATCH`] bytes, and who uses it.
    scratch: Mutex<u64>,
    /// Events that nobody uses.
    events: Mutex<Vec<Handle>>,
    /// Memory for tables that nobody uses.
    tables: Mutex<Vec<TableMemory>>,
    /// Memory to be freed by the next call.
    left: Mutex<Vec<u64>>,
}

/// Memory for a table of jobs.
#[derive(Debug)]
pub(crate) struct TableMemory {
    device: u64,
    pinned: u64,
    bytes: usize,
}

// SAFETY: handles of the driver may be used by any thread.
unsafe impl Send for Context {}
// SAFETY: as above; the scratch memory is behind a mutex.
unsafe impl Sync for Context {}

/// A context's handle and number, and what is kept for it, or why nothing is.
type Known = ((usize, u64), Result<Arc<Context>>);

/// The contexts that were used so far.
static CONTEXTS: Mutex<Vec<Known>> = Mutex::new(Vec::new());

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// A context that is current for the calling thread as long as this lives.
pub(crate) struct Current<'a>(&'a Driver);

impl Current<'_> {
    fn new(driver: &Driver, context: Handle) -> Result<Current<'_>> {
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

/// The number of the context that is current.
fn current_id(driver: &Driver, context: Handle) -> Result<u64> {
    let mut id = 0;
    // SAFETY: `id` is written to.
    driver.check("cuCtxGetId", unsafe {
        (driver.functions.ctx_get_id)(context, &raw mut id)
    })?;
    Ok(id)
}

impl Context {
    /// Makes the context that memory belongs to current; gives what is kept for it.
    ///
    /// # Errors
    ///
    /// Memory without a context, a driver that fails.
    pub(crate) fn at<'a>(
        driver: &'a Driver,
        memory: &Pointer,
    ) -> Result<(Current<'a>, Arc<Context>)> {
        if memory.context.is_null() {
            return Err(Error::NoContext {
                address: memory.address,
            });
        }
        let current = Current::new(driver, memory.context)?;
        let context = Context::of(driver, memory.context)?;
        let left = std::mem::take(&mut *lock(&context.left));
        for address in left {
            // SAFETY: allocated in this context, and used by nobody any more.
            unsafe { (driver.functions.mem_free)(address) };
        }
        Ok((current, context))
    }

    /// What is kept for a context, which is current.
    fn of(driver: &Driver, context: Handle) -> Result<Arc<Context>> {
        let key = (context as usize, current_id(driver, context)?);
        let mut contexts = lock(&CONTEXTS);
        if let Some((_, known)) = contexts.iter().find(|(of, _)| *of == key) {
            return known.clone();
        }
        // A context that had this handle before is gone, and with it all that was made in it.
        contexts.retain(|((handle, _), _)| *handle != key.0);
        let made = Context::make(driver, context, key.1).map(Arc::new);
        contexts.push((key, made.clone()));
        made
    }

    fn make(driver: &Driver, context: Handle, id: u64) -> Result<Context> {
        let calls = &driver.functions;
        let device = Device::current(driver)?;
        let mut functions = HashMap::new();
        let parts = [Ptx::Pack, Ptx::Bulk];
        // Only GPUs of compute capability 9.0 and newer have copy units.
        for part in &parts[..if device.capability >= (9, 0) { 2 } else { 1 }] {
            functions.extend(load(driver, *part)?);
        }
        let mut streams = [std::ptr::null_mut(); STREAMS];
        for stream in &mut streams {
            // A stream without flags waits for what the program put into the legacy stream, and the
            // other way round.
            // SAFETY: `stream` is written to.
            driver.check("cuStreamCreate", unsafe {
                (calls.stream_create)(&raw mut *stream, 0)
            })?;
        }
        let mut scratch = std::ptr::null_mut();
        // SAFETY: `scratch` is written to.
        let code = unsafe { (calls.mem_host_alloc)(&raw mut scratch, SCRATCH, MAPPED) };
        driver.check("cuMemHostAlloc", code)?;
        Ok(Context {
            context,
            id,
            device,
            streams,
            next: AtomicUsize::new(0),
            functions,
            baselines: Mutex::default(),
            scratch: Mutex::new(scratch as u64),
            events: Mutex::default(),
            tables: Mutex::default(),
            left: Mutex::default(),
        })
    }

    /// Its number, which no other context of this process has or had.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn handle(&self) -> Handle {
        self.context
    }

    /// Its GPU.
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Whether it has a kernel.
    pub(crate) fn has(&self, kernel: Kernel) -> bool {
        self.functions.contains_key(&kernel)
    }

    /// Makes it current for the calling thread.
    ///
    /// # Errors
    ///
    /// The context has been destroyed.
    pub(crate) fn enter<'a>(&self, driver: &'a Driver) -> Result<Current<'a>> {
        let current = Current::new(driver, self.context)?;
        if current_id(driver, self.context)? == self.id {
            return Ok(current);
        }
        /// `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
        const DESTROYED: i32 = 709;
        driver
            .check("cuCtxGetId", DESTROYED)
            .map(|()| unreachable!("an error's number"))
    }

    /// The stream of calls that wait.
    pub(crate) fn stream(&self) -> Handle {
        self.streams[0]
    }

    /// A stream for a call that does not wait.
    pub(crate) fn next_stream(&self) -> Handle {
        self.streams[1 + self.next.fetch_add(1, Ordering::Relaxed) % (STREAMS - 1)]
    }

    /// The pinned memory, for one user at a time.
    pub(crate) fn scratch(&self) -> MutexGuard<'_, u64> {
        lock(&self.scratch)
    }

    /// Launches kernels on a stream of this context, which is current, one by one.
    pub(crate) fn launch(
        &self,
        driver: &Driver,
        launches: &[Launch],
        stream: Handle,
    ) -> Result<()> {
        for launch in launches {
            let mut job = launch.job;
            self.launch_with(
                driver,
                (launch.kernel, self.functions[&launch.kernel]),
                [launch.blocks, 1, 1],
                [launch.kernel.threads(), 1, 1],
                (&raw mut job).cast(),
                stream,
            )?;
        }
        Ok(())
    }

    /// Launches kernels on a stream of this context, which is current, many in one launch where
    /// that is cheaper. What is returned is in use until the stream is done.
    pub(crate) fn launch_together(
        &self,
        driver: &Driver,
        launches: &[Launch],
        stream: Handle,
    ) -> Result<Option<TableMemory>> {
        let (alone, together): (Vec<Launch>, Vec<Launch>) = launches
            .iter()
            .partition(|launch| launch.kernel == Kernel::CopyBulk);
        if together.len() < BATCH_FROM {
            self.launch(driver, launches, stream)?;
            return Ok(None);
        }
        let Some(batch) = Batch::of(&together) else {
            return Ok(None);
        };
        let memory = self.table_memory(driver, batch.table().len())?;
        // SAFETY: as many bytes of pinned memory that nobody else uses.
        unsafe {
            std::ptr::copy_nonoverlapping(
                batch.table().as_ptr(),
                memory.pinned as *mut u8,
                batch.table().len(),
            );
        }
        self.copy(
            driver,
            memory.device,
            memory.pinned,
            batch.table().len(),
            stream,
        )?;
        let mut parameter = batch.parameter(memory.device);
        self.launch_with(
            driver,
            (Kernel::Batch, self.functions[&Kernel::Batch]),
            [batch.blocks(), 1, 1],
            [Kernel::Batch.threads(), 1, 1],
            (&raw mut parameter).cast(),
            stream,
        )?;
        self.launch(driver, &alone, stream)?;
        Ok(Some(memory))
    }

    /// Launches a baseline kernel on a stream of this context, which is current.
    pub(crate) fn launch_shaped(
        &self,
        driver: &Driver,
        launch: &Shaped,
        stream: Handle,
    ) -> Result<()> {
        let function = {
            let mut baselines = lock(&self.baselines);
            if baselines.is_empty() {
                *baselines = load(driver, Ptx::Baseline)?;
            }
            baselines[&launch.kernel]
        };
        let mut job = launch.job;
        self.launch_with(
            driver,
            (launch.kernel, function),
            launch.blocks,
            launch.threads,
            (&raw mut job).cast(),
            stream,
        )
    }

    fn launch_with(
        &self,
        driver: &Driver,
        (kernel, function): (Kernel, Handle),
        blocks: [u32; 3],
        threads: [u32; 3],
        parameter: *mut c_void,
        stream: Handle,
    ) -> Result<()> {
        let mut parameters = [parameter];
        // SAFETY: a function of this context, with the one parameter that it has, which is copied
        // by the call. The caller of pack, unpack and copy promises the memory.
        let code = unsafe {
            (driver.functions.launch_kernel)(
                function,
                blocks[0],
                blocks[1],
                blocks[2],
                threads[0],
                threads[1],
                threads[2],
                kernel.shared_bytes(),
                stream,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        driver.check("cuLaunchKernel", code)
    }

    /// Waits until everything so far is done.
    pub(crate) fn settle(&self, driver: &Driver, stream: Handle) -> Result<()> {
        // SAFETY: a stream of this context.
        driver.check("cuStreamSynchronize", unsafe {
            (driver.functions.stream_synchronize)(stream)
        })
    }

    pub(crate) fn copy(
        &self,
        driver: &Driver,
        to: u64,
        from: u64,
        bytes: usize,
        stream: Handle,
    ) -> Result<()> {
        // SAFETY: the driver knows what each address is; the caller of pack and unpack promises the
        // memory.
        driver.check("cuMemcpyAsync", unsafe {
            (driver.functions.memcpy_async)(to, from, bytes, stream)
        })
    }

    /// An event of this context, which is current; to be given back to [`Context::give_event`].
    pub(crate) fn event(&self, driver: &Driver) -> Result<Handle> {
        if let Some(event) = lock(&self.events).pop() {
            return Ok(event);
        }
        /// `CU_EVENT_DISABLE_TIMING`.
        const NO_TIMING: u32 = 2;
        let mut event = std::ptr::null_mut();
        // SAFETY: `event` is written to.
        driver.check("cuEventCreate", unsafe {
            (driver.functions.event_create)(&raw mut event, NO_TIMING)
        })?;
        Ok(event)
    }

    pub(crate) fn give_event(&self, event: Handle) {
        lock(&self.events).push(event);
    }

    fn table_memory(&self, driver: &Driver, bytes: usize) -> Result<TableMemory> {
        if bytes <= TABLE
            && let Some(memory) = lock(&self.tables).pop()
        {
            return Ok(memory);
        }
        let bytes = bytes.max(TABLE);
        let mut device = 0;
        // SAFETY: `device` is written to.
        driver.check("cuMemAlloc", unsafe {
            (driver.functions.mem_alloc)(&raw mut device, bytes)
        })?;
        let mut pinned = std::ptr::null_mut();
        // SAFETY: `pinned` is written to.
        let code = unsafe { (driver.functions.mem_host_alloc)(&raw mut pinned, bytes, MAPPED) };
        if let Err(error) = driver.check("cuMemHostAlloc", code) {
            // SAFETY: just allocated.
            unsafe { (driver.functions.mem_free)(device) };
            return Err(error);
        }
        Ok(TableMemory {
            device,
            pinned: pinned as u64,
            bytes,
        })
    }

    /// Has memory of this context, which nobody uses any more, freed by the next call. For
    /// destructors: those of thread-local variables run when a thread ends, after the driver's own
    /// may have run, and the driver must not be called then.
    pub(crate) fn leave(&self, address: u64) {
        lock(&self.left).push(address);
    }

    /// Takes back memory that no stream uses any more; the context is current.
    pub(crate) fn give_table(&self, driver: &Driver, memory: TableMemory) {
        if memory.bytes == TABLE {
            lock(&self.tables).push(memory);
            return;
        }
        // SAFETY: allocated by `table_memory`, and used by nobody.
        unsafe {
            (driver.functions.mem_free)(memory.device);
            (driver.functions.mem_free_host)(memory.pinned as *mut c_void);
        }
    }
}

/// Loads a text into the current context.
fn load(driver: &Driver, part: Ptx) -> Result<HashMap<Kernel, Handle>> {
    let mut module = std::ptr::null_mut();
    let text = part.text();
    // SAFETY: the text ends with a zero byte.
    let code =
        unsafe { (driver.functions.module_load_data)(&raw mut module, text.as_ptr().cast()) };
    driver.check("cuModuleLoadData", code)?;
    part.kernels()
        .map(|kernel| Ok((kernel, function(driver, module, kernel)?)))
        .collect()
}

fn function(driver: &Driver, module: Handle, kernel: Kernel) -> Result<Handle> {
    let name = CString::new(kernel.to_string()).expect("a name without zero bytes");
    let mut function = std::ptr::null_mut();
    // SAFETY: a module of this context, and a name that ends with a zero byte.
    let code =
        unsafe { (driver.functions.module_get_function)(&raw mut function, module, name.as_ptr()) };
    driver.check("cuModuleGetFunction", code)?;
    /// What a kernel has without asking, on all GPUs.
    const PLAIN_SHARED: u32 = 48 << 10;
    if kernel.shared_bytes() > PLAIN_SHARED {
        /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
        const MAX_DYNAMIC_SHARED: i32 = 8;
        // SAFETY: a function of this context.
        driver.check("cuFuncSetAttribute", unsafe {
            (driver.functions.func_set_attribute)(
                function,
                MAX_DYNAMIC_SHARED,
                kernel.shared_bytes() as i32,
            )
        })?;
    }
    Ok(function)
}
