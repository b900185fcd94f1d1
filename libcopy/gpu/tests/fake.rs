// SPDX-License-Identifier: MIT OR Apache-2.0

//! Packing and unpacking between all memory spaces, with the stand-in for the CUDA driver (`tests/fakecuda`), in whose
//! device memory a processor dies.

mod common;
#[path = "../../datatype/tests/datatype/generate.rs"]
#[allow(dead_code)]
mod generate;
#[path = "../../datatype/tests/datatype/oracle.rs"]
#[allow(dead_code)]
mod oracle;

use std::ffi::{CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, OnceLock};

use common::{compile, noise, random_layout};
use generate::Choices;
use libcopy_datatype::{Datatype, Layout, Named};
use libcopy_gpu::{Buffer, Driver, Error, GpuLayout, Pointer, Space, copy, pack, unpack};

/// The functions of the driver that a program would call.
struct Cuda {
    library: usize,
    context: usize,
}

impl Cuda {
    /// Loads the stand-in, and makes its first device's context current for this thread.
    fn start() -> &'static Cuda {
        static CUDA: OnceLock<Cuda> = OnceLock::new();
        let cuda = CUDA.get_or_init(|| {
            let options = ["-O2", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"];
            let path = compile("../../tests/fakecuda/fakecuda.cc", "libcuda.so.1", &options);
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
    fn call(&self, name: &str, arguments: &[u64]) {
        let at = |i: usize| arguments.get(i).copied().unwrap_or(0);
        // SAFETY: on the platforms of these tests integers and pointers are passed alike, and more than are taken do
        // no harm.
        let code = unsafe {
            let function: extern "C" fn(u64, u64, u64) -> c_int =
                std::mem::transmute(self.symbol(name));
            function(at(0), at(1), at(2))
        };
        assert_eq!(code, 0, "{name}");
    }

    /// Kernels launched, copies asked for, allocations there are.
    fn counts(&self) -> [u64; 3] {
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
struct Memory {
    space: Space,
    address: u64,
    bytes: usize,
}

impl Memory {
    fn new(space: Space, bytes: &[u8]) -> Memory {
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

    fn write(&self, bytes: &[u8]) {
        self.opened(|to| {
            // SAFETY: as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        });
    }

    fn read(&self) -> Vec<u8> {
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

const SPACES: [Space; 4] = [Space::Host, Space::Pinned, Space::Managed, Space::Device];

/// One test at a time: they open device memory, count, and set variables.
fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

fn driver() -> &'static Driver {
    Driver::loaded().expect("loaded").expect("new enough")
}

/// Packs and unpacks a range between all pairs of spaces.
fn round_trips(layout: &Layout, range: std::ops::Range<u64>, seed: u64) {
    let bounds = layout.bounds();
    let (low, len) = (bounds.start, (bounds.end - bounds.start) as usize);
    let gpu = GpuLayout::new(layout.clone()).unwrap();
    let bytes = (range.end - range.start) as usize;
    for user_space in SPACES {
        for packed_space in SPACES {
            let what = format!("{user_space:?}, {packed_space:?}, {range:?}");
            let content = noise(seed, len);
            let user = Memory::new(user_space, &content);
            let packed = Memory::new(packed_space, &vec![0xa5; bytes]);
            if len > 0 {
                assert_eq!(
                    Pointer::of(driver(), user.address).unwrap().space,
                    user_space
                );
            }
            let origin = user.address.wrapping_add_signed(-low);
            // SAFETY: the memory was made for the layout.
            unsafe { pack(driver(), &gpu, origin, range.clone(), packed.address) }.unwrap();
            let mut expected = vec![0; bytes];
            layout
                .pack_range(&content, -low as isize, range.start, &mut expected)
                .unwrap();
            assert!(packed.read() == expected, "packed: {what}");

            let before = noise(seed + 1, len);
            user.write(&before);
            // SAFETY: as above.
            let unpacked = unsafe { unpack(driver(), &gpu, origin, range.clone(), packed.address) };
            if unpacked == Err(Error::Overlap) {
                assert!(user_space == Space::Device && !layout.form().is_disjoint());
                continue;
            }
            unpacked.unwrap();
            let mut after = before;
            layout
                .unpack_range(&expected, range.start, &mut after, -low as isize)
                .unwrap();
            assert!(user.read() == after, "unpacked: {what}");
        }
    }
}

#[test]
fn random_types_between_all_spaces() {
    let _turn = turn();
    Cuda::start();
    for case in 0..60_u64 {
        let list: Vec<u16> = noise(case + 1, 240)
            .chunks_exact(2)
            .map(|two| u16::from_le_bytes([two[0], two[1]]))
            .collect();
        let mut choices = Choices::new(&list);
        let layout = random_layout(&mut choices);
        let size = layout.size();
        let (a, b) = (choices.below(size + 1), choices.below(size + 1));
        round_trips(&layout, 0..size, case);
        round_trips(&layout, a.min(b)..a.max(b), case + 1000);
    }
}

#[test]
fn more_than_the_scratch_memory_holds() {
    let _turn = turn();
    Cuda::start();
    let layout = |datatype: Datatype| Layout::new(&datatype, 1).unwrap();
    let byte = Datatype::named(Named::Byte);
    // 9.2 MB, of which 4 MiB at a time go through pinned memory.
    round_trips(
        &layout(byte.vector(4001, 2301, 2310).unwrap()),
        17..9_206_300,
        3,
    );
}

#[test]
fn submitted_work_is_waited_for() {
    let _turn = turn();
    Cuda::start();
    // SAFETY: tests that read the environment have their turns.
    unsafe { std::env::set_var("FAKECUDA_DELAYED", "1") };
    let layout = Layout::new(
        &Datatype::named(Named::Double).vector(100, 3, 7).unwrap(),
        2,
    )
    .unwrap();
    round_trips(&layout, 0..layout.size(), 5);
    // SAFETY: as above.
    unsafe { std::env::remove_var("FAKECUDA_DELAYED") };
}

#[test]
fn one_launch_and_no_copy_between_device_buffers() {
    let _turn = turn();
    let cuda = Cuda::start();
    let layout = Layout::new(
        &Datatype::named(Named::Double).vector(1000, 1, 7).unwrap(),
        1,
    )
    .unwrap();
    let user = Memory::new(Space::Device, &vec![1; 8 * 7 * 1000]);
    let packed = Memory::new(Space::Device, &vec![0; 8000]);
    let gpu = GpuLayout::new(layout).unwrap();
    // SAFETY: the memory was made for the layout.
    let pack = || unsafe { pack(driver(), &gpu, user.address, 0..8000, packed.address) }.unwrap();
    pack();
    let before = cuda.counts();
    pack();
    let after = cuda.counts();
    assert_eq!(
        [
            after[0] - before[0],
            after[1] - before[1],
            after[2] - before[2]
        ],
        [1, 0, 0]
    );
}

#[test]
fn tables_are_given_back() {
    let _turn = turn();
    let cuda = Cuda::start();
    let user = Memory::new(Space::Device, &[7; 100]);
    let packed = Memory::new(Space::Device, &[0; 20]);
    let pack_once = || {
        let datatype = Datatype::named(Named::Byte)
            .indexed(&[3, 5, 12], &[0, 9, 60])
            .unwrap();
        let gpu = GpuLayout::new(Layout::new(&datatype, 1).unwrap()).unwrap();
        // SAFETY: the memory was made for the layout.
        unsafe { pack(driver(), &gpu, user.address, 0..20, packed.address) }.unwrap();
        assert_eq!(packed.read(), [7; 20]);
    };
    pack_once();
    let before = cuda.counts()[2];
    pack_once();
    assert_eq!(cuda.counts()[2], before);
}

#[test]
fn buffers_are_where_they_say_and_contiguous_bytes_go_through_them() {
    let _turn = turn();
    let cuda = Cuda::start();
    let user = Memory::new(Space::Device, &noise(9, 5000));
    let near = Pointer::of(driver(), user.address).unwrap();
    // What is kept per context is allocated once.
    // SAFETY: the bytes stay where they are.
    unsafe { copy(driver(), user.address, user.address + 2500, 2500) }.unwrap();
    user.write(&noise(9, 5000));
    let before = cuda.counts()[2];
    let buffers = [
        Buffer::pinned(driver(), &near, 5000).unwrap(),
        Buffer::device(driver(), &near, 5000).unwrap(),
    ];
    assert_eq!(cuda.counts()[2], before + 2);
    let host = Memory::new(Space::Host, &[0; 5000]);
    let mut from = user.address;
    for buffer in &buffers {
        let known = Pointer::of(driver(), buffer.address()).unwrap();
        assert_eq!((known.space, buffer.bytes()), (buffer.space(), 5000));
        assert!(buffer.is_near(&near));
        // SAFETY: as many bytes on both sides.
        unsafe { copy(driver(), buffer.address(), from, 5000) }.unwrap();
        from = buffer.address();
    }
    // SAFETY: as above.
    unsafe { copy(driver(), host.address, from, 5000) }.unwrap();
    assert!(host.read() == noise(9, 5000));
    let far = Memory::new(Space::Host, &[0; 8]);
    let nowhere = Pointer::of(driver(), far.address).unwrap();
    let refused = Buffer::device(driver(), &nowhere, 8).unwrap_err();
    assert!(matches!(refused, Error::NoContext { .. }), "{refused}");
    drop(buffers);
    assert_eq!(cuda.counts()[2], before);
}

#[test]
fn wrong_ranges_are_refused() {
    let _turn = turn();
    Cuda::start();
    let gpu = GpuLayout::new(Layout::new(&Datatype::named(Named::Int), 3).unwrap()).unwrap();
    let memory = Memory::new(Space::Device, &[0; 64]);
    for range in [0..13, 13..14, std::ops::Range { start: 5, end: 4 }] {
        // SAFETY: nothing is moved.
        let error = unsafe { pack(driver(), &gpu, memory.address, range, memory.address + 32) };
        let text = error.unwrap_err().to_string();
        assert!(text.contains("not within its 12 bytes"), "{text}");
    }
}

#[test]
fn a_processor_dies_in_device_memory() {
    let _turn = turn();
    let memory = Memory::new(Space::Device, &[1; 8]);
    // SAFETY: the child only reads a byte and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            let byte = std::ptr::read_volatile(memory.address as *const u8);
            libc::_exit(c_int::from(byte));
        }
        let mut status: c_int = 0;
        libc::waitpid(child, &raw mut status, 0);
        assert!(
            libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV,
            "{status}"
        );
    }
}
