// SPDX-License-Identifier: MIT OR Apache-2.0

//! What has to be paid before anything is intercepted: a datatype's layout, and finding out whether
//! packing pays.
//!
//! Calls that use a type are forwarded until what they would have gained together has reached what
//! its layout costs: then no program can lose more than it would have gained (the argument for
//! renting skis, and buying them when the rent has reached their price: Karlin, Manasse, Rudolph,
//! Sleator, "Competitive snoopy caching", 1988). Short messages are packed for so long that finding
//! out whether that pays takes a small part of the time.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::decide::worth;

/// The worth of a type's uses, as an entry has it: nanoseconds, and once the MPI library has packed
/// elements of the type, by how much less than others it gains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worth {
    /// With those of the uses that are spared a closer look.
    nanoseconds: u64,
    measured: bool,
    /// Halvings.
    less: u32,
}

impl Worth {
    /// Bits of the nanoseconds: eighteen minutes.
    const BITS: u32 = 40;
    const MEASURED: u64 = 1 << Self::BITS;
    const LESS: u32 = Self::BITS + 1;
    /// A type that gains so little is worth a layout after a thousand times as many uses.
    const MOST_LESS: u32 = 10;

    /// Of one use.
    pub fn once(prices: &Prices, bytes: u64) -> Worth {
        Worth {
            nanoseconds: prices.gain(bytes),
            measured: false,
            less: 0,
        }
    }

    /// From an entry.
    pub fn read(word: u64) -> Worth {
        Worth {
            nanoseconds: word % (1 << Self::BITS),
            measured: word & Self::MEASURED != 0,
            less: ((word % (1 << worth::SPARED)) >> Self::LESS) as u32,
        }
    }

    /// What a use is worth that gains so much with the usual type: never nothing, so that uses end
    /// some time.
    fn of(&self, gain: u64) -> u64 {
        (gain >> self.less).max(1)
    }

    /// Counts half of the uses that are missing in advance, if they are all as long as this one;
    /// how many.
    fn spare(&mut self, gain: u64, needed: u64) -> u64 {
        let missing = needed.saturating_sub(self.nanoseconds) / self.of(gain) / 2;
        let spared = missing.min(worth::MOST_SPARED);
        self.nanoseconds += spared * self.of(gain);
        spared
    }

    /// Counts a further use, of `bytes`; how many more are spared a closer look, or `None` if
    /// the layout is earned. `parts` asks for what the layout is made of, and `theirs` for the time
    /// in which the MPI library packs the elements, each if it matters.
    pub fn count(
        &mut self,
        prices: &Prices,
        bytes: u64,
        parts: impl FnOnce() -> Option<u64>,
        theirs: impl FnOnce() -> Option<u64>,
    ) -> Option<u64> {
        let gain = prices.gain(bytes);
        self.nanoseconds += self.of(gain);
        let mut needed = prices.layout();
        if self.nanoseconds >= needed {
            needed = prices.layout_of(parts()?);
            if self.nanoseconds >= needed && !self.measured {
                self.measured = true;
                if let Some(theirs) = theirs() {
                    self.less = prices.less(bytes, theirs).min(Self::MOST_LESS);
                    self.nanoseconds >>= self.less;
                }
            }
            if self.nanoseconds >= needed {
                return None;
            }
        }
        Some(self.spare(gain, needed))
    }

    /// As an entry has it, with the number of uses that are spared.
    pub fn word(self, spared: u64) -> u64 {
        // Neither never nor once.
        let nanoseconds = self.nanoseconds.clamp(2, (1 << Self::BITS) - 1);
        let measured = if self.measured { Self::MEASURED } else { 0 };
        nanoseconds | measured | u64::from(self.less) << Self::LESS | spared << worth::SPARED
    }
}

/// What layouts cost, and what they gain, in nanoseconds.
#[derive(Debug)]
pub struct Prices {
    /// A layout of few parts.
    layout: AtomicU64,
    /// A part of one with many, in 1/256.
    part: AtomicU64,
    /// Packing in the MPI library, and here: of no bytes, and of a KiB more.
    theirs: [u64; 2],
    ours: [u64; 2],
}

/// What the calls that describe a type give as `parts`, below which their number does not matter.
pub const FEW: u64 = 64;

impl Prices {
    /// As measured.
    pub fn new(layout: u64, part: u64, theirs: [u64; 2], ours: [u64; 2]) -> Prices {
        Prices {
            layout: AtomicU64::new(layout.max(1)),
            part: AtomicU64::new(part.max(1)),
            theirs,
            ours,
        }
    }

    /// What packing `bytes` takes.
    fn packing(of: [u64; 2], bytes: u64) -> u64 {
        of[0] + (u128::from(of[1]) * u128::from(bytes) / 1024) as u64
    }

    /// What is gained by a layout each time that `bytes` in small pieces are packed or sent: never
    /// nothing, since they may be in pieces that the library is slower with.
    fn gain(&self, bytes: u64) -> u64 {
        let theirs = Self::packing(self.theirs, bytes);
        let gained = theirs.saturating_sub(Self::packing(self.ours, bytes));
        gained.max(theirs / 8).max(1)
    }

    /// How many times less, as halvings, elements gain that the library packs in `theirs`
    /// nanoseconds.
    fn less(&self, bytes: u64, theirs: u64) -> u32 {
        // What the two readings of the clock take is in it, too.
        let usual = self.gain(bytes);
        let ours = Self::packing(self.ours, bytes);
        let gained = theirs.saturating_sub(ours).max(1);
        (usual / gained).next_power_of_two().ilog2()
    }

    fn layout(&self) -> u64 {
        self.layout.load(Ordering::Relaxed)
    }

    fn layout_of(&self, parts: u64) -> u64 {
        let more = parts.saturating_sub(FEW);
        self.layout() + more.saturating_mul(self.part.load(Ordering::Relaxed)) / 256
    }

    /// A layout took so long.
    pub fn learn(&self, parts: u64, took: u64) {
        /// One of several that mean as much: what takes long once, since somebody else had the
        /// processor, says little.
        const SHARE: u64 = 4;
        let mix = |price: &AtomicU64, now: u64| {
            let before = price.load(Ordering::Relaxed);
            let now = now.min(before.saturating_mul(SHARE)).max(1);
            price.store(
                (before * (SHARE - 1) + now).div_ceil(SHARE),
                Ordering::Relaxed,
            );
        };
        match parts.saturating_sub(FEW) {
            more if more >= FEW => {
                let part = took.saturating_sub(self.layout()).saturating_mul(256) / more;
                mix(&self.part, part);
            }
            _ => mix(&self.layout, took),
        }
    }
}

/// If packing elements here takes so much less than in the library that it pays, after how many
/// messages that is to be found out again: so that it takes at most 1 % of the time in which these
/// are packed. `times` are what `rounds` of each took, the shortest of `samples`: packing
/// here, in the library, and calling it, for which a message does not pay.
pub fn packing_pays(
    samples: u64,
    rounds: u64,
    (ours, theirs, call): (u64, u64, u64),
    toll: u64,
) -> Option<u64> {
    /// Messages are packed for this many times as long as it takes to find that out.
    const RARELY: u64 = 100;
    // Without what another rank did on this processor meanwhile.
    let took = samples * (ours + theirs + call);
    let theirs = theirs.saturating_sub(call);
    let again = RARELY * took / (ours / rounds).max(1);
    (2 * theirs > 2 * ours + rounds * toll).then_some(again.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::worth::{EARNED, ONCE};

    fn prices() -> Prices {
        Prices::new(3000, 256 * 5, [20, 200], [10, 10])
    }

    #[test]
    fn a_worth_is_what_was_written() {
        let worth = Worth {
            nanoseconds: 12_345,
            measured: true,
            less: 7,
        };
        assert_eq!(Worth::read(worth.word(0)), worth);
        let spared = worth.word(worth::MOST_SPARED);
        assert_eq!(Worth::read(spared), worth);
        assert!(spared < EARNED);
        assert!(
            Worth {
                nanoseconds: 0,
                ..worth
            }
            .word(0)
                > ONCE
        );
        let most = Worth {
            nanoseconds: u64::MAX,
            measured: true,
            less: Worth::MOST_LESS,
        };
        assert!(most.word(0) < EARNED);
    }

    #[test]
    fn few_uses_are_looked_at_until_a_layout_is_earned() {
        let needed = 3000;
        for (gain, less) in [(1, 0), (60, 0), (60, 3), (60, 10), (700, 10), (5000, 2)] {
            let mut worth = Worth {
                nanoseconds: 0,
                measured: true,
                less,
            };
            let (mut looks, mut uses) = (0, 0);
            while worth.nanoseconds < needed {
                worth.nanoseconds += worth.of(gain);
                uses += 1 + worth.spare(gain, needed);
                looks += 1;
                assert!(looks < 20, "{gain} {less}: {worth:?}");
            }
            assert!(uses >= needed / worth.of(gain), "{gain} {less}: {uses}");
        }
    }

    /// Uses of types, replayed: after how many of them, and how many closer looks, the layout is
    /// earned. A row has the bytes of a use, the parts of the type, and the nanoseconds in which
    /// the MPI library packs the elements, if it does.
    #[test]
    fn recorded_uses_earn_layouts_as_recorded() {
        let cases = [
            (512, 3, None, (29, 6)),
            (512, 3, Some(90), (29, 6)),
            (512, 3, Some(20), (998, 16)),
            (4096, 3, Some(2000), (4, 3)),
            (4096, 3, Some(300), (16, 7)),
            (4096, 3000, Some(300), (93, 15)),
            (65536, 3000, None, (2, 1)),
            (1 << 20, 3, Some(1), (16, 5)),
            (0, 3, Some(1), (3113, 20)),
        ];
        let prices = prices();
        for (bytes, parts, theirs, expected) in cases {
            // The first use is counted with the second.
            let mut worth = Worth::once(&prices, bytes);
            let (mut uses, mut looks) = (1, 0);
            loop {
                looks += 1;
                uses += 1;
                match worth.count(&prices, bytes, || Some(parts), || theirs) {
                    Some(spared) => uses += spared,
                    None => break,
                }
                worth = Worth::read(worth.word(0));
                assert!(looks < 100, "{bytes} {parts} {theirs:?}: {worth:?}");
            }
            assert_eq!((uses, looks), expected, "{bytes} {parts} {theirs:?}");
        }
    }

    #[test]
    fn what_gains_more_earns_sooner() {
        let prices = prices();
        assert!(prices.gain(512) < prices.gain(4096));
        assert!(prices.gain(0) > 0);
        // As the usual type; a quarter of it; nothing.
        let theirs = Prices::packing(prices.theirs, 4096);
        let ours = Prices::packing(prices.ours, 4096);
        assert_eq!(prices.less(4096, theirs), 0);
        assert_eq!(prices.less(4096, ours + (theirs - ours) / 4), 2);
        assert!(prices.less(4096, 0) >= 8);
    }

    #[test]
    fn a_price_follows_what_layouts_take() {
        let prices = prices();
        assert_eq!(prices.layout_of(FEW), 3000);
        assert_eq!(prices.layout_of(FEW + 1000), 8000);
        // Once may be bad luck, always is not.
        prices.learn(3, 1_000_000);
        assert!(prices.layout() <= 5250, "{prices:?}");
        for _ in 0..20 {
            prices.learn(3, 1_000_000);
        }
        assert!(prices.layout() > 500_000, "{prices:?}");
        for _ in 0..60 {
            prices.learn(3, 3000);
        }
        assert!(prices.layout() < 4000, "{prices:?}");
    }

    /// Trials, replayed: what four rounds took here, in the library, and of calling it, and what
    /// packing has to gain; after how many messages the next trial comes, if packing pays.
    #[test]
    fn recorded_trials_of_packing_lead_to_the_recorded_decisions() {
        let cases = [
            ((400, 2000, 100, 80), Some(7500)),
            ((400, 661, 100, 80), Some(3483)),
            ((400, 660, 100, 80), None),
            ((400, 450, 100, 0), None),
            ((400, 501, 100, 0), Some(3003)),
            ((3, 900, 1000, 20), None),
            ((0, 1000, 0, 20), Some(300_000)),
            ((100_000, 1 << 40, 7, 1000), Some(13_194_140_733)),
        ];
        for ((ours, theirs, call, toll), expected) in cases {
            let found = packing_pays(3, 4, (ours, theirs, call), toll);
            assert_eq!(found, expected, "{ours} {theirs} {call} {toll}");
        }
    }
}
