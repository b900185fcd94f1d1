// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy mpi run`: starts an MPI program whose ranks have `libcopy_mpi.so` preloaded.

use super::launcher::Launcher;
use super::prepare::REFUSED;
use super::{child, prepare, program, report};
use anyhow::{Context, Result};
use clap::Args;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

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

    /// The library, if it is not where this tool looks for it
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,

    /// The command: a launcher with its options and the program
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Runs `libcopy mpi run`.
pub fn run(args: &RunArgs) -> Result<ExitCode> {
    let (launcher, mut variables) = match prepare::prepared(args.library.as_deref(), &args.command)
    {
        Ok(prepared) => prepared,
        Err(error) => {
            eprintln!("libcopy: {error:#}");
            return Ok(ExitCode::from(REFUSED));
        }
    };
    let stats = match &args.stats {
        Some(file) => Some(Stats::new(file.as_deref(), args.dry_run)?),
        None => None,
    };
    if let Some(stats) = &stats {
        let file = stats.file.to_str();
        let file = file.context("--stats: the file's name is no UTF-8 text")?;
        variables.push(("LIBCOPY_STATS".to_owned(), file.to_owned()));
    }
    let start = launcher.start(&args.command, &variables);
    if args.dry_run {
        let set = start.environment.iter();
        let set = set.map(|(name, value)| format!("{name}={}", quoted(value)));
        let words = start.words.iter().map(|word| quoted(word));
        let all: Vec<String> = set.chain(words).collect();
        writeln!(std::io::stdout(), "{}", all.join(" "))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = Command::new(&start.words[0]);
    command.args(&start.words[1..]);
    command.envs(start.environment.iter().map(|(name, value)| (name, value)));
    let child = command
        .spawn()
        .with_context(|| format!("starting {}", start.words[0]))?;
    let status = child::wait(child)?;
    if let Some(stats) = &stats {
        stats.tell(launcher, &args.command)?;
    }
    let signalled = status.signal().map(|signal| 128 + signal);
    let code = status.code().or(signalled).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// A word as a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,:=@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The file that ranks write their reports into.
struct Stats {
    file: PathBuf,
    /// Whether it is ours to remove, with the directory that it is in.
    own: Option<tempfile::TempDir>,
}

impl Stats {
    /// The file that was asked for, emptied; or one in a new directory, here if that can be
    /// written, since other machines may see it. Nothing is made if it is only to be `named`.
    fn new(asked: Option<&Path>, named: bool) -> Result<Stats> {
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
    fn tell(&self, launcher: Launcher, command: &[String]) -> Result<()> {
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
fn why(launcher: Launcher, command: &[String]) -> String {
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
