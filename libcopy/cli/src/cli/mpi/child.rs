// SPDX-License-Identifier: MIT OR Apache-2.0

//! The launcher that runs as a child of the tool, and what it says.

use anyhow::{Context, Result};
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// What a command prints, and what it says as errors.
pub struct Said {
    output: File,
    errors: File,
}

impl Said {
    /// Empty files.
    pub fn new() -> Result<Said> {
        let file = || tempfile::tempfile().context("making a file for what is said (see TMPDIR)");
        Ok(Said {
            output: file()?,
            errors: file()?,
        })
    }

    /// Has a command, which is not started yet, say it here. After an error, it says it nowhere.
    pub fn hear(&self, command: &mut Command) -> Result<()> {
        command.stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.stdout(self.output.try_clone()?);
        command.stderr(self.errors.try_clone()?);
        Ok(())
    }

    /// What was printed.
    pub fn output(&mut self) -> Result<Vec<u8>> {
        read(&mut self.output)
    }

    /// What was said as errors.
    pub fn errors(&mut self) -> Result<String> {
        Ok(String::from_utf8_lossy(&read(&mut self.errors)?).into_owned())
    }
}

fn read(file: &mut File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind().context("reading what was said")?;
    file.read_to_end(&mut bytes)
        .context("reading what was said")?;
    Ok(bytes)
}

/// The process that signals are passed to.
static CHILD: AtomicI32 = AtomicI32::new(0);

/// Passes a signal on.
extern "C" fn pass_on(signal: libc::c_int) {
    let child = CHILD.load(Ordering::Relaxed);
    if child > 0 {
        // SAFETY: kill(2) may be called in a handler; the child has not been waited for, so its
        // number is nobody else's.
        unsafe { libc::kill(child, signal) };
    }
}

/// Waits for the command. A terminal sends its signals to the command as well, so that it is waited
/// for; who ends this process alone ends the command.
pub fn wait(mut child: Child) -> Result<ExitStatus> {
    CHILD.store(child.id() as libc::pid_t, Ordering::Relaxed);
    let handlers = [
        (libc::SIGINT, libc::SIG_IGN),
        (libc::SIGQUIT, libc::SIG_IGN),
        (libc::SIGTERM, pass_on as *const () as libc::sighandler_t),
        (libc::SIGHUP, pass_on as *const () as libc::sighandler_t),
    ];
    for (signal, handler) in handlers {
        // SAFETY: The handler calls nothing but kill(2).
        unsafe { libc::signal(signal, handler) };
    }
    // Without reaping it yet, or the number might be another process's when a signal comes.
    // SAFETY: `info` is a valid place.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: As above.
        let ended = unsafe {
            libc::waitid(
                libc::P_PID,
                child.id(),
                &raw mut info,
                libc::WEXITED | libc::WNOWAIT,
            )
        };
        if ended == 0 || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            break;
        }
    }
    CHILD.store(0, Ordering::Relaxed);
    child.wait().context("waiting for the command")
}

/// The exit status of a process that ends soon enough.
pub fn ended_within(child: &mut Child, patience: Duration) -> Result<Option<ExitStatus>> {
    let began = Instant::now();
    loop {
        let status = child.try_wait().context("waiting for a process")?;
        if status.is_some() || began.elapsed() > patience {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
