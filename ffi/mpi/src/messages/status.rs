// SPDX-License-Identifier: MIT OR Apache-2.0

//! `MPI_Status`, whose places differ between the libraries: Open MPI has source, tag, error, a flag
//! and a count of bytes; MPICH's ABI has the count in two halves first, the flag in the upper one.

use std::ffi::{c_int, c_void};

use crate::abi::{ANY_TAG, Abi};

/// Room for the status of either library.
#[repr(C, align(8))]
pub struct Room([u8; 24]);

impl Room {
    /// An empty one.
    pub fn new() -> Room {
        Room([0; 24])
    }

    /// As an argument.
    pub fn pointer(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    /// The program's status, or this one if it wants none.
    pub fn instead_of(&mut self, status: *mut c_void) -> *mut c_void {
        match is_ignored(status) {
            true => self.pointer(),
            false => status,
        }
    }
}

/// Whether this is `MPI_STATUS_IGNORE` or `MPI_STATUSES_IGNORE`: 0 in Open MPI, 1 in MPICH.
#[inline]
pub fn is_ignored(status: *mut c_void) -> bool {
    status as usize <= 1
}

/// A status of the program's, or one of ours.
#[derive(Clone, Copy)]
pub struct Status {
    at: *mut c_void,
    open: bool,
}

impl Status {
    /// # Safety
    ///
    /// A status of this library is there, as long as this is used.
    #[inline]
    pub unsafe fn new(abi: &Abi, at: *mut c_void) -> Status {
        Status {
            at,
            open: abi.is_open_mpi(),
        }
    }

    /// # Safety
    ///
    /// As for [`Status::new`], for all of an array.
    pub unsafe fn of_array(abi: &Abi, array: *mut c_void, index: usize) -> Status {
        let size = if abi.is_open_mpi() { 24 } else { 20 };
        // SAFETY: the caller's promise.
        unsafe { Status::new(abi, array.byte_add(size * index)) }
    }

    /// As an argument.
    pub fn pointer(self) -> *mut c_void {
        self.at
    }

    #[inline]
    fn word(self, open: usize, other: usize) -> *mut c_int {
        let place = if self.open { open } else { other };
        self.at.wrapping_byte_add(place).cast()
    }

    /// `MPI_SOURCE`
    #[inline]
    pub fn source(self) -> c_int {
        // SAFETY: `new` was promised a status.
        unsafe { self.word(0, 8).read() }
    }

    /// `MPI_TAG`
    #[inline]
    pub fn tag(self) -> c_int {
        // SAFETY: `new` was promised a status.
        unsafe { self.word(4, 12).read() }
    }

    /// `MPI_ERROR`
    #[inline]
    pub fn error(self) -> c_int {
        // SAFETY: `new` was promised a status.
        unsafe { self.word(8, 16).read() }
    }

    /// Sets `MPI_ERROR`.
    pub fn set_error(self, code: c_int) {
        // SAFETY: `new` was promised a status.
        unsafe { self.word(8, 16).write(code) }
    }

    /// Whether the request was cancelled.
    #[inline]
    pub fn is_cancelled(self) -> bool {
        // SAFETY: `new` was promised a status.
        let word = unsafe { self.word(12, 4).read() };
        if self.open { word != 0 } else { word & 1 != 0 }
    }

    /// Bytes that were received.
    #[inline]
    pub fn bytes(self) -> u64 {
        // SAFETY: `new` was promised a status. Fortran's are arrays of `int`s, aligned like these.
        unsafe {
            if self.open {
                return self.at.byte_add(16).cast::<u64>().read_unaligned();
            }
            let (low, high) = (self.word(0, 0).read(), self.word(0, 4).read());
            u64::from(low as u32) | u64::from(high as u32 >> 1) << 32
        }
    }

    /// Sets the bytes that were received.
    pub fn set_bytes(self, bytes: u64) {
        // SAFETY: `new` was promised a status.
        unsafe {
            if self.open {
                self.at.byte_add(16).cast::<u64>().write_unaligned(bytes);
                return;
            }
            let cancelled = self.word(0, 4).read() & 1;
            self.word(0, 0).write(bytes as u32 as c_int);
            let high = (bytes >> 32) as u32;
            self.word(0, 4).write((high << 1) as c_int | cancelled);
        }
    }

    /// Says that nothing was received, from `nobody`, as for what is no message.
    pub fn fill_with_nothing(self, nobody: c_int) {
        // SAFETY: `new` was promised a status.
        unsafe {
            self.word(0, 8).write(nobody);
            self.word(4, 12).write(nobody);
            self.word(8, 16).write(0);
            self.word(12, 4).write(0);
        }
        self.set_bytes(0);
    }

    /// Says nothing that a status of a library's says.
    pub fn fill_with_nobody(self) {
        // SAFETY: `new` was promised a status.
        unsafe {
            self.word(0, 8).write(0);
            self.word(4, 12).write(0);
            self.word(12, 4).write(0);
        }
        self.set_bytes(1);
    }

    /// Whether this is an empty status (MPI 4.1, section 3.7.3).
    pub fn is_empty(self, abi: &Abi) -> bool {
        let nobody = self.source() == abi.any_source && self.tag() == ANY_TAG;
        nobody && self.bytes() == 0 && !self.is_cancelled()
    }

    /// Copies another one but for `MPI_ERROR`, which functions that complete requests leave alone
    /// unless one failed (MPI 4.1, section 3.2.5).
    pub fn copy_all_but_error(self, other: Status) {
        let size = if self.open { 24 } else { 20 };
        let error = self.error();
        // SAFETY: both are statuses of this library.
        unsafe { std::ptr::copy(other.at.cast::<u8>(), self.at.cast::<u8>(), size) }
        self.set_error(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_not_copied() {
        for open in [true, false] {
            let (mut from, mut to) = (Room::new(), Room::new());
            let [from, to] = [from.pointer(), to.pointer()].map(|at| Status { at, open });
            from.set_bytes(5);
            from.set_error(7);
            to.set_error(3);
            to.copy_all_but_error(from);
            assert_eq!((to.bytes(), to.error()), (5, 3));
        }
    }

    #[test]
    fn bytes_and_flags_keep_apart() {
        for open in [true, false] {
            let mut room = Room::new();
            let status = Status {
                at: room.pointer(),
                open,
            };
            for bytes in [0, 1, 0xffff_ffff, 0x1_0000_0005, 1 << 40] {
                status.set_bytes(bytes);
                status.set_error(7);
                assert_eq!(status.bytes(), bytes);
                assert_eq!((status.error(), status.is_cancelled()), (7, false));
                assert_eq!((status.source(), status.tag()), (0, 0));
            }
        }
    }
}
