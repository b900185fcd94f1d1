// SPDX-License-Identifier: MIT OR Apache-2.0

//! Arguments of functions that send and receive, and which elements are not packed here.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use crate::comm::processes::World;
use crate::decide::worth;
use crate::library::abi::Word;
use crate::library::count::Count;
use crate::library::per_thread::per_thread;
use crate::library::pmpi;
use crate::types::earned::Use;
use crate::types::{datatype, earned};

/// Elements that are sent or received.
#[derive(Clone, Copy, Debug)]
pub struct Elements {
    /// Where they are.
    pub buffer: *mut c_void,
    /// How many; `None` if that is no number.
    pub count: Option<usize>,
    /// Of which type.
    pub datatype: Word,
}

/// Where a message goes.
#[derive(Clone, Copy, Debug)]
pub struct Address {
    /// The rank.
    pub dest: c_int,
    /// The tag.
    pub tag: c_int,
    /// The communicator.
    pub comm: Word,
}

/// Whether a send completes when it is matched only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `MPI_Send`
    Standard,
    /// `MPI_Ssend`
    Synchronous,
}

impl Mode {
    /// `MPI_Send` or `MPI_Ssend`
    ///
    /// # Safety
    ///
    /// As the MPI standard says, here and below.
    #[inline(always)]
    pub unsafe fn send<N: Count>(self, what: (*const c_void, N, Word), to: Address) -> c_int {
        let ((from, count, kind), Address { dest, tag, comm }) = (what, to);
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Mode::Standard => pmpi::send(from, count, kind, dest, tag, comm),
                Mode::Synchronous => pmpi::ssend(from, count, kind, dest, tag, comm),
            }
        }
    }

    /// `MPI_Isend` or `MPI_Issend`
    #[inline(always)]
    pub unsafe fn isend<N: Count>(
        self,
        (from, count, kind): (*const c_void, N, Word),
        Address { dest, tag, comm }: Address,
        request: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Mode::Standard => pmpi::isend(from, count, kind, dest, tag, comm, request),
                Mode::Synchronous => pmpi::issend(from, count, kind, dest, tag, comm, request),
            }
        }
    }
}

impl Elements {
    /// Counts a use of their type; whether it has earned a layout. Those of another type are
    /// forwarded.
    #[inline]
    pub fn have_earned(self, world: &World, comm: Word) -> bool {
        let what = Use {
            buffer: self.buffer.cast_const(),
            count: self.count.unwrap_or(0),
            datatype: self.datatype,
            comm: Some(comm),
        };
        earned::by(world.abi, what)
    }
}

/// A type and how many elements of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kind {
    pub datatype: Word,
    pub count: usize,
    /// As long as it is [`datatype::generation`], the handle stands for the same type.
    generation: u64,
}

impl Kind {
    /// No elements.
    pub const NONE: Kind = Kind {
        datatype: 0,
        count: 0,
        generation: 0,
    };

    /// These elements.
    #[inline(always)]
    pub fn new(datatype: Word, count: usize) -> Self {
        Kind {
            datatype,
            count,
            generation: datatype::generation(datatype),
        }
    }

    #[inline(always)]
    /// Where a thread remembers it.
    pub fn place(&self) -> usize {
        (self.datatype >> 4 ^ self.datatype >> 9 ^ self.count) % PLACES
    }
}

/// Kinds of elements that a thread remembers.
pub const PLACES: usize = 8;

per_thread!(
    /// Elements that are not packed here, for good.
    static LEFT: [Cell<Kind>; PLACES] = [const { Cell::new(Kind::NONE) }; PLACES]
);

/// Remembers that these elements are not packed here.
pub fn leave(world: &World, kind: Kind) {
    LEFT.with(|left| left[kind.place()].set(kind));
    worth::decide(kind.datatype & world.abi.handle, worth::LEFT, kind.count);
}

/// Whether `count` elements are not packed here, to whichever rank they go.
#[inline(always)]
pub fn are_left(datatype: Word, count: usize) -> bool {
    let kind = Kind::new(datatype, count);
    LEFT.with(|left| left[kind.place()].get() == kind)
}
