// SPDX-License-Identifier: MIT OR Apache-2.0

//! The command `ioat-model`: serves copy engines to QEMU, and asks a model that is running.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, anyhow};
use clap::{Parser, Subcommand};
use ioat_model::client::{self, Client};
use ioat_model::control;
use ioat_model::device::Device;
use ioat_model::model::Model;
use ioat_model::topology::Topology;

/// Models Intel I/OAT copy engines (Crystal Beach DMA v3.2) for the stock driver ioatdma of a
/// guest.
#[derive(Parser)]
#[command(name = "ioat-model", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves the engines until every virtual machine that was connected has gone.
    ///
    /// DIR gets a socket ENGINE.CHANNEL for each PCI function, for QEMU's -device
    /// '{"driver":"vfio-user-pci","socket":{"path":"DIR/0.0","type":"unix"}}', and the socket
    /// "control". When they are there, "ready" is printed. The guest's memory must be shared
    /// (memory-backend-memfd) and its machine be q35.
    Serve {
        /// Engines, channels of each, and bytes per second that an engine copies (K, M, G; max).
        #[arg(long, value_name = "ENGINESxCHANNELS[,bw=RATE]", default_value = "2x8")]
        engines: Topology,
        /// Where the sockets are made; it must exist and have none of them.
        #[arg(long, value_name = "DIR")]
        directory: PathBuf,
    },
    /// Asks a running model and prints its answer, as JSON.
    ///
    /// Requests: stats, totals, clear-stats, clear-faults (each with ENGINE.CHANNEL, ENGINE.* or
    /// *); fault CHANNELS KIND [after=N] [count=N], where KIND is read-error, write-error, halt,
    /// hang, lost-interrupt, delay=MILLISECONDS or corrupt; bandwidth ENGINES RATE; topology.
    Ask {
        /// The control socket; without it, this is the guest and the functions of this machine are
        /// asked.
        #[arg(long, value_name = "PATH")]
        socket: Option<PathBuf>,
        /// The request.
        #[arg(required = true)]
        request: Vec<String>,
    },
    /// Lists the modelled functions of this machine (the guest), as JSON: channel, address, NUMA
    /// node, driver, dmaengine channels.
    List,
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Serve { engines, directory } => serve(engines, &directory),
        Command::Ask { socket, request } => ask(socket.as_deref(), &request.join(" ")),
        Command::List => list(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ioat-model: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(topology: Topology, directory: &Path) -> anyhow::Result<()> {
    let model = Model::start(topology).context("cannot start the engines")?;
    let mut servers = Vec::new();
    for id in topology.ids() {
        let path = directory.join(id.to_string());
        let server = Device::listen(&path)
            .map_err(|error| anyhow!("cannot make the socket {}: {error}", path.display()))?;
        servers.push((id, server));
    }
    let path = directory.join("control");
    control::listen(model.clone(), &path)
        .with_context(|| format!("cannot make the socket {}", path.display()))?;
    println!("ready");
    std::io::stdout().flush()?;
    let mut threads = Vec::new();
    for (id, server) in servers {
        let mut device =
            Device::new(&model, id).ok_or_else(|| anyhow!("the model has no channel {id}"))?;
        let thread = thread::Builder::new()
            .name(format!("channel {id}"))
            .spawn(move || {
                server
                    .run(&mut device)
                    .map_err(|error| anyhow!("channel {id}: {error}"))
            })?;
        threads.push(thread);
    }
    let mut result = Ok(());
    for thread in threads {
        let ended = thread
            .join()
            .unwrap_or_else(|_| Err(anyhow!("a thread of the model panicked")));
        result = result.and(ended);
    }
    let _ = std::fs::remove_file(path);
    result
}

fn ask(socket: Option<&Path>, request: &str) -> anyhow::Result<()> {
    let mut client = match socket {
        Some(path) => Client::connect(path)?,
        None => Client::in_guest()?,
    };
    println!("{}", client.ask(request)?);
    Ok(())
}

fn list() -> anyhow::Result<()> {
    for function in client::functions().context("cannot look for PCI functions")? {
        println!("{}", serde_json::to_string(&function)?);
    }
    Ok(())
}
