// SPDX-License-Identifier: MIT OR Apache-2.0

//! The formulas of section 3.2.4, with figures computed by hand.

use libcopy_datatype::{Datatype, Layout};
use libcopy_nic::card::{Packet, Parameters, Strategy};
use libcopy_nic::iss::Timing;
use libcopy_nic::plan::{
    Attributes, Interval, Limit, MILLION, Options, PAPER_CHECKPOINT, Plan, Refusal, Verdict,
    balanced, interval, plan, processing_time,
};
use libcopy_nic::run::CoreHandlers;

const EPSILON: u64 = MILLION / 5;

/// Picoseconds of cycles at 800 MHz.
const fn cycles(n: u64) -> u64 {
    n * 1250
}

fn layout(expression: &str) -> Layout {
    let datatype: Datatype = expression.parse().unwrap();
    Layout::new(&datatype, 1).unwrap()
}

fn offloaded(layout: &Layout, options: &Options) -> Plan {
    match plan(layout, options) {
        Verdict::Offload(plan) => plan,
        Verdict::Host(why) => panic!("{why}"),
    }
}

fn refused(expression: &str, options: &Options) -> Refusal {
    match plan(&layout(expression), options) {
        Verdict::Host(why) => why,
        Verdict::Offload(plan) => panic!("{plan:?}"),
    }
}

#[test]
fn the_interval_is_the_paper_s() {
    let memory = 6 << 20;
    let of = |hpus, handler| {
        let card = Parameters::PAPER.with_hpus(hpus);
        interval(
            &card,
            2048,
            cycles(handler),
            EPSILON,
            PAPER_CHECKPOINT,
            memory,
        )
        .unwrap()
    };
    // P = 32, 4 MiB: n = 2048 packets, 64 for each HPU. T_PH = 710 cycles = 887,500 ps.
    // 0.2 * 64 * 887,500 = 11,360,000; without T_pkt = 81,920 these are 11,278,080.
    // 31 * 81,920 = 2,539,520. 11,278,080 / 2,539,520 = 4.4.
    assert_eq!(
        of(32, 710),
        Interval {
            packets: 4,
            bytes: 8192,
            limit: Limit::Scheduling
        }
    );
    // P = 16: 0.2 * 128 * 887,500 - 81,920 = 22,638,080; 15 * 81,920 = 1,228,800; 18.4.
    assert_eq!(of(16, 710).packets, 18);
    // 190 cycles: 0.2 * 64 * 237,500 - 81,920 = 2,958,080: once 2,539,520.
    assert_eq!(
        of(32, 190),
        Interval {
            packets: 1,
            bytes: 2048,
            limit: Limit::Scheduling
        }
    );
    // 150 cycles: 0.2 * 64 * 187,500 - 81,920 = 2,318,080, less than 2,539,520. No interval will
    // do.
    assert_eq!(
        of(32, 150),
        Interval {
            packets: 1,
            bytes: 2048,
            limit: Limit::Clamped
        }
    );
    // One HPU never waits for others: one checkpoint.
    assert_eq!(
        of(1, 710),
        Interval {
            packets: 2048,
            bytes: 4 << 20,
            limit: Limit::Message
        }
    );
}

#[test]
fn an_overhead_that_is_exactly_epsilon_is_allowed() {
    // n = 64 packets, P = 32, two packets each. T_PH such that 0.2 * 2 * T_PH = 81,920 + 31 *
    // 81,920: 32 * 81,920 / 0.4 = 6,553,600.
    let of = |handler| {
        interval(&Parameters::PAPER, 64, handler, EPSILON, 108, 6 << 20)
            .unwrap()
            .limit
    };
    assert_eq!(of(6_553_600), Limit::Scheduling);
    assert_eq!(of(6_553_599), Limit::Clamped);
}

#[test]
fn memory_and_packet_buffer_bound_the_interval() {
    let card = Parameters::PAPER;
    // 100 checkpoints of 612 bytes for 2,048 packets: 2,048 / 100 = 20.5, so 21 packets.
    let found = interval(&card, 2048, cycles(710), EPSILON, 612, 61_200).unwrap();
    assert_eq!((found.packets, found.limit), (21, Limit::Memory));
    assert_eq!(
        interval(&card, 2048, cycles(710), EPSILON, 612, 611),
        Err(Refusal::Memory {
            needed: 612,
            capacity: 611
        })
    );
    // T_PH = 100 us: 100,000,000 * 2,048 / 81,920 = 2,500,000 bytes wait, more than the buffer of
    // 2,097,152, which has 1,024 packets. (i) alone would allow 0.2 * 31,250 * 100,000,000 /
    // 2,539,520 = 246,109 packets.
    let handler = 100_000_000;
    let found = interval(&card, 1_000_000, handler, EPSILON, 612, 6 << 20).unwrap();
    assert_eq!((found.packets, found.limit), (1024, Limit::PacketBuffer));
    // With memory for 100 checkpoints 10,000 packets would wait.
    assert_eq!(
        interval(&card, 1_000_000, handler, EPSILON, 612, 61_200),
        Err(Refusal::PacketBuffer {
            needed: 2_500_000,
            capacity: 2 << 20
        })
    );
}

#[test]
fn every_hpu_has_as_many_sequences_as_the_others() {
    let of = |packets, interval| {
        let found = Interval {
            packets: interval,
            bytes: interval * 2048,
            limit: Limit::Scheduling,
        };
        balanced(&Parameters::PAPER, packets, found).packets
    };
    // 2,048 packets, 64 for each of 32 HPUs: four sequences of 18 would be 72, four of 16 are 64.
    assert_eq!(of(2048, 18), 16);
    assert_eq!(of(2048, 4), 4);
    assert_eq!(of(2048, 2048), 64, "not one sequence for one HPU");
    assert_eq!(of(3, 1), 1);
}

#[test]
fn the_processing_time_is_the_paper_s() {
    // T_pkt + 4 * 31 * T_pkt + 64 * 887,500 = 81,920 + 10,158,080 + 56,800,000.
    let card = Parameters::PAPER;
    assert_eq!(processing_time(&card, 2048, cycles(710), 4), 67_040_000);
    // 2,049 packets are 65 for one HPU.
    assert_eq!(processing_time(&card, 2049, cycles(710), 4), 67_927_500);
}

#[test]
fn the_strategy_follows_the_form() {
    let options = Options::default();
    for (expression, strategy) in [
        ("contiguous(100000, double)", Strategy::Specialized),
        ("vector(4096, 16, 32, double)", Strategy::Specialized),
        (
            "indexed_block(2, [0, 5, 9, 30], double)",
            Strategy::Specialized,
        ),
        (
            "indexed([1, 2, 3], [0, 5, 9], double)",
            Strategy::Specialized,
        ),
        (
            "struct([1, 1], [0, 90000], [vector(50, 3, 5, double), vector(900, 5, 9, int)])",
            Strategy::Specialized,
        ),
        (
            "hvector(9, 1, 100000, vector(100, 1, 7, double))",
            Strategy::Seek,
        ),
        (
            "struct([1, 1], [0, 90000], [vector(50, 3, 5, double), hvector(9, 1, 9000, vector(100, 1, 3, int))])",
            Strategy::Seek,
        ),
    ] {
        let plan = offloaded(&layout(expression), &options);
        assert_eq!(plan.strategy, strategy, "{expression}");
    }
    let nested = layout("hvector(9, 1, 100000, vector(100, 1, 7, double))");
    let with = |strategy| Options {
        strategy: Some(strategy),
        ..options
    };
    assert_eq!(
        plan(&nested, &with(Strategy::Specialized)),
        Verdict::Host(Refusal::NoHandler)
    );
    for strategy in [
        Strategy::HpuLocal,
        Strategy::RoCp,
        Strategy::RwCp,
        Strategy::Seek,
    ] {
        let plan = offloaded(&nested, &with(strategy));
        assert_eq!(plan.strategy, strategy);
        assert_eq!(plan.nic_bytes, plan.description + 108 * plan.states);
        assert_eq!(plan.states == 0, strategy == Strategy::Seek);
    }
}

#[test]
fn what_a_card_cannot_unpack_the_host_does() {
    let options = Options::default();
    assert_eq!(
        refused("vector(8, 4, 2, double)", &options),
        Refusal::Overlap
    );
    assert_eq!(refused("contiguous(0, double)", &options), Refusal::Empty);
    let far = refused("hvector(2, 1, 3000000000, double)", &options);
    assert_eq!(far, Refusal::TooLarge(3_000_000_008));
    // The last byte that 32 bits reach, and the one behind it.
    offloaded(&layout("hvector(2, 1, 2147483639, double)"), &options);
    let far = refused("hvector(2, 1, 2147483640, double)", &options);
    assert_eq!(far, Refusal::TooLarge(1 << 31));
    // Both ends are near the buffer, but the origin of the pieces is the first one: 4 GiB from
    // there to the last.
    let wide = "hindexed([1, 1], [-2147483000, 2147483000], double)";
    assert_eq!(refused(wide, &options), Refusal::TooLarge(4_294_966_008));
    let mut off = options;
    off.attributes = Attributes {
        offload: false,
        ..Attributes::default()
    };
    assert_eq!(refused("double", &off), Refusal::Attribute);
    let mut small = options;
    small.parameters.nic_memory = 90;
    let memory = refused("indexed([1, 2, 3], [0, 5, 9], double)", &small);
    assert!(
        matches!(
            memory,
            Refusal::Memory {
                needed: 92,
                capacity: 90
            }
        ),
        "{memory}"
    );
}

#[test]
fn short_blocks_are_bound_by_pcie_or_by_handlers() {
    let options = Options::default();
    // 512 pieces of 4 bytes per packet.
    let plan = offloaded(&layout("vector(1048576, 1, 2, float)"), &options);
    assert!(!plan.is_line_rate);
    assert_eq!(
        plan.hpus_for_line_rate, None,
        "PCIe is too slow for any number of HPUs"
    );
    assert!(plan.pcie > plan.arrival);
    assert_eq!(plan.expected, plan.processing.max(plan.pcie));
    // It says that more HPUs would not do, whichever is slower.
    assert!(plan.processing > plan.pcie);
    let why = plan.why(&options.parameters);
    assert!(
        why.contains("handlers bound it") && why.contains("PCIe"),
        "{why}"
    );
    // Whole packets: a few HPUs are enough (figure 13a).
    let plan = offloaded(&layout("vector(2048, 512, 1024, float)"), &options);
    assert!(plan.is_line_rate);
    // T_PH / T_pkt, rounded up.
    let hpus = plan.handler.div_ceil(81_920);
    assert_eq!(plan.hpus_for_line_rate, Some(hpus));
    assert!(hpus <= 4, "{hpus}");
    assert_eq!(plan.expected, 2048 * 81_920, "arrival bounds it");
}

/// Line rate is a matter of a twentieth, for PCIe too: blocks of 15 bytes need 3 % more time there
/// than on the line.
#[test]
fn a_plan_at_line_rate_says_how_many_hpus_that_takes() {
    let mut options = Options::default();
    options.parameters.hpus = 64;
    let plan = offloaded(&layout("vector(65536, 15, 30, byte)"), &options);
    assert!(plan.pcie > plan.arrival && plan.is_line_rate);
    let needed = plan.handler.div_ceil(81_920);
    assert!((20..64).contains(&needed), "{needed}");
    assert_eq!(plan.hpus_for_line_rate, Some(needed));
    let why = plan.why(&options.parameters);
    assert!(why.contains(&format!("with {needed} of 64 HPUs")), "{why}");
}

/// What a plan expects of a struct's handler is what its packets take on the core, on the average.
#[test]
fn the_cycles_of_a_struct_are_foretold() {
    let join = |all: Vec<String>| all.join(", ");
    let structure = |count: u64, member: &dyn Fn(u64) -> String| {
        let lengths = join(vec!["1".to_owned(); count as usize]);
        let offsets = join((0..count).map(|i| (40_000 * i).to_string()).collect());
        let members = join((0..count).map(member).collect());
        layout(&format!("struct([{lengths}], [{offsets}], [{members}])"))
    };
    let vectors = |i: u64| {
        format!(
            "vector({}, {}, {}, byte)",
            20 + i % 7,
            48 + i % 5,
            90 + i % 11
        )
    };
    let mixed = |i: u64| match i % 3 {
        0 => format!("vector({}, 16, {}, byte)", 50 + i % 7, 40 + i % 11),
        1 => format!(
            "hindexed([{}, 90, 33, 71, 20], [0, 100, 300, 400, 611], byte)",
            17 + i % 9
        ),
        _ => format!("contiguous({}, byte)", 200 + i % 13),
    };
    let options = Options {
        strategy: Some(Strategy::Specialized),
        ..Options::default()
    };
    for (name, layout) in [
        ("vectors", structure(60, &vectors)),
        ("few vectors", structure(3, &vectors)),
        ("mixed", structure(90, &mixed)),
    ] {
        let plan = offloaded(&layout, &options);
        let image = layout.image().unwrap();
        let mut core = CoreHandlers::new(image, plan.strategy, 1, 1, Timing::CV32E40P).unwrap();
        let cycles: u64 = (0..plan.packets)
            .map(|index| {
                let packet = Packet::new(index, 2048, plan.bytes, 0);
                core.payload(&packet).unwrap().counts.cycles
            })
            .sum();
        let foretold = plan.handler / 1250;
        let ratio = foretold as f64 * plan.packets as f64 / cycles as f64;
        println!(
            "{name}: {foretold} cycles foretold, {} taken",
            cycles / plan.packets
        );
        assert!((0.9..1.1).contains(&ratio), "{name}: {ratio}");
    }
}
