// SPDX-License-Identifier: MIT OR Apache-2.0

//! How long a message takes with memory keys and packed: a model, of costs that nobody has measured
//! here.
//!
//! Its figures are modelled. The cost of creating a key and the speed of the link are those of
//! "Network-Assisted Noncontiguous Transfers for GPU-Aware MPI Libraries" (sections "Amortizing the
//! Mkey Mapping Overhead" and "Experimental Platforms and Setup": 200 us, HDR 200 Gbit/s). The
//! others are assumptions of the order that ConnectX-6 cards and pack kernels have, which a user
//! with a card replaces.

use libcopy_rdma::Shape;

/// Costs, in nanoseconds unless the name says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Creating a key.
    pub create_key: f64,
    /// Bytes that the link moves in a nanosecond.
    pub link_bytes: f64,
    /// From one end to the other.
    pub latency: f64,
    /// A work request.
    pub work_request: f64,
    /// An entry of a key's list, when it is mapped and each time the card reads it.
    pub entry: f64,
    /// Starting a pack or unpack kernel and waiting for it.
    pub pack_start: f64,
    /// Bytes that a pack or unpack kernel moves in a nanosecond.
    pub pack_bytes: f64,
    /// A block that is packed or unpacked.
    pub pack_block: f64,
    /// A control message (RTS, CTS, FIN), without its keys.
    pub control: f64,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            create_key: 200_000.0,
            link_bytes: 25.0,
            latency: 1_000.0,
            work_request: 150.0,
            entry: 10.0,
            pack_start: 4_000.0,
            pack_bytes: 100.0,
            pack_block: 1.0,
            control: 1_500.0,
        }
    }
}

/// Which message of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repetition {
    /// No key exists.
    Create,
    /// The pool has keys, which have to be mapped and told of.
    Map,
    /// Keys are mapped and known.
    Cached,
}

/// Modelled time of a message with memory keys, in nanoseconds; `keys` at either end.
pub fn umr_time(costs: &Costs, shape: &Shape, keys: u64, repetition: Repetition) -> f64 {
    let (blocks, keys_f) = (shape.blocks as f64, keys as f64);
    let map = keys_f * costs.work_request + blocks * costs.entry;
    let key_bytes = 4.0 * keys_f / costs.link_bytes;
    let prepare = match repetition {
        Repetition::Create => keys_f * costs.create_key + map + key_bytes,
        Repetition::Map => map + key_bytes,
        Repetition::Cached => 0.0,
    };
    // Both ends prepare, one after the other: the sender needs the chunk size that the CTS carries.
    2.0 * prepare
        + 3.0 * costs.control
        + costs.latency
        + keys_f * costs.work_request
        + (shape.bytes as f64 / costs.link_bytes).max(blocks * costs.entry)
}

/// Modelled time of a packed message, in nanoseconds.
pub fn pack_time(costs: &Costs, shape: &Shape) -> f64 {
    let bytes = shape.bytes as f64;
    let pack =
        costs.pack_start + (bytes / costs.pack_bytes).max(shape.blocks as f64 * costs.pack_block);
    2.0 * pack + 3.0 * costs.control + costs.latency + costs.work_request + bytes / costs.link_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(blocks: u64, len: u64) -> Shape {
        Shape {
            bytes: blocks * len,
            blocks,
            min: len,
            unit: len,
        }
    }

    /// How many times as long packing takes.
    fn gain(blocks: u64, len: u64, repetition: Repetition) -> f64 {
        let costs = Costs::default();
        let shape = shape(blocks, len);
        pack_time(&costs, &shape) / umr_time(&costs, &shape, blocks.div_ceil(64), repetition)
    }

    #[test]
    fn the_gain_is_where_the_paper_has_it() {
        // Figure 4: up to 2 x for blocks of 1 to 4 KiB, 16 to 128 of them.
        assert!(gain(16, 1024, Repetition::Cached) > 2.0);
        assert!(gain(128, 4096, Repetition::Cached) > 1.4);
        // Creating a key eats it: 200 us are twice a transfer.
        assert!(gain(64, 1024, Repetition::Create) < 0.1);
        // SW4Lite's 3,000 x 48 B: the list is the bottleneck.
        assert!(gain(3000, 48, Repetition::Cached) < 1.0);
        // The gain shrinks as the wire takes over.
        assert!(gain(128, 65536, Repetition::Cached) < gain(128, 4096, Repetition::Cached));
    }
}
