// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which processors are near one and which are far from it, as plans see it.

use crate::plan::{Costs, Machine};
use crate::topology::{Level, Object};

/// A processor and the others, by how far they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Neighbours {
    /// The processor.
    pub source: usize,
    /// Those that share its last-level cache, then those of its node, of its package, and of other
    /// packages. One of each core, and in turn one of each cache.
    pub at: [Vec<usize>; 4],
}

impl Neighbours {
    /// The neighbours of the first of some processors, among these.
    pub fn new(machine: &Object, cpus: &[usize]) -> Option<Neighbours> {
        let source = *cpus.first()?;
        let all = machine.all();
        let place = |cpu: usize| {
            // The last one that has it is the smallest.
            let holding = all.iter().rposition(|(_, object)| object.cpus.has(cpu));
            holding.unwrap_or(0)
        };
        let core = |cpu: usize| {
            let is_core = |object: &Object| object.names.iter().any(|it| it.level == Level::Core);
            let found = all
                .iter()
                .position(|(_, it)| is_core(it) && it.cpus.has(cpu));
            found.map_or((1, cpu), |index| (0, index))
        };
        let places: Vec<usize> = cpus.iter().map(|cpu| place(*cpu)).collect();
        let ranks = Machine::new(machine, &places, Costs::BUILT_IN);
        // Two threads of a core share what it can: one of each is enough.
        let mut cores = vec![core(source)];
        let mut at: [Vec<(usize, usize)>; 4] = Default::default();
        for (rank, cpu) in cpus.iter().enumerate().skip(1) {
            let own = core(*cpu);
            if !cores.contains(&own) {
                cores.push(own);
                at[ranks.distance(0, rank)].push((ranks.cache(rank), *cpu));
            }
        }
        if at.iter().all(Vec::is_empty) {
            // There is nobody else than the other threads of this core.
            for (rank, cpu) in cpus.iter().enumerate().skip(1) {
                at[ranks.distance(0, rank)].push((ranks.cache(rank), *cpu));
            }
        }
        let at = at.map(in_turn);
        Some(Neighbours { source, at })
    }
}

/// The first processor of each cache, then the second of each, and so on.
fn in_turn(all: Vec<(usize, usize)>) -> Vec<usize> {
    let mut numbered: Vec<(usize, usize, usize)> = Vec::with_capacity(all.len());
    for (cache, cpu) in all {
        let before = numbered.iter().filter(|(_, its, _)| *its == cache);
        numbered.push((before.count(), cache, cpu));
    }
    numbered.sort_unstable();
    numbered.into_iter().map(|(.., cpu)| cpu).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Cpus, Name};

    /// Two packages of two nodes, each with two caches of two cores, of two threads if asked for.
    fn machine(threads: usize) -> Object {
        let all = 16 * threads;
        let mut sets: Vec<(Name, Cpus)> = Vec::new();
        let levels = [
            (Level::Package, 8),
            (Level::Node, 4),
            (Level::Cache, 2),
            (Level::Core, 1),
        ];
        for (level, cores) in levels {
            for number in 0..16 / cores {
                let cores = number * cores..(number + 1) * cores;
                // The second threads are numbered behind all first ones.
                let cpus = cores.flat_map(|core| (0..threads).map(move |it| core + 16 * it));
                sets.push((Name { level, number }, cpus.collect()));
            }
        }
        Object::of_sets((0..all).collect(), sets)
    }

    #[test]
    fn near_and_far_are_what_plans_say() {
        let every: Vec<usize> = (0..16).collect();
        let found = Neighbours::new(&machine(1), &every).unwrap();
        assert_eq!(found.source, 0);
        assert_eq!(found.at[0], [1]);
        assert_eq!(found.at[1], [2, 3]);
        // One of each cache, then the others.
        assert_eq!(found.at[2], [4, 6, 5, 7]);
        assert_eq!(found.at[3], [8, 10, 12, 14, 9, 11, 13, 15]);
        let found = Neighbours::new(&machine(1), &[9, 2, 8]).unwrap();
        assert_eq!(found.at, [vec![8], vec![], vec![], vec![2]]);
        assert_eq!(Neighbours::new(&machine(1), &[]), None);
    }

    #[test]
    fn a_core_counts_once() {
        let every: Vec<usize> = (0..32).collect();
        let found = Neighbours::new(&machine(2), &every).unwrap();
        assert_eq!((&found.at[0][..], found.at[3].len()), (&[1][..], 8));
        // Unless there are no others.
        let found = Neighbours::new(&machine(2), &[3, 19]).unwrap();
        assert_eq!(found.at, [vec![19], vec![], vec![], vec![]]);
    }

    #[test]
    fn without_caches_the_node_is_one() {
        let cpus = (0..4).collect();
        let found = Neighbours::new(&Object::of_sets(cpus, Vec::new()), &[0, 1, 3]).unwrap();
        assert_eq!(found.at[0], [1, 3]);
    }
}
