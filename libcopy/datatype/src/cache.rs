// SPDX-License-Identifier: MIT OR Apache-2.0

//! A cache of layouts.
//!
//! A layout is found by the request that needs it, the identity of a type and a count (as in
//! "FALCON-X", listing 1: what is hashed is the request, not the list of pieces). Requests whose
//! layouts turn out equal share one form, found by a hash of its content and compared in full. Ids
//! of types are never reused, so a type that was freed and made again is another request.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap, HashTable};

use super::canonical::Form;
use super::construct::Datatype;
use super::layout::Layout;
use crate::Result;

/// What is asked for: the type's id and the count.
type Request = (u64, u64);

/// What a cache has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Requests that were found.
    pub hits: u64,
    /// Requests that were not.
    pub misses: u64,
    /// Among the misses, those whose form existed already.
    pub shared: u64,
    /// Layouts that had to make room.
    pub evictions: u64,
}

struct Entry {
    layout: Layout,
    /// When it was last used, in requests.
    used: u64,
}

struct Content {
    form: Arc<Form>,
    hash: u64,
    /// Entries that have it.
    users: usize,
}

/// Layouts by request, the least recently used ones given up beyond a limit of bytes.
///
/// ```
/// use libcopy_datatype::{Datatype, LayoutCache, Named};
/// let mut cache = LayoutCache::new(1 << 20);
/// let column = Datatype::named(Named::Double).vector(100, 1, 7)?;
/// let first = cache.get(&column, 3)?;
/// let again = cache.get(&column, 3)?;
/// assert_eq!(first.form(), again.form());
/// assert_eq!((cache.stats().hits, cache.stats().misses), (1, 1));
/// # Ok::<(), libcopy_datatype::Error>(())
/// ```
pub struct LayoutCache {
    limit: usize,
    bytes: usize,
    clock: u64,
    entries: HashMap<Request, Entry>,
    contents: HashTable<Content>,
    hasher: DefaultHashBuilder,
    stats: CacheStats,
}

impl std::fmt::Debug for LayoutCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LayoutCache")
            .field("limit", &self.limit)
            .field("bytes", &self.bytes)
            .field("entries", &self.entries.len())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl LayoutCache {
    /// An empty cache whose forms take at most `limit` bytes. The layout that was asked for last
    /// is kept even if it alone is larger.
    pub fn new(limit: usize) -> LayoutCache {
        LayoutCache {
            limit,
            bytes: 0,
            clock: 0,
            entries: HashMap::new(),
            contents: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            stats: CacheStats::default(),
        }
    }

    /// The layout of `count` elements of a type.
    ///
    /// # Errors
    ///
    /// As for [`Layout::new`].
    pub fn get(&mut self, datatype: &Datatype, count: u64) -> Result<Layout> {
        self.clock += 1;
        let request = (datatype.id(), count);
        if let Some(entry) = self.entries.get_mut(&request) {
            entry.used = self.clock;
            self.stats.hits += 1;
            return Ok(entry.layout.clone());
        }
        self.stats.misses += 1;
        let layout = Layout::new(datatype, count)?;
        let layout = self.share(layout);
        let entry = Entry {
            layout: layout.clone(),
            used: self.clock,
        };
        self.entries.insert(request, entry);
        while self.bytes > self.limit && self.entries.len() > 1 {
            self.evict();
        }
        Ok(layout)
    }

    /// Replaces the layout's form by an equal one that is here already, if there is one.
    fn share(&mut self, layout: Layout) -> Layout {
        let hash = self.hash_of(layout.form());
        let equal = |content: &Content| *content.form == *layout.form();
        if let Some(content) = self.contents.find_mut(hash, equal) {
            content.users += 1;
            self.stats.shared += 1;
            return layout.with_form(content.form.clone());
        }
        self.bytes += layout.form().memory();
        let content = Content {
            form: layout.shared_form(),
            hash,
            users: 1,
        };
        self.contents
            .insert_unique(hash, content, |content| content.hash);
        layout
    }

    fn hash_of(&self, form: &Form) -> u64 {
        struct Content<'a>(&'a Form);
        impl Hash for Content<'_> {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }
        self.hasher.hash_one(Content(form))
    }

    fn evict(&mut self) {
        let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
        let Some((&request, _)) = oldest else {
            return;
        };
        let Some(entry) = self.entries.remove(&request) else {
            return;
        };
        self.stats.evictions += 1;
        let form = entry.layout.form();
        let hash = self.hash_of(form);
        if let Ok(mut found) = self
            .contents
            .find_entry(hash, |content| *content.form == *form)
        {
            found.get_mut().users -= 1;
            if found.get().users == 0 {
                self.bytes -= found.get().form.memory();
                found.remove();
            }
        }
    }

    /// Forgets everything but the counters.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.contents.clear();
        self.bytes = 0;
    }

    /// How many requests are kept.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes that the forms take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Hits, misses and what became of them.
    pub fn stats(&self) -> CacheStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::super::Named;
    use super::*;

    #[test]
    fn equal_layouts_share_a_form_and_old_ones_make_room() {
        let double = Datatype::named(Named::Double);
        let column = || double.vector(10, 1, 3).unwrap();
        let mut cache = LayoutCache::new(1 << 20);
        let first = cache.get(&column(), 1).unwrap();
        let bytes = cache.bytes();
        // The first type is gone, its id is not used again: a miss, but the same form.
        let second = cache.get(&column(), 1).unwrap();
        assert!(std::ptr::eq(first.form(), second.form()));
        assert_eq!(cache.bytes(), bytes);
        let expected = CacheStats {
            hits: 0,
            misses: 2,
            shared: 1,
            evictions: 0,
        };
        assert_eq!(cache.stats(), expected);

        let mut small = LayoutCache::new(bytes * 2);
        let types: Vec<_> = (4..8)
            .map(|stride| double.vector(10, 1, stride).unwrap())
            .collect();
        for datatype in &types {
            small.get(datatype, 1).unwrap();
        }
        assert!(small.bytes() <= 2 * bytes);
        assert_eq!((small.len(), small.stats().evictions), (2, 2));
        small.get(&types[3], 1).unwrap();
        small.get(&types[0], 1).unwrap();
        assert_eq!((small.stats().hits, small.stats().misses), (1, 5));
        small.clear();
        assert!(small.is_empty() && small.bytes() == 0);
    }

    #[test]
    fn a_layout_larger_than_the_limit_is_still_kept() {
        let mut cache = LayoutCache::new(0);
        let column = Datatype::named(Named::Int).vector(10, 1, 3).unwrap();
        cache.get(&column, 1).unwrap();
        cache.get(&column, 1).unwrap();
        assert_eq!(cache.stats().hits, 1);
        cache.get(&column, 2).unwrap();
        assert_eq!((cache.len(), cache.stats().evictions), (1, 1));
    }
}
