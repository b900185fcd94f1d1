// SPDX-License-Identifier: MIT OR Apache-2.0

//! The ranks of a communicator that reach each other's memory, and how they come to share a table.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use libcopy::TeamKey;
use libcopy::collective::nonblocking::agreement::{LENGTHS, Progress, WORDS};
use libcopy::collective::nonblocking::engine::Engines;
use libcopy::collective::nonblocking::operation::Participants;
use libcopy::collective::nonblocking::table::{MOST_RANKS, ONE_AFTER_ANOTHER, Table, depth};
use libcopy::policy::Oversubscription;
use libcopy::transport::process_memory;

use crate::bootstrap::own_collectives::{Plain, allgather, bcast};
use crate::comm::group::Node;
use crate::decide::environment::is_governed;
use crate::library::abi::{Abi, Word};
use crate::library::stats::Function;
use crate::library::{abi, pmpi, progress};
use crate::types::fortran_names;
use libcopy::lock::lock;

/// What a communicator's nonblocking collectives need.
#[derive(Debug)]
pub struct NonblockingGroup {
    /// The ranks, and what they share.
    pub group: Arc<Participants>,
    /// How ranks and processors go together.
    pub oversubscription: Oversubscription,
    /// Whether all ranks want a governor.
    pub is_governed: bool,
    under_way: AtomicU64,
    lengths: Mutex<Lengths>,
}

/// How long a rank's parts are in functions whose ranks do not know those of the others.
#[derive(Debug, Default)]
struct Lengths {
    agreement: Progress,
    /// The largest of our own in the last call of each of these functions, in the order in which
    /// all ranks have called them first.
    largest: Vec<(Function, u64)>,
}

/// An operation that is under way.
#[derive(Debug)]
pub struct UnderWay(Arc<NonblockingGroup>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Those that this process is in.
static ALL: Mutex<Vec<Weak<NonblockingGroup>>> = Mutex::new(Vec::new());

/// This process may lose the right to read others' memory: no operation that no rank has begun yet
/// is done past the MPI library any more.
pub fn close_all() {
    for members in lock(&ALL).iter().filter_map(Weak::upgrade) {
        members.group.table.close();
    }
}

/// What the first rank says about the table.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Offer {
    magic: [u64; 2],
    pid: i32,
    fd: i32,
    fine: u64,
    /// The key of the kernel module's domain, if engines are to move parts.
    key: [u8; 16],
    engines: u64,
}

/// What each rank says about itself.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Card {
    pid: i32,
    fine: i32,
    /// Where a word is that the others try to read.
    address: u64,
    word: u64,
    /// Whether engines may move our parts.
    engines: u64,
    /// Whether a governor is wanted.
    governed: u64,
}

// SAFETY: integers only.
unsafe impl Plain for Offer {}
// SAFETY: integers only.
unsafe impl Plain for Card {}

impl NonblockingGroup {
    /// Makes it, if all ranks are on one machine and reach each other's memory. Collective; all
    /// ranks come to the same answer.
    pub fn meet(
        abi: &'static Abi,
        comm: Word,
        (rank, size): (usize, usize),
        oversubscription: Oversubscription,
    ) -> Option<NonblockingGroup> {
        if !(2..=MOST_RANKS).contains(&size) {
            return None;
        }
        let node = Node::of(abi, comm, rank as c_int).ok()?;
        let mut here = 0;
        // SAFETY: our own communicator, and a writable output.
        let answer = unsafe { pmpi::comm_size(node.word(), &mut here) };
        drop(node);
        let together = answer == 0 && usize::try_from(here) == Ok(size);
        abi::permit_peers();
        let (mut offer, mut made, mut engines) = (Offer::default(), None, None);
        if rank == 0 && together {
            if let Ok(key) = TeamKey::random() {
                let word = u128::from_ne_bytes(key.to_bytes());
                let magic = [word as u64, (word >> 64) as u64];
                if let Ok((table, file)) = Table::create(size, depth(size), magic) {
                    offer = Offer {
                        magic,
                        pid: std::process::id() as i32,
                        fd: file.as_raw_fd(),
                        fine: 1,
                        ..Offer::default()
                    };
                    if let Some((own, key)) = Engines::create() {
                        (engines, offer.key, offer.engines) = (Some(own), key, 1);
                    }
                    made = Some((table, file));
                }
            }
        }
        if bcast(abi, comm, &mut offer) != 0 || offer.fine == 0 {
            return None;
        }
        let (table, _file) = match made {
            Some((table, file)) => (Some(table), Some(file)),
            None if together => {
                let table = Table::open(offer.pid, offer.fd, (size, depth(size)), offer.magic);
                (table.ok(), None)
            }
            None => (None, None),
        };
        if rank != 0 && offer.engines != 0 {
            engines = Engines::join(offer.key);
        }
        let word = Box::new(offer.magic[0] ^ rank as u64);
        let mine = Card {
            pid: std::process::id() as i32,
            // A request of ours that somebody waits for past us would never be complete.
            fine: i32::from(table.is_some() && !fortran_names::has_other_functions(abi)),
            address: &raw const *word as u64,
            word: *word,
            engines: engines.is_some().into(),
            governed: is_governed().into(),
        };
        let cards = allgather(abi, comm, mine, size)?;
        let is_right = |peer: usize| {
            let card = &cards[peer];
            let found = process_memory::read_word(card.pid, card.address);
            found.is_ok_and(|word| word == card.word)
        };
        let reaches = cards.iter().all(|card| card.fine != 0)
            && process_memory::tried_by(rank, size).all(is_right);
        let verdict = Card {
            fine: i32::from(reaches),
            ..mine
        };
        let all = allgather(abi, comm, verdict, size)?;
        drop(word);
        if all.iter().any(|card| card.fine == 0) {
            return None;
        }
        let pids = cards.iter().map(|card| card.pid).collect();
        let engines = engines.filter(|_| cards.iter().all(|card| card.engines != 0));
        Some(NonblockingGroup {
            group: Arc::new(Participants::new(table?, pids, rank, engines.map(Arc::new))),
            oversubscription,
            is_governed: cards.iter().all(|card| card.governed != 0),
            under_way: AtomicU64::new(0),
            lengths: Mutex::default(),
        })
    }

    /// Makes one for a persistent request of a communicator of which this is the group: its starts
    /// may come in another order than those of others on each rank (MPI 4.1, section 6.13), so they
    /// have numbers of their own. `fits`: this rank has arguments that are ours to move. With the
    /// most persistent requests that a rank has. Collective; all ranks come to the same answer.
    pub fn of_request(
        &self,
        abi: &'static Abi,
        comm: Word,
        fits: bool,
        requests: u64,
    ) -> Option<(Arc<NonblockingGroup>, u64)> {
        let (group, size) = (&self.group, self.group.size());
        let shape = (size, ONE_AFTER_ANOTHER);
        let (mut offer, mut made) = (Offer::default(), None);
        if group.rank == 0 {
            if let Ok(key) = TeamKey::random() {
                let word = u128::from_ne_bytes(key.to_bytes());
                let magic = [word as u64, (word >> 64) as u64];
                if let Ok((table, file)) = Table::create(shape.0, shape.1, magic) {
                    offer = Offer {
                        magic,
                        pid: group.pids[0],
                        fd: file.as_raw_fd(),
                        fine: 1,
                        ..Offer::default()
                    };
                    made = Some((table, file));
                }
            }
        }
        if bcast(abi, comm, &mut offer) != 0 {
            return None;
        }
        let (table, _file) = match made {
            Some((table, file)) => (Some(table), Some(file)),
            None if offer.fine != 0 => {
                let table = Table::open(offer.pid, offer.fd, shape, offer.magic);
                (table.ok(), None)
            }
            None => (None, None),
        };
        let own = [u64::from(fits && table.is_some()), requests];
        let all = allgather(abi, comm, own, size)?;
        if all.iter().any(|[fine, _]| *fine == 0) {
            return None;
        }
        let made = NonblockingGroup {
            group: Arc::new(Participants::new(
                table?,
                group.pids.clone(),
                group.rank,
                group.engines.clone(),
            )),
            oversubscription: self.oversubscription,
            is_governed: self.is_governed,
            under_way: AtomicU64::new(0),
            lengths: Mutex::default(),
        };
        let most = all.iter().map(|[_, requests]| *requests).max();
        Some((made.enlisted(), most.unwrap_or(0)))
    }

    /// Makes it one of those that [`close_all`] closes.
    pub fn enlisted(self) -> Arc<NonblockingGroup> {
        let members = Arc::new(self);
        let mut all = lock(&ALL);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&members));
        members
    }

    /// The largest part of all ranks in a function of which each knows its own, `mine` for us now,
    /// as they last said it; nothing where they are to ask later. All ranks ask in the same calls,
    /// get the same answers, and do not wait for each other.
    pub fn largest(&self, function: Function, mine: u64) -> Option<u64> {
        let mut lengths = lock(&self.lengths);
        let Lengths { agreement, largest } = &mut *lengths;
        let place = largest.iter().position(|(other, _)| *other == function);
        let place = place.unwrap_or(largest.len());
        match largest.get_mut(place) {
            Some(known) => known.1 = mine,
            None => largest.push((function, mine)),
        }
        let mut own = [0; WORDS];
        for (word, (_, largest)) in own.iter_mut().zip(&*largest) {
            *word = *largest;
        }
        let topic = self.group.table.topic(LENGTHS, self.group.rank);
        let said = topic.ask(agreement, &own, || {
            progress::everything();
            std::thread::yield_now();
        });
        said?
            .iter()
            .filter_map(|words| words.get(place).copied())
            .max()
    }

    /// An operation begins.
    pub fn begin(self: &Arc<Self>) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(self.clone())
    }

    /// Operations that are under way.
    pub fn under_way(&self) -> u64 {
        self.under_way.load(Ordering::Relaxed)
    }
}
