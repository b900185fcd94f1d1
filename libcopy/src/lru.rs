// SPDX-License-Identifier: MIT OR Apache-2.0

//! A few things of which those that were used least recently go first.

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

    /// Takes out the thing that was used least recently if there is no room for another one: there may be `most`
    /// things, of `limit` bytes together, but for one that has more alone. `bytes` says how many each has.
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

    /// The same, to be changed.
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

#[cfg(test)]
mod tests {
    use super::*;

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
