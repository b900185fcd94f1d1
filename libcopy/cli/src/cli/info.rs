// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy info`: everything a question about this machine begins with.

use anyhow::Result;
use clap::Args;
use libcopy::config::{self, SETTINGS};
use libcopy::device::{Device, Engine, EngineKind};
use libcopy::policy::Policy;
use libcopy::topology::Topology;
use libcopy::transport::probe_machine;
use libcopy::tune::Profile;
use libcopy::uapi;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use serde_json::{Value, json};
use std::io::Write;

/// Arguments of `libcopy info`.
#[derive(Args, Debug)]
pub struct InfoArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Names of the feature bits.
const FEATURES: [(u64, &str); 3] = [
    (uapi::FEATURE_ATTACH, "attach"),
    (uapi::FEATURE_REUSE, "reuse"),
    (uapi::FEATURE_REQUEST, "request"),
];

fn feature_names(bits: u64) -> Vec<String> {
    let mut names: Vec<String> = FEATURES
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, name)| (*name).to_owned())
        .collect();
    let unknown = FEATURES.iter().fold(bits, |rest, (bit, _)| rest & !bit);
    if unknown != 0 {
        names.push(format!("unknown {unknown:#x}"));
    }
    names
}

/// Runs `libcopy info`.
pub fn run(args: &InfoArgs) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&as_json())?)?;
    } else {
        print(&mut out)?;
    }
    Ok(())
}

fn print(out: &mut impl Write) -> Result<()> {
    writeln!(
        out,
        "libcopy {}, ABI {}",
        env!("CARGO_PKG_VERSION"),
        uapi::ABI_VERSION
    )?;

    writeln!(out, "\nDevice {}", uapi::DEVICE_PATH)?;
    match Device::open().and_then(|d| Ok((d.info()?, d.engines()?))) {
        Ok((info, engines)) => {
            let count = match engines.len() {
                0 => "none, the CPUs copy".to_owned(),
                n => n.to_string(),
            };
            writeln!(out, "  ABI            {}", info.abi_version)?;
            writeln!(
                out,
                "  features       {}",
                feature_names(info.features).join(" ")
            )?;
            writeln!(out, "  copy engines   {count}")?;
            for engine in &engines {
                writeln!(out, "    {}", describe(engine))?;
            }
            writeln!(
                out,
                "  regions        up to {} per domain",
                info.max_regions
            )?;
            writeln!(
                out,
                "  region size    up to {} GiB in {} pieces",
                info.max_region_bytes >> 30,
                info.max_iov
            )?;
            writeln!(
                out,
                "  reuse cache    up to {} pages of {} bytes per process",
                info.reuse_pages, info.page_size
            )?;
        }
        Err(e) => writeln!(out, "  not usable: {}", e.report())?,
    }
    let limit = match memlock_limit() {
        None => "no limit".to_owned(),
        Some(bytes) => format!("{} KiB; what is beyond goes another way", bytes >> 10),
    };
    writeln!(out, "  memory to pin  {limit} (RLIMIT_MEMLOCK, ulimit -l)")?;

    writeln!(out, "\nTransports")?;
    for report in probe_machine() {
        let usable = if report.usable { "yes" } else { "no" };
        writeln!(
            out,
            "  {:<5} {usable:<4} {}",
            report.kind.name(),
            report.why
        )?;
    }

    let topology = Topology::read();
    writeln!(out, "\nMachine")?;
    writeln!(out, "  {}, Linux {}", topology.model, topology.kernel)?;
    for node in &topology.nodes {
        writeln!(out, "  NUMA node {}: cores {}", node.id, ranges(&node.cpus))?;
    }
    writeln!(
        out,
        "  caches: L1d {} KiB, L2 {} KiB, last level {} KiB",
        topology.l1d >> 10,
        topology.l2 >> 10,
        topology.llc >> 10
    )?;

    writeln!(out, "\nPolicy")?;
    match Policy::load() {
        Ok(policy) => {
            for line in policy.table().lines() {
                writeln!(out, "  {line}")?;
            }
        }
        Err(e) => writeln!(out, "  {}", e.report())?,
    }
    match Profile::path() {
        Some(path) if path.exists() => writeln!(out, "  profile: {}", path.display())?,
        Some(path) => writeln!(
            out,
            "  profile: none ({} is not there; `libcopy tune` makes it)",
            path.display()
        )?,
        None => writeln!(out, "  profile: none")?,
    }

    writeln!(out, "\nOptions (environment variables)")?;
    for setting in SETTINGS {
        let value = match setting.value() {
            Some(value) => value,
            None if setting.default.is_empty() => "(unset)".to_owned(),
            None => format!("{} (default)", setting.default),
        };
        writeln!(out, "  {:<24} {value}", setting.name)?;
        writeln!(out, "  {:<24}   {}", "", setting.help)?;
    }
    for (name, nearest) in config::unknown() {
        let hint = nearest.map_or(String::new(), |nearest| {
            format!("; did you mean {nearest}?")
        });
        writeln!(
            out,
            "  {name:<24} (no variable of libcopy: without effect{hint})"
        )?;
    }
    Ok(())
}

/// One line about an engine.
fn describe(engine: &Engine) -> String {
    let info = &engine.info;
    let node = engine
        .node()
        .map_or("no node".to_owned(), |node| format!("node {node}"));
    let trouble = match info.out_of_service {
        0 => String::new(),
        n => format!(", {n} out of service"),
    };
    format!(
        "{}: {} ({}), {node}, {} channels ({} acquired{trouble}), {} MiB moved",
        info.index,
        engine.driver(),
        engine.device(),
        info.channels,
        info.acquired,
        info.bytes >> 20,
    )
}

fn as_json() -> Value {
    let device = match Device::open().and_then(|d| Ok((d.info()?, d.engines()?))) {
        Ok((info, engines)) => json!({
            "usable": true,
            "abi_version": info.abi_version,
            "features": feature_names(info.features),
            "engines": engines.iter().map(|e| json!({
                "index": e.info.index,
                "kind": match e.kind() {
                    EngineKind::Dma => "dma",
                    EngineKind::KernelThread => "kthread",
                    EngineKind::Worker => "worker",
                    EngineKind::Other(_) => "unknown",
                },
                "driver": e.driver(),
                "device": e.device(),
                "node": e.node(),
                "channels": e.info.channels,
                "acquired": e.info.acquired,
                "out_of_service": e.info.out_of_service,
                "alignment": e.info.alignment,
                "max_transfer": e.info.max_transfer,
                "fragments": e.info.fragments,
                "bytes": e.info.bytes,
            })).collect::<Vec<_>>(),
            "max_iov": info.max_iov,
            "max_regions": info.max_regions,
            "max_region_bytes": info.max_region_bytes,
            "reuse_pages": info.reuse_pages,
            "page_size": info.page_size,
        }),
        Err(e) => json!({ "usable": false, "why": e.report() }),
    };
    let topology = Topology::read();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "abi_version": uapi::ABI_VERSION,
        "device": device,
        "memlock_limit": memlock_limit(),
        "transports": probe_machine().iter().map(|r| json!({
            "name": r.kind.name(), "usable": r.usable, "why": r.why,
        })).collect::<Vec<_>>(),
        "machine": {
            "processor": topology.model,
            "kernel": topology.kernel,
            "cpus": topology.cpus,
            "nodes": topology.nodes.iter().map(|n| json!({ "id": n.id, "cpus": n.cpus }))
                .collect::<Vec<_>>(),
            "l1d": topology.l1d,
            "l2": topology.l2,
            "llc": topology.llc,
            "page_size": topology.page,
        },
        "policy": Policy::load().map_or_else(
            |e| json!({ "error": e.report() }),
            |p| json!(p.table().lines().collect::<Vec<_>>()),
        ),
        "profile": Profile::path(),
        "options": SETTINGS.iter().map(|s| json!({
            "name": s.name, "default": s.default, "value": s.value(), "help": s.help,
        })).collect::<Vec<_>>(),
        "unknown_options": config::unknown().iter().map(|(name, nearest)| json!({
            "name": name, "nearest": nearest,
        })).collect::<Vec<_>>(),
    })
}

/// Bytes that this process may pin, as the kernel counts them; none if there is no limit.
fn memlock_limit() -> Option<u64> {
    let (soft, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (soft != RLIM_INFINITY).then_some(soft)
}

/// `0-3,8`
fn ranges(cpus: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
            _ => parts.push((*cpu, *cpu)),
        }
    }
    let parts: Vec<String> = parts
        .iter()
        .map(|(a, b)| {
            if a == b {
                a.to_string()
            } else {
                format!("{a}-{b}")
            }
        })
        .collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_told_as_ranges() {
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn unknown_features_are_shown() {
        assert_eq!(
            feature_names(uapi::FEATURE_ATTACH | 1 << 40),
            ["attach", "unknown 0x10000000000"]
        );
    }
}
