// SPDX-License-Identifier: MIT OR Apache-2.0

//! How ranks and processors go together.

use std::collections::HashSet;

/// How ranks and processors go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oversubscription {
    /// Every rank has a processor.
    None,
    /// Ranks outnumber processors, by up to two to one.
    Moderate,
    /// There are more than twice as many ranks as processors.
    Heavy,
}

impl Oversubscription {
    /// All of them, in ascending order.
    pub const ALL: [Oversubscription; 3] = [
        Oversubscription::None,
        Oversubscription::Moderate,
        Oversubscription::Heavy,
    ];

    /// `ranks` ranks on `processors` processors.
    pub fn of(ranks: usize, processors: usize) -> Self {
        match ranks {
            n if n <= processors => Oversubscription::None,
            n if n <= processors.saturating_mul(2) => Oversubscription::Moderate,
            _ => Oversubscription::Heavy,
        }
    }

    /// That of processes that share processors with the first of them. Each is the list of those it
    /// may run on.
    pub fn among<'a>(processes: impl IntoIterator<Item = &'a [usize]>) -> Self {
        let mut processes = processes.into_iter();
        let Some(first) = processes.next() else {
            return Oversubscription::None;
        };
        let (mut sharers, mut all): (usize, HashSet<usize>) = (1, first.iter().copied().collect());
        for other in processes.filter(|other| other.iter().any(|cpu| first.contains(cpu))) {
            sharers += 1;
            all.extend(other);
        }
        Self::of(sharers, all.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_compared_with_processors() {
        assert_eq!(Oversubscription::of(2, 2), Oversubscription::None);
        assert_eq!(Oversubscription::of(4, 2), Oversubscription::Moderate);
        assert_eq!(Oversubscription::of(5, 2), Oversubscription::Heavy);
    }

    #[test]
    fn processes_count_that_share_processors() {
        let among = |processes: &[&[usize]]| Oversubscription::among(processes.iter().copied());
        assert_eq!(among(&[]), Oversubscription::None);
        // Unbound, and bound to one each.
        assert_eq!(among(&[&[0, 1][..]; 4]), Oversubscription::Moderate);
        assert_eq!(among(&[&[0, 1][..]; 5]), Oversubscription::Heavy);
        assert_eq!(among(&[&[0, 1, 2, 3][..]; 4]), Oversubscription::None);
        assert_eq!(among(&[&[0], &[1], &[2]]), Oversubscription::None);
        assert_eq!(among(&[&[0], &[0], &[1], &[1]]), Oversubscription::Moderate);
    }
}
