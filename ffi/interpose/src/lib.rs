// SPDX-License-Identifier: MIT OR Apache-2.0

//! The C library's functions that hand memory to the kernel, wrapped: a guard holds a thread that
//! touches its memory, but a system call fails with `EFAULT` instead. So what is pending on the
//! memory is settled first, which costs one look at a counter where nothing is pending.
//!
//! A program that is linked with libcopy_async.so, or has it or libcopy_mpi.so preloaded, calls
//! these instead of the C library's. If bytes were lost because a peer died, they fail with
//! `EOWNERDEAD`.
//!
//! The guards are in the copy of libcopy that the program uses, which may be in another shared
//! library. It tells these functions where to look and whom to call ([`attach`]).
//!
//! What the C library does on its own behalf does not come here; therefore `fread`, `fwrite` and
//! `free`, which unmaps large blocks, are wrapped too.

use libc::{FILE, iovec, mmsghdr, msghdr, off_t, sockaddr, socklen_t, ssize_t};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// A null-terminated array of strings.
type Strings = *const *const c_char;

/// Waits until nothing is pending on so many bytes at an address: 0, or the errno of what took
/// them. Async-signal-safe.
pub type Settle = extern "C" fn(address: usize, length: usize) -> c_int;

/// What is pending where nobody has attached.
static NOTHING: AtomicUsize = AtomicUsize::new(0);
/// The word that is 0 where nothing is pending.
static PENDING: AtomicPtr<AtomicUsize> = AtomicPtr::new((&raw const NOTHING).cast_mut());
/// A [`Settle`], set before `PENDING` is.
static SETTLE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Has the wrappers look at `pending`, which is 0 as long as nothing is pending, and call `settle`
/// where it is not. Only the first copy of libcopy in a process gets them: false for another. It
/// calls this before it has anything be pending.
pub fn attach(pending: &'static AtomicUsize, settle: Settle) -> bool {
    let settle = settle as *mut c_void;
    let attached = SETTLE.compare_exchange(null_mut(), settle, Ordering::AcqRel, Ordering::Acquire);
    if attached.is_ok() {
        // Whoever frees memory on which something is pending has been told of that by whom it was
        // told to, and so has seen this.
        FREE_AT_ONCE.store(free_slowly as *mut c_void, Ordering::Release);
        REALLOC_AT_ONCE.store(realloc_slowly as *mut c_void, Ordering::Release);
        PENDING.store((&raw const *pending).cast_mut(), Ordering::Release);
    }
    attached.is_ok() || attached == Err(settle)
}

/// Whether anything may be pending.
#[inline(always)]
fn any_pending() -> bool {
    // SAFETY: it points to `NOTHING` or to what `attach` was given, which are there for good.
    unsafe { (*PENDING.load(Ordering::Acquire)).load(Ordering::Relaxed) != 0 }
}

/// Settles memory where something may be pending; otherwise the errno.
fn settle_raw(address: usize, length: usize) -> Result<(), c_int> {
    let settle = SETTLE.load(Ordering::Acquire);
    if settle.is_null() {
        return Ok(());
    }
    // SAFETY: `attach` alone sets it, to such a function.
    let settle = unsafe { transmute::<*mut c_void, Settle>(settle) };
    match settle(address, length) {
        0 => Ok(()),
        errno => Err(errno),
    }
}

/// The next function of this name: the C library's, or another wrapper's.
fn next(name: &CStr, kept: &AtomicPtr<c_void>) -> *mut c_void {
    let found = kept.load(Ordering::Relaxed);
    if !found.is_null() {
        return found;
    }
    // SAFETY: the name is a string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // The C library lacks the function that the program calls: there is no result to return.
        std::process::abort();
    }
    kept.store(found, Ordering::Relaxed);
    found
}

/// Settles memory; -1 with errno if its bytes are lost.
#[inline]
fn settled(address: *const c_void, length: usize) -> Result<(), ()> {
    if !any_pending() {
        return Ok(());
    }
    settle_raw(address as usize, length).map_err(|errno| {
        // SAFETY: the address of errno is valid on every thread.
        unsafe { *libc::__errno_location() = errno };
    })
}

/// Settles what a vector names.
///
/// # Safety
///
/// The kernel reads the vector next: what it could not read it refuses, and so must we. The vector
/// itself is read here, which waits if it is guarded.
unsafe fn vector_settled(vector: *const iovec, count: usize) -> Result<(), ()> {
    if !any_pending() || vector.is_null() || count > libc::UIO_MAXIOV as usize {
        return Ok(());
    }
    for index in 0..count {
        // SAFETY: the caller of readv and its like vouches for the vector.
        let piece = unsafe { *vector.add(index) };
        settled(piece.iov_base, piece.iov_len)?;
    }
    Ok(())
}

/// Settles what a message names.
///
/// # Safety
///
/// As for [`vector_settled`].
unsafe fn message_settled(message: *const msghdr) -> Result<(), ()> {
    if !any_pending() || message.is_null() {
        return Ok(());
    }
    // SAFETY: the caller of sendmsg and its like vouches for the message.
    let message = unsafe { *message };
    settled(message.msg_control, message.msg_controllen)?;
    // SAFETY: as above.
    unsafe { vector_settled(message.msg_iov, message.msg_iovlen) }
}

/// Waits for everything that is pending, since the process's memory goes. What is lost does not
/// matter any more.
fn all_settled() -> Result<(), ()> {
    let _ = settle_raw(0, usize::MAX);
    Ok(())
}

/// Settles a block of the allocator's, which may be about to be unmapped. What is lost does not
/// matter to the code that gives the block back.
fn block_settled(block: *const c_void) -> Result<(), ()> {
    if any_pending() && !block.is_null() {
        let _ = settle_raw(block as usize, usable(block));
    }
    Ok(())
}

/// `malloc_usable_size` of the allocator whose `free` comes next, if that is known.
static USABLE_SIZE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
/// That `free`, and its `realloc`.
static FREE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static REALLOC: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

type Free = unsafe extern "C" fn(*mut c_void);
type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;

/// What `free` and `realloc` call, which programs call more often than all others together: the
/// next function, or what looks whether anything is pending once anything may be.
static FREE_AT_ONCE: AtomicPtr<c_void> = AtomicPtr::new(free_slowly as *mut c_void);
static REALLOC_AT_ONCE: AtomicPtr<c_void> = AtomicPtr::new(realloc_slowly as *mut c_void);

/// Finds them when the library is loaded. Not in `free`: dlsym(3) frees the text of an error before
/// it forgets it, and would free it again if it were called from there.
extern "C" fn find_allocator() {
    // SAFETY: the names are strings.
    let (asked, freeing, growing) = unsafe {
        (
            libc::dlsym(libc::RTLD_DEFAULT, c"malloc_usable_size".as_ptr()),
            libc::dlsym(libc::RTLD_NEXT, c"free".as_ptr()),
            libc::dlsym(libc::RTLD_NEXT, c"realloc".as_ptr()),
        )
    };
    FREE.store(freeing, Ordering::Relaxed);
    REALLOC.store(growing, Ordering::Relaxed);
    for (at_once, slowly, next) in [
        (&FREE_AT_ONCE, free_slowly as *mut c_void, freeing),
        (&REALLOC_AT_ONCE, realloc_slowly as *mut c_void, growing),
    ] {
        // Only as long as nobody has attached.
        if !next.is_null() && SETTLE.load(Ordering::Acquire).is_null() {
            let _ = at_once.compare_exchange(slowly, next, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
    if !asked.is_null() && !freeing.is_null() && are_in_one_file([asked as u64, freeing as u64]) {
        USABLE_SIZE.store(asked, Ordering::Relaxed);
    }
}

/// Whether two addresses are in the same loaded file. dladdr(3) would say so as well, but looks at
/// each symbol of the file.
fn are_in_one_file(mut addresses: [u64; 2]) -> bool {
    unsafe extern "C" fn visit(
        info: *mut libc::dl_phdr_info,
        _size: libc::size_t,
        addresses: *mut c_void,
    ) -> c_int {
        // SAFETY: the loader describes a file that is loaded as long as this runs; the addresses
        // are ours.
        unsafe {
            let (info, addresses) = (&*info, &*addresses.cast::<[u64; 2]>());
            let headers = std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into());
            let has = |address: u64| {
                let mut segments = headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
                segments.any(|h| address.wrapping_sub(info.dlpi_addr + h.p_vaddr) < h.p_memsz)
            };
            addresses.iter().all(|address| has(*address)).into()
        }
    }
    // SAFETY: the callback gets these addresses, and is not called afterwards.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut addresses).cast()) != 0 }
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = find_allocator;

/// Bytes of a block, as far as its allocator tells: the one whose `free` comes next must be the one
/// that is asked. Otherwise 1, which finds guards that begin where the block does.
fn usable(block: *const c_void) -> usize {
    let function = USABLE_SIZE.load(Ordering::Relaxed);
    if function.is_null() {
        return 1;
    }
    // SAFETY: this is its signature, and the block is the allocator's.
    unsafe {
        transmute::<*mut c_void, unsafe extern "C" fn(*const c_void) -> usize>(function)(block)
    }
}

/// The C library's function, after what is pending in the block.
///
/// # Safety
///
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(block: *mut c_void) {
    let function = FREE_AT_ONCE.load(Ordering::Relaxed);
    // SAFETY: the caller's promise; only functions with this signature are stored there.
    unsafe { transmute::<*mut c_void, Free>(function)(block) }
}

/// The same where something may be pending, or the function has not been looked for.
#[inline(never)]
unsafe extern "C" fn free_slowly(block: *mut c_void) {
    static SOUGHT: AtomicBool = AtomicBool::new(false);
    let _ = block_settled(block);
    if FREE.load(Ordering::Relaxed).is_null() && SOUGHT.swap(true, Ordering::Relaxed) {
        // Freed by the code that looks for the function: kept, rather than looking for ever.
        return;
    }
    // SAFETY: the caller's promise; the next function has this signature.
    unsafe {
        let function = next(c"free", &FREE);
        transmute::<*mut c_void, Free>(function)(block);
    }
}

/// The C library's function, after what is pending in the block.
///
/// # Safety
///
/// That of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(block: *mut c_void, size: usize) -> *mut c_void {
    let function = REALLOC_AT_ONCE.load(Ordering::Relaxed);
    // SAFETY: the caller's promise; only functions with this signature are stored there.
    unsafe { transmute::<*mut c_void, Realloc>(function)(block, size) }
}

/// The same where something may be pending, or the function has not been looked for.
#[inline(never)]
unsafe extern "C" fn realloc_slowly(block: *mut c_void, size: usize) -> *mut c_void {
    let _ = block_settled(block);
    // SAFETY: the caller's promise; the next function has this signature.
    unsafe {
        let function = next(c"realloc", &REALLOC);
        transmute::<*mut c_void, Realloc>(function)(block, size)
    }
}

/// A function's name as the linker looks for it.
macro_rules! symbol {
    ($name:ident) => {
        const {
            match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => c"",
            }
        }
    };
}

macro_rules! exit {
    ($($name:ident)*) => {
        $(
            /// The C library's function, after everything that is pending: peers get their bytes.
            ///
            /// # Safety
            ///
            /// That of the C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(status: c_int) -> ! {
                static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
                let _ = all_settled();
                // SAFETY: the caller's promise; the next function has this signature.
                unsafe {
                    let function = next(symbol!($name), &NEXT);
                    transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> !>(function)(status)
                }
            }
        )*
    };
}

exit! { _exit _Exit quick_exit }

macro_rules! wrap {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $failed:expr, $settle:expr;)*) => {
        $(
            /// The C library's function, after what is pending on its memory.
            ///
            /// # Safety
            ///
            /// That of the C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
                type Function = unsafe extern "C" fn($($type),*) -> $result;
                /// The same where something may be pending, or the function has not been looked
                /// for.
                #[cold]
                #[inline(never)]
                unsafe extern "C" fn pending($($argument: $type),*) -> $result {
                    // SAFETY: as below.
                    unsafe {
                        if ($settle).is_err() {
                            return $failed;
                        }
                        let function = transmute::<*mut c_void, Function>(next(symbol!($name), &NEXT));
                        function($($argument),*)
                    }
                }
                let function = NEXT.load(Ordering::Relaxed);
                // SAFETY: the caller's promise; the next function has this signature.
                unsafe {
                    if any_pending() || function.is_null() {
                        pending($($argument),*)
                    } else {
                        transmute::<*mut c_void, Function>(function)($($argument),*)
                    }
                }
            }
        )*
    };
}

wrap! {
    read(file: c_int, to: *mut c_void, length: usize) -> ssize_t, -1, settled(to, length);
    write(file: c_int, from: *const c_void, length: usize) -> ssize_t, -1, settled(from, length);
    pread(file: c_int, to: *mut c_void, length: usize, at: off_t) -> ssize_t, -1,
        settled(to, length);
    pread64(file: c_int, to: *mut c_void, length: usize, at: i64) -> ssize_t, -1,
        settled(to, length);
    pwrite(file: c_int, from: *const c_void, length: usize, at: off_t) -> ssize_t, -1,
        settled(from, length);
    pwrite64(file: c_int, from: *const c_void, length: usize, at: i64) -> ssize_t, -1,
        settled(from, length);
    readv(file: c_int, to: *const iovec, count: c_int) -> ssize_t, -1,
        vector_settled(to, count as usize);
    writev(file: c_int, from: *const iovec, count: c_int) -> ssize_t, -1,
        vector_settled(from, count as usize);
    preadv(file: c_int, to: *const iovec, count: c_int, at: off_t) -> ssize_t, -1,
        vector_settled(to, count as usize);
    preadv64(file: c_int, to: *const iovec, count: c_int, at: i64) -> ssize_t, -1,
        vector_settled(to, count as usize);
    pwritev(file: c_int, from: *const iovec, count: c_int, at: off_t) -> ssize_t, -1,
        vector_settled(from, count as usize);
    pwritev64(file: c_int, from: *const iovec, count: c_int, at: i64) -> ssize_t, -1,
        vector_settled(from, count as usize);
    process_vm_readv(
        process: libc::pid_t, local: *const iovec, locals: libc::c_ulong,
        remote: *const iovec, remotes: libc::c_ulong, flags: libc::c_ulong
    ) -> ssize_t, -1, vector_settled(local, locals as usize);
    process_vm_writev(
        process: libc::pid_t, local: *const iovec, locals: libc::c_ulong,
        remote: *const iovec, remotes: libc::c_ulong, flags: libc::c_ulong
    ) -> ssize_t, -1, vector_settled(local, locals as usize);
    send(socket: c_int, from: *const c_void, length: usize, flags: c_int) -> ssize_t, -1,
        settled(from, length);
    recv(socket: c_int, to: *mut c_void, length: usize, flags: c_int) -> ssize_t, -1,
        settled(to, length);
    sendto(
        socket: c_int, from: *const c_void, length: usize, flags: c_int,
        address: *const sockaddr, size: socklen_t
    ) -> ssize_t, -1, settled(from, length);
    recvfrom(
        socket: c_int, to: *mut c_void, length: usize, flags: c_int,
        address: *mut sockaddr, size: *mut socklen_t
    ) -> ssize_t, -1, settled(to, length);
    sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t, -1,
        message_settled(message);
    recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t, -1,
        message_settled(message);
    sendmmsg(socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int, -1,
        (0..count as usize).try_for_each(|index| message_settled(&raw const (*messages.add(index)).msg_hdr));
    recvmmsg(
        socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int,
        timeout: *mut libc::timespec
    ) -> c_int, -1,
        (0..count as usize).try_for_each(|index| message_settled(&raw const (*messages.add(index)).msg_hdr));
    fread(to: *mut c_void, size: usize, count: usize, file: *mut FILE) -> usize, 0,
        settled(to, size.saturating_mul(count));
    fwrite(from: *const c_void, size: usize, count: usize, file: *mut FILE) -> usize, 0,
        settled(from, size.saturating_mul(count));
    fgets(to: *mut c_char, length: c_int, file: *mut FILE) -> *mut c_char, null_mut(),
        settled(to.cast(), length as usize);
    munmap(address: *mut c_void, length: usize) -> c_int, -1, settled(address, length);
    mprotect(address: *mut c_void, length: usize, protection: c_int) -> c_int, -1,
        settled(address, length);
    reallocarray(block: *mut c_void, count: usize, size: usize) -> *mut c_void, null_mut(),
        block_settled(block);
    execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int, -1, all_settled();
    execv(path: *const c_char, arguments: Strings) -> c_int, -1, all_settled();
    execvp(name: *const c_char, arguments: Strings) -> c_int, -1, all_settled();
    execvpe(name: *const c_char, arguments: Strings, environment: Strings) -> c_int, -1, all_settled();
    fexecve(file: c_int, arguments: Strings, environment: Strings) -> c_int, -1, all_settled();
    madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int, -1,
        settled(address, length);
    // Those that _FORTIFY_SOURCE calls instead.
    __read_chk(file: c_int, to: *mut c_void, length: usize, room: usize) -> ssize_t, -1,
        settled(to, length);
    __pread_chk(
        file: c_int, to: *mut c_void, length: usize, at: off_t, room: usize
    ) -> ssize_t, -1, settled(to, length);
    __pread64_chk(
        file: c_int, to: *mut c_void, length: usize, at: i64, room: usize
    ) -> ssize_t, -1, settled(to, length);
    __recv_chk(
        socket: c_int, to: *mut c_void, length: usize, room: usize, flags: c_int
    ) -> ssize_t, -1, settled(to, length);
    __recvfrom_chk(
        socket: c_int, to: *mut c_void, length: usize, room: usize, flags: c_int,
        address: *mut sockaddr, size: *mut socklen_t
    ) -> ssize_t, -1, settled(to, length);
    __fread_chk(
        to: *mut c_void, room: usize, size: usize, count: usize, file: *mut FILE
    ) -> usize, 0, settled(to, size.saturating_mul(count));
}

#[cfg(test)]
mod tests {
    use super::*;

    static PENDING_HERE: AtomicUsize = AtomicUsize::new(0);
    static WATCHED: AtomicUsize = AtomicUsize::new(0);
    static SETTLED: AtomicUsize = AtomicUsize::new(0);

    extern "C" fn settle(address: usize, _length: usize) -> c_int {
        // Other threads of this program free blocks, too.
        if address == WATCHED.load(Ordering::Relaxed) {
            SETTLED.fetch_add(1, Ordering::Relaxed);
        }
        0
    }

    #[test]
    fn blocks_are_settled_once_anything_may_be_pending() {
        let at_once = || {
            let [free, realloc] = [&FREE_AT_ONCE, &REALLOC_AT_ONCE];
            [free, realloc].map(|function| function.load(Ordering::Relaxed))
        };
        let next = [&FREE, &REALLOC].map(|function| function.load(Ordering::Relaxed));
        assert!(next.iter().all(|function| !function.is_null()));
        assert_eq!(at_once(), next);
        assert!(attach(&PENDING_HERE, settle));
        assert!(!at_once().iter().any(|function| next.contains(function)));
        // SAFETY: blocks of the allocator's, each of which is given back once.
        unsafe {
            for pending in [0, 1] {
                let block = libc::malloc(100);
                WATCHED.store(block as usize, Ordering::Relaxed);
                PENDING_HERE.store(pending, Ordering::Relaxed);
                let longer = realloc(block, 100_000);
                assert_eq!(SETTLED.swap(0, Ordering::Relaxed), pending);
                WATCHED.store(longer as usize, Ordering::Relaxed);
                free(longer);
                assert_eq!(SETTLED.swap(0, Ordering::Relaxed), pending);
                PENDING_HERE.store(0, Ordering::Relaxed);
            }
        }
    }
}
