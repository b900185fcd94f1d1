// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table in shared memory that the processes of a job announce themselves in.

use std::ffi::c_int;
use std::fs::File;
use std::mem::size_of;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use libcopy::shm::anonymous::AnonymousSegment as Shared;
use libcopy::shm::turns::Turns;
use libcopy::topology::CPU_WORDS;
use libcopy::transport::process_memory::lives;

/// Processes of one machine that find each other.
pub const MOST_MEMBERS: usize = 512;

/// After so long a wait lets other things get on, and looks whether everybody lives.
const TICK: Duration = Duration::from_millis(5);

/// What all ranks of a world agree to do.
pub mod feature {
    /// Messages between two processes.
    pub const MESSAGES: u64 = 1;
    /// The kernel module, for messages.
    pub const MODULE: u64 = 2;
    /// Nonblocking collectives.
    pub const NONBLOCKING: u64 = 4;
    /// Collectives, of any kind.
    pub const COLLECTIVES: u64 = 8;
    /// One report for all of them.
    pub const REPORT: u64 = 16;
}

/// States of a table.
pub mod phase {
    pub const OPEN: u64 = 0;
    pub const COMPLETE: u64 = 1;
    pub const GIVEN_UP: u64 = 2;
}

/// The table's word: phase, processes that have their rank, processes that were announced.
#[derive(Clone, Copy)]
pub struct State {
    pub phase: u64,
    pub ready: usize,
    pub announced: usize,
}

pub const READY: u32 = 24;
const PHASE: u32 = 48;
const COUNT: u64 = (1 << READY) - 1;

impl State {
    pub fn of(bits: u64) -> State {
        State {
            phase: bits >> PHASE,
            ready: (bits >> READY & COUNT) as usize,
            announced: (bits & COUNT) as usize,
        }
    }

    pub fn bits(self) -> u64 {
        self.phase << PHASE | (self.ready as u64) << READY | self.announced as u64
    }
}

/// Words that the owner of a table gives to the others.
pub const OFFER_WORDS: usize = 12;
/// What the owner of a table gives to the others, before it is ready.
pub type Offer = [u64; OFFER_WORDS];

#[repr(C)]
pub struct Table {
    pub word: AtomicU64,
    /// Why it was given up: for the report.
    pub reason: AtomicU32,
    /// A futex, which changes with everything that anybody may wait for.
    pub bell: AtomicU32,
    /// The features that all agree on, and [`DECIDED`].
    pub verdict: AtomicU64,
    /// Members that are in `MPI_Finalize`.
    pub departed: AtomicU32,
    /// Who looks next whether which process lives.
    turns: Turns,
    pub offer: [AtomicU64; OFFER_WORDS],
    pub slots: [Slot; MOST_MEMBERS],
}

pub const DECIDED: u64 = 1 << 63;

/// What a process says about itself. All zeros until it does.
#[repr(C, align(64))]
pub struct Slot {
    pub pid: AtomicI32,
    pub rank: AtomicI32,
    /// Settings that have to be the same everywhere.
    pub settings: AtomicU64,
    /// Where a word is that the others try to read, and the word.
    pub address: AtomicU64,
    pub probe: AtomicU64,
    /// The features that it agrees to, and [`DECIDED`].
    pub vote: AtomicU64,
    /// The processors that it may run on at the end of `PMPI_Init`.
    pub cpus: [AtomicU64; CPU_WORDS],
}

impl Slot {
    pub fn cpus(&self) -> [u64; CPU_WORDS] {
        self.cpus
            .each_ref()
            .map(|word| word.load(Ordering::Relaxed))
    }
}

/// What this process holds of its table.
pub struct Own {
    pub shared: Shared,
    pub slot: usize,
    /// The socket and the file, if it is the owner.
    pub held: Option<(OwnedFd, File)>,
}

/// The table in memory that was made for one.
pub fn table_in(shared: &Shared) -> &Table {
    // SAFETY: the mapping has room for a table, on a page; all zeros are one.
    unsafe { &*shared.place(0, size_of::<Table>()).cast() }
}

impl Own {
    pub fn table(&self) -> &Table {
        table_in(&self.shared)
    }
}

/// Why a table was given up.
pub mod reason {
    pub const MISSING: u32 = 1;
    pub const DEAD: u32 = 2;
    pub const SETTINGS: u32 = 3;
    pub const RANKS: u32 = 4;
    pub const WITHDRAWN: u32 = 5;
    pub const LATE: u32 = 6;
}

/// Decides on features, if nobody has.
pub fn settle(table: &Table, features: u64) {
    let order = (Ordering::AcqRel, Ordering::Acquire);
    let _ = table
        .verdict
        .compare_exchange(0, features, order.0, order.1);
    ring(table);
}

/// Decides that nobody takes part, if nothing was decided yet.
pub fn give_up(table: &Table, why: u32) {
    let mut bits = table.word.load(Ordering::Acquire);
    loop {
        let word = State::of(bits);
        if word.phase != phase::OPEN {
            return;
        }
        table.reason.store(why, Ordering::Release);
        let given_up = State {
            phase: phase::GIVEN_UP,
            ..word
        };
        let order = (Ordering::AcqRel, Ordering::Acquire);
        match table
            .word
            .compare_exchange(bits, given_up.bits(), order.0, order.1)
        {
            Ok(_) => return ring(table),
            Err(other) => bits = other,
        }
    }
}

/// How often those who wait look whether everybody lives.
const LOOKING: Duration = Duration::from_millis(100);

/// Whether all processes of slots live that say who they are, as far as it is this process's turn
/// to look: all who wait look at everybody together. Who finds one that has ended tells the others.
pub fn all_live(table: &Table, members: usize) -> bool {
    let mut drawn = table.turns.draw(members, LOOKING).iter();
    drawn.all(|member| {
        let pid = table.slots[member].pid.load(Ordering::Acquire);
        pid == 0 || lives(pid)
    })
}

/// Wakes all waiters.
pub fn ring(table: &Table) {
    table.bell.fetch_add(1, Ordering::AcqRel);
    // SAFETY: a futex's address, and numbers.
    unsafe {
        let all = c_int::MAX;
        libc::syscall(
            libc::SYS_futex,
            &raw const table.bell,
            libc::FUTEX_WAKE,
            all,
        );
    }
}

/// Waits until something changes, for a [`TICK`] at most; whether nothing did.
pub fn wait(table: &Table, heard: u32) -> bool {
    let limit = libc::timespec {
        tv_sec: 0,
        tv_nsec: TICK.as_nanos() as libc::c_long,
    };
    // SAFETY: a futex's address, numbers, and a time that lives.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            &raw const table.bell,
            libc::FUTEX_WAIT,
            heard,
            &raw const limit,
        );
    }
    table.bell.load(Ordering::Acquire) == heard
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_holds_all_three() {
        let state = State {
            phase: phase::GIVEN_UP,
            ready: 511,
            announced: 512,
        };
        let State {
            phase,
            ready,
            announced,
        } = State::of(state.bits());
        assert_eq!((phase, ready, announced), (2, 511, 512));
    }
}
