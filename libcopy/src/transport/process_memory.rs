// SPDX-License-Identifier: MIT OR Apache-2.0

//! Another process's memory (process_vm_readv(2)), and whether that process lives.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libcopy_datatype::{Cursor, Layout};

use crate::refusal::{self, Service};

/// Pieces that one call takes (`IOV_MAX`).
const MOST_PIECES: usize = 1024;
/// Bytes that one call takes; Linux moves at most about 2 GiB.
const MOST_BYTES: usize = 1 << 30;

/// `process_vm_readv` or `process_vm_writev`.
type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// One of them, what it is, and the error if it moves nothing.
type Way = (Call, Service, io::ErrorKind);

/// Moves bytes between our memory and another process's, once; returns how many.
///
/// # Safety
///
/// `ours` is readable, and for `process_vm_readv` writable, for `len` bytes, the lengths of
/// `theirs` together.
#[inline(always)]
unsafe fn transfer(
    (call, _, nothing): Way,
    pid: i32,
    theirs: &[libc::iovec],
    ours: *mut u8,
    len: usize,
) -> io::Result<usize> {
    let ours = libc::iovec {
        iov_base: ours.cast(),
        iov_len: len,
    };
    loop {
        // SAFETY: the caller's promise; the kernel checks `theirs`.
        let moved = unsafe {
            let count = theirs.len() as libc::c_ulong;
            call(pid, &raw const ours, 1, theirs.as_ptr(), count, 0)
        };
        match usize::try_from(moved) {
            Ok(0) => return Err(nothing.into()),
            Ok(moved) => return Ok(moved),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

const READ: Way = (
    libc::process_vm_readv,
    Service::Read,
    io::ErrorKind::UnexpectedEof,
);
const WRITE: Way = (
    libc::process_vm_writev,
    Service::Write,
    io::ErrorKind::WriteZero,
);

/// The same, where an error is one that the kernel has refused us something by.
///
/// # Safety
///
/// As for [`transfer`].
#[inline(always)]
unsafe fn granted(
    way: Way,
    pid: i32,
    theirs: &[libc::iovec],
    ours: *mut u8,
    len: usize,
) -> io::Result<usize> {
    // SAFETY: the caller's promise.
    unsafe { transfer(way, pid, theirs, ours, len) }
        .inspect_err(|error| refusal::note(way.1, error))
}

/// Whether, after this error, no memory of other processes may be read any more, not only that
/// which was asked for: this process has lost the right, or not even its own memory is read for it.
pub fn is_for_good(error: &io::Error) -> bool {
    let word = 0u64;
    let here = (&raw const word) as u64;
    error.raw_os_error() == Some(libc::EPERM) || !is_reachable(std::process::id() as i32, [here; 2])
}

/// Moves `len` dense bytes.
///
/// # Safety
///
/// As for [`transfer`].
#[inline(always)]
unsafe fn transfer_all(
    way: Way,
    pid: i32,
    address: u64,
    ours: *mut u8,
    len: usize,
) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let n = (len - done).min(MOST_BYTES);
        let theirs = libc::iovec {
            iov_base: address.wrapping_add(done as u64) as *mut _,
            iov_len: n,
        };
        // SAFETY: the caller's promise.
        done += unsafe { granted(way, pid, &[theirs], ours.wrapping_add(done), n)? };
    }
    Ok(())
}

/// Reads dense bytes.
///
/// # Errors
///
/// Those of `process_vm_readv`; `UnexpectedEof` if it moves nothing.
///
/// # Safety
///
/// `to` is writable for `len` bytes.
pub unsafe fn read(pid: i32, address: u64, to: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: the caller's promise.
    unsafe { transfer_all(READ, pid, address, to, len) }
}

/// Reads one word.
///
/// # Errors
///
/// As for [`read`].
pub fn read_word(pid: i32, address: u64) -> io::Result<u64> {
    let mut word = 0u64;
    // SAFETY: eight writable bytes.
    unsafe { read(pid, address, (&raw mut word).cast(), size_of::<u64>())? };
    Ok(word)
}

/// Whom each of `size` ranks tries to read, so that all learn whether all reach each other: who
/// reads whom depends on what either is (its user, its namespaces, its system call filter, whether
/// it is dumpable), and around the ring of ranks every border between those that differ is crossed
/// in both directions, and each reads and is read. A rank that would try all others would make as
/// many system calls as there are pairs.
pub fn tried_by(rank: usize, size: usize) -> impl Iterator<Item = usize> {
    let distances = (0..usize::BITS).map(|bit| 1 << bit);
    let distances = distances.take_while(move |distance| *distance < size);
    distances.map(move |distance| (rank + distance) % size)
}

/// Whether the kernel copies both of these bytes of a process.
pub fn is_reachable(pid: i32, addresses: [u64; 2]) -> bool {
    let mut found = [0u8; 2];
    let theirs = addresses.map(|address| libc::iovec {
        iov_base: address as *mut _,
        iov_len: 1,
    });
    // SAFETY: two bytes.
    let moved = unsafe { transfer(READ, pid, &theirs, found.as_mut_ptr(), 2) };
    moved.is_ok_and(|moved| moved == 2)
}

/// Writes dense bytes into another process's memory.
///
/// # Errors
///
/// Those of `process_vm_writev`; `WriteZero` if it moves nothing.
///
/// # Safety
///
/// `from` is readable for `len` bytes.
pub unsafe fn write(pid: i32, address: u64, from: *const u8, len: usize) -> io::Result<()> {
    // SAFETY: the caller's promise; `process_vm_writev` only reads our memory.
    unsafe { transfer_all(WRITE, pid, address, from.cast_mut(), len) }
}

/// What a peer sends, in its memory.
#[derive(Debug)]
pub enum Remote {
    /// Dense bytes from this address on.
    Dense(u64),
    /// A layout whose offsets count from this address.
    Typed(u64, Box<Cursor>),
}

impl Remote {
    /// A layout at an address.
    pub fn typed(origin: u64, layout: &Layout) -> Remote {
        Remote::Typed(origin, Box::new(layout.cursor()))
    }

    /// Reads the bytes of the packed stream from `position` on.
    ///
    /// # Errors
    ///
    /// As for [`read`]; `UnexpectedEof` if the layout has no such position.
    ///
    /// # Safety
    ///
    /// `to` is writable for `len` bytes, which the stream has.
    pub unsafe fn read(
        &mut self,
        pid: i32,
        position: u64,
        to: *mut u8,
        len: usize,
    ) -> io::Result<()> {
        let (origin, cursor) = match self {
            Remote::Dense(address) => {
                // SAFETY: the caller's promise.
                return unsafe { read(pid, address.wrapping_add(position), to, len) };
            }
            Remote::Typed(origin, cursor) => (*origin, cursor),
        };
        let mut done = 0;
        while done < len {
            if cursor.position() != position + done as u64 {
                let seek = cursor.seek(position + done as u64);
                seek.map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
            }
            let (mut pieces, mut bytes) = (Vec::with_capacity(MOST_PIECES), 0);
            while pieces.len() < MOST_PIECES && done + bytes < len {
                let left = (len - done - bytes) as u64;
                let Some(piece) = cursor.next_segment(left.min(MOST_BYTES as u64)) else {
                    break;
                };
                bytes += piece.len as usize;
                pieces.push(libc::iovec {
                    iov_base: origin.wrapping_add(piece.offset as u64) as *mut _,
                    iov_len: piece.len as usize,
                });
            }
            // SAFETY: the caller's promise: `bytes` of these are left.
            done += unsafe { granted(READ, pid, &pieces, to.wrapping_add(done), bytes)? };
        }
        Ok(())
    }
}

/// Whether a process has not ended; one that nobody has waited for yet has.
pub fn lives(pid: i32) -> bool {
    // SAFETY: plain numbers; the new descriptor is ours.
    let descriptor = unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        if fd < 0 {
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::ESRCH) {
                return false;
            }
            refusal::note(Service::Watch, &error);
            let gone = libc::kill(pid, 0) != 0
                && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
            return !gone;
        }
        OwnedFd::from_raw_fd(fd as i32)
    };
    let mut ask = libc::pollfd {
        fd: descriptor.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    let ready = unsafe { libc::poll(&raw mut ask, 1, 0) };
    ready <= 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use libcopy_datatype::{Datatype, Named};

    #[test]
    fn reads_layouts_in_parts() {
        let own = std::process::id() as i32;
        let source: Vec<u8> = (0..100_000u32).map(|i| (i * 7 % 251) as u8).collect();
        let column = Datatype::named(Named::Double).vector(3000, 1, 4).unwrap();
        let layout = Layout::new(&column, 1).unwrap();
        let mut expected = vec![0; layout.size() as usize];
        layout.pack(&source, 0, &mut expected).unwrap();
        let mut remote = Remote::typed(source.as_ptr() as u64, &layout);
        let mut found = vec![0; expected.len()];
        for (at, len) in [(0, 20_003), (20_003, 3_997), (5, 11)] {
            let to = found[at..].as_mut_ptr();
            // SAFETY: within `found`.
            match unsafe { remote.read(own, at as u64, to, len) } {
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => return,
                answer => answer.unwrap(),
            }
        }
        assert!(found == expected);
        assert!(lives(own));
        let end = source.as_ptr().wrapping_add(source.len() - 1) as u64;
        assert!(is_reachable(own, [source.as_ptr() as u64, end]));
        assert!(!is_reachable(own, [source.as_ptr() as u64, 16]));
    }

    /// However ranks are divided into two kinds, some of each try some of the other, all are tried,
    /// and there are no more tries than ranks times their number's bits.
    #[test]
    fn every_border_between_ranks_is_tried() {
        assert_eq!(tried_by(0, 1).count(), 0);
        for size in 2..=11usize {
            let tries =
                || (0..size).flat_map(|rank| tried_by(rank, size).map(move |to| (rank, to)));
            assert!(tries().all(|(rank, to)| rank != to && to < size));
            assert!((0..size).all(|rank| tries().any(|(_, to)| to == rank)));
            assert!(tries().count() <= size * size.next_power_of_two().ilog2() as usize);
            for kinds in 1..(1u32 << size) - 1 {
                let kind = |rank: usize| kinds >> rank & 1;
                for one in [0, 1] {
                    let crosses = |(rank, to)| kind(rank) == one && kind(to) != one;
                    assert!(tries().any(crosses), "{size} ranks, {kinds:b}");
                }
            }
        }
    }
}
