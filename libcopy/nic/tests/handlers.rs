// SPDX-License-Identifier: MIT OR Apache-2.0

//! The handlers' binary: it is that of the sources, and does on the simulated core what the sources
//! do natively.

mod expressions;

use expressions::FIXED;
use libcopy_datatype::{Datatype, Layout};
use libcopy_nic::card::{Handlers, Packet, Random, Strategy, arrival_order};
use libcopy_nic::iss::Timing;
use libcopy_nic::run::{
    Command, CoreError, CoreHandlers, MessageHandlers, NativeHandlers, copy_cycles, costs, program,
};
use sha2::{Digest, Sha256};
use std::path::Path;

fn layout(expression: &str) -> Layout {
    let datatype: Datatype = expression.parse().unwrap();
    Layout::new(&datatype, 1).unwrap()
}

#[test]
fn the_binary_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = Vec::new();
    for directory in ["libcopy/walk/src", "libcopy/nic/handlers/src"] {
        for entry in std::fs::read_dir(root.join(directory)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            paths.push(format!("{directory}/{name}"));
        }
    }
    paths.sort();
    let mut digest = Sha256::new();
    for path in paths.iter().filter(|path| path.ends_with(".rs")) {
        digest.update(path.as_bytes());
        digest.update([0]);
        digest.update(std::fs::read(root.join(path)).unwrap());
        digest.update([0]);
    }
    let sum: String = digest
        .finalize()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert_eq!(
        program().sources,
        sum,
        "run scripts/handlers after changes of libcopy/walk or libcopy/nic/handlers"
    );
    // Eleven, and RO-CP and RW-CP with checkpoints of 612 bytes.
    assert_eq!(program().handlers.len(), 13);
}

/// Runs all packets of a message in an order, natively and on the core, and returns the cycles of
/// all.
fn compare(layout: &Layout, strategy: Strategy, packet: u64, order: &[u64]) -> Option<u64> {
    let (vhpus, sequence) = (3, 4);
    let image = layout.image().unwrap();
    let interval = (sequence * packet) as u32;
    let mut native = NativeHandlers::new(image.clone(), strategy, vhpus, interval);
    let core = CoreHandlers::new(image, strategy, vhpus, interval, Timing::CV32E40P);
    let mut core = match core {
        Err(CoreError::NoHandler) => return None,
        other => other.unwrap(),
    };
    let mut cycles = 0;
    for index in order {
        let packet = Packet::new(*index, packet, layout.size(), index % vhpus);
        let mut expected = Vec::new();
        assert!(native.payload(&packet, &mut expected));
        let run = core.payload(&packet).unwrap();
        let counts = run.counts;
        assert!(run.commands.iter().all(|(at, _)| *at < counts.cycles));
        assert!(run.init < counts.cycles);
        let commands: Vec<_> = run
            .commands
            .into_iter()
            .map(|(_, command)| command)
            .collect();
        assert_eq!(commands, expected, "{strategy}, packet {index}");
        assert!(!commands.is_empty());
        cycles += counts.cycles;
    }
    Some(cycles)
}

/// Fixed and random types of all kinds.
fn types(random: &mut Random) -> Vec<String> {
    let mut types: Vec<String> = FIXED.map(str::to_owned).to_vec();
    for _ in 0..40 {
        let mut below = |n| 1 + random.below(n);
        let (count, length, gap) = (below(200), below(30), below(40));
        let inner = format!("vector({count}, {length}, {}, int)", length + gap);
        let far = 4 * (length + gap) * count + below(1000);
        types.push(match below(3) {
            1 => inner,
            2 => format!("hvector({}, 1, {far}, {inner})", below(9)),
            _ => format!(
                "struct([1, {}], [{}, 0], [{inner}, short])",
                below(50),
                200 + below(100)
            ),
        });
    }
    types
}

/// Each type by each strategy, in short and in long packets, in order and out of it.
fn for_all_messages(seed: u64, mut one: impl FnMut(&Layout, Strategy, u64, &[u64])) {
    let mut random = Random::new(seed);
    for expression in types(&mut random) {
        let layout = layout(&expression);
        for packet in [256, 2048] {
            let packets = layout.size().div_ceil(packet);
            for window in [0, 5] {
                let order = arrival_order(packets, window, random.below(1000));
                for strategy in Strategy::ALL {
                    one(&layout, strategy, packet, &order);
                }
            }
        }
    }
}

/// The card's handlers, which run a packet on the core only if none of its shape was run before,
/// and a core that runs each packet: the requests, their times and what each part took are the
/// same. Returns packets and those that were run.
fn card_against_core(
    layout: &Layout,
    strategy: Strategy,
    packet: u64,
    order: &[u64],
) -> Option<(u64, u64)> {
    let (vhpus, sequence) = (3, 4);
    let mut card = match MessageHandlers::new(layout, strategy, packet, vhpus, sequence) {
        Err(CoreError::NoHandler) => return None,
        other => other.unwrap(),
    };
    let interval = (sequence * packet) as u32;
    let image = layout.image().unwrap();
    let mut core = CoreHandlers::new(image, strategy, vhpus, interval, Timing::CV32E40P).unwrap();
    for index in order {
        let vhpu = match strategy {
            Strategy::HpuLocal => index % vhpus,
            _ => index / sequence,
        };
        let packet = Packet::new(*index, packet, layout.size(), vhpu);
        let mut issues = Vec::new();
        let work = card.payload(&packet, &mut issues);
        let run = core.payload(&packet).unwrap();
        let expected = run.commands.iter().map(|(at, command)| match *command {
            Command::Write {
                host,
                packet: from,
                bytes,
            } => (
                *at,
                i64::from(host),
                packet.offset + u64::from(from),
                u64::from(bytes),
            ),
            other => panic!("{other:?}"),
        });
        let issued = issues
            .iter()
            .map(|issue| (issue.at, issue.memory, issue.stream, issue.bytes));
        assert!(
            issued.eq(expected),
            "{strategy}, packet {index} of {}: {issues:?}, {:?}",
            layout.size(),
            run.commands
        );
        assert_eq!(
            work.cycles(),
            run.counts.cycles,
            "{strategy}, packet {index} of {}: {:?}",
            layout.size(),
            layout.form()
        );
    }
    Some((order.len() as u64, card.runs()))
}

#[test]
fn the_card_s_handlers_take_the_cycles_of_the_core_for_every_packet() {
    let (mut packets, mut runs) = (0, 0);
    for_all_messages(22, |layout, strategy, packet, order| {
        let done = card_against_core(layout, strategy, packet, order);
        packets += done.map_or(0, |done| done.0);
        runs += done.map_or(0, |done| done.1);
    });
    println!("{runs} of {packets} packets were run");
    // A vector whose blocks divide packets: almost all packets have one shape.
    let layout = layout("vector(32768, 16, 32, byte)");
    let order: Vec<u64> = (0..256).collect();
    for strategy in Strategy::ALL {
        let (_, runs) = card_against_core(&layout, strategy, 2048, &order).unwrap();
        assert!(runs <= 12, "{strategy}: {runs}");
    }
}

#[test]
fn native_and_core_issue_the_same_requests() {
    let mut specialized = 0;
    for_all_messages(21, |layout, strategy, packet, order| {
        let cycles = compare(layout, strategy, packet, order);
        if strategy == Strategy::Specialized {
            specialized += u32::from(cycles.is_some());
        } else {
            assert!(cycles.is_some());
        }
    });
    assert!(specialized > 40, "{specialized}");
}

#[test]
fn cycles_of_strategies_stand_in_the_paper_s_order() {
    // 16 blocks of 128 bytes per packet.
    let layout = layout("vector(1024, 128, 256, byte)");
    let order: Vec<u64> = (0..64).collect();
    let of = |strategy| compare(&layout, strategy, 2048, &order).unwrap() / 64;
    let [special, local, ro, rw, seek] = Strategy::ALL.map(of);
    println!("specialized {special}, local {local}, ro-cp {ro}, rw-cp {rw}, seek {seek}");
    assert!(
        special < rw && rw < seek && seek < ro,
        "{special} {rw} {seek} {ro}"
    );
    assert!(rw < local);
}

#[test]
fn the_table_of_costs_is_that_of_the_core() {
    for strategy in Strategy::ALL {
        let costs = costs(strategy);
        println!("{strategy}: {costs:?}");
        assert!(costs.block > 0 && costs.setup > 0, "{strategy}: {costs:?}");
        // RO-CP copies a checkpoint for each packet, RW-CP if it reverts: 27 words, each a load and
        // a store.
        assert!(
            costs.init >= 2 * 27 || strategy != Strategy::RoCp,
            "{costs:?}"
        );
        assert_eq!(
            costs.revert >= 2 * 27,
            strategy == Strategy::RwCp,
            "{costs:?}"
        );
        let is_specialized = strategy == Strategy::Specialized;
        assert_eq!(costs.halving > 0, is_specialized);
        assert_eq!(costs.member > costs.block, is_specialized, "{costs:?}");
    }
}

/// RO-CP copies its checkpoint for each packet, RW-CP for each that comes late: the paper's
/// segment, compiled into the same handlers, costs what its copy costs, and changes nothing else.
#[test]
fn the_paper_s_segment_costs_its_copy_and_nothing_else() {
    let layout = layout("vector(1024, 128, 256, byte)");
    let image = layout.image().unwrap();
    let interval = 4 * 2048;
    let run = |strategy, is_paper: bool, order: &[u64]| {
        let timing = Timing::CV32E40P;
        let mut core = if is_paper {
            CoreHandlers::with_paper_segment(image.clone(), strategy, interval, timing)
        } else {
            CoreHandlers::new(image.clone(), strategy, 1, interval, timing)
        }
        .unwrap();
        let mut all = Vec::new();
        for index in order {
            let packet = Packet::new(*index, 2048, layout.size(), 0);
            let run = core.payload(&packet).unwrap();
            let commands: Vec<_> = run.commands.iter().map(|(_, command)| *command).collect();
            all.push((run.counts.cycles, commands));
        }
        all
    };
    let copy = copy_cycles(612).unwrap() - copy_cycles(108).unwrap();
    let order = [0, 1, 3, 2, 4];
    for (strategy, copies) in [
        (Strategy::RoCp, [1, 1, 1, 1, 1]),
        // The fourth packet lies behind the checkpoint.
        (Strategy::RwCp, [0, 0, 0, 1, 0]),
    ] {
        let (ours, theirs) = (run(strategy, false, &order), run(strategy, true, &order));
        for (at, ((ours, commands), (theirs, same))) in ours.iter().zip(&theirs).enumerate() {
            assert_eq!(commands, same, "{strategy}");
            let (more, expected) = (theirs.abs_diff(*ours), copies[at] * copy);
            // The stack's frame is addressed otherwise.
            assert!(
                more.abs_diff(expected) <= 40,
                "{strategy} {at}: {more} {expected}"
            );
        }
    }
    for strategy in [Strategy::HpuLocal, Strategy::Seek, Strategy::Specialized] {
        let core =
            CoreHandlers::with_paper_segment(image.clone(), strategy, interval, Timing::CV32E40P);
        assert!(matches!(core, Err(CoreError::NoHandler)), "{strategy}");
    }
}

#[test]
fn a_copy_takes_a_load_and_a_store_for_each_word() {
    let (small, large) = (copy_cycles(108).unwrap(), copy_cycles(612).unwrap());
    let words = (612 - 108) / 4;
    assert_eq!((large - small) % words, 0, "{small} {large}");
    assert!(
        (2..=10).contains(&((large - small) / words)),
        "{small} {large}"
    );
    assert!(small >= 2 * 27, "{small}");
    // A revert of RW-CP is such a copy, and the catch-up that it needs.
    assert!(costs(Strategy::RwCp).revert > small);
}
