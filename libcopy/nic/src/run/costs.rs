// SPDX-License-Identifier: MIT OR Apache-2.0

//! What handlers cost on the simulated core, as a table: fitted to a few packets of the vector type.

use super::core::{CoreError, CoreHandlers};
use crate::card::{Costs, Packet, Strategy};
use crate::iss::Timing;
use libcopy_datatype::Layout;
use std::sync::OnceLock;

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

/// Cycles of the last of some packets, run one after the other.
fn cycles(layout: &Layout, strategy: Strategy, packets: &[u64]) -> Result<u64, CoreError> {
    let image = layout.image().map_err(|_| CoreError::NoHandler)?;
    let interval = (INTERVAL * PACKET) as u32;
    let mut core = CoreHandlers::new(image, strategy, 1, interval, Timing::CV32E40P)?;
    let mut last = 0;
    for index in packets {
        let packet = Packet {
            index: *index,
            offset: index * PACKET,
            bytes: PACKET,
            vhpu: 0,
        };
        last = core.payload(&packet)?.0.cycles;
    }
    Ok(last)
}

fn fit(strategy: Strategy) -> Result<Costs, CoreError> {
    let of = |gamma: u64, packets: &[u64]| {
        let layout = vector(gamma).ok_or(CoreError::NoHandler)?;
        cycles(&layout, strategy, packets)
    };
    // A packet whose state is where it begins: the second one of a sequence, or of a checkpoint.
    let near: &[u64] = match strategy {
        Strategy::RoCp => &[INTERVAL],
        _ => &[INTERVAL, INTERVAL + 1],
    };
    let (one, sixteen) = (of(1, near)?, of(16, near)?);
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
    // A packet behind its state, without packets to pass over: RW-CP reverts.
    let copy = match strategy {
        Strategy::RwCp => of(1, &[INTERVAL, INTERVAL + 1, INTERVAL])?.saturating_sub(one),
        _ => 0,
    };
    Ok(Costs {
        init: 0,
        copy,
        setup: fixed,
        halving: Costs::prototype(strategy).halving,
        block,
        skipped_block,
        skipped_packet: few.saturating_sub(skipped_block),
        completion: 30,
    })
}
