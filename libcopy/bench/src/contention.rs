// SPDX-License-Identifier: MIT OR Apache-2.0

//! What several readers of one source get: measured with a bar, as a table, as CSV and as a figure.

use anyhow::Result;
use comfy_table::Cell;
use libcopy::TransportKind;
use libcopy::plan::Costs;
use libcopy::tune::contention::{self, Curve, Effort, Outcome};
use libcopy_measure::machine::Machine;
use libcopy_measure::plot::{self, Axes, Axis, Bytes};
use libcopy_measure::report::{
    Report, Row, check_file, digits, plain_table, right_aligned, write_file,
};
use libcopy_measure::sample::Spread;
use libcopy_measure::{progress, sizes};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

/// First line of the CSV file.
const HEADER: &str = "distance,transport,pieces,bytes,readers,mb_per_s";

/// Distances in the CSV file.
const DISTANCES: [&str; 4] = ["cache", "node", "package", "machine"];

/// Distances for people.
const NAMES: [&str; 4] = [
    "near: the same last-level cache",
    "far: the same node, another cache",
    "far: the same package, another node",
    "far: another package",
];

/// How much is measured in a few seconds.
pub fn quick() -> Effort {
    Effort {
        per_point: Duration::from_millis(8),
        ..Effort::default()
    }
}

/// Measures, with a bar.
///
/// # Errors
///
/// A process cannot be started, or shared memory cannot be made.
pub fn measure(effort: &Effort) -> Result<Outcome> {
    let bar = progress::bar(1000);
    let outcome = contention::measure(effort, &mut |fraction, what| {
        bar.set_position((fraction.clamp(0.0, 1.0) * 1000.0) as u64);
        bar.set_message(what.to_owned());
    });
    bar.finish_and_clear();
    Ok(outcome?)
}

/// Which curves readers got, what was bound to, what follows, and what was left out.
pub fn table(outcome: &Outcome) -> String {
    let mut text = String::from(
        "What several readers of one source get together, GB/s (same: all read the same bytes; apart: each others; \
         memory: more than fits into a cache; pairs: each of a source of its own)\n",
    );
    for line in &outcome.bound {
        let _ = writeln!(text, "  {line}");
    }
    let mut numbers: Vec<usize> = outcome
        .curves
        .all
        .iter()
        .flat_map(|curve| curve.points.iter().map(|(readers, _)| *readers))
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    let mut table = plain_table();
    let heads = ["  distance", "transport", "pieces", "of"].map(str::to_owned);
    let numbers_said = numbers.iter().map(|number| match number {
        1 => "1 reader".to_owned(),
        number => number.to_string(),
    });
    table.set_header(heads.into_iter().chain(numbers_said));
    for curve in &outcome.curves.all {
        let words = [
            format!("  {}", DISTANCES[curve.distance]),
            curve.kind.name().to_owned(),
            curve.pieces.name().to_owned(),
            sizes::short(curve.bytes),
        ];
        let rates = numbers.iter().map(|number| {
            let found = curve.points.iter().find(|(readers, _)| readers == number);
            found.map_or(String::new(), |(_, rate)| digits(rate / 1e9))
        });
        table.add_row(words.into_iter().chain(rates).map(Cell::new));
    }
    right_aligned(&mut table, 3);
    let _ = writeln!(text, "{}\n", table.trim_fmt());
    let _ = writeln!(
        text,
        "What plans are chosen by (built in, unless it was measured: *)\n{}",
        costs(outcome)
    );
    for line in &outcome.left_out {
        let _ = writeln!(text, "{line}");
    }
    if let Some(why) = &outcome.refused {
        let _ = writeln!(
            text,
            "what was measured makes no sense ({why}): something else has used the processors; built-in values stay"
        );
    }
    text
}

/// The costs of each transport beside those that are built in.
fn costs(outcome: &Outcome) -> String {
    let all = &outcome.contention;
    let kinds: Vec<TransportKind> = TransportKind::ALL
        .into_iter()
        .filter(|kind| all.copies(*kind).is_some())
        .collect();
    let mut columns = vec![Costs::BUILT_IN];
    columns.extend(kinds.iter().map(|kind| all.costs(*kind)));
    let mut table = plain_table();
    let names = kinds.iter().map(|kind| kind.name().to_owned());
    let heads = ["  cost", "built in"].map(str::to_owned);
    table.set_header(heads.into_iter().chain(names));
    let rate = |rate: f64| match rate {
        f64::INFINITY => "no limit".to_owned(),
        rate => format!("{} GB/s", digits(rate / 1e9)),
    };
    let time = |seconds: f64| format!("{} ns", digits(seconds * 1e9));
    let mut add = |name: &str, of: &dyn Fn(&Costs) -> String| {
        let built_in = of(&Costs::BUILT_IN);
        let cells = columns.iter().enumerate().map(|(index, costs)| {
            let cell = of(costs);
            if index > 0 && cell != built_in {
                format!("{cell} *")
            } else {
                cell
            }
        });
        table.add_row(std::iter::once(format!("  {name}")).chain(cells));
    };
    add("a processor copies", &|it| rate(it.core));
    add("a cache gives", &|it| rate(it.cache));
    add("a cache gives to others", &|it| rate(it.port));
    add("a node's memory gives and takes", &|it| rate(it.memory));
    add("from package to package", &|it| rate(it.link));
    add("one process' memory gives", &|it| rate(it.source));
    add("a cache holds", &|it| sizes::short(it.cache_bytes as usize));
    for (distance, name) in NAMES.iter().enumerate() {
        add(&format!("latency, {name}"), &|it| {
            time(it.latency[distance])
        });
    }
    add("each reader of a line", &|it| time(it.line));
    add("a chunk", &|it| time(it.chunk));
    add("members of a group, at most", &|it| {
        it.fan_out().to_string()
    });
    add(
        "ranks of a gather or scatter at once",
        &|it| match it.at_once {
            usize::MAX => "all".to_owned(),
            number => number.to_string(),
        },
    );
    right_aligned(&mut table, 1);
    table.trim_fmt()
}

/// Whether the files that are asked for can be written.
///
/// # Errors
///
/// A folder that is not there, or a file that cannot be written.
pub fn check(csv: Option<&Path>, figure: Option<&Path>) -> Result<()> {
    if let Some(path) = csv {
        check_file("--csv", path)?;
    }
    if let Some(path) = figure {
        let (png, svg) = plot::paths(path);
        check_file("--plot", &png)?;
        check_file("--plot", &svg)?;
    }
    Ok(())
}

/// Writes what was asked for; a figure takes curves of two points.
///
/// # Errors
///
/// A file that cannot be written.
pub fn write(outcome: &Outcome, csv: Option<&Path>, figure: Option<&Path>) -> Result<()> {
    if let Some(path) = csv {
        write_csv(path, &outcome.curves.all)?;
        eprintln!("CSV:  {}", path.display());
    }
    let Some(path) = figure else { return Ok(()) };
    let has_curves = outcome.curves.all.iter().any(|it| it.points.len() > 1);
    if !has_curves {
        eprintln!("no figure of readers: a curve takes two of them, which are not here");
        return Ok(());
    }
    let (png, svg) = draw(path, outcome)?;
    eprintln!("plot: {} and {}", png.display(), svg.display());
    Ok(())
}

fn write_csv(path: &Path, curves: &[Curve]) -> Result<()> {
    let mut text = format!("{HEADER}\n");
    for curve in curves {
        for (readers, rate) in &curve.points {
            let _ = writeln!(
                text,
                "{},{},{},{},{readers},{:.0}",
                DISTANCES[curve.distance],
                curve.kind,
                curve.pieces.name(),
                curve.bytes,
                rate / 1e6
            );
        }
    }
    write_file(path, text)
}

fn draw(path: &Path, outcome: &Outcome) -> Result<(std::path::PathBuf, std::path::PathBuf)> {
    /// Bytes of a reader in the figure: rates are what matters.
    const EACH: usize = 1 << 20;
    let rows = outcome.curves.all.iter().flat_map(|curve| {
        curve.points.iter().map(|(readers, rate)| {
            let microseconds = (readers * EACH) as f64 / rate * 1e6;
            Row {
                op: NAMES[curve.distance].to_owned(),
                bytes: *readers,
                ranks: 1,
                variant: format!("{} {}", curve.kind, curve.pieces.name()),
                time: Spread::exactly(microseconds),
                verified: true,
            }
        })
    });
    let report = Report {
        title: "What several readers of one source get together".into(),
        machine: Machine::here(),
        notes: Vec::new(),
        rows: rows.collect(),
        ratios: Vec::new(),
    };
    let axes = Axes {
        y: Axis::Bandwidth,
        x: Bytes::Readers(EACH),
    };
    plot::write(&report, axes, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use libcopy::policy::{Contention, Copies};
    use libcopy::tune::contention::{Curves, Pieces};

    #[test]
    fn what_was_measured_is_told_from_what_is_built_in() {
        let contention = Contention {
            line_ns: Some(77),
            cma: Some(Copies {
                core_mbs: 9_000,
                chunk_ns: 800,
                source_mbs: Some(18_000),
                readers: Some(3),
            }),
            ..Contention::default()
        };
        let outcome = Outcome {
            contention,
            refused: None,
            curves: Curves {
                all: vec![Curve {
                    distance: 1,
                    kind: TransportKind::Cma,
                    pieces: Pieces::Same,
                    bytes: 65536,
                    points: vec![(1, 9e9), (4, 18e9)],
                }],
                ..Curves::default()
            },
            bound: vec!["source on processor 3".into()],
            left_out: vec!["memory: left out".into()],
        };
        let said = table(&outcome);
        for part in [
            "9.00 GB/s *",
            "18.0 GB/s *",
            "77.0 ns *",
            "800 ns *",
            "39.0 GB/s",
            "source on processor 3",
            "memory: left out",
            "64K",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(said.is_ascii() && !said.contains("39.0 GB/s *"), "{said}");
        let place = tempfile::tempdir().unwrap();
        let [csv, figure] = ["a.csv", "a"].map(|name| place.path().join(name));
        write(&outcome, Some(&csv), Some(&figure)).unwrap();
        let rows = std::fs::read_to_string(csv).unwrap();
        assert_eq!(rows.lines().nth(2), Some("node,cma,same,65536,4,18000"));
        let drawing = std::fs::read_to_string(figure.with_extension("svg")).unwrap();
        assert!(drawing.contains("readers at once"), "{drawing}");
    }
}
