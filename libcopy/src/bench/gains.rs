// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a variant `X+libcopy` gains over `X`, from the CSV of several rounds: the table, means and
//! extremes, a figure, and what a paper says of the same rows. `scripts/bench mpi` measures and calls
//! this.

use super::Output;
use super::claims::{CLAIMS, Claim};
use super::dots;
use super::machine::Machine;
use super::plot::{self, Axes};
use super::report::{Report, Row, first_seen, plain_table, right_aligned};
use super::sample::Spread;
use super::sizes;
use super::types::geometric_mean;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What the preloaded variant's name ends with.
const WITH: &str = "+libcopy";
/// What the name of a second plain variant ends with, which shows how far equals differ.
const AGAIN: &str = "/again";
/// A message may lose as much as this and not more.
const FLOOR: f64 = 0.98;

/// `libcopy bench gains`
#[derive(Args, Clone, Debug)]
pub struct GainsArgs {
    /// Results of all rounds: op,bytes,ranks,variant,median_us,p10_us,p90_us,verified, and, where
    /// they differ, layout and block
    #[arg(value_name = "FILE")]
    pub results: PathBuf,

    /// Title of the figure
    #[arg(long, default_value = "MPI as it is, and with libcopy_mpi.so")]
    pub title: String,

    /// A line under the title
    #[arg(long = "note", value_name = "TEXT")]
    pub notes: Vec<String>,

    #[command(flatten)]
    pub output: Output,
}

/// A line of the results.
#[derive(Clone, Debug)]
struct Line {
    row: Row,
    layout: String,
    /// Bytes of a block of the type, if that is what differs.
    block: Option<usize>,
}

impl Line {
    fn key(&self) -> Key {
        Key {
            op: self.row.op.clone(),
            layout: self.layout.clone(),
            bytes: self.row.bytes,
            ranks: self.row.ranks,
        }
    }
}

/// What was measured, whoever did it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    op: String,
    layout: String,
    bytes: usize,
    ranks: usize,
}

/// What was gained with one library.
#[derive(Clone, Debug)]
struct Gain {
    mpi: String,
    plain: f64,
    ours: f64,
    /// The plain library's time divided by that of the same once more.
    same: Option<f64>,
}

impl Gain {
    fn factor(&self) -> f64 {
        self.plain / self.ours
    }
}

/// Runs it.
pub fn run(args: &GainsArgs) -> Result<()> {
    let path = &args.results;
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let all = read(&text).with_context(|| format!("in {}", path.display()))?;
    let lines = typical(all, Machine::here().cores);
    ensure!(!lines.is_empty(), "{} has no results", path.display());
    print!("{}", table(&lines));
    if let Some(csv) = &args.output.csv {
        write_csv(csv, &lines)?;
        eprintln!("CSV:  {}", csv.display());
    }
    if let Some(file) = &args.output.plot {
        let (png, svg) = figure(args, &lines, file)?;
        eprintln!("plot: {} and {}", png.display(), svg.display());
    }
    let wrong = lines.iter().filter(|l| !l.row.verified).count();
    ensure!(wrong == 0, "{wrong} results have wrong bytes");
    Ok(())
}

fn read(text: &str) -> Result<Vec<Line>> {
    let mut columns: HashMap<&str, usize> = HashMap::new();
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.split(',').collect();
        if cells[0] == "op" {
            columns = cells.iter().enumerate().map(|(i, c)| (*c, i)).collect();
            continue;
        }
        let cell = |name: &str| columns.get(name).and_then(|i| cells.get(*i)).copied();
        let number_of = |name: &str| -> Result<f64> {
            let text = cell(name).unwrap_or("");
            text.parse()
                .with_context(|| format!("line {}: {name} {text:?} is no number", number + 1))
        };
        let op = cell("op").unwrap_or("");
        let variant = cell("variant").unwrap_or("");
        if op.is_empty() || variant.is_empty() {
            bail!(
                "line {}: {line:?} has no operation or no variant",
                number + 1
            );
        }
        lines.push(Line {
            row: Row {
                op: op.to_owned(),
                bytes: number_of("bytes")? as usize,
                ranks: number_of("ranks")? as usize,
                variant: variant.to_owned(),
                time: Spread {
                    median: number_of("median_us")?,
                    p10: number_of("p10_us")?,
                    p90: number_of("p90_us")?,
                },
                verified: matches!(cell("verified"), Some("yes" | "true")),
            },
            layout: cell("layout").unwrap_or("").to_owned(),
            block: match cell("block") {
                Some(text) => Some(number_of("block").map(|n| n as usize).with_context(|| {
                    format!("line {}: block {text:?} is no number", number + 1)
                })?),
                None => None,
            },
        });
    }
    Ok(lines)
}

/// Of each variant one round: the one with the lowest median, which other programs have disturbed least,
/// or, where ranks outnumber cores and take turns as the scheduler likes, for better or for worse, the
/// one in the middle. What is wrong in any round is wrong.
fn typical(lines: Vec<Line>, cores: usize) -> Vec<Line> {
    let mut rounds: Vec<Vec<Line>> = Vec::new();
    let mut places: HashMap<(Key, String), usize> = HashMap::new();
    for line in lines {
        let place = *places
            .entry((line.key(), line.row.variant.clone()))
            .or_insert(rounds.len());
        if place == rounds.len() {
            rounds.push(Vec::new());
        }
        rounds[place].push(line);
    }
    let mut kept = Vec::new();
    for mut these in rounds {
        these.sort_by(|a, b| a.row.time.median.total_cmp(&b.row.time.median));
        let verified = these.iter().all(|line| line.row.verified);
        let crowded = these[0].row.ranks > cores;
        let at = if crowded { (these.len() - 1) / 2 } else { 0 };
        let mut line = these.swap_remove(at);
        line.row.verified = verified;
        kept.push(line);
    }
    kept
}

fn gains(lines: &[Line]) -> Vec<(Key, Vec<Gain>)> {
    let times: HashMap<(Key, &str), f64> = lines
        .iter()
        .map(|l| ((l.key(), l.row.variant.as_str()), l.row.time.median))
        .collect();
    let mut all: Vec<(Key, Vec<Gain>)> = Vec::new();
    let mut seen = HashMap::new();
    for line in lines {
        let key = line.key();
        if seen.insert(key.clone(), ()).is_some() {
            continue;
        }
        let of = |variant: &str| times.get(&(key.clone(), variant)).copied();
        let gains = mpis(lines)
            .into_iter()
            .filter_map(|mpi| {
                let plain = of(mpi)?;
                Some(Gain {
                    mpi: mpi.to_owned(),
                    plain,
                    ours: of(&format!("{mpi}{WITH}"))?,
                    same: of(&format!("{mpi}{AGAIN}")).map(|again| plain / again),
                })
            })
            .collect();
        all.push((key, gains));
    }
    all
}

/// The libraries, by their plain variants.
fn mpis(lines: &[Line]) -> Vec<&str> {
    first_seen(lines.iter().map(|l| {
        let name = l.row.variant.as_str();
        name.trim_end_matches(WITH).trim_end_matches(AGAIN)
    }))
}

/// Factors of which the mean and the extremes are printed.
struct Group<'a> {
    name: String,
    factors: Vec<(f64, &'a Key)>,
}

impl Group<'_> {
    fn line(&self) -> String {
        let factors: Vec<f64> = self.factors.iter().map(|(f, _)| *f).collect();
        let mean = geometric_mean(&factors).unwrap_or(f64::NAN);
        let mut line = format!("{}: geometric mean {mean:.2}", self.name);
        let lowest = self.factors.iter().min_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((factor, key)) = lowest {
            let what = [&key.op, &key.layout]
                .into_iter()
                .filter(|w| !w.is_empty())
                .cloned()
                .collect::<Vec<_>>()
                .join(" ");
            let _ = write!(line, ", lowest {factor:.2} ({what} {})", key.bytes);
        }
        let below = self.factors.iter().filter(|(f, _)| *f < FLOOR).count();
        let _ = write!(line, ", {below} below {FLOOR}, of {}", factors.len());
        line
    }
}

fn table(lines: &[Line]) -> String {
    let all = gains(lines);
    let has_layouts = lines.iter().any(|l| !l.layout.is_empty());
    let again = all
        .iter()
        .any(|(_, gains)| gains.iter().any(|g| g.same.is_some()));
    let mpis = mpis(lines);
    let mut header = vec!["op".to_owned()];
    if has_layouts {
        header.push("layout".into());
    }
    let names = header.len();
    header.extend(["bytes".into(), "ranks".into()]);
    for mpi in &mpis {
        header.extend([format!("{mpi} us"), format!("{WITH} us"), "gain".to_owned()]);
        if again {
            header.push("same".into());
        }
    }
    let mut table = plain_table();
    table.set_header(header);
    for (key, gains) in &all {
        let mut cells = vec![key.op.clone()];
        if has_layouts {
            cells.push(key.layout.clone());
        }
        cells.extend([key.bytes.to_string(), key.ranks.to_string()]);
        for mpi in &mpis {
            let Some(gain) = gains.iter().find(|g| g.mpi == *mpi) else {
                cells.extend(vec!["-".to_owned(); if again { 4 } else { 3 }]);
                continue;
            };
            cells.extend([
                format!("{:.2}", gain.plain),
                format!("{:.2}", gain.ours),
                format!("{:.2}", gain.factor()),
            ]);
            if again {
                cells.push(gain.same.map_or("-".into(), |s| format!("{s:.2}")));
            }
        }
        table.add_row(cells);
    }
    right_aligned(&mut table, names);
    let mut text = format!("{table}\n");
    for group in groups(&all) {
        let _ = writeln!(text, "{}", group.line());
    }
    text.push_str(&claims(lines, &all));
    if let Some(line) = lines.iter().find(|l| !l.row.verified) {
        let _ = writeln!(
            text,
            "WRONG BYTES: {} {} of {} with {}",
            line.row.op, line.layout, line.row.bytes, line.row.variant
        );
    }
    text
}

/// Each library with each number of ranks; operations apart if layouts are, and dense bytes apart from
/// layouts.
fn groups(all: &[(Key, Vec<Gain>)]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (key, gains) in all {
        let what = match key.layout.as_str() {
            "" => String::new(),
            "contiguous" => "contiguous, ".to_owned(),
            _ => format!("{}, ", key.op),
        };
        for gain in gains {
            let mut names = vec![(
                format!("{what}{}, {} ranks", gain.mpi, key.ranks),
                gain.factor(),
            )];
            if let Some(same) = gain.same {
                names.push((
                    format!("{what}{} against itself, {} ranks", gain.mpi, key.ranks),
                    same,
                ));
            }
            for (name, factor) in names {
                match groups.iter_mut().find(|g| g.name == name) {
                    Some(group) => group.factors.push((factor, key)),
                    None => groups.push(Group {
                        name,
                        factors: vec![(factor, key)],
                    }),
                }
            }
        }
    }
    groups
}

/// What the paper says of these rows, next to what is found here.
fn claims(lines: &[Line], all: &[(Key, Vec<Gain>)]) -> String {
    let mut found = plain_table();
    let mut header = vec!["figure".to_owned(), "op".into(), "FALCON-X says".into()];
    let mpis = mpis(lines);
    header.extend(mpis.iter().map(|mpi| format!("here, {mpi}: mean, up to")));
    found.set_header(header);
    let mut any = false;
    for claim in &CLAIMS {
        let keys: Vec<Key> = lines
            .iter()
            .filter(|l| is_about(claim, l))
            .map(Line::key)
            .collect();
        let mut cells = vec![
            claim.figure.to_owned(),
            claim.op.to_owned(),
            claim.says.to_owned(),
        ];
        let mut there = false;
        for mpi in &mpis {
            let factors: Vec<f64> = all
                .iter()
                .filter(|(key, _)| keys.contains(key))
                .flat_map(|(_, gains)| gains)
                .filter(|gain| gain.mpi == *mpi)
                .map(Gain::factor)
                .collect();
            let most = factors.iter().copied().reduce(f64::max);
            let (Some(mean), Some(most)) = (geometric_mean(&factors), most) else {
                cells.push("-".into());
                continue;
            };
            there = true;
            cells.push(format!("{mean:.2}, {most:.2}"));
        }
        if there {
            found.add_row(cells);
            any = true;
        }
    }
    if !any {
        return String::new();
    }
    right_aligned(&mut found, 3);
    format!("\n{found}\n")
}

fn is_about(claim: &Claim, line: &Line) -> bool {
    let block = line.block.unwrap_or(0);
    claim.op == line.row.op
        && line.layout.starts_with(claim.layout)
        && (claim.blocks.0..claim.blocks.1).contains(&block)
        && (claim.ranks.0..=claim.ranks.1).contains(&line.row.ranks)
}

fn write_csv(path: &Path, lines: &[Line]) -> Result<()> {
    let layouts = lines.iter().any(|l| !l.layout.is_empty());
    let blocks = lines.iter().any(|l| l.block.is_some());
    let mut text = super::report::HEADER.to_owned();
    for (column, there) in [(",layout", layouts), (",block", blocks)] {
        text.push_str(if there { column } else { "" });
    }
    text.push('\n');
    for line in lines {
        let row = &line.row;
        let _ = write!(
            text,
            "{},{},{},{},{:.3},{:.3},{:.3},{}",
            row.op,
            row.bytes,
            row.ranks,
            row.variant,
            row.time.median,
            row.time.p10,
            row.time.p90,
            if row.verified { "yes" } else { "no" }
        );
        if layouts {
            let _ = write!(text, ",{}", line.layout);
        }
        if blocks {
            let _ = write!(text, ",{}", line.block.unwrap_or(0));
        }
        text.push('\n');
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Lines over the size of a message or a block, where one thing was measured in several sizes; a point
/// for each gain where layouts have nothing in common but their size.
fn figure(args: &GainsArgs, lines: &[Line], path: &Path) -> Result<(PathBuf, PathBuf)> {
    let blocks = lines.iter().all(|l| l.block.is_some());
    let counts: Vec<usize> = lines.iter().map(|l| l.row.ranks).collect();
    let mut report = Report {
        title: args.title.clone(),
        machine: Machine::here(),
        notes: args.notes.clone(),
        rows: lines.iter().map(|l| l.row.clone()).collect(),
        ratios: vec![],
    };
    let layouts = lines.iter().any(|l| !l.layout.is_empty());
    let sizes_differ = lines.iter().any(|l| l.row.bytes != lines[0].row.bytes);
    if !blocks && (layouts || !sizes_differ) {
        return plot::write_drawing(&dots::draw(&dotted(args, lines)), path);
    }
    if counts.iter().any(|n| *n != counts[0]) {
        for row in &mut report.rows {
            row.op = format!("{}, {} ranks", row.op, row.ranks);
        }
    }
    let mut axes = Axes::from(args.output.axis);
    if blocks {
        axes.message = Some(lines[0].row.bytes);
        for (row, line) in report.rows.iter_mut().zip(lines) {
            row.bytes = line.block.unwrap_or(0);
        }
    }
    plot::write(&report, axes, path)
}

/// The gain of each case as a dot.
fn dotted(args: &GainsArgs, lines: &[Line]) -> dots::Figure {
    let all = gains(lines);
    let mpis = mpis(lines);
    let counts: Vec<usize> = all.iter().map(|(key, _)| key.ranks).collect();
    let row = |(key, gains): &(Key, Vec<Gain>)| {
        let mut label = match key.layout.as_str() {
            "" => key.op.clone(),
            layout => layout.to_owned(),
        };
        if counts.iter().any(|n| *n != counts[0]) {
            let _ = write!(label, ", {} ranks", key.ranks);
        }
        let of = |mpi: &&str| gains.iter().find(|g| g.mpi == *mpi).map(Gain::factor);
        dots::Row {
            label: format!("{label} {}", sizes::short(key.bytes)),
            ratios: mpis.iter().map(of).collect(),
        }
    };
    // Panels have the same rows, which layouts have in each operation.
    let ops = first_seen(all.iter().map(|(key, _)| key.op.as_str()));
    let layouts = all.iter().any(|(key, _)| !key.layout.is_empty());
    let panels = if layouts {
        let of = |op: &str| all.iter().filter(|(k, _)| k.op == op).map(row).collect();
        ops.iter().map(|op| ((*op).to_owned(), of(op))).collect()
    } else {
        vec![(String::new(), all.iter().map(row).collect())]
    };
    dots::Figure {
        title: format!("{}: times as fast", args.title),
        machine: Machine::here().line(),
        notes: args.notes.join(" · "),
        series: mpis.iter().map(|mpi| (*mpi).to_owned()).collect(),
        panels,
    }
}

#[cfg(test)]
mod tests {
    use super::super::plot::Axis;
    use super::*;

    const RESULTS: &str = "\
op,bytes,ranks,variant,median_us,p10_us,p90_us,verified,layout
x,100,2,openmpi,10,9,11,true,a
x,100,2,openmpi+libcopy,8,7,9,true,a
x,100,2,openmpi/again,20,7,9,true,a
x,100,2,openmpi,12,9,11,true,a
x,100,2,openmpi+libcopy,5,4,6,true,a
x,200,2,openmpi,10,9,11,true,b
x,200,2,openmpi+libcopy,20,9,11,true,b
";

    #[test]
    fn the_best_rounds_are_compared() {
        let lines = typical(read(RESULTS).unwrap(), 2);
        let all = gains(&lines);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].1[0].factor(), 2.0);
        assert_eq!(all[0].1[0].same, Some(0.5));
        assert_eq!(all[1].1[0].factor(), 0.5);
        let table = table(&lines);
        assert!(
            table.contains("x, openmpi, 2 ranks: geometric mean 1.00, lowest 0.50 (x b 200), 1 below 0.98, of 2"),
            "{table}"
        );
        assert!(table.contains("openmpi against itself"), "{table}");
    }

    #[test]
    fn crowds_are_judged_by_the_round_in_the_middle() {
        let text = "\
op,bytes,ranks,variant,median_us,p10_us,p90_us,verified
x,100,4,mpich,30,9,11,yes
x,100,4,mpich,10,9,11,yes
x,100,4,mpich,20,9,11,yes
";
        let medians = |cores| typical(read(text).unwrap(), cores)[0].row.time.median;
        assert_eq!((medians(2), medians(4)), (20.0, 10.0));
    }

    #[test]
    fn wrong_bytes_of_any_round_count() {
        let text = RESULTS.replacen("8,7,9,true,a", "8,7,9,false,a", 1);
        let lines = typical(read(&text).unwrap(), 2);
        assert!(table(&lines).contains("WRONG BYTES: x a of 100 with openmpi+libcopy"));
    }

    #[test]
    fn what_is_no_number_is_named() {
        let text = RESULTS.replacen("x,100", "x,many", 1);
        let error = format!("{:#}", read(&text).unwrap_err());
        assert!(
            error.contains("line 2") && error.contains("many"),
            "{error}"
        );
    }

    #[test]
    fn claims_stand_beside_the_rows_they_are_about() {
        let text = "\
op,bytes,ranks,variant,median_us,p10_us,p90_us,verified,layout,block
latency,2097152,2,mpich,30,9,11,yes,vector_128B,128
latency,2097152,2,mpich+libcopy,10,7,9,yes,vector_128B,128
latency,2097152,2,mpich,30,9,11,yes,vector_65536B,65536
latency,2097152,2,mpich+libcopy,15,7,9,yes,vector_65536B,65536
";
        let table = table(&typical(read(text).unwrap(), 2));
        let line = |what: &str| table.lines().find(|l| l.contains(what)).unwrap().to_owned();
        assert!(line("below 16 KiB").contains("3.00, 3.00"), "{table}");
        assert!(line("from 16 KiB on").contains("2.00, 2.00"), "{table}");
        assert!(!table.contains("8 (c)"), "{table}");
    }

    #[test]
    fn figures_of_layouts_show_gains() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("results.csv");
        fs::write(&file, RESULTS).unwrap();
        let args = GainsArgs {
            results: file,
            title: "layouts".into(),
            notes: vec![],
            output: Output {
                csv: None,
                plot: None,
                axis: Axis::Latency,
                json: false,
            },
        };
        let lines = typical(read(RESULTS).unwrap(), 2);
        let path = directory.path().join("figure.png");
        let (png, svg) = figure(&args, &lines, &path).unwrap();
        assert!(png.exists());
        let drawing = fs::read_to_string(svg).unwrap();
        for word in ["layouts", "openmpi", "times as fast"] {
            assert!(drawing.contains(word), "{word}");
        }
    }
}
