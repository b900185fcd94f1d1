// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sets of processors, as the kernel writes them: lists ("0-3,8") and masks ("ff,00000001").

use std::fmt;

/// The highest number of a processor that is believed.
const MOST: usize = 1 << 16;

/// A set of processors.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cpus {
    /// A bit for each, the lowest first; the last word is not 0, so that equal sets are equal.
    words: Vec<u64>,
}

impl Cpus {
    /// Adds a processor; a number that no machine has is left out.
    pub fn insert(&mut self, cpu: usize) {
        if cpu >= MOST {
            return;
        }
        if self.words.len() <= cpu / 64 {
            self.words.resize(cpu / 64 + 1, 0);
        }
        self.words[cpu / 64] |= 1 << (cpu % 64);
    }

    /// Whether it has a processor.
    pub fn has(&self, cpu: usize) -> bool {
        let word = self.words.get(cpu / 64);
        word.is_some_and(|word| word >> (cpu % 64) & 1 != 0)
    }

    /// The number of its processors.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones()).sum::<u32>() as usize
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Its processors, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let words = self.words.iter().enumerate();
        words.flat_map(|(index, word)| {
            let bits = (0..64).filter(move |bit| word >> bit & 1 != 0);
            bits.map(move |bit| index * 64 + bit)
        })
    }

    /// The processors that both have.
    #[must_use]
    pub fn and(&self, other: &Cpus) -> Cpus {
        self.iter().filter(|cpu| other.has(*cpu)).collect()
    }

    /// Whether it has all processors of another set.
    pub fn has_all(&self, other: &Cpus) -> bool {
        other.iter().all(|cpu| self.has(cpu))
    }

    /// Reads a list such as "0-3,8", as in files whose names end in `_list` (Linux,
    /// Documentation/admin-guide/cputopology.rst); what is none is left out.
    pub fn from_list(text: &str) -> Cpus {
        let mut cpus = Cpus::default();
        for part in first_line(text).split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
                (first..=last.min(MOST)).for_each(|cpu| cpus.insert(cpu));
            }
        }
        cpus
    }

    /// Reads a mask such as "00000001,ffffffff": words of 32 bits in hexadecimal digits, the lowest
    /// last; empty for what is none.
    pub fn from_mask(text: &str) -> Cpus {
        let mut cpus = Cpus::default();
        for (index, word) in first_line(text).rsplit(',').enumerate() {
            let Ok(word) = u32::from_str_radix(word, 16) else {
                return Cpus::default();
            };
            let bits = (0..32).filter(|bit| word >> bit & 1 != 0);
            bits.for_each(|bit| cpus.insert(index * 32 + bit));
        }
        cpus
    }
}

/// Without what is behind it: snapshots of sysfs have whole blocks of some files.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim()
}

impl FromIterator<usize> for Cpus {
    fn from_iter<I: IntoIterator<Item = usize>>(all: I) -> Cpus {
        let mut cpus = Cpus::default();
        all.into_iter().for_each(|cpu| cpus.insert(cpu));
        cpus
    }
}

/// As a list: "0-3,8".
impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = all.next() {
            let mut last = first;
            while let Some(next) = all.next_if(|next| *next == last + 1) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_masks() {
        let list = |text| Cpus::from_list(text).to_string();
        assert_eq!(list("0-3,8"), "0-3,8");
        assert_eq!(list("8,0,1,5-7\n\0\0"), "0-1,5-8");
        assert_eq!((list(""), list("x-y"), list("5-2")), Default::default());
        assert_eq!(list("1,99999999999"), "1");
        let mask = |text| Cpus::from_mask(text).to_string();
        assert_eq!(mask("f"), "0-3");
        assert_eq!(mask("00000001,80000003\n"), "0-1,31-32");
        assert_eq!((mask(""), mask("0"), mask("x")), Default::default());
        assert_eq!(Cpus::from_mask("0,0,3"), Cpus::from_list("0-1"));
    }

    #[test]
    fn what_two_sets_have() {
        let (all, some) = (Cpus::from_list("0-99"), Cpus::from_list("3,64,98"));
        assert!(all.has_all(&some) && !some.has_all(&all));
        assert!(all.has_all(&Cpus::default()));
        assert_eq!((all.len(), some.len()), (100, 3));
        assert_eq!(Cpus::from_list("60-200").and(&all).to_string(), "60-99");
        assert!(!some.has(1 << 20));
    }
}
