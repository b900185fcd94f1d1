// SPDX-License-Identifier: MIT OR Apache-2.0

//! [`Output`]: where the results of a benchmark go.

use crate::plot::{self, Axis};
use crate::report::{Report, check_file, write_file};
use anyhow::{Result, ensure};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};

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
        let draw = |path: &Path| plot::write(figure, self.axis, path);
        let texts = (report.table(), report.csv());
        self.put(report, texts, draw, report.all_verified())
    }

    /// Writes what a benchmark has found: as JSON, or as a table and as CSV, and as the figure that
    /// `draw` makes.
    ///
    /// # Errors
    ///
    /// As [`Output::write`].
    pub fn put(
        &self,
        found: &impl Serialize,
        (table, csv): (String, String),
        draw: impl FnOnce(&Path) -> Result<(PathBuf, PathBuf)>,
        is_verified: bool,
    ) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(found)?);
        } else {
            print!("{table}");
        }
        if let Some(path) = &self.csv {
            write_file(path, csv)?;
            eprintln!("CSV:  {}", path.display());
        }
        if let Some(path) = &self.plot {
            let (png, svg) = draw(path)?;
            eprintln!("plot: {} and {}", png.display(), svg.display());
        }
        ensure!(is_verified, "some bytes were wrong; the table says which");
        Ok(())
    }
}
