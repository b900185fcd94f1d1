// SPDX-License-Identifier: MIT OR Apache-2.0

//! The stand-in driver (`tests/fakecuda`) as a program calls it, memory of all spaces, random
//! layouts.

use std::ffi::{CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, OnceLock};

use libcopy_datatype::Layout;
use libcopy_gpu::{Driver, GpuLayout, Space};

use crate::common::{noise, random_layout, stand_in};
use crate::generate::Choices;

/// The functions of the driver that a program would call.
pub struct Cuda {
    library: usize,
    context: usize,
}

impl Cuda {
    /// Loads the stand-in, and makes its first device's context current for this thread.
    pub fn start() -> &'static Cuda {
        static CUDA: OnceLock<Cuda> = OnceLock::new();
        let cuda = CUDA.get_or_init(|| {
            let path = stand_in();
            assert!(Driver::loaded().is_none(), "nobody has loaded a driver yet");
            let name = CString::new(path.as_os_str().as_bytes()).unwrap();
            // SAFETY: a library without constructors that do anything.
            let library =
                unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
            assert!(!library.is_null(), "{path:?}");
            let mut cuda = Cuda {
                library: library as usize,
                context: 0,
            };
            cuda.call("cuInit", &[0]);
            let mut context = 0_usize;
            cuda.call("cuDevicePrimaryCtxRetain", &[(&raw mut context) as u64, 0]);
            cuda.context = context;
            cuda
        });
        cuda.call("cuCtxPushCurrent_v2", &[cuda.context as u64]);
        cuda
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the library stays loaded.
        let found = unsafe { libc::dlsym(self.library as *mut c_void, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    /// Calls a function of up to three integers or pointers.
    pub fn call(&self, name: &str, arguments: &[u64]) {
        let at = |i: usize| arguments.get(i).copied().unwrap_or(0);
        // SAFETY: on the platforms of these tests integers and pointers are passed alike, and more
        // than are taken do no harm.
        let code = unsafe {
            let function: extern "C" fn(u64, u64, u64) -> c_int =
                std::mem::transmute(self.symbol(name));
            function(at(0), at(1), at(2))
        };
        assert_eq!(code, 0, "{name}");
    }

    /// Kernels launched, copies asked for, allocations there are.
    pub fn counts(&self) -> [u64; 3] {
        let mut counts = [0; 3];
        // SAFETY: the function of the stand-in writes three numbers.
        unsafe {
            let function: extern "C" fn(*mut u64) =
                std::mem::transmute(self.symbol("fakecuda_counts"));
            function(counts.as_mut_ptr());
        }
        counts
    }
}

/// Memory of some space.
pub struct Memory {
    space: Space,
    pub address: u64,
    bytes: usize,
}

impl Memory {
    pub fn new(space: Space, bytes: &[u8]) -> Memory {
        let cuda = Cuda::start();
        let mut address = 0_u64;
        let (place, len) = ((&raw mut address) as u64, bytes.len().max(1) as u64);
        match space {
            Space::Host => address = Box::leak(bytes.to_vec().into_boxed_slice()).as_ptr() as u64,
            Space::Pinned => cuda.call("cuMemHostAlloc", &[place, len, 0]),
            Space::Managed => cuda.call("cuMemAllocManaged", &[place, len, 1]),
            Space::Device => cuda.call("cuMemAlloc_v2", &[place, len]),
        }
        let memory = Memory {
            space,
            address,
            bytes: bytes.len(),
        };
        memory.write(bytes);
        memory
    }

    /// Calls `with` while the processor may touch the memory, which only this test does.
    fn opened(&self, with: impl FnOnce(*mut u8)) {
        let pages = self.bytes.max(1).next_multiple_of(4096);
        let rights = |rights: c_int| {
            if self.space == Space::Device {
                // SAFETY: memory of this test, whose rights are only changed in turn.
                unsafe { libc::mprotect(self.address as *mut c_void, pages, rights) };
            }
        };
        rights(libc::PROT_READ | libc::PROT_WRITE);
        with(self.address as *mut u8);
        rights(libc::PROT_NONE);
    }

    pub fn write(&self, bytes: &[u8]) {
        self.opened(|to| {
            // SAFETY: as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        });
    }

    pub fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        self.opened(|from| {
            // SAFETY: as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
        });
        bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let cuda = Cuda::start();
        match self.space {
            Space::Host => {
                let bytes = std::ptr::slice_from_raw_parts_mut(self.address as *mut u8, self.bytes);
                // SAFETY: leaked in `new`.
                drop(unsafe { Box::from_raw(bytes) });
            }
            Space::Pinned => cuda.call("cuMemFreeHost", &[self.address]),
            Space::Managed | Space::Device => cuda.call("cuMemFree_v2", &[self.address]),
        }
    }
}

pub const SPACES: [Space; 4] = [Space::Host, Space::Pinned, Space::Managed, Space::Device];

/// One test at a time: they open device memory, count, and set variables.
pub fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

pub fn driver() -> &'static Driver {
    Driver::loaded().expect("loaded").expect("new enough")
}

/// The layout, and where each byte of its packed stream is from the lowest.
pub struct Shape {
    pub gpu: GpuLayout,
    pub len: usize,
    pub low: i64,
}

impl Shape {
    pub fn new(layout: Layout) -> Shape {
        let bounds = layout.bounds();
        Shape {
            gpu: GpuLayout::new(layout).unwrap(),
            len: (bounds.end - bounds.start) as usize,
            low: bounds.start,
        }
    }

    pub fn origin(&self, memory: &Memory) -> u64 {
        memory.address.wrapping_add_signed(-self.low)
    }

    pub fn size(&self) -> u64 {
        self.gpu.layout().size()
    }

    pub fn packed(&self, content: &[u8]) -> Vec<u8> {
        let mut packed = vec![0; self.size() as usize];
        let layout = self.gpu.layout();
        layout
            .pack(content, -self.low as isize, &mut packed)
            .unwrap();
        packed
    }

    pub fn unpacked(&self, packed: &[u8], content: &[u8]) -> Vec<u8> {
        let mut content = content.to_vec();
        let layout = self.gpu.layout();
        layout
            .unpack_range(packed, 0, &mut content, -self.low as isize)
            .unwrap();
        content
    }
}

pub fn random_shapes(cases: u64) -> impl Iterator<Item = (u64, Shape, Shape)> {
    (0..cases).map(|case| {
        let list: Vec<u16> = noise(case + 1, 240)
            .chunks_exact(2)
            .map(|two| u16::from_le_bytes([two[0], two[1]]))
            .collect();
        let mut choices = Choices::new(&list);
        let one = Shape::new(random_layout(&mut choices));
        let other = Shape::new(random_layout(&mut choices));
        if one.size() <= other.size() {
            (case, one, other)
        } else {
            (case, other, one)
        }
    })
}
