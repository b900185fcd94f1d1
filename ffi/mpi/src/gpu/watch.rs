// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether the program has loaded the CUDA driver.
//!
//! The dynamic linker keeps a list of the libraries of a process, `struct link_map` (dlinfo(3),
//! <link.h>), and adds new ones at its end. So as long as the last entry has no successor, no
//! library was loaded, which costs two loads and a comparison. When it has one, the names are
//! looked at, and the new last entry is remembered; a reference to its library keeps that, and so
//! the entry, in memory. The reference to the one before is given back then.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ops::ControlFlow;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, OnceLock};

use libcopy::lock::lock;
use libcopy_gpu::Driver;

use crate::decide::active::active;
use crate::library::abi::complain;
use crate::library::loaded::{base_name, each_file};
use crate::library::{threads, world_model};

use crate::gpu::upcalls;

/// `struct link_map` of <link.h>.
#[repr(C)]
struct LinkMap {
    address: usize,
    name: *const c_char,
    dynamic: *const c_void,
    next: AtomicPtr<LinkMap>,
    previous: *const LinkMap,
}

// SAFETY: only the successor changes, which is atomic; the others are constants here.
unsafe impl Sync for LinkMap {}

impl LinkMap {
    const fn with_next(next: *mut LinkMap) -> LinkMap {
        LinkMap {
            address: 0,
            name: ptr::null(),
            dynamic: ptr::null(),
            next: AtomicPtr::new(next),
            previous: ptr::null(),
        }
    }
}

/// In place of the last entry: as long as the libraries have to be looked at, and for ever once
/// there is a driver.
static LOOK: LinkMap = LinkMap::with_next(ptr::dangling_mut());

/// In place of the last entry where nothing has to be looked at any more.
#[unsafe(link_section = "libcopy_hot")]
static DONE: LinkMap = LinkMap::with_next(ptr::null_mut());

/// The entry that was the last one, or one of the two above.
#[unsafe(link_section = "libcopy_hot_words")]
static LAST: AtomicPtr<LinkMap> = AtomicPtr::new((&raw const LOOK).cast_mut());

/// The driver, once the program has loaded it.
static DRIVER: OnceLock<&'static Driver> = OnceLock::new();

/// Whether a library was loaded since the libraries were looked at, or the CUDA driver is among
/// them.
#[inline(always)]
pub fn may_be_loaded() -> bool {
    // SAFETY: a static, or an entry whose library stays loaded, since `look` holds a reference to
    // it.
    unsafe {
        let last = &*LAST.load(Ordering::Relaxed);
        !last.next.load(Ordering::Relaxed).is_null()
    }
}

/// Whether the program has loaded the CUDA driver, and buffers are to be asked for.
#[inline(always)]
pub fn is_loaded() -> bool {
    may_be_loaded() && look()
}

/// The driver, if [`is_loaded`] has found it.
pub fn driver() -> Option<&'static Driver> {
    DRIVER.get().copied()
}

/// Who has made the call that a thread is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    /// The program.
    Program,
    /// We, with host memory in the place of device memory.
    Replaced,
    /// We, with device memory that only the MPI library may be handed.
    HandedOver,
}

thread_local! {
    static CALLER: Cell<Caller> = const { Cell::new(Caller::Program) };
}

/// Whether this is a call of the program's, and not one that is going on with other buffers.
#[cold]
pub fn is_outside() -> bool {
    CALLER.try_with(Cell::get) == Ok(Caller::Program)
}

/// Whether the buffers of this call are in device memory, and the MPI library's function gets them.
#[cold]
pub fn is_handed_over() -> bool {
    CALLER.try_with(Cell::get) == Ok(Caller::HandedOver)
}

/// Calls a function whose buffers have been looked at.
pub fn inside<R>(call: impl FnOnce() -> R) -> R {
    called_by(Caller::Replaced, call)
}

/// The same of a function that goes to the MPI library at once, if buffers in device memory are
/// handed over.
pub fn with<R>(is_handed_over: bool, call: impl FnOnce() -> R) -> R {
    if is_handed_over {
        called_by(Caller::HandedOver, call)
    } else {
        inside(call)
    }
}

fn called_by<R>(caller: Caller, call: impl FnOnce() -> R) -> R {
    struct Back(Caller);
    impl Drop for Back {
        fn drop(&mut self) {
            let _ = CALLER.try_with(|caller| caller.set(self.0));
        }
    }
    let _back = Back(
        CALLER
            .try_with(|before| before.replace(caller))
            .unwrap_or(Caller::Replaced),
    );
    call()
}

/// Looks for the driver among the libraries, if it has not been found, and remembers the last one.
#[cold]
fn look() -> bool {
    /// A reference to the library of the last entry.
    static LOOKING: Mutex<Option<Held>> = Mutex::new(None);
    if DRIVER.get().is_some() {
        return true;
    }
    if active().is_none() {
        // Everything is forwarded.
        LAST.store((&raw const DONE).cast_mut(), Ordering::Relaxed);
        return false;
    }
    let mut before = None;
    let is_there = look_now(&mut lock(&LOOKING), &mut before);
    // Without the lock: what a library does when it is unloaded may come here again.
    if let Some(before) = before {
        before.give_back();
    }
    is_there
}

/// The same; `held` is the reference to the last entry's library, and `before` the one that was
/// held until now.
fn look_now(held: &mut Option<Held>, before: &mut Option<Held>) -> bool {
    let Some(found) = Libraries::now() else {
        // Not a dynamic linker that we know: asked about each time.
        return found_driver();
    };
    if found.has_driver && found_driver() {
        *before = held.take();
        return true;
    }
    if !ptr::eq(LAST.load(Ordering::Relaxed), &raw const DONE) {
        let next = found.hold();
        let last = match &next {
            Some(_) => found.last,
            None => (&raw const LOOK).cast_mut(),
        };
        LAST.store(last, Ordering::Relaxed);
        *before = std::mem::replace(held, next);
    }
    false
}

/// A reference to the library of the last entry.
struct Held(*mut c_void);

// SAFETY: the dynamic linker's handles may be used by any thread.
unsafe impl Send for Held {}

impl Held {
    /// Gives it back, now that [`LAST`] is another entry. A library that the program has closed is
    /// unloaded then.
    fn give_back(self) {
        // Where another thread may just be reading the old entry, that stays.
        if !may_be_read_by_others() {
            // SAFETY: a reference of our own; nobody reads the entry any more.
            unsafe { libc::dlclose(self.0) };
        }
    }
}

/// Whether other threads may be in a call of MPI's now.
fn may_be_read_by_others() -> bool {
    let abi = active().filter(|_| world_model::is_active());
    abi.is_none_or(threads::are_several)
}

/// Whether there is a driver that can be used.
fn found_driver() -> bool {
    match Driver::loaded() {
        None => false,
        Some(Ok(driver)) => {
            DRIVER.get_or_init(|| driver);
            if let Some(messages) = upcalls::known() {
                (messages.found_driver)();
            }
            LAST.store((&raw const LOOK).cast_mut(), Ordering::Relaxed);
            true
        }
        Some(Err(error)) => {
            complain(&format!("{error}; buffers on GPUs are forwarded"));
            LAST.store((&raw const DONE).cast_mut(), Ordering::Relaxed);
            false
        }
    }
}

/// The list of libraries at some time.
struct Libraries {
    last: *mut LinkMap,
    /// The name of the last one.
    name: CString,
    /// Whether a CUDA driver is among them.
    has_driver: bool,
}

/// `RTLD_DI_LINKMAP` of <dlfcn.h>.
const DI_LINKMAP: c_int = 2;

unsafe extern "C" {
    /// dlinfo(3).
    fn dlinfo(handle: *mut c_void, request: c_int, info: *mut c_void) -> c_int;
}

/// The entry of an open library.
fn entry_of(library: *mut c_void) -> Option<*mut LinkMap> {
    let mut entry: *mut LinkMap = ptr::null_mut();
    // SAFETY: an open library, and room for an address.
    let answer = unsafe { dlinfo(library, DI_LINKMAP, (&raw mut entry).cast()) };
    (answer == 0 && !entry.is_null()).then_some(entry)
}

impl Libraries {
    /// The libraries that there are.
    fn now() -> Option<Libraries> {
        // SAFETY: the program itself, which is always open.
        let program = unsafe { libc::dlopen(ptr::null(), libc::RTLD_LAZY) };
        if program.is_null() {
            return None;
        }
        let (mut last, mut found) = (entry_of(program)?, None);
        // Nothing is added to the list or taken from it while the function runs: dl_iterate_phdr(3)
        // holds the lock of the list.
        each_file(|_, _| {
            let mut has_driver = false;
            // SAFETY: the entries of the list, whose names are strings.
            let name = unsafe {
                loop {
                    let name = match (*last).name {
                        name if name.is_null() => c"",
                        name => CStr::from_ptr(name),
                    };
                    has_driver |= is_driver(name.to_bytes());
                    match (*last).next.load(Ordering::Relaxed) {
                        next if next.is_null() => break name.to_owned(),
                        next => last = next,
                    }
                }
            };
            found = Some(Libraries {
                last,
                name,
                has_driver,
            });
            ControlFlow::Break(())
        });
        found
    }

    /// A reference to the last library, which keeps its entry; `None` if it cannot be had.
    fn hold(&self) -> Option<Held> {
        // SAFETY: nothing is loaded, so no code of a library is run.
        let library = unsafe {
            libc::dlopen(
                self.name.as_ptr(),
                libc::RTLD_LAZY | libc::RTLD_LOCAL | libc::RTLD_NOLOAD,
            )
        };
        if library.is_null() {
            return None;
        }
        if entry_of(library) == Some(self.last) {
            return Some(Held(library));
        }
        // SAFETY: the reference that was just taken.
        unsafe { libc::dlclose(library) };
        None
    }
}

/// Whether this is the path of a CUDA driver.
fn is_driver(path: &[u8]) -> bool {
    base_name(path).starts_with(b"libcuda.so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_drivers() {
        assert!(is_driver(b"/usr/lib/x86_64-linux-gnu/libcuda.so.1"));
        assert!(is_driver(b"libcuda.so"));
        for other in [&b"libcudart.so.12"[..], b"/opt/libcuda.so/libm.so.6", b""] {
            assert!(!is_driver(other));
        }
    }

    #[test]
    fn a_library_that_is_loaded_has_a_place_behind_the_last_one() {
        let before = Libraries::now().unwrap();
        assert!(before.hold().is_some() && !before.has_driver);
        // SAFETY: an entry that stays.
        let next = || unsafe { (*before.last).next.load(Ordering::Relaxed) };
        assert!(next().is_null());
        // SAFETY: a library of the C library without constructors that matter.
        let library = unsafe { libc::dlopen(c"libBrokenLocale.so.1".as_ptr(), libc::RTLD_LAZY) };
        if library.is_null() {
            eprintln!("skipped: the C library has no libBrokenLocale.so.1");
            return;
        }
        assert_eq!(next(), entry_of(library).unwrap());
        assert!(Libraries::now().unwrap().hold().is_some());
    }
}
