// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/apps --profile`: what the profiles of all applications say together.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::limits::Limits;
use crate::{Verdict, read};

/// Chances that are listed.
const CHANCES: usize = 25;

/// A line of `libcopy mpi profile --csv`.
struct Line {
    function: String,
    size: u64,
    types: String,
    ranks: u64,
    calls: u64,
    bytes: f64,
    time: f64,
    waiting: f64,
    moving: f64,
    unsplit: f64,
    share: f64,
}

/// The columns that are looked at.
const COLUMNS: [&str; 11] = [
    "function",
    "size_class",
    "types",
    "ranks",
    "calls",
    "bytes",
    "time_ns",
    "waiting_ns",
    "moving_ns",
    "unsplit_ns",
    "share_of_run",
];

impl Line {
    fn read(cells: &BTreeMap<&str, &str>) -> Option<Line> {
        let [function, size, types, ranks, calls, numbers @ ..] =
            COLUMNS.map(|name| cells.get(name));
        let number = |at: usize| numbers[at]?.parse::<f64>().ok();
        Some(Line {
            function: (*function?).to_owned(),
            size: size?.parse().ok()?,
            types: (*types?).to_owned(),
            ranks: ranks?.parse().ok()?,
            calls: calls?.parse().ok()?,
            bytes: number(0)?,
            time: number(1)?,
            waiting: number(2)?,
            moving: number(3)?,
            unsplit: number(4)?,
            share: number(5)?,
        })
    }

    /// The share of the run that a part of the time is.
    fn of_run(&self, part: f64) -> f64 {
        if self.time > 0.0 {
            self.share * part / self.time
        } else {
            0.0
        }
    }
}

fn lines(text: &str) -> Option<Vec<Line>> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next()?.split(',').collect();
    let line = |line: &str| Line::read(&header.iter().copied().zip(line.split(',')).collect());
    lines.map(line).collect()
}

/// A power of two of bytes.
fn bytes(number: u64) -> String {
    match number {
        0..1024 => format!("{number} B"),
        1024..1_048_576 => format!("{} KiB", number >> 10),
        _ => format!("{} MiB", number >> 20),
    }
}

/// Three digits.
fn digits(number: f64) -> String {
    match number {
        0.0..0.995 => format!("{number:.2}"),
        0.995..9.95 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// What all classes of calls of a profile are together.
pub struct Sums {
    /// Nanoseconds in MPI that are no waiting, of all ranks.
    pub moving: f64,
    /// The share of the run that MPI takes.
    pub share: f64,
}

impl Sums {
    fn of(lines: &[Line]) -> Sums {
        Sums {
            moving: lines.iter().map(|line| line.moving).sum(),
            share: lines.iter().map(|line| line.share).sum(),
        }
    }

    /// Those of a file of `libcopy mpi profile --csv`.
    pub fn read(path: &Path) -> Result<Sums, String> {
        Ok(Sums::of(&read_lines(path)?.1))
    }
}

/// A profile, and its text.
fn read_lines(path: &Path) -> Result<(String, Vec<Line>), String> {
    let text = read(path)?;
    let lines = lines(&text).ok_or_else(|| format!("{}: no profile as CSV", path.display()))?;
    Ok((text, lines))
}

/// A run of an application with an MPI library: its file, and what is in it.
struct Run {
    path: PathBuf,
    text: String,
    lines: Vec<Line>,
}

impl Run {
    /// Of several runs that do the same, the one that moves bytes for the least time: others who
    /// use the machine only add to it.
    fn least(paths: &[PathBuf]) -> Result<Option<Run>, String> {
        let mut runs = Vec::new();
        for path in paths {
            let (text, lines) = read_lines(path)?;
            runs.push(Run {
                path: path.clone(),
                text,
                lines,
            });
        }
        runs.sort_by(|a, b| {
            let moving = |run: &Run| Sums::of(&run.lines).moving;
            moving(a).total_cmp(&moving(b))
        });
        Ok(runs.into_iter().next())
    }
}

/// The files `APPLICATION-MPI-VARIANT.RUN.csv` in a directory, by application, MPI and variant.
type Files = BTreeMap<(String, String, String), Vec<PathBuf>>;

fn files(directory: &Path) -> Result<Files, String> {
    let entries = std::fs::read_dir(directory);
    let entries = entries.map_err(|error| format!("{}: {error}", directory.display()))?;
    let paths: BTreeSet<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let mut files = Files::new();
    for path in paths {
        if path.extension().is_none_or(|extension| extension != "csv") {
            continue;
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let names = stem.rsplit_once('.').and_then(|(stem, _)| {
            let (stem, variant) = stem.rsplit_once('-')?;
            let (app, mpi) = stem.rsplit_once('-')?;
            Some((app.to_owned(), mpi.to_owned(), variant.to_owned()))
        });
        let name = names
            .ok_or_else(|| format!("{}: no APPLICATION-MPI-VARIANT.RUN.csv", path.display()))?;
        files.entry(name).or_default().push(path);
    }
    Ok(files)
}

/// Reads the profiles in a directory, `APPLICATION-MPI-plain.RUN.csv` and
/// `APPLICATION-MPI-libcopy.RUN.csv`, and the limits there, and writes what they are together to
/// another one: `profiles.csv`, all lines; `profiles-summary.csv`, a line for each application and
/// MPI library; `profiles-chances.csv`, time that moves bytes by function, size and type, with what
/// the limit is and what libcopy takes; `profiles-limits.csv`; and the figures of the plain runs.
pub fn write(directory: &Path, out: &Path) -> Verdict {
    let limits = Limits::read(&directory.join("limits"))?;
    let mut profiles = Vec::new();
    let mut all = String::new();
    let files = files(directory)?;
    let mut cases: Vec<(&String, &String)> = files.keys().map(|(app, mpi, _)| (app, mpi)).collect();
    cases.dedup();
    for (app, mpi) in cases {
        let of = |variant: &str| {
            let paths = files.get(&(app.clone(), mpi.clone(), variant.to_owned()));
            Run::least(paths.map_or(&[], Vec::as_slice))
        };
        let Some(plain) = of("plain")? else { continue };
        let ours = of("libcopy")?;
        let figure = plain.path.with_extension("svg");
        if figure.exists() {
            let to = out.join(format!("profile-{app}-{mpi}.svg"));
            std::fs::copy(&figure, &to).map_err(|error| format!("{}: {error}", to.display()))?;
        }
        for (variant, run) in [("plain", Some(&plain)), ("libcopy", ours.as_ref())] {
            for (at, line) in run.iter().flat_map(|run| run.text.lines()).enumerate() {
                let _ = match at {
                    0 if all.is_empty() => writeln!(all, "application,mpi,variant,{line}"),
                    0 => Ok(()),
                    _ => writeln!(all, "{app},{mpi},{variant},{line}"),
                };
            }
        }
        profiles.push(Profile {
            app: app.clone(),
            mpi: mpi.clone(),
            plain: plain.lines,
            ours: ours.map_or(Vec::new(), |run| run.lines),
        });
    }
    if profiles.is_empty() {
        return Err(format!("no profile in {}", directory.display()));
    }
    let files = [
        ("profiles.csv", all),
        ("profiles-summary.csv", summary(&profiles)),
        ("profiles-chances.csv", chances(&profiles, &limits)),
        ("profiles-limits.csv", limits.table()),
    ];
    for (name, text) in files {
        let path = out.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(true)
}

/// An application with an MPI library.
struct Profile {
    app: String,
    mpi: String,
    plain: Vec<Line>,
    /// With libcopy at work; empty if there is no such run.
    ours: Vec<Line>,
}

fn summary(profiles: &[Profile]) -> String {
    let mut text =
        "application,MPI,in MPI %,waiting %,moving %,not split %,moving ms,with libcopy,calls,\
                    most moving in\n"
            .to_owned();
    for profile in profiles {
        let lines = &profile.plain;
        let sum = |part: fn(&Line) -> f64| {
            digits(
                100.0
                    * lines
                        .iter()
                        .map(|line| line.of_run(part(line)))
                        .sum::<f64>(),
            )
        };
        let most = lines.iter().max_by(|a, b| a.moving.total_cmp(&b.moving));
        let most = most.map_or(String::new(), |line| {
            format!("{} from {} {}", line.function, bytes(line.size), line.types)
        });
        let calls: u64 = lines.iter().map(|line| line.calls).sum();
        let ms = |lines: &[Line]| match lines {
            [] => String::new(),
            lines => digits(Sums::of(lines).moving / 1e6),
        };
        let _ = writeln!(
            text,
            "{},{},{},{},{},{},{},{},{calls},{most}",
            profile.app,
            profile.mpi,
            sum(|line| line.time),
            sum(|line| line.waiting),
            sum(|line| line.moving),
            sum(|line| line.unsplit),
            ms(lines),
            ms(&profile.ours)
        );
    }
    text
}

#[derive(Default)]
struct Chance {
    moving: f64,
    calls: u64,
    of_runs: f64,
    most: f64,
    where_most: String,
    profiles: BTreeSet<(String, String)>,
    /// Microseconds of all calls that are the least, while all functions are in the table.
    limit: Option<f64>,
    /// With libcopy at work: nanoseconds moving bytes, and calls.
    ours: (f64, u64),
}

fn chances(profiles: &[Profile], limits: &Limits) -> String {
    let mut chances: BTreeMap<(&str, u64, &str), Chance> = BTreeMap::new();
    for Profile {
        app,
        mpi,
        plain,
        ours,
    } in profiles
    {
        for line in plain {
            let key = (line.function.as_str(), line.size, line.types.as_str());
            let chance = chances.entry(key).or_insert(Chance {
                limit: Some(0.0),
                ..Chance::default()
            });
            let of_run = line.of_run(line.moving);
            chance.moving += line.moving;
            chance.calls += line.calls;
            chance.of_runs += of_run / profiles.len() as f64;
            chance.profiles.insert((app.clone(), mpi.clone()));
            let calls = line.calls as f64;
            let least = limits.of_call(&line.function, line.ranks, line.bytes / calls.max(1.0));
            chance.limit = chance
                .limit
                .zip(least)
                .map(|(sum, least)| sum + least * calls);
            if of_run >= chance.most {
                chance.most = of_run;
                chance.where_most = format!("{app} ({mpi})");
            }
        }
        for line in ours {
            let key = (line.function.as_str(), line.size, line.types.as_str());
            if let Some(chance) = chances.get_mut(&key) {
                chance.ours.0 += line.moving;
                chance.ours.1 += line.calls;
            }
        }
    }
    let all: f64 = chances.values().map(|chance| chance.moving).sum();
    let mut sorted: Vec<_> = chances.into_iter().collect();
    sorted.sort_by(|a, b| b.1.moving.total_cmp(&a.1.moving));
    let mut text =
        "function,size from,types,moving ms,of all moving %,mean of runs %,profiles,calls,\
                    us a call,libcopy us,limit us,most in,there % of run\n"
            .to_owned();
    for ((function, size, types), chance) in sorted.into_iter().take(CHANCES) {
        let _ = writeln!(
            text,
            "{function},{},{types},{},{},{},{},{},{},{},{},{},{}",
            bytes(size),
            digits(chance.moving / 1e6),
            digits(100.0 * chance.moving / all.max(1.0)),
            digits(100.0 * chance.of_runs),
            chance.profiles.len(),
            chance.calls,
            a_call(chance.moving / 1e3, chance.calls),
            a_call(chance.ours.0 / 1e3, chance.ours.1),
            chance
                .limit
                .map_or(String::new(), |limit| a_call(limit, chance.calls)),
            chance.where_most,
            digits(100.0 * chance.most)
        );
    }
    text
}

/// A sum divided by the calls that it is of; nothing where there were none.
fn a_call(sum: f64, calls: u64) -> String {
    match calls {
        0 => String::new(),
        calls => digits(sum / calls as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "function,size_class,types,ranks,place,calls,bytes,time_ns,waiting_ns,\
                        moving_ns,unsplit_ns,split,share_of_run";

    fn profile(app: &str, plain: &[&str], ours: &[&str]) -> Profile {
        let of = |rows: &[&str]| {
            let text = [&[HEAD], rows].concat().join("\n");
            lines(&text).expect("a profile")
        };
        Profile {
            app: app.to_owned(),
            mpi: "openmpi".to_owned(),
            plain: of(plain),
            ours: of(ours),
        }
    }

    #[test]
    fn chances_are_sums_over_all_profiles() {
        let bcast = "MPI_Bcast,2048,contiguous,2,machine,10,20480,4000000,1000000,3000000,0,clocks";
        let recv = "MPI_Recv,8,derived,2,machine,5,40,1000000,0,1000000,0,estimate";
        let ours = "MPI_Bcast,2048,contiguous,2,machine,20,20480,4000000,1000000,1000000,0,clocks";
        let profiles = [
            profile("a", &[&format!("{bcast},0.4")], &[&format!("{ours},0.2")]),
            profile(
                "b",
                &[&format!("{recv},0.01"), &format!("{bcast},0.06")],
                &[],
            ),
        ];
        let limits = Limits::of("bytes,us\n0,0.2\n64,0.1\n2048,1\n").expect("limits");
        let text = chances(&profiles, &limits);
        let rows: Vec<&str> = text.lines().skip(1).collect();
        // Of a broadcast to one other rank, half of the calls have a line and a copy.
        let half = 0.1 + 0.1 + 0.9 * (1024.0 - 64.0) / (2048.0 - 64.0);
        assert_eq!(
            rows,
            [
                format!(
                    "MPI_Bcast,2 KiB,contiguous,6.0,86,17,2,20,300,50,{half:.2},a (openmpi),30"
                ),
                "MPI_Recv,8 B,derived,1.0,14,0.50,1,5,200,,0.20,b (openmpi),1.0".to_owned(),
            ]
        );
        let summary = summary(&profiles);
        let rows: Vec<&str> = summary.lines().skip(1).collect();
        assert_eq!(
            rows,
            [
                "a,openmpi,40,10,30,0.00,3.0,1.0,10,MPI_Bcast from 2 KiB contiguous",
                "b,openmpi,7.0,1.5,5.5,0.00,4.0,,15,MPI_Bcast from 2 KiB contiguous",
            ]
        );
    }

    #[test]
    fn of_several_runs_the_least_disturbed_counts() {
        let place = std::env::temp_dir().join(format!("xtask-profiles-{}", std::process::id()));
        let out = place.join("out");
        std::fs::create_dir_all(&out).unwrap();
        let put = |name: &str, text: &str| std::fs::write(place.join(name), text).unwrap();
        put("limits", "bytes,us\n0,0.2\n64,0.1\n2048,1\n");
        for (run, moving) in [(1, 9_000_000), (2, 2_000_000), (3, 3_000_000)] {
            let line =
                format!("MPI_Recv,8,contiguous,2,machine,1,8,9000000,0,{moving},0,estimate,0.5");
            put(
                &format!("b-fft-mpich-plain.{run}.csv"),
                &format!("{HEAD}\n{line}\n"),
            );
            put(
                &format!("b-fft-mpich-plain.{run}.svg"),
                &format!("figure {run}"),
            );
        }
        assert_eq!(write(&place, &out), Ok(true));
        let [summary, figure] = ["profiles-summary.csv", "profile-b-fft-mpich.svg"]
            .map(|name| read(&out.join(name)).unwrap());
        assert!(
            summary.contains("\nb-fft,mpich,50,0.00,11,0.00,2.0,,1,"),
            "{summary}"
        );
        assert_eq!(figure, "figure 2");
        put("nothing.csv", HEAD);
        let error = write(&place, &out).unwrap_err();
        assert!(error.contains("nothing.csv: no APPLICATION-MPI"), "{error}");
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn what_is_no_profile_is_an_error() {
        assert!(lines("a,b\n1,2\n").is_none());
        assert!(lines(HEAD).is_some_and(|lines| lines.is_empty()));
    }
}
