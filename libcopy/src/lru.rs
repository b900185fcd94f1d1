// SPDX-License-Identifier: MIT OR Apache-2.0

//! Things of which those that were used least recently go first.

use std::hash::Hash;

use hashbrown::HashMap;

/// Least recently used first. Few enough to be looked through one by one.
#[derive(Debug)]
pub(crate) struct Lru<T>(Vec<T>);

impl<T> Default for Lru<T> {
    fn default() -> Self {
        Lru(Vec::new())
    }
}

impl<T> Lru<T> {
    /// The thing that is wanted, which is the most recently used one from now on.
    pub(crate) fn find(&mut self, is_wanted: impl Fn(&T) -> bool) -> Option<&mut T> {
        let index = self.0.iter().position(is_wanted)?;
        self.0[index..].rotate_left(1);
        self.0.last_mut()
    }

    /// Takes the thing that is wanted out.
    pub(crate) fn take(&mut self, is_wanted: impl Fn(&T) -> bool) -> Option<T> {
        let index = self.0.iter().position(is_wanted)?;
        Some(self.0.remove(index))
    }

    /// Takes out the thing that was used least recently.
    pub(crate) fn take_oldest(&mut self) -> Option<T> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    /// Takes out the thing that was used least recently if there is no room for another one: there
    /// may be `most` things, of `limit` bytes together, but for one that has more alone. `bytes`
    /// says how many each has.
    pub(crate) fn take_surplus(
        &mut self,
        (most, limit): (usize, usize),
        coming: usize,
        bytes: impl Fn(&T) -> usize,
    ) -> Option<T> {
        let sum = || self.0.iter().map(bytes).sum::<usize>();
        let is_full = self.0.len() >= most || sum().saturating_add(coming) > limit;
        if is_full { self.take_oldest() } else { None }
    }

    /// Adds a thing that is used now.
    pub(crate) fn push(&mut self, thing: T) -> &mut T {
        self.0.push(thing);
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// The most recently used thing.
    pub(crate) fn newest(&self) -> Option<&T> {
        self.0.last()
    }

    /// The most recently used thing, to be changed.
    pub(crate) fn newest_mut(&mut self) -> Option<&mut T> {
        self.0.last_mut()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    /// All of them, to be changed.
    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.0.iter_mut()
    }

    /// Drops those that are not wanted.
    pub(crate) fn retain(&mut self, is_wanted: impl FnMut(&T) -> bool) {
        self.0.retain(is_wanted);
    }

    /// Takes all of them out.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.0.drain(..)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Things by key: when one comes for which there is no room, those that were used least recently
/// go.
#[derive(Clone, Debug)]
pub struct LruMap<K, V> {
    known: HashMap<K, Held<V>>,
    clock: u64,
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Held<V> {
    value: V,
    bytes: usize,
    used: u64,
}

impl<K, V> Default for LruMap<K, V> {
    fn default() -> Self {
        LruMap {
            known: HashMap::new(),
            clock: 0,
            bytes: 0,
        }
    }
}

impl<K: Copy + Eq + Hash, V> LruMap<K, V> {
    /// A thing, which is used now.
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        self.clock += 1;
        let held = self.known.get_mut(key)?;
        held.used = self.clock;
        Some(&mut held.value)
    }

    /// Adds a thing of `bytes` bytes, or replaces it. There may be `most` things, of `limit` bytes
    /// together, but for one that has more alone.
    pub fn insert(&mut self, key: K, value: V, bytes: usize, (most, limit): (usize, usize)) {
        self.remove(&key);
        self.make_room(bytes, (most, limit));
        self.clock += 1;
        self.bytes += bytes;
        let used = self.clock;
        self.known.insert(key, Held { value, bytes, used });
    }

    /// A thing, made if there is none, of which there may be `most`.
    pub fn get_or_insert(&mut self, key: K, most: usize, make: impl FnOnce() -> V) -> &mut V {
        if self.len() >= most && !self.known.contains_key(&key) {
            self.make_room(0, (most, usize::MAX));
        }
        self.clock += 1;
        let used = self.clock;
        let new = || Held {
            value: make(),
            bytes: 0,
            used,
        };
        let held = self.known.entry(key).or_insert_with(new);
        held.used = used;
        &mut held.value
    }

    fn make_room(&mut self, bytes: usize, (most, limit): (usize, usize)) {
        while self.len() >= most || self.bytes.saturating_add(bytes) > limit {
            let oldest = self.known.iter().min_by_key(|(_, held)| held.used);
            let Some(oldest) = oldest.map(|(key, _)| *key) else {
                break;
            };
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &K) {
        if let Some(held) = self.known.remove(key) {
            self.bytes -= held.bytes;
        }
    }

    /// Drops those whose keys are not wanted.
    pub fn retain(&mut self, is_wanted: impl Fn(&K) -> bool) {
        let bytes = &mut self.bytes;
        self.known.retain(|key, held| {
            let stays = is_wanted(key);
            *bytes -= if stays { 0 } else { held.bytes };
            stays
        });
    }

    /// All of them, to be changed.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.known.values_mut().map(|held| &mut held.value)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_least_recently_makes_room() {
        let mut map = LruMap::default();
        for (key, limits) in [(1, (3, 10)), (2, (3, 10)), (3, (3, 10))] {
            map.insert(key, 10 * key, 3, limits);
        }
        assert_eq!(map.get(&1).copied(), Some(10));
        map.insert(4, 40, 1, (3, 10));
        assert_eq!((map.get(&2).copied(), map.len(), map.bytes()), (None, 3, 7));
        // Two have to go for one with many bytes, and all for one with more than there may be.
        map.insert(5, 50, 8, (3, 10));
        assert_eq!(
            (map.get(&4).copied(), map.get(&1).copied(), map.len()),
            (Some(40), None, 2)
        );
        map.insert(6, 60, 11, (3, 10));
        assert_eq!((map.len(), map.bytes()), (1, 11));
        // Replaced, it makes room for itself.
        map.insert(6, 61, 2, (1, 10));
        assert_eq!((map.get(&6).copied(), map.bytes()), (Some(61), 2));
        assert_eq!(*map.get_or_insert(6, 2, || 0), 61);
        *map.get_or_insert(7, 2, || 0) += 70;
        map.get(&6);
        assert_eq!(*map.get_or_insert(8, 2, || 80), 80);
        assert_eq!(
            (map.get(&7).copied(), map.get(&6).copied()),
            (None, Some(61))
        );
        map.values_mut().for_each(|value| *value += 1);
        map.retain(|key| *key == 8);
        assert_eq!(
            (map.get(&8).copied(), map.len(), map.bytes()),
            (Some(81), 1, 0)
        );
        map.retain(|_| false);
        assert!(map.is_empty());
    }

    #[test]
    fn what_was_used_least_recently_goes_first() {
        let mut lru = Lru::default();
        for number in 0..4 {
            lru.push(number);
        }
        assert_eq!(lru.find(|number| *number == 1), Some(&mut 1));
        assert_eq!(lru.find(|number| *number == 9), None);
        assert_eq!((lru.newest(), lru.len()), (Some(&1), 4));
        assert_eq!((lru.take(|number| *number == 2)), Some(2));
        assert_eq!(lru.take_oldest(), Some(0));
        assert_eq!(lru.iter().collect::<Vec<_>>(), [&3, &1]);
        lru.retain(|number| *number == 1);
        assert_eq!(lru.drain().collect::<Vec<_>>(), [1]);
        assert!(lru.len() == 0 && lru.take_oldest().is_none());
        let bytes = |bytes: &usize| *bytes;
        let mut lru = Lru::default();
        assert_eq!(lru.take_surplus((2, 10), 50, bytes), None, "alone");
        lru.push(50);
        assert_eq!(lru.take_surplus((2, 10), 1, bytes), Some(50));
        lru.push(4);
        lru.push(5);
        assert_eq!(lru.take_surplus((3, 10), 1, bytes), None);
        assert_eq!(lru.take_surplus((2, 10), 1, bytes), Some(4), "too many");
    }
}
