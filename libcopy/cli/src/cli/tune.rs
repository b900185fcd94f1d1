// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy tune`: measures the machine and stores a profile.

use super::rdma;
use anyhow::{Context, Result};
use clap::Args;
use comfy_table::Table;
use libcopy::calibration;
use libcopy::policy::RdmaProfile;
use libcopy::topology::Topology;
use libcopy::tune::{self, Profile};
use libcopy_measure::progress;
use libcopy_measure::report::plain_table;
use libcopy_rdma::Method;
use libcopy_rdma::tune::{BLOCKS, COUNTS, STEPS, Tuning, in_software, over_devices};

/// Arguments of `libcopy tune`.
#[derive(Args, Debug)]
#[command(
    after_help = "The profile goes to $LIBCOPY_PROFILE, or to libcopy/profile.toml below \
    $XDG_CONFIG_HOME or ~/.config. Delete the file to return to the built-in values. \
    Which kernels pack and unpack is kept in libcopy/kernels-* below $XDG_CACHE_HOME or ~/.cache.\n\n\
    With --rdma, messages go from one end of a connection to the other: between the first two devices that can be \
    used, or from the only one to itself. Thresholds of soft RoCE are labelled emulated: they say nothing of a card."
)]
pub struct TuneArgs {
    /// Measure and print, but do not store
    #[arg(long)]
    dry_run: bool,

    /// Measure an RDMA device instead: up to how many pieces, of which length on, memory keys and
    /// lists are faster than packing
    #[arg(long)]
    rdma: bool,

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
