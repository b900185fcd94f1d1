// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy plan`: how a collective goes on a machine with many cores, without one.

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use comfy_table::Cell;
use libcopy::plan::choose::{Way, best, buffer, estimate, ways};
use libcopy::plan::{
    Buffer, Call, Costs, Lengths, Machine, Member, Operation, Piece, Plan, Plans, Tree, Workers,
    check,
};
use libcopy::policy::Policy;
use libcopy::topology::{self, Level, Object};
use libcopy::transport::{TransportKind, probe_machine};
use libcopy_measure::report::{plain_table, right_aligned};
use libcopy_measure::sample::Spread;
use libcopy_measure::{progress, sizes, threads};
use libcopy_model::machines::{MACHINES, Preset};
use libcopy_model::simulate::{self, Simulation, Work};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;

/// What every reader of the output must know.
pub const SIMULATED: &str = "\
All times are simulated: flows that share the caches, ports, memories and links of a machine whose rates are
assumed, or were measured by `libcopy tune --contention` where it is this one. Machines: epyc-9654, epyc-7742, xeon-8480, xeon-6148, grace, desktop; or --topology with a directory that
has sys and proc of another one (scripts/topologies fetches some fifty).";

/// Ranks at most: a plan of an alltoall has pieces for each pair.
const MOST_RANKS: usize = 1024;

/// Threads at most.
const MOST_THREADS: usize = 256;

/// Orders in which the check runs the plans.
const ORDERS: u64 = 4;

/// Elements of all ranks' buffers that the check runs with, at most.
const MOST_ELEMENTS: usize = 8 << 20;

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
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    levels: Option<Vec<LevelName>>,

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

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LevelName {
    Package,
    Node,
    Cache,
    None,
}

impl LevelName {
    fn level(self) -> Option<Level> {
        match self {
            LevelName::Package => Some(Level::Package),
            LevelName::Node => Some(Level::Node),
            LevelName::Cache => Some(Level::Cache),
            LevelName::None => None,
        }
    }
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
    let names = || {
        let names: Vec<&str> = MACHINES.iter().map(|it| it.name).collect();
        names.join(", ")
    };
    let (name, object, costs) = match (&args.machine, &args.topology) {
        (Some(name), _) => {
            let preset = Preset::named(name);
            let preset =
                preset.ok_or_else(|| anyhow!("--machine {name} is none of {}", names()))?;
            (
                preset.description.to_owned(),
                preset.objects().0,
                preset.costs,
            )
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
    let wanted: Option<Vec<Level>> = args
        .levels
        .as_ref()
        .map(|levels| levels.iter().filter_map(|it| it.level()).collect());
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
        libcopy_measure::report::write_file(path, draw(simulation, ranks, &call))?;
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
    for line in groups(&taken.tree) {
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
        for line in stage_lines(number, stage) {
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

/// Runs the plans of a way in some orders, with shorter buffers if the elements of all ranks are
/// too many. Says of how many bytes the buffers are; `tell` is called after each order.
fn checked(way: &Way, call: &Call<'_>, ranks: usize, tell: impl Fn()) -> Result<usize> {
    // Buffers are cut at cache lines and elements; the check takes a line as one element.
    let lines = call.element * 64usize.div_ceil(call.element);
    let mut bytes = call.lengths.total(1);
    let call = loop {
        let element = if bytes % lines == 0 {
            lines
        } else {
            call.element
        };
        let shorter = Call {
            element,
            lengths: Lengths::Same(bytes),
            ..*call
        };
        let elements = (0..ranks).map(|rank| {
            let (sent, received) = shorter.buffers(rank, ranks);
            (sent + received) / element
        });
        if bytes <= call.element || elements.sum::<usize>() <= MOST_ELEMENTS {
            break shorter;
        }
        bytes = if bytes > lines {
            (bytes / 2).max(lines) / lines * lines
        } else {
            (bytes / 2).max(call.element) / call.element * call.element
        };
    };
    let plans = Plans::new(&way.tree, &call, way.shape).all();
    let mut state: u64 = 1;
    let mut choose = |end: usize| {
        // A linear congruential generator (Knuth's MMIX).
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % end.max(1)
    };
    for order in 0..ORDERS {
        check::run(&way.tree, &plans, &call, order % 2 > 0, &mut choose)?;
        tell();
    }
    Ok(bytes)
}

/// Times of the plans with a thread for each rank.
fn measured(plans: &[Plan], call: &Call<'_>, chunk: usize, times: usize) -> Result<Spread> {
    if plans.len() > MOST_THREADS {
        bail!(
            "--measure: {} ranks, at most {MOST_THREADS} threads are started",
            plans.len()
        );
    }
    // Values are added, so a scan needs no order.
    let call = Call {
        in_rank_order: false,
        ..*call
    };
    let seconds = threads::run(plans, &call, chunk, times)?;
    Spread::of(&seconds).context("--measure 0: nothing was measured")
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

/// The groups: those alike as one line.
fn groups(tree: &Tree) -> Vec<String> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for group in tree.groups().iter().rev() {
        let of_ranks = group
            .members
            .iter()
            .filter(|it| matches!(it, Member::Rank(_)))
            .count();
        let of_groups = group.members.len() - of_ranks;
        let text = match (of_groups, of_ranks) {
            (0, ranks) => format!("of {ranks} ranks"),
            (groups, 0) => format!("of {groups} groups, {} ranks", group.ranks.len()),
            (groups, ranks) => format!(
                "of {groups} groups and {ranks} ranks, {} ranks in all",
                group.ranks.len()
            ),
        };
        match lines.iter_mut().find(|(_, other)| *other == text) {
            Some((count, _)) => *count += 1,
            None => lines.push((1, text)),
        }
    }
    let text = |(count, text): (usize, String)| match count {
        1 => format!("1 group {text}"),
        count => format!("{count} groups {text}"),
    };
    lines.into_iter().map(text).collect()
}

fn piece_text(piece: &Piece) -> String {
    let buffer = |buffer: Buffer| match buffer {
        Buffer::Send => "send buffer",
        Buffer::Receive => "receive buffer",
        Buffer::Scratch => "scratch",
    };
    let ranks: Vec<String> = piece
        .from
        .iter()
        .map(|it| it.span.rank.to_string())
        .collect();
    let what = if piece.from.len() > 1 {
        "combines"
    } else {
        "copies"
    };
    let from = match &piece.from[..] {
        [source] => format!(
            "rank {} ({} at {})",
            ranks[0],
            buffer(source.span.buffer),
            source.span.at
        ),
        _ => format!("ranks {}", ranks.join(" ")),
    };
    let mut text = format!(
        "{what} {} bytes of {from} to {} of rank {} at {}",
        piece.bytes,
        buffer(piece.to.buffer),
        piece.to.rank,
        piece.to.at
    );
    let waits: Vec<String> = piece
        .from
        .iter()
        .filter_map(|source| source.after)
        .map(|it| format!("{}:{}+{}", it.rank, it.progress.stage, it.progress.bytes))
        .collect();
    if !waits.is_empty() {
        let _ = write!(text, ", following {}", waits.join(" "));
    }
    text
}

/// Pieces of a stage that are listed.
const SHOWN: usize = 12;

fn stage_lines(number: usize, stage: &libcopy::plan::Stage) -> Vec<String> {
    let mut lines = Vec::new();
    if !stage.after.is_empty() {
        let after: Vec<String> = stage
            .after
            .iter()
            .map(|it| format!("{}:{}+{}", it.rank, it.progress.stage, it.progress.bytes))
            .collect();
        lines.push(format!("{number}: waits for {}", after.join(" ")));
    }
    for piece in stage.pieces.iter().take(SHOWN) {
        lines.push(format!("{number}: {}", piece_text(piece)));
    }
    if let Some(more) = stage
        .pieces
        .len()
        .checked_sub(SHOWN)
        .filter(|more| *more > 0)
    {
        lines.push(format!("{number}: and {more} more pieces"));
    }
    if lines.is_empty() {
        lines.push(format!("{number}: nothing"));
    }
    lines
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
        "stages_of_rank": stages.map(|(number, stage)| stage_lines(number, stage)).collect::<Vec<_>>(),
    })
}

/// Which rank is in which stage when.
fn draw(simulation: &Simulation, ranks: usize, call: &Call<'_>) -> String {
    const COLOURS: [&str; 6] = [
        "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9",
    ];
    let (left, top, wide) = (60.0, 30.0, 900.0);
    let row = (600.0 / ranks as f64).clamp(2.0, 20.0);
    let height = top + row * ranks as f64 + 40.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<text x=\"{left}\" y=\"18\">{}: stages of {ranks} ranks (simulated)</text>\n",
        left + wide + 20.0,
        call.operation.name()
    );
    let scale = wide / simulation.seconds.max(f64::MIN_POSITIVE);
    for Work {
        rank,
        stage,
        start,
        end,
    } in &simulation.work
    {
        let width = (end - start) * scale;
        if width > 0.0 {
            let _ = writeln!(
                svg,
                "<rect x=\"{:.2}\" y=\"{:.2}\" width=\"{width:.2}\" height=\"{:.2}\" fill=\"{}\"/>",
                left + start * scale,
                top + row * *rank as f64,
                row * 0.9,
                COLOURS[stage % COLOURS.len()]
            );
        }
    }
    let bottom = top + row * ranks as f64 + 16.0;
    let _ = write!(
        svg,
        "<text x=\"{left}\" y=\"{bottom:.0}\">0</text>\n<text x=\"{:.0}\" y=\"{bottom:.0}\" text-anchor=\"end\">{:.1} \
         us</text>\n<text x=\"10\" y=\"{:.0}\">rank 0</text>\n<text x=\"10\" y=\"{:.0}\">{}</text>\n</svg>\n",
        left + wide,
        simulation.seconds * 1e6,
        top + 10.0,
        top + row * ranks as f64,
        ranks - 1
    );
    svg
}
