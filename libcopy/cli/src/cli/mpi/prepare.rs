// SPDX-License-Identifier: MIT OR Apache-2.0

//! A launcher's command before it is run: who starts the ranks, whether the library can reach them,
//! and which MPI libraries it serves.

use super::launcher::{self, Launcher, Variable};
use super::{library, program};
use anyhow::{Result, bail};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

/// What MPI libraries are called whose ABI is served (docs/mpi.md).
pub const SERVED: [&str; 5] = [
    "libmpi.so.40",
    "libmpi.so.12",
    "libmpich.so.12",
    "libmpi_abi.so.0",
    "libmpi_abi.so.1",
];

/// Exit status of a command that was not started, since its ranks could not have the library.
const REFUSED: u8 = 2;

/// What is started, and the library that its ranks get.
#[derive(Args, Debug)]
pub struct Job {
    /// The library, if it is not where this tool looks for it
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,

    /// The command: a launcher with its options and the program
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}

impl Job {
    /// The launcher, and what its ranks need.
    ///
    /// # Errors
    ///
    /// The library cannot reach the ranks, which has been said; the exit status.
    pub fn prepared(&self) -> Result<(Launcher, Vec<Variable>), ExitCode> {
        let prepare = || {
            let library = library::find(self.library.as_deref())?;
            let launcher = recognised(&self.command)?;
            for word in launcher.named(&self.command) {
                check(&word)?;
            }
            Ok((launcher, library::variables_here(&library)?))
        };
        prepare().map_err(|error: anyhow::Error| {
            eprintln!("libcopy: {error:#}");
            ExitCode::from(REFUSED)
        })
    }
}

/// The launcher of a command.
///
/// # Errors
///
/// It is not known, or the command begins with something else that starts it.
pub fn recognised(command: &[String]) -> Result<Launcher> {
    let first = &command[0];
    let launcher = match Launcher::of(first) {
        Ok(launcher) => launcher,
        Err(said) => {
            let line = said.lines().next().unwrap_or("nothing");
            bail!(
                "{first} is no launcher that is known: `{first} --version` says: {line}. \
                 Hand LD_PRELOAD to the ranks as its manual says"
            )
        }
    };
    let inner = command
        .iter()
        .skip(1)
        .find(|word| launcher::is_launcher(word));
    if let (Launcher::Program, Some(inner)) = (launcher, inner) {
        bail!(
            "{first} starts {inner}, whose own processes would have the library. \
             Put `libcopy mpi run` right before {inner}"
        );
    }
    Ok(launcher)
}

/// Whether a file is called as an MPI library itself is; others come with these (libmpi_mpifh.so,
/// libmpicxx.so).
pub fn is_mpi_library(name: &str) -> bool {
    let Some((stem, _)) = name.split_once(".so") else {
        return false;
    };
    ["libmpi", "libmpich", "libmpi_abi"].contains(&stem)
}

/// Refuses a program that nothing can be preloaded into, or whose MPI library is not served.
///
/// # Errors
///
/// Why.
pub fn check(word: &str) -> Result<()> {
    let Some(path) = program::find(word) else {
        // Whatever starts it says so.
        return Ok(());
    };
    let facts = program::look(&path)?;
    match facts.needed.iter().find(|name| is_mpi_library(name)) {
        Some(name) if !SERVED.contains(&name.as_str()) => bail!(
            "{word} is linked with {name}, which is not served: libcopy_mpi.so knows {}",
            SERVED.join(", ")
        ),
        _ => Ok(()),
    }
}
