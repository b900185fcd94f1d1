// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy type bench`: packing, unpacking and copying one type beside `memcpy`, or its commit.

use super::commit::{self, CommitArgs};
use anyhow::{Result, bail};
use clap::Args;
use libcopy::datatype::{Datatype, Layout};
use serde_json::{Value, json};
use std::io::Write as _;
use std::time::{Duration, Instant};

/// Arguments of `libcopy type bench`.
#[derive(Args, Debug)]
pub struct TypeArgs {
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

/// More is not measured: both sides have to be in memory.
const MOST: i128 = 1 << 31;

/// Runs `libcopy type bench`.
///
/// # Errors
///
/// No such type, one that is not measured, or output that cannot be written.
pub fn run(args: &TypeArgs) -> Result<()> {
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
