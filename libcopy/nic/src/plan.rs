// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is decided when a type is committed: whether a card unpacks it, by which strategy, with how
//! much memory, and how long that should take (section 3.2.4 of the paper).
//!
//! ```
//! use libcopy_datatype::{Datatype, Layout};
//! use libcopy_nic::plan::{Options, Verdict, plan};
//!
//! let column: Datatype = "vector(4096, 16, 32, double)".parse()?;
//! let layout = Layout::new(&column, 1)?;
//! match plan(&layout, &Options::default()) {
//!     Verdict::Offload(plan) => assert!(plan.is_line_rate),
//!     Verdict::Host(why) => panic!("{why}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::card::{Parameters, Policy, Ps, Strategy};
use crate::run::{Costs, costs};
use libcopy_datatype::Layout;
use libcopy_nic_handlers::Specialised;
use libcopy_walk::{Image, Node, Offsets, PartList, Tree};
use thiserror::Error;

/// Bytes of a checkpoint in the paper: a segment of MPITypes.
pub const PAPER_CHECKPOINT: u64 = 612;

/// Bytes of our checkpoint: a state with eight levels (position, skip, depth, and three words a
/// level).
pub const CHECKPOINT: u64 = 108;

/// A million parts: what [`Attributes::epsilon`] counts in.
pub const MILLION: u64 = 1_000_000;

/// What a program may say about a type (section 3.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Whether a card may unpack it at all.
    pub offload: bool,
    /// Types of lower priority give way first when NIC memory is short.
    pub priority: i32,
    /// The paper's ε in millionths: what the scheduling of RW-CP may add to the processing of a
    /// message.
    pub epsilon: u64,
}

impl Default for Attributes {
    /// Offloaded, priority 0, ε = 0.2 (section 5.1).
    fn default() -> Self {
        Attributes {
            offload: true,
            priority: 0,
            epsilon: MILLION / 5,
        }
    }
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The card.
    pub parameters: Parameters,
    /// What the program says.
    pub attributes: Attributes,
    /// Bytes of a checkpoint.
    pub checkpoint: u64,
    /// The strategy; none: the one that is expected to be fastest.
    pub strategy: Option<Strategy>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            parameters: Parameters::PAPER,
            attributes: Attributes::default(),
            checkpoint: CHECKPOINT,
            strategy: None,
        }
    }
}

/// A value that no card and no attribute has.
#[derive(Clone, Debug, Error, PartialEq)]
#[error("{name} {value}: {allowed}")]
pub struct OutOfRange {
    /// What it is: `hpus`, `clock`, `rate` or `epsilon`.
    pub name: &'static str,
    /// Its value: `clock` in MHz, `rate` in Gbit/s, `epsilon` as a part of the processing.
    pub value: f64,
    /// What it has to be.
    pub allowed: &'static str,
}

impl Options {
    /// Sets what a user may choose about the card: HPUs, their clock in MHz, the line rate in
    /// Gbit/s; and ε as a part of the processing of a message.
    ///
    /// # Errors
    ///
    /// No HPUs or more than 4096, a clock or a line rate of 0 or more than 100000, ε not above 0 or
    /// above 100.
    pub fn set(
        &mut self,
        hpus: u64,
        clock: u64,
        rate: u64,
        epsilon: f64,
    ) -> Result<(), OutOfRange> {
        let many = "between 1 and 4096";
        let fast = "between 1 and 100000";
        for (name, value, most, allowed) in [
            ("hpus", hpus, 4096, many),
            ("clock", clock, 100_000, fast),
            ("rate", rate, 100_000, fast),
        ] {
            if !(1..=most).contains(&value) {
                let value = value as f64;
                return Err(OutOfRange {
                    name,
                    value,
                    allowed,
                });
            }
        }
        if !(epsilon > 0.0 && epsilon <= 100.0) {
            return Err(OutOfRange {
                name: "epsilon",
                value: epsilon,
                allowed: "above 0, at most 100",
            });
        }
        self.parameters.hpus = hpus;
        self.parameters.mhz = clock;
        self.parameters.line_rate = rate * 1_000_000_000;
        self.attributes.epsilon = (epsilon * MILLION as f64).round() as u64;
        Ok(())
    }
}

/// Why the host unpacks.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    /// The program asked for it.
    #[error("the attribute offload is off")]
    Attribute,
    /// There is nothing to unpack.
    #[error("the type has no data")]
    Empty,
    /// Packets of one message are written in any order: bytes that are written twice would end with
    /// any of the values.
    #[error(
        "some bytes of the type belong to two of its pieces: a card writes packets in any order"
    )]
    Overlap,
    /// The card's descriptions have offsets of 32 bits.
    #[error("{0} bytes of data or extent: the card's offsets reach 2 GiB")]
    TooLarge(u64),
    /// A specialised handler was asked for.
    #[error(
        "specialised handlers are for one level of blocks, or a struct of such members; the type has more levels"
    )]
    NoHandler,
    /// The description alone, or with one checkpoint.
    #[error("{needed} bytes of NIC memory are needed, the card has {capacity}")]
    Memory {
        /// With the fewest checkpoints.
        needed: u64,
        /// M_NIC.
        capacity: u64,
    },
    /// Rule (iii) of the interval.
    #[error(
        "packets that wait for their sequence need {needed} bytes, the packet buffer has {capacity}"
    )]
    PacketBuffer {
        /// min(T_PH k / T_pkt, Δr).
        needed: u64,
        /// B_pkt.
        capacity: u64,
    },
}

/// What decided the interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Rule (i): the scheduling overhead reaches ε.
    Scheduling,
    /// Rule (ii): more checkpoints do not fit; the overhead exceeds ε.
    Memory,
    /// Rule (iii): the packet buffer.
    PacketBuffer,
    /// The message ends: one checkpoint is enough.
    Message,
    /// No interval satisfies rule (i): it is one packet, the least there is.
    Clamped,
}

/// The distance of checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Packets from one to the next: Δr / k, and the paper's Δp.
    pub packets: u64,
    /// Δr in bytes.
    pub bytes: u64,
    /// What decided it.
    pub limit: Limit,
}

/// The interval Δr of RW-CP for a message of `packets` packets whose payload handler takes
/// `handler`, in whole packets: the longest that satisfies
///
/// - (i) T_pkt + ⌈Δr/k⌉ (P-1) T_pkt ≤ ε ⌈n_pkt/P⌉ T_PH,
/// - (iii) min(T_PH k / T_pkt, Δr) ≤ B_pkt,
///
/// but at least what (ii) n_pkt k / Δr · C ≤ M_NIC demands, for which `memory` bytes are left.
/// Where no Δr satisfies (i) it is k: the paper does not say what then.
///
/// # Errors
///
/// (ii) and (iii) exclude each other.
pub fn interval(
    parameters: &Parameters,
    packets: u64,
    handler: Ps,
    epsilon: u64,
    checkpoint: u64,
    memory: u64,
) -> Result<Interval, Refusal> {
    let (k, time) = (parameters.packet, u128::from(parameters.packet_time()));
    let others = u128::from(parameters.hpus.saturating_sub(1));
    let share = u128::from(packets.div_ceil(parameters.hpus)) * u128::from(handler);
    // (i), multiplied by a million: whole numbers are exact.
    let million = u128::from(MILLION);
    let budget = (u128::from(epsilon) * share).checked_sub(time * million);
    let scheduling = match budget {
        Some(_) if others == 0 => u64::MAX,
        Some(budget) => u64::try_from(budget / (others * time * million)).unwrap_or(u64::MAX),
        None => 0,
    };
    let (mut chosen, mut limit) = if scheduling == 0 {
        (1, Limit::Clamped)
    } else if scheduling >= packets {
        (packets, Limit::Message)
    } else {
        (scheduling, Limit::Scheduling)
    };
    // (iii): if the handler is fast enough, any interval will do.
    let waiting = u128::from(handler) * u128::from(k) / time;
    let buffered = parameters.packet_buffer / k;
    if waiting > u128::from(parameters.packet_buffer) && chosen > buffered {
        (chosen, limit) = (buffered.max(1), Limit::PacketBuffer);
    }
    // (ii): n_pkt k C / Δr ≤ M, with Δr in packets: n_pkt C / M.
    let needed = u128::from(packets) * u128::from(checkpoint);
    if memory < checkpoint {
        return Err(Refusal::Memory {
            needed: checkpoint,
            capacity: memory,
        });
    }
    let least = u64::try_from(needed.div_ceil(u128::from(memory))).unwrap_or(u64::MAX);
    if chosen < least {
        (chosen, limit) = (least, Limit::Memory);
    }
    let held = waiting.min(u128::from(chosen) * u128::from(k));
    if held > u128::from(parameters.packet_buffer) {
        return Err(Refusal::PacketBuffer {
            needed: u64::try_from(held).unwrap_or(u64::MAX),
            capacity: parameters.packet_buffer,
        });
    }
    Ok(Interval {
        packets: chosen,
        bytes: chosen * k,
        limit,
    })
}

/// The same interval or a shorter one, with which all HPUs have equally many sequences: T_C assumes
/// that, and (i) does not ensure it. With the longest interval that (i) allows for slow handlers,
/// one HPU would process the whole message. Where memory demands the interval it stays.
pub fn balanced(parameters: &Parameters, packets: u64, interval: Interval) -> Interval {
    if interval.limit == Limit::Memory {
        return interval;
    }
    let rounds = packets.div_ceil(parameters.hpus * interval.packets);
    let even = packets.div_ceil(parameters.hpus * rounds);
    Interval {
        packets: even,
        bytes: even * parameters.packet,
        ..interval
    }
}

/// The paper's T_C of RW-CP: T_pkt + ⌈Δr/k⌉ (P-1) T_pkt + ⌈n_pkt/P⌉ T_PH, with Δr in packets.
///
/// It has no bound by arrival: a message cannot be processed before its n_pkt T_pkt are over.
pub fn processing_time(parameters: &Parameters, packets: u64, handler: Ps, interval: u64) -> Ps {
    let time = parameters.packet_time();
    let others = parameters.hpus.saturating_sub(1);
    time + interval * others * time + packets.div_ceil(parameters.hpus) * handler
}

/// How a card unpacks a type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// By which handlers.
    pub strategy: Strategy,
    /// Distance of checkpoints, of strategies that have them.
    pub interval: Option<Interval>,
    /// Bytes of NIC memory: description and states.
    pub nic_bytes: u64,
    /// Bytes of the description alone.
    pub description: u64,
    /// Checkpoints or states.
    pub states: u64,
    /// Bytes of the message.
    pub bytes: u64,
    /// Its packets.
    pub packets: u64,
    /// Its contiguous pieces; divided by `packets` it is the paper's γ.
    pub pieces: u64,
    /// T_PH, the payload handler on the average.
    pub handler: Ps,
    /// T_C, what processing takes.
    pub processing: Ps,
    /// n_pkt T_pkt, what arrival takes.
    pub arrival: Ps,
    /// What the DMA requests take on PCIe.
    pub pcie: Ps,
    /// The largest of the three: what is expected.
    pub expected: Ps,
    /// HPUs that keep up with the line; none if PCIe does not keep up.
    pub hpus_for_line_rate: Option<u64>,
    /// Whether this card keeps up with the line.
    pub is_line_rate: bool,
    /// The type's priority for NIC memory.
    pub priority: i32,
}

impl Plan {
    /// The paper's γ: contiguous pieces per packet.
    pub fn pieces_per_packet(&self) -> f64 {
        self.pieces as f64 / self.packets.max(1) as f64
    }

    /// How packets get to HPUs.
    pub fn policy(&self, parameters: &Parameters) -> Policy {
        match (self.strategy, self.interval) {
            (Strategy::HpuLocal, _) => Policy::BlockedRoundRobin {
                sequence: 1,
                vhpus: parameters.hpus,
            },
            (Strategy::RwCp, Some(interval)) => Policy::BlockedRoundRobin {
                sequence: interval.packets,
                vhpus: self.packets.div_ceil(interval.packets),
            },
            _ => Policy::Default,
        }
    }

    /// Why it is fast or not, in one sentence.
    pub fn why(&self, parameters: &Parameters) -> String {
        let has = parameters.hpus;
        match self.hpus_for_line_rate {
            Some(needed) if self.is_line_rate => {
                format!("line rate, with {needed} of {has} HPUs")
            }
            Some(needed) if needed <= has => {
                "the handlers bound it: the schedule of sequences does not keep all HPUs busy"
                    .to_owned()
            }
            Some(needed) => {
                format!("the handlers bound it: line rate takes {needed} HPUs, the card has {has}")
            }
            None if self.expected == self.pcie => {
                "PCIe bounds it: many short writes have more overhead than data".to_owned()
            }
            None => {
                "the handlers bound it; with more HPUs PCIe would, also below line rate".to_owned()
            }
        }
    }
}

/// Whether a card unpacks a type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// It does, like this.
    Offload(Plan),
    /// The host does, for this reason.
    Host(Refusal),
}

/// What a specialised handler searches, and the members of a struct that it enters.
#[derive(Clone, Copy, Debug, Default)]
struct Search {
    /// Halvings of the list of blocks, or of members, for each packet.
    halvings: u64,
    /// Members, 0 if it is no struct.
    members: u64,
    /// Halvings of the members' own lists, all together, and the most of one.
    inner: u64,
    most: u64,
}

impl Search {
    /// Of an image; nothing if no specialised handler fits.
    fn of(image: Image<'_>) -> Option<Search> {
        let flat = |halvings| Search {
            halvings,
            ..Search::default()
        };
        Some(match Specialised::of(image)? {
            Specialised::Indexed { offsets, .. } => flat(halvings(offsets.len())),
            Specialised::Struct { parts } => {
                let inner = |i: usize| {
                    let node = parts.get(i).map(|part| image.node(part.child.id));
                    match node {
                        Some(Node::Pieces { offsets, .. }) => halvings(offsets.len()),
                        _ => 0,
                    }
                };
                let all = || (0..parts.len()).map(inner);
                Search {
                    halvings: halvings(parts.len()),
                    members: parts.len() as u64,
                    inner: all().sum(),
                    most: all().max().unwrap_or(0),
                }
            }
            // The blocks are equally long: a division finds one.
            _ => flat(0),
        })
    }

    /// Cycles of searching and entering for all `packets` of a message. A packet begins within a
    /// member at most.
    fn cycles(&self, costs: &Costs, packets: u64) -> u64 {
        let again = match self.members {
            0 => 0,
            _ => packets - 1,
        };
        let inner = self.inner + again * self.most;
        costs.halving * (packets * self.halvings + inner) + costs.member * (self.members + again)
    }
}

/// Halvings that a binary search in a list of `len` entries takes.
fn halvings(len: usize) -> u64 {
    u64::from(len.max(1).next_power_of_two().ilog2())
}

/// Decides how a card receives a message of `layout`.
pub fn plan(layout: &Layout, options: &Options) -> Verdict {
    match planned(layout, options) {
        Ok(plan) => Verdict::Offload(plan),
        Err(refusal) => Verdict::Host(refusal),
    }
}

fn planned(layout: &Layout, options: &Options) -> Result<Plan, Refusal> {
    check(layout, options)?;
    let words = layout.image().map_err(|_| {
        // Both ends are near the buffer, but too far from each other.
        let bounds = layout.bounds();
        Refusal::TooLarge(bounds.start.abs_diff(bounds.end))
    })?;
    let search = Search::of(Image::trusted(&words));
    let strategies: &[Strategy] = match (&options.strategy, search) {
        (Some(strategy), _) => std::slice::from_ref(strategy),
        // One level of blocks: no other handler does less.
        (None, Some(search)) if search.members == 0 => &[Strategy::Specialized],
        (None, Some(_)) => &[Strategy::Specialized, Strategy::Seek, Strategy::RwCp],
        (None, None) => &[Strategy::Seek, Strategy::RwCp],
    };
    let mut best: Result<Plan, Refusal> = Err(Refusal::Empty);
    for strategy in strategies {
        match (by(layout, search, options, *strategy), &best) {
            (Ok(plan), Ok(other))
                if (plan.expected, plan.nic_bytes, plan.handler)
                    >= (other.expected, other.nic_bytes, other.handler) => {}
            (Err(_), Ok(_)) => {}
            (result, _) => best = result,
        }
    }
    best
}

fn check(layout: &Layout, options: &Options) -> Result<(), Refusal> {
    let bounds = layout.bounds();
    // Offsets are measured from the buffer, so both ends have to be near it.
    let reach = bounds.start.unsigned_abs().max(bounds.end.unsigned_abs());
    let largest = layout.size().max(reach);
    if !options.attributes.offload {
        Err(Refusal::Attribute)
    } else if layout.size() == 0 {
        Err(Refusal::Empty)
    } else if largest > i32::MAX as u64 {
        Err(Refusal::TooLarge(largest))
    } else if !layout.form().is_disjoint() {
        Err(Refusal::Overlap)
    } else if layout.image_bytes() > options.parameters.nic_memory {
        Err(Refusal::Memory {
            needed: layout.image_bytes(),
            capacity: options.parameters.nic_memory,
        })
    } else {
        Ok(())
    }
}

/// The plan by one strategy.
fn by(
    layout: &Layout,
    search: Option<Search>,
    options: &Options,
    strategy: Strategy,
) -> Result<Plan, Refusal> {
    let parameters = &options.parameters;
    let bytes = layout.size();
    let packets = parameters.packets(bytes);
    let pieces = layout.segment_count().max(packets);
    let costs = costs(strategy);
    let found = match (strategy, search) {
        (Strategy::Specialized, None) => return Err(Refusal::NoHandler),
        (Strategy::Specialized, Some(search)) => search.cycles(&costs, packets),
        _ => 0,
    };
    let share = |cycles: u64| parameters.cycles(cycles).div_ceil(packets);
    let fixed = parameters.cycles(costs.init + costs.setup);
    let mut handler = fixed + share(costs.block * pieces + found);
    let description = layout.image_bytes();
    let capacity = parameters.nic_memory;
    let room = capacity.saturating_sub(description);
    // What is passed over for a packet that is `packets` behind.
    let passed = |packets: u64| {
        packets * (share(costs.skipped_block * pieces) + parameters.cycles(costs.skipped_packet))
    };
    let mut distance = None;
    let states = match strategy {
        Strategy::Specialized | Strategy::Seek => 0,
        Strategy::HpuLocal => {
            handler += passed(parameters.hpus.min(packets) - 1);
            parameters.hpus
        }
        Strategy::RwCp | Strategy::RoCp => {
            let found = interval(
                parameters,
                packets,
                handler,
                options.attributes.epsilon,
                options.checkpoint,
                // RW-CP has a master copy of each.
                if strategy == Strategy::RwCp {
                    room / 2
                } else {
                    room
                },
            )?;
            let found = if strategy == Strategy::RwCp {
                balanced(parameters, packets, found)
            } else {
                found
            };
            distance = Some(found);
            let checkpoints = packets.div_ceil(found.packets);
            if strategy == Strategy::RoCp {
                // On the average half an interval is passed over.
                handler += passed(found.packets - 1) / 2;
                checkpoints
            } else {
                2 * checkpoints
            }
        }
    };
    let nic_bytes = description + states * options.checkpoint;
    if nic_bytes > capacity {
        return Err(Refusal::Memory {
            needed: nic_bytes,
            capacity,
        });
    }
    let processing = match (strategy, distance) {
        (Strategy::RwCp, Some(interval)) => {
            processing_time(parameters, packets, handler, interval.packets)
        }
        _ => parameters.packet_time() + packets.div_ceil(parameters.hpus) * handler,
    };
    let arrival = packets * parameters.packet_time();
    let pcie = pieces * parameters.pcie(bytes / pieces);
    let expected = processing.max(arrival).max(pcie);
    // Within a twentieth: the first and the last packets are not overlapped by anything.
    let line_rate = arrival + arrival / 20;
    let pcie_keeps_up = pcie <= line_rate;
    Ok(Plan {
        strategy,
        interval: distance,
        nic_bytes,
        description,
        states,
        bytes,
        packets,
        pieces,
        handler,
        processing,
        arrival,
        pcie,
        expected,
        hpus_for_line_rate: pcie_keeps_up
            .then(|| handler.div_ceil(parameters.packet_time()).max(1)),
        is_line_rate: expected <= line_rate,
        priority: options.attributes.priority,
    })
}
