// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy info`: everything a question about this machine begins with.

use super::ranks::{self, RANKS, Ranks};
use anyhow::Result;
use clap::Args;
use libcopy::config::{self, ForWhom, SETTINGS, Setting};
use libcopy::device::{Device, Engine, EngineKind};
use libcopy::policy::Policy;
use libcopy::topology::{self, Cpus, Level, Object, Topology};
use libcopy::transport::probe_machine;
use libcopy::tune::Profile;
use libcopy::uapi;
use libcopy_measure::report::plain_table;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use serde_json::{Value, json};
use std::io::Write;
use std::process::ExitCode;

/// Arguments of `libcopy info`.
#[derive(Args, Debug)]
#[command(after_help = "\
Two ranks of this tool make the memory that ranks share. Ends with status 1 where a program would refuse:
no shared memory, a variable or a profile that cannot be used. `libcopy doctor` says what mends what.")]
pub struct InfoArgs {
    /// Show all variables, those for measuring and testing and those that tools set, too
    #[arg(long)]
    all: bool,

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
///
/// # Errors
///
/// Ranks cannot be started, or the output cannot be written.
pub fn run(args: &InfoArgs) -> Result<ExitCode> {
    let ranks = ranks::start(&[])?;
    let refused = refused(&ranks);
    let mut out = std::io::stdout().lock();
    if args.json {
        let all = as_json(&ranks, &refused);
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
    } else {
        print(&mut out, args, &ranks)?;
    }
    for what in &refused {
        eprintln!("libcopy info: a program would refuse: {what}");
    }
    let is_fine = refused.is_empty();
    Ok(if is_fine {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Why a program would refuse.
fn refused(ranks: &Ranks) -> Vec<String> {
    let mut all = ranks::refused();
    all.extend(Profile::machines().err().map(|error| error.report()));
    all.extend(ranks.refused_transport());
    if ranks.team().is_none() {
        all.push(format!("two ranks form no team: {}", ranks.why()));
    }
    all
}

fn print(out: &mut impl Write, args: &InfoArgs, ranks: &Ranks) -> Result<()> {
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

    writeln!(out, "\nShared memory")?;
    match ranks.team() {
        None => writeln!(out, "  not usable: {}", ranks.why())?,
        Some(team) => {
            let place = match &team.file {
                Some(file) => format!("in {}", file.parent().unwrap_or(file).display()),
                None => format!(
                    "without a name: no room in {}",
                    config::SHM_DIR.or_default()
                ),
            };
            writeln!(
                out,
                "  {} KiB of {RANKS} ranks, made and used, {place}",
                team.shared >> 10
            )?;
        }
    }

    let topology = Topology::read();
    writeln!(out, "\nMachine")?;
    writeln!(out, "  {}, Linux {}", topology.model, topology.kernel)?;
    let machine = topology::objects();
    for (depth, object) in machine.all() {
        if !is_core(object) {
            let margin = 2 * (depth + 1);
            writeln!(out, "{:margin$}{}", "", describe_object(object))?;
        }
    }
    let cpus: Cpus = topology::affinity().into_iter().collect();
    let place = machine.place(&cpus).name();
    writeln!(out, "  this process: processors {cpus}, in {place}")?;
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
            let mut table = plain_table();
            for line in policy.table().lines() {
                table.add_row([format!(" {line}")]);
            }
            writeln!(out, "{}", table.trim_fmt())?;
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
    let is_shown = |setting: &&Setting| {
        args.all || setting.for_whom == ForWhom::Users || setting.value_os().is_some()
    };
    let (shown, others): (Vec<&Setting>, Vec<&Setting>) =
        SETTINGS.iter().copied().partition(is_shown);
    let mut table = plain_table();
    for setting in shown {
        table.add_row(vec![format!(" {}", setting.name), value_of(setting)]);
        table.add_row(vec![String::new(), setting.help.to_owned()]);
    }
    writeln!(out, "{}", table.trim_fmt())?;
    if !others.is_empty() {
        let count = others.len();
        writeln!(
            out,
            "  and {count} more, for few: --all shows them, or docs/configuration.md"
        )?;
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

/// The value of a variable, as people read it.
fn value_of(setting: &Setting) -> String {
    match (setting.value(), setting.check()) {
        (_, Err(error)) => error.report(),
        (Some(value), _) => value,
        (None, _) if setting.default.is_empty() => "(unset)".to_owned(),
        (None, _) => format!("{} (default)", setting.default),
    }
}

/// Whether it is a core and nothing else, of which there are many.
fn is_core(object: &Object) -> bool {
    object.names.iter().all(|name| name.level == Level::Core)
}

/// One line about a part of the machine.
fn describe_object(object: &Object) -> String {
    let cores: Vec<&Object> = object.inside.iter().filter(|it| is_core(it)).collect();
    let threads = cores.iter().map(|core| core.cpus.len()).max();
    let cores = match (cores.len(), threads) {
        (_, None) => String::new(),
        (count, Some(threads)) if threads > 1 => format!(", {count} cores of {threads} threads"),
        (count, _) => format!(", {count} cores"),
    };
    format!("{}: processors {}{cores}", object.name(), object.cpus)
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

fn as_json(ranks: &Ranks, refused: &[String]) -> Value {
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
        "refused": refused,
        "device": device,
        "memlock_limit": memlock_limit(),
        "transports": probe_machine().iter().map(|r| json!({
            "name": r.kind.name(), "usable": r.usable, "why": r.why,
        })).collect::<Vec<_>>(),
        "shared_memory": ranks.team().map_or_else(
            || json!({ "usable": false, "why": ranks.why() }),
            |team| json!({ "usable": true, "ranks": RANKS, "bytes": team.shared, "file": team.file }),
        ),
        "machine": {
            "processor": topology.model,
            "kernel": topology.kernel,
            "cpus": topology.cpus,
            "nodes": topology.nodes.iter().map(|n| json!({ "id": n.id, "cpus": n.cpus }))
                .collect::<Vec<_>>(),
            "objects": topology::objects().all().iter().map(|(depth, object)| json!({
                "depth": depth,
                "names": object.names.iter().map(|name| name.to_string()).collect::<Vec<_>>(),
                "cpus": object.cpus.to_string(),
            })).collect::<Vec<_>>(),
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
            "for_users": s.for_whom == ForWhom::Users,
            "error": s.check().err().map(|error| error.report()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_features_are_shown() {
        assert_eq!(
            feature_names(uapi::FEATURE_ATTACH | 1 << 40),
            ["attach", "unknown 0x10000000000"]
        );
    }
}
