// SPDX-License-Identifier: MIT OR Apache-2.0

//! Results as a table for people, CSV and JSON for programs.

use crate::machine::Machine;
use crate::sample::Spread;
use crate::sizes;
use anyhow::{Context, Result, bail};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::IsTerminal as _;
use std::path::Path;

/// First line of every CSV file.
pub const HEADER: &str = "op,bytes,ranks,variant,median_us,p10_us,p90_us,verified";

/// The variant of rows that nobody measured.
pub const SIMULATED: &str = "simulated";

/// One line of the results.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was done: `bcast`, `map-4k`, ...
    pub op: String,
    /// Message size.
    pub bytes: usize,
    /// Processes or threads that took part.
    pub ranks: usize,
    /// Who did it.
    pub variant: String,
    /// How long it took.
    #[serde(flatten)]
    pub time: Spread,
    /// Whether every byte was looked at and found right.
    pub verified: bool,
}

impl Row {
    /// A row of timings in microseconds.
    ///
    /// # Errors
    ///
    /// There are no timings.
    pub fn timed(
        op: &str,
        bytes: usize,
        ranks: usize,
        variant: &str,
        timings: &[f64],
        verified: bool,
    ) -> Result<Row> {
        Ok(Row {
            op: op.to_owned(),
            bytes,
            ranks,
            variant: variant.to_owned(),
            time: Spread::of(timings).with_context(|| format!("{op}: nothing was timed"))?,
            verified,
        })
    }

    /// Its columns of a CSV file, times with `decimals` decimals.
    pub fn csv(&self, decimals: usize) -> String {
        format!(
            "{},{},{},{},{:.decimals$},{:.decimals$},{:.decimals$},{}",
            self.op,
            self.bytes,
            self.ranks,
            self.variant,
            self.time.median,
            self.time.p10,
            self.time.p90,
            match (self.variant.as_str(), self.verified) {
                (SIMULATED, _) => SIMULATED,
                (_, true) => "yes",
                (_, false) => "no",
            }
        )
    }
}

/// A column that compares variants.
#[derive(Clone, Debug)]
pub enum Ratio {
    /// Speed as a share of the speed of a plain `memcpy` of the same bytes.
    OfMemcpy(String),
    /// How many times as fast the first is as the fastest of the others.
    Faster(String, Vec<String>),
}

impl Ratio {
    fn title(&self) -> String {
        match self {
            Self::OfMemcpy(variant) => format!("{}\n% of memcpy", short(variant)),
            Self::Faster(variant, others) => {
                let others: Vec<&str> = others.iter().map(|o| short(o)).collect();
                format!("{} vs\n{}", short(variant), others.join("|"))
            }
        }
    }

    fn cell(&self, median: impl Fn(&str) -> Option<f64>) -> Option<String> {
        match self {
            Self::OfMemcpy(variant) => Some(format!(
                "{:.0}%",
                100.0 * median("memcpy")? / median(variant)?
            )),
            Self::Faster(variant, others) => {
                let best = others.iter().filter_map(|o| median(o)).reduce(f64::min)?;
                Some(format!("{:.2}x", best / median(variant)?))
            }
        }
    }
}

fn short(variant: &str) -> &str {
    variant.strip_prefix("libcopy-").unwrap_or(variant)
}

/// Everything one run found out.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was measured.
    pub title: String,
    /// Where.
    pub machine: Machine,
    /// With what: library versions, parameters, what was left out and why.
    pub notes: Vec<String>,
    /// The results.
    pub rows: Vec<Row>,
    /// Columns that compare.
    #[serde(skip)]
    pub ratios: Vec<Ratio>,
}

/// Three significant digits.
pub fn digits(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

impl Report {
    /// The operations, in the order in which they were measured.
    pub fn ops(&self) -> Vec<&str> {
        first_seen(self.rows.iter().map(|r| r.op.as_str()))
    }

    /// The table.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "{}\n{}", self.title, self.machine.line());
        for note in &self.notes {
            let _ = writeln!(text, "{note}");
        }
        let label = self
            .machine
            .label()
            .map(|l| format!(", {l}"))
            .unwrap_or_default();
        let unit = format!("microseconds, median (p10 to p90){label}");
        let (single, several): (Vec<&str>, Vec<&str>) = self
            .ops()
            .into_iter()
            .partition(|op| self.rows_of(op).len() == 1);
        if !single.is_empty() {
            let mut table = plain_table();
            for op in single {
                table.add_row(vec![op.to_owned(), spread(&self.rows_of(op)[0].time)]);
            }
            right_aligned(&mut table, 1);
            let _ = writeln!(text, "\n{unit}\n{table}");
        }
        for op in several {
            let _ = writeln!(text, "\n{op}: {unit}\n{}", self.table_of(&self.rows_of(op)));
        }
        if let Some(wrong) = self.rows.iter().find(|r| !r.verified) {
            let _ = writeln!(
                text,
                "\nWRONG BYTES: {} of {} with {} (and {} more rows)",
                wrong.op,
                sizes::short(wrong.bytes),
                wrong.variant,
                self.rows.iter().filter(|r| !r.verified).count() - 1
            );
        } else {
            let simulated = self.rows.iter().any(|r| r.variant == SIMULATED);
            let _ = writeln!(
                text,
                "\nEvery byte of every row{} was verified in a separate pass.",
                if simulated {
                    " but those simulated"
                } else {
                    ""
                }
            );
        }
        text
    }

    fn rows_of(&self, op: &str) -> Vec<&Row> {
        self.rows.iter().filter(|r| r.op == op).collect()
    }

    fn table_of(&self, rows: &[&Row]) -> Table {
        let variants = first_seen(rows.iter().map(|r| r.variant.as_str()));
        let ratios: Vec<&Ratio> = self
            .ratios
            .iter()
            .filter(|ratio| {
                rows.iter()
                    .any(|row| ratio.cell(|v| median(rows, row, v)).is_some())
            })
            .collect();
        let ranks_differ = rows.iter().any(|r| r.ranks != rows[0].ranks);

        let mut table = plain_table();
        let mut header = vec!["size".to_owned()];
        if ranks_differ {
            header.push("ranks".to_owned());
        }
        header.extend(variants.iter().map(|v| short(v).to_owned()));
        header.extend(ratios.iter().map(|r| r.title()));
        table.set_header(header);
        let mut lines: Vec<(usize, usize)> = rows.iter().map(|r| (r.bytes, r.ranks)).collect();
        lines.sort_unstable();
        lines.dedup();
        for (bytes, ranks) in lines {
            let Some(first) = rows.iter().find(|r| (r.bytes, r.ranks) == (bytes, ranks)) else {
                continue;
            };
            let mut line = vec![sizes::short(bytes)];
            if ranks_differ {
                line.push(ranks.to_string());
            }
            line.extend(variants.iter().map(|v| {
                rows.iter()
                    .find(|r| (r.bytes, r.ranks) == (bytes, ranks) && r.variant == **v)
                    .map_or("-".to_owned(), |r| spread(&r.time))
            }));
            line.extend(
                ratios
                    .iter()
                    .map(|ratio| ratio.cell(|v| median(rows, first, v)).unwrap_or("-".into())),
            );
            table.add_row(line);
        }
        right_aligned(&mut table, 0);
        table
    }

    /// The results as CSV.
    pub fn csv(&self) -> String {
        let mut text = format!("{HEADER}\n");
        for r in &self.rows {
            let _ = writeln!(text, "{}", r.csv(3));
        }
        text
    }

    /// Whether all bytes that were looked at were right.
    pub(crate) fn all_verified(&self) -> bool {
        self.rows.iter().all(|r| r.verified)
    }
}

/// Writes a file of results.
///
/// # Errors
///
/// It cannot be written.
pub fn write_file(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Whether [`write_file`] could write this file, which stays as it is: to be asked before minutes
/// of measuring. `option` is what named it.
///
/// # Errors
///
/// Its folder is not there, or it cannot be written.
pub fn check_file(option: &str, path: &Path) -> Result<()> {
    let name = path.display();
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    if let Some(folder) = parent.filter(|parent| !parent.is_dir()) {
        let folder = folder.display();
        bail!("{option} {name}: there is no folder {folder}; make it with `mkdir -p {folder}`");
    }
    let is_new = fs::symlink_metadata(path).is_err();
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.with_context(|| format!("{option} {name}: it cannot be written"))?;
    if is_new {
        fs::remove_file(path).with_context(|| format!("{option} {name}"))?;
    }
    Ok(())
}

fn spread(time: &Spread) -> String {
    format!(
        "{} ({}-{})",
        digits(time.median),
        digits(time.p10),
        digits(time.p90)
    )
}

/// A table without any lines. Its cells are wrapped where nobody can make the window wider: in a
/// file or a pipe.
pub fn plain_table() -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if !std::io::stdout().is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(WIDEST);
    }
    table
}

/// Columns of the widest table that goes into a file or a pipe.
const WIDEST: u16 = 200;

/// Aligns all columns but the first `names`.
pub fn right_aligned(table: &mut Table, names: usize) {
    for (i, column) in table.column_iter_mut().enumerate() {
        if i >= names {
            column.set_cell_alignment(CellAlignment::Right);
        }
        column.set_padding((0, 2));
    }
}

/// Median of `variant` in the line of `like`.
fn median(rows: &[&Row], like: &Row, variant: &str) -> Option<f64> {
    rows.iter()
        .find(|r| r.bytes == like.bytes && r.ranks == like.ranks && r.variant == variant)
        .map(|r| r.time.median)
}

/// The values in the order in which they first appear.
pub fn first_seen<'a>(values: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(variant: &str, median: f64) -> Row {
        Row {
            op: "bcast".into(),
            bytes: 65536,
            ranks: 2,
            variant: variant.into(),
            time: Spread {
                median,
                p10: median / 2.0,
                p90: median * 2.0,
            },
            verified: true,
        }
    }

    fn report() -> Report {
        Report {
            title: "t".into(),
            machine: Machine::here(),
            notes: vec![],
            rows: vec![
                row("libcopy", 10.0),
                row("openmpi", 20.0),
                row("mpich", 15.0),
                row("memcpy", 8.0),
            ],
            ratios: vec![
                Ratio::OfMemcpy("libcopy".into()),
                Ratio::Faster("libcopy".into(), vec!["openmpi".into(), "mpich".into()]),
                Ratio::OfMemcpy("libcopy-kmod".into()),
            ],
        }
    }

    #[test]
    fn csv_is_as_documented() {
        let csv = report().csv();
        assert!(csv.starts_with("op,bytes,ranks,variant,median_us,p10_us,p90_us,verified\n"));
        assert!(csv.contains("bcast,65536,2,libcopy,10.000,5.000,20.000,yes\n"));
    }

    #[test]
    fn files_are_looked_at_and_left_as_they_are() {
        let place = std::env::temp_dir().join(format!("libcopy-report-{}", std::process::id()));
        let said = |name: &str| {
            let checked = check_file("--csv", &place.join(name));
            checked
                .map_err(|error| format!("{error:#}"))
                .err()
                .unwrap_or_default()
        };
        assert!(said("a.csv").contains("mkdir -p"), "{}", said("a.csv"));
        assert!(!place.exists());
        fs::create_dir(&place).unwrap();
        assert_eq!(said("a.csv"), "");
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
        fs::write(place.join("a.csv"), "kept").unwrap();
        assert_eq!(said("a.csv"), "");
        assert_eq!(fs::read(place.join("a.csv")).unwrap(), b"kept");
        fs::create_dir(place.join("b.csv")).unwrap();
        assert!(
            said("b.csv").contains("cannot be written"),
            "{}",
            said("b.csv")
        );
        fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn ratios_compare_with_memcpy_and_the_faster_peer() {
        let table = report().table();
        assert!(table.contains("80%"), "{table}");
        assert!(table.contains("1.50x"), "{table}");
        assert!(!table.contains("kmod"), "a column without values: {table}");
    }

    #[test]
    fn wrong_bytes_cannot_be_overlooked() {
        let mut report = report();
        report.rows[2].verified = false;
        assert!(
            report
                .table()
                .contains("WRONG BYTES: bcast of 64K with mpich")
        );
        assert!(report.csv().contains("mpich,15.000,7.500,30.000,no"));
        assert!(!report.all_verified());
    }
}
