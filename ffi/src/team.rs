// SPDX-License-Identifier: MIT OR Apache-2.0

//! Teams and their collective operations.

use crate::arguments::{Handle, Memory, New, Out, Shared};
use crate::error::{Failure, LIBCOPY_EBUSY, Result, invalid};
use libcopy::process::Home;
use libcopy::{Parts, Team, TeamKey, TransportKind};
use libcopy_ffi_macros::c_api;
use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Bytes of the key of a team.
pub const LIBCOPY_KEY_LENGTH: usize = 16;

const BUSY: &str = "another thread is inside a call on this team; calls must follow one another";

/// Membership of this process in a team. In a forked child all operations fail with
/// `LIBCOPY_EFORKED`, and `libcopy_team_free` frees the child's copy alone.
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct libcopy_team_t {
    team: Mutex<Team>,
    home: Home,
    rank: usize,
    size: usize,
}

impl libcopy_team_t {
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Team>> {
        // Another thread of its parent may have been inside a call.
        self.home.check("this team")?;
        match self.team.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(guard)) => Ok(guard.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure(LIBCOPY_EBUSY, BUSY.into())),
        }
    }

    /// One value at the root, another one at the other ranks.
    fn at<T>(&self, root: usize, there: T, elsewhere: T) -> T {
        if self.rank == root { there } else { elsewhere }
    }
}

impl Handle for libcopy_team_t {}

impl From<Team> for libcopy_team_t {
    fn from(team: Team) -> Self {
        // Nothing is pending in a process without a team.
        crate::wrappers::attach();
        libcopy_team_t {
            rank: team.rank(),
            size: team.size(),
            home: Home::here(),
            team: Mutex::new(team),
        }
    }
}

/// Bytes of a number of blocks.
fn total(length: usize, blocks: usize) -> Result<usize> {
    let long = || format!("{blocks} blocks of {length} bytes are longer than memory can be");
    length.checked_mul(blocks).ok_or_else(|| invalid(long()))
}

/// The end of the last part. An empty part must lie before it, too.
fn end(counts: &[usize], offsets: &[usize]) -> Result<usize> {
    let mut parts = counts.iter().zip(offsets);
    parts.try_fold(0, |end, (count, offset)| {
        let long = || format!("a part of {count} bytes at {offset} is longer than memory can be");
        let part = offset.checked_add(*count);
        Ok(part.ok_or_else(|| invalid(long()))?.max(end))
    })
}

/// Joins the team with the 16-byte `key` as `rank` of `size`. Returns when all ranks are there.
/// The key must be random and used for one team only. `*team` is null after an error.
#[c_api]
pub fn libcopy_team_join(
    #[len(LIBCOPY_KEY_LENGTH)] key: &[u8],
    rank: usize,
    size: usize,
    team: New<libcopy_team_t>,
) -> Result {
    let key = TeamKey::from_bytes(std::array::from_fn(|i| key[i]));
    team.put(Team::join(&key, rank, size)?)
}

/// Joins the team that the environment names, as `libcopy run` sets it up; without it, a team of
/// one. `*team` is null after an error.
#[c_api]
pub fn libcopy_team_from_env(team: New<libcopy_team_t>) -> Result {
    team.put(Team::from_env()?)
}

/// Leaves the team and frees the handle. Null is allowed.
#[c_api]
pub fn libcopy_team_free(team: Option<Box<libcopy_team_t>>) -> Result {
    drop(team);
    Ok(())
}

/// This process's rank, 0 to size - 1.
#[c_api]
pub fn libcopy_team_rank(team: &libcopy_team_t, rank: Out<usize>) -> Result {
    rank.put(team.rank)
}

/// The number of ranks.
#[c_api]
pub fn libcopy_team_size(team: &libcopy_team_t, size: Out<usize>) -> Result {
    size.put(team.size)
}

/// Makes all ranks use one transport, "kmod", "cma" or "shm"; null leaves it to the policy.
/// All ranks call it with the same name.
#[c_api]
pub fn libcopy_team_set_transport(team: Shared<libcopy_team_t>, name: Option<&CStr>) -> Result {
    let kind = name.map(|name| name.to_string_lossy().parse::<TransportKind>());
    Ok(team.lock()?.set_transport(kind.transpose()?)?)
}

/// Returns when all ranks have called it.
#[c_api]
pub fn libcopy_team_barrier(team: Shared<libcopy_team_t>) -> Result {
    Ok(team.lock()?.barrier()?)
}

/// Copies the root's `length` bytes at `data` into everybody's `data`.
#[c_api]
pub fn libcopy_team_bcast(
    team: Shared<libcopy_team_t>,
    #[bytes(length)] data: &mut [u8],
    length: usize,
    root: usize,
) -> Result {
    Ok(team.lock()?.bcast(data, root)?)
}

/// Collects everybody's `length` bytes at `send` in the root's `recv`, ordered by rank. `recv`
/// has room for `length` bytes of each rank at the root and is ignored elsewhere.
#[c_api]
pub fn libcopy_team_gather(
    team: Shared<libcopy_team_t>,
    #[bytes(length)] send: &[u8],
    length: usize,
    root: usize,
    #[bytes(total(length, team.at(root, team.size, 0))?)] recv: Memory,
) -> Result {
    let recv = team.at(root, Some(recv.apart_from(send)?), None);
    Ok(team.lock()?.gather(send, recv, root)?)
}

/// [`libcopy_team_gather`] where the root's own part is in its place already: at the root, `data`
/// is the whole receive buffer, `length` bytes of each rank; elsewhere it is the `length` bytes
/// that are sent.
#[c_api]
pub fn libcopy_team_gather_in_place(
    team: Shared<libcopy_team_t>,
    #[bytes(total(length, team.at(root, team.size, 1))?)] data: Memory,
    length: usize,
    root: usize,
) -> Result {
    if team.rank != root {
        return Ok(team.lock()?.gather(data.read(), None, root)?);
    }
    Ok(team.lock()?.gather_in_place(data.write(), root)?)
}

/// [`libcopy_team_gather`] with parts of different lengths: rank `i`'s `counts[i]` bytes go to
/// `recv + offsets[i]`. `counts`, `offsets` and `recv` are ignored except at the root; `length`
/// is that of one's own part. Parts must not overlap.
#[c_api]
pub fn libcopy_team_gatherv(
    team: Shared<libcopy_team_t>,
    #[bytes(length)] send: &[u8],
    length: usize,
    #[len(team.at(root, team.size, 0))] counts: &[usize],
    #[len(team.at(root, team.size, 0))] offsets: &[usize],
    root: usize,
    #[bytes(end(counts, offsets)?)] recv: Memory,
) -> Result {
    let recv = (recv.apart_from(send)?, Parts { counts, offsets });
    let recv = team.at(root, Some(recv), None);
    Ok(team.lock()?.gatherv(send, recv, root)?)
}

/// [`libcopy_team_gatherv`] where the root's own part is in its place already: at the root, `data`
/// is the receive buffer and `length` is ignored; elsewhere it is the `length` bytes that are sent.
#[c_api]
pub fn libcopy_team_gatherv_in_place(
    team: Shared<libcopy_team_t>,
    #[bytes(team.at(root, end(counts, offsets)?, length))] data: Memory,
    length: usize,
    #[len(team.at(root, team.size, 0))] counts: &[usize],
    #[len(team.at(root, team.size, 0))] offsets: &[usize],
    root: usize,
) -> Result {
    if team.rank != root {
        return Ok(team.lock()?.gatherv(data.read(), None, root)?);
    }
    let parts = Some(Parts { counts, offsets });
    Ok(team.lock()?.gatherv_in_place(data.write(), parts, root)?)
}

/// Hands the root's `send` out in parts of `length` bytes, ordered by rank, into everybody's
/// `recv`. `send` is ignored except at the root.
#[c_api]
pub fn libcopy_team_scatter(
    team: Shared<libcopy_team_t>,
    #[bytes(total(length, team.at(root, team.size, 0))?)] send: &[u8],
    length: usize,
    root: usize,
    #[bytes(length)] recv: Memory,
) -> Result {
    let (recv, send) = (recv.apart_from(send)?, team.at(root, Some(send), None));
    Ok(team.lock()?.scatter(send, recv, root)?)
}

/// [`libcopy_team_scatter`] where the root keeps its own part in place: at the root, `data` is the
/// whole send buffer, `length` bytes for each rank, and stays as it is; elsewhere it is where the
/// `length` bytes go.
#[c_api]
pub fn libcopy_team_scatter_in_place(
    team: Shared<libcopy_team_t>,
    #[bytes(total(length, team.at(root, team.size, 1))?)] data: &mut [u8],
    length: usize,
    root: usize,
) -> Result {
    Ok(team.lock()?.scatter_in_place(data, root)?)
}

/// [`libcopy_team_scatter`] with parts of different lengths: the `counts[i]` bytes at
/// `send + offsets[i]` go to rank `i`. `send`, `counts` and `offsets` are ignored except at the
/// root; `length` is that of one's own part. Parts may overlap.
#[c_api]
pub fn libcopy_team_scatterv(
    team: Shared<libcopy_team_t>,
    #[bytes(end(counts, offsets)?)] send: &[u8],
    #[len(team.at(root, team.size, 0))] counts: &[usize],
    #[len(team.at(root, team.size, 0))] offsets: &[usize],
    length: usize,
    root: usize,
    #[bytes(length)] recv: Memory,
) -> Result {
    let recv = recv.apart_from(send)?;
    let send = team.at(root, Some((send, Parts { counts, offsets })), None);
    Ok(team.lock()?.scatterv(send, recv, root)?)
}

/// [`libcopy_team_scatterv`] where the root keeps its own part in place: at the root, `data` is the
/// send buffer, stays as it is, and `length` is ignored; elsewhere it is where the `length` bytes
/// go.
#[c_api]
pub fn libcopy_team_scatterv_in_place(
    team: Shared<libcopy_team_t>,
    #[bytes(team.at(root, end(counts, offsets)?, length))] data: &mut [u8],
    length: usize,
    #[len(team.at(root, team.size, 0))] counts: &[usize],
    #[len(team.at(root, team.size, 0))] offsets: &[usize],
    root: usize,
) -> Result {
    let parts = team.at(root, Some(Parts { counts, offsets }), None);
    Ok(team.lock()?.scatterv_in_place(data, parts, root)?)
}

/// Collects everybody's `length` bytes at `send` in everybody's `recv`, ordered by rank.
#[c_api]
pub fn libcopy_team_allgather(
    team: Shared<libcopy_team_t>,
    #[bytes(length)] send: &[u8],
    length: usize,
    #[bytes(total(length, team.size)?)] recv: Memory,
) -> Result {
    Ok(team.lock()?.allgather(send, recv.apart_from(send)?)?)
}

/// [`libcopy_team_allgather`] where everybody's own part is in its place in `data` already.
#[c_api]
pub fn libcopy_team_allgather_in_place(
    team: Shared<libcopy_team_t>,
    #[bytes(total(length, team.size)?)] data: &mut [u8],
    length: usize,
) -> Result {
    Ok(team.lock()?.allgather_in_place(data)?)
}

/// [`libcopy_team_allgather`] with parts of different lengths: rank `i`'s `counts[i]` bytes go to
/// everybody's `recv + offsets[i]`. All ranks give the same counts; `length` is that of one's own
/// part. Parts must not overlap.
#[c_api]
pub fn libcopy_team_allgatherv(
    team: Shared<libcopy_team_t>,
    #[bytes(length)] send: &[u8],
    length: usize,
    #[len(team.size)] counts: &[usize],
    #[len(team.size)] offsets: &[usize],
    #[bytes(end(counts, offsets)?)] recv: Memory,
) -> Result {
    let (recv, parts) = (recv.apart_from(send)?, Parts { counts, offsets });
    Ok(team.lock()?.allgatherv(send, recv, parts)?)
}

/// [`libcopy_team_allgatherv`] where everybody's own part is in its place in `data` already.
#[c_api]
pub fn libcopy_team_allgatherv_in_place(
    team: Shared<libcopy_team_t>,
    #[bytes(end(counts, offsets)?)] data: &mut [u8],
    #[len(team.size)] counts: &[usize],
    #[len(team.size)] offsets: &[usize],
) -> Result {
    let parts = Parts { counts, offsets };
    Ok(team.lock()?.allgatherv_in_place(data, parts)?)
}
