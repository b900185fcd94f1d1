// SPDX-License-Identifier: MIT OR Apache-2.0

//! NIC memory for descriptions of datatypes and their checkpoints (section 3.2.6): allocated when a
//! receive is posted; if there is no room, types of lower priority give way first, among equals
//! those unused for longest.

/// A type that has memory on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Resident {
    id: u64,
    bytes: u64,
    priority: i32,
    /// When it was used last, in allocations.
    used: u64,
    /// Receives that are posted with it: it cannot give way.
    posted: u32,
}

/// What an allocation came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// It was there already: nothing is copied.
    Resident,
    /// It is there now; these types had to give way.
    Placed {
        /// The types that lost their memory.
        evicted: Vec<u64>,
    },
    /// There is no room: the host unpacks.
    Refused,
}

/// The memory.
#[derive(Clone, Debug)]
pub struct NicMemory {
    capacity: u64,
    residents: Vec<Resident>,
    clock: u64,
}

impl NicMemory {
    /// `capacity` bytes, all free.
    pub fn new(capacity: u64) -> NicMemory {
        NicMemory {
            capacity,
            residents: Vec::new(),
            clock: 0,
        }
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.residents.iter().map(|r| r.bytes).sum()
    }

    /// Makes room for a posted receive of type `id`, which needs `bytes`. Only types of the same or
    /// a lower priority that no receive uses give way, and none does unless that is enough.
    pub fn post(&mut self, id: u64, bytes: u64, priority: i32) -> Allocation {
        self.clock += 1;
        if let Some(known) = self.residents.iter_mut().find(|r| r.id == id) {
            known.used = self.clock;
            known.posted += 1;
            return Allocation::Resident;
        }
        let mut victims: Vec<Resident> = self
            .residents
            .iter()
            .filter(|r| r.posted == 0 && r.priority <= priority)
            .copied()
            .collect();
        victims.sort_by_key(|r| (r.priority, r.used));
        let mut free = self.capacity - self.used();
        let mut evicted = Vec::new();
        for victim in victims {
            if free >= bytes {
                break;
            }
            free += victim.bytes;
            evicted.push(victim.id);
        }
        if free < bytes {
            return Allocation::Refused;
        }
        self.residents.retain(|r| !evicted.contains(&r.id));
        self.residents.push(Resident {
            id,
            bytes,
            priority,
            used: self.clock,
            posted: 1,
        });
        Allocation::Placed { evicted }
    }

    /// A receive of type `id` has ended. The type stays until another needs its place.
    pub fn complete(&mut self, id: u64) {
        if let Some(known) = self.residents.iter_mut().find(|r| r.id == id) {
            known.posted = known.posted.saturating_sub(1);
        }
    }

    /// The type was freed.
    pub fn free(&mut self, id: u64) {
        self.residents.retain(|r| r.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(evicted: &[u64]) -> Allocation {
        Allocation::Placed {
            evicted: evicted.to_vec(),
        }
    }

    #[test]
    fn the_lowest_priority_gives_way_first_then_the_oldest() {
        let mut memory = NicMemory::new(100);
        for (id, priority) in [(1, 5), (2, 0), (3, 0)] {
            assert_eq!(memory.post(id, 30, priority), placed(&[]));
            memory.complete(id);
        }
        // 2 is used again: 3 is the older one of the lowest priority now.
        assert_eq!(memory.post(2, 30, 0), Allocation::Resident);
        memory.complete(2);
        assert_eq!(memory.post(4, 40, 0), placed(&[3]));
        assert_eq!(memory.used(), 100);
        // 4 is posted and 1 has a higher priority; 2 alone is not enough, so nothing changes.
        assert_eq!(memory.post(5, 40, 0), Allocation::Refused);
        assert_eq!(memory.used(), 100);
        assert_eq!(memory.post(5, 60, 9), placed(&[2, 1]));
        assert_eq!(
            memory.post(6, 101, 9),
            Allocation::Refused,
            "more than there is"
        );
        memory.free(5);
        assert_eq!(memory.used(), 40);
    }
}
