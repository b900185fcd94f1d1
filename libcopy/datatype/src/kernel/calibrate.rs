// SPDX-License-Identifier: MIT OR Apache-2.0

//! Finds the profile of the processor at hand by timing kernels against those of the vendor's
//! table.
//!
//! What is better by chance must not be taken: a kernel replaces the table's only if it is faster
//! twice, in measurements that alternate, and slower neither packing nor unpacking.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::offsets::Offsets;
use super::caches::{first_level, second_level_bytes};
use super::indexed::{pieces_by, scattered};
use super::loop_nest::{Dim, Nest};
use super::profile::CpuProfile;
use super::profile::{Block, LEVELS, MEDIUM};
use super::sorted::{Moves, Sorted};

/// What [`CpuProfile::calibrate`] found.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The table, with what was better.
    pub profile: CpuProfile,
    /// What differs from the vendor's table: block length, level (0: the first-level cache), and
    /// the kernel's name.
    pub changes: Vec<(usize, usize, &'static str)>,
    /// Flags that differ from the vendor's table, by name.
    pub flags: Vec<(&'static str, bool)>,
    /// Pieces of a list whose branches the processor remembers: a power of two, or 0. `None` if
    /// that was not measured.
    pub remembered: Option<usize>,
    /// Quarters of the unit in a piece on average up to which pieces are cut, of lists whose
    /// branches the processor remembers and of longer ones. `None` if that was not measured.
    pub cut_quarters: Option<[usize; 2]>,
    /// Whether all was measured before the time was over.
    pub is_complete: bool,
}

/// So much less time than the table's kernel must one take, packing and unpacking together, to
/// replace it.
const GAIN: f64 = 0.90;

/// Neither of the two may take more than this.
const LOSS: f64 = 1.02;

/// One more level than this, memory, takes too long to measure.
const MEASURED: usize = LEVELS - 1;

/// Bytes that are packed where blocks are far apart.
const FAR_PACKED: usize = 128 << 10;

/// Two buffers, and whether there is time left.
struct Bench {
    memory: Vec<u8>,
    start: Instant,
    budget: Duration,
}

impl CpuProfile {
    /// Measures, for at most about `budget`, which kernels are faster here than those of
    /// [`CpuProfile::of_vendor`]. Needs up to some 4 MiB of memory; installs nothing.
    pub fn calibrate(budget: Duration) -> Calibration {
        let start = Instant::now();
        let vendor = CpuProfile::of_vendor();
        let mut found = Calibration {
            profile: vendor.clone(),
            changes: Vec::new(),
            flags: Vec::new(),
            remembered: None,
            cut_quarters: None,
            is_complete: true,
        };
        let totals: [usize; MEASURED] = [
            first_level() * 2 / 3,
            second_level_bytes() / 8,
            3 * second_level_bytes() / 4,
        ]
        .map(|total| total.clamp(8 << 10, 1 << 20));
        // At most three bytes for one that is packed, and that.
        let most = 4 * totals[MEASURED - 1] + (128 << 10);
        let mut bench = Bench {
            // Written, so that each page is one of its own.
            memory: vec![1; most],
            start,
            budget,
        };
        if !bench.is_over() && bench.wants_other_far_writes(vendor) {
            let flag = !vendor.few_far_writes;
            found.profile.few_far_writes = flag;
            found.flags.push(("few-far-writes", flag));
        }
        if !bench.is_over() {
            found.remembered = bench.remembered();
            if let Some(pieces) = found.remembered {
                found.profile.remembered = pieces;
            }
            found.cut_quarters = bench.cut_quarters(found.profile.remembered);
            if let Some(quarters) = found.cut_quarters {
                found.profile.set_cut_quarters(quarters);
            }
        }
        // The lengths that stand for their classes, with the kernels that know them.
        let medium = MEDIUM.into_iter().chain([104]);
        let long = [1024, 1472, 3072, 12_288, 32 << 10];
        for (level, total) in totals.into_iter().enumerate() {
            for len in medium.clone().chain(long) {
                if len > total {
                    continue;
                }
                if bench.is_over() {
                    found.is_complete = false;
                    return found;
                }
                if let Some((block, name)) = bench.better(vendor, len, total, level) {
                    found.profile.blocks_mut(len)[level] = block;
                    found.changes.push((len, level, name));
                }
            }
        }
        found
    }
}

/// The unit of lists that are measured, in bytes.
const WORD: usize = size_of::<u64>();

/// A list of pieces of random lengths, each a few words, with a word between any two.
struct RandomList {
    offsets: Offsets,
    starts: Offsets,
    /// The offsets of all words of the pieces.
    units: Offsets,
    /// Bytes up to the end of the last piece, and of all pieces.
    reach: usize,
    size: usize,
}

impl RandomList {
    /// `n` pieces of one to `longest` words.
    fn new(n: usize, longest: u64) -> RandomList {
        let (mut state, mut at, mut size) = (1u64, 0, 0);
        let (mut offsets, mut units) = (Vec::with_capacity(n), Vec::new());
        let mut starts = Vec::with_capacity(n + 1);
        starts.push(0);
        for _ in 0..n {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let words = 1 + (state >> 33) % longest;
            offsets.push(at as i32);
            units.extend((0..words as usize).map(|word| (at + word * WORD) as i32));
            size += words as usize * WORD;
            at += (words as usize + 1) * WORD;
            starts.push(size as i32);
        }
        RandomList {
            offsets: Offsets::Narrow(Arc::new(offsets)),
            starts: Offsets::Narrow(Arc::new(starts)),
            units: Offsets::Narrow(Arc::new(units)),
            reach: at,
            size,
        }
    }
}

/// What moves a list.
#[derive(Clone, Copy)]
enum Ways<'a> {
    /// Piece by piece, sorted or by the moves.
    Pieces((Option<&'a Sorted>, Moves)),
    /// Cut into words.
    Units,
}

impl Bench {
    fn is_over(&self) -> bool {
        self.start.elapsed() >= self.budget
    }

    /// The kernel that is better than the table's for blocks of `len` bytes at this level, if one
    /// is.
    fn better(
        &mut self,
        vendor: &CpuProfile,
        len: usize,
        total: usize,
        level: usize,
    ) -> Option<(Block, &'static str)> {
        let usual = vendor.blocks(len)[level];
        let with = |block| {
            let mut profile = vendor.clone();
            profile.blocks_mut(len)[level] = block;
            profile
        };
        let mut best: Option<(f64, Block, &'static str)> = None;
        for (block, name) in Block::ALL {
            let is_known = match block {
                Block::Narrow | Block::Wide | Block::Asked | Block::Avx2 => len <= 512,
                _ => len >= 512,
            };
            if block == usual || !is_known || self.is_over() {
                continue;
            }
            let ratio = self.ratio(&with(block), vendor, len, total, 3);
            if ratio < best.map_or(GAIN, |(least, ..)| least) {
                best = Some((ratio, block, name));
            }
        }
        let (_, block, name) = best?;
        // Once more, and longer: of many, one is the first by chance.
        (self.ratio(&with(block), vendor, len, total, 8) < GAIN).then_some((block, name))
    }

    /// Whether short blocks a KiB apart are better written in the other way than the table's.
    fn wants_other_far_writes(&mut self, vendor: &CpuProfile) -> bool {
        const STRIDE: usize = 1024;
        let other = CpuProfile {
            few_far_writes: !vendor.few_far_writes,
            ..vendor.clone()
        };
        let count = (self.memory.len() - FAR_PACKED) / STRIDE;
        let (user, packed) = self.memory.split_at_mut(count * STRIDE);
        let count = count.min(packed.len() / size_of::<u64>());
        let far = Dim {
            count,
            to: STRIDE as isize,
            from: size_of::<u64>() as isize,
        };
        let nest = |profile| Nest::with(profile, size_of::<u64>(), &[far]);
        let (Some(other), Some(usual)) = (nest(&other), nest(vendor)) else {
            return false;
        };
        // Twice, and longer: of many, one is the first by chance.
        [3, 8].into_iter().all(|rounds| {
            let mut least = [f64::INFINITY; 2];
            for _ in 0..rounds {
                for (nest, least) in [&other, &usual].into_iter().zip(&mut least) {
                    let start = Instant::now();
                    // SAFETY: both buffers hold all blocks.
                    unsafe { nest.run(user.as_mut_ptr(), packed.as_ptr()) };
                    *least = least.min(start.elapsed().as_secs_f64());
                }
            }
            least[0] < GAIN * least[1]
        })
    }

    /// Up to how many pieces a list is moved in less time in its own order, with branches that the
    /// processor remembers, than sorted by length. `None` without time to find out.
    fn remembered(&mut self) -> Option<usize> {
        /// The least and the most pieces that are tried, in powers of two: a list is longer than
        /// what a processor has for other branches, and shorter than its second-level cache.
        const TRIED: std::ops::RangeInclusive<u32> = 9..=15;
        let mut found = 0;
        for power in TRIED {
            if self.is_over() {
                return None;
            }
            match self.is_remembered(1 << power) {
                Some(true) => found = 1 << power,
                Some(false) => break,
                // A longer list has no room.
                None => break,
            }
        }
        Some(found)
    }

    /// Whether a list of `n` pieces is moved in less time in its own order; `None` if there is no
    /// room for it.
    fn is_remembered(&mut self, n: usize) -> Option<bool> {
        let list = RandomList::new(n, 16);
        let sorted = Sorted::of_lists(&list.offsets, &list.starts).ok()?;
        let own = self.time(&list, Ways::Pieces((None, Moves::Overlapping)))?;
        let sorted = self.time(&list, Ways::Pieces((Some(&sorted), Moves::Overlapping)))?;
        Some(own < sorted)
    }

    /// Up to how many quarters of the unit a piece has on average for which cutting pieces into
    /// units takes less time: of lists whose branches the processor remembers, and of longer ones.
    /// `None` without time to find out.
    fn cut_quarters(&mut self, remembered: usize) -> Option<[usize; 2]> {
        /// The most units of a piece that are tried; on average, it has one more than half of them.
        const TRIED: [u64; 7] = [3, 5, 6, 8, 10, 12, 14];
        let longer = (2 * remembered).clamp(1 << 13, 1 << 14);
        let mut found = [0; 2];
        for (found, n) in found.iter_mut().zip([remembered / 2, longer]) {
            for most in TRIED {
                if self.is_over() {
                    return None;
                }
                let list = RandomList::new(n.max(1 << 10), most);
                let order = Moves::of_list(n);
                let sorted = match order {
                    Moves::Overlapping if n > remembered => {
                        Some(Sorted::of_lists(&list.offsets, &list.starts).ok()?)
                    }
                    _ => None,
                };
                let whole = self.time(&list, Ways::Pieces((sorted.as_ref(), order)))?;
                if self.time(&list, Ways::Units)? > whole {
                    break;
                }
                *found = 2 * (most as usize + 1);
            }
        }
        Some(found)
    }

    /// Seconds of packing and unpacking a list, the least of some; `None` if there is no room.
    fn time(&mut self, list: &RandomList, ways: Ways) -> Option<f64> {
        /// The processor learns the branches from the first of them.
        const TIMES: usize = 6;
        let (user, packed) = self.memory.split_at_mut_checked(list.reach)?;
        if packed.len() < list.size {
            return None;
        }
        let (user, packed) = (user.as_mut_ptr(), packed.as_mut_ptr());
        let lists = (&list.offsets, &list.starts);
        let range = (0, list.offsets.len());
        let units = (0, list.units.len());
        let mut least = [f64::INFINITY; 2];
        for _ in 0..TIMES {
            let start = Instant::now();
            // SAFETY: both buffers hold all pieces; the processor has the moves.
            unsafe {
                match ways {
                    Ways::Pieces(order) => {
                        pieces_by::<true>(user, lists, range, packed, order);
                    }
                    Ways::Units => scattered::<true>(user, &list.units, units, packed, WORD),
                }
            }
            let middle = Instant::now();
            // SAFETY: as above.
            unsafe {
                match ways {
                    Ways::Pieces(order) => {
                        pieces_by::<false>(user, lists, range, packed, order);
                    }
                    Ways::Units => scattered::<false>(user, &list.units, units, packed, WORD),
                }
            }
            least[0] = least[0].min((middle - start).as_secs_f64());
            least[1] = least[1].min(middle.elapsed().as_secs_f64());
        }
        Some(least.iter().sum())
    }

    /// How long one profile's kernels take compared with the other's, packing and unpacking, by the
    /// least of some rounds in which they take turns; infinite if either loses.
    fn ratio(
        &mut self,
        one: &CpuProfile,
        other: &CpuProfile,
        len: usize,
        total: usize,
        rounds: usize,
    ) -> f64 {
        let count = total / len;
        // Every other block, and not in the same sets of a cache again and again.
        let (dense, apart) = (len as isize, (2 * len + 64) as isize);
        let reach = (count - 1) * apart as usize + len;
        let (user, packed) = self.memory.split_at_mut(reach.next_multiple_of(64) + 64);
        let packed = &mut packed[..total];
        let mut product = 1.0;
        for pack in [true, false] {
            let (to, from, dim) = if pack {
                (packed.as_mut_ptr(), user.as_ptr(), (dense, apart))
            } else {
                (user.as_mut_ptr(), packed.as_ptr(), (apart, dense))
            };
            let dim = Dim {
                count,
                to: dim.0,
                from: dim.1,
            };
            let nests = [one, other].map(|profile| Nest::with(profile, len, &[dim]));
            let [Some(one), Some(other)] = nests else {
                return f64::INFINITY;
            };
            // Reading the clock takes a few tens of nanoseconds, some 20 GB/s are usual.
            let times = (80_000 / total).max(1);
            let mut least = [f64::INFINITY; 2];
            for _ in 0..rounds {
                for (nest, least) in [one, other].iter().zip(&mut least) {
                    let start = Instant::now();
                    for _ in 0..times {
                        // SAFETY: both buffers hold all blocks.
                        unsafe { nest.run(to, from) };
                    }
                    *least = least.min(start.elapsed().as_secs_f64());
                }
            }
            let ratio = least[0] / least[1];
            if ratio > LOSS {
                return f64::INFINITY;
            }
            product *= ratio;
        }
        product.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::super::instructions::InstructionSet;
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "measures")]
    fn a_calibration_ends_in_time_and_changes_only_what_it_says() {
        let start = Instant::now();
        let none = CpuProfile::calibrate(Duration::ZERO);
        assert!(!none.is_complete && none.changes.is_empty() && none.flags.is_empty());
        assert_eq!(none.remembered, None);
        assert_eq!(&none.profile, CpuProfile::of_vendor());
        let some = CpuProfile::calibrate(Duration::from_millis(20));
        // Debug builds and other tests beside it take a while for the last of the measurements.
        assert!(start.elapsed() < Duration::from_secs(5));
        let mut expected = CpuProfile::of_vendor().clone();
        for (len, level, name) in &some.changes {
            let block = Block::ALL.iter().find(|(_, known)| known == name);
            expected.blocks_mut(*len)[*level] = block.unwrap().0;
        }
        for (name, value) in &some.flags {
            expected.set_flag(name, *value);
        }
        if let Some(pieces) = some.remembered {
            expected.set_remembered(pieces);
        }
        if let Some(quarters) = some.cut_quarters {
            expected.set_cut_quarters(quarters);
        }
        assert_eq!(some.profile, expected);
    }

    /// A number of pieces is measured, whatever the table says, with each set of instructions.
    #[test]
    #[cfg_attr(miri, ignore = "measures")]
    fn what_the_processor_remembers_is_a_number() {
        for (set, _) in InstructionSet::ALL {
            set.limit();
            let mut bench = Bench {
                memory: vec![1; 3 << 20],
                start: Instant::now(),
                budget: Duration::from_secs(10),
            };
            let found = bench.remembered().unwrap();
            assert!(found == 0 || found.is_power_of_two() && (1 << 9..=1 << 15).contains(&found));
            // Without room for the shortest list there is none, without time no answer.
            bench.memory.truncate(1000);
            assert_eq!(bench.remembered(), Some(0));
            bench.budget = Duration::ZERO;
            assert_eq!(bench.remembered(), None);
            assert_eq!(bench.cut_quarters(4096), None);
            bench.budget = Duration::from_secs(10);
            bench.memory.resize(3 << 20, 1);
            let [short, long] = bench.cut_quarters(4096).unwrap();
            assert!(short <= 30 && long <= 30, "{short} {long}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "measures")]
    fn no_way_to_write_far_blocks_is_better_than_itself() {
        let mut bench = Bench {
            memory: vec![1; 4 << 20],
            start: Instant::now(),
            budget: Duration::from_secs(1),
        };
        let wants: Vec<bool> = [false, true]
            .into_iter()
            .map(|few_far_writes| {
                bench.wants_other_far_writes(&CpuProfile {
                    few_far_writes,
                    ..CpuProfile::of_vendor().clone()
                })
            })
            .collect();
        assert_ne!(wants, [true, true]);
    }
}
