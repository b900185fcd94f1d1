// SPDX-License-Identifier: MIT OR Apache-2.0

//! The events of a simulation, in order of time, and of their creation where times are equal: the
//! order never depends on anything else.

use super::parameters::Ps;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events of type `E` that have yet to happen.
#[derive(Debug)]
pub struct Events<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    created: u64,
}

#[derive(Debug)]
struct Entry<E> {
    key: (Ps, u64),
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Events {
            heap: BinaryHeap::new(),
            created: 0,
        }
    }
}

impl<E> Events<E> {
    /// Lets `event` happen at `time`.
    pub fn at(&mut self, time: Ps, event: E) {
        let key = (time, self.created);
        self.created += 1;
        self.heap.push(Reverse(Entry { key, event }));
    }

    /// The next event and its time.
    pub fn pop(&mut self) -> Option<(Ps, E)> {
        let Reverse(entry) = self.heap.pop()?;
        Some((entry.key.0, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_happen_in_the_order_of_their_creation() {
        let mut events = Events::default();
        for (time, event) in [(5, 'c'), (3, 'a'), (5, 'd'), (3, 'b')] {
            events.at(time, event);
        }
        let order: Vec<(Ps, char)> = std::iter::from_fn(|| events.pop()).collect();
        assert_eq!(order, [(3, 'a'), (3, 'b'), (5, 'c'), (5, 'd')]);
    }
}
