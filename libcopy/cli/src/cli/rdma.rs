// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy rdma`: the RDMA devices of this machine, and how typed messages would go through them.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use comfy_table::{Table, presets};
use libcopy::policy::RdmaProfile;
use libcopy::topology::Topology;
use libcopy_rdma::counts::{self, Row};
use libcopy_rdma::model::{Costs, Repetition, pack_time, umr_time};
use libcopy_rdma::verbs::{Device, device_names};
use libcopy_rdma::workloads::applications;
use libcopy_rdma::{Abilities, Choice, CutRule, Limits, Shape, Thresholds};
use serde_json::{Value, json};

use super::progress;

/// Subcommands of `libcopy rdma`.
#[derive(Debug, Subcommand)]
pub enum Rdma {
    /// Show the devices, what they can do, and the method that each application layout would take
    Probe(ProbeArgs),
    /// Count what the cases of the paper take, and compare with its formulas
    Bench(BenchArgs),
    /// Say where memory keys would be faster than packing: modelled times, no card is used
    Model(ModelArgs),
}

/// Arguments of `libcopy rdma model`.
#[derive(Args, Debug)]
#[command(
    after_help = "Nothing is measured: the cost of creating a key and the speed of the link are those of the paper, the other costs \
    are assumptions (libcopy_rdma::model)."
)]
pub struct ModelArgs {
    /// Pieces of memory that a key has room for
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    pieces: u64,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `libcopy rdma bench`.
#[derive(Args, Debug)]
#[command(
    after_help = "The cases run on a card in software, and over two RDMA devices where there are two: then the names \
    of the devices stand before the case. Times are not measured. The exit status is 1 if a count or a byte is wrong."
)]
pub struct BenchArgs {
    /// Count memory keys, bytes of clear-to-send messages, work requests and hits
    #[arg(long, required = true)]
    counts: bool,

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

/// Arguments of `libcopy rdma probe`.
#[derive(Args, Debug)]
pub struct ProbeArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `libcopy rdma`.
pub fn run(command: &Rdma) -> Result<()> {
    match command {
        Rdma::Probe(args) => probe(args),
        Rdma::Bench(args) => bench(args),
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

fn bench(args: &BenchArgs) -> Result<()> {
    let devices = bench_devices(args)?;
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
fn bench_devices(args: &BenchArgs) -> Result<Result<[Arc<Device>; 2], String>> {
    if args.software {
        return Ok(Err("--software".to_owned()));
    }
    if !args.devices.is_empty() {
        return Ok(Ok(named(&args.devices)?));
    }
    let (names, usable) = match usable() {
        Ok(found) => found,
        Err(why) => return Ok(Err(why)),
    };
    Ok(<[Arc<Device>; 2]>::try_from(usable).map_err(|_| {
        format!(
            "two devices are needed, of {names} that were found fewer can be used (libcopy rdma probe says why)",
        )
    }))
}

/// The devices that were asked for: two, or one for both ends.
fn named(names: &[String]) -> Result<[Arc<Device>; 2]> {
    let (Some(first), Some(second)) = (names.first(), names.last()) else {
        bail!("no device is named");
    };
    let first_device = Device::open(first)?;
    let second_device = if first == second {
        first_device.clone()
    } else {
        Device::open(second)?
    };
    Ok([first_device, second_device])
}

/// How many devices there are, and the first two that can be used.
fn usable() -> Result<(usize, Vec<Arc<Device>>), String> {
    let names = device_names().map_err(|error| error.to_string())?;
    let usable = names.iter().filter_map(|name| Device::open(name).ok());
    Ok((names.len(), usable.take(2).collect()))
}

/// The devices to measure with: those that were asked for, else the first two that can be used,
/// else one for both ends.
pub fn tune_devices(asked: &[String]) -> Result<[Arc<Device>; 2]> {
    if !asked.is_empty() {
        return named(asked);
    }
    let why = match usable() {
        Err(why) => why,
        Ok((names, devices)) => match (devices.first(), devices.last()) {
            (Some(first), Some(second)) => return Ok([first.clone(), second.clone()]),
            _ if names == 0 => NO_DEVICE.to_owned(),
            _ => "none can be used (libcopy rdma probe says why)".to_owned(),
        },
    };
    bail!(
        "no RDMA device to measure with: {why}; --software measures the card in software and stores nothing"
    )
}

/// The thresholds of this machine, and where they come from.
fn thresholds() -> Result<(Thresholds, String)> {
    Ok(match RdmaProfile::load(&Topology::current().machine())? {
        None => (
            Thresholds::default(),
            "built in, the paper's; libcopy tune --rdma measures".to_owned(),
        ),
        Some(profile) => (profile.thresholds()?, measured_on(&profile)),
    })
}

/// Where thresholds were measured.
pub fn measured_on(profile: &RdmaProfile) -> String {
    let label = if profile.is_emulated {
        " (emulated)"
    } else {
        ""
    };
    format!("measured on {}{label}", profile.devices)
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

fn probe(args: &ProbeArgs) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let (thresholds, origin) = thresholds()?;
    let found = device_names().map_err(|error| error.to_string());
    let devices: Vec<(String, Result<Found, String>)> = found
        .clone()
        .unwrap_or_default()
        .into_iter()
        .map(|name| {
            let found = Found::of(&name, thresholds);
            (name, found)
        })
        .collect();
    if args.json {
        let all: Vec<Value> = devices.iter().map(device_json).collect();
        let all = json!({
            "devices": all,
            "why_none": why_none(&found, devices.len()),
            "thresholds": thresholds.to_string().lines().collect::<Vec<_>>(),
            "thresholds_are": origin,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(());
    }
    if let Some(why) = why_none(&found, devices.len()) {
        writeln!(out, "no RDMA device: {why}")?;
        return Ok(());
    }
    writeln!(out, "thresholds ({origin})")?;
    for line in thresholds.to_string().lines() {
        writeln!(out, "  {line}")?;
    }
    for (name, device) in &devices {
        match device {
            Ok(found) => print(&mut out, name, found)?,
            Err(why) => writeln!(out, "{name}: not usable: {why}")?,
        }
    }
    Ok(())
}

/// What a machine without devices is told.
const NO_DEVICE: &str =
    "libibverbs finds none (is the driver loaded? Soft RoCE: modprobe rdma_rxe, rdma link add)";

/// Why there is no device to show.
fn why_none(found: &Result<Vec<String>, String>, devices: usize) -> Option<String> {
    match found {
        Err(why) => Some(why.clone()),
        Ok(_) if devices == 0 => Some(NO_DEVICE.to_owned()),
        Ok(_) => None,
    }
}

/// A device, as far as it matters here.
struct Found {
    abilities: Abilities,
    max_message: u64,
    is_ethernet: bool,
    is_emulated: bool,
    thresholds: Thresholds,
}

impl Found {
    fn of(name: &str, thresholds: Thresholds) -> Result<Found, String> {
        let device = Device::open(name).map_err(|error| error.to_string())?;
        Ok(Found {
            abilities: device.abilities(),
            max_message: device.max_message(),
            is_ethernet: device.is_ethernet(),
            is_emulated: device.is_emulated(),
            thresholds,
        })
    }

    fn link(&self) -> &'static str {
        if self.is_ethernet {
            "RoCE"
        } else {
            "InfiniBand"
        }
    }

    /// Every layout with the method that it takes.
    fn choices(&self) -> Vec<(String, Shape, Choice)> {
        let layouts = applications().unwrap_or_default();
        let choose = |one: libcopy_rdma::workloads::Workload| {
            let shape = Shape::of(&one.layout);
            let choice = self
                .thresholds
                .choose(&shape, &shape, &self.abilities, CutRule::Agreed);
            (one.name, shape, choice)
        };
        layouts.into_iter().map(choose).collect()
    }
}

fn entries(limits: Option<Limits>) -> Option<usize> {
    limits.map(|limits| limits.max_iovs)
}

fn print(out: &mut impl Write, name: &str, found: &Found) -> Result<()> {
    let said = |limits: Option<Limits>| match entries(limits) {
        Some(entries) => format!("up to {entries} pieces"),
        None => "no".to_owned(),
    };
    let emulated = if found.is_emulated { ", emulated" } else { "" };
    writeln!(out, "{name} ({}{emulated})", found.link())?;
    writeln!(out, "  memory keys (umr)   {}", said(found.abilities.umr))?;
    writeln!(out, "  lists (sge)         {}", said(found.abilities.sge))?;
    writeln!(out, "  one work request    {} bytes", found.max_message)?;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["layout", "pieces", "shortest", "method", "work requests"]);
    for (name, shape, choice) in found.choices() {
        table.add_row([
            name,
            shape.blocks.to_string(),
            shape.min.to_string(),
            choice.method.to_string(),
            choice.windows.max(1).to_string(),
        ]);
    }
    writeln!(out, "{table}")?;
    Ok(())
}

fn device_json((name, device): &(String, Result<Found, String>)) -> Value {
    match device {
        Err(why) => json!({ "name": name, "usable": false, "why": why }),
        Ok(found) => json!({
            "name": name,
            "usable": true,
            "link": found.link(),
            "emulated": found.is_emulated,
            "umr_entries": entries(found.abilities.umr),
            "sge_entries": entries(found.abilities.sge),
            "max_message": found.max_message,
            "layouts": found.choices().into_iter().map(|(name, shape, choice)| json!({
                "name": name, "pieces": shape.blocks, "shortest": shape.min, "bytes": shape.bytes,
                "method": choice.method.name(), "windows": choice.windows,
            })).collect::<Vec<_>>(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_devices_says_why() {
        assert!(why_none(&Ok(Vec::new()), 0).is_some_and(|why| why.contains("rdma_rxe")));
        assert_eq!(
            why_none(&Err("cannot load".to_owned()), 0).as_deref(),
            Some("cannot load")
        );
        assert_eq!(why_none(&Ok(vec!["a".to_owned()]), 1), None);
    }

    #[test]
    fn layouts_take_the_papers_methods() {
        let found = Found {
            abilities: Abilities {
                sge: None,
                umr: Some(Limits {
                    max_iovs: 32,
                    max_bytes: 1 << 31,
                }),
            },
            max_message: 1 << 31,
            is_ethernet: true,
            is_emulated: false,
            thresholds: Thresholds::default(),
        };
        let json = device_json(&("mlx5_0".to_owned(), Ok(found)));
        let method = |name: &str| {
            let layouts = json["layouts"].as_array().unwrap();
            let one = layouts.iter().find(|one| one["name"] == name).unwrap();
            one["method"].as_str().unwrap().to_owned()
        };
        assert_eq!(method("sw4lite-x"), "umr");
        assert_eq!(method("sw4lite-y"), "pack");
    }
}
