// SPDX-License-Identifier: MIT OR Apache-2.0

//! How the processes of a table decide whether they work together, and on what.

use std::ffi::c_int;
use std::fs::File;
use std::hash::{BuildHasher, Hash, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::bootstrap::launcher::{identity, local_ranks};
use crate::bootstrap::rendezvous::{digest, find};
use crate::bootstrap::table::{
    DECIDED, MOST_MEMBERS, Offer, Own, READY, Slot, State, all_live, give_up, phase, reason, ring,
    settle, wait,
};
use crate::bootstrap::world::{OUTCOME, Outcome, World};
use libcopy::lock::lock;
use libcopy::policy::Oversubscription;
use libcopy::shm::anonymous::AnonymousSegment as Shared;
use libcopy::topology;

/// For so long a rank that has left `PMPI_Init` waits for processes that have not announced
/// themselves.
const ANNOUNCING: Duration = Duration::from_millis(500);
/// For so long it waits for those that have: they are still in `PMPI_Init`, or in a stopped
/// process.
const ARRIVING: Duration = Duration::from_secs(30);

/// The word that others try to read.
static PROBE: AtomicU64 = AtomicU64::new(0);

/// The table between [`announce`] and the decision.
static OWN: Mutex<Option<Own>> = Mutex::new(None);

/// Announces this process to the others of its job; before `PMPI_Init`. Its settings have to be the
/// same as theirs.
pub fn announce(settings: impl Hash) {
    let mut own = lock(&OWN);
    if own.is_some() || !matches!(*lock(&OUTCOME), Outcome::None) {
        return;
    }
    let found = match identity() {
        None => Err("no launcher that is known has started this job".to_owned()),
        Some(identity) => find(&identity).map_err(|error| format!("no shared table: {error}")),
    };
    match found.and_then(|table| join(table, settings)) {
        Ok(joined) => *own = Some(joined),
        Err(why) => *lock(&OUTCOME) = Outcome::NotAgreed(why),
    }
}

/// Takes a slot of a table.
fn join(
    (shared, held): (Shared, Option<(OwnedFd, File)>),
    settings: impl Hash,
) -> Result<Own, String> {
    let mut own = Own {
        shared,
        slot: 0,
        held,
    };
    let table = own.table();
    let mut bits = table.word.load(Ordering::Acquire);
    let slot = loop {
        let word = State::of(bits);
        if word.phase != phase::OPEN {
            return Err("this rank came after the others had decided".to_owned());
        }
        if word.announced == MOST_MEMBERS {
            return Err(format!("there are more than {MOST_MEMBERS} ranks"));
        }
        match table
            .word
            .compare_exchange_weak(bits, bits + 1, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => break word.announced,
            Err(other) => bits = other,
        }
    };
    let said = &table.slots[slot];
    let pid = std::process::id();
    let probe = RandomState::new().hash_one((pid, slot));
    PROBE.store(probe, Ordering::Release);
    said.settings.store(digest(settings), Ordering::Relaxed);
    said.address
        .store(&raw const PROBE as u64, Ordering::Relaxed);
    said.probe.store(probe, Ordering::Relaxed);
    said.pid.store(pid as i32, Ordering::Release);
    own.slot = slot;
    Ok(own)
}

/// Forgets what was announced: `PMPI_Init` has failed.
pub fn withdraw() {
    let own = lock(&OWN).take();
    if let Some(own) = own {
        give_up(own.table(), reason::WITHDRAWN);
        *lock(&OUTCOME) = Outcome::None;
    }
}

/// A world whose members still have to agree on features.
pub struct Meeting {
    own: Own,
    members: Vec<usize>,
    world: World,
}

/// Whether this process owns the table, so that its offer counts.
pub fn is_owner() -> bool {
    lock(&OWN).as_ref().is_some_and(|own| own.held.is_some())
}

/// Says which rank this process is, and waits until the ranks of this machine have decided; after
/// `PMPI_Init`. `offer` is what the owner of the table has for the others, `idle` is called now and
/// then while nothing happens. The settings are compared here.
pub fn meet(rank: c_int, size: usize, offer: Offer, idle: impl FnMut()) -> Option<Meeting> {
    let own = lock(&OWN).take()?;
    if size < 2 {
        give_up(own.table(), reason::RANKS);
        *lock(&OUTCOME) = Outcome::Alone;
        return None;
    }
    let local = local_ranks().filter(|local| *local < size);
    match decide(&own, (rank, size, local), offer, idle) {
        Ok(members) => {
            let slots = &own.table().slots;
            let say = |slot: &usize| {
                let slot = &slots[*slot];
                (
                    slot.rank.load(Ordering::Relaxed),
                    slot.pid.load(Ordering::Relaxed),
                )
            };
            let (ranks, pids): (Vec<c_int>, Vec<i32>) = members.iter().map(say).unzip();
            let me = members.iter().position(|slot| *slot == own.slot)?;
            let masks = members.iter().map(|slot| slots[*slot].cpus());
            let oversubscription = Oversubscription::among(slots[own.slot].cpus(), masks.clone());
            let is_unbound = masks.clone().all(|mask| mask == slots[own.slot].cpus());
            let shares_processors = !Oversubscription::has_room(masks);
            Some(Meeting {
                world: World {
                    ranks,
                    pids,
                    me,
                    size,
                    features: 0,
                    everywhere: false,
                    oversubscription,
                    shares_processors,
                    is_unbound,
                    table: None,
                },
                own,
                members,
            })
        }
        Err(why) => {
            *lock(&OUTCOME) = Outcome::NotAgreed(why);
            None
        }
    }
}

/// Waits for the decision; the slots of all members, by rank.
fn decide(
    own: &Own,
    (rank, size, local): (c_int, usize, Option<usize>),
    offer: Offer,
    mut idle: impl FnMut(),
) -> Result<Vec<usize>, String> {
    let table = own.table();
    if own.held.is_some() {
        for (place, word) in table.offer.iter().zip(offer) {
            place.store(word, Ordering::Relaxed);
        }
    }
    let said = &table.slots[own.slot];
    said.rank.store(rank, Ordering::Relaxed);
    for (word, mask) in said.cpus.iter().zip(topology::affinity_mask()) {
        word.store(mask, Ordering::Relaxed);
    }
    table.word.fetch_add(1 << READY, Ordering::AcqRel);
    ring(table);
    let started = Instant::now();
    let expected = local.unwrap_or(size);
    let last = loop {
        let heard = table.bell.load(Ordering::Acquire);
        let bits = table.word.load(Ordering::Acquire);
        let word = State::of(bits);
        if word.phase != phase::OPEN {
            break word;
        }
        let all = word.ready == word.announced && (word.ready == size || Some(word.ready) == local);
        if all {
            match are_consistent(&table.slots[..word.announced]) {
                Ok(()) => {
                    let complete = State {
                        phase: phase::COMPLETE,
                        ..word
                    };
                    let order = (Ordering::AcqRel, Ordering::Acquire);
                    let _ = table
                        .word
                        .compare_exchange(bits, complete.bits(), order.0, order.1);
                    ring(table);
                }
                Err(why) => give_up(table, why),
            }
            continue;
        }
        let waited = started.elapsed();
        if word.announced < expected && waited > ANNOUNCING {
            give_up(table, reason::MISSING);
        } else if waited > ARRIVING {
            give_up(table, reason::LATE);
        } else if wait(table, heard) {
            idle();
            if !all_live(table, word.announced) {
                give_up(table, reason::DEAD);
            }
        }
    };
    if last.phase == phase::COMPLETE {
        let mut members: Vec<usize> = (0..last.announced).collect();
        members.sort_by_key(|slot| table.slots[*slot].rank.load(Ordering::Relaxed));
        return Ok(members);
    }
    Err(match table.reason.load(Ordering::Acquire) {
        reason::DEAD => "a rank has ended in MPI_Init".to_owned(),
        reason::SETTINGS => "the ranks have different LIBCOPY_ variables".to_owned(),
        reason::RANKS => "processes of several jobs have met".to_owned(),
        reason::WITHDRAWN => "MPI_Init has failed on a rank".to_owned(),
        reason::LATE => "some ranks have not left MPI_Init".to_owned(),
        _ => format!("{} of {expected} ranks have libcopy_mpi.so", last.announced),
    })
}

/// Whether slots that are ready belong to one job.
fn are_consistent(slots: &[Slot]) -> Result<(), u32> {
    let mut ranks: Vec<i32> = Vec::with_capacity(slots.len());
    for slot in slots {
        ranks.push(slot.rank.load(Ordering::Relaxed));
        let settings = slot.settings.load(Ordering::Relaxed);
        if settings != slots[0].settings.load(Ordering::Relaxed) {
            return Err(reason::SETTINGS);
        }
    }
    ranks.sort_unstable();
    if ranks.windows(2).all(|pair| pair[0] < pair[1]) {
        Ok(())
    } else {
        Err(reason::RANKS)
    }
}

impl Meeting {
    /// The members.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// What the owner of the table has for the others.
    pub fn offer(&self) -> Offer {
        let words = self.own.table().offer.each_ref();
        words.map(|word| word.load(Ordering::Relaxed))
    }

    /// The process, address and value of a word of each member, to try whether its memory can be
    /// read.
    pub fn probes(&self) -> impl Iterator<Item = (i32, u64, u64)> {
        self.members.iter().map(|slot| {
            let slot = &self.own.table().slots[*slot];
            (
                slot.pid.load(Ordering::Relaxed),
                slot.address.load(Ordering::Relaxed),
                slot.probe.load(Ordering::Relaxed),
            )
        })
    }

    /// Says which features this process agrees to; what all have agreed to is the same everywhere,
    /// nothing if somebody does not answer.
    pub fn agree(mut self, features: u64, mut idle: impl FnMut()) -> World {
        let table = self.own.table();
        let vote = features & !DECIDED | DECIDED;
        table.slots[self.own.slot]
            .vote
            .store(vote, Ordering::Release);
        ring(table);
        let started = Instant::now();
        let agreed = loop {
            let heard = table.bell.load(Ordering::Acquire);
            let verdict = table.verdict.load(Ordering::Acquire);
            if verdict & DECIDED != 0 {
                break verdict;
            }
            let votes = self.members.iter();
            let votes = votes.map(|slot| table.slots[*slot].vote.load(Ordering::Acquire));
            let all = votes.fold(u64::MAX, |all, vote| all & vote);
            let late = || started.elapsed() > ARRIVING;
            if all & DECIDED != 0 {
                settle(table, all);
            } else if wait(table, heard) {
                idle();
                if late() || !all_live(table, self.members.len()) {
                    settle(table, DECIDED);
                }
            }
        };
        self.world.features = agreed & !DECIDED;
        *lock(&OUTCOME) = Outcome::Agreed;
        self.world.table = Some(self.own.shared);
        self.world
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::Table;
    use super::*;

    fn table() -> Own {
        let made = Shared::create(c"libcopy-test", size_of::<Table>(), [1, 2]).unwrap();
        join((made.0, None), "settings").unwrap()
    }

    #[test]
    fn what_was_decided_stays() {
        let own = table();
        let table = own.table();
        give_up(table, reason::MISSING);
        let bits = table.word.load(Ordering::Relaxed);
        give_up(table, reason::DEAD);
        assert_eq!(State::of(bits).phase, phase::GIVEN_UP);
        assert_eq!(table.word.load(Ordering::Relaxed), bits);
        assert_eq!(table.reason.load(Ordering::Relaxed), reason::MISSING);
        // A process that joins now does not take part.
        let why = join((own.shared, None), "settings").err().unwrap();
        assert!(why.contains("after"), "{why}");
    }

    #[test]
    fn a_rank_without_the_others_gives_up() {
        let started = Instant::now();
        let why = decide(&table(), (0, 2, None), Offer::default(), || {}).unwrap_err();
        assert!(why.starts_with("1 of 2 ranks"), "{why}");
        assert!(started.elapsed() < ARRIVING);
    }

    #[test]
    fn slots_of_two_jobs_or_settings_are_refused() {
        let own = table();
        let table = own.table();
        for (slot, rank) in table.slots.iter().zip([3, 1, 3]) {
            slot.rank.store(rank, Ordering::Relaxed);
            slot.settings.store(5, Ordering::Relaxed);
        }
        assert_eq!(are_consistent(&table.slots[..2]), Ok(()));
        assert_eq!(are_consistent(&table.slots[..3]), Err(reason::RANKS));
        table.slots[1].settings.store(6, Ordering::Relaxed);
        assert_eq!(are_consistent(&table.slots[..2]), Err(reason::SETTINGS));
    }
}
