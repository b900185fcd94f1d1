// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where the ranks of a team are on the machine, as rank 0 sees it: if each rank looked for itself
//! and found something else (a processor that goes offline meanwhile), their plans would not fit
//! together.

use crate::shm::segment::{RankBlock, Segment};
use crate::shm::sync::Ordering;
use crate::topology::{self, Cpus, Level, Name, Object};

/// Levels that matter for plans; each has some bits of a rank's word.
const LEVELS: [Level; 3] = [Level::Package, Level::Node, Level::Cache];
const BITS: u32 = 16;

/// Says for each rank in which package, node and cache it is: the smallest that hold all processors
/// it may run on.
pub(super) fn publish(segment: &Segment, size: usize) {
    let machine = topology::objects();
    let all = machine.all();
    for rank in 0..size {
        let block = segment.block(rank);
        let place = machine.place(&processors(block));
        let word = LEVELS.iter().enumerate().fold(0, |word, (index, level)| {
            word | number(&all, place, *level) << (BITS * index as u32)
        });
        block.place.store(word, Ordering::Relaxed);
    }
}

/// The processors that a rank may run on.
fn processors(block: &RankBlock) -> Cpus {
    let words = block.cpus.iter().enumerate();
    let words = words.map(|(index, word)| (index, word.load(Ordering::Relaxed)));
    let cpus = words.flat_map(|(index, word)| {
        let bits = (0..64).filter(move |bit| word >> bit & 1 != 0);
        bits.map(move |bit| 64 * index + bit)
    });
    cpus.collect()
}

/// The number of the object of a level that holds a place, from 1 on; 0 if none does.
fn number(all: &[(usize, &Object)], place: &Object, level: Level) -> u64 {
    let holds = |object: &Object| {
        let is_level = object.names.iter().any(|name| name.level == level);
        is_level && object.cpus.has_all(&place.cpus)
    };
    let found = all.iter().position(|(_, object)| holds(object));
    let number = found.map_or(0, |index| index as u64 + 1);
    if number < 1 << BITS { number } else { 0 }
}

/// The machine as the ranks are on it, with ranks instead of processors, and the place of each rank
/// in [`Object::all`].
pub(super) fn read(segment: &Segment, size: usize) -> (Object, Vec<usize>) {
    let words = (0..size).map(|rank| segment.block(rank).place.load(Ordering::Relaxed));
    machine(&words.collect::<Vec<u64>>())
}

/// The same from each rank's word.
fn machine(words: &[u64]) -> (Object, Vec<usize>) {
    let mut sets: Vec<(Name, Cpus)> = Vec::new();
    for (index, level) in LEVELS.into_iter().enumerate() {
        for (rank, word) in words.iter().enumerate() {
            let number = (word >> (BITS * index as u32)) as usize & ((1 << BITS) - 1);
            let name = Name { level, number };
            match sets.iter_mut().find(|(its, _)| *its == name) {
                _ if number == 0 => {}
                Some((_, ranks)) => ranks.insert(rank),
                None => sets.push((name, [rank].into_iter().collect())),
            }
        }
    }
    let machine = Object::of_sets((0..words.len()).collect(), sets);
    let all = machine.all();
    let place = |rank| {
        // The last one that has the rank is the smallest.
        let holding = all.iter().rposition(|(_, object)| object.cpus.has(rank));
        holding.unwrap_or(0)
    };
    let places = (0..words.len()).map(place).collect();
    (machine, places)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::plan::{MOST_MEMBERS, Tree};

    fn word(package: u64, node: u64, cache: u64) -> u64 {
        package | node << BITS | cache << (2 * BITS)
    }

    #[test]
    fn groups_are_those_of_the_machine() {
        // Two packages of two caches each; the last rank may run anywhere in the second package.
        let words = [
            word(1, 1, 2),
            word(1, 1, 2),
            word(1, 1, 3),
            word(1, 1, 3),
            word(4, 4, 5),
            word(4, 4, 5),
            word(4, 4, 0),
        ];
        let (machine, places) = machine(&words);
        let tree = Tree::new(&machine, &places, &LEVELS, MOST_MEMBERS);
        let groups: Vec<&[usize]> = tree.groups().iter().map(|it| &it.ranks[..]).collect();
        let expected: [&[usize]; 6] = [
            &[0, 1],
            &[2, 3],
            &[0, 1, 2, 3],
            &[4, 5],
            &[4, 5, 6],
            &[0, 1, 2, 3, 4, 5, 6],
        ];
        assert_eq!(groups, expected);
    }

    #[test]
    fn ranks_without_a_place_are_in_one_group() {
        for words in [vec![0; 5], vec![word(1, 1, 1); 5]] {
            let (machine, places) = machine(&words);
            let tree = Tree::new(&machine, &places, &LEVELS, MOST_MEMBERS);
            assert_eq!(tree.groups().len(), 1, "{words:?}");
        }
    }
}
