// SPDX-License-Identifier: MIT OR Apache-2.0

//! A launcher that is started, and the file that its ranks write into.

use super::launcher::{Launcher, Start};
use super::{child, program, report};
use anyhow::{Context, Result};
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Starts a command and waits for it; its exit status.
pub fn wait_for(start: &Start) -> Result<ExitCode> {
    let child = start
        .command()
        .spawn()
        .with_context(|| format!("starting {}", start.words[0]))?;
    let status = child::wait(child)?;
    let signalled = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(signalled).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// The file that ranks write their reports into.
pub struct Stats {
    pub file: PathBuf,
    /// Whether it is ours to remove, with the directory that it is in.
    own: Option<tempfile::TempDir>,
}

impl Stats {
    /// The file that was asked for, emptied; or one in a new directory, here if that can be
    /// written, since other machines may see it. Nothing is made if it is only to be `named`.
    pub fn new(asked: Option<&Path>, named: bool) -> Result<Stats> {
        if named {
            let file = asked.unwrap_or(Path::new("reports")).to_owned();
            return Ok(Stats { file, own: None });
        }
        if let Some(path) = asked {
            let name = path.display();
            std::fs::File::create(path).with_context(|| format!("--stats: making {name}"))?;
            let file = path
                .canonicalize()
                .with_context(|| format!("--stats: finding {name}"))?;
            return Ok(Stats { file, own: None });
        }
        let mut builder = tempfile::Builder::new();
        let builder = builder.prefix(".libcopy-stats.");
        let here = std::env::current_dir().and_then(|here| builder.tempdir_in(here));
        let own = here
            .or_else(|_| builder.tempdir())
            .context("--stats: making a directory")?;
        let file = own.path().join("reports");
        Ok(Stats {
            file,
            own: Some(own),
        })
    }

    /// Prints what the ranks did, or why none has said anything.
    pub fn tell(&self, launcher: Launcher, command: &[String]) -> Result<()> {
        let is_empty = std::fs::metadata(&self.file).map_or(true, |file| file.len() == 0);
        let mut out = std::io::stderr().lock();
        if !is_empty {
            report::print(&self.file, &mut out)?;
            if self.own.is_none() {
                writeln!(out, "reports: {}", self.file.display())?;
            }
            return Ok(());
        }
        writeln!(
            out,
            "libcopy: no rank has written a report; {}",
            why(launcher, command)
        )?;
        Ok(())
    }
}

/// The likely reason for which no rank has written a report.
pub fn why(launcher: Launcher, command: &[String]) -> String {
    let programs = launcher.named(command);
    let Some(first) = programs.first() else {
        return format!("no program was found behind {}", launcher.name());
    };
    let facts = program::find(first).and_then(|path| program::look(&path).ok());
    let is_linked = facts.is_some_and(|facts| {
        let mut names = facts.needed.iter();
        names.any(|name| name.starts_with("libmpi"))
    });
    if is_linked {
        format!(
            "either {first} has not called MPI_Finalize, or its ranks run on machines that do not \
             reach the library or the file"
        )
    } else {
        format!(
            "{first} is not linked with an MPI library itself: what it starts has not called \
             MPI_Init and MPI_Finalize, or does not inherit LD_PRELOAD"
        )
    }
}
