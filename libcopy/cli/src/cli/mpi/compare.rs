// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy mpi compare`: runs an MPI program plain and with `libcopy_mpi.so` in turns.

use super::child::{Said, wait};
use super::prepare::Job;
use anyhow::{Context, Result, bail};
use clap::Args;
use libcopy_bench::comparison::{Run, compare};
use nix::sys::resource::{UsageWho, getrusage};
use std::io::Write as _;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Arguments of `libcopy mpi compare`.
#[derive(Args, Debug)]
#[command(after_help = "\
The command is run plain and preloaded in turns, each pair in the other order than the one before,
after one run of either that is not counted. Its standard input is empty; what it prints is compared
and not shown. CPU times are those of all processes that the launcher waits for, so on this machine.

Exit status: 0 if the outputs are equal, 1 if they differ or a run failed, 2 if the ranks could not
have the library.

Examples:
  libcopy mpi compare mpirun -n 4 ./program
  libcopy mpi compare -n 15 mpiexec -n 8 ./program input")]
pub struct CompareArgs {
    /// Pairs of runs that are counted; fewer than 6 give no 95 % interval
    #[arg(short = 'n', long, value_name = "PAIRS", default_value_t = 9,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    job: Job,
}

/// Runs `libcopy mpi compare`.
pub fn run(args: &CompareArgs) -> Result<ExitCode> {
    let (launcher, variables) = match args.job.prepared() {
        Ok(prepared) => prepared,
        Err(code) => return Ok(code),
    };
    let command = &args.job.command;
    let mut plain = Command::new(&command[0]);
    plain.args(&command[1..]);
    let mut ways = [plain, launcher.start(command, &variables).command()];
    let comparison = compare(args.pairs, |way| once(&mut ways[way]))?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&comparison)?)?;
    } else {
        write!(out, "{}", comparison.text())?;
    }
    Ok(if comparison.differs() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Runs a command once.
fn once(command: &mut Command) -> Result<Run> {
    let mut said = Said::new()?;
    said.hear(command)?;
    let (started, before) = (Instant::now(), children()?);
    let child = command
        .spawn()
        .with_context(|| format!("starting {}", command.get_program().to_string_lossy()))?;
    let status = wait(child)?;
    let (wall, after) = (started.elapsed(), children()?);
    if !status.success() {
        let errors = said.errors()?;
        let lines: Vec<&str> = errors.lines().collect();
        /// Lines of messages that are shown.
        const SHOWN: usize = 20;
        let last = &lines[lines.len().saturating_sub(SHOWN)..];
        bail!("{status}; its last messages:\n{}", last.join("\n"));
    }
    Ok(Run {
        wall: wall.as_secs_f64(),
        cpu: after.saturating_sub(before).as_secs_f64(),
        output: said.output()?,
    })
}

/// The CPU time of all processes that were waited for.
fn children() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("getrusage")?;
    let times = [usage.user_time(), usage.system_time()];
    let microseconds: i64 = times
        .iter()
        .map(|time| time.tv_sec() * 1_000_000 + time.tv_usec())
        .sum();
    Ok(Duration::from_micros(u64::try_from(microseconds)?))
}
