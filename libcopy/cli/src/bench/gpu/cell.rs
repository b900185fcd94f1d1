// SPDX-License-Identifier: MIT OR Apache-2.0

//! What an experiment found: a cell per case and method.

use std::fmt::Write as _;

use crate::bench::machine::Machine;
use crate::bench::report::{Report, Row, digits, plain_table, right_aligned};
use crate::bench::sample::Spread;
use serde::Serialize;

/// One line of the CSV.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// `E1` to `E8`.
    pub experiment: &'static str,
    /// What was moved.
    pub case: String,
    /// Bytes of data.
    pub bytes: u64,
    /// Mean bytes of a block.
    pub block: u64,
    /// How.
    pub method: String,
    /// Median, 10th and 90th percentile, in microseconds.
    pub time: Spread,
    /// What the memory allows, in microseconds.
    pub bound_us: f64,
    /// Whether the bytes were right.
    pub verified: bool,
}

/// First line of the CSV.
pub const HEADER: &str = "experiment,case,bytes,block,method,median_us,bound_us,verified";

/// All cells as CSV.
pub fn csv(cells: &[Cell]) -> String {
    let mut text = format!("{HEADER}\n");
    for cell in cells {
        let _ = writeln!(
            text,
            "{},{},{},{},{},{:.3},{:.3},{}",
            cell.experiment,
            cell.case,
            cell.bytes,
            cell.block,
            cell.method,
            cell.time.median,
            cell.bound_us,
            cell.verified
        );
    }
    text
}

/// All cells as a table, with the share of the bound.
pub fn table(cells: &[Cell]) -> String {
    let mut table = plain_table();
    table.set_header([
        "",
        "case",
        "method",
        "bytes",
        "block",
        "median us",
        "bound us",
        "of bound",
        "bytes right",
    ]);
    for cell in cells {
        table.add_row([
            cell.experiment.to_owned(),
            cell.case.clone(),
            cell.method.clone(),
            cell.bytes.to_string(),
            cell.block.to_string(),
            digits(cell.time.median),
            digits(cell.bound_us),
            format!("{:.2}", cell.bound_us / cell.time.median),
            if cell.verified { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    right_aligned(&mut table, 3);
    table.to_string()
}

/// The report that is drawn: a panel per experiment, times by length of a block.
pub fn figure(cells: &[Cell], machine: Machine, notes: Vec<String>) -> Report {
    let row = |cell: &Cell| Row {
        op: format!("{} {}", cell.experiment, cell.case),
        bytes: cell.block as usize,
        ranks: 1,
        variant: cell.method.clone(),
        time: cell.time,
        verified: cell.verified,
    };
    // Lines need more than one point.
    let has_line = |cell: &&Cell| {
        let mut blocks: Vec<u64> = cells
            .iter()
            .filter(|other| other.experiment == cell.experiment && other.case == cell.case)
            .map(|other| other.block)
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks.len() > 1
    };
    Report {
        title: "libcopy: datatypes in GPU memory, time by length of a block".to_owned(),
        machine,
        notes,
        rows: cells.iter().filter(has_line).map(row).collect(),
        ratios: Vec::new(),
    }
}
