// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy doctor`: tries what programs need on this machine, and says what mends it.

mod finding;
mod machine;
mod mpi;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use finding::Finding;
use serde_json::json;

use super::ranks::{self, RANKS, Ranks};

/// Arguments of `libcopy doctor`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each line begins with ok, absent (not there, and nothing needs it), skipped (not tried), slow (it costs
speed) or broken (it prevents use), and a line behind an arrow says what mends it. The exit status is 0 if
nothing is slow or broken, 1 if something is slow, 2 if something is broken.

COMMAND is a launcher with its options, without a program: it starts two ranks of this tool, which say
whether they have libcopy_mpi.so, where they run, and what they can do together.

Examples:
  libcopy doctor
  libcopy doctor --json
  libcopy doctor -- mpirun -n 2
  libcopy doctor -- srun -n 2 --cpu-bind=cores")]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    /// libcopy_mpi.so, if it is not where this tool looks for it
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,

    /// A launcher with its options, without a program
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Exit status where nothing could be checked.
const UNCHECKED: u8 = 2;

/// Runs `libcopy doctor`.
///
/// # Errors
///
/// The output cannot be written.
pub fn run(args: &DoctorArgs) -> Result<ExitCode> {
    let findings = match check(args) {
        Ok(findings) => findings,
        Err(error) => {
            eprintln!("libcopy doctor: {error:#}");
            return Ok(ExitCode::from(UNCHECKED));
        }
    };
    let worst = finding::worst(&findings);
    let mut out = std::io::stdout().lock();
    if args.json {
        let all = json!({ "status": worst, "exit": worst.code(), "checks": findings });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
    } else {
        finding::print(&mut out, &findings)?;
    }
    Ok(ExitCode::from(worst.code()))
}

fn check(args: &DoctorArgs) -> Result<Vec<Finding>> {
    let preload = mpi::preload(args.library.as_deref());
    let variables = preload.as_ref().map_or(&[][..], |(_, variables)| variables);
    let preloaded = ranks::start(variables)?;
    let has_failed = preloaded.reports.is_empty() && !variables.is_empty();
    // The library may be what ends them.
    let again = if has_failed {
        Some(ranks::start(&[])?)
    } else {
        None
    };
    let is_culprit = again
        .as_ref()
        .is_some_and(|ranks| !ranks.reports.is_empty());
    let library = mpi::library(&preload, &preloaded, (!args.command.is_empty(), is_culprit));
    let local = again.unwrap_or(preloaded);
    let launchers = mpi::launchers();
    let libraries = mpi::libraries(&launchers);
    let launched = match &args.command[..] {
        [] => None,
        command => Some(mpi::launch(command, variables, &libraries)?),
    };
    let launched = launched.as_ref();
    // What the launcher's ranks can do counts, where two of them could try.
    let theirs = launched.map(|launched| &launched.ranks);
    let together: &Ranks = theirs.filter(|ranks| are_together(ranks)).unwrap_or(&local);
    Ok(vec![
        machine::device(together),
        machine::memlock(together),
        machine::seccomp(together),
        machine::yama(together),
        machine::namespaces(together),
        machine::shared_memory(together),
        machine::variables(together),
        machine::profile(together),
        library,
        mpi::mpi(&libraries),
        mpi::launcher(launched, &launchers),
        mpi::threads(launched),
        mpi::binding(theirs.unwrap_or(&local), theirs.is_some()),
    ])
}

/// Whether two ranks of a launcher were on one machine.
fn are_together(ranks: &Ranks) -> bool {
    let mut hosts = ranks.reports.iter().take(RANKS).map(|report| &report.host);
    let first = hosts.next();
    ranks.reports.len() >= RANKS && hosts.all(|host| Some(host) == first)
}
