// SPDX-License-Identifier: MIT OR Apache-2.0

//! `MPI_Status`, whose places differ between the libraries: Open MPI has source, tag, error, a flag
//! and a count of bytes; MPICH's ABI has the count in two halves first, the flag in the upper one.
//! In the standard ABI source, tag and error come first, and what the rest means is the library's
//! affair, which is asked.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use crate::library::abi::{Abi, Family, STANDARD_BYTE};
use crate::library::pmpi;

/// Room for the status of any library.
#[repr(C, align(8))]
pub struct Room([u8; 32]);

impl Room {
    /// An empty one.
    pub fn new() -> Room {
        Room([0; 32])
    }

    /// As an argument.
    pub fn pointer(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }

    /// The program's status, or this one if it wants none.
    pub fn instead_of(&mut self, status: *mut c_void) -> *mut c_void {
        given_or(status, self.pointer())
    }

    /// The program's status, or this room if it wants none. The room has not been written to: it
    /// may be read only where a function of the library has succeeded, which then has written it.
    #[inline(always)]
    pub fn instead_of_uninit(room: &mut MaybeUninit<Room>, status: *mut c_void) -> *mut c_void {
        given_or(status, room.as_mut_ptr().cast())
    }
}

#[inline(always)]
fn given_or(status: *mut c_void, own: *mut c_void) -> *mut c_void {
    if is_ignored(status) { own } else { status }
}

/// Whether this is `MPI_STATUS_IGNORE` or `MPI_STATUSES_IGNORE`: 1 in MPICH's ABI, 0 elsewhere.
#[inline]
pub fn is_ignored(status: *mut c_void) -> bool {
    status as usize <= 1
}

impl Family {
    /// Bytes of a status.
    fn status_size(self) -> usize {
        match self {
            Family::OpenMpi => 24,
            Family::Mpich => 20,
            Family::Standard => 32,
        }
    }
}

/// A status of the program's, or one of ours.
#[derive(Clone, Copy)]
pub struct Status {
    at: *mut c_void,
    family: Family,
}

impl Status {
    /// # Safety
    ///
    /// A status of this library is there, as long as this is used.
    #[inline]
    pub unsafe fn new(abi: &Abi, at: *mut c_void) -> Status {
        Status {
            at,
            family: abi.family,
        }
    }

    /// # Safety
    ///
    /// As for [`Status::new`], for all of an array.
    pub unsafe fn of_array(abi: &Abi, array: *mut c_void, index: usize) -> Status {
        // SAFETY: the caller's promise.
        unsafe { Status::new(abi, array.byte_add(abi.family.status_size() * index)) }
    }

    /// As an argument.
    pub fn pointer(self) -> *mut c_void {
        self.at
    }

    fn word(self, place: usize) -> *mut c_int {
        self.at.wrapping_byte_add(place).cast()
    }

    /// `MPI_SOURCE`, `MPI_TAG` and `MPI_ERROR`, the three in this order.
    #[inline]
    fn public(self, which: usize) -> *mut c_int {
        let first = match self.family {
            Family::OpenMpi | Family::Standard => 0,
            Family::Mpich => 8,
        };
        self.word(first + 4 * which)
    }

    /// `MPI_SOURCE`
    #[inline]
    pub fn source(self) -> c_int {
        // SAFETY: `new` was promised a status.
        unsafe { self.public(0).read() }
    }

    /// `MPI_TAG`
    #[inline]
    pub fn tag(self) -> c_int {
        // SAFETY: `new` was promised a status.
        unsafe { self.public(1).read() }
    }

    /// `MPI_ERROR`
    #[inline]
    pub fn error(self) -> c_int {
        // SAFETY: `new` was promised a status.
        unsafe { self.public(2).read() }
    }

    /// Sets `MPI_ERROR`.
    pub fn set_error(self, code: c_int) {
        // SAFETY: `new` was promised a status.
        unsafe { self.public(2).write(code) }
    }

    /// Whether the request was cancelled.
    #[inline]
    pub fn is_cancelled(self) -> bool {
        let mut flag = 0;
        // SAFETY: `new` was promised a status.
        unsafe {
            match self.family {
                Family::OpenMpi => self.word(12).read() != 0,
                Family::Mpich => self.word(4).read() & 1 != 0,
                Family::Standard => pmpi::test_cancelled(self.at, &mut flag) == 0 && flag != 0,
            }
        }
    }

    /// Bytes that were received.
    #[inline]
    pub fn bytes(self) -> u64 {
        // SAFETY: `new` was promised a status. Fortran's are arrays of `int`s, aligned like these.
        unsafe {
            match self.family {
                Family::OpenMpi => self.at.byte_add(16).cast::<u64>().read_unaligned(),
                Family::Mpich => {
                    let (low, high) = (self.word(0).read(), self.word(4).read());
                    u64::from(low as u32) | u64::from(high as u32 >> 1) << 32
                }
                Family::Standard => {
                    let mut count = 0;
                    match pmpi::get_count_c(self.at, STANDARD_BYTE, &mut count) {
                        0 => u64::try_from(count).unwrap_or(0),
                        _ => 0,
                    }
                }
            }
        }
    }

    /// Sets the bytes that were received.
    pub fn set_bytes(self, bytes: u64) {
        // SAFETY: `new` was promised a status.
        unsafe {
            match self.family {
                Family::OpenMpi => self.at.byte_add(16).cast::<u64>().write_unaligned(bytes),
                Family::Mpich => {
                    let cancelled = self.word(4).read() & 1;
                    self.word(0).write(bytes as u32 as c_int);
                    let high = (bytes >> 32) as u32;
                    self.word(4).write((high << 1) as c_int | cancelled);
                }
                Family::Standard => {
                    pmpi::status_set_elements_c(self.at, STANDARD_BYTE, bytes as i64);
                }
            }
        }
    }

    /// Says that it was not cancelled.
    fn clear_cancelled(self) {
        // SAFETY: `new` was promised a status.
        unsafe {
            match self.family {
                Family::OpenMpi => self.word(12).write(0),
                Family::Mpich => self.word(4).write(self.word(4).read() & !1),
                Family::Standard => {
                    pmpi::status_set_cancelled(self.at, 0);
                }
            }
        }
    }

    /// Says that nothing was received, from `nobody`, as for what is no message.
    pub fn fill_with_nothing(self, nobody: c_int) {
        // SAFETY: `new` was promised a status.
        unsafe {
            self.public(0).write(nobody);
            self.public(1).write(nobody);
            self.public(2).write(0);
        }
        self.clear_cancelled();
        self.set_bytes(0);
    }

    /// Says nothing that a status of a library's says.
    pub fn fill_with_nobody(self) {
        // SAFETY: `new` was promised a status.
        unsafe {
            self.public(0).write(0);
            self.public(1).write(0);
        }
        self.clear_cancelled();
        self.set_bytes(1);
    }

    /// Whether this is an empty status (MPI 4.1, section 3.7.3).
    pub fn is_empty(self, abi: &Abi) -> bool {
        let nobody = self.source() == abi.any_source && self.tag() == abi.any_tag;
        nobody && self.bytes() == 0 && !self.is_cancelled()
    }

    /// Copies another one but for `MPI_ERROR`, which functions that complete requests leave alone
    /// unless one failed (MPI 4.1, section 3.2.5).
    pub fn copy_all_but_error(self, other: Status) {
        let size = self.family.status_size();
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
        for family in [Family::OpenMpi, Family::Mpich] {
            let (mut from, mut to) = (Room::new(), Room::new());
            let [from, to] = [from.pointer(), to.pointer()].map(|at| Status { at, family });
            from.set_bytes(5);
            from.set_error(7);
            to.set_error(3);
            to.copy_all_but_error(from);
            assert_eq!((to.bytes(), to.error()), (5, 3));
        }
    }

    #[test]
    fn bytes_and_flags_keep_apart() {
        for family in [Family::OpenMpi, Family::Mpich] {
            let mut room = Room::new();
            let status = Status {
                at: room.pointer(),
                family,
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
