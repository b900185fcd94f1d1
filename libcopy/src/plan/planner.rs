// SPDX-License-Identifier: MIT OR Apache-2.0

//! A rank's plans: made when a call comes for the first time, and kept for the next one.

use std::sync::Arc;

use hashbrown::HashMap;

use super::call::{Call, Lengths, Operation, Shape, Workers};
use super::choose::{self, Way};
use super::costs::Costs;
use super::exchange::{Descent, Exchange};
use super::plans::Plans;
use super::stage::Plan;
use super::tree::{Member, Tree};
use crate::lru::Lru;
use crate::topology::Object;

/// Which ranks become groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Groups {
    /// All ranks are one group, and move whole buffers at a time: where ranks outnumber processors,
    /// as each level and each chunk is a context switch.
    One,
    /// Those of the way that takes least on the machine.
    Machine,
    /// Of at most this number of members, in the order of ranks: for tests and comparisons.
    InOrder(usize),
}

/// What a rank does in a call.
#[derive(Debug, PartialEq, Eq)]
pub struct Planned {
    /// Its plan.
    pub plan: Plan,
    /// Bytes that it moves before it tells the others.
    pub chunk: usize,
    /// Whether others of its groups follow it. The memory of one that nobody follows need not be
    /// reached in a broadcast.
    pub leads: bool,
    /// Who works.
    pub workers: Workers,
    /// Levels of groups.
    pub depth: usize,
    /// Parts of the buffers that go one after the other; in each, elements are combined in an order
    /// that begins anew.
    pub segments: usize,
}

/// What became of a rank's plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanCounts {
    /// Calls that went by plans.
    pub calls: u64,
    /// Levels of groups in the last one.
    pub levels: usize,
    /// Copies that this rank did for others, as no transport reached its memory.
    pub copies_for_others: u64,
}

/// Calls that have the same plan.
#[derive(Debug, PartialEq, Eq)]
struct Key {
    operation: Operation,
    root: usize,
    /// Of all blocks, or where each starts.
    bytes: usize,
    starts: Vec<usize>,
    element: usize,
}

impl Key {
    fn of(call: &Call<'_>) -> Key {
        Key {
            operation: call.operation,
            root: call.root,
            bytes: call.lengths.block(0).len(),
            starts: starts(call).to_vec(),
            element: call.element,
        }
    }

    fn is_of(&self, call: &Call<'_>) -> bool {
        let one = (self.operation, self.root, self.bytes, self.element);
        let bytes = call.lengths.block(0).len();
        one == (call.operation, call.root, bytes, call.element) && self.starts == starts(call)
    }
}

fn starts<'a>(call: &Call<'a>) -> &'a [usize] {
    match call.lengths {
        Lengths::Same(_) => &[],
        Lengths::Starts(starts) => starts,
    }
}

/// Plans that are kept.
const KEPT: usize = 16;

/// Bytes that a rank moves at a time where groups are not those of the machine.
const CHUNK: usize = 64 << 10;

/// Makes the plans of one rank.
#[derive(Debug)]
pub struct Planner {
    machine: Object,
    places: Vec<usize>,
    rank: usize,
    groups: Groups,
    costs: Costs,
    /// For each operation, bytes of an element, and logarithm of bytes.
    ways: HashMap<(Operation, usize, u32), Way>,
    kept: Lru<(Key, Arc<Planned>)>,
    /// Steps of short calls, once they have been asked for.
    exchange: Option<Option<Arc<Exchange>>>,
    /// The groups of short broadcasts, once it was asked for them.
    descent_tree: Option<Option<Tree>>,
    /// Parts in short broadcasts, by roots.
    descents: HashMap<usize, Descent>,
}

impl Planner {
    /// One for a rank of those that are at these places of a machine ([`Object::all`]). All ranks
    /// have the same costs, as their plans must fit together.
    pub fn new(
        (machine, places): (Object, Vec<usize>),
        rank: usize,
        groups: Groups,
        costs: Costs,
    ) -> Planner {
        Planner {
            machine,
            places,
            rank,
            groups,
            costs,
            ways: HashMap::new(),
            kept: Lru::default(),
            exchange: None,
            descent_tree: None,
            descents: HashMap::new(),
        }
    }

    /// Chooses ways by other costs from now on, on all ranks at the same place of their program.
    pub fn set_costs(&mut self, costs: Costs) {
        if self.costs != costs {
            self.costs = costs;
            self.ways.clear();
            self.kept = Lru::default();
        }
    }

    /// What the rank does in a call.
    pub fn plan(&mut self, call: &Call<'_>) -> Arc<Planned> {
        if let Some((_, planned)) = self.kept.find(|(key, _)| key.is_of(call)) {
            return planned.clone();
        }
        let way = self.way(call);
        let plans = Plans::new(&way.tree, call, way.shape);
        let mut followed = way.tree.chain(self.rank);
        let planned = Arc::new(Planned {
            plan: plans.rank(self.rank),
            chunk: way.chunk,
            leads: followed
                .any(|group| way.tree.leader(Member::Group(group), call.root) == self.rank),
            workers: way.shape.workers,
            depth: way.tree.depth(),
            segments: plans.segments(),
        });
        if self.kept.len() >= KEPT {
            self.kept.take_oldest();
        }
        self.kept.push((Key::of(call), planned.clone()));
        planned
    }

    /// The rank's steps of short calls, if such calls go by steps: made when they are asked for the
    /// first time.
    pub fn exchange(&mut self) -> Option<Arc<Exchange>> {
        if self.exchange.is_none() {
            let tree = self.tree_of_short(choose::for_exchange);
            let made = tree.and_then(|tree| Exchange::new(&tree, self.rank));
            self.exchange = Some(made.map(Arc::new));
        }
        self.exchange.clone().flatten()
    }

    /// The rank's part in short broadcasts with this root, if they go down groups.
    pub fn descent(&mut self, root: usize) -> Option<Descent> {
        if let Some(known) = self.descents.get(&root) {
            return Some(known.clone());
        }
        // Pricing trees takes long, also where there is none: once for all roots.
        if self.descent_tree.is_none() {
            self.descent_tree = Some(self.tree_of_short(choose::for_descent));
        }
        let tree = self.descent_tree.as_ref()?.as_ref()?;
        let descent = Descent::new(tree, root, self.rank);
        self.descents.insert(root, descent.clone());
        Some(descent)
    }

    /// The groups of short calls, which `of_machine` chooses.
    fn tree_of_short(
        &self,
        of_machine: impl FnOnce(&Object, &[usize]) -> Option<Tree>,
    ) -> Option<Tree> {
        match self.groups {
            Groups::One => None,
            Groups::InOrder(most) => Some(Tree::in_rank_order(self.places.len(), most)),
            Groups::Machine => of_machine(&self.machine, &self.places),
        }
    }

    /// The way of a call: the same for all lengths with the same logarithm, and for all roots, as
    /// what is cheap does not depend on either. No earlier call has a part in it.
    fn way(&mut self, call: &Call<'_>) -> Way {
        let size = self.places.len();
        let block = call.lengths.total(size) / size;
        let block = match call.lengths {
            Lengths::Same(bytes) => bytes,
            Lengths::Starts(_) => block,
        };
        let block = block.max(1).next_power_of_two();
        // Without groups, an element is combined by the rank whose slice it is in.
        let workers = match (self.groups, call.operation) {
            (Groups::One, Operation::Reduce | Operation::ReduceScatter) => Workers::Owners,
            _ => Workers::All,
        };
        let shape = Shape {
            workers,
            segments: 1,
            ..Shape::default()
        };
        let in_order = |most, chunk| Way {
            levels: Vec::new(),
            tree: Tree::in_rank_order(size, most),
            shape,
            chunk,
        };
        match self.groups {
            Groups::One => in_order(size, usize::MAX),
            Groups::InOrder(most) => in_order(most, CHUNK),
            Groups::Machine => {
                let key = (call.operation, call.element, block.trailing_zeros());
                let known = self.ways.get(&key).cloned();
                known.unwrap_or_else(|| {
                    let alike = Call {
                        root: 0,
                        lengths: Lengths::Same(block),
                        ..*call
                    };
                    let way = choose::best(&self.machine, &self.places, &alike, self.costs);
                    let way = way.unwrap_or_else(|| in_order(size, usize::MAX));
                    self.ways.insert(key, way.clone());
                    way
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Cpus, Level, Name};

    /// Two packages of two caches with four ranks each.
    fn planner(rank: usize) -> Planner {
        let mut sets: Vec<(Name, Cpus)> = Vec::new();
        for (level, ranks) in [(Level::Package, 8), (Level::Cache, 4)] {
            for number in 0..16 / ranks {
                let cpus = (number * ranks..(number + 1) * ranks).collect();
                sets.push((Name { level, number }, cpus));
            }
        }
        let machine = Object::of_sets((0..16).collect(), sets);
        let places = (0..16).map(|rank| [2, 3, 5, 6][rank / 4]).collect();
        Planner::new((machine, places), rank, Groups::Machine, Costs::BUILT_IN)
    }

    /// What was measured changes how bytes go, but not how they are combined.
    #[test]
    fn other_costs_make_other_plans() {
        let call = |operation, element| Call {
            operation,
            root: 0,
            lengths: Lengths::Same(1 << 20),
            in_rank_order: false,
            element,
        };
        let bcast = call(Operation::Bcast, 1);
        let allreduce = call(Operation::Allreduce, 8);
        let mut planner = planner(0);
        let plans = |planner: &mut Planner| [&bcast, &allreduce].map(|call| planner.plan(call));
        let [copied, combined] = plans(&mut planner);
        // Two readers have all that the kernel gives.
        planner.set_costs(Costs {
            source: 1.5 * Costs::BUILT_IN.core,
            ..Costs::BUILT_IN
        });
        let [by_twos, still_combined] = plans(&mut planner);
        assert!(by_twos.depth > copied.depth);
        assert_eq!(still_combined, combined);
        planner.set_costs(Costs::BUILT_IN);
        assert_eq!(plans(&mut planner), [copied, combined]);
    }

    /// In which order elements are combined must not depend on what was called before.
    #[test]
    fn a_plan_does_not_depend_on_earlier_calls() {
        let call = |operation, bytes, element| Call {
            operation,
            root: 3,
            lengths: Lengths::Same(bytes),
            in_rank_order: false,
            element,
        };
        let all = [
            Operation::Reduce,
            Operation::Allreduce,
            Operation::ReduceScatter,
        ];
        let calls = all.into_iter().flat_map(|operation| {
            let elements = [1, 8, 16, 120, 4800].into_iter();
            elements.flat_map(move |element| {
                [2400, 4800, 96_000, 1_920_000].map(|bytes| call(operation, bytes, element))
            })
        });
        let calls: Vec<Call<'_>> = calls
            .filter(|call| call.lengths.block(0).len() % call.element == 0)
            .collect();
        for rank in [0, 5] {
            let mut forwards = planner(rank);
            let plans: Vec<_> = calls.iter().map(|call| forwards.plan(call)).collect();
            let mut backwards = planner(rank);
            for (call, plan) in calls.iter().zip(&plans).rev() {
                assert_eq!(backwards.plan(call), *plan, "{call:?}");
            }
        }
    }
}
