// SPDX-License-Identifier: MIT OR Apache-2.0

//! Mutexes whose holder may have panicked: what they hold stays usable.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whether or not another holder has panicked.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
