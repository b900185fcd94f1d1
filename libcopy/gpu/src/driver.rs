// SPDX-License-Identifier: MIT OR Apache-2.0

//! The functions of the CUDA driver that are needed, found in a `libcuda.so.1` that the program has
//! loaded itself.
//!
//! Nothing is linked, and only [`Driver::load`], which is for tools, loads anything: in a program
//! without CUDA there is nothing to find, and looking again costs a comparison until another
//! library has been loaded. Source: CUDA Driver API, 12.0.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use libloading::os::unix::Library;

use crate::error::{Error, Result};

/// `CUcontext`, `CUstream`, `CUmodule`, `CUfunction`, `CUevent`.
pub(crate) type Handle = *mut c_void;

/// The function of a name that ends with a zero byte, if the library has it.
///
/// # Safety
///
/// `F` is the type of a pointer to it, and the library stays loaded.
unsafe fn function<F: Copy>(library: &Library, name: &str) -> Option<F> {
    // SAFETY: the caller's promise; null is none.
    let found = unsafe { library.get::<Option<F>>(name.as_bytes()) };
    found.ok().and_then(|found| *found)
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($argument:ty),*);)*) => {
        /// The driver's functions.
        #[derive(Debug)]
        pub(crate) struct Functions {
            $($(#[$doc])* pub(crate) $name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// Finds them.
            fn of(library: &Library) -> Result<Functions> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: the driver's function of that name has this type (cuda.h of CUDA
                        // 12.0).
                        let found = unsafe { function(library, concat!($symbol, "\0")) };
                        found.ok_or(Error::MissingFunction { function: $symbol })?
                    },)*
                })
            }
        }
    };
}

functions! {
    init = "cuInit"(c_uint);
    driver_get_version = "cuDriverGetVersion"(*mut c_int);
    get_error_name = "cuGetErrorName"(c_int, *mut *const c_char);
    device_get_count = "cuDeviceGetCount"(*mut c_int);
    device_get = "cuDeviceGet"(*mut c_int, c_int);
    device_get_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_get_uuid = "cuDeviceGetUuid_v2"(*mut [u8; 16], c_int);
    device_get_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    device_primary_ctx_retain = "cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    device_primary_ctx_release = "cuDevicePrimaryCtxRelease_v2"(c_int);
    ctx_push_current = "cuCtxPushCurrent_v2"(Handle);
    ctx_pop_current = "cuCtxPopCurrent_v2"(*mut Handle);
    ctx_get_id = "cuCtxGetId"(Handle, *mut u64);
    ctx_get_device = "cuCtxGetDevice"(*mut c_int);
    pointer_get_attributes = "cuPointerGetAttributes"(c_uint, *const c_uint, *mut *mut c_void, u64);
    pointer_set_attribute = "cuPointerSetAttribute"(*const c_void, c_int, u64);
    module_load_data = "cuModuleLoadData"(*mut Handle, *const c_void);
    module_get_function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    func_set_attribute = "cuFuncSetAttribute"(Handle, c_int, c_int);
    stream_create = "cuStreamCreate"(*mut Handle, c_uint);
    stream_synchronize = "cuStreamSynchronize"(Handle);
    event_create = "cuEventCreate"(*mut Handle, c_uint);
    event_record = "cuEventRecord"(Handle, Handle);
    event_query = "cuEventQuery"(Handle);
    event_synchronize = "cuEventSynchronize"(Handle);
    mem_alloc = "cuMemAlloc_v2"(*mut u64, usize);
    mem_free = "cuMemFree_v2"(u64);
    mem_host_alloc = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    mem_free_host = "cuMemFreeHost"(*mut c_void);
    mem_get_address_range = "cuMemGetAddressRange_v2"(*mut u64, *mut usize, u64);
    memcpy_async = "cuMemcpyAsync"(u64, u64, usize, Handle);
    memcpy_2d_async = "cuMemcpy2DAsync_v2"(*const Rectangle, Handle);
    ipc_get_mem_handle = "cuIpcGetMemHandle"(*mut IpcHandle, u64);
    ipc_open_mem_handle = "cuIpcOpenMemHandle_v2"(*mut u64, IpcHandle, c_uint);
    ipc_close_mem_handle = "cuIpcCloseMemHandle"(u64);
    launch_kernel = "cuLaunchKernel"(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
}

/// `cuMemcpyBatchAsync` of CUDA 12.8: destinations, sources and lengths, how many; attributes, the
/// first copy of each, how many; which copy is wrong; the stream. (`cuMemcpyBatchAsync_v2` of CUDA
/// 13 is another function.)
pub(crate) type MemcpyBatch = unsafe extern "C" fn(
    *mut u64,
    *mut u64,
    *mut usize,
    usize,
    *mut BatchAttributes,
    *mut usize,
    usize,
    *mut usize,
    Handle,
) -> c_int;

/// `CUmemcpyAttributes`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct BatchAttributes {
    access_order: c_uint,
    /// Hints of where both sides are: kind and number, which managed memory has a use for.
    locations: [[c_int; 2]; 2],
    flags: c_uint,
}

impl BatchAttributes {
    /// Sources are read in the order of the stream (`CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`).
    pub(crate) const STREAM: BatchAttributes = BatchAttributes {
        access_order: 1,
        locations: [[0; 2]; 2],
        flags: 0,
    };
}

/// `CUipcMemHandle`: 64 bytes that another process opens memory with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

/// One end of a [`Rectangle`] (fields of `CUDA_MEMCPY2D`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct RectangleEnd {
    x: usize,
    y: usize,
    memory_type: c_uint,
    host: *mut c_void,
    device: u64,
    array: *mut c_void,
    pitch: usize,
}

impl RectangleEnd {
    /// Rows that begin at `address` and are `pitch` bytes apart, in memory of any kind.
    pub(crate) fn new(address: u64, pitch: usize) -> RectangleEnd {
        /// `CU_MEMORYTYPE_UNIFIED`.
        const UNIFIED: c_uint = 4;
        RectangleEnd {
            x: 0,
            y: 0,
            memory_type: UNIFIED,
            host: std::ptr::null_mut(),
            device: address,
            array: std::ptr::null_mut(),
            pitch,
        }
    }
}

/// `CUDA_MEMCPY2D`: rows that are copied by a copy engine.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Rectangle {
    pub(crate) from: RectangleEnd,
    pub(crate) to: RectangleEnd,
    /// Bytes of a row.
    pub(crate) width: usize,
    /// Rows.
    pub(crate) height: usize,
}

/// A loaded driver.
#[derive(Debug)]
pub struct Driver {
    pub(crate) functions: Functions,
    /// Not in drivers before CUDA 12.8; only benchmarks use it.
    pub(crate) memcpy_batch: Option<MemcpyBatch>,
}

/// The driver, or why it cannot be used; set once the program has loaded it.
static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();

/// Libraries loaded so far, plus one, when it was last looked for.
static LOOKED: AtomicU64 = AtomicU64::new(0);

impl Driver {
    /// The driver that this program has loaded; `None` if it has none.
    ///
    /// # Errors
    ///
    /// A driver that is too old.
    pub fn loaded() -> Option<Result<&'static Driver>> {
        if DRIVER.get().is_none() {
            let loads = loads() + 1;
            if LOOKED.load(Ordering::Relaxed) == loads {
                return None;
            }
            look();
            LOOKED.store(loads, Ordering::Relaxed);
        }
        DRIVER
            .get()
            .map(|driver| driver.as_ref().map_err(Clone::clone))
    }

    /// Loads the driver and initializes it; for tools, which are not CUDA programs themselves.
    ///
    /// # Errors
    ///
    /// No driver on this machine, one that is too old, none that can be initialized (no GPU).
    pub fn load() -> Result<&'static Driver> {
        open(0).map_err(|why| Error::NoDriver {
            why: why.to_string(),
        })?;
        look();
        let driver = DRIVER.get().map_or_else(
            || {
                Err(Error::NoDriver {
                    why: "libcuda.so.1 is not among the loaded libraries".to_owned(),
                })
            },
            |driver| driver.as_ref().map_err(Clone::clone),
        )?;
        // SAFETY: the function has no requirements.
        driver.check("cuInit", unsafe { (driver.functions.init)(0) })?;
        Ok(driver)
    }

    /// The version of CUDA that the driver supports: 1000 times the major plus 10 times the minor
    /// number.
    ///
    /// # Errors
    ///
    /// A driver that fails.
    pub fn version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: `version` is written to.
        self.check("cuDriverGetVersion", unsafe {
            (self.functions.driver_get_version)(&raw mut version)
        })?;
        Ok(version)
    }

    /// Turns what a function of the driver returned into a result.
    pub(crate) fn check(&self, function: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: `name` is written to; the strings are constants of the driver.
        let known = unsafe { (self.functions.get_error_name)(code, &raw mut name) } == 0;
        let name = if known && !name.is_null() {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(name) }
                .to_string_lossy()
                .into_owned()
        } else {
            "an unknown error".to_owned()
        };
        Err(Error::Driver {
            function,
            name,
            code,
        })
    }
}

/// Looks for the driver.
fn look() {
    static LOOKING: Mutex<()> = Mutex::new(());
    let _one = LOOKING.lock().unwrap_or_else(|e| e.into_inner());
    if let Ok(library) = open(libc::RTLD_NOLOAD) {
        DRIVER.get_or_init(|| {
            let functions = Functions::of(&library)?;
            // SAFETY: the driver's function of that name has this type (cuda.h of CUDA 12.8).
            let memcpy_batch = unsafe { function(&library, "cuMemcpyBatchAsync\0") };
            Ok(Driver {
                functions,
                memcpy_batch,
            })
        });
    }
}

/// The driver's library, which stays loaded for ever.
fn open(flags: c_int) -> std::result::Result<ManuallyDrop<Library>, libloading::Error> {
    let flags = libc::RTLD_LAZY | libc::RTLD_LOCAL | flags;
    // SAFETY: it may be loaded by any program; with RTLD_NOLOAD no code is run.
    let library = unsafe { Library::open(Some("libcuda.so.1"), flags) }?;
    Ok(ManuallyDrop::new(library))
}

/// How many libraries this process has loaded so far (`dlpi_adds` of dl_iterate_phdr(3)).
fn loads() -> u64 {
    extern "C" fn first(
        info: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        loads: *mut c_void,
    ) -> c_int {
        // SAFETY: glibc and musl give the field since 2.4 and 1.0; `loads` is the number below.
        unsafe { *loads.cast::<u64>() = (*info).dlpi_adds };
        1
    }
    let mut loads = 0_u64;
    // SAFETY: the function only writes the number.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut loads).cast()) };
    loads
}
