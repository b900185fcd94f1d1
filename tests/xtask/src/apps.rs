// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/apps`: what the runs of an application as it is and with `libcopy_mpi.so` say.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::interval::Interval;
use crate::statistics::Statistics;
use crate::{Verdict, profiles, read};

/// The columns of the records, as a page shows them.
const HEAD: &str = "application,MPI,ranks,pairs,CPU time,wall time,plain against plain (CPU),\
                    time in MPI without waiting,in MPI,results equal,MiB plain/preloaded,\
                    intercepted in one run";

/// Writes the head of the table, and that of the records.
pub fn begin(records: &Path) -> Verdict {
    println!(
        "{:<12} {:<8} {:>5} {:>5}  {:<22} {:<22} {:<16} {:<22} {:>6}  {:<6} {:<15} intercepted",
        "application",
        "mpi",
        "ranks",
        "pairs",
        "CPU ratio (95 %)",
        "wall ratio (95 %)",
        "plain own CPU",
        "in MPI, not waiting",
        "in MPI",
        "equal",
        "MiB plain/ours"
    );
    let written = std::fs::write(records, format!("{HEAD}\n"));
    written.map_err(|error| format!("{}: {error}", records.display()))?;
    Ok(true)
}

/// Runs a command and adds a line to the file of times: seconds, seconds of CPU time of the command
/// and the processes it waited for, and the largest resident memory of one of them in KiB; or
/// `failed` and the exit status.
///
/// GNU time has a resolution of 10 ms, which is 2 % of what some applications take.
pub fn time(times: &Path, command: &[&str]) -> Verdict {
    let [program, arguments @ ..] = command else {
        return Err("no command to run".to_owned());
    };
    let start = Instant::now();
    let status = Command::new(program).args(arguments).status();
    let wall = start.elapsed().as_secs_f64();
    let status = status.map_err(|error| format!("{program}: {error}"))?;
    let line = if status.success() {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN).map_err(|error| error.to_string())?;
        let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
        let cpu = seconds(usage.user_time()) + seconds(usage.system_time());
        format!("{wall:.6} {cpu:.6} {}", usage.max_rss())
    } else {
        format!("failed {status}")
    };
    append(times, &line)?;
    Ok(status.success())
}

/// Adds a line to a file.
fn append(path: &Path, line: &str) -> Result<(), String> {
    let file = OpenOptions::new().append(true).create(true).open(path);
    let written = file.and_then(|mut file| writeln!(file, "{line}"));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// A run as [`time`] has measured it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    /// Seconds.
    wall: f64,
    /// Seconds of all processes.
    cpu: f64,
    kib: f64,
}

/// A line of [`time`]; none for a run that failed.
fn run(line: &str) -> Option<Run> {
    let numbers: Option<Vec<f64>> = line.split(' ').map(|word| word.parse().ok()).collect();
    match numbers?[..] {
        [wall, cpu, kib] => Some(Run { wall, cpu, kib }),
        _ => None,
    }
}

/// The median of ratios, with its interval, of those that are numbers.
fn interval(ratios: impl Iterator<Item = f64>) -> Option<Interval> {
    Interval::of(&ratios.filter(|ratio| ratio.is_finite()).collect::<Vec<_>>())
}

/// A median with its interval, as a page shows it; nothing for what is not known.
fn cell(number: Option<Interval>) -> String {
    number.map_or(String::new(), |_| {
        format!("{} ({})", decimal(number), ends(number))
    })
}

fn decimal(number: Option<Interval>) -> String {
    number.map_or("-".to_owned(), |number| format!("{:.3}", number.median))
}

fn ends(number: Option<Interval>) -> String {
    number.map_or("-".to_owned(), |number| {
        format!("{:.3}-{:.3}", number.low, number.high)
    })
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
    fn gain(&self, of: fn(Run) -> f64) -> Option<Interval> {
        let pairs = self.pairs();
        interval(pairs.map(|(plain, preloaded)| of(plain) / of(preloaded)))
    }

    /// Each plain run divided by the one before.
    fn own(&self, of: fn(Run) -> f64) -> Option<Interval> {
        let plain: Vec<Run> = self.plain.iter().copied().flatten().collect();
        interval(plain.windows(2).map(|runs| of(runs[1]) / of(runs[0])))
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

/// The runs of an application with the profiler, in pairs.
#[derive(Default)]
struct Profiled {
    /// Time in MPI without waiting, plain divided by that with libcopy at work.
    moving: Vec<f64>,
    /// The share of a plain run that MPI takes.
    share: Vec<f64>,
    pairs: u32,
}

impl Profiled {
    /// `moving-plain.K.csv` and `moving-libcopy.K.csv`, for K from 1 on. A run that failed has left
    /// none.
    fn read(directory: &Path, pairs: u32) -> Result<Profiled, String> {
        let mut profiled = Profiled::default();
        for pair in 1..=pairs {
            let [plain, libcopy] = ["plain", "libcopy"]
                .map(|variant| directory.join(format!("moving-{variant}.{pair}.csv")));
            if plain.exists() && libcopy.exists() {
                let [plain, libcopy] = [
                    profiles::Sums::read(&plain)?,
                    profiles::Sums::read(&libcopy)?,
                ];
                profiled.moving.push(plain.moving / libcopy.moving);
                profiled.share.push(plain.share);
                profiled.pairs += 1;
            }
        }
        Ok(profiled)
    }

    /// The share in percent.
    fn in_mpi(&self) -> String {
        let share = interval(self.share.iter().copied());
        share.map_or(String::new(), |share| {
            format!("{:.0} %", 100.0 * share.median)
        })
    }
}

/// Whether all runs have the same result. What plain runs do not agree on themselves says nothing
/// of us: then the second value is false.
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
    let calls = calls.collect::<Vec<_>>().join(", ");
    let messages = [("messages", "sent"), ("packed", "packed")];
    let messages = messages.map(|(what, name)| (what, statistics.messages(name)));
    let messages = messages.into_iter().filter(|(_, number)| *number > 0);
    let messages = messages.map(|(what, number)| format!("{what} {number}"));
    let parts = std::iter::once(calls).chain(messages);
    parts
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

/// Prints the line of an application, MPI library and number of ranks, and adds it to the records.
/// The directory has a line for each run in `plain.times`, `preloaded.times`, `plain.results` and
/// `preloaded.results`, and the profiles of as many pairs as `moving` says.
pub fn row(
    records: &Path,
    directory: &Path,
    [app, mpi, ranks, pairs, moving]: [&str; 5],
) -> Verdict {
    let runs = Runs::read(directory)?;
    let results = ["plain.results", "preloaded.results"].map(|name| read(&directory.join(name)));
    let [plain, preloaded] = results;
    let (is_equal, do_plain_agree) = are_equal(&plain?, &preloaded?);
    if !do_plain_agree {
        eprintln!("scripts/apps: {app}: plain runs differ from each other");
    }
    let moving = moving
        .parse()
        .map_err(|_| format!("{moving}: no number of pairs"))?;
    let profiled = Profiled::read(directory, moving)?;
    let pairs = match profiled.pairs {
        0 => pairs.to_owned(),
        more => format!("{pairs} + {more}"),
    };
    let equal = if is_equal { "yes" } else { "no" };
    let cpu = cell(runs.gain(|run| run.cpu));
    let wall = cell(runs.gain(|run| run.wall));
    let own = ends(runs.own(|run| run.cpu));
    let moving = cell(interval(profiled.moving.iter().copied()));
    let (in_mpi, memory) = (profiled.in_mpi(), runs.memory());
    let intercepted = match intercepted(&Statistics::read(&directory.join("statistics"))) {
        nothing if nothing.is_empty() => "nothing".to_owned(),
        some => some,
    };
    println!(
        "{app:<12} {mpi:<8} {ranks:>5} {pairs:>5}  {cpu:<22} {wall:<22} {own:<16} {moving:<22} \
         {in_mpi:>6}  {equal:<6} {memory:<15} {intercepted}"
    );
    append(
        records,
        &format!(
            "{app},{mpi},{ranks},{pairs},{cpu},{wall},{own},{moving},{in_mpi},{equal},{memory},\
             \"{intercepted}\""
        ),
    )?;
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
    let is_equal = rows.all(|row| row.split(',').nth(EQUAL) == Some("yes"));
    if !is_equal {
        eprintln!("scripts/apps: results differ; see above");
    }
    Ok(is_equal)
}

/// The column that says whether results are equal; no column before it has a comma.
const EQUAL: usize = 9;

/// The geometric means, a line for each of the ratios that there are.
fn means(records: &str) -> Option<String> {
    let mut lines = Vec::new();
    for (name, column) in [("CPU", 4), ("wall", 5), ("in MPI without waiting", 7)] {
        let ratio = |record: &str| {
            let fields: Vec<&str> = record.split(',').collect();
            let ratio = fields.get(column)?.split(' ').next()?.parse::<f64>().ok()?;
            Some((ratio, fields[..3].join(",")))
        };
        let measured: Vec<_> = records.lines().skip(1).filter_map(ratio).collect();
        let number = measured.len();
        let sum: f64 = measured.iter().map(|(ratio, _)| ratio.ln()).sum();
        let (Some((low, worst)), Some((high, best))) = (
            measured.iter().min_by(|a, b| a.0.total_cmp(&b.0)),
            measured.iter().max_by(|a, b| a.0.total_cmp(&b.0)),
        ) else {
            continue;
        };
        lines.push(format!(
            "geometric mean of {number}, {name}: {:.3}; lowest {low:.3} ({worst}), highest {high:.3} ({best})",
            (sum / number as f64).exp()
        ));
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_runs_do_not_move_pairs_against_each_other() {
        let of = |text: &str| text.lines().map(run).collect::<Vec<_>>();
        let runs = Runs {
            plain: of("4.00 2.00 2048\nfailed exit status: 1\n8.00 4.00 4096\n"),
            preloaded: of("2.00 1.00 3072\n9.00 18.00 9999\n2.00 1.00 1024\n"),
        };
        let gain = runs.gain(|run| run.cpu);
        assert_eq!(
            (decimal(gain), ends(gain)),
            ("3.000".to_owned(), "2.000-4.000".to_owned())
        );
        assert_eq!(decimal(runs.own(|run| run.cpu)), "2.000");
        assert_eq!(runs.memory(), "4/3");
    }

    #[test]
    fn what_is_said_of_a_crash_is_no_run() {
        for line in [
            "",
            "failed exit status: 124",
            "0.13 0.20",
            "1 2 3 4",
            "0.1 x 3",
        ] {
            assert_eq!(run(line), None, "{line}");
        }
        assert_eq!(decimal(interval([f64::NAN].into_iter())), "-");
    }

    #[test]
    fn the_time_of_a_command_is_that_of_its_processes() {
        let file = std::env::temp_dir().join(format!("xtask-times-{}", std::process::id()));
        let shell = |script: &str| time(&file, &["sh", "-c", script]);
        // The loop runs in a process of its own, for which sh waits; that process has some MiB.
        assert_eq!(
            shell("(i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done); true"),
            Ok(true)
        );
        assert_eq!(shell("exit 3"), Ok(false));
        let text = read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let good = run(lines[0]).unwrap();
        assert!(
            good.cpu > 0.0 && good.wall > 0.0 && good.kib > 0.0,
            "{good:?}"
        );
        assert_eq!(lines[1], "failed exit status: 3");
        assert!(time(&file, &["/nonexistent/program"]).is_err());
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
        let records = format!(
            "{HEAD}\n\
             fftw,openmpi,2,5 + 3,2.000 (1.9-2.1),4.000 (3-5),0.9-1.1,1.500 (1-2),40 %,yes,1/2,\"a, b\"\n\
             boost,openmpi,4,5,0.500 (0.4-0.6),1.000 (1-1),0.9-1.1,,,yes,1/2,\"nothing\"\n\
             qe,openmpi,2,5,,,-,,,no,0/0,\"nothing\"\n"
        );
        let text = means(&records).unwrap();
        let expected = "geometric mean of 2, CPU: 1.000; lowest 0.500 (boost,openmpi,4), highest 2.000 (fftw,openmpi,2)\n\
            geometric mean of 2, wall: 2.000; lowest 1.000 (boost,openmpi,4), highest 4.000 (fftw,openmpi,2)\n\
            geometric mean of 1, in MPI without waiting: 1.500; lowest 1.500 (fftw,openmpi,2), \
            highest 1.500 (fftw,openmpi,2)";
        assert_eq!(text, expected);
        assert_eq!(means("app\n"), None);
    }

    #[test]
    fn a_row_has_what_all_runs_say() {
        let place = std::env::temp_dir().join(format!("xtask-row-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let put = |name: &str, text: &str| std::fs::write(place.join(name), text).unwrap();
        for (variant, times) in [("plain", "4 2 2048\n"), ("preloaded", "2 1 3072\n")] {
            put(&format!("{variant}.times"), times);
            put(&format!("{variant}.results"), "ab\n");
        }
        let profile = |moving: u32| {
            format!(
                "function,size_class,types,ranks,place,calls,bytes,time_ns,waiting_ns,moving_ns,\
                 unsplit_ns,split,share_of_run\n\
                 MPI_Bcast,8,contiguous,2,machine,1,8,9,0,{moving},0,clocks,0.25\n\
                 MPI_Recv,8,contiguous,2,machine,1,8,9,0,{moving},0,estimate,0.15\n"
            )
        };
        put("moving-plain.1.csv", &profile(6));
        put("moving-libcopy.1.csv", &profile(4));
        // A run that failed has left no profile, and its pair counts nothing.
        put("moving-plain.2.csv", &profile(6));
        let records = place.join("records");
        begin(&records).unwrap();
        let case = ["qe", "openmpi", "2", "1", "2"];
        assert_eq!(row(&records, &place, case), Ok(true));
        let text = read(&records).unwrap();
        std::fs::remove_dir_all(&place).unwrap();
        let rows: Vec<_> = text.lines().skip(1).collect();
        assert_eq!(
            rows,
            [
                "qe,openmpi,2,1 + 1,2.000 (2.000-2.000),2.000 (2.000-2.000),-,1.500 (1.500-1.500),\
                 40 %,yes,2/3,\"nothing\""
            ]
        );
    }

    #[test]
    fn the_end_fails_where_results_differ_or_nothing_ran() {
        let file = std::env::temp_dir().join(format!("xtask-apps-{}", std::process::id()));
        let end_of = |rows: &str| {
            std::fs::write(&file, format!("{HEAD}\n{rows}")).unwrap();
            end(&file)
        };
        let good = "fftw,openmpi,2,5,1.0 (1-1),1.0 (1-1),1-1,,,yes,1/1,\"no\"\n";
        let bad = "qe,openmpi,2,5,,,-,,,no,0/0,\"yes, yes\"\n";
        assert_eq!(end_of(good), Ok(true));
        assert_eq!(end_of(&format!("{good}{bad}")), Ok(false));
        assert!(end_of("").is_err());
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn what_was_intercepted_is_one_text() {
        let text = intercepted(&Statistics::of(include_str!("samples/statistics.json")));
        assert!(text.contains("Bcast 4, "), "{text}");
        assert!(text.contains("; messages 10"), "{text}");
        assert_eq!(intercepted(&Statistics::of("")), "");
        let only = Statistics::of(r#"{"messages":{"sent":7,"packed":2}}"#);
        assert_eq!(intercepted(&only), "messages 7; packed 2");
    }
}
