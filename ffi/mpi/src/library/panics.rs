// SPDX-License-Identifier: MIT OR Apache-2.0

//! Panics of ours end here: none gets into the program that called an MPI function. What is not
//! ours passes: what an error handler or an operation of the program's throws (C++), and the
//! unwinding of `pthread_cancel` and `pthread_exit`. `std::panic::catch_unwind` ends the process
//! for these.

use std::ffi::c_int;
use std::thread::Result;

use crate::library::abi;

/// Does what a function does. A panic of ours becomes an error of the MPI library's.
#[inline(always)]
pub fn guarded(work: impl FnOnce() -> c_int) -> c_int {
    let failed = |_| abi::get().map_or(16, |abi| abi.error);
    caught(work).unwrap_or_else(failed)
}

/// What `work` gives, or nothing if it panics.
pub fn caught_or_none<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    caught(work).ok().flatten()
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
pub use ours::caught;
/// As it is called on other machines, where what is not ours ends the process.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
#[allow(clippy::disallowed_methods)]
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod ours {
    use std::arch::global_asm;
    use std::ffi::{c_int, c_void};
    use std::mem::ManuallyDrop;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::process::abort;

    use super::Result;

    unsafe extern "C-unwind" {
        /// Calls `work` with `data`. Returns the exception of a panic of Rust's in it, or null.
        fn libcopy_catch_panic(
            work: unsafe extern "C-unwind" fn(*mut c_void),
            data: *mut c_void,
        ) -> *mut c_void;
        fn _Unwind_RaiseException(exception: *mut c_void) -> c_int;
    }

    unsafe extern "C" {
        fn _Unwind_SetGR(context: *mut c_void, register: c_int, value: usize);
        fn _Unwind_SetIP(context: *mut c_void, address: usize);
        static libcopy_panic_caught: u8;
    }

    // The unwinder enters at the second name with the frame's stack pointer and, in rax, the
    // exception. 0x1b: relative to its place, 32 bits.
    global_asm!(
        ".section .text.libcopy_catch_panic,\"ax\",@progbits",
        ".globl libcopy_catch_panic",
        ".hidden libcopy_catch_panic",
        ".type libcopy_catch_panic, @function",
        "libcopy_catch_panic:",
        ".cfi_startproc",
        ".cfi_personality 0x1b, {personality}",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rax, rdi",
        "mov rdi, rsi",
        "call rax",
        "xor eax, eax",
        ".globl libcopy_panic_caught",
        ".hidden libcopy_panic_caught",
        "libcopy_panic_caught:",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        ".size libcopy_catch_panic, . - libcopy_catch_panic",
        ".text",
        personality = sym personality,
    );

    /// What the unwinder asks about the frame of [`libcopy_catch_panic`] (Itanium C++ ABI,
    /// "Exception Handling", 1.5.3; `unwind.h`).
    unsafe extern "C" fn personality(
        _version: c_int,
        actions: c_int,
        class: u64,
        exception: *mut c_void,
        context: *mut c_void,
    ) -> c_int {
        const SEARCH_PHASE: c_int = 1;
        const HANDLER_FRAME: c_int = 4;
        const FORCE_UNWIND: c_int = 8;
        const HANDLER_FOUND: c_int = 6;
        const INSTALL_CONTEXT: c_int = 7;
        const CONTINUE_UNWIND: c_int = 8;
        // As the standard library writes it now, and as it did.
        const OF_RUST: [u64; 2] = [
            u64::from_ne_bytes(*b"MOZ\0RUST"),
            u64::from_be_bytes(*b"MOZ\0RUST"),
        ];
        const RAX: c_int = 0;

        if !OF_RUST.contains(&class) || actions & FORCE_UNWIND != 0 {
            CONTINUE_UNWIND
        } else if actions & SEARCH_PHASE != 0 {
            HANDLER_FOUND
        } else if actions & HANDLER_FRAME != 0 {
            // SAFETY: the unwinder's context, of the frame that this is the function of.
            unsafe {
                _Unwind_SetGR(context, RAX, exception as usize);
                _Unwind_SetIP(context, (&raw const libcopy_panic_caught) as usize);
            }
            INSTALL_CONTEXT
        } else {
            CONTINUE_UNWIND
        }
    }

    /// What is done, and then what came out of it.
    union Job<F, T> {
        work: ManuallyDrop<F>,
        done: ManuallyDrop<T>,
    }

    /// What `work` gives, or what it has panicked with.
    #[inline]
    pub fn caught<T, F: FnOnce() -> T>(work: F) -> Result<T> {
        unsafe extern "C-unwind" fn run<T, F: FnOnce() -> T>(job: *mut c_void) {
            // SAFETY: the job of the call below, which is run once.
            unsafe {
                let job = job.cast::<Job<F, T>>();
                let work = ManuallyDrop::take(&mut (*job).work);
                (*job).done = ManuallyDrop::new(work());
            }
        }
        let mut job = Job::<F, T> {
            work: ManuallyDrop::new(work),
        };
        // SAFETY: a function for this job.
        let exception = unsafe { libcopy_catch_panic(run::<T, F>, (&raw mut job).cast()) };
        if exception.is_null() {
            // SAFETY: it has come to its end, so it has written what it gives.
            return Ok(unsafe { ManuallyDrop::take(&mut job.done) });
        }
        Err(panicked(exception))
    }

    /// What Rust has panicked with: its standard library is to see that the panic is over.
    #[cold]
    #[allow(clippy::disallowed_methods)]
    fn panicked(exception: *mut c_void) -> Box<dyn std::any::Any + Send> {
        let again = || {
            // SAFETY: an exception that was caught.
            unsafe { _Unwind_RaiseException(exception) };
            // There was nobody to catch it.
            abort()
        };
        match catch_unwind(AssertUnwindSafe(again)) {
            Ok(never) => never,
            Err(payload) => payload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_caught_and_over() {
        struct Dropped<'a>(&'a mut u32);
        impl Drop for Dropped<'_> {
            fn drop(&mut self) {
                *self.0 += 1;
            }
        }
        let mut dropped = 0;
        assert_eq!(caught(|| [7u64; 9]).unwrap(), [7; 9]);
        for round in 1..4 {
            let kept = Dropped(&mut dropped);
            let failed = caught(|| {
                let _kept = kept;
                // One that is caught by another is none of ours.
                assert!(caught(|| panic!("inside {round}")).is_err());
                assert!(!std::thread::panicking());
                panic!("round {round}")
            });
            let said: Box<String> = failed.map(|()| 0).unwrap_err().downcast().unwrap();
            assert_eq!(*said, format!("round {round}"));
            assert!(!std::thread::panicking());
        }
        assert_eq!(dropped, 3);
        assert_eq!(guarded(|| 5), 5);
        assert_ne!(guarded(|| panic!("an error of the library's")), 0);
    }
}
