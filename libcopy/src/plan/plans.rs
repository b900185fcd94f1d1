// SPDX-License-Identifier: MIT OR Apache-2.0

//! The plans of a call.

use super::alike::{Alike, mixed};
use super::call::{Call, Operation, Shape, Workers};
use super::combine::Reduction;
use super::costs::Machine;
use super::price::{Estimate, Repeated};
use super::signal::led;
use super::stage::Plan;
use super::tree::{MOST_MEMBERS, Tree};
use super::{blocks, scan};

/// The plans of a call. What they have in common is made once.
pub struct Plans<'a> {
    tree: &'a Tree,
    call: &'a Call<'a>,
    shape: Shape,
    reduction: Option<Reduction<'a>>,
    /// A tree that suits the operation better.
    other_tree: Option<Tree>,
}

impl<'a> Plans<'a> {
    /// The plans of a call that goes in this shape. The tree of a reduction in the order of ranks
    /// must be in that order ([`Tree::is_in_rank_order`]).
    pub fn new(tree: &'a Tree, call: &'a Call<'a>, shape: Shape) -> Self {
        Self::with(tree, call, shape, Reduction::new)
    }

    fn with(
        tree: &'a Tree,
        call: &'a Call<'a>,
        shape: Shape,
        reduction: impl Fn(&'a Tree, &'a Call<'a>, Workers) -> Reduction<'a>,
    ) -> Self {
        use Operation::{Allgather, Allreduce, Reduce, ReduceScatter};
        let is_reduction = matches!(call.operation, Reduce | Allreduce | ReduceScatter);
        let is_uneven = call.operation == Allgather && !tree.has_even_members();
        Plans {
            tree,
            call,
            shape,
            reduction: is_reduction.then(|| reduction(tree, call, shape.workers)),
            other_tree: is_uneven.then(|| Tree::in_rank_order(tree.size(), MOST_MEMBERS / 2)),
        }
    }

    /// What the plans of a call take. Of ranks that are alike the plan of one is made. `bytes` is
    /// the length of a rank's buffer.
    pub(super) fn estimate(
        tree: &'a Tree,
        call: &'a Call<'a>,
        shape: Shape,
        machine: &Machine,
        bytes: usize,
    ) -> Estimate {
        let plans = Self::with(tree, call, shape, Reduction::sketch);
        let tree = plans.other_tree.as_ref().unwrap_or(tree);
        let alike = match plans.roles() {
            Some(roles) => Alike::new(machine, tree, &roles),
            None => Alike::none(tree.size()),
        };
        let made: Vec<Plan> = alike
            .representatives()
            .map(|rank| plans.rank(rank))
            .collect();
        let estimate = Estimate::new(&made, &alike, machine, bytes);
        let repeated = |rank| plans.reduction.as_ref().and_then(|it| it.repeated(rank));
        let repeated = alike.representatives().filter_map(repeated);
        let (times, stages): (Vec<usize>, Vec<[usize; 2]>) = repeated.unzip();
        let times = times.first().copied().unwrap_or(0);
        estimate.repeated(Repeated { times, stages })
    }

    /// For each rank a number that says what it does; ranks with equal numbers do alike things if
    /// they are in like groups. None if each does something else.
    fn roles(&self) -> Option<Vec<u64>> {
        let size = self.tree.size();
        let has_turns = matches!(self.call.operation, Operation::Gather | Operation::Scatter)
            && self.shape.at_once < size;
        if self.call.operation.is_scan() || has_turns {
            return None;
        }
        let reduction = self.reduction.as_ref();
        let mut roles = reduction.map_or(vec![0; size], Reduction::work);
        if reduction.is_none_or(Reduction::has_leaders) {
            // They wait for others, too.
            let tree = self.other_tree.as_ref().unwrap_or(self.tree);
            let led = |rank, root| led(tree, rank, root).count() as u64;
            for (rank, role) in roles.iter_mut().enumerate() {
                *role = mixed(*role, mixed(led(rank, self.call.root), led(rank, 0)));
            }
        }
        Some(roles)
    }

    /// A rank's part.
    pub fn rank(&self, rank: usize) -> Plan {
        let (tree, call) = (self.tree, self.call);
        let mut plan = match call.operation {
            Operation::Barrier => blocks::barrier(tree, rank),
            Operation::Bcast => blocks::bcast(tree, call, rank),
            Operation::Allgather => {
                let tree = self.other_tree.as_ref().unwrap_or(tree);
                // Shares of next to nothing are not worth a step.
                let is_short = call.lengths.total(tree.size()) < 64 * tree.size();
                match self.shape.workers {
                    Workers::All if !is_short => blocks::allgather(tree, call, rank),
                    _ => blocks::allgather_by_leaders(tree, call, rank),
                }
            }
            Operation::Gather => blocks::gather(tree, call, rank, self.shape.at_once),
            Operation::Scatter => blocks::scatter(tree, call, rank, self.shape.at_once),
            Operation::Alltoall => blocks::alltoall(tree, call, rank),
            Operation::Scan | Operation::Exscan => {
                scan::scan(tree.size(), call, rank, self.shape.prefix)
            }
            Operation::Reduce | Operation::Allreduce | Operation::ReduceScatter => {
                let plan = self.reduction.as_ref().map(|it| it.plan(rank));
                plan.unwrap_or_default()
            }
        };
        for stage in &mut plan.stages {
            stage.pieces.retain(|piece| piece.bytes > 0);
        }
        plan
    }

    /// Parts of the buffers that go one after the other: each has stages of its own, at most a
    /// dozen.
    pub fn segments(&self) -> usize {
        self.reduction.as_ref().map_or(1, Reduction::segments)
    }

    /// The parts of all ranks.
    pub fn all(&self) -> Vec<Plan> {
        (0..self.tree.size()).map(|rank| self.rank(rank)).collect()
    }
}
