// SPDX-License-Identifier: MIT OR Apache-2.0

//! The card: packets in, handlers on HPUs, DMA requests out.
//!
//! A message's first packet is matched. If the entry has an execution context, each packet is
//! copied to NIC memory and its handler is scheduled; when all have ended, the completion handler
//! runs. Otherwise packets are written to the host as they are.

use super::events::Events;
use super::handlers::{Handlers, Issue, Packet, Policy, Work};
use super::matching::{Entry, List, MatchLists};
use super::network::arrival_order;
use super::parameters::{Parameters, Ps};
use super::pcie::DmaQueue;
use std::collections::VecDeque;

/// An execution context: the handlers and how they are scheduled.
pub struct Context {
    /// The handlers.
    pub handlers: Box<dyn Handlers>,
    /// How packets get to HPUs.
    pub policy: Policy,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// A message that is sent to the card.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Its match bits.
    pub bits: u64,
    /// Its length.
    pub bytes: u64,
    /// When its first byte enters the network.
    pub start: Ps,
    /// Time from packet to packet at least; 0: line rate.
    pub interval: Ps,
    /// How many packets later a packet may be overtaken from; 0: in order.
    pub window: u64,
    /// The seed of the order.
    pub seed: u64,
}

/// Where a message went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Handlers processed it.
    Handlers,
    /// It was expected, and written to the host as it is.
    Direct,
    /// Nobody expected it: it was written to the host as it is, to be unpacked there.
    Unexpected,
    /// No entry matched.
    Dropped,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Which way it took.
    pub path: Path,
    /// When its first packet had arrived.
    pub begin: Ps,
    /// When its last byte, and the event, were in host memory.
    pub end: Ps,
    /// What its payload handlers took, in cycles.
    pub work: Work,
    /// Its payload handlers.
    pub handlers: u64,
}

/// What happened on the card.
#[derive(Debug)]
pub struct Report {
    /// One entry per message.
    pub outcomes: Vec<Outcome>,
    /// DMA requests, those of completions included.
    pub requests: u64,
    /// Bytes that they wrote.
    pub bytes: u64,
    /// The most requests in the DMA queue at once.
    pub deepest_queue: usize,
    /// Time and depth of the queue after each request, if recorded.
    pub queue: Vec<(Ps, usize)>,
    /// The most bytes of packets in NIC memory at once.
    pub packet_bytes: u64,
    /// Events of the simulation.
    pub events: u64,
    /// A hash of all events and their times: equal for equal runs.
    pub trace: u64,
}

/// What an HPU is given.
#[derive(Clone, Copy, Debug)]
enum Unit {
    Packet(usize, u64),
    Vhpu(usize, u64),
    Completion(usize),
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A packet has arrived.
    Arrived(usize, u64),
    /// It is in NIC memory.
    Ready(usize, u64),
    /// The running handler of an HPU issues its next request.
    Issue(usize),
    /// The handler of an HPU has ended.
    Done(usize),
}

/// A message under way.
struct Flow {
    message: Message,
    entry: Option<usize>,
    policy: Policy,
    path: Path,
    begin: Ps,
    end: Ps,
    /// Handlers that have not ended.
    left: u64,
    work: Work,
    handlers: u64,
    vhpus: Vec<Vhpu>,
}

#[derive(Default)]
struct Vhpu {
    waiting: VecDeque<u64>,
    /// On an HPU, or in the line for one.
    is_active: bool,
}

#[derive(Default)]
struct Hpu {
    unit: Option<Unit>,
    packet: u64,
    start: Ps,
    issues: Vec<Issue>,
    /// The next request.
    next: usize,
}

/// The card.
#[derive(Debug)]
pub struct Card {
    parameters: Parameters,
    lists: MatchLists<Context>,
    is_recorded: bool,
}

impl Card {
    /// A card without entries.
    pub fn new(parameters: &Parameters) -> Card {
        Card {
            parameters: *parameters,
            lists: MatchLists::default(),
            is_recorded: false,
        }
    }

    /// Has the depth of the DMA queue recorded.
    #[must_use]
    pub fn recorded(mut self) -> Card {
        self.is_recorded = true;
        self
    }

    /// Appends a matching entry to a list.
    pub fn append(&mut self, list: List, entry: Entry<Context>) {
        self.lists.append(list, entry);
    }

    /// Delivers messages, one after the other over the link, and gives each DMA request to `sink`
    /// with the number of its message, in the order in which they are issued.
    pub fn run(&mut self, messages: &[Message], sink: &mut dyn FnMut(usize, &Issue)) -> Report {
        let queue = DmaQueue::new(&self.parameters, self.is_recorded);
        let hpus = (0..self.parameters.hpus).map(|_| Hpu::default()).collect();
        let mut run = Run {
            parameters: self.parameters,
            lists: &mut self.lists,
            events: Events::default(),
            flows: Vec::new(),
            ready: VecDeque::new(),
            hpus,
            idle: (0..self.parameters.hpus as usize).rev().collect(),
            queue,
            packet_bytes: (0, 0),
            count: 0,
            trace: 0xcbf2_9ce4_8422_2325,
            sink,
        };
        run.send(messages);
        while let Some((now, event)) = run.events.pop() {
            run.note(now, &event);
            run.happen(now, event);
        }
        run.report()
    }
}

/// One run of the simulation.
struct Run<'a> {
    parameters: Parameters,
    lists: &'a mut MatchLists<Context>,
    events: Events<Event>,
    flows: Vec<Flow>,
    ready: VecDeque<Unit>,
    hpus: Vec<Hpu>,
    idle: Vec<usize>,
    queue: DmaQueue,
    /// Now, and at most.
    packet_bytes: (u64, u64),
    count: u64,
    trace: u64,
    sink: &'a mut dyn FnMut(usize, &Issue),
}

impl Run<'_> {
    fn send(&mut self, messages: &[Message]) {
        let mut link_free = 0;
        for (number, message) in messages.iter().enumerate() {
            let packets = self.parameters.packets(message.bytes);
            let mut at = link_free.max(message.start);
            let order = arrival_order(packets, message.window, message.seed);
            for packet in order {
                let (_, bytes) = self.part(message, packet);
                at += self.parameters.wire(bytes).max(message.interval);
                self.events.at(
                    at + self.parameters.network_latency,
                    Event::Arrived(number, packet),
                );
            }
            link_free = at;
            self.flows.push(Flow {
                message: *message,
                entry: None,
                policy: Policy::Default,
                path: Path::Dropped,
                begin: at,
                end: at,
                left: packets,
                work: Work::default(),
                handlers: 0,
                vhpus: Vec::new(),
            });
        }
    }

    /// Offset and length of a packet.
    fn part(&self, message: &Message, packet: u64) -> (u64, u64) {
        let offset = packet * self.parameters.packet;
        (offset, self.parameters.packet.min(message.bytes - offset))
    }

    /// FNV-1a over times and events.
    fn note(&mut self, now: Ps, event: &Event) {
        let (kind, a, b) = match *event {
            Event::Arrived(flow, packet) => (0, flow as u64, packet),
            Event::Ready(flow, packet) => (1, flow as u64, packet),
            Event::Issue(hpu) => (2, hpu as u64, 0),
            Event::Done(hpu) => (3, hpu as u64, 0),
        };
        for word in [now, kind, a, b] {
            self.trace = (self.trace ^ word).wrapping_mul(0x0100_0000_01b3);
        }
        self.count += 1;
    }

    fn happen(&mut self, now: Ps, event: Event) {
        match event {
            Event::Arrived(number, packet) => self.arrived(now, number, packet),
            Event::Ready(number, packet) => self.ready(now, number, packet),
            Event::Issue(hpu) => self.issue(now, hpu),
            Event::Done(hpu) => self.done(now, hpu),
        }
    }

    fn arrived(&mut self, now: Ps, number: usize, packet: u64) {
        let mut now = now;
        // The network delivers a message's first packet first.
        if packet == 0 {
            self.matched(now, number);
        }
        // Later packets find what the first one has found; it is still being looked for if they
        // come at once.
        now = now.max(self.flows[number].begin + self.parameters.matching);
        let (_, bytes) = self.part(&self.flows[number].message, packet);
        let flow = &mut self.flows[number];
        match flow.path {
            Path::Handlers => {
                let at = now + self.parameters.buffering(bytes);
                self.packet_bytes.0 += bytes;
                self.packet_bytes.1 = self.packet_bytes.1.max(self.packet_bytes.0);
                self.events.at(at, Event::Ready(number, packet));
            }
            Path::Direct | Path::Unexpected => {
                let end = self.queue.write(now, bytes) + self.parameters.pcie_write;
                flow.end = flow.end.max(end);
            }
            Path::Dropped => flow.end = now,
        }
    }

    fn matched(&mut self, now: Ps, number: usize) {
        let flow = &mut self.flows[number];
        flow.begin = now;
        let Some((list, entry)) = self.lists.find(flow.message.bits) else {
            return;
        };
        flow.entry = Some(entry);
        flow.path = match (list, self.lists.context(entry)) {
            (List::Overflow, _) => Path::Unexpected,
            (List::Priority, None) => Path::Direct,
            (List::Priority, Some(context)) => {
                flow.policy = context.policy;
                if let Policy::BlockedRoundRobin { vhpus, .. } = flow.policy {
                    flow.vhpus.resize_with(vhpus as usize, Vhpu::default);
                }
                Path::Handlers
            }
        };
    }

    fn ready(&mut self, now: Ps, number: usize, packet: u64) {
        let flow = &mut self.flows[number];
        let unit = match flow.policy.vhpu(packet) {
            None => Unit::Packet(number, packet),
            Some(v) => {
                let vhpu = &mut flow.vhpus[v as usize];
                vhpu.waiting.push_back(packet);
                if std::mem::replace(&mut vhpu.is_active, true) {
                    return;
                }
                Unit::Vhpu(number, v)
            }
        };
        self.ready.push_back(unit);
        self.dispatch(now);
    }

    fn dispatch(&mut self, now: Ps) {
        while !self.ready.is_empty() {
            let Some(hpu) = self.idle.pop() else {
                return;
            };
            if let Some(unit) = self.ready.pop_front() {
                self.start(now + self.parameters.dispatch, hpu, unit);
            }
        }
    }

    /// Starts a handler on an HPU.
    fn start(&mut self, now: Ps, number: usize, unit: Unit) {
        let hpu = &mut self.hpus[number];
        hpu.issues.clear();
        (hpu.next, hpu.start, hpu.unit) = (0, now, Some(unit));
        let (flow_number, packet, vhpu) = match unit {
            Unit::Completion(flow) => {
                let context = self.flows[flow].entry.and_then(|e| self.lists.context(e));
                let cycles = context.map_or(0, |context| context.handlers.completion());
                let end = now + self.parameters.cycles(cycles);
                self.events.at(end, Event::Done(number));
                return;
            }
            Unit::Packet(flow, packet) => (flow, packet, 0),
            Unit::Vhpu(flow, v) => {
                let waiting = &mut self.flows[flow].vhpus[v as usize].waiting;
                // It is only started when it has a packet.
                let packet = waiting.pop_front().unwrap_or_default();
                (flow, packet, v)
            }
        };
        hpu.packet = packet;
        let flow = &mut self.flows[flow_number];
        let packet = Packet::new(packet, self.parameters.packet, flow.message.bytes, vhpu);
        let work = match flow.entry.and_then(|e| self.lists.context(e)) {
            Some(context) => context.handlers.payload(&packet, &mut hpu.issues),
            None => Work::default(),
        };
        flow.work.init += work.init;
        flow.work.setup += work.setup;
        flow.work.blocks += work.blocks;
        flow.handlers += 1;
        if let Some(first) = hpu.issues.first() {
            let at = now + self.parameters.cycles(first.at);
            self.events.at(at, Event::Issue(number));
        }
        let end = now + self.parameters.cycles(work.cycles());
        self.events.at(end, Event::Done(number));
    }

    fn flow_of(&self, hpu: usize) -> usize {
        match self.hpus[hpu].unit {
            Some(Unit::Packet(flow, _) | Unit::Vhpu(flow, _) | Unit::Completion(flow)) => flow,
            None => 0,
        }
    }

    fn issue(&mut self, now: Ps, number: usize) {
        let flow = self.flow_of(number);
        let hpu = &mut self.hpus[number];
        let issue = hpu.issues[hpu.next];
        hpu.next += 1;
        if let Some(next) = hpu.issues.get(hpu.next) {
            let at = hpu.start + self.parameters.cycles(next.at);
            self.events.at(at, Event::Issue(number));
        }
        let end = self.queue.write(now, issue.bytes) + self.parameters.pcie_write;
        self.flows[flow].end = self.flows[flow].end.max(end);
        (self.sink)(flow, &issue);
    }

    fn done(&mut self, now: Ps, number: usize) {
        // A request in the last cycle is issued before the handler ends.
        if self.hpus[number].next < self.hpus[number].issues.len() {
            self.events.at(now, Event::Done(number));
            return;
        }
        let flow_number = self.flow_of(number);
        let Some(unit) = self.hpus[number].unit.take() else {
            return;
        };
        let flow = &mut self.flows[flow_number];
        if let Unit::Completion(_) = unit {
            let end = self.queue.write(now, 0) + self.parameters.pcie_write;
            flow.end = flow.end.max(end);
        } else {
            let packet = self.hpus[number].packet;
            let bytes =
                (flow.message.bytes - packet * self.parameters.packet).min(self.parameters.packet);
            self.packet_bytes.0 -= bytes;
            flow.left -= 1;
            if flow.left == 0 {
                self.ready.push_back(Unit::Completion(flow_number));
            }
        }
        if let Unit::Vhpu(_, v) = unit {
            let vhpu = &mut flow.vhpus[v as usize];
            if !vhpu.waiting.is_empty() {
                // It keeps its HPU.
                self.start(now + self.parameters.dispatch, number, unit);
                return;
            }
            vhpu.is_active = false;
        }
        self.idle.push(number);
        self.dispatch(now);
    }

    fn report(self) -> Report {
        let outcomes = self
            .flows
            .iter()
            .map(|flow| Outcome {
                path: flow.path,
                begin: flow.begin,
                end: flow.end,
                work: flow.work,
                handlers: flow.handlers,
            })
            .collect();
        Report {
            outcomes,
            requests: self.queue.requests(),
            bytes: self.queue.bytes(),
            deepest_queue: self.queue.deepest(),
            packet_bytes: self.packet_bytes.1,
            events: self.count,
            trace: self.trace,
            queue: self.queue.into_history(),
        }
    }
}
