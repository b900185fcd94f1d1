// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages between two processes of one machine, past the MPI library's own copying.
//!
//! Matching stays with the MPI library: in place of its data a message carries a [`header`], and
//! whoever receives that fetches the data. `docs/design/p2p-protocol.md` says why nothing can be reordered,
//! mistaken or left waiting.

mod attach;
mod board;
mod calls;
mod choice;
mod committed;
mod exports;
mod fortran;
mod header;
mod incoming;
pub mod memory;
mod outgoing;
mod packed;
mod probes;
mod requests;
mod roads;
mod short;
mod start;
pub mod status;
mod view;

use std::ffi::c_int;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Instant;

use crate::abi::{Abi, Word};
use crate::group::Comm;
use crate::{bootstrap, earned, group, stats, types};
use attach::Module;
use board::Board;
use choice::Choice;
use roads::Roads;
use start::Road;

pub use outgoing::{lock, progress};
pub use requests::{has_orphans, settle_orphans};
pub use start::{announce, are_asked, finish, leave, start};

/// The processes of this job on this machine.
#[derive(Debug)]
pub struct World {
    abi: &'static Abi,
    /// The ranks that have agreed.
    agreed: &'static bootstrap::World,
    /// Our number among them.
    me: usize,
    pids: Vec<i32>,
    /// Their ranks in `MPI_COMM_WORLD`.
    ranks: Vec<c_int>,
    magic: [u64; 2],
    board: Board,
    /// Which messages are worth it.
    choice: &'static Choice,
    /// Bytes from which on a dense message is taken, and one that is not dense, as the first process says.
    least: [u64; 2],
    /// How data that are not dense are moved.
    road: Road,
    /// The kernel module, if all have it.
    module: Option<Module>,
    /// What messages took that could be attached to.
    roads: Roads,
}

/// The world, once it is there; never freed.
static WORLD: AtomicPtr<World> = AtomicPtr::new(std::ptr::null_mut());

/// The world, if messages are taken at all.
#[inline(always)]
pub fn world() -> Option<&'static World> {
    // SAFETY: what is stored once stays.
    unsafe { WORLD.load(Ordering::Acquire).as_ref() }
}

/// Says whether this process has lost the right to read others' memory, or may have: messages from it and
/// to it go through the MPI library then. Returns what was said before.
pub fn lose_rights(lost: bool) -> bool {
    world().is_some_and(|world| {
        let word = world.board.lost_rights(world.me);
        word.swap(u32::from(lost), Ordering::SeqCst) != 0
    })
}

/// Whether this process has lost the right to read others' memory.
pub fn has_lost_rights() -> bool {
    world().is_some_and(|world| world.board.lost_rights(world.me).load(Ordering::Relaxed) != 0)
}

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

const NOBODY: u32 = u32::MAX;

impl Peers {
    /// The process behind a rank, if messages may go to it past the MPI library.
    #[inline]
    fn of(&self, rank: c_int) -> Option<usize> {
        let Peers::Known { numbers, .. } = self else {
            return None;
        };
        let number = *numbers.get(usize::try_from(rank).ok()?)?;
        (number != NOBODY).then_some(number as usize)
    }
}

impl World {
    /// Whether the memory of this process or of another one may not be read by the other any more, as
    /// either of them has said: then nothing is sent past the MPI library between them.
    #[inline]
    fn is_closed(&self, other: usize) -> bool {
        let lost = |member| self.board.lost_rights(member).load(Ordering::Relaxed) != 0;
        lost(self.me) || lost(other)
    }

    /// The peers of a communicator; an intercommunicator has none.
    fn peers<'a>(&self, known: &'a Comm, comm: Word) -> &'a Peers {
        known.peers.get_or_init(|| {
            if known.inter || known.size < 2 {
                return Peers::None;
            }
            self.translate(comm, known.size)
        })
    }

    fn translate(&self, comm: Word, size: usize) -> Peers {
        let Some(ranks) = group::world_ranks(self.abi, comm, size) else {
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

/// What happened to messages.
#[derive(Clone, Copy, Debug)]
enum Event {
    Sent,
    Received,
    Streamed,
    Fetched,
    Pushed,
    Buffered,
    Packed,
    Attached,
    LayoutSent,
    LayoutKnown,
    LayoutCommitted,
    NoSlot,
    Retired,
    Truncated,
    LayoutTime,
    AttachTime,
    CopyTime,
    ReceiveTime,
}

const EVENTS: [(Event, &str); 18] = [
    (Event::Sent, "sent"),
    (Event::Received, "received"),
    (Event::Streamed, "bytes streamed"),
    (Event::Fetched, "bytes fetched"),
    (Event::Pushed, "bytes pushed"),
    (Event::Buffered, "bytes buffered"),
    (Event::Packed, "packed"),
    (Event::Attached, "bytes attached"),
    (Event::LayoutSent, "bytes of layouts"),
    (Event::LayoutKnown, "layouts known"),
    (Event::LayoutCommitted, "layouts committed"),
    (Event::NoSlot, "without a slot"),
    (Event::Retired, "slots retired"),
    (Event::Truncated, "truncated"),
    (Event::LayoutTime, "ns of layouts"),
    (Event::AttachTime, "ns of attaching"),
    (Event::CopyTime, "ns of copying"),
    (Event::ReceiveTime, "ns of receiving"),
];

static COUNTS: [AtomicU64; EVENTS.len()] = [const { AtomicU64::new(0) }; EVENTS.len()];

fn note(event: Event, number: u64) {
    COUNTS[event as usize].fetch_add(number, Ordering::Relaxed);
}

/// Does `work`, and notes how long it took if anybody will ask.
fn timed<R>(event: Event, work: impl FnOnce() -> R) -> R {
    if !stats::wanted() {
        return work();
    }
    let start = Instant::now();
    let result = work();
    note(event, start.elapsed().as_nanos() as u64);
    result
}

/// The numbers for a report; none where messages are not taken.
pub fn numbers() -> Vec<(&'static str, u64)> {
    if world().is_none() {
        return Vec::new();
    }
    let counts = COUNTS.iter().map(|count| count.load(Ordering::Relaxed));
    let types = [
        ("layouts made", types::made()),
        ("uses of fresh types", earned::forwarded()),
    ];
    let names = EVENTS.iter().map(|(_, name)| *name);
    names.zip(counts).chain(types).collect()
}

/// A line of numbers for the report; nothing where messages are not taken.
pub fn report() -> Option<String> {
    world()?;
    let mut text = "libcopy_mpi: messages:".to_owned();
    for (name, number) in numbers() {
        let _ = write!(text, " {name} {number},");
    }
    text.pop();
    Some(text)
}
