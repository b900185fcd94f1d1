// SPDX-License-Identifier: MIT OR Apache-2.0

//! The sender's side (section 3.1): when each packet of a message can enter the network.

use super::handlers::{Handlers, Packet};
use super::parameters::{Parameters, Ps};
use libcopy_datatype::Layout;

/// The pieces of each packet of `packet` bytes, as a sum over those before; one entry more than
/// packets.
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

/// How a sender with a datatype sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The processor packs everything, then one put sends it.
    PackAndPut {
        /// Time of packing.
        pack: Ps,
    },
    /// The processor finds one contiguous region after the other and hands it to a streaming put
    /// (section 3.1.1).
    StreamingPut {
        /// Time of finding a region and of the call that hands it over.
        region: Ps,
    },
    /// `PtlProcessPut` (section 3.1.2): the card makes packets without data, a handler for each
    /// finds its regions and streams them out. The processor does nothing but start it.
    ProcessPut,
}

/// When each packet has left the card, in order, from the call on. `pieces_before` are the regions
/// before each packet and in all (one entry more than packets); `handlers` are those of a
/// process-put, with the default policy.
///
/// A packet's data is read over PCIe; reads of different packets overlap.
pub fn departures(
    parameters: &Parameters,
    sender: Sender,
    bytes: u64,
    pieces_before: &[u64],
    handlers: &mut dyn Handlers,
) -> Vec<Ps> {
    let packets = parameters.packets(bytes);
    let mut hpus = vec![0; parameters.hpus.max(1) as usize];
    let (mut link, mut pcie, mut issues) = (0, 0, Vec::new());
    let mut left = Vec::new();
    for index in 0..packets {
        let packet = Packet::new(index, parameters.packet, bytes, 0);
        let length = packet.bytes;
        let known = match sender {
            Sender::PackAndPut { pack } => {
                pcie = pack.max(pcie) + parameters.pcie(length);
                pcie
            }
            Sender::StreamingPut { region } => {
                let (first, last) = (
                    pieces_before[index as usize],
                    pieces_before[index as usize + 1],
                );
                let average = length / (last - first).max(1);
                for piece in first..last {
                    pcie = (region * (piece + 1)).max(pcie) + parameters.pcie(average);
                }
                pcie
            }
            Sender::ProcessPut => {
                issues.clear();
                let work = handlers.payload(&packet, &mut issues);
                // The HPU that is free first.
                let hpu = (0..hpus.len()).min_by_key(|h| hpus[*h]).unwrap_or_default();
                let start = hpus[hpu] + parameters.dispatch;
                hpus[hpu] = start + parameters.cycles(work.cycles());
                for issue in &issues {
                    pcie = (start + parameters.cycles(issue.at)).max(pcie)
                        + parameters.pcie(issue.bytes);
                }
                pcie
            }
        };
        link = link.max(known + parameters.pcie_read) + parameters.wire(length);
        left.push(link);
    }
    left
}
