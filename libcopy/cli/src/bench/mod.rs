// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy bench`: how fast it is, beside what, on which machine, and whether the bytes are right.

mod buffer;
mod claims;
mod coll;
mod contestant;
mod device;
mod dots;
mod layouts;
mod machine;
mod pairs;
mod paper003;
mod pattern;
mod plot;
mod rank;
mod report;
mod sample;
mod sizes;
mod speedup;
mod types;

use anyhow::{Result, ensure};
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Benchmarks.
#[derive(Subcommand, Debug)]
pub enum Bench {
    /// Collectives: transports side by side, against memcpy of the same bytes
    Coll(coll::CollArgs),
    /// The kernel module alone: ioctls, map and unmap, copies, strided copies, attach
    Device(device::DeviceArgs),
    /// Collectives beside MPI libraries (see `scripts/bench peers`)
    Peers(coll::PeersArgs),
    /// Derived datatypes: pack, unpack and copy beside MPI libraries and loops (see
    /// `scripts/bench types`)
    Types(types::TypesArgs),
    /// How many times as fast MPI calls are with libcopy_mpi.so, from paired blocks of several launches
    /// (`scripts/bench mpi` calls this)
    Speedup(speedup::SpeedupArgs),
    /// The experiments of the paper on copy engines: shared engines, fragments, switching (see
    /// `scripts/vm --ioat`)
    Paper003(paper003::PaperArgs),
    /// One rank of a comparison
    #[command(hide = true)]
    Rank(rank::RankArgs),
    /// One rank of a parallel program of the paper on copy engines
    #[command(hide = true)]
    Player(paper003::player::PlayerArgs),
}

/// Where results go.
#[derive(Args, Clone, Debug)]
pub struct Output {
    /// Write the results as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Draw the results: FILE with the endings .png and .svg
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,

    /// Vertical axis of the plot
    #[arg(long, value_enum, default_value = "latency", overrides_with = "axis")]
    pub axis: plot::Axis,

    /// Print JSON instead of the table
    #[arg(long)]
    pub json: bool,
}

impl Output {
    fn write(&self, report: &report::Report) -> Result<()> {
        self.write_with(report, report)
    }

    /// Writes a report whose rows are arranged differently in the figure.
    fn write_with(&self, report: &report::Report, figure: &report::Report) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(report)?);
        } else {
            print!("{}", report.table());
        }
        if let Some(path) = &self.csv {
            report.write_csv(path)?;
            eprintln!("CSV:  {}", path.display());
        }
        if let Some(path) = &self.plot {
            let (png, svg) = plot::write(figure, self.axis, path)?;
            eprintln!("plot: {} and {}", png.display(), svg.display());
        }
        ensure!(
            report.all_verified(),
            "some bytes were wrong; the table says which"
        );
        Ok(())
    }
}

/// Runs a benchmark.
pub fn run(bench: &Bench) -> Result<()> {
    match bench {
        Bench::Coll(args) => coll::coll(args),
        Bench::Device(args) => device::run(args),
        Bench::Peers(args) => coll::peers(args),
        Bench::Types(args) => types::run(args),
        Bench::Speedup(args) => speedup::run(args),
        Bench::Paper003(args) => paper003::run(args),
        Bench::Rank(args) => rank::run(args),
        Bench::Player(args) => paper003::player::run(args),
    }
}
