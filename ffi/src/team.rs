// SPDX-License-Identifier: MIT OR Apache-2.0

//! Teams and their collective operations.

use crate::error::{Failure, LIBCOPY_EBUSY, guarded, invalid};
use crate::memory::{bytes, bytes_mut, disjoint, parts, total};
use libcopy::process::Home;
use libcopy::{Team, TeamKey, TransportKind};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// Bytes of the key of a team.
pub const LIBCOPY_KEY_LENGTH: usize = 16;

/// Membership of this process in a team. In a forked child all operations fail with
/// `LIBCOPY_EFORKED`, and `libcopy_team_free` frees the child's copy alone.
#[allow(non_camel_case_types, reason = "its name in C")]
pub struct libcopy_team_t {
    team: Mutex<Team>,
    home: Home,
    rank: usize,
    size: usize,
}

/// # Safety
///
/// `team` is null or a handle that was not freed.
pub(crate) unsafe fn handle<'a>(
    team: *const libcopy_team_t,
) -> Result<&'a libcopy_team_t, Failure> {
    // SAFETY: the caller vouches for a pointer that is not null.
    unsafe { team.as_ref() }.ok_or_else(|| invalid("team is null"))
}

impl libcopy_team_t {
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Team>, Failure> {
        // Another thread of its parent may have been inside a call.
        self.home.check("this team")?;
        match self.team.try_lock() {
            Ok(guard) => Ok(guard),
            Err(TryLockError::Poisoned(guard)) => Ok(guard.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure(
                LIBCOPY_EBUSY,
                "another thread is inside a call on this team; calls must follow one another"
                    .into(),
            )),
        }
    }
}

/// Gives a new team to the caller.
///
/// # Safety
///
/// `team` is null or writable.
unsafe fn give(
    team: *mut *mut libcopy_team_t,
    join: impl FnOnce() -> libcopy::Result<Team>,
) -> Result<(), Failure> {
    if team.is_null() {
        return Err(invalid("the address for the team is null"));
    }
    // SAFETY: not null, and the caller vouches for it.
    unsafe { team.write(std::ptr::null_mut()) };
    let joined = join()?;
    let boxed = Box::new(libcopy_team_t {
        rank: joined.rank(),
        size: joined.size(),
        home: Home::here(),
        team: Mutex::new(joined),
    });
    // SAFETY: as above.
    unsafe { team.write(Box::into_raw(boxed)) };
    Ok(())
}

/// Joins the team with the 16-byte `key` as `rank` of `size`. Returns when all ranks are there.
/// The key must be random and used for one team only. `*team` is null after an error.
///
/// # Safety
///
/// `key` points to 16 bytes, `team` to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_join(
    key: *const u8,
    rank: usize,
    size: usize,
    team: *mut *mut libcopy_team_t,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises 16 bytes, or null, which is refused.
        let key = unsafe { key.cast::<[u8; LIBCOPY_KEY_LENGTH]>().as_ref() }
            .ok_or_else(|| invalid("key is null"))?;
        // SAFETY: the caller's promise.
        unsafe { give(team, || Team::join(&TeamKey::from_bytes(*key), rank, size)) }
    })
}

/// Joins the team that the environment names, as `libcopy run` sets it up; without it, a team of
/// one. `*team` is null after an error.
///
/// # Safety
///
/// `team` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_from_env(team: *mut *mut libcopy_team_t) -> c_int {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { give(team, Team::from_env) })
}

/// Leaves the team and frees the handle. Null is allowed.
///
/// # Safety
///
/// `team` is null or a handle that was not freed; no other thread is using it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_free(team: *mut libcopy_team_t) -> c_int {
    guarded(|| {
        if !team.is_null() {
            // SAFETY: it came from `Box::into_raw`, and the caller gives it up.
            drop(unsafe { Box::from_raw(team) });
        }
        Ok(())
    })
}

/// This process's rank, 0 to size - 1.
///
/// # Safety
///
/// `team` is a team, `rank` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_rank(team: *const libcopy_team_t, rank: *mut usize) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (team, rank) = unsafe { (handle(team)?, rank.as_mut()) };
        *rank.ok_or_else(|| invalid("the address for the rank is null"))? = team.rank;
        Ok(())
    })
}

/// The number of ranks.
///
/// # Safety
///
/// `team` is a team, `size` points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_size(team: *const libcopy_team_t, size: *mut usize) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (team, size) = unsafe { (handle(team)?, size.as_mut()) };
        *size.ok_or_else(|| invalid("the address for the size is null"))? = team.size;
        Ok(())
    })
}

/// Makes all ranks use one transport, "kmod", "cma" or "shm"; null leaves it to the policy.
/// All ranks call it with the same name.
///
/// # Safety
///
/// `team` is a team, `name` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_set_transport(
    team: *mut libcopy_team_t,
    name: *const c_char,
) -> c_int {
    guarded(|| {
        let kind = if name.is_null() {
            None
        } else {
            // SAFETY: the caller promises a string.
            let name = unsafe { CStr::from_ptr(name) };
            Some(name.to_string_lossy().parse::<TransportKind>()?)
        };
        // SAFETY: the caller's promise.
        Ok(unsafe { handle(team) }?.lock()?.set_transport(kind)?)
    })
}

/// Returns when all ranks have called it.
///
/// # Safety
///
/// `team` is a team.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_barrier(team: *mut libcopy_team_t) -> c_int {
    // SAFETY: the caller's promise.
    guarded(|| Ok(unsafe { handle(team) }?.lock()?.barrier()?))
}

/// Copies the root's `length` bytes at `data` into everybody's `data`.
///
/// # Safety
///
/// `team` is a team, `data` is writable for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_bcast(
    team: *mut libcopy_team_t,
    data: *mut c_void,
    length: usize,
    root: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (team, data) = unsafe { (handle(team)?, bytes_mut("data", data, length)?) };
        Ok(team.lock()?.bcast(data, root)?)
    })
}

/// Collects everybody's `length` bytes at `send` in the root's `recv`, ordered by rank. `recv`
/// has room for `length` bytes of each rank at the root and is ignored elsewhere.
///
/// # Safety
///
/// `team` is a team, `send` is readable, and `recv` writable at the root, for their lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_gather(
    team: *mut libcopy_team_t,
    send: *const c_void,
    length: usize,
    root: usize,
    recv: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (team, send_bytes) = unsafe { (handle(team)?, bytes("send", send, length)?) };
        let recv = if team.rank == root {
            let all = total(length, team.size)?;
            disjoint(send, length, recv, all)?;
            // SAFETY: the caller's promise; it does not overlap `send`.
            Some(unsafe { bytes_mut("recv", recv, all)? })
        } else {
            None
        };
        Ok(team.lock()?.gather(send_bytes, recv, root)?)
    })
}

/// [`libcopy_team_gather`] where the root's own part is in its place already: at the root, `data`
/// is the whole receive buffer, `length` bytes of each rank; elsewhere it is the `length` bytes
/// that are sent.
///
/// # Safety
///
/// `team` is a team, `data` is writable at the root, and readable elsewhere, for its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_gather_in_place(
    team: *mut libcopy_team_t,
    data: *mut c_void,
    length: usize,
    root: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let team = unsafe { handle(team)? };
        if team.rank != root {
            // SAFETY: the caller's promise; a slice that is only read.
            let send = unsafe { bytes("data", data, length)? };
            return Ok(team.lock()?.gather(send, None, root)?);
        }
        // SAFETY: the caller's promise.
        let data = unsafe { bytes_mut("data", data, total(length, team.size)?)? };
        Ok(team.lock()?.gather_in_place(data, root)?)
    })
}

/// [`libcopy_team_gather`] with parts of different lengths: rank `i`'s `counts[i]` bytes go to
/// `recv + offsets[i]`. `counts`, `offsets` and `recv` are ignored except at the root; `length`
/// is that of one's own part. Parts must not overlap.
///
/// # Safety
///
/// `team` is a team, `send` is readable for `length` bytes; at the root, `counts` and `offsets`
/// have a number for each rank, and `recv` is writable up to the end of the last part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_gatherv(
    team: *mut libcopy_team_t,
    send: *const c_void,
    length: usize,
    counts: *const usize,
    offsets: *const usize,
    root: usize,
    recv: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (team, send_bytes) = unsafe { (handle(team)?, bytes("send", send, length)?) };
        let recv = if team.rank == root {
            // SAFETY: the caller's promise.
            let (parts, all) = unsafe { parts(counts, offsets, team.size)? };
            disjoint(send, length, recv, all)?;
            // SAFETY: the caller's promise; it does not overlap `send`.
            Some((unsafe { bytes_mut("recv", recv, all)? }, parts))
        } else {
            None
        };
        Ok(team.lock()?.gatherv(send_bytes, recv, root)?)
    })
}

/// [`libcopy_team_gatherv`] where the root's own part is in its place already: at the root, `data`
/// is the receive buffer and `length` is ignored; elsewhere it is the `length` bytes that are sent.
///
/// # Safety
///
/// `team` is a team; at the root, `counts` and `offsets` have a number for each rank and `data` is
/// writable up to the end of the last part; elsewhere it is readable for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_gatherv_in_place(
    team: *mut libcopy_team_t,
    data: *mut c_void,
    length: usize,
    counts: *const usize,
    offsets: *const usize,
    root: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let team = unsafe { handle(team)? };
        if team.rank != root {
            // SAFETY: the caller's promise; a slice that is only read.
            let send = unsafe { bytes("data", data, length)? };
            return Ok(team.lock()?.gatherv(send, None, root)?);
        }
        // SAFETY: the caller's promise.
        let (parts, all) = unsafe { parts(counts, offsets, team.size)? };
        // SAFETY: the caller's promise.
        let data = unsafe { bytes_mut("data", data, all)? };
        Ok(team.lock()?.gatherv_in_place(data, Some(parts), root)?)
    })
}

/// Hands the root's `send` out in parts of `length` bytes, ordered by rank, into everybody's
/// `recv`. `send` is ignored except at the root.
///
/// # Safety
///
/// `team` is a team, `send` is readable at the root, and `recv` writable, for their lengths.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_scatter(
    team: *mut libcopy_team_t,
    send: *const c_void,
    length: usize,
    root: usize,
    recv: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let team = unsafe { handle(team)? };
        let send = if team.rank == root {
            let all = total(length, team.size)?;
            disjoint(send, all, recv, length)?;
            // SAFETY: the caller's promise.
            Some(unsafe { bytes("send", send, all)? })
        } else {
            None
        };
        // SAFETY: the caller's promise; it does not overlap `send`.
        let recv = unsafe { bytes_mut("recv", recv, length)? };
        Ok(team.lock()?.scatter(send, recv, root)?)
    })
}

/// [`libcopy_team_scatter`] where the root keeps its own part in place: at the root, `data` is the
/// whole send buffer, `length` bytes for each rank, and stays as it is; elsewhere it is where the
/// `length` bytes go.
///
/// # Safety
///
/// `team` is a team, `data` is writable for its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_scatter_in_place(
    team: *mut libcopy_team_t,
    data: *mut c_void,
    length: usize,
    root: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let team = unsafe { handle(team)? };
        let all = if team.rank == root {
            total(length, team.size)?
        } else {
            length
        };
        // SAFETY: the caller's promise.
        let data = unsafe { bytes_mut("data", data, all)? };
        Ok(team.lock()?.scatter_in_place(data, root)?)
    })
}

/// [`libcopy_team_scatter`] with parts of different lengths: the `counts[i]` bytes at
/// `send + offsets[i]` go to rank `i`. `send`, `counts` and `offsets` are ignored except at the
/// root; `length` is that of one's own part. Parts may overlap.
///
/// # Safety
///
/// `team` is a team; at the root, `counts` and `offsets` have a number for each rank, and `send` is
/// readable up to the end of the last part; `recv` is writable for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_scatterv(
    team: *mut libcopy_team_t,
    send: *const c_void,
    counts: *const usize,
    offsets: *const usize,
    length: usize,
    root: usize,
    recv: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let team = unsafe { handle(team)? };
        let send = if team.rank == root {
            // SAFETY: the caller's promise.
            let (parts, all) = unsafe { parts(counts, offsets, team.size)? };
            disjoint(send, all, recv, length)?;
            // SAFETY: the caller's promise.
            Some((unsafe { bytes("send", send, all)? }, parts))
        } else {
            None
        };
        // SAFETY: the caller's promise; it does not overlap `send`.
        let recv = unsafe { bytes_mut("recv", recv, length)? };
        Ok(team.lock()?.scatterv(send, recv, root)?)
    })
}

/// [`libcopy_team_scatterv`] where the root keeps its own part in place: at the root, `data` is the
/// send buffer, stays as it is, and `length` is ignored; elsewhere it is where the `length` bytes
/// go.
///
/// # Safety
///
/// `team` is a team; at the root, `counts` and `offsets` have a number for each rank and `data` is
/// writable up to the end of the last part; elsewhere it is writable for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_scatterv_in_place(
    team: *mut libcopy_team_t,
    data: *mut c_void,
    length: usize,
    counts: *const usize,
    offsets: *const usize,
    root: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let team = unsafe { handle(team)? };
        let (parts, length) = if team.rank == root {
            // SAFETY: the caller's promise.
            let (parts, all) = unsafe { parts(counts, offsets, team.size)? };
            (Some(parts), all)
        } else {
            (None, length)
        };
        // SAFETY: the caller's promise.
        let data = unsafe { bytes_mut("data", data, length)? };
        Ok(team.lock()?.scatterv_in_place(data, parts, root)?)
    })
}

/// Collects everybody's `length` bytes at `send` in everybody's `recv`, ordered by rank.
///
/// # Safety
///
/// `team` is a team, `send` is readable for `length` bytes, `recv` writable for `length` bytes of
/// each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_allgather(
    team: *mut libcopy_team_t,
    send: *const c_void,
    length: usize,
    recv: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (team, send_bytes) = unsafe { (handle(team)?, bytes("send", send, length)?) };
        let all = total(length, team.size)?;
        disjoint(send, length, recv, all)?;
        // SAFETY: the caller's promise; it does not overlap `send`.
        let recv = unsafe { bytes_mut("recv", recv, all)? };
        Ok(team.lock()?.allgather(send_bytes, recv)?)
    })
}

/// [`libcopy_team_allgather`] where everybody's own part is in its place in `data` already.
///
/// # Safety
///
/// `team` is a team, `data` is writable for `length` bytes of each rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_allgather_in_place(
    team: *mut libcopy_team_t,
    data: *mut c_void,
    length: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let team = unsafe { handle(team)? };
        // SAFETY: the caller's promise.
        let data = unsafe { bytes_mut("data", data, total(length, team.size)?)? };
        Ok(team.lock()?.allgather_in_place(data)?)
    })
}

/// [`libcopy_team_allgather`] with parts of different lengths: rank `i`'s `counts[i]` bytes go to
/// everybody's `recv + offsets[i]`. All ranks give the same counts; `length` is that of one's own
/// part. Parts must not overlap.
///
/// # Safety
///
/// `team` is a team, `send` is readable for `length` bytes, `counts` and `offsets` have a number
/// for each rank, and `recv` is writable up to the end of the last part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_allgatherv(
    team: *mut libcopy_team_t,
    send: *const c_void,
    length: usize,
    counts: *const usize,
    offsets: *const usize,
    recv: *mut c_void,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (team, send_bytes) = unsafe { (handle(team)?, bytes("send", send, length)?) };
        // SAFETY: the caller's promise.
        let (parts, all) = unsafe { parts(counts, offsets, team.size)? };
        disjoint(send, length, recv, all)?;
        // SAFETY: the caller's promise; it does not overlap `send`.
        let recv = unsafe { bytes_mut("recv", recv, all)? };
        Ok(team.lock()?.allgatherv(send_bytes, recv, parts)?)
    })
}

/// [`libcopy_team_allgatherv`] where everybody's own part is in its place in `data` already.
///
/// # Safety
///
/// `team` is a team, `counts` and `offsets` have a number for each rank, and `data` is writable up
/// to the end of the last part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn libcopy_team_allgatherv_in_place(
    team: *mut libcopy_team_t,
    data: *mut c_void,
    counts: *const usize,
    offsets: *const usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let team = unsafe { handle(team)? };
        // SAFETY: the caller's promise.
        let (parts, all) = unsafe { parts(counts, offsets, team.size)? };
        // SAFETY: the caller's promise.
        let data = unsafe { bytes_mut("data", data, all)? };
        Ok(team.lock()?.allgatherv_in_place(data, parts)?)
    })
}
