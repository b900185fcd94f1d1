// SPDX-License-Identifier: MIT OR Apache-2.0

//! Locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whoever panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
