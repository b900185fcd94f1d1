// SPDX-License-Identifier: MIT OR Apache-2.0

//! How many times as fast MPI calls are when libcopy_mpi.so intercepts them, from paired blocks of
//! one or more launches ([`crate::pairs`]): the table, means and extremes, a figure, and what a
//! paper says of the same rows. `scripts/bench mpi` measures and calls this.

use crate::pairs::{CONTROL, Pairs, Round};
use crate::paper_claims::{CLAIMS, Claim};
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use libcopy_measure::interval::Interval;
use libcopy_measure::machine::Machine;
use libcopy_measure::output::Output;
use libcopy_measure::plot::{self, Axes, Bytes};
use libcopy_measure::ratio_plot;
use libcopy_measure::report::{
    HEADER, Report, Row, first_seen, plain_table, right_aligned, write_file,
};
use libcopy_measure::sample::{Spread, geometric_mean};
use libcopy_measure::sizes;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What the intercepted variant's name ends with.
const WITH: &str = "+libcopy";
/// A call may lose as much as this and not more.
const FLOOR: f64 = 0.98;

/// `libcopy-lab speedup`
#[derive(Args, Clone, Debug)]
pub struct SpeedupArgs {
    /// Results of all launches: op,bytes,ranks,variant,rounds,verified, and, where they differ,
    /// layout and block
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

/// What was measured, whichever library did it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    op: String,
    layout: String,
    bytes: usize,
    ranks: usize,
    /// Bytes of a block of the type, if that is what differs.
    block: Option<usize>,
}

/// What was measured with one library.
#[derive(Clone, Debug)]
struct Case {
    key: Key,
    mpi: String,
    pairs: Pairs,
    verified: bool,
    times: [Spread; 2],
    gain: Interval,
    control: Interval,
}

/// Runs it.
pub fn run(args: &SpeedupArgs) -> Result<()> {
    let path = &args.results;
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let cases = read(&text).with_context(|| format!("in {}", path.display()))?;
    ensure!(!cases.is_empty(), "{} has no results", path.display());
    print!("{}", table(&cases));
    if let Some(csv) = &args.output.csv {
        write_csv(csv, &cases)?;
        eprintln!("CSV:  {}", csv.display());
    }
    if let Some(file) = &args.output.plot {
        let (png, svg) = figure(args, &cases, file)?;
        eprintln!("plot: {} and {}", png.display(), svg.display());
    }
    let wrong = cases.iter().filter(|case| !case.verified).count();
    ensure!(wrong == 0, "{wrong} results have wrong bytes");
    Ok(())
}

/// The cases in the order in which they first come; launches of the same case are put together, and
/// what is wrong in one of them is wrong.
fn read(text: &str) -> Result<Vec<Case>> {
    let mut columns: HashMap<&str, usize> = HashMap::new();
    let mut cases: Vec<(Key, String, Pairs, bool)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.split(',').collect();
        if cells[0] == "op" {
            columns = cells.iter().enumerate().map(|(i, c)| (*c, i)).collect();
            continue;
        }
        let at = format!("line {}", number + 1);
        let cell = |name: &str| columns.get(name).and_then(|i| cells.get(*i)).copied();
        let number_of = |name: &str| -> Result<usize> {
            let text = cell(name).unwrap_or("");
            text.parse()
                .with_context(|| format!("{at}: {name} {text:?} is no number"))
        };
        let op = cell("op").unwrap_or("").to_owned();
        let mpi = cell("variant").unwrap_or("").to_owned();
        if op.is_empty() || mpi.is_empty() {
            bail!("{at}: {line:?} has no operation or no variant");
        }
        let rounds = cell("rounds").unwrap_or("").split(';').map(Round::parse);
        let rounds = rounds
            .collect::<Result<Vec<_>>>()
            .with_context(|| at.clone())?;
        let key = Key {
            op,
            layout: cell("layout").unwrap_or("").to_owned(),
            bytes: number_of("bytes")?,
            ranks: number_of("ranks")?,
            block: cell("block").map(|_| number_of("block")).transpose()?,
        };
        let verified = cell("verified") == Some("yes");
        let place = cases
            .iter()
            .position(|(other, name, ..)| *other == key && *name == mpi);
        let place = place.unwrap_or_else(|| {
            cases.push((key, mpi, Pairs::default(), true));
            cases.len() - 1
        });
        cases[place].2.add(rounds);
        cases[place].3 &= verified;
    }
    let complete = |(key, mpi, pairs, verified): (Key, String, Pairs, bool)| {
        Some(Case {
            times: pairs.times()?,
            gain: pairs.gain()?,
            control: pairs.control()?,
            key,
            mpi,
            pairs,
            verified,
        })
    };
    Ok(cases.into_iter().filter_map(complete).collect())
}

/// The libraries.
fn mpis(cases: &[Case]) -> Vec<&str> {
    first_seen(cases.iter().map(|case| case.mpi.as_str()))
}

/// The keys, each once.
fn keys(cases: &[Case]) -> Vec<&Key> {
    let mut keys: Vec<&Key> = Vec::new();
    for case in cases {
        if !keys.contains(&&case.key) {
            keys.push(&case.key);
        }
    }
    keys
}

/// Cases of which the mean and the extremes are printed.
struct Group<'a> {
    name: String,
    cases: Vec<&'a Case>,
}

impl Group<'_> {
    fn lines(&self) -> String {
        let gains: Vec<f64> = self.cases.iter().map(|case| case.gain.median).collect();
        let mean = geometric_mean(&gains).unwrap_or(f64::NAN);
        let mut line = format!("{}: geometric mean {mean:.2}", self.name);
        let by_gain = |a: &&&Case, b: &&&Case| a.gain.median.total_cmp(&b.gain.median);
        if let Some(lowest) = self.cases.iter().min_by(by_gain) {
            let _ = write!(
                line,
                ", lowest {:.2} ({})",
                lowest.gain.median,
                name(lowest)
            );
        }
        let below = self.cases.iter().filter(|case| case.gain.high < FLOOR);
        let _ = write!(
            line,
            ", {} of {} with their interval below {FLOOR}",
            below.count(),
            gains.len()
        );
        let controls: Vec<f64> = self.cases.iter().map(|case| case.control.median).collect();
        let control = geometric_mean(&controls).unwrap_or(f64::NAN);
        let far = controls.iter().filter(|c| (**c - 1.0).abs() > CONTROL);
        let _ = write!(
            line,
            "\n    control, plain against plain: geometric mean {control:.3}, {} of {} farther than {:.0} % from 1{}",
            far.count(),
            controls.len(),
            CONTROL * 100.0,
            if (control - 1.0).abs() > CONTROL {
                ": THE CONTROL IS OFF, this machine was not quiet enough"
            } else {
                ""
            }
        );
        line
    }
}

fn name(case: &Case) -> String {
    let words = [&case.key.op, &case.key.layout];
    let words = words.into_iter().filter(|word| !word.is_empty());
    let words: Vec<&str> = words.map(String::as_str).collect();
    format!("{} {}", words.join(" "), case.key.bytes)
}

fn table(cases: &[Case]) -> String {
    let has_layouts = cases.iter().any(|case| !case.key.layout.is_empty());
    let mpis = mpis(cases);
    let mut header = vec!["op".to_owned()];
    if has_layouts {
        header.push("layout".into());
    }
    let names = header.len();
    header.extend(["bytes".into(), "ranks".into()]);
    for mpi in &mpis {
        header.extend([
            format!("{mpi} us"),
            format!("{WITH} us"),
            "gain".to_owned(),
            "95 %".to_owned(),
            "control".to_owned(),
        ]);
    }
    let mut table = plain_table();
    table.set_header(header);
    for key in keys(cases) {
        let mut cells = vec![key.op.clone()];
        if has_layouts {
            cells.push(key.layout.clone());
        }
        cells.extend([key.bytes.to_string(), key.ranks.to_string()]);
        for mpi in &mpis {
            let Some(case) = cases.iter().find(|c| c.key == *key && c.mpi == *mpi) else {
                cells.extend(vec!["-".to_owned(); 5]);
                continue;
            };
            cells.extend([
                format!("{:.2}", case.times[0].median),
                format!("{:.2}", case.times[1].median),
                format!("{:.2}", case.gain.median),
                format!("{:.2}-{:.2}", case.gain.low, case.gain.high),
                format!("{:.2}", case.control.median),
            ]);
        }
        table.add_row(cells);
    }
    right_aligned(&mut table, names);
    let mut text = format!("{table}\n");
    for group in groups(cases) {
        let _ = writeln!(text, "{}", group.lines());
    }
    text.push_str(&modes(cases));
    text.push_str(&claims(cases));
    if let Some(case) = cases.iter().find(|case| !case.verified) {
        let _ = writeln!(text, "WRONG BYTES: {} with {}", name(case), case.mpi);
    }
    text
}

/// Where launches of the plain library differ so much that comparing launches would say nothing.
fn modes(cases: &[Case]) -> String {
    let found: Vec<(&Case, Vec<f64>)> = cases
        .iter()
        .filter_map(|case| Some((case, case.pairs.modes()?)))
        .collect();
    let widest = |(_, medians): &&(&Case, Vec<f64>)| medians[medians.len() - 1] / medians[0];
    let Some((case, medians)) = found.iter().max_by(|a, b| widest(a).total_cmp(&widest(b))) else {
        return String::new();
    };
    let medians: Vec<String> = medians.iter().map(|us| format!("{us:.1}")).collect();
    format!(
        "launches in different modes: {} of {} cases; the widest: {} with plain {}: {} us by launch\n",
        found.len(),
        cases.len(),
        name(case),
        case.mpi,
        medians.join(", ")
    )
}

/// Each library with each number of ranks; operations apart if layouts are, and dense bytes apart
/// from layouts.
fn groups(cases: &[Case]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for case in cases {
        let what = match case.key.layout.as_str() {
            "" => String::new(),
            "contiguous" => "contiguous, ".to_owned(),
            _ => format!("{}, ", case.key.op),
        };
        let name = format!("{what}{}, {} ranks", case.mpi, case.key.ranks);
        match groups.iter_mut().find(|group| group.name == name) {
            Some(group) => group.cases.push(case),
            None => groups.push(Group {
                name,
                cases: vec![case],
            }),
        }
    }
    groups
}

/// What the paper says of these rows, next to what is found here.
fn claims(cases: &[Case]) -> String {
    let mut found = plain_table();
    let mut header = vec!["figure".to_owned(), "op".into(), "FALCON-X says".into()];
    let mpis = mpis(cases);
    header.extend(mpis.iter().map(|mpi| format!("here, {mpi}: mean, up to")));
    found.set_header(header);
    let mut any = false;
    for claim in &CLAIMS {
        let mut cells = vec![
            claim.figure.to_owned(),
            claim.op.to_owned(),
            claim.says.to_owned(),
        ];
        let mut there = false;
        for mpi in &mpis {
            let gains: Vec<f64> = cases
                .iter()
                .filter(|case| case.mpi == *mpi && is_about(claim, &case.key))
                .map(|case| case.gain.median)
                .collect();
            let most = gains.iter().copied().reduce(f64::max);
            let (Some(mean), Some(most)) = (geometric_mean(&gains), most) else {
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

fn is_about(claim: &Claim, key: &Key) -> bool {
    claim.op == key.op
        && key.layout.starts_with(claim.layout)
        && (claim.blocks.0..claim.blocks.1).contains(&key.block.unwrap_or(0))
        && (claim.ranks.0..=claim.ranks.1).contains(&key.ranks)
}

/// The two variants of a case as rows of a report: plain, and intercepted.
fn rows(case: &Case) -> [Row; 2] {
    let row = |variant: String, time: Spread| Row {
        op: case.key.op.clone(),
        bytes: case.key.bytes,
        ranks: case.key.ranks,
        variant,
        time,
        verified: case.verified,
    };
    [
        row(case.mpi.clone(), case.times[0]),
        row(format!("{}{WITH}", case.mpi), case.times[1]),
    ]
}

fn write_csv(path: &Path, cases: &[Case]) -> Result<()> {
    let layouts = cases.iter().any(|case| !case.key.layout.is_empty());
    let blocks = cases.iter().any(|case| case.key.block.is_some());
    let mut text = HEADER.to_owned();
    for (column, there) in [(",layout", layouts), (",block", blocks)] {
        text.push_str(if there { column } else { "" });
    }
    text.push_str(",gain,gain_low,gain_high,control\n");
    for case in cases {
        for (i, row) in rows(case).iter().enumerate() {
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
                let _ = write!(text, ",{}", case.key.layout);
            }
            if blocks {
                let _ = write!(text, ",{}", case.key.block.unwrap_or(0));
            }
            let Interval { median, low, high } = case.gain;
            let _ = match i {
                0 => writeln!(text, ",,,,"),
                _ => writeln!(
                    text,
                    ",{median:.4},{low:.4},{high:.4},{:.4}",
                    case.control.median
                ),
            };
        }
    }
    write_file(path, text)
}

/// Lines over the size of a message or a block, where one thing was measured in several sizes; a
/// point for each gain where layouts have nothing in common but their size.
fn figure(args: &SpeedupArgs, cases: &[Case], path: &Path) -> Result<(PathBuf, PathBuf)> {
    let blocks = cases.iter().all(|case| case.key.block.is_some());
    let counts: Vec<usize> = cases.iter().map(|case| case.key.ranks).collect();
    let mut report = Report {
        title: args.title.clone(),
        machine: Machine::here(),
        notes: args.notes.clone(),
        rows: cases.iter().flat_map(rows).collect(),
        ratios: vec![],
    };
    let layouts = cases.iter().any(|case| !case.key.layout.is_empty());
    let sizes_differ = cases.iter().any(|c| c.key.bytes != cases[0].key.bytes);
    if !blocks && (layouts || !sizes_differ) {
        return plot::write_drawing(&ratio_plot::draw(&dotted(args, cases)), path);
    }
    if counts.iter().any(|n| *n != counts[0]) {
        for row in &mut report.rows {
            row.op = format!("{}, {} ranks", row.op, row.ranks);
        }
    }
    let mut axes = Axes::from(args.output.axis);
    if blocks {
        axes.x = Bytes::BlockOf(cases[0].key.bytes);
        for (row, case) in report.rows.chunks_mut(2).zip(cases) {
            row.iter_mut()
                .for_each(|row| row.bytes = case.key.block.unwrap_or(0));
        }
    }
    plot::write(&report, axes, path)
}

/// The gain of each case as a dot.
fn dotted(args: &SpeedupArgs, cases: &[Case]) -> ratio_plot::Figure {
    let all = keys(cases);
    let mpis = mpis(cases);
    let row = |key: &&Key| {
        let mut label = match key.layout.as_str() {
            "" => key.op.clone(),
            layout => layout.to_owned(),
        };
        if all.iter().any(|other| other.ranks != all[0].ranks) {
            let _ = write!(label, ", {} ranks", key.ranks);
        }
        let of = |mpi: &&str| {
            let case = cases.iter().find(|c| c.key == **key && c.mpi == *mpi)?;
            Some(case.gain.median)
        };
        ratio_plot::Row {
            label: format!("{label} {}", sizes::short(key.bytes)),
            ratios: mpis.iter().map(of).collect(),
        }
    };
    // Panels have the same rows, which layouts have in each operation.
    let ops = first_seen(all.iter().map(|key| key.op.as_str()));
    let layouts = all.iter().any(|key| !key.layout.is_empty());
    let panels = if layouts {
        let of = |op: &str| all.iter().filter(|key| key.op == op).map(row).collect();
        ops.iter().map(|op| ((*op).to_owned(), of(op))).collect()
    } else {
        vec![(String::new(), all.iter().map(row).collect())]
    };
    ratio_plot::Figure {
        title: format!("{}: times as fast", args.title),
        machine: Machine::here().line(),
        notes: args.notes.join(" · "),
        series: mpis.iter().map(|mpi| (*mpi).to_owned()).collect(),
        panels,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libcopy_measure::plot::Axis;

    const RESULTS: &str = "\
op,bytes,ranks,variant,rounds,verified,layout
x,100,2,openmpi,10:5:5:10;12:6:6:12;10:4:4:10,yes,a
x,100,2,openmpi,50:25:25:50;60:30:30:60,yes,a
x,200,2,openmpi,10:20:20:10,yes,b
";

    #[test]
    fn launches_of_a_case_are_put_together() {
        let cases = read(RESULTS).unwrap();
        assert_eq!(cases.len(), 2);
        assert_eq!(cases[0].gain.median, 2.0);
        assert_eq!(cases[1].gain.median, 0.5);
        let table = table(&cases);
        let line = "x, openmpi, 2 ranks: geometric mean 1.00, lowest 0.50 (x b 200), \
                    1 of 2 with their interval below 0.98";
        assert!(table.contains(line), "{table}");
        assert!(table.contains("control, plain against plain: geometric mean 1.000"));
        let modes =
            "different modes: 1 of 2 cases; the widest: x a 100 with plain openmpi: 10.0, 55.0 us";
        assert!(table.contains(modes), "{table}");
    }

    #[test]
    fn a_control_that_is_off_is_said() {
        let text = "op,bytes,ranks,variant,rounds,verified\nx,1,2,mpich,20:10:10:10,yes\n";
        assert!(table(&read(text).unwrap()).contains("THE CONTROL IS OFF"));
    }

    #[test]
    fn wrong_bytes_of_any_launch_count() {
        let text = RESULTS.replacen("yes,a", "no,a", 1);
        let text = table(&read(&text).unwrap());
        assert!(text.contains("WRONG BYTES: x a 100 with openmpi"));
    }

    #[test]
    fn what_is_no_number_is_named() {
        for (from, to) in [("x,100", "x,many"), ("10:5:5:10", "10:5:many")] {
            let text = RESULTS.replacen(from, to, 1);
            let error = format!("{:#}", read(&text).unwrap_err());
            assert!(
                error.contains("line 2") && error.contains("many"),
                "{error}"
            );
        }
    }

    #[test]
    fn results_are_written_by_variant() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("results.csv");
        write_csv(&file, &read(RESULTS).unwrap()).unwrap();
        let text = fs::read_to_string(file).unwrap();
        let mut lines = text.lines();
        let header = format!("{HEADER},layout,gain,gain_low,gain_high,control");
        assert_eq!(lines.next(), Some(header.as_str()));
        assert!(lines.next().unwrap().starts_with("x,100,2,openmpi,12.000,"));
        assert!(
            lines
                .next()
                .unwrap()
                .ends_with(",yes,a,2.0000,2.0000,2.5000,1.0000")
        );
    }

    #[test]
    fn claims_stand_beside_the_rows_they_are_about() {
        let text = "\
op,bytes,ranks,variant,rounds,verified,layout,block
latency,2097152,2,mpich,30:10:10:30,yes,vector_128B,128
latency,2097152,2,mpich,30:15:15:30,yes,vector_65536B,65536
";
        let table = table(&read(text).unwrap());
        let line = |what: &str| table.lines().find(|l| l.contains(what)).unwrap().to_owned();
        assert!(line("below 16 KiB").contains("3.00, 3.00"), "{table}");
        assert!(line("from 16 KiB on").contains("2.00, 2.00"), "{table}");
        assert!(!table.contains("8 (c)"), "{table}");
    }

    #[test]
    fn figures_of_layouts_show_gains() {
        let directory = tempfile::tempdir().unwrap();
        let args = SpeedupArgs {
            results: PathBuf::new(),
            title: "layouts".into(),
            notes: vec![],
            output: Output {
                csv: None,
                plot: None,
                axis: Axis::Latency,
                json: false,
            },
        };
        let path = directory.path().join("figure.png");
        let (png, svg) = figure(&args, &read(RESULTS).unwrap(), &path).unwrap();
        assert!(png.exists());
        let drawing = fs::read_to_string(svg).unwrap();
        for word in ["layouts", "openmpi", "times as fast"] {
            assert!(drawing.contains(word), "{word}");
        }
    }
}
