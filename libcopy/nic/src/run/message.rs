// SPDX-License-Identifier: MIT OR Apache-2.0

//! The handlers of one message for the card: they run natively, and take the cycles that the
//! compiled ones take on the simulated core.
//!
//! The core runs a packet only if none of the same shape was run before. Two packets have the same
//! shape if a handler does the same steps for both: equal pieces, equally far from their state, of
//! equal lengths. Where the steps depend on the place in a list as well (a binary search), each
//! packet is run.

use super::commands::Command;
use super::core::{CoreError, CoreHandlers, CoreRun};
use super::native::NativeHandlers;
use crate::card::{Handlers, Issue, Packet, Strategy, Work};
use crate::iss::Timing;
use libcopy_datatype::Layout;
use libcopy_walk::{Child, HEADER_WORDS, Image, Node, RECORD_WORDS, Tree};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// From packets to host memory.
    In,
    /// From host memory to packets: process-put.
    Out,
}

/// When a handler's requests are issued, and what it takes.
#[derive(Clone, Debug)]
struct Timed {
    work: Work,
    /// Cycles of each request.
    at: Vec<u64>,
}

impl Timed {
    fn of(run: &CoreRun) -> Timed {
        let at: Vec<u64> = run.commands.iter().map(|(at, _)| *at).collect();
        let total = run.counts.cycles;
        let first = at.first().copied().unwrap_or(total);
        let init = run.init.min(first);
        Timed {
            work: Work {
                init,
                setup: first - init,
                blocks: total - first,
            },
            at,
        }
    }
}

/// The handlers of one message.
#[derive(Debug)]
pub struct MessageHandlers {
    native: NativeHandlers,
    core: CoreHandlers,
    strategy: Strategy,
    direction: Direction,
    packet: u64,
    /// Packets from checkpoint to checkpoint.
    interval: u64,
    /// The shape of each packet alone.
    shapes: Vec<u64>,
    known: HashMap<u64, Timed>,
    completion: u64,
    runs: u64,
    commands: Vec<Command>,
}

/// Whether all pieces are those of one node: then the distance of two pieces makes no difference
/// for a handler.
fn is_flat(image: Image<'_>) -> bool {
    let is_dense = |child: Child<i32>| child.id == Child::<i32>::DENSE;
    match image.root().map(|root| image.node(root)) {
        Some(Node::Stream { child, .. } | Node::Blocks { child, .. }) => is_dense(child),
        Some(Node::Sequence { .. }) => false,
        _ => true,
    }
}

/// Whether a descent searches a list.
fn has_search(image: Image<'_>) -> bool {
    // A node's number is where its record begins; the root comes last.
    let root = image.root().unwrap_or(0);
    (HEADER_WORDS as u32..=root)
        .step_by(RECORD_WORDS)
        .any(|id| matches!(image.node(id), Node::Pieces { .. } | Node::Sequence { .. }))
}

/// A number for the shape of each packet.
fn shapes(layout: &Layout, image: Image<'_>, strategy: Strategy, packet: u64) -> Vec<u64> {
    let is_flat = is_flat(image);
    // These begin each packet with a descent.
    let is_found = matches!(strategy, Strategy::Specialized | Strategy::Seek);
    let is_unique = is_found && has_search(image);
    let mut cursor = layout.cursor();
    let mut all: Vec<u64> = Vec::new();
    let mut end = None;
    while cursor.remaining() > 0 {
        let mut hasher = DefaultHasher::new();
        // The first packet needs no division, and after the last one nothing is entered.
        if is_unique || all.is_empty() || cursor.remaining() <= packet {
            all.len().hash(&mut hasher);
        }
        let mut left = packet;
        while left > 0 {
            let Some(piece) = cursor.next_segment(left) else {
                break;
            };
            left -= piece.len;
            piece.len.hash(&mut hasher);
            let distance = end.map(|end| piece.offset - end);
            // A piece that goes on from the packet before is another step than a new one.
            let is_begun = distance == Some(0);
            (if is_flat { None } else { distance }, is_begun).hash(&mut hasher);
            end = Some(piece.offset + piece.len as i64);
        }
        // A handler that keeps its state enters the next piece before it ends.
        let next = cursor.clone().next_segment(1).map(|piece| piece.offset);
        let distance = next.zip(end).map(|(next, end)| next - end);
        (if is_flat { None } else { distance }, distance == Some(0)).hash(&mut hasher);
        all.push(hasher.finish());
    }
    all
}

impl MessageHandlers {
    /// The handlers of a message of `layout` in packets of `packet` bytes: `vhpus` states
    /// (HPU-local), or a checkpoint every `interval` packets (RO-CP and RW-CP).
    ///
    /// # Errors
    ///
    /// [`CoreError::NoHandler`]: the layout has no image, or none that [`Strategy::Specialized`]
    /// has a handler for.
    pub fn new(
        layout: &Layout,
        strategy: Strategy,
        packet: u64,
        vhpus: u64,
        interval: u64,
    ) -> Result<MessageHandlers, CoreError> {
        let image = layout.image().map_err(|_| CoreError::NoHandler)?;
        let interval = interval.max(1);
        let bytes = u32::try_from(interval * packet).unwrap_or(u32::MAX);
        let mut core = CoreHandlers::new(image.clone(), strategy, vhpus, bytes, Timing::CV32E40P)?;
        let completion = core.completion()?.counts.cycles;
        Ok(MessageHandlers {
            shapes: shapes(layout, Image::trusted(&image), strategy, packet),
            native: NativeHandlers::new(image, strategy, vhpus, bytes),
            core,
            strategy,
            direction: Direction::In,
            packet,
            interval,
            known: HashMap::new(),
            completion,
            runs: 0,
            commands: Vec::new(),
        })
    }

    /// The handlers of an outgoing message: process-put.
    ///
    /// # Errors
    ///
    /// As [`MessageHandlers::new`].
    pub fn outgoing(layout: &Layout, packet: u64) -> Result<MessageHandlers, CoreError> {
        let handlers = MessageHandlers::new(layout, Strategy::Seek, packet, 1, 1)?;
        Ok(MessageHandlers {
            direction: Direction::Out,
            ..handlers
        })
    }

    /// How many packets the core has run: the others had the shape of one of them.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// What decides how many cycles a packet's handler takes: the shapes of the packets from its
    /// state on, and where the state comes from.
    fn key(&self, packet: &Packet) -> u64 {
        let index = packet.index;
        let checkpoint = index / self.interval * self.interval;
        let place = self.native.state_of(packet);
        let (from, is_new, is_behind) = match self.strategy {
            Strategy::Specialized | Strategy::Seek => (index, false, false),
            Strategy::RoCp => (checkpoint, false, false),
            Strategy::HpuLocal | Strategy::RwCp => {
                let state = self.native.state(place);
                let at = state.position() as u64;
                if at > packet.offset {
                    let from = match self.strategy {
                        Strategy::RwCp => checkpoint,
                        _ => 0,
                    };
                    (from, false, true)
                } else {
                    let is_new = *state == self.native.masters()[place];
                    (at / self.packet, is_new, false)
                }
            }
        };
        let mut hasher = DefaultHasher::new();
        (is_new, is_behind).hash(&mut hasher);
        let (from, index) = (from as usize, index as usize);
        self.shapes[from.min(index)..=index].hash(&mut hasher);
        hasher.finish()
    }

    /// Runs a packet on the core, with the state that the native handlers have.
    fn run(&mut self, packet: &Packet) -> Result<CoreRun, CoreError> {
        self.runs += 1;
        if self.direction == Direction::Out {
            return self.core.process_put(packet);
        }
        let place = self.native.state_of(packet);
        if place < self.native.states() {
            self.core.set_state(place, self.native.state(place));
        }
        self.core.payload(packet)
    }
}

impl Handlers for MessageHandlers {
    /// # Panics
    ///
    /// If the core stops, or issues other requests than the native handler: a defect of this crate.
    fn payload(&mut self, packet: &Packet, issues: &mut Vec<Issue>) -> Work {
        debug_assert_eq!(packet.offset, packet.index * self.packet);
        let key = self.key(packet);
        let run = (!self.known.contains_key(&key)).then(|| self.run(packet));
        let mut commands = std::mem::take(&mut self.commands);
        commands.clear();
        match self.direction {
            Direction::In => {
                self.native.payload(packet, &mut commands);
            }
            Direction::Out => self.native.process_put(packet, &mut commands),
        }
        if let Some(run) = run {
            let run = run.expect("the core runs every packet that the native handler runs");
            assert!(
                run.commands
                    .iter()
                    .map(|(_, command)| command)
                    .eq(&commands),
                "the core issues what the native handler issues"
            );
            self.known.insert(key, Timed::of(&run));
        }
        let timed = &self.known[&key];
        assert_eq!(timed.at.len(), commands.len(), "packets of one shape");
        for (command, at) in commands.iter().zip(&timed.at) {
            let (host, stream, bytes) = match *command {
                Command::Write {
                    host,
                    packet: from,
                    bytes,
                } => (host, packet.offset + u64::from(from), bytes),
                Command::Put {
                    host,
                    position,
                    bytes,
                    ..
                } => (host, u64::from(position), bytes),
                Command::Event => continue,
            };
            issues.push(Issue {
                at: *at,
                memory: host.into(),
                stream,
                bytes: bytes.into(),
            });
        }
        let work = timed.work;
        self.commands = commands;
        work
    }

    fn completion(&mut self) -> u64 {
        self.completion
    }
}
