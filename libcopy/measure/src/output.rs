// SPDX-License-Identifier: MIT OR Apache-2.0

//! [`Output`]: where the results of a benchmark go.

use crate::plot::{self, Axis};
use crate::report::{Report, check_file};
use anyhow::{Result, ensure};
use clap::Args;
use std::path::PathBuf;

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
    pub axis: Axis,

    /// Print JSON instead of the table
    #[arg(long)]
    pub json: bool,
}

impl Output {
    /// Whether what is asked for can be had of `sizes` message sizes, and written: to be asked
    /// before minutes of measuring. `None` where a figure does not need several sizes.
    ///
    /// # Errors
    ///
    /// A figure of one size, a folder that is not there, or a file that cannot be written.
    pub fn check(&self, sizes: Option<usize>) -> Result<()> {
        if let Some(path) = &self.csv {
            check_file("--csv", path)?;
        }
        if let Some(path) = &self.plot {
            ensure!(
                sizes.is_none_or(|sizes| sizes > 1),
                "--plot {}: a figure needs at least two message sizes that are measured; see --sizes",
                path.display()
            );
            let (png, svg) = plot::paths(path);
            check_file("--plot", &png)?;
            check_file("--plot", &svg)?;
        }
        Ok(())
    }

    /// Writes a report to standard output, as CSV and as a figure, as far as asked for.
    ///
    /// # Errors
    ///
    /// A file that cannot be written, or a report with wrong bytes, which is written before.
    pub fn write(&self, report: &Report) -> Result<()> {
        self.write_with(report, report)
    }

    /// Writes a report whose rows are arranged differently in the figure.
    ///
    /// # Errors
    ///
    /// As [`Output::write`].
    pub fn write_with(&self, report: &Report, figure: &Report) -> Result<()> {
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
