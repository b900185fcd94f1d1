// SPDX-License-Identifier: MIT OR Apache-2.0

//! The launcher that runs as a child of the tool.

use anyhow::{Context, Result};
use std::process::Child;
use std::sync::atomic::{AtomicI32, Ordering};

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
pub fn wait(mut child: Child) -> Result<std::process::ExitStatus> {
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
