// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lists as long as a type, an argument, a message or a peer says: without room for them there is
//! an error, and the program goes on.

#![allow(
    clippy::missing_errors_doc,
    reason = "the only error of all of these is that there is no room"
)]

use std::collections::VecDeque;

use hashbrown::HashMap;

/// There is no room in memory for a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no room in memory for a list of {bytes} bytes")]
pub struct NoRoom {
    /// Its bytes, as far as they are known.
    pub bytes: u64,
}

/// The result of what needs room.
pub type Result<T, E = NoRoom> = std::result::Result<T, E>;

impl NoRoom {
    /// For a list of this many entries.
    pub fn of<T>(entries: usize) -> NoRoom {
        NoRoom {
            bytes: (entries as u64).saturating_mul(size_of::<T>() as u64),
        }
    }
}

/// An empty list with room for `entries`.
pub fn list<T>(entries: impl TryInto<usize>) -> Result<Vec<T>> {
    let entries = entries.try_into().unwrap_or(usize::MAX);
    let mut list = Vec::new();
    match list.try_reserve_exact(entries) {
        Ok(()) => Ok(list),
        Err(_) => Err(NoRoom::of::<T>(entries)),
    }
}

/// Appends an entry.
#[inline]
pub fn push<T>(list: &mut Vec<T>, entry: T) -> Result<()> {
    if list.len() == list.capacity() {
        reserve(list, list.len().max(4))?;
    }
    list.push(entry);
    Ok(())
}

/// Appends what an iterator gives; it says how much that is at most.
#[inline]
pub fn extend<T>(list: &mut Vec<T>, entries: impl IntoIterator<Item = T>) -> Result<()> {
    let entries = entries.into_iter();
    match entries.size_hint() {
        (_, Some(most)) => {
            reserve(list, most)?;
            list.extend(entries);
            Ok(())
        }
        (_, None) => {
            for entry in entries {
                push(list, entry)?;
            }
            Ok(())
        }
    }
}

/// A list of what an iterator gives; it says how much that is at most.
#[inline]
pub fn gather<T>(entries: impl IntoIterator<Item = T>) -> Result<Vec<T>> {
    let entries = entries.into_iter();
    let mut all = list(entries.size_hint().1.unwrap_or(0))?;
    extend(&mut all, entries)?;
    Ok(all)
}

/// A list of what an iterator gives up to its first error, with room for `most` from the beginning.
pub fn collect<T, E: From<NoRoom>>(
    entries: impl Iterator<Item = Result<T, E>>,
    most: impl TryInto<usize>,
) -> Result<Vec<T>, E> {
    let mut list = list(most)?;
    for entry in entries {
        push(&mut list, entry?)?;
    }
    Ok(list)
}

/// A list of one entry, again and again.
pub fn filled<T: Clone>(entry: T, times: usize) -> Result<Vec<T>> {
    let mut all = list(times)?;
    all.resize(times, entry);
    Ok(all)
}

/// A copy of a list.
pub fn copied<T: Copy>(entries: &[T]) -> Result<Vec<T>> {
    let mut all = list(entries.len())?;
    all.extend_from_slice(entries);
    Ok(all)
}

/// Room for `more` entries of a list.
pub fn reserve<T>(list: &mut Vec<T>, more: usize) -> Result<()> {
    list.try_reserve(more)
        .map_err(|_| NoRoom::of::<T>(list.len().saturating_add(more)))
}

/// Room for `more` entries of a map.
pub(crate) fn reserve_map<V>(map: &mut HashMap<u64, V>, more: usize) -> Result<()> {
    map.try_reserve(more)
        .map_err(|_| NoRoom::of::<(u64, V)>(map.len().saturating_add(more)))
}

/// Room for `more` entries of a queue.
pub fn reserve_queue<T>(queue: &mut VecDeque<T>, more: usize) -> Result<()> {
    queue.try_reserve(more).map_err(|_| NoRoom::of::<T>(more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_an_error() {
        let none = NoRoom { bytes: 8 << 60 };
        assert_eq!(list::<u64>(1u64 << 60), Err(none));
        assert_eq!(filled(7u64, 1 << 60), Err(none));
        assert!(list::<u64>(u64::MAX).is_err());
        assert!(extend(&mut vec![1u64], 0..1 << 60).is_err());
        let all = collect((0..40).map(Ok::<_, NoRoom>), 0).unwrap();
        assert!(all.iter().copied().eq(0..40));
        assert!(gather(0..40).unwrap().iter().eq(&all));
        assert_eq!(copied(&all), Ok(all));
        assert!(collect([Ok(1), Err(none)].into_iter(), 2).is_err());
        let mut queue = VecDeque::from([1_u8]);
        assert!(reserve_queue(&mut queue, usize::MAX - 1).is_err());
        assert_eq!(queue, [1]);
    }
}
