// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a strategy's handlers cost on the simulated core, as lines: what a plan needs before any
//! packet has come. They are fitted to a few packets of the vector type, and of indexed types and a
//! struct where lists are searched and members entered.

use super::core::{CoreError, CoreHandlers};
use crate::card::{Packet, Strategy};
use crate::iss::Timing;
use libcopy_datatype::Layout;
use std::sync::OnceLock;

/// Cycles of a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Until the handler looks at the datatype, with the copy of a checkpoint where each packet has
    /// one (RO-CP).
    pub init: u64,
    /// Added where a checkpoint is reverted (RW-CP).
    pub revert: u64,
    /// What remains besides, without catch-up.
    pub setup: u64,
    /// Added to it for each halving of a list of blocks.
    pub halving: u64,
    /// Added for each member of a struct that a packet has a part of, without the search in the
    /// member's own list.
    pub member: u64,
    /// A piece with its DMA request.
    pub block: u64,
    /// A piece that is passed over while catching up.
    pub skipped_block: u64,
    /// Added for each packet that is passed over.
    pub skipped_packet: u64,
}

/// Bytes of a packet.
const PACKET: u64 = 2048;
/// Packets between two checkpoints.
const INTERVAL: u64 = 8;

/// The costs of a strategy.
///
/// # Panics
///
/// If a handler of the binary stops on a vector type; a test runs them all.
pub fn costs(strategy: Strategy) -> Costs {
    static ALL: OnceLock<[Costs; 5]> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        Strategy::ALL.map(|s| fit(s).expect("a test runs the handlers of all strategies"))
    });
    let index = Strategy::ALL.iter().position(|s| *s == strategy);
    all[index.unwrap_or(0)]
}

/// Blocks of `PACKET / gamma` bytes, every other one.
fn vector(gamma: u64) -> Option<Layout> {
    let (block, count) = (PACKET / gamma, 32 * gamma);
    let expression = format!("vector({count}, {block}, {}, byte)", 2 * block);
    Layout::new(&expression.parse().ok()?, 1).ok()
}

/// `count` blocks of 64 to 124 bytes at irregular offsets.
fn indexed(count: u64) -> Option<Layout> {
    let lengths = list(count, |i| (64 + 4 * noise(i)).to_string());
    let offsets = list(count, |i| (200 * i + 4 * noise(i + 1)).to_string());
    let expression = format!("hindexed([{lengths}], [{offsets}], byte)");
    Layout::new(&expression.parse().ok()?, 1).ok()
}

/// Numbers of 0 to 15 without a pattern, so that a form is one list.
fn noise(i: u64) -> u64 {
    i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60
}

/// The values of `of` for 0 to `count - 1`, as a list of an expression.
fn list(count: u64, of: impl Fn(u64) -> String) -> String {
    (0..count).map(of).collect::<Vec<_>>().join(", ")
}

/// A struct of `count` vectors of 32 blocks of 4 bytes: shorter vectors would be one list of
/// blocks. Each has another stride than the one before.
fn structure(count: u64) -> Option<Layout> {
    let lengths = list(count, |_| "1".to_owned());
    let offsets = list(count, |i| (4000 * i + 4 * noise(i)).to_string());
    let members = list(count, |i| {
        format!("vector(32, 4, {}, byte)", 80 + 2 * noise(i))
    });
    let expression = format!("struct([{lengths}], [{offsets}], [{members}])");
    Layout::new(&expression.parse().ok()?, 1).ok()
}

/// Cycles of the last of some packets, run one after the other: until it looks at the datatype, and
/// all.
fn cycles(layout: &Layout, strategy: Strategy, packets: &[u64]) -> Result<(u64, u64), CoreError> {
    let image = layout.image().map_err(|_| CoreError::NoHandler)?;
    let interval = (INTERVAL * PACKET) as u32;
    let mut core = CoreHandlers::new(image, strategy, 1, interval, Timing::CV32E40P)?;
    let mut last = (0, 0);
    for index in packets {
        let run = core.payload(&Packet::new(*index, PACKET, layout.size(), 0))?;
        last = (run.init, run.counts.cycles);
    }
    Ok(last)
}

fn fit(strategy: Strategy) -> Result<Costs, CoreError> {
    let both = |gamma: u64, packets: &[u64]| {
        let layout = vector(gamma).ok_or(CoreError::NoHandler)?;
        cycles(&layout, strategy, packets)
    };
    let of = |gamma: u64, packets: &[u64]| both(gamma, packets).map(|(_, all)| all);
    // A packet whose state is where it begins: the second one of a sequence, or of a checkpoint.
    let near: &[u64] = match strategy {
        Strategy::RoCp => &[INTERVAL],
        _ => &[INTERVAL, INTERVAL + 1],
    };
    let ((init, one), sixteen) = (both(1, near)?, of(16, near)?);
    let block = (sixteen - one) / 15;
    let fixed = one.saturating_sub(block);
    // A packet that is three packets behind its state.
    let far: &[u64] = match strategy {
        Strategy::RoCp => &[INTERVAL + 3],
        _ => &[INTERVAL, INTERVAL + 4],
    };
    let behind = |gamma| Ok::<u64, CoreError>(of(gamma, far)?.saturating_sub(of(gamma, near)?) / 3);
    let (few, many) = (behind(1)?, behind(16)?);
    let skipped_block = many.saturating_sub(few) / 15;
    // A packet behind its state, without packets to pass over.
    let revert = match strategy {
        Strategy::RwCp => of(1, &[INTERVAL, INTERVAL + 1, INTERVAL])?.saturating_sub(one),
        _ => 0,
    };
    let halving = match strategy {
        Strategy::Specialized => {
            let middle = |count: u64| {
                let layout = indexed(count).ok_or(CoreError::NoHandler)?;
                cycles(&layout, strategy, &[layout.size() / PACKET / 2])
            };
            // Six halvings more.
            middle(4096)?.1.saturating_sub(middle(64)?.1) / 6
        }
        _ => 0,
    };
    let member = match strategy {
        Strategy::Specialized => {
            // A packet has 16 members; the search halves 1,024 of them.
            let layout = structure(1024).ok_or(CoreError::NoHandler)?;
            let (_, all) = cycles(&layout, strategy, &[31])?;
            all.saturating_sub(fixed + 512 * block + 10 * halving) / 16
        }
        _ => 0,
    };
    Ok(Costs {
        init: init.min(fixed),
        revert,
        setup: fixed - init.min(fixed),
        halving,
        member,
        block,
        skipped_block,
        skipped_packet: few.saturating_sub(skipped_block),
    })
}
