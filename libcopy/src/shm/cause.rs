// SPDX-License-Identifier: MIT OR Apache-2.0

//! Why a team is broken, as one word of the segment.

use super::segment::MAX_RANKS;

/// Why a team is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// The operation that failed; what all ranks have called before it can still be ended. 0 if it
    /// is not known, or may have been any: then all fail.
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    /// The rank that is to blame.
    pub(crate) rank: usize,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Died = 1,
    Left = 2,
    Mismatch = 3,
    Broken = 4,
    NotJoined = 5,
}

/// Bits of a kind and of a rank; the number has those above.
const KIND: u32 = 4;
const RANK: u32 = 12;
const _: () = assert!(MAX_RANKS <= 1 << RANK);

impl Cause {
    /// The largest number that a cause can have: nine years of calls, one in a microsecond.
    const LAST: u64 = u64::MAX >> (KIND + RANK);

    /// The number of an operation as causes have it.
    pub(crate) fn counted(number: u64) -> u64 {
        number.min(Cause::LAST)
    }

    /// Words are in the order of their numbers; none is 0 or all ones.
    pub(crate) fn to_word(self) -> u64 {
        let number = Cause::counted(self.number) << (KIND + RANK);
        number | (self.rank as u64) << KIND | self.kind as u64
    }

    /// `None` if a damaged segment has the word.
    pub(crate) fn from_word(word: u64) -> Option<Cause> {
        let kinds = [
            Kind::Died,
            Kind::Left,
            Kind::Mismatch,
            Kind::Broken,
            Kind::NotJoined,
        ];
        let kind = word & ((1 << KIND) - 1);
        Some(Cause {
            number: word >> (KIND + RANK),
            kind: kinds.into_iter().find(|it| *it as u64 == kind)?,
            rank: (word >> KIND & ((1 << RANK) - 1)) as usize,
        })
    }

    /// Whether ranks that called different operations, or one of them whose operation failed half
    /// way, have broken the team.
    pub(crate) fn is_disagreement(self) -> bool {
        matches!(self.kind, Kind::Mismatch | Kind::Broken)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_has_all_of_a_cause() {
        for number in [0, 1, 77, Cause::LAST] {
            for (kind, rank) in [(Kind::Died, 0), (Kind::NotJoined, MAX_RANKS - 1)] {
                let cause = Cause { number, kind, rank };
                assert_eq!(Cause::from_word(cause.to_word()), Some(cause));
                let next = Cause {
                    number: number + 1,
                    ..cause
                };
                let is_last = number == Cause::LAST;
                assert!(
                    is_last && next.to_word() == cause.to_word()
                        || next.to_word() > cause.to_word()
                );
            }
        }
        assert_eq!(Cause::from_word(0), None);
        assert_eq!(Cause::from_word(u64::MAX), None);
    }
}
