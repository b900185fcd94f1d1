// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory keys that are mapped already: the local cache, of a process's own buffers, and the remote
//! cache, of the keys that its peers have told it of ("Network-Assisted Noncontiguous Transfers for
//! GPU-Aware MPI Libraries", section "UMR-Based Design", mkey caches).
//!
//! An entry of the local cache has a number and a generation. The generation changes when its keys
//! are mapped again; a clear-to-send message without keys names both, and a sender that has another
//! generation says so and is sent the keys. Keys that a peer has been told of are used for nothing
//! else before it has acknowledged that it has forgotten them.

use std::collections::{BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use libcopy_datatype::Layout;

use crate::cut::Cuts;
use crate::iov::Elements;

/// A layout that is compared by its canonical form.
#[derive(Clone, Debug)]
struct LayoutKey(Layout);

impl PartialEq for LayoutKey {
    fn eq(&self, other: &LayoutKey) -> bool {
        self.0.form() == other.0.form()
    }
}

impl Eq for LayoutKey {}

impl Hash for LayoutKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.form().hash(state);
    }
}

/// Which elements are meant: layout, address, length, and whether bytes go to them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ElementsKey {
    layout: LayoutKey,
    base: u64,
    bytes: u64,
    is_target: bool,
}

impl ElementsKey {
    /// The key of elements, to which bytes go if `is_target`.
    pub fn new(elements: &Elements, is_target: bool) -> ElementsKey {
        ElementsKey {
            layout: LayoutKey(elements.layout.clone()),
            base: elements.base,
            bytes: elements.bytes,
            is_target,
        }
    }
}

/// What an entry is found by: the elements, and how they are cut (`csize` of the paper).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CacheKey {
    elements: ElementsKey,
    cuts: Cuts,
}

impl CacheKey {
    /// The key of elements, into which peers write if `is_target`.
    pub fn new(elements: &Elements, cuts: Cuts, is_target: bool) -> CacheKey {
        CacheKey {
            elements: ElementsKey::new(elements, is_target),
            cuts,
        }
    }
}

/// Names an entry of a process's local cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId {
    /// Its number.
    pub id: u32,
    /// How often the number has been used before.
    pub generation: u32,
}

/// An entry that was found.
#[derive(Clone, Debug)]
pub struct Found<K> {
    /// Its name.
    pub entry: EntryId,
    /// Its keys.
    pub keys: Arc<K>,
    /// Whether the rank that was asked for has them.
    pub is_known: bool,
}

#[derive(Debug)]
struct Entry<K> {
    key: CacheKey,
    generation: u32,
    keys: Arc<K>,
    /// What the memory was when the keys were mapped.
    stamp: u64,
    /// Ranks that have been sent the keys and have not forgotten them.
    ranks: BTreeSet<u32>,
    /// Messages that use it now.
    users: u32,
    last_use: u64,
    /// No message may use it any more; it goes when all ranks have acknowledged.
    is_leaving: bool,
}

/// What a rank has to be told to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forget {
    /// The rank.
    pub rank: u32,
    /// The entry.
    pub entry: EntryId,
}

/// The mapped keys of a process's own buffers.
#[derive(Debug)]
pub struct LocalCache<K> {
    by_key: HashMap<CacheKey, u32>,
    entries: HashMap<u32, Entry<K>>,
    /// The next generation of each number that was used.
    generations: Vec<u32>,
    /// Numbers without an entry.
    unused: Vec<u32>,
    clock: u64,
}

impl<K> Default for LocalCache<K> {
    fn default() -> LocalCache<K> {
        LocalCache {
            by_key: HashMap::new(),
            entries: HashMap::new(),
            generations: Vec::new(),
            unused: Vec::new(),
            clock: 0,
        }
    }
}

/// What becomes of an entry that is to go.
#[derive(Debug)]
pub struct Eviction<K> {
    /// Its keys, if no rank has them.
    pub keys: Option<Arc<K>>,
    /// Who has to be told first.
    pub forget: Vec<Forget>,
}

impl<K> LocalCache<K> {
    /// Entries, those that are leaving included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Finds an entry whose memory is still what it was (`stamp`), for a message;
    /// [`LocalCache::release`] ends its use. With a `rank`, that of a receiver's peer, which is
    /// taken to have the keys from then on.
    pub fn find(&mut self, key: &CacheKey, stamp: u64, rank: Option<u32>) -> Option<Found<K>> {
        let id = *self.by_key.get(key)?;
        let entry = self.entries.get_mut(&id)?;
        if entry.stamp != stamp {
            return None;
        }
        self.clock += 1;
        entry.last_use = self.clock;
        entry.users += 1;
        let is_known = rank.is_none_or(|rank| !entry.ranks.insert(rank));
        Some(Found {
            entry: EntryId {
                id,
                generation: entry.generation,
            },
            keys: entry.keys.clone(),
            is_known,
        })
    }

    /// Whether there is an entry for other memory at the same place, which has to go before
    /// [`LocalCache::insert`].
    pub fn stale(&self, key: &CacheKey, stamp: u64) -> Option<u32> {
        let id = *self.by_key.get(key)?;
        (self.entries[&id].stamp != stamp).then_some(id)
    }

    /// The entries for memory that was `stamp` when their keys were mapped, but not those that are
    /// leaving.
    pub fn of_stamp(&self, stamp: u64) -> Vec<u32> {
        let its = |entry: &Entry<K>| entry.stamp == stamp && !entry.is_leaving;
        let found = self.entries.iter().filter(|(_, entry)| its(entry));
        found.map(|(id, _)| *id).collect()
    }

    /// Adds mapped keys, for a message that uses them.
    ///
    /// # Panics
    ///
    /// If there is an entry for the same key.
    pub fn insert(&mut self, key: CacheKey, stamp: u64, rank: Option<u32>, keys: K) -> Found<K> {
        let id = self.unused.pop().unwrap_or_else(|| {
            self.generations.push(0);
            (self.generations.len() - 1) as u32
        });
        let generation = self.generations[id as usize];
        self.generations[id as usize] = generation.wrapping_add(1);
        let other = self.by_key.insert(key.clone(), id);
        assert!(other.is_none(), "two entries for one key");
        self.clock += 1;
        let keys = Arc::new(keys);
        self.entries.insert(
            id,
            Entry {
                key,
                generation,
                keys: keys.clone(),
                stamp,
                ranks: rank.into_iter().collect(),
                users: 1,
                last_use: self.clock,
                is_leaving: false,
            },
        );
        Found {
            entry: EntryId { id, generation },
            keys,
            is_known: false,
        }
    }

    /// Ends the use of an entry by a message; gives back the keys if that was what kept them.
    pub fn release(&mut self, id: u32) -> Option<Arc<K>> {
        let entry = self.entries.get_mut(&id)?;
        entry.users = entry.users.saturating_sub(1);
        self.remove_if_gone(id)
    }

    /// Marks an entry as leaving: from now on it is not found.
    pub fn retire(&mut self, id: u32) -> Eviction<K> {
        let mut forget = Vec::new();
        if let Some(entry) = self.entries.get_mut(&id) {
            if !entry.is_leaving {
                entry.is_leaving = true;
                self.by_key.remove(&entry.key);
            }
            let entry_id = EntryId {
                id,
                generation: entry.generation,
            };
            forget.extend(entry.ranks.iter().map(|rank| Forget {
                rank: *rank,
                entry: entry_id,
            }));
        }
        Eviction {
            keys: self.remove_if_gone(id),
            forget,
        }
    }

    /// Retires the entry that has not been used for longest and is in no use, preferring one that
    /// no rank has.
    pub fn evict(&mut self) -> Option<Eviction<K>> {
        let idle = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.users == 0 && !entry.is_leaving);
        let id = idle
            .min_by_key(|(_, entry)| (!entry.ranks.is_empty(), entry.last_use))
            .map(|(id, _)| *id)?;
        Some(self.retire(id))
    }

    /// A rank has forgotten an entry; gives back the keys if it was the last. Late or doubled
    /// acknowledgements of another generation change nothing.
    pub fn acknowledge(&mut self, rank: u32, entry: EntryId) -> Option<Arc<K>> {
        let its = self.entries.get_mut(&entry.id)?;
        if its.generation != entry.generation || !its.is_leaving {
            return None;
        }
        its.ranks.remove(&rank);
        self.remove_if_gone(entry.id)
    }

    /// A rank is gone: it uses no key any more. Gives back the keys that only it kept.
    pub fn forget_rank(&mut self, rank: u32) -> Vec<Arc<K>> {
        let mut ids = Vec::new();
        for (id, entry) in &mut self.entries {
            if entry.ranks.remove(&rank) {
                ids.push(*id);
            }
        }
        ids.into_iter()
            .filter_map(|id| self.remove_if_gone(id))
            .collect()
    }

    fn remove_if_gone(&mut self, id: u32) -> Option<Arc<K>> {
        let entry = self.entries.get(&id)?;
        if !entry.is_leaving || entry.users > 0 || !entry.ranks.is_empty() {
            return None;
        }
        self.unused.push(id);
        self.entries.remove(&id).map(|entry| entry.keys)
    }
}

/// Keys of a peer's buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteKeys {
    /// Where the message is cut.
    pub cuts: Cuts,
    /// The remote key of each window.
    pub rkeys: Arc<[u32]>,
}

/// The keys that peers have told of.
#[derive(Debug, Default)]
pub struct RemoteCache {
    entries: HashMap<(u32, u32), (u32, RemoteKeys)>,
}

impl RemoteCache {
    /// Keeps the keys of a rank's entry, instead of those of an earlier generation.
    pub fn store(&mut self, rank: u32, entry: EntryId, keys: RemoteKeys) {
        self.entries
            .insert((rank, entry.id), (entry.generation, keys));
    }

    /// The keys of a rank's entry, if they are those of this generation.
    pub fn find(&self, rank: u32, entry: EntryId) -> Option<&RemoteKeys> {
        let (generation, keys) = self.entries.get(&(rank, entry.id))?;
        (*generation == entry.generation).then_some(keys)
    }

    /// Forgets a rank's entry, unless it has been replaced already.
    pub fn forget(&mut self, rank: u32, entry: EntryId) {
        if self.find(rank, entry).is_some() {
            self.entries.remove(&(rank, entry.id));
        }
    }

    /// Forgets all entries of a rank.
    pub fn forget_rank(&mut self, rank: u32) {
        self.entries.retain(|(owner, _), _| *owner != rank);
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libcopy_datatype::{Datatype, Named};

    fn key(base: u64) -> CacheKey {
        let column = Datatype::named(Named::Double).vector(4, 1, 8).unwrap();
        let layout = Layout::new(&column, 1).unwrap();
        CacheKey::new(&Elements::new(&layout, base), Cuts::Every(16), true)
    }

    #[test]
    fn equal_layouts_at_one_place_share_an_entry() {
        let mut cache = LocalCache::default();
        cache.insert(key(64), 0, None, vec![1, 2]);
        let found = cache.find(&key(64), 0, None).unwrap();
        assert_eq!(*found.keys, [1, 2]);
        assert!(cache.find(&key(65), 0, None).is_none());
        let other = CacheKey {
            cuts: Cuts::Every(8),
            ..key(64)
        };
        assert!(cache.find(&other, 0, None).is_none());
        // A shorter message into the same buffer.
        let mut shorter = key(64);
        shorter.elements.bytes = 8;
        assert!(cache.find(&shorter, 0, None).is_none());
    }

    #[test]
    fn a_rank_is_sent_the_keys_once() {
        let mut cache = LocalCache::default();
        assert!(!cache.insert(key(0), 0, Some(3), vec![1]).is_known);
        assert!(cache.find(&key(0), 0, Some(3)).unwrap().is_known);
        assert!(!cache.find(&key(0), 0, Some(4)).unwrap().is_known);
        assert!(cache.find(&key(0), 0, Some(4)).unwrap().is_known);
    }

    #[test]
    fn keys_come_back_when_the_last_rank_has_acknowledged() {
        let mut cache = LocalCache::default();
        let entry = cache.insert(key(0), 0, Some(3), vec![7]).entry;
        cache.find(&key(0), 0, Some(4)).unwrap();
        assert!(cache.evict().is_none(), "it is in use");
        assert!(cache.release(entry.id).is_none());
        assert!(cache.release(entry.id).is_none());
        let eviction = cache.evict().unwrap();
        assert!(eviction.keys.is_none());
        assert_eq!(eviction.forget, [3, 4].map(|rank| Forget { rank, entry }));
        assert!(cache.find(&key(0), 0, Some(3)).is_none(), "it is leaving");
        assert!(cache.acknowledge(3, entry).is_none());
        assert!(cache.acknowledge(3, entry).is_none(), "twice the same rank");
        assert_eq!(*cache.acknowledge(4, entry).unwrap(), [7]);
        assert!(cache.is_empty());
        // The number is used again, with another generation: a late acknowledgement does not fit.
        let next = cache.insert(key(0), 0, Some(3), vec![8]).entry;
        assert_eq!(next.id, entry.id);
        assert_ne!(next.generation, entry.generation);
        cache.release(next.id);
        cache.retire(next.id);
        assert!(cache.acknowledge(3, entry).is_none());
        assert!(cache.acknowledge(3, next).is_some());
    }

    #[test]
    fn other_memory_at_the_same_place_is_not_found() {
        let mut cache = LocalCache::default();
        let entry = cache.insert(key(0), 1, None, vec![7]).entry;
        assert_eq!(cache.stale(&key(0), 1), None);
        assert!(cache.find(&key(0), 2, None).is_none());
        assert_eq!(cache.stale(&key(0), 2), Some(entry.id));
        // The message that uses it goes on; the keys come back behind it.
        assert!(cache.retire(entry.id).keys.is_none());
        cache.insert(key(0), 2, None, vec![8]);
        assert_eq!(*cache.release(entry.id).unwrap(), [7]);
    }

    #[test]
    fn entries_that_no_rank_has_go_first() {
        let mut cache = LocalCache::default();
        for (base, rank) in [(0, Some(1)), (64, None), (128, None)] {
            let id = cache.insert(key(base), 0, rank, vec![base]).entry.id;
            cache.release(id);
        }
        assert_eq!(*cache.evict().unwrap().keys.unwrap(), [64]);
        assert_eq!(*cache.evict().unwrap().keys.unwrap(), [128]);
        assert_eq!(cache.evict().unwrap().forget.len(), 1);
        assert!(cache.evict().is_none(), "it is leaving already");
        assert_eq!(cache.forget_rank(1).len(), 1);
        assert!(cache.is_empty());
    }

    #[test]
    fn a_recycled_key_is_not_taken_for_the_old_one() {
        let keys = |rkey| RemoteKeys {
            cuts: Cuts::Every(8),
            rkeys: [rkey].into(),
        };
        let entry = |generation| EntryId { id: 5, generation };
        let mut cache = RemoteCache::default();
        cache.store(1, entry(0), keys(10));
        assert_eq!(cache.find(1, entry(0)), Some(&keys(10)));
        assert_eq!(cache.find(1, entry(1)), None);
        assert_eq!(cache.find(2, entry(0)), None);
        cache.store(1, entry(1), keys(11));
        cache.forget(1, entry(0));
        assert_eq!(cache.find(1, entry(1)), Some(&keys(11)));
        cache.forget_rank(1);
        assert!(cache.is_empty());
    }
}
