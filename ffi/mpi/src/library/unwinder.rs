// SPDX-License-Identifier: MIT OR Apache-2.0

//! libgcc_s, loaded when the first panic unwinds or an exception passes: Rust's standard library
//! names its functions, so that it would be one library more in every process that this one is
//! preloaded into. A copy of its own would not do: whoever throws brings the unwinder, and what
//! that one knows of a frame is asked of its own functions. glibc loads it as late, for
//! `pthread_cancel`.
//!
//! Elsewhere than on x86-64 with glibc, libgcc_s is loaded with this library.

use std::arch::global_asm;
use std::ffi::{CStr, c_char};
use std::process::abort;

/// The address of libgcc_s's function of this name.
unsafe extern "C" fn find(name: *const c_char) -> usize {
    // SAFETY: strings that end; the library stays where it is.
    let (found, name) = unsafe {
        let library = libc::dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_NOW);
        let found = if library.is_null() {
            std::ptr::null_mut()
        } else {
            libc::dlsym(library, name)
        };
        (found, CStr::from_ptr(name))
    };
    if found.is_null() {
        eprintln!(
            "libcopy: {} is not found in libgcc_s.so.1, which unwinding needs (Debian: libgcc-s1)",
            name.to_string_lossy()
        );
        abort();
    }
    found as usize
}

/// Each function jumps to libgcc_s's, so that the frame that it sees as its caller's is.
macro_rules! functions {
    ($($name:literal)*) => { $(
        global_asm!(
            concat!(".hidden ", $name),
            concat!(".globl ", $name),
            concat!(".type ", $name, ", @function"),
            concat!(".section .text.", $name, ",\"ax\",@progbits"),
            concat!($name, ":"),
            ".cfi_startproc",
            "mov rax, qword ptr [rip + 3f]",
            "test rax, rax",
            "jz 2f",
            "jmp rax",
            "2:",
            // What is passed on: no function has more than three arguments.
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            "lea rdi, [rip + 4f]",
            "call {find}",
            "mov qword ptr [rip + 3f], rax",
            "pop rdx",
            ".cfi_adjust_cfa_offset -8",
            "pop rsi",
            ".cfi_adjust_cfa_offset -8",
            "pop rdi",
            ".cfi_adjust_cfa_offset -8",
            "jmp rax",
            ".cfi_endproc",
            concat!(".size ", $name, ", . - ", $name),
            ".section .rodata.libcopy_unwinder,\"a\",@progbits",
            "4:",
            concat!(".asciz \"", $name, "\""),
            ".section .bss.libcopy_unwinder,\"aw\",@nobits",
            ".balign 8",
            "3:",
            ".zero 8",
            ".text",
            find = sym find,
        );
    )* };
}

// All that Rust's standard library names: of a static unwinder (zig's, for the wheel) nothing may
// be left to find.
functions! {
    "_Unwind_Backtrace"
    "_Unwind_DeleteException"
    "_Unwind_FindEnclosingFunction"
    "_Unwind_GetCFA"
    "_Unwind_GetDataRelBase"
    "_Unwind_GetIP"
    "_Unwind_GetIPInfo"
    "_Unwind_GetLanguageSpecificData"
    "_Unwind_GetRegionStart"
    "_Unwind_GetTextRelBase"
    "_Unwind_RaiseException"
    "_Unwind_Resume"
    "_Unwind_SetGR"
    "_Unwind_SetIP"
}
