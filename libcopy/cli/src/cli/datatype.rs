// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy type`: what a datatype is, and how fast it moves.

use super::commit::{self, CommitArgs};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use libcopy::datatype::canonical::{Form, Node, NodeId};
use libcopy::datatype::{Contents, Datatype, Layout, Segment};
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
    Bench(BenchArgs),
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

/// Arguments of `libcopy type bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// The type, as an expression
    #[arg(value_name = "TYPE", required_unless_present = "commit")]
    expression: Option<String>,

    /// Elements of the type
    #[arg(long, default_value_t = 1)]
    count: u64,

    /// Time for each operation
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    time: f64,

    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    commit: CommitArgs,
}

/// Runs `libcopy type`.
pub fn run(command: &Type) -> Result<()> {
    match command {
        Type::Describe(args) => describe(args),
        Type::Bench(args) => bench(args),
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
        std::fs::write(path, draw(&datatype, &layout))
            .with_context(|| format!("cannot write {}", path.display()))?;
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
    match datatype.contents() {
        Contents::Named(named) => named.mpi_name().to_owned(),
        Contents::Dup { .. } => "dup".to_owned(),
        Contents::Contiguous { count, .. } => format!("contiguous {count}"),
        Contents::Vector {
            count,
            blocklength,
            stride,
            ..
        } => format!("vector {count} blocks of {blocklength}, stride {stride} extents"),
        Contents::Hvector {
            count,
            blocklength,
            stride,
            ..
        } => format!("hvector {count} blocks of {blocklength}, stride {stride} bytes"),
        Contents::Indexed {
            blocklengths,
            displacements,
            ..
        } => format!(
            "indexed lengths {} at {} extents",
            counts(blocklengths),
            numbers(displacements)
        ),
        Contents::Hindexed {
            blocklengths,
            displacements,
            ..
        } => format!(
            "hindexed lengths {} at {} bytes",
            counts(blocklengths),
            numbers(displacements)
        ),
        Contents::IndexedBlock {
            blocklength,
            displacements,
            ..
        } => format!(
            "indexed_block length {blocklength} at {} extents",
            numbers(displacements)
        ),
        Contents::HindexedBlock {
            blocklength,
            displacements,
            ..
        } => format!(
            "hindexed_block length {blocklength} at {} bytes",
            numbers(displacements)
        ),
        Contents::Struct {
            blocklengths,
            displacements,
            ..
        } => format!(
            "struct lengths {} at {} bytes",
            counts(blocklengths),
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
    let _ = writeln!(text, "type       {}", short(&datatype.expression()));
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

fn short(expression: &str) -> String {
    if expression.chars().count() <= 200 {
        return expression.to_owned();
    }
    let shown: String = expression.chars().take(200).collect();
    format!("{shown}...")
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

/// Bytes in a row of the drawing.
const ROW: i64 = 64;
/// Rows of the drawing.
const ROWS: i64 = 64;
/// Size of a byte in the drawing.
const CELL: i64 = 12;

/// Memory as rows of bytes, read like text; data is dark, and the darker the later it is packed.
fn draw(datatype: &Datatype, layout: &Layout) -> String {
    let bounds = layout.bounds();
    let low = bounds.start.min(datatype.lower_bound());
    let first = low.div_euclid(ROW) * ROW;
    let end = bounds.end.max(datatype.upper_bound());
    let rows = ((i128::from(end) - i128::from(first) + i128::from(ROW) - 1) / i128::from(ROW))
        .clamp(1, ROWS.into()) as i64;
    let (left, top) = (90, 46);
    let (width, height) = (left + ROW * CELL + 20, top + rows * CELL + 20);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let name = short(&datatype.expression())
        .replace('&', "&amp;")
        .replace('<', "&lt;");
    let _ = writeln!(svg, "<text x=\"10\" y=\"16\">{name}</text>");
    let _ = writeln!(
        svg,
        "<text x=\"10\" y=\"32\">{} bytes of data in {} segments; pale: first packed, dark: \
         last</text>",
        layout.size(),
        layout.segment_count()
    );
    let place = |at: i64| {
        let at = at - first;
        (left + at % ROW * CELL, top + at / ROW * CELL)
    };
    let visible = first + rows * ROW;
    for row in 0..rows {
        let (x, y) = place(first + row * ROW);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"#666\">{}</text>\
             <rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{CELL}\" fill=\"#f4f4f4\" \
             stroke=\"#ddd\"/>",
            left - 6,
            y + CELL - 2,
            first + row * ROW,
            ROW * CELL
        );
    }
    let mut packed = 0u64;
    for segment in layout.segments().take(4096) {
        let part = packed as f64 / layout.size() as f64;
        packed += segment.len;
        let shade = |from: f64, to: f64| (from + (to - from) * part) as u8;
        let colour = format!(
            "#{:02x}{:02x}{:02x}",
            shade(150.0, 10.0),
            shade(190.0, 40.0),
            shade(240.0, 110.0)
        );
        let stop = segment
            .offset
            .saturating_add(segment.len as i64)
            .min(visible);
        let mut at = segment.offset;
        // A piece goes on in the next row.
        while at < stop {
            let end = stop.min((at - first) / ROW * ROW + first + ROW);
            let (x, y) = place(at);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{CELL}\" fill=\"{colour}\" \
                 stroke=\"white\" stroke-width=\"0.6\"/>",
                (end - at) * CELL
            );
            at = end;
        }
    }
    if end > visible || layout.segment_count() > 4096 {
        let _ = writeln!(
            svg,
            "<text x=\"{left}\" y=\"{}\" fill=\"#666\">... up to {end}</text>",
            height - 6
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// More is not measured: both sides have to be in memory.
const MOST: i128 = 1 << 31;

fn bench(args: &BenchArgs) -> Result<()> {
    if !(args.time > 0.0 && args.time <= 60.0) {
        bail!("--time {}: between 0 and 60 seconds", args.time);
    }
    let expression = args.expression.as_deref();
    if args.commit.commit {
        return commit::run(&args.commit, expression, args.time, args.json);
    }
    let datatype: Datatype = expression.unwrap_or_default().parse()?;
    let layout = Layout::new(&datatype, args.count)?;
    let bounds = layout.bounds();
    let span = i128::from(bounds.end) - i128::from(bounds.start);
    if layout.size() == 0 || span > MOST || i128::from(layout.size()) > MOST {
        bail!(
            "the layout has {} bytes within {span}: between 1 byte and 2 GiB can be measured",
            layout.size()
        );
    }
    let size = layout.size() as usize;
    let origin = isize::try_from(-bounds.start)?;
    let mut user: Vec<u8> = (0..span as usize).map(|i| (i * 7 + 1) as u8).collect();
    let mut packed = vec![0u8; size];
    let mut flat = vec![1u8; size];
    let byte = Layout::new(&"byte".parse()?, size as u64)?;
    let time = Duration::from_secs_f64(args.time);

    // What is measured is right: packed bytes are those of the segments, in order.
    layout.pack(&user, origin, &mut packed)?;
    let mut at = 0;
    for segment in layout.segments() {
        let from = (segment.offset + origin as i64) as usize;
        let len = segment.len as usize;
        if user[from..from + len] != packed[at..at + len] {
            bail!("packed bytes differ from the segment at {}", segment.offset);
        }
        at += len;
    }

    let mut results = vec![(
        "memcpy",
        measure(time, || {
            flat.copy_from_slice(std::hint::black_box(&packed));
            Ok(())
        })?,
    )];
    results.push((
        "pack",
        measure(time, || layout.pack(&user, origin, &mut packed))?,
    ));
    results.push((
        "copy",
        measure(time, || layout.copy(&user, origin, &byte, &mut flat, 0))?,
    ));
    results.push((
        "unpack",
        measure(time, || layout.unpack(&packed, &mut user, origin))?,
    ));
    let memcpy = results[0].1;
    let mut out = std::io::stdout().lock();
    if args.json {
        let all: Vec<Value> = results
            .iter()
            .map(|(op, us)| json!({ "op": op, "median_us": us, "bytes": size }))
            .collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(());
    }
    writeln!(
        out,
        "{size} bytes in {} segments\nplan: {}\n",
        layout.segment_count(),
        layout.form().plan()
    )?;
    writeln!(
        out,
        "{:8} {:>12} {:>10} {:>11}",
        "", "median us", "GB/s", "vs memcpy"
    )?;
    for (op, us) in &results {
        let rate = size as f64 / us / 1e3;
        writeln!(out, "{op:8} {us:>12.3} {rate:>10.2} {:>10.2}x", memcpy / us)?;
    }
    Ok(())
}

/// The median time of a call in microseconds.
fn measure(time: Duration, mut call: impl FnMut() -> libcopy::datatype::Result<()>) -> Result<f64> {
    // Calls that are too short for the clock are timed in batches.
    let mut batch = 1;
    loop {
        let start = Instant::now();
        for _ in 0..batch {
            call()?;
        }
        if start.elapsed() > Duration::from_micros(20) || batch >= 1 << 12 {
            break;
        }
        batch *= 2;
    }
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < time || times.len() < 3 {
        let start = Instant::now();
        for _ in 0..batch {
            call()?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(batch));
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
