// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handlers whose cost comes from a table: the pieces are real, the cycles are an interpolation.
//!
//! **The table is of a prototype**: its cycles were counted by an instruction-set simulator for the vector type with 1,
//! 16 and 128 blocks per packet, and fitted by lines. How they divide into init and setup is an assumption.

use super::handlers::{Handlers, Issue, Packet, Strategy, Work};
use libcopy_datatype::{Cursor, Layout, Result};

/// Cycles of a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Start of the handler.
    pub init: u64,
    /// Added to it where a checkpoint is copied.
    pub copy: u64,
    /// Until the first piece is known, without catch-up.
    pub setup: u64,
    /// Added to it for each halving of a list of blocks.
    pub halving: u64,
    /// A piece with its DMA request.
    pub block: u64,
    /// A piece that is passed over while catching up.
    pub skipped_block: u64,
    /// Added for each packet that is passed over.
    pub skipped_packet: u64,
    /// The completion handler.
    pub completion: u64,
}

impl Costs {
    /// The table of the prototype.
    pub fn prototype(strategy: Strategy) -> Costs {
        let general = Costs {
            init: 30,
            copy: 268,
            setup: 40,
            halving: 0,
            block: 40,
            skipped_block: 25,
            skipped_packet: 5,
            completion: 30,
        };
        match strategy {
            Strategy::Specialized => Costs {
                setup: 10,
                halving: 12,
                block: 20,
                ..general
            },
            Strategy::Seek => Costs {
                setup: 125,
                ..general
            },
            Strategy::HpuLocal | Strategy::RoCp | Strategy::RwCp => general,
        }
    }
}

impl Costs {
    /// Cycles of finding a place in a list of `entries`.
    pub fn search(&self, entries: u64) -> u64 {
        let entries = entries.max(1);
        self.halving * (u64::from(entries.ilog2()) + u64::from(!entries.is_power_of_two()))
    }
}

/// The handlers of one message.
#[derive(Debug)]
pub struct TableHandlers {
    strategy: Strategy,
    costs: Costs,
    packet: u64,
    /// Packets from checkpoint to checkpoint.
    interval: u64,
    /// Pieces of the packets before each packet, and of all.
    pieces_before: Vec<u64>,
    /// Entries of the list that a specialised handler searches; 1 if there is none.
    entries: u64,
    /// The next packet of each state, by virtual HPU.
    next: Vec<u64>,
    cursor: Cursor,
}

/// The pieces of each packet of `packet` bytes, as a sum over those before; one entry more than packets.
pub fn pieces_before(layout: &Layout, packet: u64) -> Vec<u64> {
    let mut cursor = layout.cursor();
    let (mut sums, mut sum) = (vec![0], 0);
    while cursor.remaining() > 0 {
        let mut left = packet;
        while left > 0 {
            let Some(piece) = cursor.next_segment(left) else {
                break;
            };
            left -= piece.len;
            sum += 1;
        }
        sums.push(sum);
    }
    sums
}

impl TableHandlers {
    /// The handlers for `layout` in packets of `packet` bytes: `vhpus` virtual HPUs (for [`Strategy::HpuLocal`] and
    /// [`Strategy::RwCp`]) and a checkpoint every `interval` packets. `entries` is the length of the list that a
    /// specialised handler searches, 1 without one.
    pub fn new(
        layout: &Layout,
        strategy: Strategy,
        packet: u64,
        vhpus: u64,
        interval: u64,
        entries: u64,
    ) -> TableHandlers {
        let states = match strategy {
            Strategy::HpuLocal => vec![0; vhpus.max(1) as usize],
            Strategy::RwCp => (0..vhpus.max(1)).map(|v| v * interval).collect(),
            _ => Vec::new(),
        };
        TableHandlers {
            strategy,
            costs: Costs::prototype(strategy),
            packet,
            interval: interval.max(1),
            pieces_before: pieces_before(layout, packet),
            entries: entries.max(1),
            next: states,
            cursor: layout.cursor(),
        }
    }

    /// Other costs.
    #[must_use]
    pub fn with_costs(mut self, costs: Costs) -> TableHandlers {
        self.costs = costs;
        self
    }

    fn skipped(&self, from: u64, to: u64) -> u64 {
        let pieces = self.pieces_before[to as usize] - self.pieces_before[from as usize];
        self.costs.skipped_block * pieces + self.costs.skipped_packet * (to - from)
    }

    /// Where the state for a packet stands, and whether a checkpoint is copied to get it.
    fn state(&mut self, packet: &Packet) -> (u64, bool) {
        let (index, vhpu) = (packet.index, packet.vhpu as usize);
        let checkpoint = index / self.interval * self.interval;
        match self.strategy {
            Strategy::Specialized | Strategy::Seek => (index, false),
            Strategy::RoCp => (checkpoint, true),
            Strategy::HpuLocal => {
                let at = std::mem::replace(&mut self.next[vhpu], index + 1);
                // Behind it: the state is reset.
                (if at > index { 0 } else { at }, false)
            }
            Strategy::RwCp => {
                let at = std::mem::replace(&mut self.next[vhpu], index + 1);
                if at > index || at < checkpoint {
                    // Reverted to the master copy.
                    (checkpoint, true)
                } else {
                    (at, false)
                }
            }
        }
    }

    fn pieces(&mut self, packet: &Packet, issues: &mut Vec<Issue>, start: u64) -> Result<()> {
        self.cursor.seek(packet.offset)?;
        let end = packet.offset + packet.bytes;
        let mut at = start;
        let mut stream = packet.offset;
        while let Some(piece) = self.cursor.next_segment(end - stream) {
            at += self.costs.block;
            issues.push(Issue {
                at,
                memory: piece.offset,
                stream,
                bytes: piece.len,
            });
            stream += piece.len;
            if stream == end {
                break;
            }
        }
        Ok(())
    }
}

impl Handlers for TableHandlers {
    fn payload(&mut self, packet: &Packet, issues: &mut Vec<Issue>) -> Work {
        debug_assert_eq!(packet.offset, packet.index * self.packet);
        let (from, is_copied) = self.state(packet);
        let init = self.costs.init + if is_copied { self.costs.copy } else { 0 };
        let setup =
            self.costs.setup + self.costs.search(self.entries) + self.skipped(from, packet.index);
        let before = issues.len();
        // A packet of the message lies within the layout.
        let _ = self.pieces(packet, issues, init + setup);
        let blocks = self.costs.block * (issues.len() - before) as u64;
        Work {
            init,
            setup,
            blocks,
        }
    }

    fn completion(&mut self) -> u64 {
        self.costs.completion
    }
}
