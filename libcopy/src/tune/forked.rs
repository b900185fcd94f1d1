// SPDX-License-Identifier: MIT OR Apache-2.0

//! Processes that measure: forked here, each a rank of a team, and gone when this is.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::error::{Error, Result};

/// What a rank writes when it cannot go on.
const FAILED: &str = "failed";
/// What rank 0 writes when it has all.
pub(super) const END: &str = "end";

/// Forks this number of ranks, which do `work` with their rank and a place to write lines to;
/// returns the lines. `step` is told the first two words of each. The last line must be [`END`].
///
/// # Errors
///
/// [`Error::System`] if processes cannot be started, [`Error::Profile`] if ranks fail, with the
/// first one's reason.
pub(super) fn lines_of(
    ranks: usize,
    work: &dyn Fn(usize, &mut UnixStream) -> Result<()>,
    step: &mut dyn FnMut(&str),
) -> Result<Vec<String>> {
    let (reader, mut writer) =
        UnixStream::pair().map_err(|source| Error::system("making a pair of sockets", source))?;
    let mut children = Children(Vec::new());
    for rank in 0..ranks {
        // SAFETY: the callers were told to have one thread; the child only runs our own code and
        // leaves with _exit.
        match unsafe { fork() } {
            Err(errno) => return Err(Error::system("forking a rank to measure with", errno)),
            Ok(ForkResult::Child) => {
                let _ = prctl::set_pdeathsig(Signal::SIGKILL);
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    work(rank, &mut writer)
                }));
                if let Ok(Err(error)) = &result {
                    let _ = writeln!(writer, "{FAILED} rank {rank}: {}", error.report());
                }
                let failed = !matches!(result, Ok(Ok(())));
                // SAFETY: leaves without running what belongs to the parent.
                unsafe { libc::_exit(i32::from(failed)) };
            }
            Ok(ForkResult::Parent { child }) => children.0.push(child),
        }
    }
    drop(writer);
    let mut lines = Vec::new();
    let mut text = BufReader::new(reader);
    loop {
        let mut line = String::new();
        match text.read_line(&mut line) {
            Ok(0) => break,
            Ok(_) => {
                let line = line.trim_end().to_owned();
                let words: Vec<&str> = line.split_whitespace().take(2).collect();
                step(&words.join(" "));
                lines.push(line);
            }
            Err(source) => return Err(Error::system("reading measurements", source)),
        }
    }
    if lines.last().is_some_and(|line| line == END) {
        return Ok(lines);
    }
    let reason = lines.iter().find_map(|line| line.strip_prefix(FAILED));
    let reason = reason.map_or_else(
        || "is somebody killing processes?".to_owned(),
        |why| why.trim().to_owned(),
    );
    Err(Error::Profile {
        path: "measurement".to_owned(),
        why: format!("a team of {ranks} ranks failed; {reason}"),
    })
}

/// Forked ranks; none outlives this.
struct Children(Vec<Pid>);

impl Drop for Children {
    fn drop(&mut self) {
        for pid in &self.0 {
            if waitpid(*pid, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive) {
                // Rank 0 wrote its last line or failed: the others are done or never will be.
                std::thread::sleep(Duration::from_millis(5));
                let _ = kill(*pid, Signal::SIGKILL);
                let _ = waitpid(*pid, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_back_and_reasons_do() {
        let mut steps = Vec::new();
        let says = |rank: usize, out: &mut UnixStream| {
            if rank == 0 {
                let written = writeln!(out, "a line of words\n{END}");
                written.map_err(|source| Error::system("writing", source))?;
            }
            Ok(())
        };
        let lines = lines_of(2, &says, &mut |words| steps.push(words.to_owned())).unwrap();
        assert_eq!(lines, ["a line of words", END]);
        assert_eq!(steps, ["a line", END]);
        let fails = |_: usize, _: &mut UnixStream| Err(Error::corrupt("a value", 7));
        let error = lines_of(1, &fails, &mut |_| {}).unwrap_err().to_string();
        assert!(
            error.contains("rank 0") && error.contains("a value"),
            "{error}"
        );
        let panics = |_: usize, _: &mut UnixStream| -> Result<()> {
            // SAFETY: ends the child as if somebody had killed it.
            unsafe { libc::_exit(9) }
        };
        let error = lines_of(1, &panics, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("killing"), "{error}");
    }
}
