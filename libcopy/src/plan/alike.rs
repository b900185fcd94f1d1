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
