// SPDX-License-Identifier: MIT OR Apache-2.0

//! A card without handlers, which scatters by a list of addresses and lengths (section 5.3: the
//! Portals 4 solution).
//!
//! The card holds `iovec_entries` entries of the list. When they are used up it reads the next ones
//! over PCIe and waits for them. Packets arrive in order.

use super::parameters::{Parameters, Ps};
use super::pcie::DmaQueue;
use libcopy_datatype::Layout;

/// Bytes of an entry: an address and a length.
pub const ENTRY: u64 = 16;

/// What receiving a message that way comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scattered {
    /// When the last byte is in host memory, from the first byte's entry into the network.
    pub end: Ps,
    /// Bytes of the list that were moved to the card.
    pub list_bytes: u64,
    /// Reads of the list while the message arrived.
    pub reads: u64,
}

/// Receives a message of `layout`.
pub fn scatter(parameters: &Parameters, layout: &Layout) -> Scattered {
    let mut queue = DmaQueue::new(parameters, false);
    let mut cursor = layout.cursor();
    let (mut now, mut end, mut held, mut reads, mut blocks) =
        (0, 0, parameters.iovec_entries, 0, 0);
    let mut arrived = parameters.network_latency + parameters.matching;
    let mut rest_of_block = 0;
    while cursor.remaining() > 0 {
        let packet = parameters.packet.min(cursor.remaining());
        arrived += parameters.wire(packet);
        now = arrived.max(now);
        let mut left = packet;
        while left > 0 {
            // A block that goes on in the next packet is one entry.
            if rest_of_block == 0 {
                rest_of_block = cursor.clone().next_segment(u64::MAX).map_or(0, |s| s.len);
                blocks += 1;
                if held == 0 {
                    now += parameters.pcie_read;
                    held = parameters.iovec_entries;
                    reads += 1;
                }
                held -= 1;
            }
            let Some(piece) = cursor.next_segment(left.min(rest_of_block)) else {
                break;
            };
            rest_of_block -= piece.len;
            left -= piece.len;
            end = queue.write(now, piece.len) + parameters.pcie_write;
        }
    }
    Scattered {
        end,
        list_bytes: blocks * ENTRY,
        reads,
    }
}
