// SPDX-License-Identifier: MIT OR Apache-2.0

//! Matching entries: a priority list, and an overflow list for messages that nobody expected
//! (section 2.1.1; Portals 4).

/// An entry. Messages match if their bits are those of the entry, except the ignored ones.
#[derive(Debug)]
pub struct Entry<C> {
    /// What a message has to have.
    pub bits: u64,
    /// Bits that do not count.
    pub ignore: u64,
    /// Whether it stays after a match.
    pub is_persistent: bool,
    /// How packets are processed; none: they are written to the host as they are.
    pub context: Option<C>,
}

impl<C> Entry<C> {
    fn matches(&self, bits: u64) -> bool {
        (self.bits ^ bits) & !self.ignore == 0
    }
}

/// Which list a message was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// A receive was posted.
    Priority,
    /// None was: the host unpacks.
    Overflow,
}

/// Both lists. Entries are referred to by numbers, which stay.
#[derive(Debug)]
pub struct MatchLists<C> {
    entries: Vec<Entry<C>>,
    priority: Vec<usize>,
    overflow: Vec<usize>,
}

impl<C> Default for MatchLists<C> {
    fn default() -> Self {
        MatchLists {
            entries: Vec::new(),
            priority: Vec::new(),
            overflow: Vec::new(),
        }
    }
}

impl<C> MatchLists<C> {
    /// Appends an entry.
    pub fn append(&mut self, list: List, entry: Entry<C>) {
        let number = self.entries.len();
        self.entries.push(entry);
        match list {
            List::Priority => self.priority.push(number),
            List::Overflow => self.overflow.push(number),
        }
    }

    /// Finds the first entry for `bits`, in the priority list first, and unlinks it unless it is
    /// persistent.
    pub fn find(&mut self, bits: u64) -> Option<(List, usize)> {
        for (list, numbers) in [
            (List::Priority, &mut self.priority),
            (List::Overflow, &mut self.overflow),
        ] {
            let found = numbers.iter().position(|n| self.entries[*n].matches(bits));
            if let Some(at) = found {
                let number = numbers[at];
                if !self.entries[number].is_persistent {
                    numbers.remove(at);
                }
                return Some((list, number));
            }
        }
        None
    }

    /// The context of an entry, which outlives its place in a list until the message has ended.
    pub fn context(&mut self, number: usize) -> Option<&mut C> {
        self.entries[number].context.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(bits: u64, ignore: u64, is_persistent: bool) -> Entry<u32> {
        Entry {
            bits,
            ignore,
            is_persistent,
            context: Some(bits as u32),
        }
    }

    #[test]
    fn posted_entries_come_first_and_only_once() {
        let mut lists = MatchLists::default();
        lists.append(List::Overflow, entry(0, u64::MAX, true));
        lists.append(List::Priority, entry(7, 0, false));
        lists.append(List::Priority, entry(0x10, 0xf, false));
        assert_eq!(lists.find(7), Some((List::Priority, 1)));
        assert_eq!(lists.find(7), Some((List::Overflow, 0)), "unlinked");
        assert_eq!(lists.find(0x13), Some((List::Priority, 2)), "ignored bits");
        assert_eq!(lists.find(9), Some((List::Overflow, 0)), "persistent");
        assert_eq!(
            lists.context(1),
            Some(&mut 7),
            "still there for its message"
        );
    }
}
