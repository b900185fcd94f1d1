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

    /// Whether no process has to share a processor if each is as much on any of those that it may
    /// run on. Each is a mask of these.
    pub fn has_room(all: impl IntoIterator<Item = [u64; CPU_WORDS]>) -> bool {
        const ALL: u64 = 1 << 32;
        let mut loads = vec![0u64; 64 * CPU_WORDS];
        for mask in all {
            let processors: u32 = mask.iter().map(|word| word.count_ones()).sum();
            if processors == 0 {
                return false;
            }
            let bits = loads.iter_mut().enumerate();
            for (_, load) in bits.filter(|(bit, _)| mask[bit / 64] >> (bit % 64) & 1 == 1) {
                *load += ALL / u64::from(processors);
            }
        }
        loads.into_iter().all(|load| load <= ALL)
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

    #[test]
    fn there_is_room_for_processes_of_which_none_has_to_share() {
        let has_room = |masks: &[u64]| {
            let masks = masks.iter().map(|low| {
                let mut mask = [0; CPU_WORDS];
                mask[CPU_WORDS - 1] = *low;
                mask
            });
            Oversubscription::has_room(masks)
        };
        assert!(has_room(&[0b11; 2]) && !has_room(&[0b11; 3]));
        assert!(has_room(&[0b111; 3]) && has_room(&[0b1, 0b10, 0b100, 0b11_1000]));
        assert!(!has_room(&[0b1, 0b10, 0b10]) && !has_room(&[0b1, 0]));
    }
}
