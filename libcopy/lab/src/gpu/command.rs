// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy-lab gpu`: its options, and what is done with what was found.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::cell::{csv, figure, gains, table};
use super::contention::e7;
use super::experiments::{e1, e2, e3, e5, e6};
use super::messages::{e4, e8};
use super::program::Program;
use super::setup::{Setup, Sheet};
use libcopy_measure::machine::Machine;
use libcopy_measure::plot::{self, Axes, Axis, Bytes};
use libcopy_measure::progress;
use libcopy_measure::ratio_plot;
use libcopy_measure::report::{check_file, write_file};

/// `libcopy-lab gpu`
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "E1 pack and unpack, E2 MPI_Pack of 1 KiB to 4 MiB beside the mappings of TEMPI and yaksa and a copy per block, E3 halo of 26 directions, \
    E4 messages of an MPI program by each method, E5 out of another process's GPU memory, E6 straight into host memory, E7 beside a product of matrices, by copy units and by threads of few \
    multiprocessors, E8 the share of the time that moves data, and a stencil. E4 and the messages of E8 need --program, which scripts/bench gpu gives."
)]
pub struct GpuArgs {
    /// Only these experiments, for instance `E1,E5`
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    only: Vec<String>,

    /// Number of the GPU
    #[arg(long, default_value_t = 0)]
    device: usize,

    /// Small sizes: seconds instead of minutes
    #[arg(long)]
    quick: bool,

    /// Time to spend, about; experiments that would begin later are left out
    #[arg(long, value_name = "SECONDS", default_value_t = 480.0)]
    time: f64,

    /// What starts tests/peers/mpi_gpu.c on two ranks with libcopy_mpi.so preloaded, for E4 and E8
    #[arg(long, value_name = "NAME=COMMAND")]
    program: Option<Program>,

    /// Write the results as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Draw the results: FILE with the endings .png and .svg; and how many times as fast as others,
    /// FILE-gains
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Print JSON instead of the table
    #[arg(long)]
    json: bool,
}

type Experiment = fn(&Setup, &mut Sheet<'_>) -> Result<()>;

const EXPERIMENTS: [(&str, Experiment); 8] = [
    ("E1", e1),
    ("E2", e2),
    ("E3", e3),
    ("E4", e4),
    ("E5", e5),
    ("E6", e6),
    ("E7", e7),
    ("E8", e8),
];

/// Runs it.
pub fn run(args: &GpuArgs) -> Result<()> {
    for name in &args.only {
        if !EXPERIMENTS
            .iter()
            .any(|(known, _)| known.eq_ignore_ascii_case(name))
        {
            bail!("there is no experiment {name:?}: see libcopy-lab gpu --help");
        }
    }
    if let Some(path) = &args.csv {
        check_file("--csv", path)?;
    }
    if let Some(path) = &args.plot {
        let (png, svg) = plot::paths(path);
        check_file("--plot", &png)?;
        check_file("--plot", &svg)?;
    }
    let mut setup = Setup::new(args.device, args.quick, args.time)?;
    setup.program = args.program.clone();
    let bar = progress::bar(EXPERIMENTS.len() as u64);
    let say = |what: &str| {
        bar.set_message(what.to_owned());
        bar.tick();
    };
    let mut sheet = Sheet {
        cells: Vec::new(),
        notes: Vec::new(),
        say: &say,
    };
    sheet.notes.push(format!(
        "{}, {} multiprocessors, driver of CUDA {}",
        setup.device.name,
        setup.device.multiprocessors,
        version(setup.driver.version()?)
    ));
    if setup.device.is_stand_in() {
        sheet
            .notes
            .push("STAND-IN DRIVER: no GPU was there; times say nothing".to_owned());
    }
    for (name, experiment) in EXPERIMENTS {
        let is_wanted =
            args.only.is_empty() || args.only.iter().any(|one| one.eq_ignore_ascii_case(name));
        if is_wanted && Instant::now() > setup.end {
            sheet.notes.push(format!("{name} left out: no time"));
        } else if is_wanted {
            experiment(&setup, &mut sheet).with_context(|| format!("{name} failed"))?;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let Sheet { cells, notes, .. } = sheet;
    ensure!(
        !cells.is_empty(),
        "nothing was measured: {}",
        notes.join("; ")
    );
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&serde_json::json!({ "notes": notes, "cells": cells }))?
        );
    } else {
        for note in &notes {
            println!("{note}");
        }
        println!("{}", table(&cells));
    }
    if let Some(path) = &args.csv {
        write_file(path, csv(&cells))?;
        eprintln!("CSV:  {}", path.display());
    }
    if let Some(path) = &args.plot {
        let drawn = |(png, svg): (PathBuf, PathBuf)| {
            eprintln!("plot: {} and {}", png.display(), svg.display());
        };
        let machine = Machine::here();
        if let Some(figure) = gains(&cells, &machine, &notes) {
            let mut name = path.file_stem().unwrap_or_default().to_owned();
            name.push("-gains.svg");
            let drawing = ratio_plot::draw(&figure);
            drawn(plot::write_drawing(&drawing, &path.with_file_name(name))?);
        }
        let report = figure(&cells, machine, notes);
        let axes = Axes {
            y: Axis::Latency,
            x: Bytes::Block,
        };
        // Some experiments have one length of blocks.
        if !report.rows.is_empty() {
            drawn(plot::write(&report, axes, path)?);
        }
    }
    ensure!(
        cells.iter().all(|cell| cell.verified),
        "some bytes were wrong; the table says which"
    );
    Ok(())
}

/// 12040 is 12.4.
pub fn version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}
