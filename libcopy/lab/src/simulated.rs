// SPDX-License-Identifier: MIT OR Apache-2.0

//! Simulated times of one collective on a machine: of libcopy and, as plans, of others.

use anyhow::{Context, Result};
use libcopy::plan::choose::{best, buffer, in_steps};
use libcopy::plan::{Call, Lengths, Operation, Plans};
use libcopy_model::machines::Preset;
use libcopy_model::peers::{Peer, bound, plans};
use libcopy_model::simulate;

/// The name of what libcopy does, and that of what nothing can be faster than.
pub const OWN: &str = "libcopy";
pub const BOUND: &str = "bound";

/// Seconds that each variant takes; those that do not have the operation are left out.
pub fn variants(
    preset: &Preset,
    ranks: usize,
    op: Operation,
    bytes: usize,
) -> Result<Vec<(&'static str, f64)>> {
    let (object, places, machine) = preset.with_ranks(ranks);
    let call = Call {
        operation: op,
        root: 0,
        lengths: Lengths::Same(bytes),
        in_rank_order: op.is_scan(),
        element: if op.combines() { 8 } else { 1 },
    };
    let whole = buffer(&call, ranks);
    let (own, chunk) = match in_steps(&object, &places, &call) {
        Some(steps) => (steps, whole),
        None => {
            let way = best(&object, &places, &call, preset.costs).context("no way goes")?;
            let plans = Plans::new(&way.tree, &call, way.shape).all();
            (plans, way.chunk)
        }
    };
    let mut times = vec![(OWN, simulate::run(&own, &machine, whole, chunk)?.seconds)];
    for peer in Peer::ALL {
        if let Some((plans, chunk)) = plans(peer, &object, &places, &call) {
            let simulated = simulate::run(&plans, &machine, whole, chunk);
            let simulated =
                simulated.with_context(|| format!("{} of {}", op.name(), peer.name()))?;
            times.push((peer.name(), simulated.seconds));
        }
    }
    times.push((BOUND, bound(&machine, &call)));
    Ok(times)
}
