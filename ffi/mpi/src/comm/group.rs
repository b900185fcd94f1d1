// SPDX-License-Identifier: MIT OR Apache-2.0

//! The team behind a communicator's ranks on this machine, and how it is made.

use std::ffi::c_int;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use libcopy::config;
use libcopy::lock::lock;
use libcopy::offload::Async;
use libcopy::policy::{Oversubscription, Policy};
use libcopy::team::{Resumption, Usage};
use libcopy::{Team, TeamKey, TransportKind};

use crate::bootstrap;
use crate::bootstrap::own_collectives::{allgather, bcast};
use crate::comm::hierarchy::Nodes;
use crate::comm::processes;
use crate::library::abi::{Abi, Word};
use crate::library::{abi, async_guard, pmpi, progress, times};

/// The ranks of a communicator.
#[derive(Debug)]
pub struct Group {
    /// Those on this machine.
    team: Mutex<Team>,
    /// Which communicators' ranks use it.
    pub usage: Usage,
    /// How its ranks go on after an erroneous call.
    resumption: Resumption,
    /// Calls of the team, on all communicators that share it.
    calls: AtomicU64,
    /// Where the others are, if that is not all.
    pub nodes: Option<Nodes>,
    /// Our rank in the communicator, which is the one in the team if all ranks are on one machine.
    pub rank: usize,
    /// Ranks.
    pub size: usize,
    /// How ranks and processors go together on the machine where they are the most.
    pub oversubscription: Oversubscription,
    /// Whether bytes can go with one copy on all machines.
    pub direct: bool,
}

impl Group {
    /// The team; calls on one communicator come one after the other anyway (MPI 4.1, section 6.1).
    pub fn team(&self) -> MutexGuard<'_, Team> {
        lock(&self.team)
    }

    /// Counts a call that the team is to do, as all its ranks count it; `None` if it goes past the
    /// team, on all ranks alike: an erroneous call has broken the team, but its ranks live, and the
    /// library does the calls that come after.
    pub fn next_call(&self) -> Option<u64> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if self.is_in_disagreement() {
            self.after_disagreement(number)
        } else {
            Some(number)
        }
    }

    #[cold]
    fn after_disagreement(&self, number: u64) -> Option<u64> {
        let progress = progress::everything;
        (!self.resumption.goes_past(number, PATIENCE, progress)).then_some(number)
    }

    /// A call that was counted has failed. Before anything else is called that may wait for another
    /// rank.
    pub fn failed(&self, number: u64) {
        if self.is_in_disagreement() {
            self.resumption.failed(number);
        }
    }

    fn is_in_disagreement(&self) -> bool {
        self.nodes.is_none() && self.usage.is_in_disagreement()
    }
}

/// How long a call after an erroneous one waits for ranks that were able to end that one, and have
/// made no call since.
const PATIENCE: Duration = Duration::from_secs(10);

/// Joins a team. Its collectives return early only where no leader passes what they bring to other
/// nodes.
fn join(key: &TeamKey, rank: usize, size: usize, alone: bool) -> libcopy::Result<Team> {
    let mut policy = Policy::load()?;
    policy.asynchronous = if alone {
        async_guard::choice(&policy)
    } else {
        Async::Off
    };
    let mut team = times::setup(|| Team::join_with(key, rank, size, policy))?;
    // What all ranks have agreed on.
    if team.policy().asynchronous != Async::Off {
        async_guard::attach();
    }
    team.set_progress_hook(Some(progress::everything));
    Ok(team)
}

/// How many ranks of a machine are to be taken for a node, to try what happens across nodes; the
/// same for all ranks.
fn ranks_of_a_node() -> Option<usize> {
    static RANKS: OnceLock<Option<usize>> = OnceLock::new();
    *RANKS.get_or_init(|| {
        let ranks: Option<NonZeroUsize> = abi::asked(config::MPI_NODE_RANKS.parse());
        ranks.map(NonZeroUsize::get)
    })
}

/// The ranks of this machine, freed with this.
pub struct Node(Word);

impl Node {
    /// Their communicator.
    pub fn word(&self) -> Word {
        self.0
    }

    /// Collective over the communicator; the library's error code if that fails.
    pub fn of(abi: &Abi, comm: Word, rank: c_int) -> Result<Node, c_int> {
        let code = |answer| if answer == 0 { Ok(()) } else { Err(answer) };
        let mut node = Node(0);
        // SAFETY: all ranks of the communicator are here; the outputs are writable, and a word has
        // room for either kind of handle.
        unsafe {
            code(pmpi::comm_split_type(
                comm,
                abi.shared,
                rank,
                abi.info_null,
                &mut node.0,
            ))?;
            let Some(ranks) = ranks_of_a_node() else {
                return Ok(node);
            };
            let (mut number, mut part) = (0, Node(0));
            code(pmpi::comm_rank(abi.world, &mut number))?;
            let color = (number as usize / ranks) as c_int;
            code(pmpi::comm_split(node.0, color, rank, &mut part.0))?;
            Ok(part)
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.0 != 0 {
            // SAFETY: our own communicator, and all its ranks are here.
            unsafe { pmpi::comm_free(&mut self.0) };
        }
    }
}

/// Whether this rank of the machine, `seat`, says what has kept its team from being made: one for
/// all does.
fn says(seat: usize, error: &libcopy::Error) -> bool {
    use libcopy::Error::{Broken, Join, JoinTimeout, PeerDied, PeerLeft};
    match error {
        // The rank that could not join does.
        Join { .. } | Broken { .. } => false,
        JoinTimeout { rank, .. } | PeerDied { rank } | PeerLeft { rank } => {
            seat == usize::from(*rank == 0)
        }
        _ => true,
    }
}

/// Makes the team, and finds out about other nodes; `None`: the communicator is none for us. All
/// ranks give the same answer.
///
/// # Errors
///
/// Why there is no team, on the rank of each machine that is to say so.
pub fn create(
    abi: &'static Abi,
    comm: Word,
    rank: usize,
    size: usize,
) -> Result<Option<Group>, Option<String>> {
    let failed = |what: &str| {
        Err(Some(format!(
            "{what} failed; its collectives are forwarded"
        )))
    };
    let Ok(node) = Node::of(abi, comm, rank as c_int) else {
        return failed("MPI_Comm_split_type");
    };
    let (mut seat, mut here) = (0, 0);
    // SAFETY: our own communicator, and writable outputs.
    let answers = unsafe {
        [
            pmpi::comm_rank(node.0, &mut seat),
            pmpi::comm_size(node.0, &mut here),
        ]
    };
    let (Ok(seat), Ok(here), [0, 0]) = (usize::try_from(seat), usize::try_from(here), answers)
    else {
        return failed("MPI_Comm_rank");
    };
    let key = TeamKey::random().map_err(|error| error.report());
    // The key of a node's team, and who its leader is.
    let mut bytes = [0u8; 24];
    bytes[..16].copy_from_slice(&key.as_ref().map_or([0; 16], |key| key.to_bytes()));
    bytes[16..].copy_from_slice(&(rank as u64).to_ne_bytes());
    if bcast(abi, node.0, &mut bytes) != 0 {
        return failed("broadcasting a key");
    }
    drop(node);
    // A rank that must not read another's memory cannot open what they share either.
    if !all_agree(abi, comm, size, !processes::has_lost_rights()) {
        let why = "a rank must not read the others' memory; its collectives are forwarded";
        return Err((seat == 0).then(|| why.to_owned()));
    }
    let (mut key, mut leader) = ([0u8; 16], [0u8; 8]);
    key.copy_from_slice(&bytes[..16]);
    leader.copy_from_slice(&bytes[16..]);
    let leader = u64::from_ne_bytes(leader) as c_int;
    let nodes = if here == size {
        None
    } else {
        let Some(leaders) = allgather(abi, comm, leader, size) else {
            return failed("MPI_Allgather");
        };
        match Nodes::new(abi, comm, rank, &leaders) {
            Ok(Some(nodes)) => Some(nodes),
            Ok(None) => return Ok(None),
            Err(_) => return failed("MPI_Comm_split"),
        }
    };
    // Here no communicator is being made that would be in the way of the one that this makes.
    progress::library(abi);
    // A leader has none to give if it got no random numbers.
    let team = if key == [0; 16] {
        Err((seat == 0).then(|| "no random numbers for a key".to_owned()))
    } else {
        let joined = join(&TeamKey::from_bytes(key), seat, here, nodes.is_none());
        joined.map_err(|error| says(seat, &error).then(|| error.report()))
    };
    let direct = |team: &Team| {
        let mut reports = team.transports().iter();
        reports.any(|report| report.usable && report.kind != TransportKind::Shm)
    };
    let (mut oversubscription, mut is_direct) = (Oversubscription::None, false);
    if let Ok(team) = &team {
        oversubscription = team.oversubscription().max(bootstrap::shared());
        is_direct = direct(team);
    }
    let fine = u8::from(team.is_ok()) | u8::from(is_direct) << 1 | (oversubscription as u8) << 2;
    let Some(all) = allgather(abi, comm, fine, size) else {
        return failed("MPI_Allgather");
    };
    let mut team = team?;
    if let Some(other) = all.iter().position(|fine| fine & 1 == 0) {
        let why = format!("rank {other} could not join its team");
        return Err((seat == 0).then_some(why));
    }
    let most = all.iter().map(|fine| fine >> 2).max().unwrap_or(0);
    let oversubscription = Oversubscription::ALL[usize::from(most) % 3];
    team.share_processors(oversubscription);
    Ok(Some(Group {
        oversubscription,
        direct: all.iter().all(|fine| fine & 2 != 0),
        usage: team.usage(),
        resumption: team.resumption(),
        calls: AtomicU64::new(0),
        team: Mutex::new(team),
        nodes,
        rank,
        size,
    }))
}

/// Whether all ranks say yes. Collective.
fn all_agree(abi: &Abi, comm: Word, size: usize, yes: bool) -> bool {
    let all = allgather(abi, comm, u8::from(yes), size);
    all.is_some_and(|all| all.iter().all(|yes| *yes != 0))
}
