// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy mpi report`: what `libcopy_mpi.so` did in MPI programs, and whether it helped.

use anyhow::{Context, Result};
use clap::Args;
use libcopy_report::Job;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Arguments of `libcopy mpi report`.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// The file that LIBCOPY_STATS named
    file: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `libcopy mpi report`.
pub fn run(args: &ReportArgs) -> Result<()> {
    let job = read(&args.file)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&job)?)?;
    } else {
        write!(out, "{job}")?;
    }
    Ok(())
}

/// Prints what the ranks have written into a file.
pub fn print(file: &Path, out: &mut dyn Write) -> Result<()> {
    write!(out, "{}", read(file)?)?;
    Ok(())
}

fn read(file: &Path) -> Result<Job> {
    let name = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {name}"))?;
    Job::read(&text).with_context(|| format!("{name}"))
}
