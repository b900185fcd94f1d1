// SPDX-License-Identifier: MIT OR Apache-2.0

//! How much the caches of this machine hold, as far as kernels depend on it.
//!
//! The bounds were measured on a Cascade Lake Xeon (32 KiB and 1 MiB) and on a newer one (48 KiB and
//! 2 MiB); where the C library cannot tell the sizes, they are those of the former.

use std::sync::OnceLock;

/// In bytes.
struct Caches {
    /// Blocks and their copies of so many bytes in all are in the first-level cache.
    first: usize,
    /// From so many bytes on, a buffer takes the place of something useful in the second-level
    /// cache.
    second: u64,
}

/// A second-level cache that a buffer does not crowd.
const ROOMY: u64 = 2 << 20;

#[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
fn sizes() -> (u64, u64) {
    let size = |name| {
        // SAFETY: it only asks.
        let answer = unsafe { libc::sysconf(name) };
        u64::try_from(answer).unwrap_or(0)
    };
    (
        size(libc::_SC_LEVEL1_DCACHE_SIZE),
        size(libc::_SC_LEVEL2_CACHE_SIZE),
    )
}

#[cfg(not(all(target_os = "linux", target_env = "gnu", not(miri))))]
fn sizes() -> (u64, u64) {
    (0, 0)
}

impl Caches {
    fn of((first, second): (u64, u64)) -> Caches {
        Caches {
            // Three eighths: both sides and a few lines more.
            first: (3 * first.clamp(32 << 10, 64 << 10) / 8) as usize,
            second: if second >= ROOMY { 8 << 20 } else { 512 << 10 },
        }
    }

    fn here() -> &'static Caches {
        static HERE: OnceLock<Caches> = OnceLock::new();
        HERE.get_or_init(|| Caches::of(sizes()))
    }
}

/// Blocks of so many bytes in all are, together with their copies, in the first-level cache.
#[cfg_attr(not(all(target_arch = "x86_64", not(miri))), allow(dead_code))]
pub(super) fn first_level() -> usize {
    Caches::here().first
}

/// From so many bytes on, the second-level cache does not hold both sides of a copy and a buffer
/// well.
pub(in super::super) fn second_level() -> u64 {
    Caches::here().second
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_caches_are_small_ones_and_strange_ones_are_bounded() {
        let of = |first, second| {
            let caches = Caches::of((first, second));
            (caches.first, caches.second)
        };
        assert_eq!(of(0, 0), (12 << 10, 512 << 10));
        assert_eq!(of(32 << 10, 1 << 20), (12 << 10, 512 << 10));
        assert_eq!(of(48 << 10, 2 << 20), (18 << 10, 8 << 20));
        assert_eq!(of(1 << 30, 1 << 30), (24 << 10, 8 << 20));
        assert!((12 << 10..=24 << 10).contains(&first_level()));
    }
}
