// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy gpu`: which GPUs there are, what reaches what, and the model's times.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use libcopy_gpu::{Ask, Device, Driver, Effort, Origin, Profile, measure, profile_path};
use serde_json::{Value, json};

use libcopy_measure::gpu_owner::Owner;
use libcopy_measure::progress;

/// Subcommands of `libcopy gpu`.
#[derive(Subcommand, Debug)]
pub enum Gpu {
    /// Show the GPUs, the driver, which process reaches whose memory, and which method messages
    /// would take
    Info(InfoArgs),
    /// Measure a GPU for at most five seconds and store a profile that the choice of methods uses
    Measure(MeasureArgs),
}

/// Arguments of `libcopy gpu info`.
#[derive(Args, Debug)]
#[command(after_help = "Ends with status 1 where there is no CUDA driver, or no GPU.")]
pub struct InfoArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `libcopy gpu measure`.
#[derive(Args, Debug)]
#[command(
    after_help = "The profile goes to libcopy/GPU-UUID-DRIVER below $XDG_CACHE_HOME or ~/.cache. Delete the file to return \
    to the built-in times, which are assumed, not measured. No message is sent: times of messages are those of copies."
)]
pub struct MeasureArgs {
    /// Number of the GPU
    #[arg(long, default_value_t = 0)]
    device: usize,

    /// Measure and print, but do not store
    #[arg(long)]
    dry_run: bool,
}

/// Runs a subcommand.
pub fn run(command: &Gpu) -> Result<ExitCode> {
    match command {
        Gpu::Info(args) => info(args),
        Gpu::Measure(args) => run_measure(args).map(|()| ExitCode::SUCCESS),
    }
}

fn run_measure(args: &MeasureArgs) -> Result<()> {
    let driver = Driver::load()?;
    let devices = Device::all(driver)?;
    let device = devices.get(args.device).with_context(|| {
        format!(
            "there is no GPU {}: this process sees {} (see CUDA_VISIBLE_DEVICES)",
            args.device,
            devices.len()
        )
    })?;
    let bar = progress::bar(1000);
    let profile = measure(
        driver,
        device,
        Effort::for_device(device),
        &mut |share, what| {
            bar.set_position((share * 1000.0) as u64);
            bar.set_message(what.to_owned());
        },
    )?;
    bar.finish_and_clear();
    if device.is_stand_in() {
        eprintln!(
            "libcopy: this is the stand-in driver for tests: the times say nothing about GPUs"
        );
    }
    if args.dry_run {
        print!("{}", profile.to_text());
    } else {
        let path = profile.save().context("cannot keep the profile")?;
        println!("profile: {}", path.display());
    }
    Ok(())
}

/// Whether a process with memory on GPU `owner` is read from GPU `reader`.
struct Pair {
    owner: usize,
    reader: usize,
    result: Result<()>,
}

/// What there is.
struct Found {
    driver: &'static Driver,
    devices: Vec<Device>,
    pairs: Vec<Pair>,
}

impl Found {
    fn look() -> Result<Found> {
        let driver = Driver::load()?;
        let devices = Device::all(driver)?;
        ensure!(
            !devices.is_empty(),
            "the CUDA driver knows no GPU (see CUDA_VISIBLE_DEVICES)"
        );
        let mut pairs = Vec::new();
        for owner in 0..devices.len() {
            for (reader, device) in devices.iter().enumerate() {
                let probe = || -> Result<()> {
                    let context = device.primary_context(driver)?;
                    Owner::start(&["bench", "gpu-owner"], owner)?.probe(driver, &context.near())
                };
                pairs.push(Pair {
                    owner,
                    reader,
                    result: probe(),
                });
            }
        }
        Ok(Found {
            driver,
            devices,
            pairs,
        })
    }
}

/// Sizes and blocks whose methods are shown.
const SHOWN: [(u64, u64); 6] = [
    (1 << 10, 8),
    (1 << 10, 256),
    (64 << 10, 1),
    (64 << 10, 64),
    (4 << 20, 1),
    (4 << 20, 256),
];

/// The choices of a profile: with an MPI library that knows no GPU memory, between machines and
/// within one.
fn choices(profile: &Profile) -> Vec<(u64, u64, String, String)> {
    let choose = |bytes, block, has_peer| {
        let ask = Ask {
            bytes,
            block,
            is_aware: false,
            has_peer,
            is_regular: true,
        };
        profile.choose(&ask).to_string()
    };
    SHOWN
        .into_iter()
        .map(|(bytes, block)| {
            (
                bytes,
                block,
                choose(bytes, block, false),
                choose(bytes, block, true),
            )
        })
        .collect()
}

fn origin(profile: &Profile) -> &'static str {
    match profile.origin {
        Origin::Measured => "measured",
        Origin::Assumed => "assumed",
    }
}

/// How libcopy_mpi.so learns whether the MPI library takes GPU memory.
const AWARENESS: &str = "asked of the MPI library at run time with MPIX_Query_cuda_support; this tool is linked with none";

fn info(args: &InfoArgs) -> Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let found = match Found::look() {
        Ok(found) => found,
        Err(why) if args.json => {
            let text = json!({ "usable": false, "why": format!("{why:#}") });
            writeln!(out, "{}", serde_json::to_string_pretty(&text)?)?;
            return Ok(ExitCode::FAILURE);
        }
        Err(why) => return Err(why),
    };
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&as_json(&found)?)?)?;
    } else {
        print(&mut out, &found)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(out: &mut impl Write, found: &Found) -> Result<()> {
    let version = found.driver.version()?;
    writeln!(
        out,
        "CUDA driver    {}.{}",
        version / 1000,
        version % 1000 / 10
    )?;
    writeln!(out, "MPI            {AWARENESS}")?;
    for device in &found.devices {
        writeln!(out, "\nGPU {}          {}", device.ordinal, device.name)?;
        writeln!(out, "  UUID         {}", device.uuid)?;
        let (major, minor) = device.capability;
        writeln!(
            out,
            "  capability   {major}.{minor}, {} multiprocessors",
            device.multiprocessors
        )?;
        if device.is_stand_in() {
            writeln!(out, "  STAND-IN     a driver for tests; there is no GPU")?;
        }
        let profile = Profile::of(found.driver, device)?;
        match (profile.origin, profile_path(&profile.gpu, version)) {
            (Origin::Measured, Some(path)) => writeln!(out, "  profile      {}", path.display())?,
            _ => writeln!(
                out,
                "  profile      built in, assumed (`libcopy gpu measure` makes one)"
            )?,
        }
        writeln!(
            out,
            "  methods      bytes, block: between machines, within one"
        )?;
        for (bytes, block, between, within) in choices(&profile) {
            writeln!(out, "    {bytes:>9} {block:>5}: {between}, {within}")?;
        }
    }
    writeln!(out, "\nMemory of other processes (CUDA IPC)")?;
    for pair in &found.pairs {
        let result = match &pair.result {
            Ok(()) => "yes".to_owned(),
            Err(why) => format!("no: {why:#}"),
        };
        writeln!(
            out,
            "  GPU {} read from GPU {}: {result}",
            pair.owner, pair.reader
        )?;
    }
    Ok(())
}

fn as_json(found: &Found) -> Result<Value> {
    let version = found.driver.version()?;
    let mut devices = Vec::new();
    for device in &found.devices {
        let profile = Profile::of(found.driver, device)?;
        devices.push(json!({
            "ordinal": device.ordinal,
            "name": device.name,
            "uuid": device.uuid.to_string(),
            "capability": [device.capability.0, device.capability.1],
            "multiprocessors": device.multiprocessors,
            "stand_in": device.is_stand_in(),
            "profile": {
                "origin": origin(&profile),
                "path": profile_path(&profile.gpu, version),
                "times_us": profile.tables().into_iter().map(|(name, numbers)| (name.to_owned(), json!(numbers)))
                    .collect::<serde_json::Map<_, _>>(),
            },
            "methods": choices(&profile).into_iter().map(|(bytes, block, between, within)| json!({
                "bytes": bytes, "block": block, "between_machines": between, "within_machine": within,
            })).collect::<Vec<_>>(),
        }));
    }
    Ok(json!({
        "usable": true,
        "driver": version,
        "mpi": AWARENESS,
        "devices": devices,
        "ipc": found.pairs.iter().map(|pair| json!({
            "owner": pair.owner,
            "reader": pair.reader,
            "usable": pair.result.is_ok(),
            "why": pair.result.as_ref().err().map(|why| format!("{why:#}")),
        })).collect::<Vec<_>>(),
    }))
}
