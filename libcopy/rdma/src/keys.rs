// SPDX-License-Identifier: MIT OR Apache-2.0

//! The keys of a process: pool and caches together, on a card.

use std::sync::Arc;

use crate::cache::{CacheKey, EntryId, Eviction, Forget, LocalCache, RemoteCache, RemoteKeys};
use crate::card::Card;
use crate::cut::{Cuts, Windows};
use crate::error::{Error, Result, is_locked_out};
use crate::iov::{Elements, Iov};
use crate::pool::Pool;

/// Whether mapped keys may be used for the next message from or to the same addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The memory is watched, and this is its generation: the number changes when the memory is
    /// unmapped or replaced (MMU notifier of the kernel module).
    Generation(u64),
    /// Nobody knows: the keys are mapped for this message alone.
    Unwatched,
}

/// How often things were done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyCounts {
    /// Keys that were mapped.
    pub mapped: u64,
    /// Messages for which all keys were mapped already.
    pub hits: u64,
    /// Messages for which keys had to be mapped.
    pub misses: u64,
    /// Bytes of keys in clear-to-send messages.
    pub key_bytes: u64,
    /// Entries of the cache that had to go.
    pub evictions: u64,
}

/// Mapped keys and the memory they point to.
#[derive(Debug)]
pub struct KeySet<C: Card> {
    /// A key per window.
    pub keys: Vec<C::Key>,
    memory: C::Memory,
}

/// Mapped keys of a message.
#[derive(Debug)]
pub struct Mapped<C: Card> {
    /// The entry of the cache; none if they are for this message alone.
    pub entry: Option<EntryId>,
    /// A key per window.
    pub set: Arc<KeySet<C>>,
    /// Whether the peer has them.
    pub is_known: bool,
    /// Whether they are those of an earlier message.
    pub is_kept: bool,
}

impl<C: Card> Mapped<C> {
    /// The number of each key for peers.
    pub fn rkeys(&self, card: &C) -> Vec<u32> {
        self.set.keys.iter().map(|key| card.rkey(key)).collect()
    }
}

/// Pool and caches of a process, which all its connections share. Mapping goes through one of them,
/// the `card` of a call.
#[derive(Debug)]
pub struct Keys<C: Card> {
    pool: Arc<Pool<C::Key>>,
    local: LocalCache<KeySet<C>>,
    remote: RemoteCache,
    counts: KeyCounts,
    forget: Vec<Forget>,
}

impl<C: Card> Keys<C> {
    /// Nothing mapped, and keys of a pool.
    pub fn new(pool: Arc<Pool<C::Key>>) -> Keys<C> {
        Keys {
            pool,
            local: LocalCache::default(),
            remote: RemoteCache::default(),
            counts: KeyCounts::default(),
            forget: Vec::new(),
        }
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool<C::Key>> {
        &self.pool
    }

    /// What was done so far.
    pub fn counts(&self) -> KeyCounts {
        self.counts
    }

    /// Which entries a rank has to be told to forget; each is answered by [`Keys::forgotten`].
    pub fn take_forget(&mut self, rank: u32) -> Vec<EntryId> {
        let its = self.forget.iter().filter(|forget| forget.rank == rank);
        let entries = its.map(|forget| forget.entry).collect();
        self.forget.retain(|forget| forget.rank != rank);
        entries
    }

    /// Maps keys to the windows of elements, or finds those that are mapped. A receiver names the
    /// `rank` that it tells of them. [`Keys::finish`] ends their use.
    ///
    /// # Errors
    ///
    /// [`Error::PoolExhausted`] if there are too few keys and no entry of the cache can go now; a
    /// layout that the cuts are not for; what [`Card::map`] fails with. No key is lost.
    ///
    /// # Safety
    ///
    /// As for [`Card::register`] and [`Card::map`]; with a generation until that has expired, or
    /// its entry has left the cache.
    pub unsafe fn map(
        &mut self,
        card: &C,
        elements: &Elements,
        cuts: &Cuts,
        memory: Memory,
        rank: Option<u32>,
    ) -> Result<Mapped<C>> {
        let key = CacheKey::new(elements, cuts.clone(), rank.is_some());
        if let Memory::Generation(stamp) = memory {
            if let Some(found) = self.local.find(&key, stamp, rank) {
                self.counts.hits += 1;
                return Ok(Mapped {
                    entry: Some(found.entry),
                    set: found.keys,
                    is_known: found.is_known,
                    is_kept: true,
                });
            }
            if let Some(id) = self.local.stale(&key, stamp) {
                let eviction = self.local.retire(id);
                self.leave(Some(card), eviction)?;
            }
        }
        self.counts.misses += 1;
        let iovs = elements.iovs()?;
        let windows = Windows::new(&iovs, cuts, card.limits().max_iovs)?;
        let set = self.map_new(card, &iovs, &windows, rank.is_some())?;
        Ok(match memory {
            Memory::Generation(stamp) => {
                let found = self.local.insert(key, stamp, rank, set);
                Mapped {
                    entry: Some(found.entry),
                    set: found.keys,
                    is_known: false,
                    is_kept: false,
                }
            }
            Memory::Unwatched => Mapped {
                entry: None,
                set: Arc::new(set),
                is_known: false,
                is_kept: false,
            },
        })
    }

    fn map_new(
        &mut self,
        card: &C,
        iovs: &[Iov],
        windows: &Windows,
        is_target: bool,
    ) -> Result<KeySet<C>> {
        let memory = loop {
            // SAFETY: the caller of `map` keeps the promises.
            match unsafe { card.register(iovs, is_target) } {
                Ok(memory) => break memory,
                // Entries hold memory, of which no more may be locked.
                Err(error) if is_locked_out(&error) => match self.local.evict() {
                    Some(eviction) => self.leave(Some(card), eviction)?,
                    None => return Err(error),
                },
                Err(error) => return Err(error),
            }
        };
        let keys = loop {
            match self.pool.take(windows.len()) {
                Ok(keys) => break keys,
                Err(exhausted) => match self.local.evict() {
                    Some(eviction) => self.leave(Some(card), eviction)?,
                    None => return Err(exhausted),
                },
            }
        };
        for (done, (key, window)) in keys.iter().zip(windows.iter()).enumerate() {
            // SAFETY: as above.
            if let Err(error) = unsafe { card.map(key, window, &memory, is_target) } {
                let unmapped = keys.len() - done;
                // The first error is the one to tell.
                let _ = self.give_back(Some(card), keys, unmapped);
                return Err(error);
            }
            self.counts.mapped += 1;
        }
        Ok(KeySet { keys, memory })
    }

    /// Ends the use of keys by a message. Without a card, whose connection has failed, keys that
    /// would have to be unmapped are destroyed.
    ///
    /// # Errors
    ///
    /// A key that cannot be unmapped; it is destroyed.
    pub fn finish(&mut self, card: Option<&C>, mapped: Mapped<C>) -> Result<()> {
        let Mapped { entry, set, .. } = mapped;
        let Some(entry) = entry else {
            return self.recycle(card, set);
        };
        drop(set);
        match self.local.release(entry.id) {
            Some(keys) => self.recycle(card, keys),
            None => Ok(()),
        }
    }

    /// What a receiver tells a rank of mapped keys: their numbers, unless it has them.
    pub fn announce(&mut self, card: &C, mapped: &Mapped<C>) -> Option<Vec<u32>> {
        if mapped.is_known {
            return None;
        }
        self.counts.key_bytes += size_of::<u32>() as u64 * mapped.set.keys.len() as u64;
        Some(mapped.rkeys(card))
    }

    /// Keeps what a rank has told of its keys.
    pub fn learn(&mut self, rank: u32, entry: EntryId, keys: RemoteKeys) {
        self.remote.store(rank, entry, keys);
    }

    /// The keys of a rank's entry that it has told of before; none if it has told of another
    /// generation or of none.
    pub fn recall(&self, rank: u32, entry: EntryId) -> Option<&RemoteKeys> {
        self.remote.find(rank, entry)
    }

    /// A rank wants an entry of its own forgotten. What is answered with the same words: no later
    /// WRITE uses its keys.
    pub fn forget(&mut self, rank: u32, entry: EntryId) {
        self.remote.forget(rank, entry);
    }

    /// A rank has forgotten an entry of ours.
    ///
    /// # Errors
    ///
    /// A key that cannot be unmapped.
    pub fn forgotten(&mut self, card: &C, rank: u32, entry: EntryId) -> Result<()> {
        match self.local.acknowledge(rank, entry) {
            Some(keys) => self.recycle(Some(card), keys),
            None => Ok(()),
        }
    }

    /// A rank is gone: what only it kept is given back, through a card that is left or by
    /// destroying keys.
    ///
    /// # Errors
    ///
    /// A key that cannot be unmapped; it is destroyed.
    pub fn rank_gone(&mut self, card: Option<&C>, rank: u32) -> Result<()> {
        self.remote.forget_rank(rank);
        self.forget.retain(|forget| forget.rank != rank);
        let mut result = Ok(());
        for keys in self.local.forget_rank(rank) {
            result = result.and(self.recycle(card, keys));
        }
        result
    }

    /// Has the entry that has not been used for longest leave the cache. Whether there was one.
    ///
    /// # Errors
    ///
    /// A key that cannot be unmapped.
    pub fn evict(&mut self, card: &C) -> Result<bool> {
        match self.local.evict() {
            Some(eviction) => self.leave(Some(card), eviction).map(|()| true),
            None => Ok(false),
        }
    }

    /// The memory of a generation is other memory now, or nobody watches it any more: its entries
    /// leave the cache.
    ///
    /// # Errors
    ///
    /// A key that cannot be unmapped.
    pub fn expire(&mut self, card: &C, generation: u64) -> Result<()> {
        let mut result = Ok(());
        for id in self.local.of_stamp(generation) {
            let eviction = self.local.retire(id);
            result = result.and(self.leave(Some(card), eviction));
        }
        result
    }

    fn leave(&mut self, card: Option<&C>, eviction: Eviction<KeySet<C>>) -> Result<()> {
        self.counts.evictions += 1;
        self.forget.extend(eviction.forget);
        match eviction.keys {
            Some(keys) => self.recycle(card, keys),
            None => Ok(()),
        }
    }

    fn recycle(&mut self, card: Option<&C>, set: Arc<KeySet<C>>) -> Result<()> {
        let Some(KeySet { keys, memory }) = Arc::into_inner(set) else {
            return Err(Error::corrupt(u32::MAX, "users of memory keys", 1));
        };
        let result = self.give_back(card, keys, 0);
        // Not before the keys, which point to it.
        drop(memory);
        result
    }

    /// Unmaps keys, but not the last `unmapped`, and puts them back into the pool. A key that
    /// cannot be unmapped is destroyed instead.
    fn give_back(&mut self, card: Option<&C>, keys: Vec<C::Key>, unmapped: usize) -> Result<()> {
        let mapped = keys.len() - unmapped;
        let mut result = Ok(());
        for (index, key) in keys.into_iter().enumerate() {
            let freed = match card {
                _ if index >= mapped => Ok(true),
                Some(card) => card.unmap(&key).map(|()| true),
                None => Ok(false),
            };
            match freed {
                Ok(true) => self.pool.give([key]),
                Ok(false) => self.pool.lose(1),
                Err(error) => {
                    self.pool.lose(1);
                    result = result.and(Err(error));
                }
            }
        }
        result
    }
}
