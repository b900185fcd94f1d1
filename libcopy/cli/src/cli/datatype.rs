// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy type`: what a datatype is, and how fast it moves.

use anyhow::Result;
use clap::{Args, Subcommand};
use libcopy::datatype::canonical::{Form, Node, NodeId};
use libcopy::datatype::{Contents, Datatype, Layout, Segment};
use libcopy_bench::{TypeArgs, layout_rows, time_type};
use libcopy_measure::report;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The language of type expressions, for people.
const LANGUAGE: &str = "\
TYPE is an expression in MPI's terms:

  double, int, byte, c_double_complex, ...      names without MPI_
  contiguous(count, type)
  vector(count, blocklength, stride, type)      hvector: stride in bytes
  indexed([lengths], [places], type)            hindexed: places in bytes
  indexed_block(length, [places], type)         hindexed_block: places in bytes
  struct([lengths], [places], [types])
  subarray([sizes], [subsizes], [starts], order, type)         order: c or fortran
  darray(size, rank, [sizes], [dists], [processes], order, type)
  resized(lower bound, extent, type), dup(type)

In lists, 7*3 is 7, 7, 7 and 0..12:4 is 0, 4, 8.";

/// What to do with a type.
#[derive(Subcommand, Debug)]
pub enum Type {
    /// Show how a type is built, what it comes down to, and where its bytes are
    #[command(after_help = LANGUAGE)]
    Describe(DescribeArgs),
    /// Measure packing, unpacking and copying a type beside memcpy, or commit
    #[command(after_help = LANGUAGE)]
    Bench(TypeArgs),
}

/// Arguments of `libcopy type describe`.
#[derive(Args, Debug)]
pub struct DescribeArgs {
    /// The type, as an expression
    #[arg(value_name = "TYPE")]
    expression: String,

    /// Elements of the type
    #[arg(long, default_value_t = 1)]
    count: u64,

    /// Segments to list
    #[arg(long, value_name = "N", default_value_t = 16)]
    segments: u64,

    /// Draw the layout
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `libcopy type`.
pub fn run(command: &Type) -> Result<()> {
    match command {
        Type::Describe(args) => describe(args),
        Type::Bench(args) => time_type(args),
    }
}

fn describe(args: &DescribeArgs) -> Result<()> {
    let datatype: Datatype = args.expression.parse()?;
    let start = Instant::now();
    datatype.commit()?;
    let commit = start.elapsed();
    let layout = Layout::new(&datatype, args.count)?;
    let mut out = std::io::stdout().lock();
    if args.json {
        let all = as_json(&datatype, &layout, commit, args.segments);
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
    } else {
        out.write_all(as_text(&datatype, &layout, commit, args).as_bytes())?;
    }
    if let Some(path) = &args.svg {
        report::write_file(path, layout_rows::draw(&datatype, &layout))?;
    }
    Ok(())
}

/// Lines of a tree are indented by two spaces for each level, up to this one.
const DEEPEST: usize = 40;

/// Lists are shown up to this length.
const SHOWN: usize = 8;

fn list<T: std::fmt::Display>(values: impl ExactSizeIterator<Item = T>) -> String {
    let n = values.len();
    let shown: Vec<String> = values.take(SHOWN).map(|v| v.to_string()).collect();
    let more = if n > SHOWN {
        format!(", ... {n} in all")
    } else {
        String::new()
    };
    format!("[{}{more}]", shown.join(", "))
}

/// A constructor and its arguments, without the children.
fn head(datatype: &Datatype) -> String {
    let numbers = |values: &[i64]| list(values.iter());
    let counts = |values: &[u64]| list(values.iter());
    let contents = datatype.contents();
    // What strides and displacements are counted in.
    let (name, unit) = match contents {
        Contents::Vector { .. } => ("vector", "extents"),
        Contents::Hvector { .. } => ("hvector", "bytes"),
        Contents::Indexed { .. } => ("indexed", "extents"),
        Contents::Hindexed { .. } => ("hindexed", "bytes"),
        Contents::IndexedBlock { .. } => ("indexed_block", "extents"),
        Contents::HindexedBlock { .. } => ("hindexed_block", "bytes"),
        Contents::Struct { .. } => ("struct", "bytes"),
        _ => ("", ""),
    };
    match contents {
        Contents::Named(named) => named.mpi_name().to_owned(),
        Contents::Dup { .. } => "dup".to_owned(),
        Contents::Contiguous { count, .. } => format!("contiguous {count}"),
        Contents::Vector {
            count,
            blocklength,
            stride,
            ..
        }
        | Contents::Hvector {
            count,
            blocklength,
            stride,
            ..
        } => format!("{name} {count} blocks of {blocklength}, stride {stride} {unit}"),
        Contents::Indexed {
            blocklengths,
            displacements,
            ..
        }
        | Contents::Hindexed {
            blocklengths,
            displacements,
            ..
        }
        | Contents::Struct {
            blocklengths,
            displacements,
            ..
        } => {
            let (lengths, places) = (counts(blocklengths), numbers(displacements));
            format!("{name} lengths {lengths} at {places} {unit}")
        }
        Contents::IndexedBlock {
            blocklength,
            displacements,
            ..
        }
        | Contents::HindexedBlock {
            blocklength,
            displacements,
            ..
        } => format!(
            "{name} length {blocklength} at {} {unit}",
            numbers(displacements)
        ),
        Contents::Subarray {
            sizes,
            subsizes,
            starts,
            order,
            ..
        } => format!(
            "subarray {} of {} at {}, {order:?} order",
            counts(subsizes),
            counts(sizes),
            counts(starts)
        ),
        Contents::Darray {
            rank,
            size,
            sizes,
            distributions,
            processes,
            order,
            ..
        } => format!(
            "darray part {rank} of {size} of {}, {distributions:?} over {}, {order:?} order",
            counts(sizes),
            counts(processes)
        ),
        Contents::Resized {
            lower_bound,
            extent,
            ..
        } => format!("resized lower bound {lower_bound}, extent {extent}"),
        other => format!("{other:?}"),
    }
}

/// Every type of the tree with its depth, parents first; equal members of a struct that follow one
/// another are one entry with a count.
fn tree(datatype: &Datatype) -> Vec<(usize, usize, Datatype)> {
    let mut found = Vec::new();
    let mut todo = vec![(0, 1, datatype.clone())];
    while let Some((depth, times, datatype)) = todo.pop() {
        if depth < DEEPEST {
            let next = datatype.contents().runs().rev();
            todo.extend(next.map(|(times, child)| (depth + 1, times, child.clone())));
        }
        found.push((depth, times, datatype));
        if found.len() > 1000 {
            break;
        }
    }
    found
}

fn node(form: &Form, id: NodeId) -> String {
    match form.node(id) {
        Node::Dense { len } => format!("{len} bytes"),
        Node::Stream { count, stride, .. } => format!("stream {count} times, stride {stride}"),
        Node::Blocks { offsets, .. } => format!(
            "blocks at {}",
            list((0..offsets.len()).map(|i| offsets.get(i)))
        ),
        Node::Pieces { offsets, starts } => format!(
            "pieces at {} of {} bytes",
            list((0..offsets.len()).map(|i| offsets.get(i))),
            list((0..offsets.len()).map(|i| starts.get(i + 1) - starts.get(i)))
        ),
        Node::Sequence { parts } => format!("sequence of {} parts", parts.len()),
    }
}

fn inside(form: &Form, id: NodeId) -> Vec<(Option<i64>, NodeId)> {
    match form.node(id) {
        Node::Stream { child, .. } | Node::Blocks { child, .. } => vec![(None, *child)],
        Node::Sequence { parts } => parts
            .iter()
            .map(|part| (Some(part.offset), part.child))
            .collect(),
        _ => Vec::new(),
    }
}

fn form_lines(form: &Form) -> Vec<(usize, String)> {
    let mut lines = Vec::new();
    let mut todo: Vec<_> = form.root().map(|id| (0, None, id)).into_iter().collect();
    while let Some((depth, offset, id)) = todo.pop() {
        let place = offset.map_or(String::new(), |at: i64| format!("at {at}: "));
        lines.push((depth, format!("{place}{}", node(form, id))));
        if lines.len() > 200 {
            lines.push((depth, "...".to_owned()));
            break;
        }
        let next = inside(form, id).into_iter().rev();
        todo.extend(next.map(|(offset, child)| (depth + 1, offset, child)));
    }
    lines
}

fn as_text(datatype: &Datatype, layout: &Layout, commit: Duration, args: &DescribeArgs) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "type       {}",
        layout_rows::short(&datatype.expression())
    );
    let _ = writeln!(
        text,
        "size       {} bytes in {} basic elements, alignment {}",
        datatype.size(),
        datatype.signature().elements(),
        datatype.alignment()
    );
    let _ = writeln!(
        text,
        "bounds     {} to {}: extent {}",
        datatype.lower_bound(),
        datatype.upper_bound(),
        datatype.extent()
    );
    let _ = writeln!(
        text,
        "data       {} to {}: true extent {}",
        datatype.true_lower_bound(),
        datatype.true_upper_bound(),
        datatype.true_extent()
    );
    let _ = writeln!(text, "\ntree");
    for (depth, times, part) in tree(datatype) {
        let times = if times > 1 {
            format!("{times} x ")
        } else {
            String::new()
        };
        let _ = writeln!(text, "{:1$}{times}{2}", "", 2 + 2 * depth, head(&part));
    }
    let form = layout.form();
    let _ = writeln!(
        text,
        "\ncanonical form of {}: {} bytes of memory, commit took {:.1} us",
        if args.count == 1 {
            "1 element".to_owned()
        } else {
            format!("{} elements", args.count)
        },
        form.memory(),
        commit.as_secs_f64() * 1e6
    );
    if form.root().is_some() {
        let _ = writeln!(text, "  from offset {}", form.offset());
    }
    for (depth, line) in form_lines(form) {
        let _ = writeln!(text, "{:1$}{line}", "", 2 + 2 * depth);
    }
    let _ = writeln!(text, "\nplan\n  {}", form.plan());
    let count = layout.segment_count();
    let mean = layout.size() as f64 / count.max(1) as f64;
    let _ = writeln!(text, "\nsegments   {count}, {mean:.1} bytes on average");
    for segment in layout.segments().take(args.segments as usize) {
        let Segment { offset, len } = segment;
        let _ = writeln!(text, "  {offset:>12} {len:>10}");
    }
    if count > args.segments {
        let _ = writeln!(text, "  {:>12} (--segments shows more)", "...");
    }
    text
}

fn as_json(datatype: &Datatype, layout: &Layout, commit: Duration, segments: u64) -> Value {
    let form = layout.form();
    let nodes: Vec<Value> = (0..form.nodes().len() as NodeId)
        .map(|id| {
            let parts: Vec<Value> = inside(form, id)
                .into_iter()
                .map(|(offset, child)| json!({ "offset": offset, "node": child }))
                .collect();
            json!({
                "node": id,
                "what": node(form, id),
                "size": form.extent(id).size,
                "segments": form.extent(id).segments,
                "parts": parts,
            })
        })
        .collect();
    let types: Vec<Value> = tree(datatype)
        .into_iter()
        .map(|(depth, times, part)| {
            json!({
                "depth": depth,
                "times": times,
                "what": head(&part),
                "size": part.size(),
                "extent": part.extent(),
            })
        })
        .collect();
    let shown: Vec<Value> = layout
        .segments()
        .take(segments as usize)
        .map(|s| json!({ "offset": s.offset, "length": s.len }))
        .collect();
    json!({
        "expression": datatype.expression(),
        "size": datatype.size(),
        "elements": datatype.signature().elements(),
        "alignment": datatype.alignment(),
        "lower_bound": datatype.lower_bound(),
        "extent": datatype.extent(),
        "true_lower_bound": datatype.true_lower_bound(),
        "true_extent": datatype.true_extent(),
        "tree": types,
        "form": {
            "memory": form.memory(),
            "offset": form.offset(),
            "nodes": nodes,
            "plan": form.plan(),
        },
        "commit_us": commit.as_secs_f64() * 1e6,
        "layout_size": layout.size(),
        "segment_count": layout.segment_count(),
        "segments": shown,
    })
}
