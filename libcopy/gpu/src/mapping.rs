// SPDX-License-Identifier: MIT OR Apache-2.0

//! Baselines: how other libraries map the bytes of a type to threads, as launches of kernels of our
//! own.

use crate::job::Job;
use crate::launch::{End, Kernel, MOST_GRID_BLOCKS, Placed, THREADS};
use crate::plan::{Grain, Inner, Step};

/// Blocks of a grid in its second and third dimension, at most (CUDA C++ Programming Guide,
/// "Technical Specifications per Compute Capability").
const MOST_ROW_BLOCKS: u64 = 65_535;

/// Whose mapping of bytes to threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// TEMPI's ("Generalized pack kernels"): a thread per word; the first dimension of the thread
    /// block runs over the words of a block, the second over the next dimension of the type, the
    /// third over the one after it, loops over the rest. The word is the largest that fits both
    /// sides.
    Tempi,
    /// yaksa's generated kernels: a thread per element of the type, whose index is decoded by
    /// divisions.
    Yaksa {
        /// Bytes of an element: 1, 2, 4, 8 or 16.
        element: u32,
    },
}

/// One launch of a baseline kernel: a grid of three dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shaped {
    /// What is launched.
    pub kernel: Kernel,
    /// Blocks of the grid, the dimension x first.
    pub blocks: [u32; 3],
    /// Threads of a block.
    pub threads: [u32; 3],
    /// Its parameter.
    pub job: Job,
}

impl Placed<'_> {
    /// What packs the whole layout to address `packed`, or unpacks it from there, by another
    /// library's mapping; `None` unless the layout is blocks under strides (no lists, no members),
    /// into which the mapping's words fit, and that has no byte twice if it is unpacked.
    pub fn baseline(&self, mapping: Mapping, packed: u64, is_pack: bool) -> Option<Shaped> {
        let [part] = self.plan.parts() else {
            return None;
        };
        let Inner::Block(len) = part.inner else {
            return None;
        };
        let is_regular = part
            .dims
            .iter()
            .all(|(_, step)| matches!(step, Step::Stride(_)));
        if !is_regular || !(is_pack || self.plan.is_disjoint()) {
            return None;
        }
        let (flat, nest) = (End::Flat(packed), End::Part(part, self));
        let mut grain = Grain::default();
        flat.constrain(&mut grain, 0);
        nest.constrain(&mut grain, 0);
        let width = match mapping {
            Mapping::Tempi => grain.bytes(),
            Mapping::Yaksa { element } => {
                let fits = element.is_power_of_two() && element <= grain.bytes();
                fits.then_some(element)?
            }
        };
        let (to, from) = if is_pack { (flat, nest) } else { (nest, flat) };
        let step = u64::from(width);
        let units = part.size / step;
        let job = Job {
            to: to.side(0, step),
            from: from.side(0, step),
            units,
            width,
            ..Job::default()
        };
        let count = |d: usize| part.dims.get(d).map_or(1, |(count, _)| *count);
        let all = u64::from(THREADS);
        let (kernel, threads, blocks) = match mapping {
            Mapping::Tempi => {
                let power = |count: u64, most: u64| count.next_power_of_two().min(most);
                let x = power(len / step, all);
                let y = power(count(0), all / x);
                let z = power(count(1), all / (x * y));
                // Blocks have the number of threads that the kernels were compiled for.
                let x = all / (y * z);
                let blocks = [
                    (len / step).div_ceil(x).min(MOST_GRID_BLOCKS),
                    count(0).div_ceil(y).min(MOST_ROW_BLOCKS),
                    count(1).div_ceil(z).min(MOST_ROW_BLOCKS),
                ];
                let kernel = if is_pack {
                    Kernel::TempiPack(width)
                } else {
                    Kernel::TempiUnpack(width)
                };
                (kernel, [x, y, z], blocks)
            }
            Mapping::Yaksa { .. } => {
                let blocks = units.div_ceil(all);
                if blocks > MOST_GRID_BLOCKS {
                    return None;
                }
                let kernel = if is_pack {
                    Kernel::YaksaPack(width)
                } else {
                    Kernel::YaksaUnpack(width)
                };
                (kernel, [all, 1, 1], [blocks, 1, 1])
            }
        };
        Some(Shaped {
            kernel,
            blocks: blocks.map(|count| count as u32),
            threads: threads.map(|count| count as u32),
            job,
        })
    }
}
