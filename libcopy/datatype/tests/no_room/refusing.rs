// SPDX-License-Identifier: MIT OR Apache-2.0

//! An allocator that refuses a block, for tests of what happens then.

use std::alloc::{GlobalAlloc, Layout as Block, System};
use std::cell::Cell;

use libcopy_datatype::room::NoRoom;

/// Smaller blocks are no lists that grow with a type: they are always there.
const LARGE: usize = 4096;

thread_local! {
    /// Large blocks that this thread gets before one is refused; none is refused below 0.
    static LEFT: Cell<i64> = const { Cell::new(-1) };
}

struct Refusing;

impl Refusing {
    fn refuses(bytes: usize) -> bool {
        let left = LEFT.get();
        if bytes < LARGE || left < 0 {
            return false;
        }
        LEFT.set(left - 1);
        left == 0
    }
}

// SAFETY: everything is the system's allocator's, or refused, which an allocator may do at any
// time.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        if Refusing::refuses(block.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(block) }
    }

    unsafe fn realloc(&self, memory: *mut u8, block: Block, bytes: usize) -> *mut u8 {
        if Refusing::refuses(bytes) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, block, bytes) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, block: Block) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, block) }
    }
}

#[global_allocator]
static MEMORY: Refusing = Refusing;

/// Refuses a large block of `work`; what that comes to, and whether there were so many.
pub fn refuse<T>(number: i64, work: impl FnOnce() -> T) -> (T, bool) {
    LEFT.set(number);
    let done = work();
    (done, LEFT.replace(-1) < 0)
}

/// Refuses the first large block of `work`, then the one that is `step` blocks behind it, until
/// there are no more; returns how many were refused. Each refusal has to be an error that says so.
/// What was made is dropped with all room: that nothing is left over has no error.
pub fn refuse_each<T, E: std::fmt::Debug>(
    what: &str,
    step: usize,
    work: impl Fn() -> Result<T, E>,
    no_room: impl Fn(&E) -> Option<NoRoom>,
) -> i64 {
    for (count, refused) in (0..).step_by(step).enumerate() {
        let (done, was_refused) = refuse(refused, &work);
        match done {
            Ok(_) if !was_refused => return count as i64,
            Ok(_) => panic!("{what}: large block {refused} was refused, and nobody noticed"),
            Err(error) => match no_room(&error) {
                Some(none) => assert!(none.bytes >= LARGE as u64, "{what}: {none}"),
                None => panic!("{what}: {error:?}"),
            },
        }
    }
    unreachable!()
}
