// SPDX-License-Identifier: MIT OR Apache-2.0

//! The plans of other libraries are right: what is compared with does all of its work.

use libcopy::plan::choose::{buffer, ways};
use libcopy::plan::{Call, Lengths, Operation, Plans, Tree, check};
use libcopy_model::machines::MACHINES;
use libcopy_model::peers::{Peer, bound, plans};
use libcopy_model::simulate;

fn calls(ranks: usize) -> impl Iterator<Item = Call<'static>> {
    Operation::ALL.into_iter().flat_map(move |operation| {
        let element = if operation.combines() { 8 } else { 1 };
        let bytes = [8, 1 << 10, 200 << 10].into_iter();
        let bytes = bytes.filter(move |bytes| !operation.has_blocks() || bytes * ranks <= 1 << 20);
        bytes.map(move |bytes| Call {
            operation,
            root: 0,
            lengths: Lengths::Same(if operation == Operation::Barrier {
                0
            } else {
                bytes
            }),
            in_rank_order: operation.is_scan(),
            element,
        })
    })
}

#[test]
fn peers_move_every_byte() {
    for preset in &MACHINES {
        for ranks in [2, 3, 16, 21] {
            let ranks = ranks.min(preset.cores());
            let (object, places, machine) = preset.with_ranks(ranks);
            let tree = Tree::in_rank_order(ranks, usize::MAX);
            for call in calls(ranks) {
                for peer in Peer::ALL {
                    let Some((plans, chunk)) = plans(peer, &object, &places, &call) else {
                        continue;
                    };
                    let what = format!("{} {} {ranks} {call:?}", preset.name, peer.name());
                    let mut number = 0;
                    let mut choose = |end: usize| {
                        number += 7;
                        number % end.max(1)
                    };
                    // A line is one element, so that long buffers take no time.
                    let bytes = call.lengths.total(1);
                    let lines = Call {
                        element: if bytes % 64 == 0 { 64 } else { call.element },
                        ..call
                    };
                    let is_cut_at_lines = peer != Peer::Xhc && peer != Peer::Ring;
                    let call = if is_cut_at_lines { lines } else { call };
                    let checked = check::run(&tree, &plans, &call, false, &mut choose);
                    // XHC and a ring do not combine in the order of ranks.
                    let is_in_order = peer == Peer::Flat || !call.operation.combines();
                    if let Err(fault) = checked {
                        assert!(
                            !is_in_order && fault.what.contains("is wrong"),
                            "{what}: {fault}"
                        );
                    }
                    let whole = buffer(&call, ranks);
                    let simulated = simulate::run(&plans, &machine, whole, chunk);
                    let seconds = simulated
                        .unwrap_or_else(|why| panic!("{what}: {why}"))
                        .seconds;
                    let least = bound(&machine, &call);
                    assert!(
                        seconds >= least * 0.999,
                        "{what}: {seconds} s, {least} s are the least"
                    );
                }
            }
        }
    }
}

/// Nothing is faster than the bound.
#[test]
fn no_way_beats_the_bound() {
    for preset in &MACHINES {
        let ranks = preset.cores().min(32);
        let (object, places, machine) = preset.with_ranks(ranks);
        for call in calls(ranks) {
            for way in ways(&object, &places, &call, &machine.costs) {
                let plans = Plans::new(&way.tree, &call, way.shape).all();
                let whole = buffer(&call, ranks);
                let simulated =
                    simulate::run(&plans, &machine, whole, way.chunk).expect("no circle");
                let least = bound(&machine, &call);
                assert!(
                    simulated.seconds >= least * 0.999,
                    "{}: {call:?}, {:?}: {} s, {least} s are the least",
                    preset.name,
                    way.levels,
                    simulated.seconds
                );
            }
        }
    }
}
