// SPDX-License-Identifier: MIT OR Apache-2.0

//! Finding the table of a job: an abstract Unix socket, whose name is the job's identity, leads to
//! its owner.

use std::ffi::CString;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::bootstrap::launcher::peer;
use crate::bootstrap::table::Table;
use libcopy::shm::anonymous::AnonymousSegment as Shared;

/// For so long a process that announces itself looks for the owner of a table, which may be about
/// to make it.
const FINDING: Duration = Duration::from_millis(200);

pub fn digest(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

/// The table of a job, and what its owner holds if that is this process.
pub fn find(identity: &str) -> io::Result<(Shared, Option<(OwnedFd, File)>)> {
    // SAFETY: the call only asks.
    let user = unsafe { libc::geteuid() };
    let name = |part: u32| digest((part, user, env!("CARGO_PKG_VERSION"), identity));
    let magic = [name(1), name(2)];
    let file_name = format!("libcopy-bootstrap-{:016x}", magic[0]);
    let (address, length) = address(&format!("libcopy-mpi-{:016x}{:016x}", magic[0], magic[1]));
    let started = Instant::now();
    loop {
        let socket = socket()?;
        // SAFETY: an address of this length.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
        if bound == 0 {
            let file_name = CString::new(file_name)?;
            let (shared, file) = Shared::create(&file_name, size_of::<Table>(), magic)?;
            // From now on others find the table.
            // SAFETY: our own socket.
            if unsafe { libc::listen(socket.as_raw_fd(), 4096) } != 0 {
                return Err(io::Error::last_os_error());
            }
            return Ok((shared, Some((socket, file))));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EADDRINUSE) {
            return Err(error);
        }
        // SAFETY: as above.
        let answer =
            unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
        let refused = match answer {
            0 => match open_of(&socket, user, &file_name, magic) {
                Ok(shared) => return Ok((shared, None)),
                Err(error) => error,
            },
            _ => io::Error::last_os_error(),
        };
        // Its owner has not made the table yet, or has ended; then the name is free.
        if started.elapsed() > FINDING || refused.kind() == io::ErrorKind::PermissionDenied {
            return Err(refused);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The table of the process behind a socket.
fn open_of(socket: &OwnedFd, user: libc::uid_t, file: &str, magic: [u64; 2]) -> io::Result<Shared> {
    let peer = peer(socket.as_raw_fd())?;
    if peer.uid != user {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let file = format!("/memfd:{file}");
    for entry in fs::read_dir(format!("/proc/{}/fd", peer.pid))?.flatten() {
        let path = fs::read_link(entry.path()).unwrap_or_default();
        if !path.to_string_lossy().starts_with(&file) {
            continue;
        }
        if let Some(fd) = entry.file_name().to_str().and_then(|fd| fd.parse().ok()) {
            return Shared::open(peer.pid, fd, size_of::<Table>(), magic);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: numbers; the new descriptor is ours.
    unsafe {
        match libc::socket(libc::AF_UNIX, kind, 0) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// An abstract address, which no file stands for (unix(7)).
fn address(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zeros are an address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let places = address.sun_path[1..].iter_mut();
    for (place, byte) in places.zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    let before = std::mem::offset_of!(libc::sockaddr_un, sun_path);
    let length = before + 1 + name.len().min(address.sun_path.len() - 1);
    (address, length as libc::socklen_t)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_table_is_found_as_long_as_its_owner_holds_it() {
        let identity = format!("test {}", std::process::id());
        let (own, held) = find(&identity).unwrap();
        assert!(held.is_some());
        let (other, nothing) = find(&identity).unwrap();
        assert!(nothing.is_none());
        // SAFETY: both map a table.
        let word = |shared: &Shared| unsafe {
            &(*shared.place(0, size_of::<Table>()).cast::<Table>()).offer[3]
        };
        word(&own).store(7, Ordering::Relaxed);
        assert_eq!(word(&other).load(Ordering::Relaxed), 7);
        drop(held);
        let (new, held) = find(&identity).unwrap();
        assert!(held.is_some());
        assert_eq!(word(&new).load(Ordering::Relaxed), 0);
    }
}
