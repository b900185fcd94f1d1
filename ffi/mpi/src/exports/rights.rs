// SPDX-License-Identifier: MIT OR Apache-2.0

//! The C library's functions by which a process loses the right to read other processes' memory, or
//! they the right to read its own (ptrace(2), "Ptrace access mode checking"): another user or
//! group, or not dumpable. Before one of them does it, the other ranks hear of it, and leave
//! messages to the MPI library.

use crate::library::panics::caught;
use std::ffi::{CStr, c_int, c_ulong};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::comm::nonblocking_group;
use crate::comm::processes;

/// Who this process is, and whether it is dumpable.
fn identity() -> [u32; 7] {
    let mut ids = [0u32; 7];
    let [a, b, c, d, e, f, dumpable] = &mut ids;
    // SAFETY: writable outputs; the last one has none.
    unsafe {
        libc::getresuid(a, b, c);
        libc::getresgid(d, e, f);
        *dumpable = libc::syscall(libc::SYS_prctl, libc::PR_GET_DUMPABLE, 0, 0, 0, 0) as u32;
    }
    ids
}

/// Does what changes who this process is.
fn announced(change: impl FnOnce() -> c_int) -> c_int {
    let before = caught(|| {
        let before = processes::lose_rights(true);
        nonblocking_group::close_all();
        (before, identity())
    });
    let result = change();
    // SAFETY: a variable of this thread.
    let errno = unsafe { *libc::__errno_location() };
    if let Ok((false, who)) = before {
        if who == identity() {
            processes::lose_rights(false);
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    result
}

/// The function of this name behind ours; 0 and `errno` if there is none.
fn next(known: &AtomicUsize, name: &CStr) -> usize {
    let mut found = known.load(Ordering::Relaxed);
    if found == 0 {
        // SAFETY: a string that ends.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
        known.store(found, Ordering::Relaxed);
    }
    if found == 0 {
        // SAFETY: a variable of this thread.
        unsafe { *libc::__errno_location() = libc::ENOSYS };
    }
    found
}

/// Functions of the C library that change who a process is.
macro_rules! changes {
    ($($name:ident, $text:literal ($($argument:ident: $kind:ty),*);)*) => { $(
        /// The C library's function of this name.
        ///
        /// # Safety
        ///
        /// As its manual page says.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            let address = next(&NEXT, $text);
            if address == 0 {
                return -1;
            }
            // SAFETY: the C library's function of this name has these arguments; the caller's
            // promise.
            announced(|| unsafe {
                let call: unsafe extern "C-unwind" fn($($kind),*) -> c_int = std::mem::transmute(address);
                call($($argument),*)
            })
        }
    )* };
}

changes! {
    setuid, c"setuid"(uid: libc::uid_t);
    seteuid, c"seteuid"(uid: libc::uid_t);
    setreuid, c"setreuid"(real: libc::uid_t, effective: libc::uid_t);
    setresuid, c"setresuid"(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t);
    setgid, c"setgid"(gid: libc::gid_t);
    setegid, c"setegid"(gid: libc::gid_t);
    setregid, c"setregid"(real: libc::gid_t, effective: libc::gid_t);
    setresgid, c"setresgid"(real: libc::gid_t, effective: libc::gid_t, saved: libc::gid_t);
}

/// The C library's function of this name, whose further arguments are words.
///
/// # Safety
///
/// As its manual page says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    // SAFETY: the caller's promise; the system call takes what the function does.
    let call = || unsafe { libc::syscall(libc::SYS_prctl, option, a, b, c, d) as c_int };
    match option {
        libc::PR_SET_DUMPABLE => announced(call),
        _ => call(),
    }
}
