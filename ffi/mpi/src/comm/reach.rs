// SPDX-License-Identifier: MIT OR Apache-2.0

//! Finds the processes behind a communicator's ranks.

use std::ffi::c_int;

use crate::comm::communicator::Comm;
use crate::comm::peers::{NOBODY, Peers};
use crate::comm::processes::World;
use crate::library::abi::Word;
use crate::library::neighbourhood::world_ranks;

impl World {
    /// The peers of a communicator; an intercommunicator has none.
    pub fn peers<'a>(&self, known: &'a Comm, comm: Word) -> &'a Peers {
        known.peers.get_or_init(|| {
            if known.inter || known.size < 2 {
                return Peers::None;
            }
            self.translate(comm, known.size)
        })
    }

    fn translate(&self, comm: Word, size: usize) -> Peers {
        let Some(ranks) = world_ranks(self.abi, comm, size) else {
            return Peers::Unknown;
        };
        let number = |rank: &c_int| {
            let found = self.ranks.iter().position(|member| member == rank);
            match found {
                Some(number) if number != self.me => number as u32,
                _ => NOBODY,
            }
        };
        let numbers: Vec<u32> = ranks.iter().map(number).collect();
        match numbers.iter().filter(|number| **number == NOBODY).count() {
            strangers if strangers == size => Peers::None,
            strangers => Peers::Known {
                numbers,
                all: strangers <= 1,
            },
        }
    }
}
