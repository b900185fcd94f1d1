// SPDX-License-Identifier: MIT OR Apache-2.0

//! The pool of memory keys. Creating one takes about as long as two messages ("Network-Assisted
//! Noncontiguous Transfers for GPU-Aware MPI Libraries", section "Amortizing the Mkey Mapping
//! Overhead"), so a first set is made with the pool, and when no more than half of all keys are
//! free an auxiliary thread adds a fixed number. The thread that sends a message never creates a
//! key: where there are none left, the message is packed.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

use crate::error::{Error, Result};

/// What a pool has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Keys made with the pool, by the thread that made it.
    pub initial: usize,
    /// Keys made by the auxiliary thread.
    pub added: usize,
    /// How often it was asked for keys.
    pub requests: usize,
    /// Keys that nobody has.
    pub free: usize,
    /// Keys that could not be made.
    pub failed: usize,
}

struct State<K> {
    free: VecDeque<K>,
    total: usize,
    /// Keys that the thread has been asked for and has not made.
    wanted: usize,
    counts: PoolCounts,
    is_closed: bool,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    /// Signalled for the thread, when keys are wanted, and by it, when it has made them.
    changed: Condvar,
}

impl<K> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Free keys, and the thread that makes more.
pub struct Pool<K> {
    shared: Arc<Shared<K>>,
    thread: Option<JoinHandle<()>>,
    step: usize,
    max: usize,
}

impl<K: Send + 'static> std::fmt::Debug for Pool<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pool").field(&self.counts()).finish()
    }
}

/// How many keys a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSize {
    /// Made with the pool.
    pub initial: usize,
    /// Added at a time.
    pub step: usize,
    /// The most.
    pub max: usize,
}

impl Default for PoolSize {
    fn default() -> PoolSize {
        PoolSize {
            initial: 64,
            step: 64,
            max: 4096,
        }
    }
}

impl<K: Send + 'static> Pool<K> {
    /// A pool of keys that `create` makes: `size.initial` of them now, the others on a thread of
    /// its own.
    ///
    /// # Errors
    ///
    /// As for `create`, if not even the first key can be made, and the error of a thread that
    /// cannot be started.
    pub fn new(
        size: PoolSize,
        mut create: impl FnMut() -> Result<K> + Send + 'static,
    ) -> Result<Pool<K>> {
        let mut free = VecDeque::with_capacity(size.initial);
        let mut failed = 0;
        for _ in 0..size.initial {
            match create() {
                Ok(key) => free.push_back(key),
                Err(error) if free.is_empty() => return Err(error),
                Err(_) => {
                    failed = 1;
                    break;
                }
            }
        }
        let initial = free.len();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                free,
                total: initial,
                wanted: 0,
                counts: PoolCounts {
                    initial,
                    failed,
                    ..PoolCounts::default()
                },
                is_closed: false,
            }),
            changed: Condvar::new(),
        });
        let its = shared.clone();
        let thread = std::thread::Builder::new()
            .name("libcopy-keys".to_owned())
            .spawn(move || refill(&its, &mut create))
            .map_err(|error| Error::Verbs {
                function: "pthread_create",
                errno: error.raw_os_error().unwrap_or(libc::EAGAIN),
            })?;
        Ok(Pool {
            shared,
            thread: Some(thread),
            step: size.step,
            max: size.max,
        })
    }

    /// Takes `count` keys, and asks the thread for more if no more than half of all are free then.
    ///
    /// # Errors
    ///
    /// [`Error::PoolExhausted`] if there are fewer; none is taken, and the thread is asked for what
    /// is missing.
    pub fn take(&self, count: usize) -> Result<Vec<K>> {
        let mut state = self.shared.lock();
        let missing = count.saturating_sub(state.free.len());
        let taken = if missing == 0 {
            Ok(state.free.drain(..count).collect())
        } else {
            Err(Error::PoolExhausted {
                free: state.free.len(),
                total: state.total,
                wanted: count,
            })
        };
        let room = self.max.saturating_sub(state.total);
        if state.wanted == 0 && state.free.len() * 2 <= state.total || missing > state.wanted {
            let more = missing.next_multiple_of(self.step.max(1)).max(self.step);
            let wanted = more.min(room);
            if wanted > state.wanted {
                state.wanted = wanted;
                state.counts.requests += 1;
                self.shared.changed.notify_all();
            }
        }
        taken
    }

    /// Gives keys back. They must be unmapped, and no peer may use them any more.
    pub fn give(&self, keys: impl IntoIterator<Item = K>) {
        self.shared.lock().free.extend(keys);
    }

    /// As many taken keys do not come back: others may be made instead of them.
    pub fn lose(&self, count: usize) {
        let mut state = self.shared.lock();
        state.total = state.total.saturating_sub(count);
    }

    /// What it has done.
    pub fn counts(&self) -> PoolCounts {
        let state = self.shared.lock();
        PoolCounts {
            free: state.free.len(),
            ..state.counts
        }
    }

    /// Waits until the thread has made what it was asked for, or could not.
    pub fn settle(&self) {
        let mut state = self.shared.lock();
        while state.wanted > 0 {
            state = self
                .shared
                .changed
                .wait(state)
                .unwrap_or_else(|e| e.into_inner());
        }
    }
}

/// The auxiliary thread.
fn refill<K>(shared: &Shared<K>, create: &mut impl FnMut() -> Result<K>) {
    let mut state = shared.lock();
    loop {
        while state.wanted == 0 && !state.is_closed {
            state = shared
                .changed
                .wait(state)
                .unwrap_or_else(|e| e.into_inner());
        }
        if state.is_closed {
            return;
        }
        // Nobody waits for the lock while a key is made.
        drop(state);
        let made = create();
        state = shared.lock();
        match made {
            Ok(key) => {
                state.free.push_back(key);
                state.total += 1;
                state.counts.added += 1;
                state.wanted = state.wanted.saturating_sub(1);
            }
            Err(_) => {
                // The next call that takes keys asks again.
                state.counts.failed += 1;
                state.wanted = 0;
            }
        }
        if state.wanted == 0 {
            shared.changed.notify_all();
        }
    }
}

impl<K> Drop for Pool<K> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_closed = true;
        state.wanted = 0;
        drop(state);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // It ends after the key that it is making; a panic of `create` has been reported by
            // then.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::{self, ThreadId};

    fn size(initial: usize, step: usize, max: usize) -> PoolSize {
        PoolSize { initial, step, max }
    }

    #[test]
    fn the_thread_starts_at_half_and_makes_every_later_key() {
        let makers = Arc::new(Mutex::new(Vec::<ThreadId>::new()));
        let seen = makers.clone();
        let pool = Pool::new(size(8, 4, 100), move || {
            seen.lock().unwrap().push(thread::current().id());
            Ok(())
        })
        .unwrap();
        for taken in 1..=3 {
            pool.take(1).unwrap();
            assert_eq!(pool.counts().requests, 0, "{taken} of 8 taken");
        }
        pool.take(1).unwrap();
        assert_eq!(pool.counts().requests, 1);
        pool.settle();
        let counts = pool.counts();
        assert_eq!((counts.initial, counts.added, counts.free), (8, 4, 8));
        let makers = makers.lock().unwrap();
        assert_eq!(makers.len(), 12);
        assert!(makers[..8].iter().all(|id| *id == thread::current().id()));
        assert!(makers[8..].iter().all(|id| *id != thread::current().id()));
    }

    #[test]
    fn an_exhausted_pool_gives_nothing_and_is_filled() {
        let pool = Pool::new(size(2, 4, 10), || Ok(())).unwrap();
        assert_eq!(
            pool.take(7),
            Err(Error::PoolExhausted {
                free: 2,
                total: 2,
                wanted: 7
            })
        );
        pool.settle();
        // Five were missing: two steps of four.
        assert_eq!(pool.counts().added, 8);
        assert_eq!(pool.take(7).map(|keys| keys.len()), Ok(7));
        pool.settle();
        // The limit is reached: no more are made, and none is waited for.
        assert!(pool.take(7).is_err());
        pool.settle();
        assert_eq!(pool.counts().added, 8);
        pool.give([(); 7]);
        assert_eq!(pool.counts().free, 10);
    }

    #[test]
    fn keys_that_are_lost_are_replaced() {
        let pool = Pool::new(size(2, 2, 2), || Ok(())).unwrap();
        pool.take(2).unwrap();
        pool.settle();
        assert_eq!(pool.counts().added, 0, "there are two already");
        pool.lose(2);
        assert!(pool.take(2).is_err());
        pool.settle();
        assert_eq!(pool.take(2).map(|keys| keys.len()), Ok(2));
    }

    #[test]
    fn keys_that_cannot_be_made_are_asked_for_again() {
        let made = AtomicUsize::new(0);
        let failure = Error::Verbs {
            function: "mlx5dv_create_mkey",
            errno: libc::ENOMEM,
        };
        let clone = failure.clone();
        let pool = Pool::new(size(2, 2, 8), move || {
            match made.fetch_add(1, Ordering::Relaxed) {
                2 => Err(clone.clone()),
                _ => Ok(()),
            }
        })
        .unwrap();
        pool.take(1).unwrap();
        pool.settle();
        assert_eq!((pool.counts().failed, pool.counts().added), (1, 0));
        pool.take(1).unwrap();
        pool.settle();
        assert_eq!((pool.counts().failed, pool.counts().added), (1, 2));
        assert_eq!(
            Pool::<()>::new(size(1, 1, 1), move || Err(failure.clone())).unwrap_err(),
            Error::Verbs {
                function: "mlx5dv_create_mkey",
                errno: libc::ENOMEM
            }
        );
    }

    #[test]
    fn no_key_is_lost_when_threads_take_and_give() {
        struct Key(Arc<AtomicUsize>);
        impl Drop for Key {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let live = Arc::new(AtomicUsize::new(0));
        let counted = live.clone();
        let pool = Pool::new(size(4, 4, 32), move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(Key(counted.clone()))
        })
        .unwrap();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        if let Ok(keys) = pool.take(3) {
                            pool.give(keys);
                        }
                    }
                });
            }
        });
        pool.settle();
        let counts = pool.counts();
        assert_eq!(counts.free, counts.initial + counts.added);
        assert_eq!(live.load(Ordering::Relaxed), counts.free);
        assert!(counts.free <= 32);
        drop(pool);
        assert_eq!(live.load(Ordering::Relaxed), 0);
    }
}
