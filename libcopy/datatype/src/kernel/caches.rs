// SPDX-License-Identifier: MIT OR Apache-2.0

//! How much the caches of this machine hold, as far as kernels depend on it.
//!
//! The bounds were measured on a Cascade Lake Xeon (32 KiB and 1 MiB) and on a newer one (48 KiB
//! and 2 MiB); where the C library cannot tell the sizes, they are those of the former.

#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
use std::io::Read;
use std::sync::OnceLock;

/// A cache line.
pub(super) const LINE: usize = 64;

/// In bytes.
struct Caches {
    /// Blocks and their copies of this many bytes in all are in the first-level cache.
    first: usize,
    /// From this many bytes on, a buffer takes the place of something useful in the second-level
    /// cache.
    second: u64,
    /// Lines of the first-level and the second-level cache.
    lines: [usize; 2],
    /// Of more bytes than this, nothing is left in the last cache by the time all are written.
    last: usize,
}

/// A second-level cache in which a buffer leaves room for other data.
const ROOMY: u64 = 2 << 20;

/// The smallest last-level cache that was measured with.
const LAST: u64 = 36 << 20;

/// Lines of a page. Which of them an address is in is part of what says where a cache keeps it.
const PAGE_LINES: usize = 64;

#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
fn sizes() -> [u64; 3] {
    let size = |name| {
        // SAFETY: it only asks.
        let answer = unsafe { libc::sysconf(name) };
        u64::try_from(answer).unwrap_or(0)
    };
    [
        size(libc::_SC_LEVEL1_DCACHE_SIZE),
        size(libc::_SC_LEVEL2_CACHE_SIZE),
        last_level().unwrap_or_else(|| size(libc::_SC_LEVEL3_CACHE_SIZE)),
    ]
}

/// The last-level cache that a processor uses, as the kernel says it
/// (`Documentation/ABI/testing/sysfs-devices-system-cpu`). On AMD's, the C library counts those of
/// the whole package together: ten or twelve times as much.
#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
fn last_level() -> Option<u64> {
    // Such a file says a number. Read without a buffer of the heap, for which there may be no room.
    let read = |index: u32, file: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{file}");
        let mut bytes = [0; 32];
        let read = std::fs::File::open(path).ok()?.read(&mut bytes).ok()?;
        let text = std::str::from_utf8(&bytes[..read]).ok()?;
        bytes_of(text).or_else(|| text.trim().parse().ok())
    };
    // The kernel numbers them without a gap; no processor has as many.
    let third = (0..16).find(|index| read(*index, "level") == Some(3))?;
    read(third, "size")
}

/// A size as the kernel writes it, for example `32768K`.
#[cfg_attr(
    not(all(target_os = "linux", target_env = "gnu", not(miri))),
    allow(dead_code)
)]
fn bytes_of(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => (text.strip_suffix('M')?, 1 << 20),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(not(all(target_os = "linux", target_env = "gnu", not(miri))))]
fn sizes() -> [u64; 3] {
    [0; 3]
}

impl Caches {
    fn of([first, second, last]: [u64; 3]) -> Caches {
        Caches {
            // Three eighths: both sides and a few lines more.
            first: (3 * first.clamp(32 << 10, 64 << 10) / 8) as usize,
            second: if second >= ROOMY { 8 << 20 } else { 512 << 10 },
            lines: [
                first.clamp(32 << 10, 64 << 10),
                second.clamp(256 << 10, 4 << 20),
            ]
            .map(|bytes| (bytes / LINE as u64) as usize),
            // A third: both sides, and some of the lines are others'.
            last: (last.clamp(LAST, 1 << 30) / 3) as usize,
        }
    }

    fn here() -> &'static Caches {
        static HERE: OnceLock<Caches> = OnceLock::new();
        HERE.get_or_init(|| Caches::of(sizes()))
    }
}

/// Blocks of this many bytes in all are, together with their copies, in the first-level cache.
#[cfg_attr(not(all(target_arch = "x86_64", not(miri))), allow(dead_code))]
pub(super) fn first_level() -> usize {
    Caches::here().first
}

/// From this many bytes on, the second-level cache does not hold both sides of a copy and a buffer
/// well.
pub(in super::super) fn second_level() -> u64 {
    Caches::here().second
}

/// Bytes of the second-level cache.
pub(super) fn second_level_bytes() -> usize {
    Caches::here().lines[1] * LINE
}

/// Whether `count` lines that are multiples of `stride` bytes apart are more than the first-level
/// cache has.
pub(super) fn overflow_first(count: usize, stride: usize) -> bool {
    overflow(Caches::here().lines[0], count, stride)
}

/// Whether they are more than the second-level cache keeps beside their copies.
pub(super) fn overflow_second(count: usize, stride: usize) -> bool {
    overflow(3 * Caches::here().lines[1] / 8, count, stride)
}

/// Whether the second-level cache has `lines` lines, wherever they would have to be.
pub(super) fn within_second(count: usize) -> bool {
    count <= Caches::here().lines[1]
}

/// Of strides with a power of two in them, a cache keeps fewer lines: they agree in some of the
/// bits that say where.
fn overflow(lines: usize, count: usize, stride: usize) -> bool {
    let apart = (1 << stride.trailing_zeros().min(usize::BITS - 1)) / LINE;
    count > lines / apart.clamp(1, PAGE_LINES)
}

/// Whether blocks of `total` bytes in all and their copies are in the second-level cache, together
/// with what lies around them.
#[cfg_attr(not(all(target_arch = "x86_64", not(miri))), allow(dead_code))]
pub(super) fn fit_second(total: usize) -> bool {
    total <= Caches::here().lines[1] * LINE / 4
}

/// Whether `bytes` have left all caches by the time the last of them are written.
#[cfg_attr(not(all(target_arch = "x86_64", not(miri))), allow(dead_code))]
pub(super) fn overflow_last(bytes: usize) -> bool {
    bytes >= Caches::here().last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_caches_are_small_ones_and_strange_ones_are_bounded() {
        let of = |first, second| {
            let caches = Caches::of([first, second, 0]);
            (caches.first, caches.second)
        };
        assert_eq!(of(0, 0), (12 << 10, 512 << 10));
        assert_eq!(of(32 << 10, 1 << 20), (12 << 10, 512 << 10));
        assert_eq!(of(48 << 10, 2 << 20), (18 << 10, 8 << 20));
        assert_eq!(of(1 << 30, 1 << 30), (24 << 10, 8 << 20));
        assert!((12 << 10..=24 << 10).contains(&first_level()));
        assert_eq!(Caches::of([0; 3]).last, 12 << 20);
        assert_eq!(Caches::of([0, 0, 480 << 20]).last, 160 << 20);
        assert!(overflow_last(1 << 40) && !overflow_last(1 << 20));
    }

    #[test]
    fn sizes_are_read_as_the_kernel_writes_them() {
        assert_eq!(bytes_of("32768K\n"), Some(32 << 20));
        assert_eq!(bytes_of("36M"), Some(36 << 20));
        for wrong in [
            "",
            "K",
            "-1K",
            "12",
            "99999999999999999999K",
            "18014398509481984K",
        ] {
            assert_eq!(bytes_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn powers_of_two_leave_less_of_a_cache() {
        assert!(!overflow_second(100, 1040));
        assert!(overflow_second(1 << 20, 1040));
        assert!(overflow_first(1024, 256) && !overflow_first(500, 1040));
        let lines = 3 * Caches::here().lines[1] / 8;
        for (stride, fraction) in [(8, 1), (1040, 1), (128, 2), (1024, 16), (1 << 20, 64)] {
            assert!(!overflow_second(lines / fraction, stride), "{stride}");
            assert!(overflow_second(lines / fraction + 1, stride), "{stride}");
        }
    }
}
