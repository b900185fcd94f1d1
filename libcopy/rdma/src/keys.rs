// SPDX-License-Identifier: MIT OR Apache-2.0

//! The keys of a process: pool and caches together, on a card.

use std::sync::Arc;

use libcopy_datatype::Layout;

use crate::cache::{CacheKey, EntryId, Eviction, Forget, LocalCache, RemoteCache, RemoteKeys};
use crate::card::Card;
use crate::cut::{Cuts, Windows};
use crate::error::{Error, Result};
use crate::iov::{Iov, iovs};
use crate::pool::Pool;

/// Whether mapped keys may be used for the next message from or to the same addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Whoever watches the memory says which generation it is: the number changes when the memory is unmapped or
    /// replaced (MMU notifier of the kernel module).
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
}

/// Pool and caches of a process.
#[derive(Debug)]
pub struct Keys<C: Card> {
    card: Arc<C>,
    pool: Arc<Pool<C::Key>>,
    local: LocalCache<KeySet<C>>,
    remote: RemoteCache,
    counts: KeyCounts,
    forget: Vec<Forget>,
}

impl<C: Card> Keys<C> {
    /// The keys of a card.
    pub fn new(card: Arc<C>, pool: Arc<Pool<C::Key>>) -> Keys<C> {
        Keys {
            card,
            pool,
            local: LocalCache::default(),
            remote: RemoteCache::default(),
            counts: KeyCounts::default(),
            forget: Vec::new(),
        }
    }

    /// The card.
    pub fn card(&self) -> &Arc<C> {
        &self.card
    }

    /// What was done so far.
    pub fn counts(&self) -> KeyCounts {
        self.counts
    }

    /// What peers have to be told to forget; each is answered by [`Keys::forgotten`].
    pub fn take_forget(&mut self) -> Vec<Forget> {
        std::mem::take(&mut self.forget)
    }

    /// Maps keys to the windows of a layout, or finds those that are mapped. A receiver names the `rank` that it tells
    /// of them. [`Keys::finish`] ends their use.
    ///
    /// # Errors
    ///
    /// [`Error::PoolExhausted`] if there are too few keys and no entry of the cache can go now; a layout that the cuts
    /// are not for; what [`Card::map`] fails with. No key is lost.
    pub fn map(
        &mut self,
        layout: &Layout,
        base: u64,
        cuts: &Cuts,
        memory: Memory,
        rank: Option<u32>,
    ) -> Result<Mapped<C>> {
        let key = CacheKey::new(layout, base, cuts.clone(), rank.is_some());
        if let Memory::Generation(stamp) = memory {
            if let Some(found) = self.local.find(&key, stamp, rank) {
                self.counts.hits += 1;
                return Ok(Mapped {
                    entry: Some(found.entry),
                    set: found.keys,
                    is_known: found.is_known,
                });
            }
            if let Some(id) = self.local.stale(&key, stamp) {
                let eviction = self.local.retire(id);
                self.leave(eviction)?;
            }
        }
        self.counts.misses += 1;
        let iovs = iovs(layout, base)?;
        let windows = Windows::new(&iovs, cuts, self.card.limits().max_iovs)?;
        let set = self.map_new(&iovs, &windows, rank.is_some())?;
        Ok(match memory {
            Memory::Generation(stamp) => {
                let found = self.local.insert(key, stamp, rank, set);
                Mapped {
                    entry: Some(found.entry),
                    set: found.keys,
                    is_known: false,
                }
            }
            Memory::Unwatched => Mapped {
                entry: None,
                set: Arc::new(set),
                is_known: false,
            },
        })
    }

    fn map_new(&mut self, iovs: &[Iov], windows: &Windows, is_target: bool) -> Result<KeySet<C>> {
        let memory = self.card.register(iovs, is_target)?;
        let keys = loop {
            match self.pool.take(windows.len()) {
                Ok(keys) => break keys,
                Err(exhausted) => match self.local.evict() {
                    Some(eviction) => self.leave(eviction)?,
                    None => return Err(exhausted),
                },
            }
        };
        for (done, (key, window)) in keys.iter().zip(windows.iter()).enumerate() {
            if let Err(error) = self.card.map(key, window, &memory, is_target) {
                for key in &keys[..done] {
                    // The first error is the one to tell.
                    let _ = self.card.unmap(key);
                }
                self.pool.give(keys);
                return Err(error);
            }
            self.counts.mapped += 1;
        }
        Ok(KeySet { keys, memory })
    }

    /// Ends the use of keys by a message.
    ///
    /// # Errors
    ///
    /// A key that cannot be unmapped.
    pub fn finish(&mut self, mapped: Mapped<C>) -> Result<()> {
        let Mapped { entry, set, .. } = mapped;
        let Some(entry) = entry else {
            return self.recycle(set);
        };
        drop(set);
        match self.local.release(entry.id) {
            Some(keys) => self.recycle(keys),
            None => Ok(()),
        }
    }

    /// What a receiver tells a rank of mapped keys: their numbers, unless it has them.
    pub fn announce(&mut self, mapped: &Mapped<C>) -> Option<Vec<u32>> {
        if mapped.is_known {
            return None;
        }
        self.counts.key_bytes += size_of::<u32>() as u64 * mapped.set.keys.len() as u64;
        Some(
            mapped
                .set
                .keys
                .iter()
                .map(|key| self.card.rkey(key))
                .collect(),
        )
    }

    /// Keeps what a rank has told of its keys.
    pub fn learn(&mut self, rank: u32, entry: EntryId, keys: RemoteKeys) {
        self.remote.store(rank, entry, keys);
    }

    /// The keys of a rank's entry that it has told of before; none if it has told of another generation or of none.
    pub fn recall(&self, rank: u32, entry: EntryId) -> Option<&RemoteKeys> {
        self.remote.find(rank, entry)
    }

    /// A rank wants an entry of its own forgotten. What is answered with the same words: no later WRITE uses its keys.
    pub fn forget(&mut self, rank: u32, entry: EntryId) {
        self.remote.forget(rank, entry);
    }

    /// A rank has forgotten an entry of ours.
    ///
    /// # Errors
    ///
    /// A key that cannot be unmapped.
    pub fn forgotten(&mut self, rank: u32, entry: EntryId) -> Result<()> {
        match self.local.acknowledge(rank, entry) {
            Some(keys) => self.recycle(keys),
            None => Ok(()),
        }
    }

    /// A rank is gone.
    ///
    /// # Errors
    ///
    /// A key that cannot be unmapped.
    pub fn rank_gone(&mut self, rank: u32) -> Result<()> {
        self.remote.forget_rank(rank);
        self.forget.retain(|forget| forget.rank != rank);
        for keys in self.local.forget_rank(rank) {
            self.recycle(keys)?;
        }
        Ok(())
    }

    /// Has the entry that has not been used for longest leave the cache. Whether there was one.
    ///
    /// # Errors
    ///
    /// A key that cannot be unmapped.
    pub fn evict(&mut self) -> Result<bool> {
        match self.local.evict() {
            Some(eviction) => self.leave(eviction).map(|()| true),
            None => Ok(false),
        }
    }

    fn leave(&mut self, eviction: Eviction<KeySet<C>>) -> Result<()> {
        self.counts.evictions += 1;
        self.forget.extend(eviction.forget);
        match eviction.keys {
            Some(keys) => self.recycle(keys),
            None => Ok(()),
        }
    }

    /// Unmaps keys and puts them back into the pool. A key that cannot be unmapped is destroyed instead.
    fn recycle(&mut self, set: Arc<KeySet<C>>) -> Result<()> {
        let Some(KeySet { keys, memory }) = Arc::into_inner(set) else {
            return Err(Error::corrupt(u32::MAX, "users of memory keys", 1));
        };
        let mut failed = Ok(());
        for key in keys {
            match self.card.unmap(&key) {
                Ok(()) => self.pool.give([key]),
                Err(error) => failed = Err(error),
            }
        }
        // Not before the keys, which point to it.
        drop(memory);
        failed
    }
}
