// SPDX-License-Identifier: MIT OR Apache-2.0

//! The simulated card: right bytes in every order, equal traces, and the shapes of the paper's
//! figures.

mod expressions;

use expressions::FIXED;
use libcopy_datatype::{Datatype, Layout};
use libcopy_nic::card::{
    Card, Context, Entry, Handlers, Issue, List, Message, Packet, Parameters, Path, Policy, Sender,
    Strategy, Work, departures, pieces_before, scatter,
};
use libcopy_nic::plan::{Options, Plan, Verdict, plan};
use libcopy_nic::run::MessageHandlers;
use libcopy_nic::simulate::{Arrival, gigabits, receive, receive_packed, receive_unexpected, send};
use std::cell::RefCell;
use std::rc::Rc;

fn layout(expression: &str) -> Layout {
    let datatype: Datatype = expression.parse().unwrap();
    Layout::new(&datatype, 1).unwrap()
}

/// Blocks of `block` bytes, every other one, 4 MiB in all.
fn vector(block: u64) -> Layout {
    layout(&format!(
        "vector({}, {block}, {}, byte)",
        (4 << 20) / block,
        2 * block
    ))
}

fn options(strategy: Strategy, hpus: u64) -> Options {
    Options {
        parameters: Parameters::PAPER.with_hpus(hpus),
        strategy: Some(strategy),
        ..Options::default()
    }
}

fn planned(layout: &Layout, options: &Options) -> Plan {
    match plan(layout, options) {
        Verdict::Offload(plan) => plan,
        Verdict::Host(why) => panic!("{why}"),
    }
}

/// Gbit/s of receiving in order.
fn throughput(layout: &Layout, strategy: Strategy, hpus: u64) -> f64 {
    let options = options(strategy, hpus);
    let plan = planned(layout, &options);
    let received = receive(
        layout,
        &plan,
        &options.parameters,
        Arrival::default(),
        |_| {},
    )
    .unwrap();
    received.throughput(layout.size())
}

#[test]
fn every_strategy_in_every_order_writes_what_unpack_writes() {
    for expression in FIXED {
        let layout = layout(expression);
        let size = layout.size() as usize;
        let span = layout.bounds().end as usize;
        let packed: Vec<u8> = (0..size).map(|i| (i * 31 + i / 251) as u8).collect();
        let mut expected = vec![0; span];
        layout.unpack(&packed, &mut expected, 0).unwrap();
        for strategy in Strategy::ALL {
            let options = options(strategy, 4);
            let Verdict::Offload(plan) = plan(&layout, &options) else {
                assert_eq!(strategy, Strategy::Specialized, "{expression}");
                continue;
            };
            for (window, seed) in [(0, 0), (3, 1), (1000, 2)] {
                let mut memory = vec![0; span];
                let mut moved = 0;
                let arrival = Arrival {
                    window,
                    seed,
                    is_recorded: false,
                };
                let received = receive(&layout, &plan, &options.parameters, arrival, |issue| {
                    let Issue {
                        memory: to,
                        stream,
                        bytes,
                        ..
                    } = *issue;
                    let (to, from, bytes) = (to as usize, stream as usize, bytes as usize);
                    memory[to..to + bytes].copy_from_slice(&packed[from..from + bytes]);
                    moved += bytes;
                })
                .unwrap();
                assert_eq!(moved, size, "{strategy}");
                assert!(
                    memory == expected,
                    "{strategy}, window {window}: {expression}"
                );
                assert_eq!(received.report.bytes, size as u64);
                assert_eq!(received.report.outcomes[0].handlers, plan.packets);
            }
        }
    }
}

#[test]
fn equal_seeds_have_equal_traces() {
    let layout = vector(128);
    let options = options(Strategy::RwCp, 16);
    let plan = planned(&layout, &options);
    let run = |seed| {
        let arrival = Arrival {
            window: 20,
            seed,
            is_recorded: true,
        };
        let mut issues = Vec::new();
        let received = receive(&layout, &plan, &options.parameters, arrival, |issue| {
            issues.push(*issue);
        })
        .unwrap();
        (received, issues)
    };
    let (first, second, other) = (run(7), run(7), run(8));
    assert_eq!(first.0.report.trace, second.0.report.trace);
    assert_eq!(first.0.report.queue, second.0.report.queue);
    assert_eq!(first.0.time, second.0.time);
    assert_eq!(first.1, second.1);
    assert_ne!(first.0.report.trace, other.0.report.trace);
    assert_ne!(first.1, other.1);
}

#[test]
fn the_shapes_of_figure_8() {
    // Line rate, less what latency takes from a message of 4 MiB.
    let line = 0.97 * 200.0;
    assert!(throughput(&vector(64), Strategy::Specialized, 16) > line);
    assert!(throughput(&vector(16), Strategy::Specialized, 16) < line);
    let at = |strategy| throughput(&vector(16), strategy, 16);
    let (special, rw, ro, local) = (
        at(Strategy::Specialized),
        at(Strategy::RwCp),
        at(Strategy::RoCp),
        at(Strategy::HpuLocal),
    );
    println!("{special} {rw} {ro} {local}");
    assert!(
        special > rw && rw > ro.max(local),
        "{special} {rw} {ro} {local}"
    );
    // Figure 13a: whole packets at line rate with few HPUs.
    assert!(throughput(&vector(2048), Strategy::Specialized, 2) > 0.95 * 200.0);
    assert!(throughput(&vector(2048), Strategy::HpuLocal, 2) < line);
}

#[test]
fn the_formula_foretells_the_simulation_where_processing_bounds() {
    let mut compared = 0;
    for hpus in [4, 8, 16, 32] {
        for block in [4, 8, 16, 32, 64, 128, 256] {
            let (layout, options) = (vector(block), options(Strategy::RwCp, hpus));
            let plan = planned(&layout, &options);
            // Where arrival or PCIe is nearly as slow, the two add up in neither.
            if plan.processing < plan.arrival.max(plan.pcie) * 5 / 4 {
                continue;
            }
            let received = receive(
                &layout,
                &plan,
                &options.parameters,
                Arrival::default(),
                |_| {},
            )
            .unwrap();
            let ratio = plan.processing as f64 / received.processing as f64;
            assert!(
                (0.9..1.1).contains(&ratio),
                "{hpus} HPUs, {block} bytes: {ratio}"
            );
            compared += 1;
        }
    }
    assert!(compared >= 15, "{compared}");
}

#[test]
fn reordering_reverts_checkpoints_and_costs_time() {
    let layout = vector(128);
    let options = options(Strategy::RwCp, 16);
    let plan = planned(&layout, &options);
    let setup = |window| {
        let arrival = Arrival {
            window,
            seed: 3,
            is_recorded: false,
        };
        let received = receive(&layout, &plan, &options.parameters, arrival, |_| {}).unwrap();
        let work = received.report.outcomes[0].work;
        (work.init, work.setup, work.blocks)
    };
    let (in_order, shuffled) = (setup(0), setup(12));
    // Reverted checkpoints are copied before the handler looks at the datatype; catch-up comes
    // after. The requests of a packet take as long as before.
    assert!(shuffled.0 > in_order.0 && shuffled.1 > in_order.1);
    assert!(shuffled.2.abs_diff(in_order.2) * 100 < in_order.2);
}

/// Handlers that remember which virtual HPU had which packet, in order.
struct Recorder(Rc<RefCell<Vec<Packet>>>);

impl Handlers for Recorder {
    fn payload(&mut self, packet: &Packet, issues: &mut Vec<Issue>) -> Work {
        self.0.borrow_mut().push(*packet);
        issues.push(Issue {
            at: 500,
            memory: packet.offset as i64,
            stream: packet.offset,
            bytes: packet.bytes,
        });
        Work {
            init: 0,
            setup: 0,
            blocks: 500,
        }
    }

    fn completion(&mut self) -> u64 {
        10
    }
}

fn entry(bits: u64, context: Option<Context>) -> Entry<Context> {
    Entry {
        bits,
        ignore: 0,
        is_persistent: false,
        context,
    }
}

fn message(bits: u64, bytes: u64) -> Message {
    Message {
        bits,
        bytes,
        start: 0,
        interval: 0,
        window: 0,
        seed: 0,
    }
}

#[test]
fn messages_go_where_their_entries_say() {
    let log = Rc::new(RefCell::new(Vec::new()));
    let context = Context {
        handlers: Box::new(Recorder(log.clone())),
        policy: Policy::Default,
    };
    let mut card = Card::new(&Parameters::PAPER);
    card.append(List::Priority, entry(1, Some(context)));
    card.append(List::Priority, entry(2, None));
    card.append(List::Overflow, entry(3, None));
    let messages = [
        message(1, 5000),
        message(2, 5000),
        message(3, 5000),
        message(4, 5000),
    ];
    let mut issued = Vec::new();
    let report = card.run(&messages, &mut |number, issue| {
        issued.push((number, issue.bytes))
    });
    let paths: Vec<Path> = report.outcomes.iter().map(|o| o.path).collect();
    assert_eq!(
        paths,
        [
            Path::Handlers,
            Path::Direct,
            Path::Unexpected,
            Path::Dropped
        ]
    );
    assert_eq!(log.borrow().len(), 3);
    assert_eq!(issued, [(0, 2048), (0, 2048), (0, 904)]);
    // The three handlers' requests, the completion's, and three packets of each of the two others.
    assert_eq!((report.requests, report.bytes), (3 + 1 + 6, 15_000));
    assert_eq!(report.outcomes[3].handlers, 0);
    // An entry is unlinked by its message: a second message finds nothing.
    let report = card.run(&[message(1, 100)], &mut |_, _| {});
    assert_eq!(report.outcomes[0].path, Path::Dropped);
}

#[test]
fn a_sequence_is_never_processed_by_two_hpus_at_once() {
    let log = Rc::new(RefCell::new(Vec::new()));
    let context = |sequence, vhpus| Context {
        handlers: Box::new(Recorder(log.clone())),
        policy: Policy::BlockedRoundRobin { sequence, vhpus },
    };
    let parameters = Parameters::PAPER;
    let mut card = Card::new(&parameters);
    // All packets in one sequence: one at a time, 500 cycles each, whatever the number of HPUs.
    card.append(List::Priority, entry(1, Some(context(100, 1))));
    let report = card.run(&[message(1, 64 * 2048)], &mut |_, _| {});
    assert!(report.outcomes[0].end > 64 * parameters.cycles(500));
    // One packet a sequence: as fast as they arrive.
    card.append(List::Priority, entry(1, Some(context(1, 64))));
    let report = card.run(&[message(1, 64 * 2048)], &mut |_, _| {});
    assert!(report.outcomes[0].end < 32 * parameters.cycles(500));
    let log = log.borrow();
    assert!(log[..64].iter().all(|packet| packet.vhpu == 0));
    assert!(log[64..].iter().all(|packet| packet.vhpu == packet.index));
}

#[test]
fn the_iovec_card_waits_for_its_list() {
    let parameters = Parameters::PAPER;
    // 1,000 blocks: 32 are there at first, so 31 reads.
    let short = scatter(&parameters, &layout("vector(1000, 8, 16, double)"));
    assert_eq!((short.reads, short.list_bytes), (31, 16_000));
    // Blocks longer than packets are one entry each.
    let long = scatter(&parameters, &layout("vector(64, 5000, 6000, byte)"));
    assert_eq!((long.reads, long.list_bytes), (1, 1024));
    // 512 blocks a packet: 16 reads of 500 ns a packet bound it.
    let tiny = layout("vector(65536, 1, 2, float)");
    let scattered = scatter(&parameters, &tiny);
    assert_eq!(scattered.reads, 65536 / 32 - 1);
    assert!(scattered.end > scattered.reads * 500_000);
}

#[test]
fn a_process_put_sends_as_early_as_the_card_can() {
    let parameters = Parameters::PAPER;
    let layout = vector(256);
    let bytes = layout.size();
    let pieces = pieces_before(&layout, parameters.packet);
    assert_eq!(*pieces.last().unwrap(), layout.segment_count());
    let of = |sender| {
        let mut handlers = MessageHandlers::outgoing(&layout, parameters.packet).unwrap();
        let left = departures(&parameters, sender, bytes, &pieces, &mut handlers);
        assert_eq!(left.len(), 2048);
        assert!(
            left.windows(2)
                .all(|pair| pair[0] + parameters.packet_time() <= pair[1])
        );
        (left[0], left[2047])
    };
    let pack = 400_000_000;
    let packed = of(Sender::PackAndPut { pack });
    // The processor takes as long for all regions as for packing.
    let streamed = of(Sender::StreamingPut {
        region: pack / layout.segment_count(),
    });
    let processed = of(Sender::ProcessPut);
    assert!(packed.0 > pack, "nothing leaves before all is packed");
    assert!(streamed.0 < pack / 100 && streamed.1 < packed.1);
    assert!(processed.1 < streamed.1);
    let rate = gigabits(bytes, processed.1);
    assert!(rate > 190.0, "{rate}");
}

#[test]
fn an_unexpected_message_is_there_earlier_and_still_packed() {
    let parameters = Parameters::PAPER;
    // Nobody says first that the receiver is ready.
    let (expected, unexpected) = (
        receive_packed(100_000, &parameters),
        receive_unexpected(100_000, &parameters),
    );
    assert_eq!(expected, unexpected + parameters.network_latency);
}

#[test]
fn the_card_sends_without_the_processor() {
    let parameters = Parameters::PAPER;
    let layout = layout("hvector(300, 1, 80000, vector(500, 2, 9, double))");
    let pack = 400_000_000;
    let sent = send(&layout, &parameters, pack, pack / 2).unwrap();
    let wire = parameters.wire(layout.size());
    assert!(sent.process_put >= wire && sent.process_put < sent.streaming_put);
    assert!(sent.streaming_put < sent.pack_and_put && sent.pack_and_put > pack + wire / 2);
}
