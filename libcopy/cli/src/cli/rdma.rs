// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy rdma`: the RDMA devices of this machine, and how typed messages would go through them.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use libcopy::policy::RdmaProfile;
use libcopy::topology::Topology;
use libcopy_measure::report::plain_table;
use libcopy_rdma::verbs::{Device, device_names};
use libcopy_rdma::workloads::applications;
use libcopy_rdma::{Abilities, Choice, CutRule, Limits, Shape, Thresholds};
use serde_json::{Value, json};

/// Subcommands of `libcopy rdma`.
#[derive(Debug, Subcommand)]
pub enum Rdma {
    /// Show the devices, what they can do, and the method that each application layout would take
    Probe(ProbeArgs),
}

/// Arguments of `libcopy rdma probe`.
#[derive(Args, Debug)]
#[command(after_help = "Ends with status 1 where there is no RDMA device.")]
pub struct ProbeArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs `libcopy rdma`.
pub fn run(command: &Rdma) -> Result<ExitCode> {
    match command {
        Rdma::Probe(args) => probe(args),
    }
}

/// The devices to measure with: those that were asked for, else the first two that can be used,
/// else one for both ends.
pub fn tune_devices(asked: &[String]) -> Result<[Arc<Device>; 2]> {
    if let (Some(first), Some(last)) = (asked.first(), asked.last()) {
        return Ok(Device::open_both(first, last)?);
    }
    let why = match Device::usable(2) {
        Err(why) => why.to_string(),
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

fn probe(args: &ProbeArgs) -> Result<ExitCode> {
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
        let why = why_none(&found, devices.len());
        let code = why
            .as_ref()
            .map_or(ExitCode::SUCCESS, |_| ExitCode::FAILURE);
        let all = json!({
            "devices": all,
            "why_none": why,
            "thresholds": thresholds.to_string().lines().collect::<Vec<_>>(),
            "thresholds_are": origin,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(code);
    }
    if let Some(why) = why_none(&found, devices.len()) {
        bail!("no RDMA device: {why}");
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
    Ok(ExitCode::SUCCESS)
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
    let mut table = plain_table();
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
