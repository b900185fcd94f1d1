// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy plan`: how a collective goes on a machine with many cores, without one.

use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::Cell;
use libcopy::plan::choose::{Way, best, buffer, estimate, ways};
use libcopy::plan::{Call, Costs, Lengths, Machine, Operation, Plan, Plans, Tree, Workers, check};
use libcopy::policy::Policy;
use libcopy::topology::{self, Level, Object};
use libcopy::transport::{TransportKind, probe_machine};
use libcopy_bench::plans::{ORDERS, checked, measured};
use libcopy_bench::stages;
use libcopy_measure::report::{plain_table, right_aligned};
use libcopy_measure::{progress, sizes};
use libcopy_model::describe;
use libcopy_model::machines::{MACHINES, Preset};
use libcopy_model::simulate::{self, Simulation};
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::PathBuf;

/// What every reader of the output must know.
pub const SIMULATED: &str = "\
All times are simulated: flows that share the caches, ports, memories and links of a machine whose rates are
assumed, or were measured by `libcopy tune --contention` where it is this one. Machines: epyc-9654, epyc-7742, xeon-8480, xeon-6148, grace, desktop; or --topology with a directory that
has sys and proc of another one (scripts/topologies fetches some fifty).";

/// Ranks at most: a plan of an alltoall has pieces for each pair.
const MOST_RANKS: usize = 1024;

/// Chunks that are simulated, at most, besides those of the way that is taken.
const MOST_CHUNKS: usize = 200_000;

/// Arguments of `libcopy plan`.
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// The operation: barrier, bcast, reduce, allreduce, reduce_scatter, allgather, gather,
    /// scatter, alltoall, scan or exscan
    #[arg(value_parser = operation)]
    operation: Operation,

    /// Number of ranks, bound to cores one after the other; all cores if it is not given
    #[arg(short = 'n', long, value_name = "N")]
    ranks: Option<usize>,

    /// Bytes of the buffer, or of each rank's block
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = sizes::parse)]
    bytes: usize,

    /// The root
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    root: usize,

    /// A machine by its name
    #[arg(long, value_name = "NAME", conflicts_with = "topology")]
    machine: Option<String>,

    /// The machine whose sys and proc are in this directory, with rates of `epyc-7742`
    #[arg(long, value_name = "DIR")]
    topology: Option<PathBuf>,

    /// Levels of the machine that become groups, instead of those that take least: package, node,
    /// cache, or none
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["package", "node", "cache", "none"])]
    levels: Option<Vec<String>>,

    /// Ranks that move their blocks of a gather or a scatter at the same time, at most
    #[arg(long, value_name = "N", default_value_t = usize::MAX, hide_default_value = true)]
    at_once: usize,

    /// Whose stages are listed; the last one's if it is not given
    #[arg(long, value_name = "RANK")]
    rank: Option<usize>,

    /// Run the plans here, too, this often, with a thread for each rank, and compare every byte
    #[arg(long, value_name = "TIMES", conflicts_with_all = ["machine", "topology"])]
    measure: Option<usize>,

    /// Draw which rank is in which stage when
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn operation(text: &str) -> Result<Operation, String> {
    let found = Operation::ALL.into_iter().find(|it| it.name() == text);
    found.ok_or_else(|| {
        let names: Vec<&str> = Operation::ALL.iter().map(|it| it.name()).collect();
        format!("{text:?} is none of {}", names.join(", "))
    })
}

/// The machine that the arguments name.
struct Chosen {
    name: String,
    object: Object,
    places: Vec<usize>,
    costs: Costs,
}

fn chosen(args: &PlanArgs) -> Result<Chosen> {
    let (name, object, costs) = match (&args.machine, &args.topology) {
        (Some(name), _) => {
            let preset = Preset::named(name).with_context(|| {
                let names: Vec<&str> = MACHINES.iter().map(|it| it.name).collect();
                format!("--machine {name} is none of {}", names.join(", "))
            })?;
            let description = preset.description.to_owned();
            (description, preset.objects().0, preset.costs)
        }
        (None, Some(directory)) => {
            if !directory.join("sys/devices/system/cpu").is_dir() {
                bail!(
                    "--topology {}: no sys/devices/system/cpu is in it (scripts/topologies fetches snapshots)",
                    directory.display()
                );
            }
            let object = topology::objects_below(directory);
            (directory.display().to_string(), object, Costs::BUILT_IN)
        }
        (None, None) => {
            let measured = Policy::load()?.contention;
            let usable = probe_machine().into_iter().find(|it| it.usable);
            let kind = usable.map_or(TransportKind::Shm, |it| it.kind);
            let costs = measured.map_or(Costs::BUILT_IN, |it| it.costs(kind));
            let name = match measured {
                Some(_) => format!("this machine, as measured with {}", kind.name()),
                None => "this machine".to_owned(),
            };
            (name, topology::objects(), costs)
        }
    };
    let all = object.all();
    let cores = all
        .iter()
        .enumerate()
        .filter(|(_, (_, it))| it.inside.is_empty());
    let cores: Vec<usize> = cores.map(|(index, _)| index).collect();
    let ranks = args.ranks.unwrap_or(cores.len());
    if !(1..=MOST_RANKS).contains(&ranks) {
        bail!("--ranks {ranks}: from 1 to {MOST_RANKS} are possible");
    }
    let places = (0..ranks).map(|rank| cores[rank % cores.len()]).collect();
    Ok(Chosen {
        name,
        object,
        places,
        costs,
    })
}

/// A way with what is known of it.
struct Tried {
    way: Way,
    estimate: f64,
    /// None if the ways that take less have too many chunks already.
    simulation: Option<Simulation>,
}

/// Runs `libcopy plan`.
pub fn run(args: &PlanArgs) -> Result<()> {
    let chosen = chosen(args)?;
    let ranks = chosen.places.len();
    for (option, rank) in [("--root", Some(args.root)), ("--rank", args.rank)] {
        if let Some(rank) = rank.filter(|rank| *rank >= ranks) {
            bail!("{option} {rank}: there are ranks 0 to {}", ranks - 1);
        }
    }
    let element = if args.operation.combines() { 8 } else { 1 };
    if args.bytes % element > 0 {
        bail!(
            "--bytes {}: {} combines elements of {element} bytes",
            args.bytes,
            args.operation.name()
        );
    }
    let call = Call {
        operation: args.operation,
        root: if args.operation.has_root() {
            args.root
        } else {
            0
        },
        lengths: Lengths::Same(if args.operation == Operation::Barrier {
            0
        } else {
            args.bytes
        }),
        in_rank_order: args.operation.is_scan(),
        element,
    };
    let machine = Machine::new(&chosen.object, &chosen.places, chosen.costs);
    let bytes = buffer(&call, ranks);
    let mut all = ways(&chosen.object, &chosen.places, &call, &chosen.costs);
    let wanted = args.levels.as_ref().map(|names| {
        let levels = [Level::Package, Level::Node, Level::Cache];
        let named = |level: &Level| names.iter().any(|name| name == level.name());
        levels.into_iter().filter(named).collect::<Vec<Level>>()
    });
    let taken = match &wanted {
        None => best(&chosen.object, &chosen.places, &call, chosen.costs),
        Some(wanted) => {
            let tree = Tree::new(
                &chosen.object,
                &chosen.places,
                wanted,
                libcopy::plan::MOST_MEMBERS,
            );
            all.retain(|way| way.tree == tree);
            all.first().cloned()
        }
    };
    let mut taken = taken.context("no way goes")?;
    for way in all.iter_mut().chain([&mut taken]) {
        way.shape.at_once = way.shape.at_once.min(args.at_once);
    }
    let plans = Plans::new(&taken.tree, &call, taken.shape).all();
    let bar = progress::bar(all.len() as u64 + ORDERS);
    let mut tried: Vec<Tried> = all
        .into_iter()
        .map(|way| Tried {
            estimate: estimate(&way, &call, &machine),
            way,
            simulation: None,
        })
        .collect();
    // The way that is taken, and then those that take least.
    let mut order: Vec<usize> = (0..tried.len()).collect();
    order.sort_by(|one, other| {
        let (one, other) = (&tried[*one], &tried[*other]);
        let taken_first = (one.way != taken).cmp(&(other.way != taken));
        taken_first.then(one.estimate.total_cmp(&other.estimate))
    });
    let mut chunks = 0;
    for index in order {
        let it = &mut tried[index];
        bar.set_message(format!("simulating groups by {}", levels(&it.way)));
        let made;
        let plans = if it.way == taken {
            &plans
        } else {
            made = Plans::new(&it.way.tree, &call, it.way.shape).all();
            chunks += made
                .iter()
                .map(|plan| chunks_of(plan, it.way.chunk))
                .sum::<usize>();
            &made
        };
        if chunks > MOST_CHUNKS {
            break;
        }
        it.simulation = Some(simulate::run(plans, &machine, bytes, it.way.chunk)?);
        bar.inc(1);
    }
    let left_out = tried.iter().filter(|it| it.simulation.is_none()).count();
    bar.inc(left_out as u64);
    bar.set_message("checking");
    let checked_bytes = checked(&taken, &call, ranks, || bar.inc(1))?;
    bar.finish_and_clear();
    let findings = check::findings(&taken.tree, &plans);
    let shown = args.rank.unwrap_or(ranks - 1);
    let Some(simulation) = tried
        .iter()
        .find(|it| it.way == taken)
        .and_then(|it| it.simulation.as_ref())
    else {
        bail!("the way that was taken is none of those that were tried");
    };
    if let Some(path) = &args.svg {
        libcopy_measure::report::write_file(
            path,
            stages::draw(simulation, ranks, call.operation.name()),
        )?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        let json = as_json(
            &chosen,
            &call,
            &tried,
            &taken,
            &plans[shown],
            shown,
            (checked_bytes, &findings),
        );
        writeln!(out, "{}", serde_json::to_string_pretty(&json)?)?;
        return Ok(());
    }
    let length = match call.operation {
        Operation::Barrier => String::new(),
        _ => format!(" of {}", sizes::short(args.bytes)),
    };
    writeln!(
        out,
        "{}{length}, {ranks} ranks, {}\n",
        call.operation.name(),
        chosen.name
    )?;
    writeln!(out, "Ways (simulated)")?;
    let mut table = plain_table();
    table.set_header([
        "  groups by",
        "who works",
        "chunk",
        "estimate us",
        "simulated us",
        "busiest",
    ]);
    for Tried {
        way,
        estimate,
        simulation,
    } in &tried
    {
        let mark = if *way == taken { "*" } else { " " };
        let (seconds, busiest) = match simulation {
            Some(it) => {
                let (busy, name) = &it.busiest;
                (
                    format!("{:.1}", it.seconds * 1e6),
                    format!("{name} {:.0} %", busy * 100.0),
                )
            }
            None => ("-".to_owned(), "-".to_owned()),
        };
        table.add_row([
            Cell::new(format!("{mark} {}", levels(way))),
            Cell::new(workers(way, call.operation)),
            Cell::new(sizes::short(way.chunk)),
            Cell::new(format!("{:.1}", estimate * 1e6)),
            Cell::new(seconds),
            Cell::new(busiest),
        ]);
    }
    right_aligned(&mut table, 2);
    writeln!(out, "{}", table.trim_fmt())?;
    if left_out > 0 {
        writeln!(
            out,
            "-: not simulated, as those with smaller estimates have {MOST_CHUNKS} chunks already"
        )?;
    }
    writeln!(out, "\nGroups of the way that is taken (*)")?;
    for line in describe::groups(&taken.tree) {
        writeln!(out, "  {line}")?;
    }
    let instead = if checked_bytes == args.bytes || call.operation == Operation::Barrier {
        String::new()
    } else {
        format!(
            " with {} instead of {}, as it keeps what all ranks have",
            sizes::short(checked_bytes),
            sizes::short(args.bytes)
        )
    };
    writeln!(
        out,
        "\nChecked in {ORDERS} orders{instead}: every byte arrives once. At most {} stages and {} followers of a rank in a \
         group; {} bytes are read in all.",
        findings.stages, findings.fan_out, findings.bytes
    )?;
    let scratch = plans[shown].scratch(shown).len();
    writeln!(
        out,
        "\nStages of rank {shown}, which needs {scratch} bytes of scratch (7:2+64 is what rank 7 has when it has moved \
         64 bytes of its stage 2)"
    )?;
    for (number, stage) in plans[shown].stages.iter().enumerate() {
        for line in describe::stage(number, stage) {
            writeln!(out, "  {line}")?;
        }
    }
    if let Some(times) = args.measure {
        let spread = measured(&plans, &call, taken.chunk, times)?;
        writeln!(
            out,
            "\nMeasured here, {ranks} threads, {times} times: {:.1} us (10th and 90th percentile: {:.1} and {:.1}); \
             simulated: {:.1} us",
            spread.median * 1e6,
            spread.p10 * 1e6,
            spread.p90 * 1e6,
            simulation.seconds * 1e6
        )?;
    }
    if let Some(path) = &args.svg {
        writeln!(
            out,
            "\n{} has when each rank is in which stage (simulated).",
            path.display()
        )?;
    }
    Ok(())
}

/// Chunks that a plan moves.
fn chunks_of(plan: &Plan, chunk: usize) -> usize {
    let pieces = plan.stages.iter().flat_map(|stage| &stage.pieces);
    pieces.map(|piece| piece.bytes.div_ceil(chunk.max(1))).sum()
}

fn levels(way: &Way) -> String {
    let names: Vec<&str> = way.levels.iter().map(|level| level.name()).collect();
    if names.is_empty() {
        "rank order".into()
    } else {
        names.join(", ")
    }
}

/// Who works, and in a scan how ranks learn of those before them.
fn workers(way: &Way, operation: Operation) -> String {
    let workers = match way.shape.workers {
        _ if operation.is_scan() => return format!("{:?}", way.shape.prefix).to_lowercase(),
        Workers::All => "all",
        Workers::Leaders => "leaders",
        Workers::Owners => "owners",
    };
    workers.to_owned()
}

fn as_json(
    chosen: &Chosen,
    call: &Call<'_>,
    tried: &[Tried],
    taken: &Way,
    plan: &Plan,
    rank: usize,
    (checked_bytes, findings): (usize, &check::Findings),
) -> Value {
    let ways: Vec<Value> = tried
        .iter()
        .map(|it| {
            json!({
                "levels": it.way.levels.iter().map(|level| level.name()).collect::<Vec<_>>(),
                "workers": workers(&it.way, call.operation),
                "chunk": it.way.chunk,
                "taken": it.way == *taken,
                "estimate_us": it.estimate * 1e6,
                "simulated_us": it.simulation.as_ref().map(|it| it.seconds * 1e6),
            })
        })
        .collect();
    let stages = plan.stages.iter().enumerate();
    json!({
        "operation": call.operation.name(),
        "ranks": chosen.places.len(),
        "bytes": call.lengths.total(1),
        "machine": chosen.name,
        "ways": ways,
        "groups": taken.tree.groups().iter().map(|group| &group.ranks).collect::<Vec<_>>(),
        "checked_bytes": checked_bytes,
        "stages": findings.stages,
        "fan_out": findings.fan_out,
        "rank": rank,
        "stages_of_rank": stages.map(|(number, stage)| describe::stage(number, stage)).collect::<Vec<_>>(),
    })
}
