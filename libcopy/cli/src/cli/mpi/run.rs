// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy mpi run`: starts an MPI program whose ranks have `libcopy_mpi.so` preloaded.

use super::prepare::Job;
use super::start::{Stats, wait_for};
use anyhow::{Context, Result};
use clap::Args;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `libcopy mpi run`.
#[derive(Args, Debug)]
#[command(after_help = "\
The launcher is recognised by its --version: Open MPI (-x), MPICH and Intel MPI (-genv), Slurm
(--export). Only the ranks get the library, not the launcher's own processes. Without a launcher the
program is started as one rank. The exit status is the command's, or 2 if it could not have helped.

Examples:
  libcopy mpi run mpirun -n 4 ./program
  libcopy mpi run --stats mpiexec -n 4 ./program input
  libcopy mpi run --dry-run srun -n 64 ./program")]
pub struct RunArgs {
    /// Add up what the ranks did when they have ended; with a FILE, keep their reports in it (the
    /// ranks of other machines must reach it)
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    stats: Option<Option<PathBuf>>,

    /// Print the command instead of running it
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    job: Job,
}

/// Runs `libcopy mpi run`.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let (launcher, mut variables) = match args.job.prepared() {
        Ok(prepared) => prepared,
        Err(code) => return Ok(code),
    };
    let command = &args.job.command;
    let stats = match &args.stats {
        Some(file) => Some(Stats::new(file.as_deref(), args.dry_run)?),
        None => None,
    };
    if let Some(stats) = &stats {
        let file = stats.file.to_str();
        let file = file.context("--stats: the file's name is no UTF-8 text")?;
        variables.push(("LIBCOPY_STATS".to_owned(), file.to_owned()));
    }
    let start = launcher.start(command, &variables);
    if args.dry_run {
        let set = start.environment.iter();
        let set = set.map(|(name, value)| format!("{name}={}", quoted(value)));
        let words = start.words.iter().map(|word| quoted(word));
        let all: Vec<String> = set.chain(words).collect();
        writeln!(std::io::stdout(), "{}", all.join(" "))?;
        return Ok(ExitCode::SUCCESS);
    }
    let code = wait_for(&start)?;
    if let Some(stats) = &stats {
        stats.tell(launcher, command)?;
    }
    Ok(code)
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
