// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ranks whose plans are alike: those at the same place of like groups and like parts of the
//! machine. What one of them does takes as long as what the others do, so one of each is priced.

use super::costs::Machine;
use super::tree::Tree;

/// Two numbers as one that other pairs hardly have (Steele, Lea, Flood, "Fast splittable
/// pseudorandom number generators", OOPSLA 2014).
pub(super) fn mixed(one: u64, other: u64) -> u64 {
    let sum = one
        .rotate_left(23)
        .wrapping_add(other)
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (sum ^ sum >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// The ranks of a call in classes.
#[derive(Debug, PartialEq, Eq)]
pub struct Alike {
    /// The class of each rank.
    of: Vec<usize>,
    /// The lowest rank of each class, and how many it has.
    classes: Vec<(usize, usize)>,
}

impl Alike {
    /// Each rank in a class of its own.
    pub fn none(ranks: usize) -> Alike {
        Alike {
            of: (0..ranks).collect(),
            classes: (0..ranks).map(|rank| (rank, 1)).collect(),
        }
    }

    /// Ranks are alike if their roles are equal and what they are in is alike: caches, nodes,
    /// packages, and groups where these matter, which are alike if they have as many ranks of each
    /// class. Classes become smaller until all of this holds (colour refinement).
    pub(super) fn new(machine: &Machine, tree: Option<&Tree>, roles: &[u64]) -> Alike {
        let ranks = roles.len();
        // For each rank what it is in, in an order that is the same for ranks that are alike.
        let mut within: Vec<usize> = Vec::new();
        let mut starts = vec![0];
        let objects = machine.objects();
        for rank in 0..ranks {
            let [cache, node, package] = machine.holding(rank);
            within.extend([cache, objects + node, 2 * objects + package]);
            let groups = tree.into_iter().flat_map(|tree| tree.chain(rank));
            within.extend(groups.map(|group| 3 * objects + group));
            starts.push(within.len());
        }
        let mut colours = roles.to_vec();
        let groups = tree.map_or(0, |tree| tree.groups().len());
        let mut of_holders = vec![0u64; 3 * objects + groups];
        let mut known = 0;
        loop {
            let mut sorted = colours.clone();
            sorted.sort_unstable();
            sorted.dedup();
            if sorted.len() == known || sorted.len() == ranks {
                break;
            }
            known = sorted.len();
            of_holders.fill(0);
            for (rank, colour) in colours.iter().enumerate() {
                for holder in &within[starts[rank]..starts[rank + 1]] {
                    let all = &mut of_holders[*holder];
                    *all = all.wrapping_add(mixed(1, *colour));
                }
            }
            for (rank, colour) in colours.iter_mut().enumerate() {
                let holders = &within[starts[rank]..starts[rank + 1]];
                let holders = holders.iter().map(|holder| of_holders[*holder]);
                *colour = holders.fold(*colour, mixed);
            }
        }
        let mut order: Vec<usize> = (0..ranks).collect();
        order.sort_unstable_by_key(|rank| (colours[*rank], *rank));
        let mut of = vec![0; ranks];
        let mut classes: Vec<(usize, usize)> = Vec::new();
        let mut last = None;
        for rank in order {
            if last != Some(colours[rank]) {
                last = Some(colours[rank]);
                classes.push((rank, 0));
            }
            of[rank] = classes.len() - 1;
            if let Some((_, count)) = classes.last_mut() {
                *count += 1;
            }
        }
        Alike { of, classes }
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.of.len()
    }

    /// The number of classes.
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    /// One rank of each class: the lowest.
    pub fn representatives(&self) -> impl Iterator<Item = usize> + '_ {
        self.classes.iter().map(|(rank, _)| *rank)
    }

    /// The number of ranks of a class.
    pub fn count(&self, class: usize) -> usize {
        self.classes[class].1
    }

    /// The class of a rank.
    pub fn of(&self, rank: usize) -> usize {
        self.of[rank]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::costs::Costs;
    use crate::plan::tree::MOST_MEMBERS;
    use crate::topology::{Cpus, Level, Name, Object};

    /// Objects of the first level, each with some of the next.
    fn object(levels: &[(Level, usize)], number: usize) -> Object {
        let (level, inside) = match levels {
            [] => (Level::Core, Vec::new()),
            [(level, count), rest @ ..] => {
                let objects = (0..*count).map(|number| object(rest, number));
                (*level, objects.collect())
            }
        };
        Object {
            names: vec![Name { level, number }],
            cpus: Cpus::default(),
            inside,
        }
    }

    /// Two packages of two nodes of three caches of four cores, with this many ranks.
    fn machine(ranks: usize) -> (Machine, Tree) {
        let levels = [
            (Level::Machine, 2),
            (Level::Package, 2),
            (Level::Node, 3),
            (Level::Cache, 4),
        ];
        let machine = object(&levels, 0);
        let all = machine.all();
        let cores = all.iter().enumerate();
        let cores = cores.filter(|(_, (_, object))| object.inside.is_empty());
        let places: Vec<usize> = cores.map(|(index, _)| index).take(ranks).collect();
        let levels = [Level::Package, Level::Node, Level::Cache];
        let tree = Tree::new(&machine, &places, &levels, MOST_MEMBERS);
        (Machine::new(&machine, &places, Costs::BUILT_IN), tree)
    }

    #[test]
    fn ranks_of_an_even_machine_are_alike() {
        let (machine, tree) = machine(48);
        let alike = Alike::new(&machine, Some(&tree), &[0; 48]);
        assert_eq!(alike.classes(), 1);
        assert_eq!((alike.ranks(), alike.count(0)), (48, 48));
    }

    /// One rank differs: it; those of its cache, of its node, of its package, and the others.
    #[test]
    fn ranks_differ_by_what_they_share_with_one_that_differs() {
        let (machine, _) = machine(48);
        let mut roles = [0; 48];
        roles[13] = 1;
        let alike = Alike::new(&machine, None, &roles);
        let counts = |ranks: &[usize]| -> Vec<usize> {
            let of = ranks.iter().map(|rank| alike.count(alike.of(*rank)));
            of.collect()
        };
        assert_eq!(alike.classes(), 5);
        assert_eq!(counts(&[13, 12, 16, 0, 47]), [1, 3, 8, 12, 24]);
        let of = |rank| alike.of(rank);
        assert!(of(12) == of(15) && of(16) == of(23) && of(0) == of(11) && of(24) == of(47));
        assert_ne!(of(12), of(16));
    }

    /// The last node has one cache of three, and that one rank of four.
    #[test]
    fn ranks_of_objects_that_are_not_full_differ() {
        let (machine, tree) = machine(25);
        let alike = Alike::new(&machine, Some(&tree), &[0; 25]);
        assert_eq!((alike.classes(), alike.count(alike.of(24))), (2, 1));
        let none = Alike::none(25);
        assert_eq!((none.classes(), none.count(7), none.of(7)), (25, 1, 7));
    }
}
