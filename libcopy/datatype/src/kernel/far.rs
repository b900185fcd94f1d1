// SPDX-License-Identifier: MIT OR Apache-2.0

//! Blocks that are far apart: whether later ones are asked for, and whether few are on their way at
//! a time.

use super::caches::{overflow_first, overflow_second, within_second};
use super::loop_nest::{Dim, blocks};
use super::profile::CpuProfile;

/// Whether later blocks are asked for: what is read comes fast enough from the second-level cache.
/// Most of what is more than that, and of what is written, the hardware guesses as well, but not
/// for strides of which the caches keep few lines. A short row is not worth it.
pub(super) fn asks_ahead(profile: &CpuProfile, dims: &[Dim]) -> bool {
    let a = dims[0];
    let (by_source, count) = (is_source_far(a), blocks(dims));
    let stride = lowest_bits(dims, |dim| if by_source { dim.from } else { dim.to });
    if by_source {
        a.count >= READ_AHEAD
            && overflow_second(count, stride)
            && (conflicts(a.from) || profile.ask_far_reads && within_second(count))
    } else {
        profile.ask_far_writes
            && conflicts(a.to)
            && a.count >= WRITE_AHEAD
            && overflow_first(count, stride)
    }
}

/// A number that has as many zeros at the end as the strides of one side together: all multiples of
/// the strides are multiples of the lowest bit of any.
fn lowest_bits(dims: &[Dim], side: impl Fn(&Dim) -> isize) -> usize {
    let repeated = dims.iter().filter(|dim| dim.count > 1);
    repeated.fold(0, |bits, dim| bits | side(dim).unsigned_abs())
}

/// Whether blocks are written a few at a time, so that lines are not thrown out of the first-level
/// cache before they are written.
pub(super) fn writes_few(profile: &CpuProfile, len: usize, dims: &[Dim]) -> bool {
    let a = dims[0];
    profile.few_far_writes
        && a.from == len as isize
        && a.to != 0
        && a.to % CONFLICTING_WRITES == 0
        && a.count >= WRITE_AHEAD
        && 8 * len < a.to.unsigned_abs()
        && overflow_first(blocks(dims), lowest_bits(dims, |dim| dim.to))
}

/// Written lines that are multiples of this apart share so few sets of the first-level cache that
/// the processor has more of them on their way than fit.
pub(super) const CONFLICTING_WRITES: isize = 512;

/// Strides with a power of two in them from this one on leave only a part of the first-level cache.
const CONFLICTING: isize = 256;

/// Whether lines a stride apart share few sets of the first-level cache (conflict misses).
fn conflicts(stride: isize) -> bool {
    stride != 0 && stride % CONFLICTING == 0
}

/// Whether lines had better not be asked for, of those that [`asks_ahead`] is for: the second-level
/// cache has as many, but cannot keep them where they are.
pub(super) fn waits(profile: &CpuProfile, dims: &[Dim]) -> bool {
    is_source_far(dims[0])
        && conflicts(dims[0].from)
        && (profile.few_far_reads || within_second(blocks(dims)))
}

/// Whether blocks that are read are farther apart than the hardware guesses.
pub(super) fn is_source_far(dim: Dim) -> bool {
    dim.from.unsigned_abs() >= FAR_SOURCE
}

/// Up to this stride, the hardware guesses well what will be read in a loop that does nothing else.
const FAR_SOURCE: usize = 1024;

/// How many blocks ahead lines are asked for, of those that are read and of those that are written.
pub(super) const READ_AHEAD: usize = 32;
pub(super) const WRITE_AHEAD: usize = 16;
