// SPDX-License-Identifier: MIT OR Apache-2.0

//! Five strategies, random datatypes, random orders of packets: the native handlers, the compiled
//! ones on the simulated core and the card issue the same DMA writes, and these are the bytes of
//! `Layout::unpack`.
//!
//! `NIC_CASES=1000000 cargo test --release -p libcopy-nic --test strategies` is the long run;
//! `NIC_SEED` is another one.

#[path = "../handlers/tests/random/mod.rs"]
mod random;

use libcopy_datatype::Layout;
use libcopy_nic::card::{Packet, Strategy};
use libcopy_nic::iss::Timing;
use libcopy_nic::plan::{Options, Plan, Refusal, Verdict, plan};
use libcopy_nic::run::{Command, CoreError, CoreHandlers, NativeHandlers};
use libcopy_nic::simulate::{Arrival, receive};
use random::{Random, datatype};
use std::env;

/// Host memory, packed stream, bytes.
type Write = (i64, u64, u64);

fn number(name: &str, default: u64) -> u64 {
    match env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
        Err(_) => default,
    }
}

/// The writes of a packet.
fn writes(packet: &Packet, commands: &[Command]) -> Vec<Write> {
    let write = |command: &Command| match *command {
        Command::Write {
            host,
            packet: at,
            bytes,
        } => (host.into(), packet.offset + u64::from(at), bytes.into()),
        other => panic!("{other:?}"),
    };
    commands.iter().map(write).collect()
}

/// The writes of all packets, which come in `order`, from the native handlers and from the core's;
/// nothing without a specialised handler.
fn handled(
    layout: &Layout,
    strategy: Strategy,
    (payload, sequence, vhpus): (u64, u64, u64),
    order: &[u64],
) -> Option<Vec<Write>> {
    let image = layout.image().unwrap();
    let interval = (sequence * payload) as u32;
    let timing = Timing::CV32E40P;
    let mut core = match CoreHandlers::new(image.clone(), strategy, vhpus, interval, timing) {
        Err(CoreError::NoHandler) => return None,
        other => other.unwrap(),
    };
    let mut native = NativeHandlers::new(image, strategy, vhpus, interval);
    let mut all = Vec::new();
    for index in order {
        let packet = Packet::new(*index, payload, layout.size(), index % vhpus);
        let mut commands = Vec::new();
        assert!(native.payload(&packet, &mut commands));
        let run = core.payload(&packet).unwrap();
        let issued: Vec<Command> = run.commands.iter().map(|(_, command)| *command).collect();
        assert_eq!(issued, commands, "{strategy}, packet {index}");
        all.extend(writes(&packet, &commands));
    }
    Some(all)
}

/// The writes of the card, which receives the message by a plan, and has its own order of packets.
fn received(layout: &Layout, plan: &Plan, options: &Options, arrival: Arrival) -> Vec<Write> {
    let mut all = Vec::new();
    let report = receive(layout, plan, &options.parameters, arrival, |issue| {
        all.push((issue.memory, issue.stream, issue.bytes));
    });
    assert_eq!(report.unwrap().report.bytes, layout.size());
    all
}

fn unpacked(layout: &Layout, writes: &[Write]) {
    let bounds = layout.bounds();
    let origin = -bounds.start as isize;
    let len = (bounds.end - bounds.start) as usize;
    let packed: Vec<u8> = (0..layout.size())
        .map(|i| (i * 7 + i / 256) as u8)
        .collect();
    let mut expected = vec![0xee; len];
    layout.unpack(&packed, &mut expected, origin).unwrap();
    let mut buffer = vec![0xee; len];
    for (host, stream, bytes) in writes {
        let (to, from, bytes) = (
            (host - bounds.start) as usize,
            *stream as usize,
            *bytes as usize,
        );
        buffer[to..to + bytes].copy_from_slice(&packed[from..from + bytes]);
    }
    assert_eq!(buffer, expected);
}

#[test]
fn native_handlers_the_core_and_the_card_write_what_unpack_writes() {
    let (cases, seed) = (number("NIC_CASES", 150), number("NIC_SEED", 0xd15c));
    let mut random = Random(seed | 1);
    let mut by_card = [0; Strategy::ALL.len()];
    for case in 0..cases {
        let datatype = datatype(&mut random);
        let layout = Layout::new(&datatype, 1 + random.below(4)).unwrap();
        let size = layout.size();
        let payload = 1 + random.below(size / 2 + 2);
        let packets = size.div_ceil(payload);
        let mut order: Vec<u64> = (0..packets).collect();
        for _ in 0..packets * random.below(3) / 2 {
            order.swap(
                random.below(packets) as usize,
                random.below(packets) as usize,
            );
        }
        let shape = (payload, 1 + random.below(4), 1 + random.below(5));
        let arrival = Arrival {
            window: random.below(3) * random.below(packets + 1),
            seed: random.below(1 << 30),
            is_recorded: false,
        };
        let mut options = Options::default();
        options.parameters.packet = payload;
        options.parameters.hpus = 1 + random.below(8);
        let mut first: Option<Vec<Write>> = None;
        for (number, strategy) in Strategy::ALL.into_iter().enumerate() {
            let name = || format!("case {case}, {strategy}: {}", datatype.expression());
            let Some(mut writes) = handled(&layout, strategy, shape, &order) else {
                assert_eq!(strategy, Strategy::Specialized);
                continue;
            };
            writes.sort_by_key(|write| write.1);
            // All strategies alike.
            let first = first.get_or_insert_with(|| writes.clone());
            assert_eq!(writes, *first, "{}", name());
            options.strategy = Some(strategy);
            match plan(&layout, &options) {
                Verdict::Offload(plan) => {
                    let mut by = received(&layout, &plan, &options, arrival);
                    by.sort_by_key(|write| write.1);
                    assert_eq!(by, writes, "{}", name());
                    by_card[number] += 1;
                }
                // A struct with members that no specialised handler is for has a handler, which no
                // plan chooses.
                Verdict::Host(why) => assert!(
                    why == Refusal::Overlap || why == Refusal::NoHandler,
                    "{}: {why}",
                    name()
                ),
            }
        }
        if layout.form().is_disjoint() {
            unpacked(&layout, &first.unwrap_or_default());
        }
    }
    println!("{cases} types; received by the card, by strategy: {by_card:?}");
    assert!(
        by_card.iter().all(|count| *count >= cases / 4),
        "{by_card:?}"
    );
}
