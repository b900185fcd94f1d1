// SPDX-License-Identifier: MIT OR Apache-2.0

//! `MPI_Init` and `MPI_Finalize`: the processes of a machine get to know each other.

use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::Once;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libcopy::TeamKey;

use super::attach::Module;
use super::board::Board;
use super::choice::Choice;
use super::roads::Roads;
use super::{WORLD, World, memory, outgoing, requests, world};
use crate::abi::{self, Abi, complain};
use crate::call::active;
use crate::meeting::{Plain, from_all, from_first};
use crate::{fortran, pmpi, progress, stats};

/// Processes of one machine that share a board.
const MOST_MEMBERS: usize = 512;

/// What each process says about itself.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Card {
    pid: i32,
    rank: i32,
    /// Where a word is that the others try to read.
    address: u64,
    word: u64,
    /// Whether all has gone well so far.
    fine: u64,
    /// Whether it is in the kernel module's domain.
    module: u64,
}

/// What the first process says about the board.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Offer {
    magic: [u64; 2],
    pid: i32,
    fd: i32,
    fine: u64,
    /// From how many bytes on messages are taken: senders and receivers have to judge alike.
    least: [u64; 2],
    /// Of the kernel module's domain, if there is one.
    key: [u8; 16],
    has_module: u64,
}

// SAFETY: integers only.
unsafe impl Plain for Offer {}
// SAFETY: integers only.
unsafe impl Plain for Card {}

/// How data that are not dense are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Road {
    /// As is fastest.
    Best,
    /// Through a lane, even where the kernel module is.
    Stream,
    /// Read by the receiver, whatever the sender does.
    Fetch,
    /// Out of memory that is mapped, from the first message on.
    Attach,
}

/// What `LIBCOPY_MPI_ROAD` asks for, to compare.
fn road() -> Road {
    match std::env::var("LIBCOPY_MPI_ROAD").as_deref() {
        Err(_) | Ok("" | "best") => Road::Best,
        Ok("stream") => Road::Stream,
        Ok("fetch") => Road::Fetch,
        Ok("attach") => Road::Attach,
        Ok(other) => {
            complain(&format!(
                "LIBCOPY_MPI_ROAD is {other:?}, not best, stream, fetch or attach"
            ));
            Road::Best
        }
    }
}

/// Has messages taken from now on, if all processes of the machine can. Collective.
pub fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(start_once);
}

fn start_once() {
    if abi::is_set_or(c"LIBCOPY_MPI_MESSAGES", true) && world().is_none() {
        if let Some(abi) = active() {
            match meet(abi) {
                Ok(Some(world)) => {
                    progress::library(abi);
                    let world = Box::into_raw(Box::new(world));
                    WORLD.store(world, Ordering::Release);
                }
                Ok(None) => {}
                // Whoever did not ask for them need not hear of it.
                Err(why) if abi::is_set(c"LIBCOPY_MPI_MESSAGES") || stats::wanted() => {
                    complain(&format!("{why}; messages are passed on"));
                }
                Err(_) => {}
            }
        }
    }
    outgoing::learn(world().map(|world| world.least[0]));
}

/// Whether several threads may call at the same time, and the library has an
/// `MPI_Request_get_status` that is not made for that (MPICH 4.0).
fn has_unsafe_threads(abi: &Abi) -> bool {
    let mut provided = abi.thread_multiple;
    // SAFETY: a writable output.
    unsafe { pmpi::query_thread(&mut provided) };
    !abi.is_open_mpi() && provided >= abi.thread_multiple
}

/// Makes the world; `None` if there is nobody else on this machine.
fn meet(abi: &'static Abi) -> Result<Option<World>, String> {
    abi::permit_peers();
    let (mut node, mut rank, mut size, mut own) = (0, 0, 0, 0);
    // SAFETY: all ranks are here; writable outputs.
    let answers = unsafe {
        [
            pmpi::comm_rank(abi.world, &mut own),
            pmpi::comm_split_type(abi.world, abi.shared, own, abi.info_null, &mut node),
            pmpi::comm_rank(node, &mut rank),
            pmpi::comm_size(node, &mut size),
        ]
    };
    if answers != [0; 4] {
        return Err("MPI_Comm_split_type failed".to_owned());
    }
    let members = usize::try_from(size).unwrap_or(0);
    let met = match members {
        0 | 1 => Ok(None),
        _ if members > MOST_MEMBERS => Err(format!("{members} processes are too many")),
        _ => meet_on(abi, node, (rank as usize, members), own).map(Some),
    };
    if !matches!(met, Ok(Some(_))) {
        // SAFETY: our own communicator.
        unsafe { pmpi::comm_free(&mut node) };
    }
    met
}

fn meet_on(
    abi: &'static Abi,
    node: abi::Word,
    (me, members): (usize, usize),
    own: c_int,
) -> Result<World, String> {
    let mut offer = Offer::default();
    let (mut made, mut module, road) = (None, None, road());
    let eager = road == Road::Attach;
    if me == 0 {
        let board = TeamKey::random().map_err(|error| error.to_string());
        let board = board.and_then(|key| {
            let bytes = key.to_bytes();
            let half = |at: usize| {
                let part = bytes[at..at + 8].try_into().unwrap_or_default();
                u64::from_ne_bytes(part)
            };
            let magic = [half(0), half(8)];
            let made = Board::create(members, magic).map_err(|error| error.to_string());
            made.map(|made| (made, magic))
        });
        if let Ok(((board, file), magic)) = board {
            offer = Offer {
                magic,
                pid: std::process::id() as i32,
                fd: file.as_raw_fd(),
                fine: 1,
                least: Choice::of(abi).least(),
                ..Offer::default()
            };
            if matches!(road, Road::Best | Road::Attach) {
                if let Some((created, key)) = Module::create(eager) {
                    (offer.key, offer.has_module) = (key, 1);
                    module = Some(created);
                }
            }
            made = Some((board, file));
        }
    }
    let answer = from_first(abi, node, &mut offer);
    let (made, _file) = match made {
        Some((board, file)) => (Ok(board), Some(file)),
        None if answer != 0 || offer.fine == 0 => (Err("no shared memory".to_owned()), None),
        None => {
            let board = Board::open(offer.pid, offer.fd, members, offer.magic);
            (
                board.map_err(|error| format!("its shared memory: {error}")),
                None,
            )
        }
    };
    if me != 0 && offer.has_module != 0 {
        module = Module::join(offer.key, eager);
    }
    let word = Box::new(offer.magic[0] ^ me as u64);
    let mine = Card {
        pid: std::process::id() as i32,
        rank: own,
        address: &raw const *word as u64,
        word: *word,
        fine: u64::from(
            made.is_ok() && !fortran::has_other_functions(abi) && !has_unsafe_threads(abi),
        ),
        module: u64::from(module.is_some()),
    };
    let cards = exchange(abi, node, mine, members)?;
    let mut fine = Card { fine: 1, ..mine };
    let mut why = None;
    for (other, card) in cards.iter().enumerate() {
        let mut found = 0u64;
        let to = (&raw mut found).cast();
        // SAFETY: eight bytes.
        let read = unsafe { memory::read(card.pid, card.address, to, 8) };
        if card.fine == 0 {
            why = Some(format!("process {other} cannot take part"));
        } else if read.is_err() || found != card.word {
            why = Some(format!("the memory of process {other} cannot be read"));
        }
    }
    if why.is_some() {
        fine.fine = 0;
    }
    let verdict = exchange(abi, node, fine, members)?;
    drop(word);
    if let Some(bad) = verdict.iter().position(|card| card.fine == 0) {
        return Err(why.unwrap_or(format!("process {bad} has not met all others")));
    }
    Ok(World {
        abi,
        node,
        me,
        pids: cards.iter().map(|card| card.pid).collect(),
        ranks: cards.iter().map(|card| card.rank).collect(),
        magic: offer.magic,
        board: made?,
        choice: Choice::of(abi),
        least: offer.least,
        road,
        module: module.filter(|_| cards.iter().all(|card| card.module != 0)),
        roads: Roads::default(),
    })
}

/// What all processes say.
fn exchange(abi: &Abi, node: abi::Word, mine: Card, members: usize) -> Result<Vec<Card>, String> {
    from_all(abi, node, mine, members).ok_or_else(|| "MPI_Allgather failed".to_owned())
}

/// Before `MPI_Finalize`: what was sent is there before anybody's memory goes.
pub fn finish() {
    let Some(world) = world() else {
        return;
    };
    // Requests that were freed while they were under way; a receive that nothing comes for stays.
    let started = Instant::now();
    while requests::has_orphans() && started.elapsed() < Duration::from_secs(1) {
        outgoing::progress(world);
        std::thread::yield_now();
    }
    // Not with the processes of other machines, of which some may be alone there, without a world.
    let mut node = world.node;
    // SAFETY: every process of the communicator comes here.
    unsafe {
        pmpi::barrier(node);
        pmpi::comm_free(&mut node);
    }
    if let Some(module) = &world.module {
        module.clear();
    }
}
