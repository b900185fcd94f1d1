// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory for packed bytes.

/// Room for packed bytes. Open MPI (4.1 and 5.0) writes all bytes of a message that is longer than
/// what it is received into, before it says so, if those are dense; so there is more room behind,
/// of which only pages that are written to take memory.
#[derive(Debug)]
pub struct Memory(pub *mut u8);

// SAFETY: memory of our own, whichever thread uses it.
unsafe impl Send for Memory {}

/// Bytes of the longest message that may come by mistake.
const LONGEST: usize = 256 << 20;
/// Bytes behind it that are nobody's.
const FENCE: usize = 64 << 10;

impl Memory {
    /// `None` if the system gives no addresses.
    pub fn new() -> Option<Memory> {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        );
        // SAFETY: new memory.
        let place = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                LONGEST + FENCE,
                libc::PROT_NONE,
                flags,
                -1,
                0,
            )
        };
        if place == libc::MAP_FAILED {
            return None;
        }
        let memory = Memory(place.cast());
        // SAFETY: our own memory.
        let usable = unsafe {
            // A program that has all its memory locked does not mean this.
            libc::munlock(place, LONGEST + FENCE);
            libc::madvise(place, LONGEST, libc::MADV_NOHUGEPAGE);
            libc::mprotect(place, LONGEST, protection)
        };
        (usable == 0).then_some(memory)
    }

    /// Gives back what was written by mistake behind `bytes`.
    #[cold]
    pub fn tidy(at: *mut u8, bytes: u64) {
        let kept = (bytes as usize).next_multiple_of(FENCE);
        // SAFETY: the memory behind is ours and nobody's.
        unsafe {
            libc::madvise(
                at.wrapping_add(kept).cast(),
                LONGEST - kept,
                libc::MADV_DONTNEED,
            )
        };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own memory, which nobody uses any more.
        unsafe { libc::munmap(self.0.cast(), LONGEST + FENCE) };
    }
}
