// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lists as long as a layout, a message or a peer says: without room for them there is an error, and the
//! program goes on.

use std::collections::VecDeque;

use crate::error::{Error, Result};

fn none<T>(entries: usize) -> Error {
    Error::NoRoom {
        bytes: (entries as u64).saturating_mul(size_of::<T>() as u64),
    }
}

/// An empty list with room for `entries`, or for as many as there are.
pub(crate) fn list<T>(entries: u64) -> Result<Vec<T>> {
    let entries = usize::try_from(entries).unwrap_or(usize::MAX);
    let mut list = Vec::new();
    list.try_reserve_exact(entries)
        .map_err(|_| none::<T>(entries))?;
    Ok(list)
}

/// Appends an entry.
#[inline]
pub(crate) fn push<T>(list: &mut Vec<T>, entry: T) -> Result<()> {
    if list.len() == list.capacity() {
        let more = list.len().max(16);
        list.try_reserve(more)
            .map_err(|_| none::<T>(list.len().saturating_add(more)))?;
    }
    list.push(entry);
    Ok(())
}

/// A list of what an iterator gives, with room for `most` from the beginning.
pub(crate) fn collect<T>(entries: impl Iterator<Item = Result<T>>, most: u64) -> Result<Vec<T>> {
    let mut list = list(most)?;
    for entry in entries {
        push(&mut list, entry?)?;
    }
    Ok(list)
}

/// Room for `more` entries of a queue.
pub(crate) fn reserve<T>(queue: &mut VecDeque<T>, more: usize) -> Result<()> {
    queue.try_reserve(more).map_err(|_| none::<T>(more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_an_error() {
        let bytes = 8 << 60;
        assert_eq!(list::<u64>(1 << 60), Err(Error::NoRoom { bytes }));
        assert!(list::<u64>(u64::MAX).is_err());
        let all = collect((0..40).map(Ok), 0).unwrap();
        assert!(all.iter().copied().eq(0..40));
        assert!(collect([Ok(1), Err(Error::NoRoom { bytes: 0 })].into_iter(), 2).is_err());
        let mut queue = VecDeque::from([1_u8]);
        assert!(reserve(&mut queue, usize::MAX - 1).is_err());
        assert_eq!(queue, [1]);
    }
}
