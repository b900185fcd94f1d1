// SPDX-License-Identifier: MIT OR Apache-2.0

//! How the processes of a communicator across machines find out who of them can send over RDMA to
//! whom.

use std::collections::hash_map::RandomState;
use std::ffi::c_int;
use std::hash::BuildHasher;
use std::sync::OnceLock;

use libcopy::config;
use libcopy_rdma::verbs::{Device, device_names};
use libcopy_rdma::{Error, Result};

use crate::bootstrap::own_collectives::{Plain, allgather};
use crate::comm::communicator::Comm;
use crate::library::abi::{Abi, Word, complain};
use crate::library::pmpi;
use crate::rdma::link::Adapter;
use crate::rdma::mode::{Mode, mode};
use crate::rdma::state::{self, Met};

/// What a process says.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Card {
    /// 1 if it can send and receive over RDMA.
    able: u64,
    /// Its machine: the lowest rank in `MPI_COMM_WORLD` there.
    machine: u64,
    /// Its rank in `MPI_COMM_WORLD`.
    rank: u64,
    /// Bytes from which on it looks whether a message is a header.
    least: u64,
    /// Random numbers.
    magic: [u64; 2],
}

// SAFETY: integers only.
unsafe impl Plain for Card {}

/// This process, if it intercepts messages.
#[derive(Clone, Copy, Debug)]
pub struct Own {
    /// Rank in `MPI_COMM_WORLD`.
    pub rank: c_int,
    /// The lowest rank on this machine.
    pub machine: c_int,
    /// Bytes from which on it looks whether a message is a header.
    pub least: u64,
}

/// The value of `LIBCOPY_RDMA_DEVICE` that has messages go as if there was a device, and through
/// the MPI library.
const NO_DEVICE: &str = "none";

/// The device that is asked for, or the first that can be used.
fn open() -> Result<Option<Adapter>> {
    let asked = config::RDMA_DEVICE.or_default();
    if asked == NO_DEVICE {
        return Ok(None);
    }
    if !asked.is_empty() {
        return Ok(Some(Adapter::new(Device::open(&asked)?)));
    }
    let mut why = Error::NoDevice("there is no RDMA device".to_owned());
    for name in device_names()? {
        match Device::open(&name) {
            Ok(device) => return Ok(Some(Adapter::new(device))),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// Finds a device, once; whether this process can send over RDMA.
fn prepare(abi: &'static Abi, own: &Own) -> bool {
    static ABLE: OnceLock<bool> = OnceLock::new();
    *ABLE.get_or_init(|| match open() {
        Ok(adapter) => {
            state::prepare(abi, own.rank, adapter);
            true
        }
        Err(why) => {
            // Who did not ask for it need not hear of it.
            if mode() == Mode::All || !config::RDMA_DEVICE.or_default().is_empty() {
                complain(&format!("messages do not go over RDMA: {why}"));
            }
            false
        }
    })
}

fn magic() -> [u64; 2] {
    static MAGIC: OnceLock<[u64; 2]> = OnceLock::new();
    *MAGIC.get_or_init(|| [0, 1].map(|word: u64| RandomState::new().hash_one(word)))
}

/// Which of the processes a process gets to know: those that are able, on other machines.
fn partners<'a>(cards: &'a [Card], own: &'a Card) -> impl Iterator<Item = &'a Card> {
    cards
        .iter()
        .filter(move |card| own.able != 0 && card.able != 0 && card.machine != own.machine)
}

/// Has the processes of a communicator find out, which all call this; only where all have this
/// library, on several machines. The communicator that they answer each other on, if all of them
/// can send and receive.
pub fn meet(abi: &'static Abi, comm: Word, known: &Comm, own: Option<Own>) -> Option<Word> {
    let own = own.filter(|own| mode() != Mode::Off && prepare(abi, own));
    let mine = own.map_or_else(Card::default, |own| Card {
        able: 1,
        machine: own.machine as u64,
        rank: own.rank as u64,
        least: own.least,
        magic: magic(),
    });
    let cards = allgather(abi, comm, mine, known.size)?;
    // All see alike whether anybody will have anybody.
    let first = cards
        .iter()
        .find(|card| partners(&cards, card).next().is_some())?;
    let mut new: Word = 0;
    // Not a duplicate, which would call what the program has attached to its own.
    let (color, key) = (c_int::from(mine.able == 0), known.rank as c_int);
    // SAFETY: all processes are here; room for a handle.
    if unsafe { pmpi::comm_split(comm, color, key, &mut new) } != 0 {
        return None;
    }
    if mine.able == 0 {
        // SAFETY: our own communicator, that of those who have no use for one.
        unsafe { pmpi::comm_free(&mut new) };
        return None;
    }
    // SAFETY: our own communicator.
    unsafe { pmpi::comm_set_errhandler(new, abi.errors_return) };
    let able = cards.iter().filter(|card| card.able != 0);
    let places = able.zip(0..);
    let peers = places
        .filter(|(card, _)| card.machine != mine.machine)
        .map(|(card, place)| (card.rank as c_int, place, card.least.max(mine.least)));
    state::meet(Met {
        comm: new,
        peers: peers.collect(),
        magic: first.magic,
    });
    cards.iter().all(|card| card.able != 0).then_some(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_are_able_and_elsewhere() {
        let card = |rank, machine, able| Card {
            able,
            machine,
            rank,
            ..Card::default()
        };
        let cards = [card(0, 0, 1), card(1, 0, 1), card(2, 2, 0), card(3, 2, 1)];
        let of = |own: usize| {
            let ranks = partners(&cards, &cards[own]).map(|card| card.rank);
            ranks.collect::<Vec<_>>()
        };
        assert_eq!([0, 1, 2, 3].map(of), [vec![3], vec![3], vec![], vec![0, 1]]);
        assert_eq!(partners(&cards[..2], &cards[0]).count(), 0);
    }
}
