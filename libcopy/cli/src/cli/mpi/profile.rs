// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy mpi profile`: where an MPI program's time in MPI goes.

use super::launcher::Launcher;
use super::prepare::Job;
use super::start::{Stats, wait_for, why};
use anyhow::{Context, Result};
use clap::Args;
use libcopy_measure::heat_map::{self, HeatMap};
use libcopy_measure::report::{check_file, write_file};
use libcopy_report::{Profile, ProfileRow};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Functions that a figure shows.
const FUNCTIONS: usize = 20;

/// Arguments of `libcopy mpi profile`.
#[derive(Args, Debug)]
#[command(after_help = "\
The program runs plain: libcopy_mpi.so is preloaded, and forwards every call. The table has the
functions and the classes of calls that took most time: a function, a power of two of bytes, whether
a datatype has gaps, and the ranks of the communicators. Time is split into waiting for ranks that
come later and moving bytes; docs/mpi.md says how, and what is not seen. The exit status is the
command's, or 2 if it could not have been looked at.

Examples:
  libcopy mpi profile -- mpirun -n 4 ./program
  libcopy mpi profile --csv program.csv --svg program.svg -- mpiexec -n 4 ./program input")]
pub struct ProfileArgs {
    /// Write all classes of calls as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Draw a heat map: functions by sizes, each the darker the more of the run it takes
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// What the heat map is called (default: the program's name)
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,

    /// Have libcopy at work, instead of a plain run
    #[arg(long)]
    with_libcopy: bool,

    #[command(flatten)]
    job: Job,
}

/// Runs `libcopy mpi profile`.
pub fn run(args: &ProfileArgs) -> Result<ExitCode> {
    let (launcher, mut variables) = match args.job.prepared() {
        Ok(prepared) => prepared,
        Err(code) => return Ok(code),
    };
    let command = &args.job.command;
    // To be told before minutes of running.
    for (option, file) in [("--csv", &args.csv), ("--svg", &args.svg)] {
        if let Some(file) = file {
            check_file(option, file)?;
        }
    }
    let stats = Stats::new(None, false)?;
    let file = stats.file.to_str();
    let file = file.context("the name of the directory of the profile is no UTF-8 text")?;
    variables.push(("LIBCOPY_STATS".to_owned(), format!("profile:{file}")));
    let disabled = if args.with_libcopy { "0" } else { "1" };
    variables.push(("LIBCOPY_DISABLE".to_owned(), disabled.to_owned()));
    let code = wait_for(&launcher.start(command, &variables))?;
    let text = std::fs::read_to_string(&stats.file).unwrap_or_default();
    if text.is_empty() {
        eprintln!(
            "libcopy: no rank has written a profile; {}",
            why(launcher, command)
        );
        return Ok(code);
    }
    let profile = Profile::read(&text).context("the ranks' profiles")?;
    if let Some(path) = &args.csv {
        write_file(path, profile.csv())?;
    }
    if let Some(path) = &args.svg {
        let title = args.title.clone();
        let title = title.unwrap_or_else(|| name(launcher, command));
        write_file(path, heat_map::draw(&figure(&profile, &title)))?;
    }
    // Behind the files: whoever reads this may close it early.
    write!(std::io::stderr().lock(), "{profile}")?;
    Ok(code)
}

/// The program's name.
fn name(launcher: Launcher, command: &[String]) -> String {
    let programs = launcher.named(command);
    let first = programs.first().map(Path::new);
    let name = first.and_then(Path::file_name);
    name.map_or("profile".to_owned(), |name| {
        name.to_string_lossy().into_owned()
    })
}

/// Functions by sizes, with the share of all ranks' runs that each takes.
fn figure(profile: &Profile, title: &str) -> HeatMap {
    let sizes: BTreeSet<u64> = profile.rows.iter().map(|row| row.least).collect();
    let columns: Vec<String> = sizes.iter().map(|size| short(*size)).collect();
    let of = |function: &ProfileRow, size: u64| {
        let rows = profile.rows.iter();
        let rows = rows.filter(|row| row.function == function.function && row.least == size);
        profile.share(rows.map(|row| row.time_ns).sum())
    };
    let functions = profile.functions();
    let rows = functions.iter().take(FUNCTIONS).map(|function| {
        let shares = sizes.iter().map(|size| of(function, *size));
        (function.function.clone(), shares.collect())
    });
    let sum =
        |part: fn(&ProfileRow) -> u64| 100.0 * profile.share(profile.rows.iter().map(part).sum());
    let names: Vec<&str> = profile.libraries.iter().map(String::as_str).collect();
    HeatMap {
        title: format!("{title}: time in MPI"),
        notes: vec![
            format!(
                "{} ranks, {}, {}; cells: percent of the ranks' time from MPI_Init to MPI_Finalize",
                profile.ranks,
                names.join(", "),
                if profile.plain {
                    "plain"
                } else {
                    "with libcopy"
                }
            ),
            format!(
                "in MPI {:.1} %: waiting {:.1} %, moving {:.1} %, not split {:.1} %",
                100.0 * profile.share(profile.mpi_ns()),
                sum(|row| row.waiting_ns),
                sum(|row| row.moving_ns),
                sum(|row| row.unsplit_ns)
            ),
        ],
        axis: "bytes of a message, from".to_owned(),
        columns,
        rows: rows.collect(),
    }
}

/// A power of two of bytes, for the head of a narrow column.
fn short(bytes: u64) -> String {
    let unit = [(30, "Gi"), (20, "Mi"), (10, "Ki")]
        .into_iter()
        .find(|(shift, _)| bytes >> shift > 0);
    unit.map_or(bytes.to_string(), |(shift, unit)| {
        format!("{}{unit}", bytes >> shift)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_the_shares_of_functions_by_size() {
        let row = |function: &str, least, derived, time_ns| ProfileRow {
            function: function.to_owned(),
            least,
            derived,
            time_ns,
            moving_ns: time_ns,
            ..ProfileRow::default()
        };
        let profile = Profile {
            ranks: 2,
            run_ns: 1000,
            rows: vec![
                row("MPI_Send", 2048, false, 100),
                row("MPI_Recv", 0, false, 50),
                row("MPI_Send", 2048, true, 30),
            ],
            ..Profile::default()
        };
        let map = figure(&profile, "halo");
        assert_eq!(map.columns, ["0", "2Ki"]);
        let close = |a: &[f64], b: [f64; 2]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9);
        assert_eq!(map.rows[0].0, "MPI_Send");
        assert!(close(&map.rows[0].1, [0.0, 0.13]), "{:?}", map.rows);
        assert!(close(&map.rows[1].1, [0.05, 0.0]), "{:?}", map.rows);
        assert!(map.notes[1].starts_with("in MPI 18.0 %: waiting 0.0 %, moving 18.0 %"));
    }
}
