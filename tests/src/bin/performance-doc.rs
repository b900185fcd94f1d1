// SPDX-License-Identifier: MIT OR Apache-2.0

//! Writes the tables and figures of `docs/performance` from the CSV files that stand there, so that
//! a page and its data cannot disagree.
//!
//! `performance-doc` rewrites pages and figures in place; a test fails when one of them is out of
//! date. A page says what it wants in a comment, and what stands between that and `<!-- end -->` is
//! generated:
//!
//! - `<!-- table: FILE.csv -->`: the CSV file as it is;
//! - `<!-- gains: FILE.csv -->`: gains with their intervals, of a CSV file of `scripts/bench mpi`;
//! - `<!-- summary: FILE.csv -->`: geometric means, lowest gains and intervals below 0.98 of such a
//!   file;
//! - `<!-- chart: FILE.csv TITLE -->`: a figure, `FILE.svg`: of such a file, or of a table whose
//!   cells are ratios, `1.3` or `1.3 (1.1-1.5)`, and whose first column and header name them.

use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/performance");
const END: &str = "<!-- end -->";
/// An interval that lies below this is a loss.
const LOSS: f64 = 0.98;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    for (path, content) in render(Path::new(DIRECTORY))? {
        let is_current = fs::read_to_string(&path).is_ok_and(|old| old == content);
        if !is_current {
            fs::write(&path, content)?;
            println!("{}", path.display());
        }
    }
    Ok(())
}

/// Every page and figure with its content as it should be.
fn render(directory: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages.sort();
    let mut files = Vec::new();
    for path in pages {
        let text = fs::read_to_string(&path)?;
        let (page, figures) =
            page(&text, directory).map_err(|e| format!("{}: {e}", path.display()))?;
        files.push((path, page));
        files.extend(figures);
    }
    Ok(files)
}

/// A page with its blocks generated anew, and its figures.
fn page(text: &str, directory: &Path) -> Result<(String, Vec<(PathBuf, String)>)> {
    let mut out = String::new();
    let mut figures = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        writeln!(out, "{line}")?;
        let Some((kind, rest)) = directive(line) else {
            continue;
        };
        let (file, title) = rest.split_once(' ').unwrap_or((rest, ""));
        let csv = Csv::read(&directory.join(file))?;
        let block = match kind {
            "table" => csv.markdown(),
            "gains" => gains(&csv)?.markdown(),
            "summary" => summary(&csv)?.markdown(),
            "chart" => {
                let name = file.replace(".csv", ".svg");
                figures.push((directory.join(&name), chart(&csv, title)?));
                format!("![{title}]({name})\n")
            }
            _ => return Err(format!("unknown directive: {line}").into()),
        };
        write!(out, "\n{block}\n{END}\n")?;
        if !lines.any(|line| line == END) {
            return Err(format!("no {END} after {line}").into());
        }
    }
    Ok((out, figures))
}

/// Kind and arguments of a line that asks for something generated.
fn directive(line: &str) -> Option<(&str, &str)> {
    let inside = line.strip_prefix("<!-- ")?.strip_suffix(" -->")?;
    let (kind, rest) = inside.split_once(": ")?;
    ["table", "gains", "summary", "chart"]
        .contains(&kind)
        .then_some((kind, rest))
}

struct Csv {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Csv {
    fn read(path: &Path) -> Result<Csv> {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut rows: Vec<Vec<String>> = text.lines().map(fields).collect();
        if rows.is_empty() {
            return Err(format!("{} is empty", path.display()).into());
        }
        let header = rows.remove(0);
        if let Some(row) = rows.iter().find(|row| row.len() != header.len()) {
            return Err(format!(
                "{}: {row:?} has not as many cells as the header",
                path.display()
            )
            .into());
        }
        Ok(Csv { header, rows })
    }

    fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | ").replace("|  |", "| |"));
        let mut out = line(&self.header);
        let _ = writeln!(out, "|{}", "---|".repeat(self.header.len()));
        out.extend(self.rows.iter().map(|row| line(row)));
        out
    }

    fn column(&self, name: &str) -> Option<usize> {
        self.header.iter().position(|column| column == name)
    }
}

/// The fields of a line; those in double quotes may have commas.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    for c in line.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => fields.push(String::new()),
            c => fields.last_mut().expect("there is one").push(c),
        }
    }
    fields
}

/// A ratio with its interval.
#[derive(Clone, Copy)]
struct Ratio {
    value: f64,
    low: f64,
    high: f64,
}

impl Ratio {
    /// Reads `1.3` and `1.3 (1.1-1.5)`; none for anything else.
    fn parse(cell: &str) -> Option<Ratio> {
        let (value, interval) = cell.split_once(' ').unwrap_or((cell, ""));
        let value = value.parse().ok()?;
        let Some(interval) = interval
            .strip_prefix('(')
            .and_then(|rest| rest.strip_suffix(')'))
        else {
            return interval.is_empty().then_some(Ratio {
                value,
                low: value,
                high: value,
            });
        };
        let (low, high) = interval.split_once('-')?;
        Some(Ratio {
            value,
            low: low.parse().ok()?,
            high: high.parse().ok()?,
        })
    }
}

/// A gain in a CSV file of `scripts/bench mpi`.
struct Gain {
    operation: String,
    layout: String,
    bytes: u64,
    library: String,
    ratio: Ratio,
    control: f64,
}

impl Gain {
    fn what(&self) -> String {
        let size = size(self.bytes);
        if self.layout.is_empty() {
            size
        } else {
            format!("{}, {size}", self.layout)
        }
    }
}

/// The rows with a gain, in their order; none if the file is no such file.
fn gains_of(csv: &Csv) -> Result<Option<Vec<Gain>>> {
    let (Some(op), Some(bytes), Some(variant), Some(gain)) = (
        csv.column("op"),
        csv.column("bytes"),
        csv.column("variant"),
        csv.column("gain"),
    ) else {
        return Ok(None);
    };
    let column = |name: &str| csv.column(name).ok_or(format!("no column {name}"));
    let (low, high, control) = (
        column("gain_low")?,
        column("gain_high")?,
        column("control")?,
    );
    let layout = csv.column("layout");
    let mut gains = Vec::new();
    for row in csv.rows.iter().filter(|row| !row[gain].is_empty()) {
        let library = row[variant].trim_end_matches("+libcopy");
        gains.push(Gain {
            operation: row[op].clone(),
            layout: layout.map_or(String::new(), |layout| row[layout].clone()),
            bytes: row[bytes].parse()?,
            library: match library {
                "openmpi" => "Open MPI".to_owned(),
                "mpich" => "MPICH".to_owned(),
                other => other.to_owned(),
            },
            ratio: Ratio {
                value: row[gain].parse()?,
                low: row[low].parse()?,
                high: row[high].parse()?,
            },
            control: row[control].parse()?,
        });
    }
    Ok(Some(gains))
}

fn size(bytes: u64) -> String {
    let (kib, mib) = (1 << 10, 1 << 20);
    if bytes >= mib && bytes % mib == 0 {
        format!("{} MiB", bytes / mib)
    } else if bytes >= kib && bytes % kib == 0 {
        format!("{} KiB", bytes / kib)
    } else {
        format!("{bytes} B")
    }
}

fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// A table with one row per case and one column per library.
fn gains(csv: &Csv) -> Result<Csv> {
    let gains = gains_of(csv)?.ok_or("no file of `scripts/bench mpi`")?;
    let libraries = distinct(gains.iter().map(|gain| gain.library.clone()));
    let name = |gain: &Gain| format!("{}, {}", gain.operation, gain.what());
    let mut rows = Vec::new();
    for case in distinct(gains.iter().map(name)) {
        let mut row = vec![case.clone()];
        for library in &libraries {
            let gain = gains
                .iter()
                .find(|gain| name(gain) == case && gain.library == *library);
            row.push(gain.map_or(String::new(), |Gain { ratio, .. }| {
                format!("{:.2} ({:.2}-{:.2})", ratio.value, ratio.low, ratio.high)
            }));
        }
        rows.push(row);
    }
    let mut header = vec!["gain (95 %)".to_owned()];
    header.extend(libraries);
    Ok(Csv { header, rows })
}

fn geometric_mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| {
        (sum + value.ln(), count + 1)
    });
    (sum / f64::from(count)).exp()
}

/// A table with one row per operation and library; dense data are a row of their own.
fn summary(csv: &Csv) -> Result<Csv> {
    let gains = gains_of(csv)?.ok_or("no file of `scripts/bench mpi`")?;
    let key = |gain: &Gain| {
        let is_dense = gain.layout == "contiguous";
        let dense = if is_dense { ", dense" } else { "" };
        format!("{}{dense}, {}", gain.operation, gain.library)
    };
    let mut rows = Vec::new();
    for name in distinct(gains.iter().map(key)) {
        let own: Vec<&Gain> = gains.iter().filter(|gain| key(gain) == name).collect();
        let lowest = own
            .iter()
            .min_by(|a, b| a.ratio.value.total_cmp(&b.ratio.value))
            .ok_or("no gain")?;
        let losses = own.iter().filter(|gain| gain.ratio.high < LOSS).count();
        rows.push(vec![
            name,
            format!(
                "{:.2}",
                geometric_mean(own.iter().map(|gain| gain.ratio.value))
            ),
            format!("{:.2} ({})", lowest.ratio.value, lowest.what()),
            format!("{losses} of {}", own.len()),
            format!("{:.3}", geometric_mean(own.iter().map(|gain| gain.control))),
        ]);
    }
    let header = [
        "",
        "geometric mean",
        "lowest",
        "intervals below 0.98",
        "control",
    ];
    Ok(Csv {
        header: header.map(str::to_owned).to_vec(),
        rows,
    })
}

/// A line of a figure: a name and a ratio for each series.
struct Line {
    /// Lines with the same group stand together.
    group: String,
    name: String,
    ratios: Vec<Option<Ratio>>,
}

/// The lines of a figure and the names of its series.
fn lines(csv: &Csv) -> Result<(Vec<Line>, Vec<String>)> {
    if let Some(gains) = gains_of(csv)? {
        let series = distinct(gains.iter().map(|gain| gain.library.clone()));
        let mut lines: Vec<Line> = Vec::new();
        for gain in &gains {
            let (group, name) = (gain.operation.clone(), gain.what());
            let at = lines
                .iter()
                .position(|line| line.group == group && line.name == name)
                .unwrap_or_else(|| {
                    lines.push(Line {
                        group,
                        name,
                        ratios: vec![None; series.len()],
                    });
                    lines.len() - 1
                });
            let library = series.iter().position(|name| *name == gain.library);
            lines[at].ratios[library.expect("all are series")] = Some(gain.ratio);
        }
        return Ok((lines, series));
    }
    // A column is one if all its cells are ratios or empty.
    let is_ratio = |column: &usize| {
        let cells = || {
            csv.rows
                .iter()
                .map(|row| &row[*column])
                .filter(|cell| !cell.is_empty())
        };
        cells().count() > 0 && cells().all(|cell| Ratio::parse(cell).is_some())
    };
    // How many runs there were is no ratio.
    let is_drawn = |column: &usize| csv.header[*column] != "pairs" && is_ratio(column);
    let columns: Vec<usize> = (1..csv.header.len()).filter(is_drawn).collect();
    let is_by_size = columns
        .iter()
        .all(|column| csv.header[*column].ends_with("iB"));
    let cell = |row: &[String], column: usize| Ratio::parse(&row[column]);
    let mut lines = Vec::new();
    for row in &csv.rows {
        if is_by_size {
            lines.extend(columns.iter().map(|column| Line {
                group: row[0].clone(),
                name: csv.header[*column].clone(),
                ratios: vec![cell(row, *column)],
            }));
        } else {
            let is_name = |column: &usize| ["MPI", "ranks"].contains(&csv.header[*column].as_str());
            let names = (0..csv.header.len()).filter(|column| *column == 0 || is_name(column));
            lines.push(Line {
                group: String::new(),
                name: names
                    .map(|column| row[column].clone())
                    .collect::<Vec<_>>()
                    .join(", "),
                ratios: columns
                    .iter()
                    .filter(|column| !is_name(column))
                    .map(|column| cell(row, *column))
                    .collect(),
            });
        }
    }
    let series = if is_by_size {
        vec![String::new()]
    } else {
        let names = columns.iter().map(|column| csv.header[*column].clone());
        names.filter(|name| name != "ranks").collect()
    };
    Ok((lines, series))
}

/// Colours that colour-blind readers tell apart, on a light and on a dark page: the figure brings
/// its background.
const STYLE: &str = "<style>
text { font-family: 'DejaVu Sans', Helvetica, Arial, sans-serif; font-size: 12px; fill: #1f2328 }
.title { font-size: 14px; font-weight: bold }
.soft { fill: #59636e }
.page { fill: #ffffff }
.grid { stroke: #d1d9e0 }
.one { stroke: #59636e; stroke-width: 1.5 }
.s0 { fill: #0072b2; stroke: #0072b2 }
.s1 { fill: #d55e00; stroke: #d55e00 }
.s2 { fill: #009e73; stroke: #009e73 }
.mark { stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.soft { fill: #9198a1 }
.page { fill: #0d1117 }
.grid { stroke: #3d444d }
.one { stroke: #9198a1 }
.s0 { fill: #56b4e9; stroke: #56b4e9 }
.s1 { fill: #e69f00; stroke: #e69f00 }
.s2 { fill: #2bc89b; stroke: #2bc89b }
}
</style>
";

/// A figure of ratios: a dot with its interval for each, on a logarithmic axis.
fn chart(csv: &Csv, title: &str) -> Result<String> {
    const WIDTH: f64 = 840.0;
    const ROW: f64 = 20.0;
    const TOP: f64 = 62.0;
    let (lines, series) = lines(csv)?;
    if series.len() > 3 {
        return Err("more than three series".into());
    }
    let all = || lines.iter().flat_map(|line| line.ratios.iter().flatten());
    let lowest = all().map(|ratio| ratio.low).fold(1.0, f64::min);
    let highest = all().map(|ratio| ratio.high).fold(1.0, f64::max);
    let ticks: Vec<f64> = [
        0.25, 0.5, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0,
    ]
    .to_vec();
    let first = ticks
        .iter()
        .rev()
        .find(|tick| **tick <= lowest)
        .copied()
        .unwrap_or(lowest);
    let last = ticks
        .iter()
        .find(|tick| **tick >= highest)
        .copied()
        .unwrap_or(highest);
    let longest = lines.iter().map(|line| line.name.len()).max().unwrap_or(0);
    let has_groups = lines.iter().any(|line| !line.group.is_empty());
    let group_width = if has_groups { 120.0 } else { 16.0 };
    let left = group_width + 7.2 * longest as f64 + 16.0;
    let right = WIDTH - 24.0;
    let x = |value: f64| left + (right - left) * (value / first).ln() / (last / first).ln();
    let bottom = TOP + ROW * lines.len() as f64;
    let height = bottom + 44.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\" aria-label=\"{title}\">\n{STYLE}\
         <rect class=\"page\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n\
         <text class=\"title\" x=\"16\" y=\"24\">{title}</text>\n"
    );
    let mut legend = 16.0;
    for (number, name) in series
        .iter()
        .enumerate()
        .filter(|(_, name)| !name.is_empty())
    {
        writeln!(
            out,
            "<circle class=\"s{number}\" cx=\"{}\" cy=\"42\" r=\"4\"/><text x=\"{}\" y=\"46\">{name}</text>",
            legend + 4.0,
            legend + 14.0
        )?;
        legend += 34.0 + 7.5 * name.len() as f64;
    }
    for tick in ticks.iter().filter(|tick| (first..=last).contains(*tick)) {
        let class = if *tick == 1.0 { "one" } else { "grid" };
        writeln!(
            out,
            "<line class=\"{class}\" x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text class=\"soft\" x=\"{0:.1}\" y=\"{1}\" text-anchor=\"middle\">{tick}</text>",
            x(*tick),
            bottom + 16.0
        )?;
    }
    writeln!(
        out,
        "<text class=\"soft\" x=\"{right}\" y=\"{}\" text-anchor=\"end\">right of 1: less time with libcopy</text>",
        bottom + 34.0
    )?;
    let mut group = "";
    for (number, line) in lines.iter().enumerate() {
        let y = TOP + ROW * (number as f64 + 0.5);
        if line.group != group {
            group = &line.group;
            if number > 0 {
                let y = TOP + ROW * number as f64;
                writeln!(
                    out,
                    "<line class=\"grid\" x1=\"16\" x2=\"{right}\" y1=\"{y}\" y2=\"{y}\"/>"
                )?;
            }
            writeln!(out, "<text x=\"16\" y=\"{}\">{group}</text>", y + 4.0)?;
        }
        writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
            left - 10.0,
            y + 4.0,
            line.name
        )?;
        for (series, ratio) in line.ratios.iter().enumerate() {
            let Some(ratio) = ratio else { continue };
            let y = y + 7.0 * (series as f64 - (line.ratios.len() - 1) as f64 / 2.0);
            writeln!(
                out,
                "<line class=\"mark s{series}\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y}\" y2=\"{y}\"/>\
                 <circle class=\"s{series}\" cx=\"{:.1}\" cy=\"{y}\" r=\"3.5\"/>",
                x(ratio.low),
                x(ratio.high),
                x(ratio.value)
            )?;
        }
    }
    out.push_str("</svg>\n");
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_figures_are_up_to_date() {
        let files = render(Path::new(DIRECTORY)).expect("the pages can be made");
        for (path, content) in &files {
            assert!(
                fs::read_to_string(path).is_ok_and(|old| old == *content),
                "{} is out of date: cargo run -p libcopy-tests --bin performance-doc",
                path.display()
            );
        }
        let is_in_a_page = |text: &str| files.iter().any(|(_, content)| content.contains(text));
        let is_linked = |name: &str| is_in_a_page(&format!("]({name})"));
        // No figure, and no data, that no page shows.
        for entry in fs::read_dir(DIRECTORY).expect("a directory").flatten() {
            let path = entry.path();
            let name = entry.file_name().into_string().expect("UTF-8");
            let is_shown = match path.extension().and_then(|extension| extension.to_str()) {
                Some("svg") => is_linked(&name) || files.iter().any(|(other, _)| *other == path),
                Some("csv") => is_linked(&name) || is_in_a_page(&format!(": {name}")),
                _ => true,
            };
            assert!(is_shown, "{name} is on no page");
        }
    }

    #[test]
    fn a_changed_cell_changes_page_and_figure() {
        let directory =
            std::env::temp_dir().join(format!("performance-doc-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let text = "# A\n<!-- table: a.csv -->\n<!-- end -->\n<!-- chart: a.csv T -->\nold\n<!-- end -->\nmore\n";
        let render = |cell: &str| {
            let csv = format!("op,1 KiB,2 KiB\nbcast,{cell},\"2 (1.5-3)\"\n");
            fs::write(directory.join("a.csv"), csv).expect("written");
            page(text, &directory).expect("a page")
        };
        let (page, figures) = render("1.25");
        let (other, changed) = render("1.5");
        fs::remove_dir_all(&directory).expect("removed");
        assert_eq!(
            page,
            "# A\n<!-- table: a.csv -->\n\n| op | 1 KiB | 2 KiB |\n|---|---|---|\n| bcast | 1.25 | 2 (1.5-3) |\n\n\
             <!-- end -->\n<!-- chart: a.csv T -->\n\n![T](a.svg)\n\n<!-- end -->\nmore\n"
        );
        assert_ne!(page, other);
        assert_ne!(figures[0].1, changed[0].1);
    }

    #[test]
    fn numbers_of_runs_are_not_drawn() {
        let text = "application,MPI,pairs,CPU time,in MPI\nfft,mpich,9,1.2 (1.1-1.3),40 %\n";
        let mut rows: Vec<Vec<String>> = text.lines().map(fields).collect();
        let csv = Csv {
            header: rows.remove(0),
            rows,
        };
        let (lines, series) = lines(&csv).expect("a figure");
        assert_eq!(series, ["CPU time"]);
        assert_eq!(
            (lines[0].name.as_str(), lines[0].ratios.len()),
            ("fft, mpich", 1)
        );
    }

    #[test]
    fn gains_are_read_and_summed_up() {
        let text = "op,bytes,variant,layout,gain,gain_low,gain_high,control\n\
                    pp,1024,mpich,x,,,,\npp,1024,mpich+libcopy,x,2,1.9,2.1,1\n\
                    pp,4096,mpich+libcopy,y,0.5,0.4,0.6,1\npp,1048576,mpich+libcopy,contiguous,3,3,3,1\n";
        let mut rows: Vec<Vec<String>> = text.lines().map(fields).collect();
        let csv = Csv {
            header: rows.remove(0),
            rows,
        };
        let rows = summary(&csv).expect("a summary").rows;
        assert_eq!(
            rows[0],
            ["pp, MPICH", "1.00", "0.50 (y, 4 KiB)", "1 of 2", "1.000"]
        );
        assert_eq!(rows[1][0], "pp, dense, MPICH");
        assert_eq!(
            gains(&csv).expect("a table").rows[2],
            ["pp, contiguous, 1 MiB", "3.00 (3.00-3.00)"]
        );
        assert!(Ratio::parse("1.2 or so").is_none() && Ratio::parse("1 (2)").is_none());
    }
}
