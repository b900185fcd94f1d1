// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy-lab rdma`: its subcommands.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use super::model::{Costs, Repetition, pack_time, umr_time};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use libcopy_measure::progress;
use libcopy_rdma::Shape;
use libcopy_rdma::counts::{self, Row};
use libcopy_rdma::verbs::Device;
use libcopy_rdma::workloads::applications;
use serde_json::{Value, json};

/// Subcommands of `libcopy-lab rdma`.
#[derive(Debug, Subcommand)]
pub enum Rdma {
    /// Count what the cases of the paper take, and compare with its formulas: memory keys, bytes of
    /// clear-to-send messages, work requests and hits
    Counts(CountsArgs),
    /// Say where memory keys would be faster than packing: modelled times, no card is used
    Model(ModelArgs),
}

/// Arguments of `libcopy-lab rdma model`.
#[derive(Args, Debug)]
#[command(
    after_help = "Nothing is measured: the cost of creating a key and the speed of the link are those of the paper, the other costs \
    are assumptions (libcopy/lab/src/rdma/model.rs)."
)]
pub struct ModelArgs {
    /// Pieces of memory that a key has room for
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    pieces: u64,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `libcopy-lab rdma counts`.
#[derive(Args, Debug)]
#[command(
    after_help = "The cases run on a card in software, and over two RDMA devices where there are two: then the names \
    of the devices stand before the case. Times are not measured. The exit status is 1 if a count or a byte is wrong."
)]
pub struct CountsArgs {
    /// Write the counts to a file as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// The two devices, instead of the first two that can be used
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with = "software")]
    devices: Vec<String>,

    /// Only the card in software
    #[arg(long)]
    software: bool,
}

/// Runs `libcopy-lab rdma`.
pub fn run(command: &Rdma) -> Result<()> {
    match command {
        Rdma::Counts(args) => count(args),
        Rdma::Model(args) => model(args),
    }
}

/// Vectors of several blocks and lengths, then the layouts of applications.
fn modelled_shapes() -> Result<Vec<(String, Shape)>> {
    let mut all = Vec::new();
    for len in [64, 256, 1024, 4096, 16384, 65536] {
        for blocks in [16, 128, 1024] {
            let shape = Shape {
                bytes: blocks * len,
                blocks,
                min: len,
                unit: len,
            };
            all.push((format!("{blocks} x {len} bytes"), shape));
        }
    }
    let applications = applications()?;
    all.extend(
        applications
            .into_iter()
            .map(|one| (one.name, Shape::of(&one.layout))),
    );
    Ok(all)
}

/// How many times as fast as a packed message one with memory keys is, by whether its keys exist.
fn model(args: &ModelArgs) -> Result<()> {
    let costs = Costs::default();
    let rows = modelled_shapes()?.into_iter().map(|(name, shape)| {
        let keys = shape.blocks.div_ceil(args.pieces);
        let packed = pack_time(&costs, &shape);
        let gain = |repetition| packed / umr_time(&costs, &shape, keys, repetition);
        let gains = [Repetition::Create, Repetition::Map, Repetition::Cached].map(gain);
        (name, keys, packed / 1000.0, gains)
    });
    let mut out = std::io::stdout().lock();
    if args.json {
        let rows: Vec<Value> = rows
            .map(|(name, keys, packed, [create, map, cached])| {
                json!({
                    "layout": name, "keys": keys, "packed_us": packed,
                    "speedup_create": create, "speedup_map": map, "speedup_cached": cached,
                })
            })
            .collect();
        let all = json!({ "modelled": true, "pieces_per_key": args.pieces, "layouts": rows });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(());
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "layout",
        "keys",
        "packed us",
        "keys created",
        "keys mapped",
        "keys known",
    ]);
    for (name, keys, packed, gains) in rows {
        let [create, map, cached] = gains.map(|gain| format!("{gain:.2} x"));
        table.add_row([
            name,
            keys.to_string(),
            format!("{packed:.1}"),
            create,
            map,
            cached,
        ]);
    }
    writeln!(
        out,
        "{table}\nModelled: how many times as fast as packed, where keys have to be created, only mapped, or are known from an \
         earlier message."
    )?;
    Ok(())
}

fn count(args: &CountsArgs) -> Result<()> {
    let devices = counts_devices(args)?;
    let mut steps = counts::software_cases()?;
    if devices.is_ok() {
        steps += counts::verbs_cases()?;
    }
    let bar = progress::bar(steps as u64);
    let mut done = |row: &Row| {
        bar.set_message(row.case.clone());
        bar.inc(1);
    };
    let software = counts::software(&mut done)?;
    let verbs = match &devices {
        Ok(two) => Ok(counts::over_verbs(two, &|_| true, &mut done)?),
        Err(why) => Err(why),
    };
    bar.finish_and_clear();
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "Card in software (counts are exact, nothing was sent over a network):"
    )?;
    writeln!(out, "{}", counts_table(&software))?;
    match &verbs {
        Ok(rows) => {
            writeln!(out, "\nOver two RDMA devices:")?;
            writeln!(out, "{}", counts_table(rows))?;
        }
        Err(why) => writeln!(out, "\nNot over RDMA devices: {why}")?,
    }
    let rows: Vec<&Row> = software.iter().chain(verbs.iter().flatten()).collect();
    if let Some(file) = &args.csv {
        let lines: String = rows.iter().map(|row| row.csv() + "\n").collect();
        std::fs::write(file, format!("{}\n{lines}", counts::CSV_HEADER))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let wrong: Vec<&str> = rows
        .iter()
        .filter(|row| !row.is_right())
        .map(|row| row.case.as_str())
        .collect();
    if !wrong.is_empty() {
        bail!(
            "{} of {} cases are wrong: {}",
            wrong.len(),
            rows.len(),
            wrong.join(", ")
        );
    }
    Ok(())
}

/// The two devices to use, or why there are none. An error if devices that were asked for cannot be
/// used.
fn counts_devices(args: &CountsArgs) -> Result<Result<[Arc<Device>; 2], String>> {
    if args.software {
        return Ok(Err("--software".to_owned()));
    }
    if let [first, second] = &args.devices[..] {
        return Ok(Ok(Device::open_both(first, second)?));
    }
    let (names, usable) = match Device::usable(2) {
        Ok(found) => found,
        Err(why) => return Ok(Err(why.to_string())),
    };
    Ok(<[Arc<Device>; 2]>::try_from(usable).map_err(|_| {
        format!(
            "two devices are needed, of {names} that were found fewer can be used (libcopy rdma probe says why)",
        )
    }))
}

fn counts_table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "case",
        "method",
        "keys",
        "CTS bytes",
        "writes",
        "hits",
        "right",
    ]);
    for row in rows {
        let counted = &row.counted;
        table.add_row([
            row.case.clone(),
            counted.method.to_string(),
            counted.keys.to_string(),
            counted.cts_bytes.to_string(),
            counted.writes.to_string(),
            counted.hits.to_string(),
            if row.is_right() {
                "yes".to_owned()
            } else {
                format!("no, expected {}", row.expected.summary())
            },
        ]);
    }
    table
}
