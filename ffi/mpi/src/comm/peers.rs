// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which of a communicator's ranks messages may reach past the MPI library.

use std::ffi::c_int;

/// Which of a communicator's ranks are which processes of the machine.
#[derive(Debug)]
pub enum Peers {
    /// Messages go to none past the MPI library.
    None,
    /// Numbers in the world, [`NOBODY`] for others and for ourselves; whether there are no others.
    Known { numbers: Vec<u32>, all: bool },
    /// The library did not say: nothing is sent past it, but anybody may do so.
    Unknown,
}

/// A rank that they may not reach.
pub const NOBODY: u32 = u32::MAX;

impl Peers {
    /// The process behind a rank, if messages may go to it past the MPI library.
    #[inline]
    pub fn of(&self, rank: c_int) -> Option<usize> {
        let Peers::Known { numbers, .. } = self else {
            return None;
        };
        let number = *numbers.get(usize::try_from(rank).ok()?)?;
        (number != NOBODY).then_some(number as usize)
    }
}
