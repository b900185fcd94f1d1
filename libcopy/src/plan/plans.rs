// SPDX-License-Identifier: MIT OR Apache-2.0

//! The plans of a call.

use super::alike::{Alike, mixed};
use super::call::{Call, Operation, Shape, Workers};
use super::combine::Reduction;
use super::costs::Machine;
use super::price::{Estimate, Repeated};
use super::signal::{all_have_ended, led};
use super::stage::{Plan, Stage};
use super::tree::{MOST_MEMBERS, Tree};
use super::{blocks, scan};

/// Ranks that are all priced: in small teams it takes no time, and what each of them does differs
/// more from what others do.
const FEW_RANKS: usize = 24;

/// Stages that move nothing, in which ranks learn that all have ended those before.
struct Signals<'a> {
    tree: &'a Tree,
    /// How many stages follow.
    before: usize,
}

impl Signals<'_> {
    fn stages(&self, rank: usize) -> Vec<Stage> {
        all_have_ended(self.tree, rank, |_| 0)
    }

    fn seconds(&self, machine: &Machine) -> f64 {
        let ranks = 0..self.tree.size();
        let roles: Vec<u64> = ranks.map(|rank| leads(self.tree, rank, 0)).collect();
        let alike = Alike::new(machine, Some(self.tree), &roles);
        let plans = alike.representatives().map(|rank| Plan {
            stages: self.stages(rank),
        });
        let plans: Vec<Plan> = plans.collect();
        Estimate::new(&plans, &alike, machine, 0).seconds(1)
    }
}

/// Of how many groups a rank is the leader, where the root is and where it is the first rank.
fn leads(tree: &Tree, rank: usize, root: usize) -> u64 {
    let led = |root| led(tree, rank, root).count() as u64;
    mixed(led(root), led(0))
}

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
        reduction: impl Fn(&'a Tree, &'a Call<'a>, Shape) -> Reduction<'a>,
    ) -> Self {
        use Operation::{Allgather, Allreduce, Reduce, ReduceScatter};
        let is_reduction = matches!(call.operation, Reduce | Allreduce | ReduceScatter);
        let is_uneven = call.operation == Allgather && !tree.has_even_members();
        Plans {
            tree,
            call,
            shape,
            reduction: is_reduction.then(|| reduction(tree, call, shape)),
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
        let alike = match plans.roles() {
            Some(roles) => Alike::new(machine, plans.groups(), &roles),
            None => Alike::none(tree.size()),
        };
        let ranks = alike.representatives();
        let mut made: Vec<Plan> = ranks.map(|rank| plans.rank(rank)).collect();
        let mut behind = 0.0;
        if let Some(signals) = plans.signals().filter(|_| alike.classes() < tree.size()) {
            for (plan, rank) in made.iter_mut().zip(alike.representatives()) {
                let end = plan.stages.len() - signals.before;
                plan.stages.drain(end - signals.stages(rank).len()..end);
            }
            behind = signals.seconds(machine);
        }
        let estimate = Estimate::new(&made, &alike, machine, bytes).followed_by(behind);
        let repeated = |rank| plans.reduction.as_ref().and_then(|it| it.repeated(rank));
        let repeated = alike.representatives().filter_map(repeated);
        let (times, stages): (Vec<usize>, Vec<[usize; 2]>) = repeated.unzip();
        let times = times.first().copied().unwrap_or(0);
        estimate.repeated(Repeated { times, stages })
    }

    /// The tree whose groups are used.
    fn tree(&self) -> &Tree {
        self.other_tree.as_ref().unwrap_or(self.tree)
    }

    /// Whether shares of an allgather are next to nothing, and not worth a step.
    fn is_short(&self) -> bool {
        let size = self.tree.size();
        self.call.lengths.total(size) < 64 * size
    }

    /// Groups that decide who does what; none where only signals go by them.
    fn groups(&self) -> Option<&Tree> {
        let operation = self.call.operation;
        let is_flat = operation == Operation::Alltoall || self.shape.workers == Workers::Owners;
        (!is_flat).then(|| self.tree())
    }

    /// For each rank a number that says what it does; ranks with equal numbers do alike things if
    /// they are in like groups. None if each does something else.
    fn roles(&self) -> Option<Vec<u64>> {
        use Operation::{Allgather, Allreduce, Alltoall, Gather, Reduce, ReduceScatter, Scatter};
        let size = self.tree.size();
        let operation = self.call.operation;
        let has_turns = matches!(operation, Gather | Scatter) && self.shape.at_once < size;
        if operation.is_scan() || has_turns || size <= FEW_RANKS {
            return None;
        }
        let reduction = self.reduction.as_ref();
        let mut roles = reduction.map_or(vec![0; size], Reduction::work);
        let is_led = match operation {
            Alltoall => false,
            Allgather => self.shape.workers != Workers::All || self.is_short(),
            Reduce if self.shape.workers != Workers::Owners => true,
            Allreduce | Reduce | ReduceScatter => reduction.is_some_and(Reduction::is_led),
            _ => true,
        };
        for (rank, role) in roles.iter_mut().enumerate() {
            if is_led {
                *role = mixed(*role, leads(self.tree(), rank, self.call.root));
            } else if operation.has_root() {
                *role = mixed(*role, u64::from(rank == self.call.root));
            }
        }
        Some(roles)
    }

    /// What plans end with once bytes are where they belong.
    fn signals(&self) -> Option<Signals<'_>> {
        let is_large = self.tree.size() > MOST_MEMBERS;
        let reduction = self.reduction.as_ref();
        let all = Signals {
            tree: self.tree(),
            before: 0,
        };
        match (self.call.operation, self.shape.workers) {
            (Operation::Alltoall, _) if is_large => Some(all),
            (Operation::Allgather, Workers::All) if is_large && !self.is_short() => Some(all),
            (Operation::Reduce, Workers::Owners) => Some(all),
            (Operation::ReduceScatter, Workers::Owners) => Some(Signals { before: 1, ..all }),
            (Operation::ReduceScatter, Workers::All) => {
                let reduction = reduction.filter(|it| !it.is_led() && it.has_many_parts());
                reduction.map(|_| all)
            }
            _ => None,
        }
    }

    /// A rank's part.
    pub fn rank(&self, rank: usize) -> Plan {
        let (tree, call) = (self.tree, self.call);
        let mut plan = match call.operation {
            Operation::Barrier => blocks::barrier(tree, rank),
            Operation::Bcast => blocks::bcast(tree, call, rank),
            Operation::Allgather => {
                let tree = self.tree();
                match self.shape.workers {
                    Workers::All if !self.is_short() => blocks::allgather(tree, call, rank),
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
