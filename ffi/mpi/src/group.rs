// SPDX-License-Identifier: MIT OR Apache-2.0

//! The team behind a communicator, made with its first large message and kept as an attribute.
//!
//! Everything here that decides is decided alike by all ranks of the communicator: they call a
//! collective with the same number of bytes, so they all come here together.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use libcopy::{Team, TeamKey};

use crate::abi::{Abi, Word, complain};
use crate::pmpi;
use crate::stats::Fate;

/// The ranks of a communicator that are all on this machine.
#[derive(Debug)]
pub struct Group {
    team: Mutex<Team>,
    /// Our rank in the communicator, which is the one in the team.
    pub rank: usize,
    /// Ranks.
    pub size: usize,
    /// Whether ranks outnumber processors.
    pub crowded: bool,
}

impl Group {
    /// The team; calls on one communicator come one after the other anyway (MPI 4.1, section 6.1).
    pub fn team(&self) -> MutexGuard<'_, Team> {
        self.team.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Values of the attribute: why there is no team, or the number of one from `FIRST` on.
const ELSEWHERE: usize = 1;
const FAILED: usize = 2;
const FIRST: usize = 16;

struct Registry {
    groups: HashMap<usize, Arc<Group>>,
    next: usize,
}

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(|| {
    Mutex::new(Registry {
        groups: HashMap::new(),
        next: FIRST,
    })
});

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets go of all teams: the program ends.
pub fn clear() {
    let groups = std::mem::take(&mut registry().groups);
    drop(groups);
}

/// A duplicate of a communicator has no team until it needs one.
unsafe extern "C" fn copy_attribute(
    _comm: Word,
    _keyval: c_int,
    _extra: *mut c_void,
    _old: *mut c_void,
    _new: *mut c_void,
    flag: *mut c_int,
) -> c_int {
    // SAFETY: the library gives the address of a flag.
    unsafe { *flag = 0 };
    0
}

unsafe extern "C" fn delete_attribute(
    _comm: Word,
    _keyval: c_int,
    value: *mut c_void,
    _extra: *mut c_void,
) -> c_int {
    let group = registry().groups.remove(&(value as usize));
    drop(group);
    0
}

fn keyval() -> Option<c_int> {
    static KEYVAL: OnceLock<Option<c_int>> = OnceLock::new();
    *KEYVAL.get_or_init(|| {
        let mut keyval = 0;
        // SAFETY: both functions have the types that the standard asks for.
        let answer = unsafe {
            pmpi::comm_create_keyval(
                copy_attribute,
                delete_attribute,
                &mut keyval,
                ptr::null_mut(),
            )
        };
        (answer == 0).then_some(keyval)
    })
}

/// The group of a communicator; collective the first time.
pub fn of(abi: &Abi, comm: Word) -> Result<Arc<Group>, Fate> {
    let keyval = keyval().ok_or(Fate::NoTeam)?;
    let (mut value, mut found) = (ptr::null_mut(), 0);
    // SAFETY: both outputs are writable. An invalid communicator is an error that we pass on.
    let answer = unsafe { pmpi::comm_get_attr(comm, keyval, &mut value, &mut found) };
    if answer != 0 {
        return Err(Fate::Arguments);
    }
    let mut known = value as usize;
    if found == 0 {
        known = match create(abi, comm) {
            Ok(Some(group)) => {
                let mut registry = registry();
                let number = registry.next;
                registry.next += 1;
                registry.groups.insert(number, Arc::new(group));
                number
            }
            Ok(None) => ELSEWHERE,
            Err(why) => {
                complain(&why);
                FAILED
            }
        };
        // SAFETY: the value is a number to MPI.
        unsafe { pmpi::comm_set_attr(comm, keyval, known as *mut c_void) };
    }
    match known {
        ELSEWHERE => Err(Fate::Communicator),
        FAILED => Err(Fate::NoTeam),
        number => registry().groups.get(&number).cloned().ok_or(Fate::NoTeam),
    }
}

/// Makes the team; `None`: the communicator is none for us. All ranks give the same answer.
fn create(abi: &Abi, comm: Word) -> Result<Option<Group>, String> {
    let failed = |what: &str| Err(format!("{what} failed; its collectives are passed on"));
    let (mut inter, mut rank, mut size) = (0, 0, 0);
    // SAFETY: a communicator that `of` has used already, and writable outputs.
    let answers = unsafe {
        [
            pmpi::comm_test_inter(comm, &mut inter),
            pmpi::comm_rank(comm, &mut rank),
            pmpi::comm_size(comm, &mut size),
        ]
    };
    if answers != [0; 3] {
        return failed("asking for the size of a communicator");
    }
    if inter != 0 || size < 2 {
        return Ok(None);
    }
    let (mut node, mut here): (Word, c_int) = (0, 0);
    // SAFETY: all ranks of the communicator are here; the outputs are writable, and a word has room
    // for either kind of handle.
    let answers = unsafe {
        [
            pmpi::comm_split_type(comm, abi.shared, rank, abi.info_null, &mut node),
            pmpi::comm_size(node, &mut here),
            pmpi::comm_free(&mut node),
        ]
    };
    if answers != [0; 3] {
        return failed("MPI_Comm_split_type");
    }
    if here != size {
        return Ok(None);
    }
    let key = TeamKey::random().map_err(|error| error.to_string());
    let mut bytes = key.as_ref().map_or([0; 16], |key| key.to_bytes());
    // SAFETY: all ranks are here; the key is 16 bytes.
    if unsafe { pmpi::bcast(bytes.as_mut_ptr().cast(), 16, abi.byte, 0, comm) } != 0 {
        return failed("broadcasting a key");
    }
    let (rank, size) = (rank as usize, size as usize);
    // Rank 0 has none to give if it got no random numbers.
    let team = match bytes == [0; 16] {
        true => Err("no random numbers for a key".to_owned()),
        false => Team::join(&TeamKey::from_bytes(bytes), rank, size).map_err(|e| e.to_string()),
    };
    let fine = [u8::from(team.is_ok())];
    let mut all = vec![0u8; size];
    // SAFETY: all ranks are here; one byte from each.
    let answer = unsafe {
        let recv = all.as_mut_ptr().cast();
        pmpi::allgather(fine.as_ptr().cast(), 1, abi.byte, recv, 1, abi.byte, comm)
    };
    if answer != 0 {
        return failed("MPI_Allgather");
    }
    let team = team?;
    if let Some(other) = all.iter().position(|fine| *fine == 0) {
        return Err(format!("rank {other} could not join its team"));
    }
    Ok(Some(Group {
        crowded: team.is_crowded(),
        team: Mutex::new(team),
        rank,
        size,
    }))
}
