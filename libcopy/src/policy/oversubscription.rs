// SPDX-License-Identifier: MIT OR Apache-2.0

//! How ranks and processors go together.

/// How ranks and processors go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Crowd {
    /// Every rank has a processor.
    Spacious,
    /// Ranks outnumber processors, by up to two to one.
    Crowded,
    /// There are more than twice as many ranks as processors.
    Packed,
}

impl Crowd {
    /// All of them, the roomiest first.
    pub const ALL: [Crowd; 3] = [Crowd::Spacious, Crowd::Crowded, Crowd::Packed];

    /// So many ranks on so many processors.
    pub fn of(ranks: usize, processors: usize) -> Self {
        match ranks {
            n if n <= processors => Crowd::Spacious,
            n if n <= processors.saturating_mul(2) => Crowd::Crowded,
            _ => Crowd::Packed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_compared_with_processors() {
        assert_eq!(Crowd::of(2, 2), Crowd::Spacious);
        assert_eq!(Crowd::of(4, 2), Crowd::Crowded);
        assert_eq!(Crowd::of(5, 2), Crowd::Packed);
    }
}
