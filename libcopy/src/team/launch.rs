// SPDX-License-Identifier: MIT OR Apache-2.0

//! Starts the processes of a team.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};

use super::key::TeamKey;
use crate::config;
use crate::error::{Error, Result};
use crate::shm::segment::{MAX_RANKS, remove_leftover};

/// How long the others get to notice that one died, and to say so.
const GRACE: Duration = Duration::from_secs(4);

/// Starts `size` ranks, `command(rank)` each, with the environment that [`crate::Team::from_env`]
/// reads, and waits for them. When one dies abnormally (by a signal or with a non-zero status),
/// the others get a moment to notice and are then killed. Returns the status of each rank.
///
/// The ranks die with the launcher.
///
/// # Errors
///
/// [`Error::Argument`] if no team can have this size, [`Error::System`] if a process cannot be
/// started or waited for.
pub fn launch(size: usize, mut command: impl FnMut(usize) -> Command) -> Result<Vec<ExitStatus>> {
    if size == 0 || size > MAX_RANKS {
        return Err(Error::argument("number of ranks", size, 1..=MAX_RANKS));
    }
    let key = TeamKey::random()?;
    let mut ranks = Ranks {
        children: Vec::with_capacity(size),
        key,
    };
    let launcher = getpid();
    for rank in 0..size {
        let mut command = command(rank);
        command
            .env(config::KEY.name, key.to_string())
            .env(config::RANK.name, rank.to_string())
            .env(config::SIZE.name, size.to_string());
        let die_with_us = move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            if getppid() == launcher {
                Ok(())
            } else {
                Err(Errno::ECHILD.into())
            }
        };
        // SAFETY: the closure does nothing but async-signal-safe system calls.
        unsafe { command.pre_exec(die_with_us) };
        let child = command.spawn().map_err(|source| {
            Error::system(
                format!("starting rank {rank}, {:?}", command.get_program()),
                source,
            )
        })?;
        ranks.children.push((child, None));
    }
    ranks.wait()
}

/// The children; dropping it leaves none behind.
struct Ranks {
    children: Vec<(Child, Option<ExitStatus>)>,
    key: TeamKey,
}

impl Ranks {
    fn wait(&mut self) -> Result<Vec<ExitStatus>> {
        let mut failed_at: Option<Instant> = None;
        let mut pause = Duration::from_micros(200);
        loop {
            let mut running = 0;
            for (child, status) in self.children.iter_mut().filter(|(_, s)| s.is_none()) {
                *status = child
                    .try_wait()
                    .map_err(|source| Error::system("waiting for a rank", source))?;
                match status {
                    None => running += 1,
                    Some(status) if !status.success() => {
                        failed_at.get_or_insert_with(Instant::now);
                    }
                    Some(_) => {}
                }
            }
            if running == 0 {
                let unknown = ExitStatus::from_raw(0);
                return Ok(self
                    .children
                    .iter()
                    .map(|(_, s)| s.unwrap_or(unknown))
                    .collect());
            }
            if failed_at.is_some_and(|at| at.elapsed() > GRACE) {
                self.kill();
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(10));
        }
    }

    fn kill(&mut self) {
        for (child, _) in self
            .children
            .iter_mut()
            .filter(|(_, status)| status.is_none())
        {
            // It may just have ended by itself.
            let _ = child.kill();
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.kill();
        for (child, _) in self
            .children
            .iter_mut()
            .filter(|(_, status)| status.is_none())
        {
            let _ = child.wait();
        }
        remove_leftover(Path::new(&config::SHM_DIR.or_default()), &self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        command
    }

    #[test]
    fn every_rank_is_told_who_it_is() {
        let script = "test ${#LIBCOPY_KEY} = 32 && exit $((LIBCOPY_RANK * 10 + LIBCOPY_SIZE))";
        let statuses = launch(3, |_| shell(script)).unwrap();
        let codes: Vec<_> = statuses.iter().map(|s| s.code().unwrap()).collect();
        assert_eq!(codes, [3, 13, 23]);
    }

    #[test]
    fn when_one_dies_the_others_are_killed() {
        let script = |rank| {
            if rank == 1 {
                "kill -9 $$"
            } else {
                "exec sleep 3600"
            }
        };
        let statuses = launch(3, |rank| shell(script(rank))).unwrap();
        assert!(
            statuses
                .iter()
                .all(|status| status.signal() == Some(libc::SIGKILL))
        );
    }

    #[test]
    fn what_cannot_be_started_is_an_error() {
        let error = launch(2, |_| Command::new("/nonexistent/program")).unwrap_err();
        assert!(
            error.to_string().contains("/nonexistent/program"),
            "{error}"
        );
        assert!(launch(0, |_| shell("true")).is_err());
    }
}
