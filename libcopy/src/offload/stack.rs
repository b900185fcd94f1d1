// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stacks of threads: one for signal handlers, and whether a buffer lies on the thread's own.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;

/// Bytes of the alternate stacks that we make: frames with large vector registers take 11 KiB.
pub(super) const STACK: usize = 64 << 10;

/// An alternate stack that we gave to a thread.
struct AlternateStack(*mut libc::c_void);

impl Drop for AlternateStack {
    fn drop(&mut self) {
        // SAFETY: the thread ends; if it still uses this stack, it is taken back before it goes.
        unsafe {
            let mut now = MaybeUninit::<libc::stack_t>::zeroed().assume_init();
            libc::sigaltstack(std::ptr::null(), &raw mut now);
            if now.ss_sp == self.0 {
                now.ss_flags = libc::SS_DISABLE;
                libc::sigaltstack(&raw const now, std::ptr::null_mut());
            }
            libc::munmap(self.0, STACK);
        }
    }
}

thread_local! {
    static ALTERNATE: UnsafeCell<Option<AlternateStack>> = const { UnsafeCell::new(None) };
    /// The end of this thread's stack; 0: not asked yet.
    static STACK_END: Cell<usize> = const { Cell::new(0) };
}

/// Gives this thread an alternate stack if it has none. Threads that only touch buffers need none:
/// the handler then runs on their own stack, which is not guarded.
pub(super) fn alternate_stack() {
    // SAFETY: the structures outlive the calls; the memory is new and kept until the thread ends.
    unsafe {
        let mut now = MaybeUninit::<libc::stack_t>::zeroed().assume_init();
        if libc::sigaltstack(std::ptr::null(), &raw mut now) != 0
            || now.ss_flags & libc::SS_DISABLE == 0
        {
            return;
        }
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        let memory = libc::mmap(std::ptr::null_mut(), STACK, protection, flags, -1, 0);
        if memory == libc::MAP_FAILED {
            return;
        }
        let new = libc::stack_t {
            ss_sp: memory,
            ss_flags: 0,
            ss_size: STACK,
        };
        let kept = ALTERNATE
            .try_with(|slot| *slot.get() = Some(AlternateStack(memory)))
            .is_ok();
        if !kept || libc::sigaltstack(&raw const new, std::ptr::null_mut()) != 0 {
            libc::munmap(memory, STACK);
            if kept {
                let _ = ALTERNATE.try_with(|slot| std::mem::forget((*slot.get()).take()));
            }
        }
    }
}

/// Whether a buffer is on the stack of this thread, where later calls would run into its guard.
pub(super) fn on_this_stack(start: usize, end: usize) -> bool {
    let here = 0_u8;
    let here = (&raw const here) as usize;
    let top = STACK_END.get();
    let top = if top != 0 {
        top
    } else {
        // SAFETY: the attributes are filled in, read, and destroyed.
        let top = unsafe {
            let mut attributes = MaybeUninit::<libc::pthread_attr_t>::zeroed();
            if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
                return false;
            }
            let mut attributes = attributes.assume_init();
            let (mut low, mut size) = (std::ptr::null_mut(), 0);
            libc::pthread_attr_getstack(&raw const attributes, &raw mut low, &raw mut size);
            libc::pthread_attr_destroy(&raw mut attributes);
            low as usize + size
        };
        STACK_END.set(top);
        top
    };
    end > here.saturating_sub(1 << 20) && start < top
}
