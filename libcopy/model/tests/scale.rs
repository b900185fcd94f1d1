// SPDX-License-Identifier: MIT OR Apache-2.0

//! What trees gain on machines with many cores, simulated: it is computed, so it is the same each
//! time. `scripts/bench scale` prints all of it.

use libcopy::plan::choose::{best, buffer};
use libcopy::plan::{Call, Lengths, Operation, Plans};
use libcopy_model::machines::Preset;
use libcopy_model::peers::{Peer, bound, plans};
use libcopy_model::simulate;

struct Times {
    own: f64,
    flat: f64,
    xhc: Option<f64>,
    bound: f64,
}

fn times(machine: &str, ranks: Option<usize>, operation: Operation, bytes: usize) -> Times {
    let preset = Preset::named(machine).expect("a machine");
    let (object, places, machine) = preset.with_ranks(ranks.unwrap_or(preset.cores()));
    let call = Call {
        operation,
        root: 0,
        lengths: Lengths::Same(if operation == Operation::Barrier {
            0
        } else {
            bytes
        }),
        in_rank_order: operation.is_scan(),
        element: if operation.combines() { 8 } else { 1 },
    };
    let whole = buffer(&call, places.len());
    let way = best(&object, &places, &call, preset.costs).expect("a way");
    let own = Plans::new(&way.tree, &call, way.shape).all();
    let of_peer = |peer| {
        let (plans, chunk) = plans(peer, &object, &places, &call)?;
        let simulated = simulate::run(&plans, &machine, whole, chunk);
        Some(simulated.expect("no circle").seconds)
    };
    Times {
        own: simulate::run(&own, &machine, whole, way.chunk)
            .expect("no circle")
            .seconds,
        flat: of_peer(Peer::Flat).expect("a flat way"),
        xhc: of_peer(Peer::Xhc),
        bound: bound(&machine, &call),
    }
}

/// Least times as fast as flat and as XHC, and most of the bound.
#[track_caller]
fn assert_gains(machine: &str, op: Operation, bytes: usize, flat: f64, xhc: f64, of_bound: f64) {
    let times = times(machine, None, op, bytes);
    let own = times.own;
    let what = format!("{machine}, {} of {bytes} bytes", op.name());
    assert!(
        times.flat >= own * flat,
        "{what}: {:.2} times flat",
        times.flat / own
    );
    let is_xhc = times.xhc.expect("XHC");
    assert!(is_xhc >= own * xhc, "{what}: {:.3} times XHC", is_xhc / own);
    let of = own / times.bound;
    assert!(of <= of_bound, "{what}: {of:.2} of the bound");
}

#[test]
fn trees_are_faster_than_flat_and_than_xhc() {
    const MIB: usize = 1 << 20;
    assert_gains("epyc-7742", Operation::Bcast, MIB, 6.0, 1.05, 1.3);
    assert_gains("epyc-9654", Operation::Bcast, MIB, 10.0, 1.4, 1.3);
    assert_gains("epyc-7742", Operation::Bcast, 16 * MIB, 5.0, 1.05, 1.6);
    assert_gains("epyc-9654", Operation::Bcast, 16 * MIB, 5.0, 1.4, 1.6);
    for bytes in [MIB / 16, MIB] {
        assert_gains("epyc-7742", Operation::Allreduce, bytes, 1.7, 1.05, 2.0);
        assert_gains("epyc-9654", Operation::Allreduce, bytes, 2.2, 1.1, 2.0);
    }
    // Here each rank's buffer is read from memory once and written once, whatever is done.
    assert_gains("epyc-7742", Operation::Allreduce, 16 * MIB, 1.1, 1.05, 1.1);
    assert_gains("epyc-9654", Operation::Allreduce, 16 * MIB, 1.1, 1.1, 1.1);
}

#[test]
fn trees_are_not_behind_flat() {
    let mut behind = Vec::new();
    for name in ["epyc-9654", "xeon-8480", "desktop"] {
        let preset = Preset::named(name).expect("a machine");
        for ranks in [2, 16, preset.cores()] {
            for operation in Operation::ALL {
                for bytes in [8, 1 << 20] {
                    // Some 10,000 pieces each that are the same in both.
                    if matches!(operation, Operation::Alltoall | Operation::Allgather) && ranks > 16
                    {
                        continue;
                    }
                    let times = times(preset.name, Some(ranks), operation, bytes);
                    let ratio = times.own / times.flat;
                    if ratio > 1.02 {
                        let (name, op) = (preset.name, operation.name());
                        behind.push(format!(
                            "{name}, {ranks} ranks, {op} of {bytes}: {ratio:.3}"
                        ));
                    }
                }
            }
        }
    }
    assert!(behind.is_empty(), "{behind:#?}");
}
