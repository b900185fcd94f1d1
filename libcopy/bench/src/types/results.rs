// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the comparison of layouts has found: the table, the CSV file and the figure.

use anyhow::Result;
use libcopy_measure::machine::Machine;
use libcopy_measure::output::Output;
use libcopy_measure::plot;
use libcopy_measure::ratio_plot;
use libcopy_measure::report::{HEADER, Row, digits, first_seen, plain_table, right_aligned};
use libcopy_measure::sample::geometric_mean;
use libcopy_measure::sizes;
use libcopy_measure::typed::{CONTROL, LIBCOPY, MEMCPY};
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

/// A result, and of which layout.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Timed {
    pub(super) layout: String,
    #[serde(flatten)]
    pub(super) row: Row,
}

/// Everything one run found out.
#[derive(Serialize)]
pub(super) struct Found {
    pub(super) title: String,
    /// Whether the layouts are those of `--irregular`.
    #[serde(skip)]
    pub(super) irregular: bool,
    pub(super) machine: Machine,
    pub(super) notes: Vec<String>,
    pub(super) rows: Vec<Timed>,
}

pub(super) fn write(found: &Found, output: &Output) -> Result<()> {
    let draw = |path: &Path| plot::write_drawing(&draw(found), path);
    let is_verified = found.rows.iter().all(|r| r.row.verified);
    output.put(found, (table(found), csv(found)), draw, is_verified)
}

fn csv(found: &Found) -> String {
    // The common columns, and the layout.
    let mut text = format!("{HEADER},layout\n");
    for Timed { layout, row } in &found.rows {
        let _ = writeln!(text, "{},{layout}", row.csv(4));
    }
    text
}

/// The results of one layout in one size, by one operation.
struct Line<'a> {
    layout: &'a str,
    bytes: usize,
    rows: Vec<&'a Row>,
}

impl Line<'_> {
    fn median(&self, variant: &str) -> Option<f64> {
        let row = self.rows.iter().find(|r| r.variant == variant)?;
        Some(row.time.median)
    }

    /// How many times as fast libcopy is as the fastest of `others`.
    fn ratio(&self, others: &[&str]) -> Option<f64> {
        let best = others
            .iter()
            .filter_map(|o| self.median(o))
            .reduce(f64::min)?;
        Some(best / self.median(LIBCOPY)?)
    }
}

fn lines<'a>(found: &'a Found, op: &str) -> Vec<Line<'a>> {
    let mut lines: Vec<Line> = Vec::new();
    for Timed { layout, row } in found.rows.iter().filter(|r| r.row.op == op) {
        match lines.last_mut() {
            Some(line) if line.layout == layout && line.bytes == row.bytes => line.rows.push(row),
            _ => lines.push(Line {
                layout,
                bytes: row.bytes,
                rows: vec![row],
            }),
        }
    }
    lines
}

/// Whether a variant is libcopy's.
fn is_own(variant: &str) -> bool {
    variant
        .strip_prefix(LIBCOPY)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// For each range of lengths and number of blocks: nanoseconds per block of each variant, and the
/// ratio of the fastest that is not libcopy to each of libcopy's.
fn irregular_table(found: &Found, op: &str) -> String {
    let lines = lines(found, op);
    let all = lines.iter().flat_map(|l| l.rows.iter());
    let variants = first_seen(all.map(|r| r.variant.as_str()));
    let (own, others): (Vec<&str>, Vec<&str>) = variants
        .into_iter()
        .filter(|v| ![MEMCPY, CONTROL].contains(v))
        .partition(|v| is_own(v));
    let mut table = plain_table();
    let mut header = vec!["layout".to_owned()];
    header.extend(own.iter().chain(&others).map(|v| (*v).to_owned()));
    header.extend(own.iter().map(|v| format!("{v}\nvs fastest")));
    table.set_header(header);
    let mut lowest = vec![f64::MAX; own.len()];
    for line in &lines {
        let blocks = line.layout.split(' ').next_back();
        let blocks: f64 = blocks.and_then(|n| n.parse().ok()).unwrap_or(1.0);
        let fastest = others
            .iter()
            .filter_map(|v| line.median(v))
            .reduce(f64::min);
        let each = |v: &&str| {
            let time = line.median(v).map(|us| 1e3 * us / blocks);
            time.map_or(String::new(), |ns| format!("{ns:.2}"))
        };
        let mut cells = vec![line.layout.to_owned()];
        cells.extend(own.iter().chain(&others).map(each));
        for (v, lowest) in own.iter().zip(&mut lowest) {
            let ratio = fastest.zip(line.median(v)).map(|(other, own)| other / own);
            *lowest = lowest.min(ratio.unwrap_or(f64::MAX));
            cells.push(ratio.map_or(String::new(), |ratio| format!("{ratio:.2}x")));
        }
        table.add_row(cells);
    }
    let mut last = vec!["lowest".to_owned()];
    last.resize(1 + own.len() + others.len(), String::new());
    let known = lowest.iter().map(|ratio| match *ratio {
        f64::MAX => String::new(),
        ratio => format!("{ratio:.2}x"),
    });
    last.extend(known);
    table.add_row(last);
    right_aligned(&mut table, 1);
    format!("\n{op}: nanoseconds per block, median\n{table}\n")
}

/// What libcopy is compared with: a title, and the variants of which the fastest counts.
fn comparisons<'a>(variants: &[&'a str]) -> Vec<(String, Vec<&'a str>)> {
    let mpis: Vec<&str> = variants
        .iter()
        .copied()
        .filter(|v| ![MEMCPY, CONTROL, "loop"].contains(v) && !is_own(v))
        .collect();
    let mut comparisons = Vec::new();
    if mpis.len() > 1 {
        comparisons.push(("vs\nMPI".to_owned(), mpis.clone()));
    }
    for other in variants.iter().filter(|v| **v != LIBCOPY) {
        let short = other.strip_prefix("libcopy-").unwrap_or(other);
        comparisons.push((format!("vs\n{short}"), vec![*other]));
    }
    comparisons
}

fn table(found: &Found) -> String {
    let mut text = format!("{}\n{}\n", found.title, found.machine.line());
    for note in &found.notes {
        let _ = writeln!(text, "{note}");
    }
    for op in first_seen(found.rows.iter().map(|r| r.row.op.as_str())) {
        if found.irregular {
            text.push_str(&irregular_table(found, op));
            continue;
        }
        let lines = lines(found, op);
        let variants = first_seen(
            lines
                .iter()
                .flat_map(|l| l.rows.iter().map(|r| r.variant.as_str())),
        );
        let comparisons = comparisons(&variants);
        let mut table = plain_table();
        let mut header = vec!["layout".to_owned(), "size".to_owned()];
        header.extend(variants.iter().map(|v| (*v).to_owned()));
        header.extend(comparisons.iter().map(|(title, _)| title.clone()));
        table.set_header(header);
        for line in &lines {
            let mut cells = vec![line.layout.to_owned(), sizes::short(line.bytes)];
            cells.extend(variants.iter().map(|v| {
                let row = line.rows.iter().find(|r| r.variant == *v);
                row.map_or(String::new(), |r| {
                    let wrong = if r.verified { "" } else { " WRONG" };
                    format!("{}{wrong}", digits(r.time.median))
                })
            }));
            cells.extend(comparisons.iter().map(|(_, others)| {
                line.ratio(others)
                    .map_or(String::new(), |ratio| format!("{ratio:.2}x"))
            }));
            table.add_row(cells);
        }
        let mut means = vec!["geometric mean".to_owned(), String::new()];
        means.extend(variants.iter().map(|_| String::new()));
        let mut lowest = means.clone();
        lowest[0] = "lowest".to_owned();
        for (_, others) in &comparisons {
            let ratios: Vec<f64> = lines.iter().filter_map(|l| l.ratio(others)).collect();
            let cell = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v:.2}x"));
            means.push(cell(geometric_mean(&ratios)));
            lowest.push(cell(ratios.iter().copied().reduce(f64::min)));
        }
        table.add_row(means);
        table.add_row(lowest);
        right_aligned(&mut table, 1);
        let _ = writeln!(text, "\n{op}: microseconds, median\n{table}");
    }
    let wrong: Vec<String> = found
        .rows
        .iter()
        .filter(|r| !r.row.verified)
        .map(|r| format!("{} of {} by {}", r.row.op, r.layout, r.row.variant))
        .collect();
    if wrong.is_empty() {
        text.push_str("\nEvery byte was verified in a separate pass, gaps included.\n");
    } else {
        let _ = writeln!(text, "\nWRONG BYTES: {}", wrong.join(", "));
    }
    text
}

/// A figure: per operation a panel, per layout a row, the speed-up over each peer as a dot.
fn draw(found: &Found) -> String {
    let variants = first_seen(found.rows.iter().map(|r| r.row.variant.as_str()));
    let others: Vec<&str> = variants.into_iter().filter(|v| *v != LIBCOPY).collect();
    let ops = first_seen(found.rows.iter().map(|r| r.row.op.as_str()));
    let panels = ops.iter().map(|op| {
        let rows = lines(found, op).into_iter().map(|line| ratio_plot::Row {
            label: format!("{} {}", line.layout, sizes::short(line.bytes)),
            ratios: others.iter().map(|o| line.ratio(&[o])).collect(),
        });
        ((*op).to_owned(), rows.collect())
    });
    ratio_plot::draw(&ratio_plot::Figure {
        title: format!("{}: times as fast as", found.title),
        machine: found.machine.line(),
        notes: found.notes.join(" · "),
        series: others.iter().map(|o| (*o).to_owned()).collect(),
        panels: panels.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use libcopy_measure::sample::Spread;

    fn found() -> Found {
        let row = |variant: &str, median: f64, verified| Timed {
            layout: "FFT2D".into(),
            row: Row {
                op: "pack".into(),
                bytes: 1 << 20,
                ranks: 1,
                variant: variant.into(),
                time: Spread::exactly(median),
                verified,
            },
        };
        Found {
            title: "t".into(),
            irregular: false,
            machine: Machine::here(),
            notes: vec!["a & b".into()],
            rows: vec![
                row("libcopy", 10.0, true),
                row("openmpi", 40.0, true),
                row("mpich", 30.0, true),
                row("loop", 11.0, true),
                row("memcpy", 8.0, true),
            ],
        }
    }

    #[test]
    fn the_csv_has_the_common_columns_and_the_layout() {
        let csv = csv(&found());
        assert!(csv.starts_with(
            "op,bytes,ranks,variant,median_us,p10_us,p90_us,verified,layout\n\
             pack,1048576,1,libcopy,10.0000,10.0000,10.0000,yes,FFT2D\n"
        ));
    }

    #[test]
    fn ratios_are_with_the_faster_mpi() {
        let table = table(&found());
        for part in [
            "3.00x",
            "4.00x",
            "1.10x",
            "0.80x",
            "Every byte was verified",
        ] {
            assert!(table.contains(part), "{part}: {table}");
        }
        assert!(draw(&found()).contains("a &amp; b"));
    }

    #[test]
    fn irregular_lists_are_shown_by_block() {
        let mut found = found();
        found.irregular = true;
        for timed in &mut found.rows {
            timed.layout = "1..4 x 1000".to_owned();
        }
        let mut portable = found.rows[0].row.clone();
        portable.variant = "libcopy-portable".to_owned();
        portable.time.median = 22.0;
        found.rows.insert(
            1,
            Timed {
                layout: "1..4 x 1000".to_owned(),
                row: portable,
            },
        );
        let table = table(&found);
        // Beside the loop, which is the fastest of the others.
        for part in ["10.00", "22.00", "11.00", "1.10x", "0.50x"] {
            assert!(table.contains(part), "{part}: {table}");
        }
    }

    #[test]
    fn wrong_bytes_cannot_be_overlooked() {
        let mut found = found();
        found.rows[3].row.verified = false;
        assert!(table(&found).contains("WRONG BYTES: pack of FFT2D by loop"));
        assert!(csv(&found).contains("loop,11.0000,11.0000,11.0000,no,FFT2D"));
    }
}
