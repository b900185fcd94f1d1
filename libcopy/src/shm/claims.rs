// SPDX-License-Identifier: MIT OR Apache-2.0

//! Who does which piece of work that processes share, as one word.

use std::ops::Range;

use super::sync::{AtomicU64, Ordering};

/// From which end of the work a worker claims pieces. If each keeps to its own end, the same lines
/// of memory are written by the same processor with each operation, and stay in its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The first piece that is left.
    Front,
    /// The last one.
    Back,
}

/// The claims of the pieces of one operation: two counts of `BITS` bits and, in the bits above
/// them, the operation's number.
///
/// Two workers claim from the two ends ([`Claims::claim`], [`Claims::take`]); then the counts are
/// those of either end. Or any number of them claim from the front ([`Claims::begin`]) and say when
/// a piece is done ([`Claims::end`]); then the second count is that of the pieces that are.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(transparent))]
pub struct Claims<const BITS: u32>(AtomicU64);

impl<const BITS: u32> Claims<BITS> {
    /// One in the second count.
    const SECOND: u64 = 1 << BITS;
    /// The word of an operation of which nothing is claimed.
    fn word(number: u64) -> u64 {
        number.checked_shl(2 * BITS).unwrap_or(0)
    }

    fn counts(word: u64) -> (u64, u64) {
        let mask = Self::SECOND - 1;
        (word & mask, word >> BITS & mask)
    }

    fn is_of(word: u64, number: u64) -> bool {
        (word ^ Self::word(number))
            .checked_shr(2 * BITS)
            .unwrap_or(0)
            == 0
    }

    /// Nothing is claimed of the operation `number`, of which the others hear later.
    pub fn open(&self, number: u64) {
        self.0.store(Self::word(number), Ordering::Relaxed);
    }

    /// Claims a piece of `pieces` from an end; `None` if there is none left. The word where it is
    /// of another operation.
    #[inline]
    pub(crate) fn claim(
        &self,
        number: u64,
        end: End,
        pieces: u64,
        order: Ordering,
    ) -> Result<Option<u64>, u64> {
        let one = if end == End::Front { 1 } else { Self::SECOND };
        let word = self.0.fetch_add(one, order);
        if !Self::is_of(word, number) {
            return Err(word);
        }
        let (front, back) = Self::counts(word);
        let is_left = front + back < pieces;
        Ok(is_left.then(|| {
            if end == End::Front {
                front
            } else {
                pieces - 1 - back
            }
        }))
    }
}

impl Claims<32> {
    /// More in the first count than there may be pieces.
    const CLOSED: u64 = 1 << 31;

    /// Claims some of the pieces that are left of `pieces`, next to each other, from an end; `None`
    /// if none is left. `wanted` is given how many are left and says how many of them, at least
    /// one.
    pub(crate) fn take(
        &self,
        end: End,
        pieces: u64,
        wanted: impl Fn(u64) -> u64,
    ) -> Option<Range<u64>> {
        let one = if end == End::Front { 1 } else { Self::SECOND };
        let mut seen = self.0.load(Ordering::SeqCst);
        loop {
            let (front, back) = Self::counts(seen);
            let left = pieces.checked_sub(front + back).filter(|left| *left > 0)?;
            let number = wanted(left).clamp(1, left);
            let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
            let next = seen + number * one;
            match self.0.compare_exchange_weak(seen, next, set, fetch) {
                Ok(_) if end == End::Front => return Some(front..front + number),
                Ok(_) => return Some(pieces - back - number..pieces - back),
                Err(now) => seen = now,
            }
        }
    }

    /// Leaves no piece to [`Claims::take`].
    pub(crate) fn close(&self) {
        self.0.fetch_or(Self::CLOSED, Ordering::SeqCst);
    }
}

impl Claims<16> {
    /// Begins a piece of `total`; `None` if there is none left, or the operation is over. Its
    /// record must have been seen: pieces that are not open yet look like another operation's.
    pub fn begin(&self, number: u64, total: u64) -> Option<u64> {
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            let (begun, _) = Self::counts(seen);
            if !Self::is_of(seen, number) || begun >= total {
                return None;
            }
            let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
            match self.0.compare_exchange_weak(seen, seen + 1, set, fetch) {
                Ok(_) => return Some(begun),
                Err(now) => seen = now,
            }
        }
    }

    /// Begins all of them, if none has been begun.
    pub fn begin_all(&self, number: u64, total: u64) -> bool {
        let none = Self::word(number);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Relaxed);
        self.0
            .compare_exchange(none, none + total, set, fetch)
            .is_ok()
    }

    /// None that were begun together will be done: they may be begun again.
    pub fn begin_again(&self, number: u64) {
        self.0.store(Self::word(number), Ordering::Release);
    }

    /// `pieces` of those that were begun are done.
    pub fn end(&self, pieces: u64) {
        self.0.fetch_add(pieces * Self::SECOND, Ordering::AcqRel);
    }

    /// Whether all are done. Pieces of a later operation say so, too: it begins when that is so.
    pub fn are_over(&self, number: u64, total: u64) -> bool {
        let seen = self.0.load(Ordering::Acquire);
        let ahead = ((seen >> 32) as u32).wrapping_sub(number as u32) as i32;
        ahead > 0 || (ahead == 0 && Self::counts(seen).1 >= total)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_claimed_from_both_ends() {
        let claims = Claims::<16>(AtomicU64::new(0));
        let claim = |number, end| claims.claim(number, end, 3, Ordering::Relaxed);
        claims.open((1 << 32) + 7);
        assert_eq!(claim(7, End::Front), Ok(Some(0)));
        assert_eq!(claim(7, End::Back), Ok(Some(2)));
        assert_eq!(claim(7, End::Back), Ok(Some(1)));
        assert_eq!(claim(7, End::Front), Ok(None));
        assert_eq!(claim(7, End::Back), Ok(None));
        assert_eq!(claim(8, End::Front), Err(7 << 32 | 3 << 16 | 2));
    }

    #[test]
    fn as_many_pieces_as_wanted_are_taken_from_both_ends() {
        let claims = Claims::<32>(AtomicU64::new(1));
        claims.open(0);
        let take = |end, wanted| claims.take(end, 1 << 31, |_| wanted);
        assert_eq!(take(End::Back, 2), Some((1 << 31) - 2..1 << 31));
        assert_eq!(take(End::Front, 0), Some(0..1));
        assert_eq!(take(End::Back, 1), Some((1 << 31) - 3..(1 << 31) - 2));
        assert_eq!(take(End::Front, u64::MAX), Some(1..(1 << 31) - 3));
        assert_eq!((take(End::Front, 1), take(End::Back, 1)), (None, None));
        claims.open(0);
        claims.close();
        claims.close();
        assert_eq!((take(End::Front, 1), take(End::Back, 1)), (None, None));
    }

    #[test]
    fn pieces_are_begun_once_and_only_in_their_operation() {
        let pieces = Claims(AtomicU64::new(0));
        assert!(!pieces.are_over(1, 2) && pieces.begin(1, 2).is_none());
        pieces.open(1);
        assert_eq!((pieces.begin(1, 2), pieces.begin(1, 2)), (Some(0), Some(1)));
        assert_eq!(pieces.begin(1, 2), None);
        pieces.end(1);
        assert!(!pieces.are_over(1, 2));
        pieces.end(1);
        assert!(pieces.are_over(1, 2) && !pieces.are_over(9, 2));
        pieces.open(9);
        assert!(pieces.are_over(1, 2) && pieces.begin(1, 2).is_none());
        // The number's low half has come round.
        pieces.open((1 << 32) + 1);
        assert!(pieces.are_over((1 << 32) - 8, 1));
        assert_eq!(pieces.begin((1 << 32) + 1, 1 << 14), Some(0));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    const PIECES: u64 = 3;

    struct Work<const BITS: u32> {
        claims: Claims<BITS>,
        /// Workers that may be at a piece.
        busy: AtomicU64,
        /// loom reports two that write to one, and who reads one that is written.
        pieces: [UnsafeCell<u64>; PIECES as usize],
    }

    // SAFETY: the claims say who writes to a piece; loom checks it.
    unsafe impl<const BITS: u32> Sync for Work<BITS> {}

    impl<const BITS: u32> Work<BITS> {
        fn open(number: u64) -> Arc<Self> {
            let claims = Claims(AtomicU64::new(0));
            claims.open(number);
            Arc::new(Work {
                claims,
                busy: AtomicU64::new(0),
                pieces: Default::default(),
            })
        }

        fn count(&self, piece: u64) {
            // SAFETY: claimed, so nobody else is at it.
            self.pieces[piece as usize].with_mut(|count| unsafe { *count += 1 });
        }

        fn counts(&self) -> [u64; PIECES as usize] {
            let cells = [0, 1, 2].map(|piece| &self.pieces[piece]);
            // SAFETY: nobody writes to it any more.
            cells.map(|cell| cell.with(|count| unsafe { *count }))
        }
    }

    #[test]
    fn loom_both_ends_claim_each_piece_once() {
        loom::model(|| {
            let work = Work::<16>::open(5);
            let other = work.clone();
            let help = |work: &Work<16>, end| {
                while let Ok(Some(piece)) = work.claims.claim(5, end, PIECES, Ordering::Relaxed) {
                    work.count(piece);
                }
            };
            let back = thread::spawn(move || help(&other, End::Back));
            help(&work, End::Front);
            back.join().unwrap();
            assert_eq!(work.counts(), [1; PIECES as usize]);
        });
    }

    #[test]
    fn loom_both_ends_take_each_piece_once() {
        loom::model(|| {
            let work = Work::<32>::open(0);
            let other = work.clone();
            let help = |work: &Work<32>, end| {
                while let Some(pieces) = work.claims.take(end, PIECES, |left| left.div_ceil(2)) {
                    pieces.for_each(|piece| work.count(piece));
                }
            };
            let back = thread::spawn(move || help(&other, End::Back));
            help(&work, End::Front);
            back.join().unwrap();
            assert_eq!(work.counts(), [1; PIECES as usize]);
        });
    }

    /// Who closes the work and then sees nobody at it has it alone.
    #[test]
    fn loom_nobody_is_at_work_that_is_closed() {
        loom::model(|| {
            let work = Work::<32>::open(0);
            let other = work.clone();
            let worker = thread::spawn(move || {
                loop {
                    other.busy.fetch_add(1, Ordering::SeqCst);
                    let taken = other.claims.take(End::Back, 2, |_| 1);
                    let is_over = taken.is_none();
                    taken
                        .into_iter()
                        .flatten()
                        .for_each(|piece| other.count(piece));
                    other.busy.fetch_sub(1, Ordering::SeqCst);
                    if is_over {
                        break;
                    }
                }
            });
            work.claims.close();
            while work.busy.load(Ordering::SeqCst) != 0 {
                thread::yield_now();
            }
            assert!(work.counts().iter().all(|count| *count <= 1));
            worker.join().unwrap();
        });
    }

    /// All copy pieces, and who sees that they are done may read them and begin the next operation.
    #[test]
    fn loom_pieces_that_are_done_can_be_read() {
        loom::model(|| {
            let work = Work::<16>::open(5);
            let other = work.clone();
            let help = |work: &Work<16>| {
                while let Some(piece) = work.claims.begin(5, PIECES) {
                    work.count(piece);
                    work.claims.end(1);
                }
            };
            let helper = thread::spawn(move || help(&other));
            help(&work);
            while !work.claims.are_over(5, PIECES) {
                thread::yield_now();
            }
            assert_eq!(work.counts(), [1; PIECES as usize]);
            work.claims.open(6);
            helper.join().unwrap();
            assert_eq!(work.claims.begin(6, PIECES), Some(0));
        });
    }

    /// One worker takes all pieces, or each goes to the worker that comes first.
    #[test]
    fn loom_all_pieces_go_together_or_one_by_one() {
        loom::model(|| {
            let work = Work::<16>::open(5);
            let other = work.clone();
            let engine = thread::spawn(move || {
                if other.claims.begin_all(5, PIECES) {
                    (0..PIECES).for_each(|piece| other.count(piece));
                    other.claims.end(PIECES);
                }
            });
            while let Some(piece) = work.claims.begin(5, PIECES) {
                work.count(piece);
                work.claims.end(1);
            }
            while !work.claims.are_over(5, PIECES) {
                thread::yield_now();
            }
            assert_eq!(work.counts(), [1; PIECES as usize]);
            engine.join().unwrap();
        });
    }
}
