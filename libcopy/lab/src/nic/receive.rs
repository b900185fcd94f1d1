// SPDX-License-Identifier: MIT OR Apache-2.0

//! `libcopy-lab nic plan` and `libcopy-lab nic simulate`: one type.

use super::host::HostArgs;
use super::memory::{OtherTypes, Placed};
use anyhow::{Result, anyhow, bail};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use libcopy::datatype::{Datatype, Layout};
use libcopy_nic::card::{NS, Parameters, Ps, Strategy, scatter};
use libcopy_nic::plan::{Limit, Options, Plan, Verdict};
use libcopy_nic::simulate::{Arrival, Sent, gigabits, receive_unexpected, send};
use serde_json::{Value, json};
use std::io::Write as _;

/// A type and a card.
#[derive(Args, Debug)]
struct TypeArgs {
    /// The type, as an expression (`libcopy type describe --help` has the language)
    #[arg(value_name = "TYPE")]
    expression: String,

    /// Elements of the type
    #[arg(long, default_value_t = 1)]
    count: u64,

    /// Handler processing units of the card
    #[arg(long, value_name = "N", default_value_t = Parameters::PAPER.hpus)]
    hpus: u64,

    /// Their clock in MHz
    #[arg(long, value_name = "MHZ", default_value_t = Parameters::PAPER.mhz)]
    clock: u64,

    /// Line rate in Gbit/s
    #[arg(long, value_name = "N", default_value_t = 200)]
    rate: u64,

    /// Bytes of NIC memory for datatypes and checkpoints
    #[arg(long, value_name = "BYTES", default_value_t = Parameters::PAPER.nic_memory)]
    memory: u64,

    /// Most that scheduling may add to the processing of a message, as a part of it
    #[arg(long, value_name = "PART", default_value_t = 0.2)]
    epsilon: f64,

    /// The type's priority for NIC memory
    #[arg(long, default_value_t = 0)]
    priority: i32,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TypeArgs {
    fn layout(&self) -> Result<Layout> {
        let datatype: Datatype = self.expression.parse()?;
        Ok(Layout::new(&datatype, self.count)?)
    }

    fn options(&self, strategy: Option<Strategy>) -> Result<Options> {
        let mut options = Options {
            strategy,
            ..Options::default()
        };
        let set = options.set(self.hpus, self.clock, self.rate, self.epsilon);
        // Each is an option of this name.
        set.map_err(|error| anyhow!("--{error}"))?;
        options.parameters.nic_memory = self.memory;
        options.attributes.priority = self.priority;
        Ok(options)
    }
}

/// Arguments of `libcopy-lab nic plan`.
#[derive(Args, Debug)]
pub struct PlanArgs {
    #[command(flatten)]
    of: TypeArgs,

    /// The strategy, instead of the one that is expected to be fastest: specialized, hpu-local,
    /// ro-cp, rw-cp, seek
    #[arg(long, value_parser = strategy)]
    strategy: Option<Strategy>,
}

fn strategy(name: &str) -> Result<Strategy, String> {
    let names = Strategy::ALL.map(Strategy::name);
    let found = Strategy::ALL.into_iter().find(|s| s.name() == name);
    found.ok_or_else(|| format!("one of {}", names.join(", ")))
}

fn us(time: Ps) -> f64 {
    time as f64 / (1000 * NS) as f64
}

fn limit(limit: Limit) -> &'static str {
    match limit {
        Limit::Scheduling => "the longest whose scheduling stays below epsilon",
        Limit::Memory => "NIC memory has no room for more checkpoints: scheduling exceeds epsilon",
        Limit::PacketBuffer => "more packets would not fit the packet buffer",
        Limit::Message => "one checkpoint is enough for the message",
        Limit::Clamped => "no interval stays below epsilon: one packet, the least there is",
    }
}

fn as_json(plan: &Plan, parameters: &Parameters) -> Value {
    json!({
        "simulated": true,
        "offload": true,
        "strategy": plan.strategy.name(),
        "why": plan.why(parameters),
        "line_rate": plan.is_line_rate,
        "hpus": parameters.hpus,
        "hpus_for_line_rate": plan.hpus_for_line_rate,
        "bytes": plan.bytes,
        "packets": plan.packets,
        "pieces": plan.pieces,
        "pieces_per_packet": plan.pieces_per_packet(),
        "nic_bytes": plan.nic_bytes,
        "description_bytes": plan.description,
        "states": plan.states,
        "interval_bytes": plan.interval.map(|i| i.bytes),
        "interval_packets": plan.interval.map(|i| i.packets),
        "interval_reason": plan.interval.map(|i| limit(i.limit)),
        "handler_us": us(plan.handler),
        "processing_us": us(plan.processing),
        "arrival_us": us(plan.arrival),
        "pcie_us": us(plan.pcie),
        "expected_us": us(plan.expected),
        "expected_gbit_per_s": gigabits(plan.bytes, plan.expected),
        "priority": plan.priority,
    })
}

/// Runs `libcopy-lab nic plan`.
pub fn plan(args: &PlanArgs) -> Result<()> {
    let layout = args.of.layout()?;
    let options = args.of.options(args.strategy)?;
    let verdict = libcopy_nic::plan::plan(&layout, &options);
    let mut out = std::io::stdout().lock();
    let plan = match verdict {
        Verdict::Offload(plan) => plan,
        Verdict::Host(why) if args.of.json => {
            let all = json!({ "simulated": true, "offload": false, "why": why.to_string() });
            writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
            return Ok(());
        }
        Verdict::Host(why) => {
            writeln!(out, "the host unpacks: {why}")?;
            return Ok(());
        }
    };
    let parameters = &options.parameters;
    if args.of.json {
        let all = as_json(&plan, parameters);
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(());
    }
    writeln!(out, "strategy    {}", plan.strategy)?;
    writeln!(out, "verdict     {}", plan.why(parameters))?;
    writeln!(
        out,
        "message     {} bytes, {} packets, {} pieces ({:.1} per packet)",
        plan.bytes,
        plan.packets,
        plan.pieces,
        plan.pieces_per_packet()
    )?;
    writeln!(
        out,
        "NIC memory  {} bytes: {} of description, {} states of {}",
        plan.nic_bytes, plan.description, plan.states, options.checkpoint
    )?;
    if let Some(interval) = plan.interval {
        writeln!(
            out,
            "interval    {} packets, {} bytes: {}",
            interval.packets,
            interval.bytes,
            limit(interval.limit)
        )?;
    }
    writeln!(
        out,
        "expected    {:.2} us, {:.1} Gbit/s: the longest of processing {:.2} us, arrival {:.2} us, PCIe {:.2} us",
        us(plan.expected),
        gigabits(plan.bytes, plan.expected),
        us(plan.processing),
        us(plan.arrival),
        us(plan.pcie)
    )?;
    writeln!(
        out,
        "            modelled, not measured: no such card was available"
    )?;
    Ok(())
}

/// Arguments of `libcopy-lab nic simulate`.
#[derive(Args, Debug)]
pub struct SimulateArgs {
    #[command(flatten)]
    of: TypeArgs,

    /// How many places later a packet may have been sent that overtakes another
    #[arg(long, value_name = "PACKETS", default_value_t = 0)]
    window: u64,

    /// Seed of the packets' order
    #[arg(long, default_value_t = 1)]
    seed: u64,

    #[command(flatten)]
    others: OtherTypes,

    #[command(flatten)]
    host: HostArgs,
}

/// One way to receive.
struct Way {
    name: String,
    time: Ps,
    nic_bytes: u64,
    deepest: Option<usize>,
    packet_bytes: Option<u64>,
    /// Types that had to give way in NIC memory.
    evicted: Vec<String>,
}

impl Way {
    fn without_handlers(name: &str, time: Ps, nic_bytes: u64) -> Way {
        Way {
            name: name.to_owned(),
            time,
            nic_bytes,
            deepest: None,
            packet_bytes: None,
            evicted: Vec::new(),
        }
    }
}

/// Most packets that are simulated: more take minutes.
const MOST: u64 = 1 << 20;

/// Runs `libcopy-lab nic simulate`.
pub fn simulate(args: &SimulateArgs) -> Result<()> {
    let layout = args.of.layout()?;
    let parameters = args.of.options(None)?.parameters;
    let packets = parameters.packets(layout.size());
    if packets == 0 || packets > MOST {
        bail!("{packets} packets: between 1 and {MOST} can be simulated (see --count)");
    }
    let host = args.host.table()?;
    let unpack = host.unpack(&layout);
    let mut ways = vec![Way::without_handlers(
        "host",
        host.receive(&layout, &parameters),
        0,
    )];
    let unexpected = receive_unexpected(layout.size(), &parameters) + unpack;
    ways.push(Way::without_handlers("unexpected", unexpected, 0));
    let scattered = scatter(&parameters, &layout);
    let time = parameters.network_latency + scattered.end;
    ways.push(Way::without_handlers("iovec", time, scattered.list_bytes));
    let mut refused = Vec::new();
    for strategy in Strategy::ALL {
        let options = args.of.options(Some(strategy))?;
        let plan = match libcopy_nic::plan::plan(&layout, &options) {
            Verdict::Offload(plan) => plan,
            Verdict::Host(why) => {
                refused.push((strategy, why.to_string()));
                continue;
            }
        };
        let evicted = match args.others.place(&plan, &options)? {
            Placed::Room(evicted) => evicted,
            Placed::None => {
                let why = "NIC memory has no room beside the types that do not give way: the host unpacks";
                refused.push((strategy, why.to_owned()));
                continue;
            }
        };
        let arrival = Arrival {
            window: args.window,
            seed: args.seed,
            is_recorded: false,
        };
        let received =
            libcopy_nic::simulate::receive(&layout, &plan, &parameters, arrival, |_| {})?;
        ways.push(Way {
            name: strategy.name().to_owned(),
            time: received.time,
            nic_bytes: plan.nic_bytes,
            deepest: Some(received.report.deepest_queue),
            packet_bytes: Some(received.report.packet_bytes),
            evicted,
        });
    }
    // Finding the regions is taken to be half of packing: packed bytes are written besides.
    let sent = send(&layout, &parameters, unpack, unpack / 2).ok();
    let baseline = ways[0].time as f64;
    let mut out = std::io::stdout().lock();
    if args.of.json {
        let all: Vec<Value> = ways
            .iter()
            .map(|way| {
                json!({
                    "way": way.name,
                    "us": us(way.time),
                    "gbit_per_s": gigabits(layout.size(), way.time),
                    "speedup": baseline / way.time as f64,
                    "nic_bytes": way.nic_bytes,
                    "dma_queue": way.deepest,
                    "packet_bytes": way.packet_bytes,
                    "evicted": way.evicted,
                })
            })
            .collect();
        let refused: Vec<Value> = refused
            .iter()
            .map(|(strategy, why)| json!({ "way": strategy.name(), "why": why }))
            .collect();
        let all = json!({
            "simulated": true,
            "host": host.source,
            "bytes": layout.size(),
            "ways": all,
            "refused": refused,
            "sent_us": sent.map(|sent| json!({
                "pack_and_put": us(sent.pack_and_put),
                "streaming_put": us(sent.streaming_put),
                "process_put": us(sent.process_put),
            })),
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(());
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
        "",
        "us",
        "Gbit/s",
        "speedup",
        "NIC bytes",
        "DMA queue",
        "packet bytes",
    ]);
    for way in &ways {
        let number = |n: Option<u64>| n.map_or(String::new(), |n| n.to_string());
        table.add_row([
            way.name.clone(),
            format!("{:.2}", us(way.time)),
            format!("{:.1}", gigabits(layout.size(), way.time)),
            format!("{:.2}", baseline / way.time as f64),
            way.nic_bytes.to_string(),
            number(way.deepest.map(|n| n as u64)),
            number(way.packet_bytes),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    writeln!(out, "{table}")?;
    for (strategy, why) in refused {
        writeln!(out, "{strategy}: {why}")?;
    }
    for way in ways.iter().filter(|way| !way.evicted.is_empty()) {
        writeln!(out, "{}: gave way: {}", way.name, way.evicted.join(", "))?;
    }
    if let Some(Sent {
        pack_and_put,
        streaming_put,
        process_put,
    }) = sent
    {
        writeln!(
            out,
            "sending, until the last packet has left: pack and put {:.2} us, streaming put {:.2} us, process-put {:.2} us",
            us(pack_and_put),
            us(streaming_put),
            us(process_put)
        )?;
    }
    writeln!(out, "Simulated; the host's time: {}.", host.source)?;
    Ok(())
}
