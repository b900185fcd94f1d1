// SPDX-License-Identifier: MIT OR Apache-2.0

//! How ranks and processors go together.

use crate::topology::CPU_WORDS;

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

    /// That of the processes that share processors with one, and of these processors. Each is the
    /// mask of those that it may run on ([`crate::topology::affinity_mask`]).
    pub fn among(own: [u64; CPU_WORDS], all: impl IntoIterator<Item = [u64; CPU_WORDS]>) -> Self {
        let (mut sharers, mut union) = (0, own);
        for mask in all {
            if own.iter().zip(&mask).any(|(own, other)| own & other != 0) {
                sharers += 1;
                union
                    .iter_mut()
                    .zip(mask)
                    .for_each(|(all, word)| *all |= word);
            }
        }
        let processors: u32 = union.iter().map(|word| word.count_ones()).sum();
        Self::of(sharers, processors as usize)
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
        let among = |masks: &[u64]| {
            let mask = |low: u64| std::array::from_fn(|word| if word == 0 { low } else { 0 });
            Oversubscription::among(mask(masks[0]), masks.iter().copied().map(mask))
        };
        // Unbound, and bound to one each.
        assert_eq!(among(&[0b11; 4]), Oversubscription::Moderate);
        assert_eq!(among(&[0b11; 5]), Oversubscription::Heavy);
        assert_eq!(among(&[0b1111; 4]), Oversubscription::None);
        assert_eq!(among(&[0b1, 0b10, 0b100]), Oversubscription::None);
        assert_eq!(among(&[0b1, 0b1, 0b10, 0b10]), Oversubscription::Moderate);
    }
}
