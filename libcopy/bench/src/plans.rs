// SPDX-License-Identifier: MIT OR Apache-2.0

//! Plans that are run on this machine: to check them, and to measure them.

use anyhow::{Context, Result, bail};
use libcopy::plan::choose::Way;
use libcopy::plan::{Call, Lengths, Plan, Plans, check};
use libcopy_measure::sample::Spread;
use libcopy_measure::threads;

/// Threads at most.
const MOST_THREADS: usize = 256;

/// Orders in which the check runs the plans.
pub const ORDERS: u64 = 4;

/// Elements of all ranks' buffers that the check runs with, at most.
const MOST_ELEMENTS: usize = 8 << 20;

/// Runs the plans of a way in some orders, with shorter buffers if the elements of all ranks are
/// too many. Says of how many bytes the buffers are; `tell` is called after each order.
///
/// # Errors
///
/// A byte that does not arrive, or arrives twice; ranks that wait for each other.
pub fn checked(way: &Way, call: &Call<'_>, ranks: usize, tell: impl Fn()) -> Result<usize> {
    // Buffers are cut at cache lines and elements; the check takes a line as one element.
    let lines = call.element * 64usize.div_ceil(call.element);
    let mut bytes = call.lengths.total(1);
    let call = loop {
        let element = if bytes % lines == 0 {
            lines
        } else {
            call.element
        };
        let shorter = Call {
            element,
            lengths: Lengths::Same(bytes),
            ..*call
        };
        let elements = (0..ranks).map(|rank| {
            let (sent, received) = shorter.buffers(rank, ranks);
            (sent + received) / element
        });
        if bytes <= call.element || elements.sum::<usize>() <= MOST_ELEMENTS {
            break shorter;
        }
        bytes = if bytes > lines {
            (bytes / 2).max(lines) / lines * lines
        } else {
            (bytes / 2).max(call.element) / call.element * call.element
        };
    };
    let plans = Plans::new(&way.tree, &call, way.shape).all();
    let mut state: u64 = 1;
    let mut choose = |end: usize| {
        // A linear congruential generator (Knuth's MMIX).
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % end.max(1)
    };
    for order in 0..ORDERS {
        check::run(&way.tree, &plans, &call, order % 2 > 0, &mut choose)?;
        tell();
    }
    Ok(bytes)
}

/// Times of the plans with a thread for each rank.
///
/// # Errors
///
/// More ranks than threads are started for, wrong bytes, or no time asked for.
pub fn measured(plans: &[Plan], call: &Call<'_>, chunk: usize, times: usize) -> Result<Spread> {
    if plans.len() > MOST_THREADS {
        bail!(
            "--measure: {} ranks, at most {MOST_THREADS} threads are started",
            plans.len()
        );
    }
    // Values are added, so a scan needs no order.
    let call = Call {
        in_rank_order: false,
        ..*call
    };
    let seconds = threads::run(plans, &call, chunk, times)?;
    Spread::of(&seconds).context("--measure 0: nothing was measured")
}
