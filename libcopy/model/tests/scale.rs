// SPDX-License-Identifier: MIT OR Apache-2.0

//! What trees gain on machines with many cores, simulated: it is computed, so it is the same each
//! time. `scripts/bench scale` prints all of it.

use libcopy::plan::choose::{best, buffer, estimate, in_steps, ways};
use libcopy::plan::price::price;
use libcopy::plan::{Call, Costs, Lengths, MOST_OF_STEP, Operation, Plans};
use libcopy_model::machines::{MACHINES, Preset};
use libcopy_model::peers::{Peer, bound, plans};
use libcopy_model::simulate;

/// A case, and how long variants of it take.
struct Case {
    preset: &'static Preset,
    ranks: usize,
    call: Call<'static>,
}

impl Case {
    fn new(machine: &str, ranks: Option<usize>, operation: Operation, bytes: usize) -> Case {
        let preset = Preset::named(machine).expect("a machine");
        let bytes = if operation == Operation::Barrier {
            0
        } else {
            bytes
        };
        Case {
            preset,
            ranks: ranks.unwrap_or(preset.cores()),
            call: Call {
                operation,
                root: 0,
                lengths: Lengths::Same(bytes),
                in_rank_order: operation.is_scan(),
                element: if operation.combines() { 8 } else { 1 },
            },
        }
    }

    fn own(&self) -> f64 {
        let (object, places, machine) = self.preset.with_ranks(self.ranks);
        let whole = buffer(&self.call, self.ranks);
        match in_steps(&object, &places, &self.call) {
            Some(steps) => {
                let simulated = simulate::run(&steps, &machine, whole, whole);
                simulated.expect("no circle").seconds
            }
            None => self.by_plan(),
        }
    }

    fn by_plan(&self) -> f64 {
        let (object, places, machine) = self.preset.with_ranks(self.ranks);
        let way = best(&object, &places, &self.call, self.preset.costs).expect("a way");
        let plans = Plans::new(&way.tree, &self.call, way.shape).all();
        let whole = buffer(&self.call, self.ranks);
        let simulated = simulate::run(&plans, &machine, whole, way.chunk);
        simulated.expect("no circle").seconds
    }

    fn of(&self, peer: Peer) -> f64 {
        let (object, places, machine) = self.preset.with_ranks(self.ranks);
        let plans = plans(peer, &object, &places, &self.call);
        let (plans, chunk) = plans.expect("the peer has the operation");
        let whole = buffer(&self.call, self.ranks);
        let simulated = simulate::run(&plans, &machine, whole, chunk);
        simulated.expect("no circle").seconds
    }

    fn bound(&self) -> f64 {
        bound(&self.preset.with_ranks(self.ranks).2, &self.call)
    }
}

/// Least times as fast as flat and as XHC, and most of the bound.
#[track_caller]
fn assert_gains(machine: &str, op: Operation, bytes: usize, flat: f64, xhc: f64, of_bound: f64) {
    let case = Case::new(machine, None, op, bytes);
    let own = case.own();
    let what = format!("{machine}, {} of {bytes} bytes", op.name());
    for (peer, least) in [(Peer::Flat, flat), (Peer::Xhc, xhc)] {
        let gain = case.of(peer) / own;
        assert!(gain >= least, "{what}: {gain:.3} times {}", peer.name());
    }
    let of = own / case.bound();
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
}

/// Short calls in steps, by a tree, and flat.
#[test]
fn steps_are_faster_than_trees_and_than_flat() {
    for name in ["epyc-9654", "epyc-7742", "xeon-8480", "grace", "desktop"] {
        let ranks = Preset::named(name).expect("a machine").cores();
        for ranks in [ranks / 2, ranks] {
            for (operation, bytes) in [
                (Operation::Barrier, 0),
                (Operation::Allreduce, 8),
                (Operation::Allreduce, 512),
                (Operation::Allgather, 8),
                (Operation::Bcast, 8),
                (Operation::Bcast, 512),
            ] {
                let case = Case::new(name, Some(ranks), operation, bytes);
                let [own, tree, flat] = [case.own(), case.by_plan(), case.of(Peer::Flat)];
                let what = format!("{name}, {ranks} ranks, {} of {bytes}", operation.name());
                assert!(own < tree, "{what}: {own} s in steps, {tree} by a tree");
                assert!(own < flat, "{what}: {own} s in steps, {flat} flat");
            }
        }
    }
}

/// What `docs/design/governor.md` says of short reductions whose order is fixed: as long as they go
/// in steps, they are ahead of all others with any number of ranks.
#[test]
fn short_allreduces_are_ahead_on_each_machine() {
    let mut compared = 0;
    for preset in &MACHINES {
        let ranks = (1..=8).map(|power| 1 << power);
        for ranks in ranks.filter(|ranks| *ranks <= preset.cores()) {
            for bytes in [8, MOST_OF_STEP] {
                let case = Case::new(preset.name, Some(ranks), Operation::Allreduce, bytes);
                let own = case.own();
                for peer in Peer::ALL {
                    let (object, places, _) = preset.with_ranks(ranks);
                    if plans(peer, &object, &places, &case.call).is_none() {
                        continue;
                    }
                    let gain = case.of(peer) / own;
                    let what = format!("{}, {ranks} ranks, {bytes} bytes", preset.name);
                    assert!(gain >= 1.2, "{what}: {gain:.3} times {}", peer.name());
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 150, "{compared}");
}

#[test]
fn trees_are_not_behind_flat() {
    let mut behind = Vec::new();
    for name in ["epyc-9654", "xeon-8480", "desktop"] {
        let preset = Preset::named(name).expect("a machine");
        for ranks in [2, 16, preset.cores()] {
            for operation in Operation::ALL {
                // Tens of thousands of pieces that are the same in both.
                let is_large = ranks > 16;
                if is_large && operation.has_blocks() {
                    continue;
                }
                for bytes in [8, 1 << 20] {
                    let case = Case::new(name, Some(ranks), operation, bytes);
                    let ratio = case.own() / case.of(Peer::Flat);
                    if ratio > 1.02 {
                        let op = operation.name();
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

/// A way is chosen by prices of one of the ranks that are alike, of a few segments, and of the
/// signals behind a plan alone; they are near those of all ranks' whole plans.
#[test]
fn estimates_are_near_the_prices_of_all_ranks() {
    let mut count = 0;
    let (mut sum, mut most) = (0.0, (0.0, String::new()));
    for (name, ranks) in [("epyc-9654", 48), ("epyc-7742", 100), ("xeon-8480", 112)] {
        for operation in Operation::ALL {
            for bytes in [64, 16 << 10, 1 << 20] {
                let case = Case::new(name, Some(ranks), operation, bytes);
                let (object, places, machine) = case.preset.with_ranks(ranks);
                let whole = buffer(&case.call, ranks);
                // Chunks are not what classes are about.
                let mut last = None;
                for way in ways(&object, &places, &case.call, &machine.costs) {
                    let kind = (way.tree.clone(), way.shape);
                    if last.replace(kind.clone()) == Some(kind) {
                        continue;
                    }
                    let plans = Plans::new(&way.tree, &case.call, way.shape).all();
                    let all = price(&plans, &machine, whole, way.chunk);
                    let error = (estimate(&way, &case.call, &machine) / all).ln().abs();
                    (count, sum) = (count + 1, sum + error);
                    if error > most.0 {
                        let (op, levels, shape) = (operation.name(), &way.levels, way.shape);
                        let what = format!("{name}, {op} of {bytes}, {levels:?}, {shape:?}");
                        most = (error, what);
                    }
                }
            }
        }
    }
    let mean = sum / f64::from(count);
    assert!(mean < 0.02 && most.0 < 0.3, "{count}: {mean:.4}, {most:?}");
}

/// Each rank of a team chooses when a call of a size comes for the first time.
#[test]
fn a_way_is_chosen_in_no_time() {
    let preset = Preset::named("epyc-9654").expect("a machine");
    let (object, places, _) = preset.with_ranks(preset.cores());
    for (operation, bytes) in [
        (Operation::Bcast, 1 << 20),
        (Operation::Allgather, 64 << 10),
        (Operation::Allreduce, 1 << 20),
        (Operation::ReduceScatter, 8 << 10),
        (Operation::Reduce, 16 << 10),
    ] {
        let call = Case::new("epyc-9654", None, operation, bytes).call;
        let times = (0..5).map(|_| {
            let start = std::time::Instant::now();
            assert!(best(&object, &places, &call, Costs::BUILT_IN).is_some());
            start.elapsed().as_secs_f64()
        });
        let least = times.fold(f64::INFINITY, f64::min);
        // Some milliseconds; pricing all ranks took a second and more.
        let name = operation.name();
        assert!(least < 0.2, "{name} of {bytes}: {least:.3} s");
    }
}
