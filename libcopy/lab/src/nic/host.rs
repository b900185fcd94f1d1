// SPDX-License-Identifier: MIT OR Apache-2.0

//! The baseline: the card writes the message to host memory, and a processor unpacks it with cold
//! caches.

use clap::Args;
use libcopy::datatype::{Layout, Result};
use libcopy_measure::progress;
use libcopy_nic::card::{Parameters, Ps};
use libcopy_nic::simulate::receive_packed;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// How long a processor unpacks, by the length of blocks, with cold caches.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTable {
    /// Where the figures come from.
    pub source: String,
    /// Bytes of a block, ascending, and picoseconds for a byte.
    rows: Vec<(u64, f64)>,
}

/// Blocks that are measured.
const BLOCKS: [u64; 10] = [4, 8, 16, 32, 64, 128, 512, 2048, 8192, 65536];

/// Bytes that are unpacked.
const BYTES: u64 = 1 << 20;

/// Where lines cannot be flushed, this much memory is touched, so that caches have nothing of the
/// message.
#[cfg(not(target_arch = "x86_64"))]
const EVICTED: usize = 512 << 20;

/// Takes `memory` out of all caches.
#[cfg(target_arch = "x86_64")]
fn evict(memory: &[u8]) {
    use std::arch::x86_64::{_mm_clflush, _mm_mfence};
    for line in memory.chunks(64) {
        // SAFETY: every x86-64 processor has SSE2, and the line is memory of a slice.
        unsafe { _mm_clflush(line.as_ptr()) };
    }
    if let Some(last) = memory.last() {
        // SAFETY: as above.
        unsafe { _mm_clflush(last) };
    }
    // SAFETY: every x86-64 processor has SSE2.
    unsafe { _mm_mfence() };
}

/// Takes `memory` out of all caches, by filling them with something else.
#[cfg(not(target_arch = "x86_64"))]
fn evict(_memory: &[u8]) {
    let other = vec![1u8; EVICTED];
    let sum: u64 = other.iter().step_by(64).map(|byte| u64::from(*byte)).sum();
    std::hint::black_box(sum);
}

impl HostTable {
    /// One run of [`HostTable::measure`] (31 times, release build, 23 November 2026) on a virtual
    /// machine with two busy processors (Intel Xeon), rounded.
    pub fn built_in() -> HostTable {
        let rows = [
            (4, 76.0),
            (8, 73.0),
            (16, 71.0),
            (32, 70.0),
            (64, 70.0),
            (128, 68.0),
            (512, 60.0),
            (2048, 62.0),
            (8192, 43.0),
            (65536, 39.0),
        ];
        HostTable {
            source: "built-in table of one virtual machine".to_owned(),
            rows: rows.to_vec(),
        }
    }

    /// Measures this machine: vectors of 1 MiB with blocks of several lengths, every other one,
    /// each unpacked `times` times with cold caches; the median counts.
    ///
    /// # Errors
    ///
    /// None that a working library has.
    pub fn measure(times: usize, mut step: impl FnMut()) -> Result<HostTable> {
        let mut rows = Vec::new();
        for block in BLOCKS {
            let expression = format!("vector({}, {block}, {}, byte)", BYTES / block, 2 * block);
            let layout = Layout::new(&expression.parse()?, 1)?;
            let time = unpack_cold(&layout, times)?;
            rows.push((block, time.as_secs_f64() * 1e12 / BYTES as f64));
            step();
        }
        Ok(HostTable {
            source: "measured on this machine with cold caches".to_owned(),
            rows,
        })
    }

    /// Steps of [`HostTable::measure`].
    pub const STEPS: u64 = BLOCKS.len() as u64;

    /// A host that takes `factor` times as long for everything.
    #[must_use]
    #[cfg(test)]
    pub fn slower(&self, factor: f64) -> HostTable {
        HostTable {
            source: format!("{factor:.2} times: {}", self.source),
            rows: self
                .rows
                .iter()
                .map(|(b, time)| (*b, time * factor))
                .collect(),
        }
    }

    /// Time of unpacking `layout`: that of a vector with blocks of the average length, between two
    /// rows on the line between them by the logarithm of the length, times as long as the layout
    /// uses more cache lines than such a vector. A line that it comes back to after others counts
    /// again: it is rarely in the first-level cache then.
    pub fn unpack(&self, layout: &Layout) -> Ps {
        let bytes = layout.size() as f64;
        let block = bytes / layout.segment_count().max(1) as f64;
        // Of the vector: the packed bytes once, and its lines, of which shorter blocks fill half.
        let usual = if block < 64.0 { 3.0 } else { 2.0 };
        let used = (line_uses(layout) * LINE as u64) as f64;
        let more = (used / bytes.max(1.0) / usual).max(1.0);
        (bytes * self.per_byte(block) * more) as Ps
    }

    fn per_byte(&self, block: f64) -> f64 {
        let at = self.rows.partition_point(|(b, _)| (*b as f64) < block);
        if at == 0 || at == self.rows.len() {
            return self.rows[at.min(self.rows.len() - 1)].1;
        }
        let ((low, first), (high, second)) = (self.rows[at - 1], self.rows[at]);
        let part = (block / low as f64).log2() / (high as f64 / low as f64).log2();
        first + (second - first) * part
    }

    /// The whole baseline, counted as figure 8 counts: the message in host memory, then unpacked.
    pub fn receive(&self, layout: &Layout, parameters: &Parameters) -> Ps {
        receive_packed(layout.size(), parameters) + self.unpack(layout)
    }
}

/// The median time of unpacking with cold caches.
fn unpack_cold(layout: &Layout, times: usize) -> Result<Duration> {
    let packed = vec![7u8; layout.size() as usize];
    let bounds = layout.bounds();
    let mut user = vec![0u8; (bounds.end - bounds.start) as usize];
    let origin = -bounds.start as isize;
    let mut all = Vec::new();
    // The first round touches the pages.
    for _ in 0..=times.max(1) {
        evict(&packed);
        evict(&user);
        let start = Instant::now();
        layout.unpack(std::hint::black_box(&packed), &mut user, origin)?;
        std::hint::black_box(&mut user);
        all.push(start.elapsed());
    }
    all.remove(0);
    all.sort_unstable();
    Ok(all[all.len() / 2])
}

/// Bytes of a cache line.
const LINE: i64 = 64;

/// The lines of `len` bytes at `start`, of which there is one at least.
fn lines(start: i64, len: u64) -> RangeInclusive<i64> {
    start.div_euclid(LINE)..=(start + len as i64 - 1).div_euclid(LINE)
}

/// A last-level cache like that of the paper's host (Intel i7-4770): 8 MiB, 16 ways, least recently
/// used first out; cold.
struct LastLevelCache {
    /// Lines of each set, the one that was used last first.
    sets: Vec<[Option<i64>; LastLevelCache::WAYS]>,
    misses: u64,
}

impl LastLevelCache {
    const WAYS: usize = 16;
    const SETS: usize = (8 << 20) / LINE as usize / LastLevelCache::WAYS;

    fn new() -> LastLevelCache {
        LastLevelCache {
            sets: vec![[None; LastLevelCache::WAYS]; LastLevelCache::SETS],
            misses: 0,
        }
    }

    /// Touches the lines of `len` bytes at address `start`.
    fn touch(&mut self, start: i64, len: u64) {
        for line in lines(start, len) {
            // Such caches hash addresses, so that lines at the distance of a power of two do not
            // share a set.
            let hash = (line as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
            let set = &mut self.sets[hash as usize % LastLevelCache::SETS];
            let found = set.iter().position(|other| *other == Some(line));
            self.misses += u64::from(found.is_none());
            set[..=found.unwrap_or(LastLevelCache::WAYS - 1)].rotate_right(1);
            set[0] = Some(line);
        }
    }
}

/// How often unpacking goes to another line: of the packed message, and of the receive buffer.
fn line_uses(layout: &Layout) -> u64 {
    let mut uses = layout.size().div_ceil(LINE as u64);
    let mut last = None;
    let mut cursor = layout.cursor();
    while let Some(piece) = cursor.next_segment(u64::MAX) {
        let lines = lines(piece.offset, piece.len);
        uses += (lines.end() - lines.start()) as u64 + u64::from(last != Some(*lines.start()));
        last = Some(*lines.end());
    }
    uses
}

/// Bytes that unpacking with cold caches reads from memory: the lines of the packed message and of
/// the receive buffer that a last-level cache misses (section 5.3 counts those misses).
pub fn traffic(layout: &Layout) -> u64 {
    let mut cache = LastLevelCache::new();
    let mut cursor = layout.cursor();
    // The packed message begins with the first line behind the receive buffer.
    let mut packed = (layout.bounds().end.div_euclid(LINE) + 1) * LINE;
    while let Some(piece) = cursor.next_segment(u64::MAX) {
        cache.touch(packed, piece.len);
        cache.touch(piece.offset, piece.len);
        packed += piece.len as i64;
    }
    cache.misses * LINE as u64
}

/// Where the host's times come from.
#[derive(Args, Clone, Debug)]
pub struct HostArgs {
    /// Measure how this machine unpacks with cold caches, instead of using the built-in table
    #[arg(long)]
    measure_host: bool,
}

impl HostArgs {
    /// The table.
    pub fn table(&self) -> anyhow::Result<HostTable> {
        if !self.measure_host {
            return Ok(HostTable::built_in());
        }
        let bar = progress::bar(HostTable::STEPS);
        bar.set_message("unpacking with cold caches");
        let table = HostTable::measure(7, || bar.inc(1))?;
        bar.finish_and_clear();
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(expression: &str) -> Layout {
        Layout::new(&expression.parse().unwrap(), 1).unwrap()
    }

    #[test]
    fn lines_are_counted_once_while_the_cache_has_room() {
        // 64 packed bytes are a line; 8 blocks of 8 bytes lie in two lines.
        assert_eq!(traffic(&layout("vector(8, 1, 2, double)")), 3 * 64);
        assert_eq!(traffic(&layout("vector(8, 1, 8, double)")), 9 * 64);
        assert_eq!(traffic(&layout("contiguous(1000, double)")), 250 * 64);
        // A block over the end of a line.
        assert_eq!(traffic(&layout("hindexed([4], [62], byte)")), 3 * 64);
        // A transposed matrix of doubles: each column touches a line of each row, the next column
        // the same ones.
        let transposed = |rows: u64| {
            let columns =
                format!("contiguous({rows}, resized(0, 8, vector({rows}, 1, {rows}, double)))");
            traffic(&layout(&columns)) as f64 / (8 * rows * rows) as f64
        };
        let in_the_cache = transposed(256);
        assert!((in_the_cache - 2.0).abs() < 0.01, "{in_the_cache}");
        // A column of 200,000 lines does not fit: all are missed again for the next one.
        let columns = "contiguous(8, resized(0, 8, vector(200000, 1, 8, double)))";
        let beyond = traffic(&layout(columns)) as f64 / (8.0 * 8.0 * 200_000.0);
        assert!(beyond > 8.0, "{beyond}");
    }

    #[test]
    fn a_line_that_is_used_again_after_others_counts_again() {
        assert_eq!(line_uses(&layout("vector(8, 1, 2, double)")), 1 + 2);
        // Four columns of 16 bytes in 32 lines.
        let columns = layout("contiguous(4, resized(0, 16, vector(32, 2, 8, double)))");
        assert_eq!(line_uses(&columns), 32 + 4 * 32);
        assert_eq!(traffic(&columns), (32 + 32) * 64);
    }

    #[test]
    fn between_two_rows_the_table_is_a_line() {
        let table = HostTable {
            source: String::new(),
            rows: vec![(4, 100.0), (16, 60.0), (64, 40.0)],
        };
        for (block, expected) in [
            (1.0, 100.0),
            (4.0, 100.0),
            (8.0, 80.0),
            (32.0, 50.0),
            (1e6, 40.0),
        ] {
            assert!((table.per_byte(block) - expected).abs() < 1e-9, "{block}");
        }
        // Blocks that have a line each move 1 + 16 bytes for each of theirs instead of 1 + 2.
        let near = table.unpack(&layout("vector(1000, 1, 2, int)"));
        let far = table.unpack(&layout("vector(1000, 1, 100, int)"));
        assert!((400_000..404_000).contains(&near), "{near}");
        assert!((5.4..5.8).contains(&(far as f64 / near as f64)), "{far}");
        let slow = table.receive(&layout("vector(1000, 1, 2, int)"), &Parameters::PAPER);
        assert!(slow > 4000 * 100);
    }

    #[test]
    fn a_slower_host_is_slower_for_every_block() {
        let table = HostTable::built_in();
        let slow = table.slower(3.0);
        for expression in ["vector(1000, 1, 2, int)", "contiguous(100000, double)"] {
            let layout = layout(expression);
            let (fast, slow) = (table.unpack(&layout), slow.unpack(&layout));
            assert!(slow.abs_diff(3 * fast) <= 3, "{fast} {slow}");
        }
    }

    #[test]
    fn a_machine_can_be_measured() {
        let mut steps = 0;
        let table = HostTable::measure(1, || steps += 1).unwrap();
        assert_eq!(steps, HostTable::STEPS);
        assert!(table.rows.iter().all(|(_, time)| *time > 0.0));
    }
}
