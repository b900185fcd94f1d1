// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy-lab scale` (`scripts/bench scale`): what plans of collectives and those of other
//! libraries take on machines with many cores, simulated.

use crate::applications;
use crate::simulated::{BOUND, OWN, variants};
use anyhow::{Context, Result, bail};
use clap::Args;
use libcopy::plan::Operation;
use libcopy_measure::machine::Machine as Simulated;
use libcopy_measure::report::{
    Ratio, Report, Row, check_file, digits, plain_table, right_aligned, write_file,
};
use libcopy_measure::sample::Spread;
use libcopy_measure::{plot, progress, sizes};
use libcopy_model::machines::{MACHINES, Preset};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// First line of the CSV file.
const HEADER: &str = "machine,ranks,op,bytes,variant,us";

/// How much slower than the flat way a cell may be before it is named.
const BEHIND: f64 = 1.02;

/// What is compared with what.
#[derive(Args, Debug)]
pub struct ScaleArgs {
    /// Few sizes and all cores of each machine only
    #[arg(long)]
    quick: bool,

    /// Machines by name; all if none is given
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    machines: Vec<String>,

    /// Operations
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "barrier,bcast,reduce,allreduce,reduce_scatter,allgather,gather,scatter,alltoall,scan"
    )]
    ops: Vec<String>,

    /// Bytes of a buffer, or of a rank's block
    #[arg(long, value_name = "SIZES")]
    sizes: Option<sizes::Sizes>,

    /// Numbers of ranks; those that a machine has no cores for are left out
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    ranks: Vec<usize>,

    /// Instead, the collectives of applications as often as this file has them, which `scripts/apps
    /// --profile` writes; of the same problem on more ranks
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "ops", "sizes", "plot"])]
    profiles: Option<PathBuf>,

    /// Write the results as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Draw the results: FILE-MACHINE with the endings .png and .svg
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// A time of a variant.
struct Cell {
    machine: &'static Preset,
    ranks: usize,
    op: Operation,
    bytes: usize,
    variant: &'static str,
    seconds: f64,
}

/// Runs `libcopy-lab scale`.
pub fn run(args: &ScaleArgs) -> Result<()> {
    let machines = machines(&args.machines)?;
    if let Some(profiles) = &args.profiles {
        if let Some(path) = &args.csv {
            check_file("--csv", path)?;
        }
        return applications::run(profiles, &machines, &args.ranks, args.csv.as_deref());
    }
    let ops: Result<Vec<Operation>> = args.ops.iter().map(|name| operation(name)).collect();
    let ops = ops?;
    let lengths = match &args.sizes {
        Some(sizes) => sizes.0.clone(),
        None if args.quick => vec![64 << 10, 1 << 20],
        None => vec![8, 1 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20],
    };
    if let Some(path) = &args.csv {
        check_file("--csv", path)?;
    }
    let mut cases = Vec::new();
    for machine in &machines {
        for ranks in numbers(machine, args) {
            for op in &ops {
                for bytes in &lengths {
                    if let Some(bytes) = length(*op, *bytes, ranks, lengths[0]) {
                        cases.push((*machine, ranks, *op, bytes));
                    }
                }
            }
        }
    }
    let bar = progress::bar(cases.len() as u64);
    let mut cells = Vec::new();
    for (machine, ranks, op, bytes) in cases {
        bar.set_message(format!("{} {} {ranks} ranks", machine.name, op.name()));
        simulate_case(machine, ranks, op, bytes, &mut cells)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    print(&machines, &cells);
    if let Some(path) = &args.csv {
        write_csv(path, &cells)?;
    }
    if let Some(path) = &args.plot {
        for machine in &machines {
            draw(path, machine, &cells)?;
        }
    }
    Ok(())
}

fn machines(names: &[String]) -> Result<Vec<&'static Preset>> {
    if names.is_empty() {
        return Ok(MACHINES.iter().collect());
    }
    let one = |name: &String| {
        let all: Vec<&str> = MACHINES.iter().map(|it| it.name).collect();
        let found = Preset::named(name);
        found.with_context(|| format!("--machines {name}: there are {}", all.join(", ")))
    };
    names.iter().map(one).collect()
}

fn operation(name: &str) -> Result<Operation> {
    let found = Operation::ALL.into_iter().find(|it| it.name() == name);
    let Some(found) = found else {
        let names: Vec<&str> = Operation::ALL.iter().map(|it| it.name()).collect();
        bail!("--ops {name}: there are {}", names.join(", "));
    };
    Ok(found)
}

/// Numbers of ranks on a machine.
fn numbers(machine: &Preset, args: &ScaleArgs) -> Vec<usize> {
    let cores = machine.cores();
    let mut numbers = match (&args.ranks[..], args.quick) {
        ([], true) => vec![cores],
        ([], false) => (1..)
            .map(|power| 1 << power)
            .take_while(|it| *it < cores)
            .chain([cores])
            .collect(),
        (given, _) => given.to_vec(),
    };
    numbers.retain(|it| (2..=cores).contains(it));
    numbers.dedup();
    numbers
}

/// The length of a case; None if it is another one's, or if nobody has so much memory.
fn length(op: Operation, bytes: usize, ranks: usize, first: usize) -> Option<usize> {
    // A buffer of all ranks' blocks has 1 GiB at most.
    let most = match op {
        Operation::Allgather | Operation::Alltoall | Operation::ReduceScatter => (1 << 30) / ranks,
        _ => usize::MAX,
    };
    match op {
        Operation::Barrier => (bytes == first).then_some(0),
        _ => (bytes <= most).then_some(bytes),
    }
}

fn simulate_case(
    preset: &'static Preset,
    ranks: usize,
    op: Operation,
    bytes: usize,
    cells: &mut Vec<Cell>,
) -> Result<()> {
    for (variant, seconds) in variants(preset, ranks, op, bytes)? {
        cells.push(Cell {
            machine: preset,
            ranks,
            op,
            bytes,
            variant,
            seconds,
        });
    }
    Ok(())
}

/// The variants, in the order of the columns.
const VARIANTS: [&str; 6] = [OWN, "flat", "xhc", "binomial", "ring", BOUND];

fn print(machines: &[&'static Preset], cells: &[Cell]) {
    let find = |machine: &str, ranks, op, bytes, variant| {
        let mut found = cells
            .iter()
            .filter(|it| it.variant == variant && it.machine.name == machine);
        found
            .find(|it| (it.ranks, it.op, it.bytes) == (ranks, op, bytes))
            .map(|it| it.seconds)
    };
    println!("Simulated times in microseconds; all rates of the machines are assumed.");
    let mut behind = Vec::new();
    for machine in machines {
        let own = cells
            .iter()
            .filter(|it| it.variant == "libcopy" && it.machine.name == machine.name);
        let own: Vec<&Cell> = own.collect();
        let most = own.iter().map(|it| it.ranks).max().unwrap_or(0);
        println!("\n{}: {}, {most} ranks", machine.name, machine.description);
        let mut table = plain_table();
        let ratios = ["flat/libcopy", "xhc/libcopy", "libcopy/bound"];
        table.set_header([&["op", "bytes"][..], &VARIANTS, &ratios].concat());
        for cell in own {
            let of = |variant| find(machine.name, cell.ranks, cell.op, cell.bytes, variant);
            let ratio = |one: Option<f64>, other: Option<f64>| match (one, other) {
                (Some(one), Some(other)) if other > 0.0 => format!("{:.2}", one / other),
                _ => String::new(),
            };
            if let Some(flat) = of("flat").filter(|flat| cell.seconds > flat * BEHIND) {
                behind.push((cell.seconds / flat, cell));
            }
            if cell.ranks < most {
                continue;
            }
            let mut row = vec![cell.op.name().to_owned(), sizes::short(cell.bytes)];
            row.extend(
                VARIANTS.map(|variant| of(variant).map_or(String::new(), |it| digits(it * 1e6))),
            );
            row.push(ratio(of("flat"), Some(cell.seconds)));
            row.push(ratio(of("xhc"), Some(cell.seconds)));
            row.push(ratio(Some(cell.seconds), of("bound")));
            table.add_row(row);
        }
        right_aligned(&mut table, 1);
        println!("{}", table.trim_fmt());
    }
    behind.sort_by(|one, other| other.0.total_cmp(&one.0));
    let all = cells.iter().filter(|it| it.variant == "libcopy").count();
    println!(
        "\nMore than 2 % behind flat: {} of {all} cells",
        behind.len()
    );
    for (ratio, cell) in behind.iter().take(20) {
        let bytes = sizes::short(cell.bytes);
        println!(
            "  {ratio:.2}  {} {} ranks {} {bytes}",
            cell.machine.name,
            cell.ranks,
            cell.op.name()
        );
    }
}

fn write_csv(path: &Path, cells: &[Cell]) -> Result<()> {
    let mut text = format!("{HEADER}\n");
    for Cell {
        machine,
        ranks,
        op,
        bytes,
        variant,
        seconds,
    } in cells
    {
        let name = machine.name;
        let _ = writeln!(
            text,
            "{name},{ranks},{},{bytes},{variant},{:.3}",
            op.name(),
            seconds * 1e6
        );
    }
    write_file(path, text)
}

/// A figure of a machine with all its cores.
fn draw(path: &Path, machine: &Preset, cells: &[Cell]) -> Result<()> {
    let of_machine = || cells.iter().filter(|it| it.machine.name == machine.name);
    let most = of_machine().map(|it| it.ranks).max().unwrap_or(0);
    let shown = of_machine().filter(|it| it.ranks == most && it.bytes > 0 && it.seconds > 0.0);
    let rows = shown.map(|it| Row {
        op: it.op.name().to_owned(),
        bytes: it.bytes,
        ranks: it.ranks,
        variant: it.variant.to_owned(),
        time: Spread::exactly(it.seconds * 1e6),
        verified: true,
    });
    let report = Report {
        title: format!("{}, {most} ranks (simulated)", machine.description),
        machine: Simulated {
            processor: machine.description.to_owned(),
            cores: machine.cores(),
            nodes: machine.counts[0] * machine.counts[1],
            memory: 0,
            kernel: String::new(),
            guest: Some("simulated".into()),
        },
        notes: Vec::new(),
        rows: rows.collect(),
        ratios: Vec::<Ratio>::new(),
    };
    // One of the two endings may be given.
    let name = path
        .file_stem()
        .context("--plot: a file's name")?
        .to_string_lossy();
    let path = path.with_file_name(format!("{name}-{}", machine.name));
    let (png, _) = plot::write(&report, plot::Axis::Latency, &path)?;
    println!("{}", png.display());
    Ok(())
}
