// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy-lab nic figures`: the paper's figures, and its claims.

use super::chart;
use super::figures::{Claim, Study, csv, figures, steps};
use super::host::HostArgs;
use anyhow::{Context, Result};
use clap::Args;
use comfy_table::{ContentArrangement, Table, presets};
use libcopy::datatype::Layout;
use libcopy_measure::layouts::{self, Tier};
use libcopy_measure::plot;
use libcopy_measure::progress;
use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

/// Applications of figure 16.
const APPLICATIONS: [&str; 9] = [
    "COMB",
    "FFT2D",
    "LAMMPS",
    "MILC",
    "NAS_LU",
    "NAS_MG",
    "SPECFEM3D",
    "SW4LITE",
    "WRF",
];

/// Larger messages take minutes.
const MOST: u64 = 8 << 20;

/// Arguments of `libcopy-lab nic figures`.
#[derive(Args, Debug)]
pub struct FiguresArgs {
    /// Fewer points, no large messages
    #[arg(long)]
    quick: bool,

    /// Write the claims as CSV: figure, claim, paper, ours, held
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Draw the figures with the claims: FILE with the endings .png and .svg
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    #[command(flatten)]
    host: HostArgs,
}

/// Types of the applications: the small and medium ones, unless quick the large ones as well.
fn applications(is_quick: bool) -> Result<Vec<(String, Layout)>> {
    let mut all = Vec::new();
    for case in layouts::cases() {
        let is_meant = APPLICATIONS
            .iter()
            .any(|name| case.layout.starts_with(name));
        if !is_meant || (is_quick && case.tier == Tier::Large) {
            continue;
        }
        let layout = Layout::new(&case.expression.parse()?, 1)?;
        if layout.size() <= MOST {
            all.push((case.layout, layout));
        }
    }
    Ok(all)
}

/// Runs `libcopy-lab nic figures`.
pub fn run(args: &FiguresArgs) -> Result<()> {
    // Before the simulation, which takes minutes.
    let csv_file = args
        .csv
        .as_deref()
        .map(|path| File::create(path).with_context(|| format!("cannot write {}", path.display())));
    let csv_file = csv_file.transpose()?;
    let host = args.host.table()?;
    let applications = applications(args.quick)?;
    let mut ignore = |_: &str| {};
    let length = steps(&Study {
        is_quick: args.quick,
        host: &host,
        applications: &applications,
        progress: &mut ignore,
    });
    let bar = progress::bar(length);
    let mut step = |what: &str| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    };
    let all = figures(&mut Study {
        is_quick: args.quick,
        host: &host,
        applications: &applications,
        progress: &mut step,
    })?;
    bar.finish_and_clear();
    let claims: Vec<&Claim> = all.iter().flat_map(|figure| &figure.claims).collect();
    let mut table = Table::new();
    table
        .load_preset(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["figure", "claim", "paper", "ours", "held"]);
    for claim in &claims {
        table.add_row([
            claim.figure,
            &claim.claim,
            &claim.paper,
            &claim.ours,
            &claim.held.word(),
        ]);
    }
    let note = format!(
        "Simulated, no card was available. The host's times: {}.",
        host.source
    );
    let mut out = std::io::stdout().lock();
    writeln!(out, "{table}\n{note}")?;
    if let (Some(mut file), Some(path)) = (csv_file, &args.csv) {
        file.write_all(csv(claims).as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("CSV:  {}", path.display());
    }
    if let Some(path) = &args.plot {
        let (png, svg) = plot::write_drawing(&chart::draw(&all, &note)?, path)?;
        eprintln!("plot: {} and {}", png.display(), svg.display());
    }
    Ok(())
}
