// SPDX-License-Identifier: MIT OR Apache-2.0

//! What an experiment found: a cell per case and method.

use std::fmt::Write as _;

use libcopy_measure::machine::Machine;
use libcopy_measure::ratio_plot;
use libcopy_measure::report::{Report, Row, digits, first_seen, plain_table, right_aligned};
use libcopy_measure::sample::Spread;
use libcopy_measure::sizes;
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

/// The report that is drawn: a panel per case, times by length of a block.
pub fn figure(cells: &[Cell], machine: Machine, notes: Vec<String>) -> Report {
    let is_of =
        |cell: &Cell, other: &Cell| cell.experiment == other.experiment && cell.case == other.case;
    // Different amounts of data with the same blocks are no line.
    let has_sizes = |cell: &Cell| {
        let others = cells.iter().filter(|other| is_of(cell, other));
        let mut others = others.filter(|other| cell.block == other.block);
        others.any(|other| cell.bytes != other.bytes)
    };
    let op = |cell: &Cell| {
        let case = format!("{} {}", cell.experiment, cell.case);
        if has_sizes(cell) {
            format!("{case}, {}", sizes::short(cell.bytes as usize))
        } else {
            case
        }
    };
    let row = |cell: &Cell| Row {
        op: op(cell),
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
            .filter(|other| is_of(cell, other))
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

/// libcopy's method of the experiments that have one block length per case.
const OURS: [(&str, &str); 3] = [("E3", "batch"), ("E5", "peer"), ("E8", "typed")];

/// How many times as fast as the others libcopy's method is in those; none if none was measured.
pub fn gains(cells: &[Cell], machine: &Machine, notes: &[String]) -> Option<ratio_plot::Figure> {
    let ours = |cell: &&Cell| OURS.contains(&(cell.experiment, cell.method.as_str()));
    let others = |own: &Cell| {
        cells
            .iter()
            .filter(|cell| cell.experiment == own.experiment && cell.case == own.case)
            // The time without what is compared.
            .filter(|cell| cell.method != own.method && cell.method != "compute")
            .collect::<Vec<_>>()
    };
    let all = cells.iter().filter(ours).flat_map(others);
    let series = first_seen(all.map(|cell| cell.method.as_str()));
    let row = |own: &Cell| {
        let others = others(own);
        let ratio = |method: &&str| {
            let other = others.iter().find(|cell| cell.method == *method)?;
            Some(other.time.median / own.time.median)
        };
        ratio_plot::Row {
            label: format!("{} {}", own.experiment, own.case),
            ratios: series.iter().map(ratio).collect(),
        }
    };
    let rows: Vec<_> = cells.iter().filter(ours).map(row).collect();
    (!series.is_empty()).then(|| ratio_plot::Figure {
        title: "libcopy: datatypes in GPU memory, times as fast as other methods".to_owned(),
        machine: machine.line(),
        notes: notes
            .iter()
            .take(2)
            .cloned()
            .collect::<Vec<_>>()
            .join(" · "),
        series: series.iter().map(|name| (*name).to_owned()).collect(),
        panels: vec![(String::new(), rows)],
    })
}
