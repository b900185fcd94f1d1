// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handlers of SIGSEGV: ours, those that were installed before it, and the SIGBUS that ours may
//! send.

use std::cell::UnsafeCell;
use std::mem::{MaybeUninit, size_of};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use crate::error::{Error, Result};

/// Foreign handlers that were installed over ours, at most.
const CHAIN: usize = 16;

struct Chain(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: an entry is written before `CHAINED` counts it, under the lock, and not after.
unsafe impl Sync for Chain {}

/// What was installed before us, oldest first.
static PREVIOUS: [Chain; CHAIN] = [const { Chain(UnsafeCell::new(MaybeUninit::uninit())) }; CHAIN];
static CHAINED: AtomicUsize = AtomicUsize::new(0);

/// A thread that is inside a foreign handler, where, and how far down the chain.
struct Inside {
    thread: AtomicI32,
    frame: AtomicPtr<u8>,
    depth: AtomicUsize,
}

static INSIDE: [Inside; 64] = [const {
    Inside {
        thread: AtomicI32::new(0),
        frame: AtomicPtr::new(std::ptr::null_mut()),
        depth: AtomicUsize::new(0),
    }
}; 64];

pub(super) type Handler =
    unsafe extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);

/// Installs `handler` for SIGSEGV unless it is there; whatever is there instead comes after it. The
/// first time, `prepare` is called before. The caller holds a lock: one thread at a time.
pub(super) fn install(handler: Handler, prepare: fn()) -> Result<()> {
    let mut now = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: `now` outlives the call, which fills it in.
    let now = unsafe {
        if libc::sigaction(libc::SIGSEGV, std::ptr::null(), now.as_mut_ptr()) != 0 {
            return Err(Error::last_os("sigaction(SIGSEGV)"));
        }
        now.assume_init()
    };
    let ours = handler as usize;
    if now.sa_sigaction == ours {
        return Ok(());
    }
    let known = CHAINED.load(Ordering::SeqCst);
    // SAFETY: the entries below `known` are written.
    let last = known
        .checked_sub(1)
        .map(|index| unsafe { (*PREVIOUS[index].0.get()).assume_init() });
    if last.is_none_or(|last| last.sa_sigaction != now.sa_sigaction) {
        if known == CHAIN {
            return Err(Error::argument(
                "number of SIGSEGV handlers installed over each other",
                known,
                ..CHAIN,
            ));
        }
        // SAFETY: not counted yet, so nobody reads it; we hold the lock.
        unsafe { (*PREVIOUS[known].0.get()).write(now) };
        CHAINED.store(known + 1, Ordering::SeqCst);
    }
    if known == 0 {
        prepare();
    }
    // SAFETY: all zero is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ours;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // Other handlers wait until we are done: alternate stacks are too small for frames upon frames.
    // SAFETY: the set is the structure's own.
    unsafe { libc::sigfillset(&raw mut action.sa_mask) };
    // SAFETY: `action` outlives the call; the handler has the right signature.
    match unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(Error::last_os("sigaction(SIGSEGV)")),
    }
}

/// This thread's `errno`.
pub(super) fn errno() -> i32 {
    // SAFETY: the address of errno is valid on every thread.
    unsafe { *libc::__errno_location() }
}

/// `siginfo_t` of a fault, as `asm-generic/siginfo.h` lays it out for 64-bit machines.
#[repr(C)]
struct FaultInfo {
    signo: i32,
    errno: i32,
    code: i32,
    pad: i32,
    address: usize,
    rest: [u64; 13],
}

const _: () = assert!(size_of::<FaultInfo>() == size_of::<libc::siginfo_t>());

/// `asm-generic/siginfo.h`: the address means nothing.
const BUS_ADRERR: i32 = 2;

/// Sends a SIGBUS to this thread, as for a page that cannot be read from its file. It is delivered
/// when our handler, whose `context` this is, returns: alternate stacks have no room for a second
/// frame.
pub(super) fn send_bus_error(address: usize, errno: i32, context: *mut libc::c_void) {
    let info = FaultInfo {
        signo: libc::SIGBUS,
        errno,
        code: BUS_ADRERR,
        pad: 0,
        address,
        rest: [0; 13],
    };
    // SAFETY: the structures outlive the calls, and the context is the handler's own. Like a fault,
    // this can be neither blocked nor ignored.
    unsafe {
        let mut now = MaybeUninit::<libc::sigaction>::zeroed();
        libc::sigaction(libc::SIGBUS, std::ptr::null(), now.as_mut_ptr());
        let mut now = now.assume_init();
        if now.sa_sigaction == libc::SIG_IGN {
            now.sa_sigaction = libc::SIG_DFL;
            libc::sigaction(libc::SIGBUS, &raw const now, std::ptr::null_mut());
        }
        libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            libc::getpid(),
            libc::syscall(libc::SYS_gettid) as i32,
            libc::SIGBUS,
            &raw const info,
        );
        // The mask that the return from the handler puts in force.
        let context = context.cast::<libc::ucontext_t>();
        libc::sigdelset(&raw mut (*context).uc_sigmask, libc::SIGBUS);
    }
}

/// Gives a signal to the handler that was there before ours.
///
/// # Safety
///
/// The arguments are those of a signal handler.
pub(super) unsafe fn pass_on(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let known = CHAINED.load(Ordering::SeqCst);
    let marker = 0_u8;
    let frame = (&raw const marker).cast_mut();
    // SAFETY: no arguments.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
    // A handler that was installed over ours calls us when it does not know the fault either: then
    // it is the turn of the one before. One that left with siglongjmp is not inside any more,
    // which its frame shows: real nesting grows downwards.
    let entry = (known > 1).then(|| enter(thread)).flatten();
    let depth = entry.map_or(0, |entry| {
        let old = entry.frame.swap(frame, Ordering::SeqCst);
        if !old.is_null() && frame < old {
            entry.depth.fetch_add(1, Ordering::SeqCst) + 1
        } else {
            entry.depth.store(0, Ordering::SeqCst);
            0
        }
    });
    let index = known.wrapping_sub(1 + depth);
    let action = if index < known {
        // SAFETY: entries below `known` are written.
        unsafe { (*PREVIOUS[index].0.get()).assume_init() }
    } else {
        // SAFETY: all zero is the default action.
        unsafe { std::mem::zeroed() }
    };
    // SAFETY: the structure is valid.
    let sent = unsafe { (*info).si_code } <= 0;
    match action.sa_sigaction {
        libc::SIG_IGN if sent => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The instruction faults again and is the application's own crash, with its own core.
            // SAFETY: all zero is the default action.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &raw const default, std::ptr::null_mut());
                if sent {
                    libc::raise(signal);
                }
            }
        }
        handler => {
            // SAFETY: the handler was installed for this signal with these flags.
            unsafe {
                // The mask that it would have had without us: the interrupted code's, and its own.
                let outside = (*context.cast::<libc::ucontext_t>()).uc_sigmask;
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const outside, std::ptr::null_mut());
                let mut mask = action.sa_mask;
                if action.sa_flags & libc::SA_NODEFER == 0 {
                    libc::sigaddset(&raw mut mask, signal);
                }
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const mask, std::ptr::null_mut());
                if action.sa_flags & libc::SA_RESETHAND != 0 {
                    let entry = (*PREVIOUS[index].0.get()).as_mut_ptr();
                    (*entry).sa_sigaction = libc::SIG_DFL;
                }
                if action.sa_flags & libc::SA_SIGINFO != 0 {
                    let handler: Handler = std::mem::transmute(handler);
                    handler(signal, info, context);
                } else {
                    let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
                    handler(signal);
                }
            }
        }
    }
    if let Some(entry) = entry {
        entry.frame.store(std::ptr::null_mut(), Ordering::SeqCst);
        if depth == 0 {
            entry.thread.store(0, Ordering::SeqCst);
        } else {
            entry.depth.store(depth - 1, Ordering::SeqCst);
        }
    }
}

/// This thread's entry of [`INSIDE`].
fn enter(thread: i32) -> Option<&'static Inside> {
    let mine = |entry: &&Inside| entry.thread.load(Ordering::SeqCst) == thread;
    INSIDE.iter().find(mine).or_else(|| {
        INSIDE.iter().find(|entry| {
            entry
                .thread
                .compare_exchange(0, thread, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        })
    })
}
