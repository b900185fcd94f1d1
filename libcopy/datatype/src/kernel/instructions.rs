// SPDX-License-Identifier: MIT OR Apache-2.0

//! Which vector instructions kernels use: those of the processor, or fewer.

#[cfg(not(test))]
use std::sync::atomic::{AtomicU8, Ordering};

/// The vector instructions that kernels use. Each has those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstructionSet {
    /// What the compiler makes for every processor of the target.
    Portable = 1,
    /// AVX2.
    Avx2,
    /// AVX-512 with its byte instructions and all vector lengths (BW, VL).
    Avx512,
}

/// The set in force; 0 until somebody asked.
#[cfg(not(test))]
static IN_FORCE: AtomicU8 = AtomicU8::new(0);

#[cfg(test)]
thread_local! {
    /// Tests have one for each thread: no other test changes it.
    static OF_TEST: std::cell::Cell<u8> = const { std::cell::Cell::new(0) };
}

#[inline]
fn in_force() -> u8 {
    #[cfg(test)]
    return OF_TEST.get();
    #[cfg(not(test))]
    IN_FORCE.load(Ordering::Relaxed)
}

impl InstructionSet {
    /// All of them, with the names that [`InstructionSet::parse`] reads.
    pub const ALL: [(InstructionSet, &'static str); 3] = [
        (InstructionSet::Portable, "portable"),
        (InstructionSet::Avx2, "avx2"),
        (InstructionSet::Avx512, "avx512"),
    ];

    /// The one of this name.
    pub fn parse(name: &str) -> Option<InstructionSet> {
        let named = InstructionSet::ALL.iter().find(|(_, known)| *known == name);
        named.map(|(set, _)| *set)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        InstructionSet::ALL[self as usize - 1].1
    }

    /// What the processor has.
    pub fn of_processor() -> InstructionSet {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::is_x86_feature_detected as has;
            if !has!("avx2") {
                return InstructionSet::Portable;
            }
            if has!("avx512bw") && has!("avx512vl") {
                return InstructionSet::Avx512;
            }
            InstructionSet::Avx2
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        InstructionSet::Portable
    }

    /// What kernels use: what the processor has, unless [`InstructionSet::limit`] said less.
    #[inline]
    pub fn here() -> InstructionSet {
        match in_force() {
            1 => InstructionSet::Portable,
            2 => InstructionSet::Avx2,
            3 => InstructionSet::Avx512,
            _ => InstructionSet::Avx512.limit(),
        }
    }

    /// From now on, kernels use no more than this, for measurements and tests; layouts made before
    /// keep the kernels of their plans. Returns what they use: not more than the processor has.
    #[cold]
    pub fn limit(self) -> InstructionSet {
        let set = self.min(InstructionSet::of_processor());
        #[cfg(test)]
        OF_TEST.set(set as u8);
        #[cfg(not(test))]
        IN_FORCE.store(set as u8, Ordering::Relaxed);
        set
    }
}

/// Whether kernels may use AVX2.
#[inline]
#[cfg_attr(not(all(target_arch = "x86_64", not(miri))), allow(dead_code))]
pub(in super::super) fn has_avx2() -> bool {
    InstructionSet::here() >= InstructionSet::Avx2
}

/// Whether kernels may use AVX-512, for bytes and of all vector lengths.
#[inline]
#[cfg_attr(not(all(target_arch = "x86_64", not(miri))), allow(dead_code))]
pub(in super::super) fn has_512() -> bool {
    InstructionSet::here() >= InstructionSet::Avx512
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_nothing_beyond_the_processor_is_used() {
        for (set, name) in InstructionSet::ALL {
            assert_eq!((InstructionSet::parse(name), set.name()), (Some(set), name));
        }
        assert_eq!(InstructionSet::parse("avx"), None);
        let most = InstructionSet::of_processor();
        assert_eq!(InstructionSet::here(), most);
        assert_eq!(InstructionSet::Portable.limit(), InstructionSet::Portable);
        assert_eq!(InstructionSet::here(), InstructionSet::Portable);
        assert_eq!(InstructionSet::Avx512.limit(), most);
    }
}
