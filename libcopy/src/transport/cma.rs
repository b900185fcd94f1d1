// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cross memory attach: the kernel copies between two address spaces, looking every page up anew.

use std::io;

use super::kind::{TransportKind, TransportReport};
use super::one_sided::Transport;
use super::process_memory;
use super::remote_key::RemoteKey;
use crate::error::{Error, Result};

/// The pids of the peers, as our namespace numbers them.
#[derive(Debug)]
pub(crate) struct Cma {
    pids: Vec<i32>,
}

impl Cma {
    pub(crate) fn new(pids: Vec<i32>) -> Self {
        Cma { pids }
    }

    pub(crate) fn pids(&self) -> &[i32] {
        &self.pids
    }

    /// The process that a key is of, and the address of `offset` behind its memory's start.
    fn place(&self, owner: usize, key: RemoteKey, offset: u64, len: usize) -> Result<(i32, u64)> {
        let RemoteKey::Cma { base, len: size } = key else {
            return Err(Error::corrupt(
                "the transport of a key",
                key.kind().number(),
            ));
        };
        if offset.checked_add(len as u64).is_none_or(|end| end > size) {
            return Err(Error::corrupt("the size of opened memory", size));
        }
        Ok((self.pids[owner], base.wrapping_add(offset)))
    }
}

/// What a copy with a peer's memory came to.
fn outcome(what: &str, owner: usize, copied: io::Result<()>) -> Result<()> {
    copied.map_err(|source| match source.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero => Error::corrupt("bytes moved", 0),
        _ => Error::system(format!("{what} with rank {owner}"), source),
    })
}

impl Transport for Cma {
    unsafe fn open(&mut self, base: *mut u8, len: usize, _writable: bool) -> Result<RemoteKey> {
        Ok(RemoteKey::Cma {
            base: base as u64,
            len: len as u64,
        })
    }

    unsafe fn pull(
        &self,
        owner: usize,
        key: RemoteKey,
        offset: u64,
        to: *mut u8,
        len: usize,
    ) -> Result<()> {
        let (pid, address) = self.place(owner, key, offset, len)?;
        // SAFETY: the caller's promise; the kernel checks the peer's address.
        let read = unsafe { process_memory::read(pid, address, to, len) };
        outcome("process_vm_readv", owner, read)
    }

    unsafe fn push(
        &self,
        owner: usize,
        key: RemoteKey,
        offset: u64,
        from: *const u8,
        len: usize,
    ) -> Result<()> {
        let (pid, address) = self.place(owner, key, offset, len)?;
        // SAFETY: the caller's promise; the kernel checks the peer's address.
        let written = unsafe { process_memory::write(pid, address, from, len) };
        outcome("process_vm_writev", owner, written)
    }
}

/// With Yama in mode 1 only ancestors may look into a process, unless it says otherwise.
pub(crate) fn permit_peers() {
    if ptrace_scope() == Some(1) {
        // SAFETY: the call only changes who may trace this process. Peers of the same user are
        // meant to; there is room for one pid only, so it has to be "any".
        unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    }
}

fn ptrace_scope() -> Option<u32> {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .ok()?
        .trim()
        .parse()
        .ok()
}

/// Why an attempt to read a peer's memory failed, in words.
pub(crate) fn explain(errno: i32) -> String {
    let error = io::Error::from_raw_os_error(errno);
    match errno {
        libc::EPERM => match ptrace_scope() {
            Some(scope @ 2..) => format!(
                "{error}: kernel.yama.ptrace_scope is {scope}; needs 0 or 1, or CAP_SYS_PTRACE"
            ),
            _ => format!(
                "{error}: another user or user namespace, a process that is not dumpable, or a \
                 seccomp filter (containers: allow process_vm_readv, or add CAP_SYS_PTRACE)"
            ),
        },
        libc::ENOSYS => format!("{error}: a kernel without CONFIG_CROSS_MEMORY_ATTACH, or seccomp"),
        libc::ESRCH => format!("{error}: the peer is in another pid namespace"),
        libc::EFAULT => format!("{error}: the peer's memory is not where it said"),
        _ => error.to_string(),
    }
}

/// Whether this process could use it: tried on itself, and what Yama says about others.
pub(crate) fn probe() -> TransportReport {
    let word = 0x006C_6962_636F_7079_u64;
    let (usable, why) =
        match process_memory::read_word(std::process::id() as i32, (&raw const word) as u64) {
            Ok(read) if read == word => match ptrace_scope() {
                Some(scope @ 2..) => (
                    false,
                    format!("kernel.yama.ptrace_scope is {scope}; needs 0 or 1"),
                ),
                Some(scope) => (
                    true,
                    format!("process_vm_readv works, kernel.yama.ptrace_scope is {scope}"),
                ),
                None => (true, "process_vm_readv works, no Yama".to_owned()),
            },
            Ok(_) => (false, explain(libc::EFAULT)),
            Err(error) => (false, explain(error.raw_os_error().unwrap_or(0))),
        };
    TransportKind::Cma.report(usable, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pulls_and_pushes_within_what_was_opened() {
        let mut cma = Cma::new(vec![std::process::id() as i32]);
        let mut opened = *b"abcdefgh";
        let mut target = [0u8; 4];
        // SAFETY: all ranges are within their arrays.
        unsafe {
            let key = cma.open(opened.as_mut_ptr(), 8, true).unwrap();
            if cma.pull(0, key, 2, target.as_mut_ptr(), 4).is_err() && !probe().usable {
                return;
            }
            assert_eq!(&target, b"cdef");
            cma.push(0, key, 0, target.as_ptr(), 4).unwrap();
            assert!(cma.pull(0, key, 6, target.as_mut_ptr(), 4).is_err());
            assert!(cma.pull(0, key, u64::MAX, target.as_mut_ptr(), 4).is_err());
        }
        assert_eq!(&opened, b"cdefefgh");
    }
}
