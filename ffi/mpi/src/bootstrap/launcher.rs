// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the launcher of a job says about it: which processes belong together, and how many are on
//! this machine.

use std::ffi::c_int;
use std::fs;
use std::io;
use std::mem::size_of;
use std::os::fd::RawFd;

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// What the processes of this job on this machine have in common, and no others: from what the
/// launcher says. `MPI_Comm_spawn`'s children have another one.
pub fn identity() -> Option<String> {
    if let Some(space) = variable("PMIX_NAMESPACE") {
        // One server for all ranks of the job on this machine.
        let names = ["41", "4", "3", "21", "2"].map(|version| format!("PMIX_SERVER_URI{version}"));
        let server = names.iter().find_map(|name| variable(name));
        return Some(format!("pmix {space} {}", server.unwrap_or_default()));
    }
    if let Some(server) = variable("PMI_FD")
        .and_then(|fd| fd.parse().ok())
        .and_then(server_of)
    {
        return Some(format!("pmi {server}"));
    }
    if let Some(port) = variable("PMI_PORT") {
        let job = variable("PMI_JOBID").unwrap_or_default();
        return Some(format!("pmi port {port} {job}"));
    }
    let (job, step) = (variable("SLURM_JOB_ID")?, variable("SLURM_STEP_ID")?);
    Some(format!("slurm {job} {step}"))
}

/// Who is at the other end of a process manager's socket: the process that made a pair of sockets
/// for us, with its start time, or the address of a server.
fn server_of(fd: RawFd) -> Option<String> {
    let (family, address) = peer_address(fd)?;
    if c_int::from(family) != libc::AF_UNIX {
        return Some(format!("address {address:x?}"));
    }
    let peer = peer(fd).ok()?;
    let started = start_of(peer.pid)?;
    Some(format!("process {} {started}", peer.pid))
}

fn peer_address(fd: RawFd) -> Option<(libc::sa_family_t, Vec<u8>)> {
    // SAFETY: all zeros are an address without a family.
    let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: room of that length for an address.
    let answer = unsafe { libc::getpeername(fd, (&raw mut address).cast(), &mut length) };
    if answer != 0 {
        return None;
    }
    let length = (length as usize).min(size_of::<libc::sockaddr_storage>());
    // SAFETY: `length` bytes were written, or were zero before.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const address).cast::<u8>(), length) };
    Some((address.ss_family, bytes.to_vec()))
}

/// Who made the other end of a Unix socket.
pub fn peer(fd: RawFd) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: room of that length for what is asked.
    let answer = unsafe {
        let to = (&raw mut peer).cast();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut length)
    };
    match answer {
        // Zero: a process of another process namespace, of which we know nothing.
        0 if peer.pid != 0 => Ok(peer),
        0 => Err(io::ErrorKind::NotFound.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// When a process started, in clock ticks after the machine did (proc(5), field 22 of `stat`).
fn start_of(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses, with any characters; the next one is the third.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    fields.nth(22 - 3)?.parse().ok()
}

/// Ranks of the job on this machine, as far as the launcher says so.
pub fn local_ranks() -> Option<usize> {
    let number = |name: &str| variable(name)?.parse().ok();
    number("OMPI_COMM_WORLD_LOCAL_SIZE")
        .or_else(|| number("MPI_LOCALNRANKS"))
        .or_else(|| {
            let tasks = variable("SLURM_STEP_TASKS_PER_NODE")?;
            tasks_of_node(&tasks, number("SLURM_NODEID")?)
        })
}

/// Tasks of a node in Slurm's lists: `4(x2),3` are 4, 4 and 3.
fn tasks_of_node(list: &str, mut node: usize) -> Option<usize> {
    for part in list.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if node < nodes {
            return tasks.parse().ok();
        }
        node -= nodes;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_slurm_name_each_node() {
        let tasks = |node| tasks_of_node("4(x2),3,16(x3)", node);
        assert_eq!([0, 1, 2, 3, 5].map(tasks), [4, 4, 3, 16, 16].map(Some));
        assert_eq!(tasks(6), None);
        assert_eq!(tasks_of_node("many", 0), None);
    }
}
