// SPDX-License-Identifier: MIT OR Apache-2.0

//! How ranks and processors go together.

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
}
