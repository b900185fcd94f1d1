// SPDX-License-Identifier: MIT OR Apache-2.0

//! What each thread remembers for itself, in few places of memory. A variable of a thread of a
//! library that is loaded is found by a call of the dynamic linker, which reads half a dozen pages
//! (System V ABI, thread-local storage); where many processes share a processor, none of them is at
//! hand any more. So what the thread that has loaded this library remembers is in memory of the
//! process: it is known by its thread pointer.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The thread pointer of the thread that has loaded this library; 0 before that.
#[unsafe(link_section = "libcopy_hot_words")]
static MAIN: AtomicUsize = AtomicUsize::new(0);

/// A variable of each thread. The main thread's is never dropped.
pub struct PerThread<T: 'static> {
    main: UnsafeCell<T>,
    /// That of another thread, which lives as long as the thread.
    other: fn() -> *const T,
}

// SAFETY: one thread alone uses `main`: threads that live have different pointers, and `MAIN` keeps
// the first that it got. After that thread has ended another one may have its pointer, and is
// alone.
unsafe impl<T> Sync for PerThread<T> {}

impl<T> PerThread<T> {
    /// `other` gives the variable of the thread that calls it.
    pub const fn new(main: T, other: fn() -> *const T) -> Self {
        let main = UnsafeCell::new(main);
        PerThread { main, other }
    }

    /// Does something with that of this thread.
    #[inline(always)]
    pub fn with<R>(&'static self, work: impl FnOnce(&T) -> R) -> R {
        let own = match pointer() {
            Some(pointer) if pointer == MAIN.load(Ordering::Relaxed) => {
                self.main.get().cast_const()
            }
            _ => (self.other)(),
        };
        // SAFETY: `main` is a static's and used by this thread alone, as the pointer says; the
        // other one is this thread's own, and lives as long as the thread.
        work(unsafe { &*own })
    }
}

impl<T> PerThread<Cell<T>> {
    /// Gives this thread's another value.
    #[inline(always)]
    pub fn set(&'static self, value: T) {
        self.with(|place| place.set(value));
    }
}

impl<T: Default> PerThread<Cell<T>> {
    /// This thread's value, and leaves the default there.
    #[inline(always)]
    pub fn take(&'static self) -> T {
        self.with(Cell::take)
    }
}

/// A variable of each thread: `per_thread!(static NAME: Type = VALUE)`, whose value is a constant.
macro_rules! per_thread {
    ($(#[$about:meta])* static $name:ident: $type:ty = $value:expr) => {
        $(#[$about])*
        static $name: $crate::library::per_thread::PerThread<$type> = {
            thread_local! {
                static OTHER: $type = const { $value };
            }
            $crate::library::per_thread::PerThread::new($value, || OTHER.with(std::ptr::from_ref))
        };
    };
}
pub(crate) use per_thread;

/// This thread has loaded this library; only the first that says so has.
pub fn set_main() {
    let own = pointer().unwrap_or(0);
    let _ = MAIN.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
}

/// What differs between threads that live; `None` where that is not known.
#[inline(always)]
fn pointer() -> Option<usize> {
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
    {
        let pointer: usize;
        // SAFETY: the word that the thread pointer leads to is its own address (System V ABI).
        unsafe {
            std::arch::asm!(
                "mov {}, fs:0",
                out(reg) pointer,
                options(nostack, preserves_flags, readonly, pure)
            );
        }
        Some(pointer)
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    per_thread!(static NUMBER: Cell<u32> = Cell::new(1));

    #[test]
    fn each_thread_has_its_own() {
        let add = || NUMBER.with(|number| number.replace(number.get() + 1));
        // The test program's first thread has loaded it, which runs no test beside this one.
        MAIN.store(0, Ordering::Relaxed);
        assert_eq!([add(), add()], [1, 2]);
        let thread = std::thread::spawn(move || {
            let first = add();
            set_main();
            [first, add(), add()]
        });
        let numbers = thread.join().unwrap();
        let has_main = pointer().is_some();
        assert_eq!(numbers, if has_main { [1, 1, 2] } else { [1, 2, 3] });
        // That thread stays the main one.
        set_main();
        assert_eq!(add(), 3);
    }
}
