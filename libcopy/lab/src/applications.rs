// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy-lab scale --profiles FILE`: the collectives of applications on machines with many
//! cores, simulated: as often as a profile of a few ranks has them (`scripts/apps --profile`), and
//! of the same problem on more ranks. Messages between two ranks are not simulated.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use libcopy::plan::Operation;
use libcopy_measure::progress;
use libcopy_measure::report::{digits, plain_table, right_aligned, write_file};
use libcopy_model::machines::Preset;

use crate::simulated::{BOUND, OWN, variants};

/// First line of the CSV file.
const HEADER: &str = "machine,ranks,application,mpi,calls,libcopy_us,others_us,flat_us";

/// Calls of a class of a profile.
#[derive(Debug, PartialEq)]
struct Class {
    application: String,
    mpi: String,
    op: Operation,
    /// Bytes of a buffer, or of a rank's block, about.
    bytes: usize,
    ranks: usize,
    /// Of a rank.
    calls: f64,
}

/// The collective of a function: nonblocking and irregular ones are like the others.
fn operation(function: &str) -> Option<Operation> {
    let name = function.strip_prefix("MPI_")?.to_lowercase();
    let known = |name: &str| {
        let ends = ["", "_block", "v", "w"];
        let mut names = ends.into_iter().filter_map(|end| name.strip_suffix(end));
        names.find_map(|name| Operation::ALL.into_iter().find(|it| it.name() == name))
    };
    known(&name).or_else(|| known(name.strip_prefix('i')?))
}

/// Reads what `scripts/apps --profile` has written.
fn read(text: &str) -> Result<Vec<Class>> {
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let column = |name: &str| {
        let found = header.iter().position(|it| *it == name);
        found.with_context(|| format!("there is no column '{name}'"))
    };
    let names = [
        "application",
        "mpi",
        "function",
        "size_class",
        "ranks",
        "calls",
    ];
    let columns = names
        .map(column)
        .into_iter()
        .collect::<Result<Vec<usize>>>()?;
    let mut classes = Vec::new();
    for (number, line) in (2..).zip(lines) {
        let cells: Vec<&str> = line.split(',').collect();
        let cell = |index: usize| {
            let cell = columns.get(index).and_then(|column| cells.get(*column));
            cell.with_context(|| format!("line {number} has too few columns"))
        };
        let count = |index: usize| {
            let cell = cell(index)?;
            let count = cell.parse::<usize>();
            count.with_context(|| format!("line {number}: '{cell}' is no number"))
        };
        let Some(op) = operation(cell(2)?) else {
            continue;
        };
        let (least, ranks) = (count(3)?, count(4)?);
        if ranks < 2 {
            continue;
        }
        classes.push(Class {
            application: (*cell(0)?).to_owned(),
            mpi: (*cell(1)?).to_owned(),
            op,
            // The middle of a class that goes up to twice its least.
            bytes: least + least / 2,
            ranks,
            calls: count(5)? as f64 / ranks as f64,
        });
    }
    if classes.is_empty() {
        bail!("there are no collectives of two ranks or more");
    }
    Ok(classes)
}

/// Bytes of a call where the same problem is divided among more ranks.
fn divided(class: &Class, ranks: usize) -> usize {
    use Operation::{Allgather, Alltoall, Gather, ReduceScatter, Scatter};
    let share = class.ranks as f64 / ranks as f64;
    let share = match class.op {
        Allgather | Gather | ReduceScatter | Scatter => share,
        Alltoall => share * share,
        _ => 1.0,
    };
    let element = if class.op.combines() { 8 } else { 1 };
    let bytes = (class.bytes as f64 * share).ceil() as usize;
    match class.op {
        Operation::Barrier => 0,
        // A simulation of a size stands for those near it.
        _ => bytes.next_power_of_two().max(element),
    }
}

/// What the collectives of an application take of a rank, in seconds.
#[derive(Default)]
struct Total {
    calls: f64,
    own: f64,
    /// The fastest of the others for each class.
    others: f64,
    flat: f64,
}

/// Simulates the collectives of a profile.
pub fn run(
    path: &Path,
    machines: &[&'static Preset],
    ranks: &[usize],
    csv: Option<&Path>,
) -> Result<()> {
    let name = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(name)?;
    let classes = read(&text).with_context(name)?;
    let mut rows = format!("{HEADER}\n");
    println!(
        "Simulated; all rates of the machines are assumed. Collectives of a rank, in microseconds."
    );
    for machine in machines {
        let cores = machine.cores();
        let given = ranks.iter().copied().filter(|it| (2..=cores).contains(it));
        let numbers: Vec<usize> = if ranks.is_empty() {
            vec![cores]
        } else {
            given.collect()
        };
        for ranks in numbers {
            let totals = simulate(&classes, machine, ranks)?;
            println!("\n{}: {}, {ranks} ranks", machine.name, machine.description);
            let mut table = plain_table();
            table.set_header([
                "application",
                "MPI",
                "calls",
                OWN,
                "others",
                "flat",
                "others/libcopy",
            ]);
            let mut ratios = Vec::new();
            for ((application, mpi), total) in totals {
                let ratio = total.others / total.own;
                ratios.push(ratio);
                let times = [total.own, total.others, total.flat].map(|it| it * 1e6);
                let [own, others, flat] = times;
                let mut row = vec![
                    application.to_owned(),
                    mpi.to_owned(),
                    format!("{:.0}", total.calls),
                ];
                row.extend(times.map(digits));
                row.push(format!("{ratio:.2}"));
                table.add_row(row);
                let (machine, calls) = (machine.name, total.calls);
                let _ = writeln!(
                    rows,
                    "{machine},{ranks},{application},{mpi},{calls:.0},{own:.1},{others:.1},{flat:.1}"
                );
            }
            right_aligned(&mut table, 2);
            println!("{}", table.trim_fmt());
            let logarithms: f64 = ratios.iter().map(|it| it.ln()).sum();
            let mean = (logarithms / ratios.len() as f64).exp();
            println!("geometric mean of others/libcopy: {mean:.2}");
        }
    }
    csv.map_or(Ok(()), |path| write_file(path, rows))
}

fn simulate<'a>(
    classes: &'a [Class],
    machine: &'static Preset,
    ranks: usize,
) -> Result<BTreeMap<(&'a str, &'a str), Total>> {
    let mut known: HashMap<(Operation, usize), Vec<(&'static str, f64)>> = HashMap::new();
    let mut totals: BTreeMap<_, Total> = BTreeMap::new();
    let bar = progress::bar(classes.len() as u64);
    for class in classes {
        let key = (class.op, divided(class, ranks));
        bar.set_message(format!("{} of {} bytes", key.0.name(), key.1));
        let times = match known.get(&key) {
            Some(times) => times,
            None => {
                let times = variants(machine, ranks, key.0, key.1)?;
                known.entry(key).or_insert(times)
            }
        };
        let of = |name| {
            times
                .iter()
                .find(|(it, _)| *it == name)
                .map(|(_, time)| *time)
        };
        let others = times
            .iter()
            .filter(|(name, _)| ![OWN, BOUND].contains(name));
        let least = others.map(|(_, time)| *time).fold(f64::INFINITY, f64::min);
        let total = totals
            .entry((&class.application[..], &class.mpi[..]))
            .or_default();
        total.calls += class.calls;
        total.own += class.calls * of(OWN).context("no time")?;
        total.others += class.calls * least;
        total.flat += class.calls * of("flat").context("no flat way")?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_operations() {
        for (function, op) in [
            ("MPI_Bcast", Operation::Bcast),
            ("MPI_Ibcast", Operation::Bcast),
            ("MPI_Alltoallw", Operation::Alltoall),
            ("MPI_Iallgatherv", Operation::Allgather),
            ("MPI_Reduce_scatter_block", Operation::ReduceScatter),
            ("MPI_Reduce_scatter", Operation::ReduceScatter),
        ] {
            assert_eq!(operation(function), Some(op), "{function}");
        }
        for function in ["MPI_Send", "MPI_Irecv", "MPI_Neighbor_allgather", "Bcast"] {
            assert_eq!(operation(function), None, "{function}");
        }
    }

    #[test]
    fn profiles_are_read_and_divided() {
        let text = "application,mpi,function,size_class,ranks,calls\n\
                    a,openmpi,MPI_Alltoall,4096,2,200\n\
                    a,openmpi,MPI_Send,4096,2,200\n\
                    a,openmpi,MPI_Allreduce,8,4,8\n";
        let classes = read(text).unwrap();
        let found: Vec<_> = classes
            .iter()
            .map(|it| (it.op, it.bytes, it.calls))
            .collect();
        assert_eq!(
            found,
            [
                (Operation::Alltoall, 6144, 100.0),
                (Operation::Allreduce, 12, 2.0)
            ]
        );
        // A fourth of the rows, a fourth of the columns.
        assert_eq!(divided(&classes[0], 8), 512);
        assert_eq!(divided(&classes[1], 64), 16);
        assert!(read("application,mpi\n").is_err());
        let no_number = text.replace("4096,2,200", "x,2,200");
        assert!(format!("{:#}", read(&no_number).unwrap_err()).contains("'x' is no number"));
    }
}
