// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy tune`: measures the machine and stores a profile.

use super::rdma;
use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::Table;
use libcopy::calibration;
use libcopy::policy::{Contention, RdmaProfile};
use libcopy::topology::Topology;
use libcopy::tune::contention::Effort;
use libcopy::tune::{self, Profile};
use libcopy_bench::contention;
use libcopy_measure::progress;
use libcopy_measure::report::plain_table;
use libcopy_rdma::Method;
use libcopy_rdma::tune::{BLOCKS, COUNTS, STEPS, Tuning, in_software, over_devices};
use std::path::PathBuf;

/// Arguments of `libcopy tune`.
#[derive(Args, Debug)]
#[command(
    after_help = "The profile goes to $LIBCOPY_PROFILE, or to libcopy/profile.toml below \
    $XDG_CONFIG_HOME or ~/.config. Delete the file to return to the built-in values. \
    Which kernels pack and unpack is kept in libcopy/kernels-* below $XDG_CACHE_HOME or ~/.cache.\n\n\
    With --rdma, messages go from one end of a connection to the other: between the first two devices that can be \
    used, or from the only one to itself. Thresholds of soft RoCE are labelled emulated: they say nothing of a card.\n\n\
    With --contention, one process after the other joins the readers of one source, near it (same last-level cache) and \
    far from it, through each transport that works here. What follows is what plans of many ranks are chosen by: see \
    `libcopy plan`. A distance for which there are too few processors is named and left out; built-in values stay."
)]
pub struct TuneArgs {
    /// Measure and print, but do not store
    #[arg(long)]
    dry_run: bool,

    /// Measure an RDMA device instead: up to how many pieces, of which length on, memory keys and
    /// lists are faster than packing
    #[arg(long)]
    rdma: bool,

    /// Measure what several readers of one source get instead, near and far: levels, group sizes
    /// and chunks of plans follow
    #[arg(long, conflicts_with = "rdma")]
    contention: bool,

    /// Fewer rounds: a few seconds
    #[arg(long, requires = "contention")]
    quick: bool,

    /// Readers of each distance, at most
    #[arg(long, value_name = "N", requires = "contention", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..))]
    readers: u16,

    /// Write what readers got as CSV
    #[arg(long, value_name = "FILE", requires = "contention")]
    csv: Option<PathBuf>,

    /// Draw what readers got: FILE with the endings .png and .svg
    #[arg(long, value_name = "FILE", requires = "contention")]
    plot: Option<PathBuf>,

    /// Try it with this number of readers of each distance, whatever processors there are: what
    /// comes out says nothing and is not stored
    #[arg(long, value_name = "N", requires = "contention", hide = true)]
    oversubscribe: Option<usize>,

    /// The devices of both ends, or one for both
    #[arg(long, requires = "rdma", num_args = 1..=2, value_names = ["A", "B"], conflicts_with = "software")]
    devices: Vec<String>,

    /// The card in software instead of a device: emulated, and not stored
    #[arg(long, requires = "rdma")]
    software: bool,
}

/// Runs `libcopy tune`.
pub fn run(args: &TuneArgs) -> Result<()> {
    if args.rdma {
        return run_rdma(args);
    }
    if args.contention {
        return run_contention(args);
    }
    if !args.dry_run {
        calibration::check_place().context("cannot keep the kernels' table")?;
        Profile::check_place()?;
    }
    let bar = progress::bar(1000);
    let profile = tune::measure(&mut |fraction, what| {
        bar.set_position((fraction.clamp(0.0, 1.0) * 1000.0) as u64);
        bar.set_message(what.to_owned());
    })?;
    bar.finish_and_clear();
    let kernels = calibration::measure();
    if args.dry_run {
        println!("{profile:#?}");
        print!("{}", kernels.profile.to_text());
    } else {
        println!(
            "kernels: {}",
            kernels
                .save()
                .context("cannot keep the kernels' table")?
                .display()
        );
        for (len, level, name) in &kernels.changes {
            println!("  blocks of {len} bytes, level {level}: {name}");
        }
        for (name, value) in &kernels.flags {
            println!("  {name}: {}", if *value { "yes" } else { "no" });
        }
        if let Some(pieces) = kernels.remembered {
            println!("  lists of up to {pieces} pieces are moved in their own order");
        }
        if let Some([short, long]) = kernels.cut_quarters {
            println!(
                "  their pieces are cut into units up to {} of them on average, those of longer lists up to {}",
                short as f64 / 4.0,
                long as f64 / 4.0
            );
        }
        let path: std::path::PathBuf = Profile::save(&profile)?;
        println!("profile: {}", path.display());
        print!("{}", libcopy::policy::Policy::load()?.table());
    }
    Ok(())
}

fn run_contention(args: &TuneArgs) -> Result<()> {
    // What was measured by ranks that shared processors says nothing.
    let is_stored = !args.dry_run && args.oversubscribe.is_none();
    if is_stored {
        Profile::check_place()?;
    }
    let (csv, plot) = (args.csv.as_deref(), args.plot.as_deref());
    contention::check(csv, plot)?;
    let mut effort = if args.quick {
        contention::quick()
    } else {
        Effort::default()
    };
    effort.readers = args.readers.into();
    if let Some(readers) = args.oversubscribe {
        println!("readers share processors: what follows says nothing of the machine");
        effort.shared = Some(readers);
        (effort.bytes, effort.memory) = (64 << 10, 1 << 20);
    }
    let outcome = contention::measure(&effort)?;
    print!("{}", contention::table(&outcome));
    contention::write(&outcome, csv, plot)?;
    if let Some(why) = outcome.refused.filter(|_| args.oversubscribe.is_none()) {
        bail!("{why}; nothing is stored: measure again while nothing else runs");
    }
    if outcome.contention == Contention::default() {
        println!("nothing was measured; built-in values stay, and nothing is stored");
    } else if is_stored {
        let path = outcome.contention.save(&Topology::current().machine())?;
        println!("profile: {}", path.display());
    } else {
        println!("not stored");
    }
    Ok(())
}

fn run_rdma(args: &TuneArgs) -> Result<()> {
    let devices = if args.software {
        None
    } else {
        Some(rdma::tune_devices(&args.devices)?)
    };
    let is_stored = devices.is_some() && !args.dry_run;
    if is_stored {
        Profile::check_place()?;
    }
    let bar = progress::bar(STEPS as u64);
    let mut done = |count, block| {
        bar.set_message(format!("{count} x {block} bytes"));
        bar.inc(1);
    };
    let (tuning, names, is_emulated) = match &devices {
        None => (
            in_software(&mut done)?,
            "the card in software".to_owned(),
            true,
        ),
        Some([a, b]) => {
            let names = if a.name() == b.name() {
                a.name().to_owned()
            } else {
                format!("{} {}", a.name(), b.name())
            };
            let tuning = over_devices(&[a.clone(), b.clone()], &mut done)?;
            (tuning, names, a.is_emulated() || b.is_emulated())
        }
    };
    bar.finish_and_clear();
    let profile = RdmaProfile {
        devices: names,
        is_emulated,
        thresholds: tuning.thresholds.to_string(),
    };
    for method in [Method::Umr, Method::Sge] {
        if let Some(table) = gains(&tuning, method) {
            println!("{method}: how many times as fast as packing, by pieces and bytes of a piece");
            println!("{table}");
        }
    }
    println!("thresholds, {}:", rdma::measured_on(&profile));
    print!("{}", profile.thresholds);
    if is_stored {
        let path = profile.save(&Topology::current().machine())?;
        println!("profile: {}", path.display());
    } else {
        println!("not stored");
    }
    Ok(())
}

/// What was measured of a method; none if nothing was.
fn gains(tuning: &Tuning, method: Method) -> Option<Table> {
    let mut table = plain_table();
    let head = BLOCKS.iter().map(u64::to_string);
    table.set_header(std::iter::once(String::new()).chain(head));
    for count in COUNTS {
        let cells = tuning.cells.iter();
        let cells = cells.filter(|cell| cell.method == method && cell.count == count);
        let gains: Vec<String> = cells.map(|cell| format!("{:.2}", cell.gain)).collect();
        if gains.is_empty() {
            return None;
        }
        table.add_row(std::iter::once(count.to_string()).chain(gains));
    }
    Some(table)
}
