// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy tune`: measures the machine and stores a profile.

use super::progress;
use anyhow::{Context, Result};
use clap::Args;
use libcopy::calibration;
use libcopy::tune::{self, Profile};

/// Arguments of `libcopy tune`.
#[derive(Args, Debug)]
#[command(
    after_help = "The profile goes to $LIBCOPY_PROFILE, or to libcopy/profile.toml below \
    $XDG_CONFIG_HOME or ~/.config. Delete the file to return to the built-in values. \
    Which kernels pack and unpack is kept in libcopy/kernels-* below $XDG_CACHE_HOME or ~/.cache."
)]
pub struct TuneArgs {
    /// Measure and print, but do not store
    #[arg(long)]
    dry_run: bool,
}

/// Runs `libcopy tune`.
pub fn run(args: &TuneArgs) -> Result<()> {
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
        let path: std::path::PathBuf = Profile::save(&profile)?;
        println!("profile: {}", path.display());
        print!("{}", libcopy::policy::Policy::load()?.table());
    }
    Ok(())
}
