// SPDX-License-Identifier: MIT OR Apache-2.0

//! `scripts/apps --profile`: what the profiles of all applications say together.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::{Verdict, read};

/// Chances that are listed.
const CHANCES: usize = 25;

/// A line of `libcopy mpi profile --csv`.
struct Line {
    function: String,
    size: u64,
    types: String,
    calls: u64,
    time: f64,
    waiting: f64,
    moving: f64,
    unsplit: f64,
    share: f64,
}

/// The columns that are looked at.
const COLUMNS: [&str; 9] = [
    "function",
    "size_class",
    "types",
    "calls",
    "time_ns",
    "waiting_ns",
    "moving_ns",
    "unsplit_ns",
    "share_of_run",
];

impl Line {
    fn read(cells: &BTreeMap<&str, &str>) -> Option<Line> {
        let [function, size, types, calls, numbers @ ..] = COLUMNS.map(|name| cells.get(name));
        let number = |at: usize| numbers[at]?.parse::<f64>().ok();
        Some(Line {
            function: (*function?).to_owned(),
            size: size?.parse().ok()?,
            types: (*types?).to_owned(),
            calls: calls?.parse().ok()?,
            time: number(0)?,
            waiting: number(1)?,
            moving: number(2)?,
            unsplit: number(3)?,
            share: number(4)?,
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

/// Reads the profiles in a directory, `APPLICATION-MPI.csv`, and writes what they are together to
/// another one: `profiles.csv`, all lines; `profiles-summary.csv`, a line for each profile; and
/// `profiles-chances.csv`, time that moves bytes by function, size and type.
pub fn write(directory: &Path, out: &Path) -> Verdict {
    let entries = std::fs::read_dir(directory);
    let entries = entries.map_err(|error| format!("{}: {error}", directory.display()))?;
    let paths: BTreeSet<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let mut profiles = Vec::new();
    let mut all = String::new();
    for path in paths
        .iter()
        .filter(|path| path.extension().is_some_and(|e| e == "csv"))
    {
        let stem = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned());
        let stem = stem.unwrap_or_default();
        let Some((app, mpi)) = stem.rsplit_once('-') else {
            return Err(format!("{}: no APPLICATION-MPI.csv", path.display()));
        };
        let text = read(path)?;
        let lines = lines(&text).ok_or_else(|| format!("{}: no profile as CSV", path.display()))?;
        for (at, line) in text.lines().enumerate() {
            match at {
                0 if all.is_empty() => writeln!(all, "application,mpi,{line}"),
                0 => Ok(()),
                _ => writeln!(all, "{app},{mpi},{line}"),
            }
            .map_err(|error| error.to_string())?;
        }
        profiles.push((app.to_owned(), mpi.to_owned(), lines));
    }
    if profiles.is_empty() {
        return Err(format!("no profile in {}", directory.display()));
    }
    let files = [
        ("profiles.csv", all),
        ("profiles-summary.csv", summary(&profiles)),
        ("profiles-chances.csv", chances(&profiles)),
    ];
    for (name, text) in files {
        let path = out.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(true)
}

type Profile = (String, String, Vec<Line>);

fn summary(profiles: &[Profile]) -> String {
    let mut text =
        "application,MPI,in MPI %,waiting %,moving %,not split %,calls,most moving in\n".to_owned();
    for (app, mpi, lines) in profiles {
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
        let _ = writeln!(
            text,
            "{app},{mpi},{},{},{},{},{calls},{most}",
            sum(|line| line.time),
            sum(|line| line.waiting),
            sum(|line| line.moving),
            sum(|line| line.unsplit)
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
}

fn chances(profiles: &[Profile]) -> String {
    let mut chances: BTreeMap<(&str, u64, &str), Chance> = BTreeMap::new();
    for (app, mpi, lines) in profiles {
        for line in lines {
            let key = (line.function.as_str(), line.size, line.types.as_str());
            let chance = chances.entry(key).or_default();
            let of_run = line.of_run(line.moving);
            chance.moving += line.moving;
            chance.calls += line.calls;
            chance.of_runs += of_run / profiles.len() as f64;
            chance.profiles.insert((app.clone(), mpi.clone()));
            if of_run >= chance.most {
                chance.most = of_run;
                chance.where_most = format!("{app} ({mpi})");
            }
        }
    }
    let all: f64 = chances.values().map(|chance| chance.moving).sum();
    let mut sorted: Vec<_> = chances.into_iter().collect();
    sorted.sort_by(|a, b| b.1.moving.total_cmp(&a.1.moving));
    let mut text =
        "function,size from,types,moving ms,of all moving %,mean of runs %,profiles,calls,\
                    us a call,most in,there % of run\n"
            .to_owned();
    for ((function, size, types), chance) in sorted.into_iter().take(CHANCES) {
        let _ = writeln!(
            text,
            "{function},{},{types},{},{},{},{},{},{},{},{}",
            bytes(size),
            digits(chance.moving / 1e6),
            digits(100.0 * chance.moving / all.max(1.0)),
            digits(100.0 * chance.of_runs),
            chance.profiles.len(),
            chance.calls,
            digits(chance.moving / 1e3 / chance.calls.max(1) as f64),
            chance.where_most,
            digits(100.0 * chance.most)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "function,size_class,types,ranks,place,calls,bytes,time_ns,waiting_ns,\
                        moving_ns,unsplit_ns,split,share_of_run";

    fn profile(app: &str, rows: &[&str]) -> Profile {
        let text = [&[HEAD], rows].concat().join("\n");
        let lines = lines(&text).expect("a profile");
        (app.to_owned(), "openmpi".to_owned(), lines)
    }

    #[test]
    fn chances_are_sums_over_all_profiles() {
        let bcast = "MPI_Bcast,2048,contiguous,2,machine,10,20480,4000000,1000000,3000000,0,clocks";
        let recv = "MPI_Recv,8,derived,2,machine,5,40,1000000,0,1000000,0,estimate";
        let profiles = [
            profile("a", &[&format!("{bcast},0.4")]),
            profile("b", &[&format!("{recv},0.01"), &format!("{bcast},0.04")]),
        ];
        let text = chances(&profiles);
        let rows: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(
            rows,
            [
                "MPI_Bcast,2 KiB,contiguous,6.0,86,17,2,20,300,a (openmpi),30",
                "MPI_Recv,8 B,derived,1.0,14,0.50,1,5,200,b (openmpi),1.0",
            ]
        );
        let summary = summary(&profiles);
        let rows: Vec<&str> = summary.lines().skip(1).collect();
        assert_eq!(
            rows,
            [
                "a,openmpi,40,10,30,0.00,10,MPI_Bcast from 2 KiB contiguous",
                "b,openmpi,5.0,1.0,4.0,0.00,15,MPI_Bcast from 2 KiB contiguous",
            ]
        );
    }

    #[test]
    fn what_is_no_profile_is_an_error() {
        assert!(lines("a,b\n1,2\n").is_none());
        assert!(lines(HEAD).is_some_and(|lines| lines.is_empty()));
    }
}
