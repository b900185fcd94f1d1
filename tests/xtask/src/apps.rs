// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/apps`: what the runs of an application as it is and with `libcopy_mpi.so` say.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use crate::statistics::Statistics;
use crate::{Verdict, read};

/// Writes the head of the table, and that of the records.
pub fn begin(records: &Path) -> Verdict {
    println!(
        "{:<12} {:<8} {:>5} {:>5}  {:<22} {:<22} {:<16} {:<6} {:<15} intercepted",
        "application",
        "mpi",
        "ranks",
        "pairs",
        "CPU ratio (range)",
        "wall ratio (range)",
        "plain own CPU",
        "equal",
        "MiB plain/ours"
    );
    let head = "app,mpi,ranks,pairs,cpu_ratio,wall_ratio,equal\n";
    let written = std::fs::write(records, head);
    written.map_err(|error| format!("{}: {error}", records.display()))?;
    Ok(true)
}

/// A run as GNU time has measured it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    wall: f64,
    cpu: f64,
    kib: f64,
}

/// A line `%e %U %S %M`; none for a run that failed.
fn run(line: &str) -> Option<Run> {
    let numbers: Option<Vec<f64>> = line.split(' ').map(|word| word.parse().ok()).collect();
    match numbers?[..] {
        [wall, user, system, kib] => Some(Run {
            wall,
            cpu: user + system,
            kib,
        }),
        _ => None,
    }
}

/// Ratios in ascending order: the median, and the first and the last.
struct Ratios(Vec<f64>);

impl Ratios {
    fn new(ratios: impl Iterator<Item = f64>) -> Ratios {
        let mut ratios: Vec<f64> = ratios.filter(|ratio| ratio.is_finite()).collect();
        ratios.sort_by(f64::total_cmp);
        Ratios(ratios)
    }

    fn median(&self) -> Option<f64> {
        let upper = *self.0.get(self.0.len() / 2)?;
        Some(match self.0.len() % 2 {
            1 => upper,
            _ => (self.0[self.0.len() / 2 - 1] + upper) / 2.0,
        })
    }

    fn range(&self) -> String {
        match (self.0.first(), self.0.last()) {
            (Some(low), Some(high)) => format!("{low:.3}-{high:.3}"),
            _ => "-".to_owned(),
        }
    }
}

fn decimal(number: Option<f64>) -> String {
    number.map_or("-".to_owned(), |number| format!("{number:.3}"))
}

/// What the runs in a directory have been.
struct Runs {
    plain: Vec<Option<Run>>,
    preloaded: Vec<Option<Run>>,
}

impl Runs {
    fn read(directory: &Path) -> Result<Runs, String> {
        let times = |name: &str| -> Result<Vec<_>, String> {
            Ok(read(&directory.join(name))?.lines().map(run).collect())
        };
        Ok(Runs {
            plain: times("plain.times")?,
            preloaded: times("preloaded.times")?,
        })
    }

    /// Pairs of which both runs ended well.
    fn pairs(&self) -> impl Iterator<Item = (Run, Run)> {
        let pairs = self.plain.iter().zip(&self.preloaded);
        pairs.filter_map(|(plain, preloaded)| plain.zip(*preloaded))
    }

    /// Plain divided by preloaded.
    fn gains(&self, of: fn(Run) -> f64) -> Ratios {
        Ratios::new(
            self.pairs()
                .map(|(plain, preloaded)| of(plain) / of(preloaded)),
        )
    }

    /// Each plain run divided by the one before.
    fn own(&self, of: fn(Run) -> f64) -> Ratios {
        let plain: Vec<Run> = self.plain.iter().copied().flatten().collect();
        let ratios = plain.windows(2).map(|runs| of(runs[1]) / of(runs[0]));
        Ratios::new(ratios)
    }

    /// The largest resident memory of a process, plain and preloaded, in MiB.
    fn memory(&self) -> String {
        let most = |kib: &dyn Fn((Run, Run)) -> f64| {
            self.pairs().map(kib).fold(0.0, f64::max) as u64 / 1024
        };
        format!(
            "{}/{}",
            most(&|(plain, _)| plain.kib),
            most(&|(_, ours)| ours.kib)
        )
    }
}

/// Whether all runs have the same result. What plain runs do not agree on themselves says nothing of us: then
/// the second value is false.
fn are_equal(plain: &str, preloaded: &str) -> (bool, bool) {
    let mut all = plain.lines().chain(preloaded.lines());
    let first = all.next();
    let is_result = first.is_some_and(|line| line != "empty" && !line.starts_with("exit"));
    let do_plain_agree = plain.lines().all(|line| Some(line) == plain.lines().next());
    (
        is_result && all.all(|line| Some(line) == first),
        do_plain_agree,
    )
}

fn intercepted(statistics: &Statistics) -> String {
    let functions = statistics.functions();
    let calls = functions
        .iter()
        .map(|(name, calls)| format!("{name} {calls}"));
    let mut text = calls.collect::<Vec<_>>().join(", ");
    for (what, name) in [("messages", "sent"), ("packed", "packed")] {
        let number = statistics.messages(name);
        if number > 0 {
            text.push_str(&format!("; {what} {number}"));
        }
    }
    text
}

/// Prints the line of an application, MPI library and number of ranks, and adds it to the records. The
/// directory has a line for each run in `plain.times`, `preloaded.times`, `plain.results` and
/// `preloaded.results`.
pub fn row(records: &Path, directory: &Path, [app, mpi, ranks, pairs]: [&str; 4]) -> Verdict {
    let runs = Runs::read(directory)?;
    let results = ["plain.results", "preloaded.results"].map(|name| read(&directory.join(name)));
    let [plain, preloaded] = results;
    let (is_equal, do_plain_agree) = are_equal(&plain?, &preloaded?);
    if !do_plain_agree {
        eprintln!("scripts/apps: {app}: plain runs differ from each other");
    }
    let equal = if is_equal { "yes" } else { "no" };
    let (cpu, wall) = (runs.gains(|run| run.cpu), runs.gains(|run| run.wall));
    let [cpu_ratio, wall_ratio] = [&cpu, &wall].map(|ratios| decimal(ratios.median()));
    println!(
        "{app:<12} {mpi:<8} {ranks:>5} {pairs:>5}  {:<22} {:<22} {:<16} {equal:<6} {:<15} {}",
        format!("{cpu_ratio} ({})", cpu.range()),
        format!("{wall_ratio} ({})", wall.range()),
        runs.own(|run| run.cpu).range(),
        runs.memory(),
        intercepted(&Statistics::read(&directory.join("statistics")))
    );
    let record = format!("{app},{mpi},{ranks},{pairs},{cpu_ratio},{wall_ratio},{equal}\n");
    let file = OpenOptions::new().append(true).open(records);
    let written = file.and_then(|mut file| file.write_all(record.as_bytes()));
    written.map_err(|error| format!("{}: {error}", records.display()))?;
    Ok(true)
}

/// Prints the geometric means of the records; whether anything ran, and all results were equal.
pub fn end(records: &Path) -> Verdict {
    let text = read(records)?;
    if let Some(means) = means(&text) {
        println!("{means}");
    }
    let mut rows = text.lines().skip(1).peekable();
    if rows.peek().is_none() {
        return Err("no application could be run".to_owned());
    }
    let is_equal = rows.all(|row| row.ends_with(",yes"));
    if !is_equal {
        eprintln!("scripts/apps: results differ; see above");
    }
    Ok(is_equal)
}

fn means(records: &str) -> Option<String> {
    let measured = records.lines().skip(1).filter_map(|record| {
        let fields: Vec<&str> = record.split(',').collect();
        let [app, mpi, ranks, _, cpu, wall, _] = fields[..] else {
            return None;
        };
        let case = format!("{app},{mpi},{ranks}");
        Some((cpu.parse::<f64>().ok()?, wall.parse::<f64>().ok()?, case))
    });
    let measured: Vec<_> = measured.collect();
    let number = measured.len() as f64;
    let mean =
        |ratios: &mut dyn Iterator<Item = f64>| (ratios.map(f64::ln).sum::<f64>() / number).exp();
    let cpu = mean(&mut measured.iter().map(|(cpu, _, _)| *cpu));
    let wall = mean(&mut measured.iter().map(|(_, wall, _)| *wall));
    let (low, _, which) = measured.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let (high, _, best) = measured.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(format!(
        "geometric mean of {number}: CPU {cpu:.3}, wall {wall:.3}; lowest CPU ratio {low:.3} ({which}), \
         highest {high:.3} ({best})"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_runs_do_not_move_pairs_against_each_other() {
        let of = |text: &str| text.lines().map(run).collect::<Vec<_>>();
        let runs = Runs {
            plain: of("4.00 1.50 0.50 2048\nfailed\n8.00 3.00 1.00 4096\n"),
            preloaded: of("2.00 0.50 0.50 3072\n9.00 9.00 9.00 9999\n2.00 0.75 0.25 1024\n"),
        };
        let gains = runs.gains(|run| run.cpu);
        assert_eq!(gains.0, [2.0, 4.0]);
        assert_eq!(
            (gains.median(), gains.range()),
            (Some(3.0), "2.000-4.000".to_owned())
        );
        assert_eq!(runs.own(|run| run.cpu).0, [2.0]);
        assert_eq!(runs.memory(), "4/3");
    }

    #[test]
    fn what_gnu_time_says_of_a_crash_is_no_run() {
        let good = Run {
            wall: 0.13,
            cpu: 0.25,
            kib: 16044.0,
        };
        assert_eq!(run("0.13 0.20 0.05 16044"), Some(good));
        for line in [
            "Command terminated by signal 11",
            "",
            "failed",
            "0.13 0.20 0.05",
            "1 2 3 4 5",
        ] {
            assert_eq!(run(line), None, "{line}");
        }
        assert_eq!(decimal(Ratios::new([].into_iter()).median()), "-");
    }

    #[test]
    fn results_are_equal_only_if_there_are_any() {
        assert_eq!(are_equal("ab\nab\n", "ab\nab\n"), (true, true));
        assert_eq!(are_equal("ab\nab\n", "ab\ncd\n"), (false, true));
        assert_eq!(are_equal("ab\ncd\n", "ab\ncd\n"), (false, false));
        assert_eq!(are_equal("ab\nempty\n", "ab\nempty\n"), (false, false));
        assert!(!are_equal("empty\n", "empty\n").0);
        assert!(!are_equal("exit status 1\n", "exit status 1\n").0);
        assert!(!are_equal("", "").0);
    }

    #[test]
    fn means_are_geometric() {
        let records = "app,mpi,ranks,pairs,cpu_ratio,wall_ratio,equal\n\
            fftw,openmpi,2,5,2.000,4.000,yes\nboost,openmpi,4,5,0.500,1.000,yes\nqe,openmpi,2,5,-,-,no\n";
        let text = means(records).unwrap();
        let expected = "geometric mean of 2: CPU 1.000, wall 2.000; lowest CPU ratio 0.500 (boost,openmpi,4), \
            highest 2.000 (fftw,openmpi,2)";
        assert_eq!(text, expected);
        assert_eq!(means("app\n"), None);
    }

    #[test]
    fn the_end_fails_where_results_differ_or_nothing_ran() {
        let file = std::env::temp_dir().join(format!("xtask-apps-{}", std::process::id()));
        let end_of = |rows: &str| {
            std::fs::write(
                &file,
                format!("app,mpi,ranks,pairs,cpu_ratio,wall_ratio,equal\n{rows}"),
            )
            .unwrap();
            end(&file)
        };
        assert_eq!(end_of("fftw,openmpi,2,5,1.0,1.0,yes\n"), Ok(true));
        assert_eq!(
            end_of("fftw,openmpi,2,5,1.0,1.0,yes\nqe,openmpi,2,5,-,-,no\n"),
            Ok(false)
        );
        assert!(end_of("").is_err());
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn what_was_intercepted_is_one_text() {
        let text = intercepted(&Statistics::of(include_str!("samples/statistics.json")));
        assert!(text.contains("Bcast 4, "), "{text}");
        assert!(text.contains("; messages 10"), "{text}");
        assert_eq!(intercepted(&Statistics::of("")), "");
    }
}
