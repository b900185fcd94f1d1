// SPDX-License-Identifier: MIT OR Apache-2.0

//! What the choice of a kernel depends on besides the layout: the one table of constants that
//! differ between processors.
//!
//! There is a table for Intel's processors (measured on Cascade Lake and a newer Xeon), one for
//! AMD's from Zen 5 on, and one for AMD's earlier ones (measured on Zen 4). [`CpuProfile::install`]
//! replaces it, with one that was calibrated on the machine; layouts made before keep their
//! kernels.

use super::instructions::InstructionSet;
use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A kernel for blocks of 33 bytes and more. One that the processor lacks instructions for, or that
/// does not know the length, is replaced by the nearest that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// `memcpy` of each.
    Memcpy,
    /// Vectors of 32 bytes in AVX-512's registers; up to 512 bytes.
    Narrow,
    /// Vectors of 64 bytes; up to 512 bytes.
    Wide,
    /// [`Block::Narrow`] with the lines of later blocks asked for; 64, 128, 256 and 512 bytes.
    Asked,
    /// Vectors of 32 bytes, AVX2; up to 512 bytes.
    Avx2,
    /// Aligned vectors of 32 bytes, with the lines of the next block asked for.
    Ahead1,
    /// The same of the block after next.
    Ahead2,
    /// The same four blocks ahead.
    Ahead4,
    /// Aligned vectors of 32 bytes.
    Whole32,
    /// Aligned vectors of 64 bytes.
    Whole64,
    /// `rep movsb` of each.
    Strings,
}

impl Block {
    pub(super) const ALL: [(Block, &'static str); 11] = [
        (Block::Memcpy, "memcpy"),
        (Block::Narrow, "narrow"),
        (Block::Wide, "wide"),
        (Block::Asked, "asked"),
        (Block::Avx2, "avx2"),
        (Block::Ahead1, "ahead1"),
        (Block::Ahead2, "ahead2"),
        (Block::Ahead4, "ahead4"),
        (Block::Whole32, "whole32"),
        (Block::Whole64, "whole64"),
        (Block::Strings, "strings"),
    ];

    fn name(self) -> &'static str {
        Block::ALL[self as usize].1
    }

    fn parse(text: &str) -> Option<Block> {
        Block::ALL
            .iter()
            .find(|(_, name)| *name == text)
            .map(|(block, _)| *block)
    }
}

/// How many levels are told apart, by the total of a nest: the first-level cache, the second-level
/// cache, up to 2 MiB, more.
pub(super) const LEVELS: usize = 4;

/// A kernel for each level.
pub(super) type Levels = [Block; LEVELS];

/// Classes of blocks of 33 to 512 bytes: these lengths, and all others.
pub(super) const MEDIUM: [usize; 4] = [64, 128, 256, 512];

/// Classes of longer blocks: up to these lengths, and more.
pub(super) const LONG: [usize; 4] = [1364, 1535, 4095, 16384];

/// What is good for this processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuProfile {
    /// Kernels for blocks of 33 to 512 bytes, by class and level.
    pub(super) medium: [Levels; MEDIUM.len() + 1],
    /// Kernels for longer blocks.
    pub(super) long: [Levels; LONG.len() + 1],
    /// Lines of later short blocks are asked for where the second-level cache has as many lines as
    /// there are blocks and these are far apart on the side that is read.
    pub(super) ask_far_reads: bool,
    /// Lines of later short blocks are asked for in the same way where strides have a power of two
    /// in them on the side that is written.
    pub(super) ask_far_writes: bool,
    /// Short blocks with such strides are written a few at a time: a place depends on what was read
    /// at an earlier one. More lines on their way than a set of the first-level cache can take are
    /// thrown out before they are written (Zen 5: a third of the time; Zen 4 loses by it, up to 2.5
    /// times the time).
    pub(super) few_far_writes: bool,
    /// Short blocks with such strides are read a few at a time whatever their number, and not only
    /// where the second-level cache has as many lines.
    pub(super) few_far_reads: bool,
    /// Lines a KiB ahead are asked for where short blocks follow each other closely.
    pub(super) ask_close: bool,
    /// Permutations of whole lines for every other 4, 8 or 16 bytes also in the second-level cache.
    pub(super) permute_in_second: bool,
    /// Masked stores also of blocks that have a line of their own, and not in the first-level cache
    /// for blocks of at most 16 bytes.
    pub(super) masked_far: bool,
    /// Blocks of exactly 32 bytes go with those of 33 and more.
    pub(super) vectors_from_32: bool,
    /// The C library's `memcpy` is slow where it uses string instructions.
    pub(super) slow_strings: bool,
    /// Pairs of blocks of 33 to 63 bytes are written at once however many pages they are in, and
    /// read in AVX2's vectors where there are many.
    pub(super) pairs_far: bool,
    /// Masks move the pieces of a list in less time than overlapping vectors do whose branches the
    /// processor remembers.
    pub(super) masked_lists: bool,
    /// Pieces of a list that is moved again and again up to which the processor remembers the
    /// branches, so that without masks such a list is moved in its own order instead of sorted by
    /// length.
    pub(super) remembered: usize,
    /// Pieces of a list that are small multiples of one unit are cut into blocks of the unit where
    /// they have at most so many quarters of it on average: of lists whose branches the processor
    /// remembers, and of longer ones. Loops over units know no branches, but the list grows by 4
    /// bytes with each.
    pub(super) cut: [usize; 2],
}

/// A number of the table: what it is called in files, the most that is believed, and where it is.
type Number = (&'static str, usize, fn(&mut CpuProfile) -> &mut usize);

/// What [`CpuProfile::cut`] counts at most: a piece has at most 16 units.
const MOST_QUARTERS: usize = 64;

/// The numbers.
const NUMBERS: [Number; 3] = [
    ("remembered-pieces", u32::MAX as usize, |p| {
        &mut p.remembered
    }),
    ("cut-quarters.remembered", MOST_QUARTERS, |p| &mut p.cut[0]),
    ("cut-quarters.longer", MOST_QUARTERS, |p| &mut p.cut[1]),
];

type Flag = (&'static str, fn(&mut CpuProfile) -> &mut bool);

/// The flags, and what they are called in files.
pub(super) const FLAGS: [Flag; 11] = [
    ("slow-strings", |p| &mut p.slow_strings),
    ("ask-far-reads", |p| &mut p.ask_far_reads),
    ("ask-far-writes", |p| &mut p.ask_far_writes),
    ("few-far-writes", |p| &mut p.few_far_writes),
    ("few-far-reads", |p| &mut p.few_far_reads),
    ("ask-close", |p| &mut p.ask_close),
    ("permute-in-second", |p| &mut p.permute_in_second),
    ("masked-far", |p| &mut p.masked_far),
    ("vectors-from-32", |p| &mut p.vectors_from_32),
    ("pairs-far", |p| &mut p.pairs_far),
    ("masked-lists", |p| &mut p.masked_lists),
];

use Block::{Ahead1, Ahead2, Ahead4, Asked, Avx2, Memcpy, Narrow, Strings, Whole32, Whole64, Wide};

const INTEL: CpuProfile = CpuProfile {
    medium: [
        [Wide, Asked, Asked, Asked],
        [Wide, Asked, Asked, Asked],
        [Wide, Asked, Asked, Asked],
        [Wide, Ahead1, Narrow, Asked],
        [Wide, Narrow, Narrow, Narrow],
    ],
    long: [
        [Whole64, Ahead1, Ahead2, Ahead4],
        [Whole64, Ahead1, Ahead2, Ahead2],
        [Whole64, Ahead1, Strings, Ahead2],
        [Whole64, Ahead1, Strings, Whole32],
        [Whole64, Ahead1, Strings, Memcpy],
    ],
    ask_far_reads: true,
    ask_far_writes: true,
    few_far_writes: false,
    few_far_reads: false,
    ask_close: true,
    permute_in_second: false,
    masked_far: false,
    vectors_from_32: false,
    slow_strings: false,
    pairs_far: false,
    masked_lists: true,
    remembered: 4096,
    cut: [13; 2],
};

const AMD: CpuProfile = CpuProfile {
    medium: [
        [Wide, Wide, Asked, Asked],
        [Wide, Wide, Asked, Asked],
        [Wide, Wide, Asked, Asked],
        [Wide, Avx2, Ahead2, Asked],
        [Wide, Wide, Narrow, Narrow],
    ],
    long: [
        [Whole64, Whole64, Ahead1, Ahead4],
        [Whole64, Whole64, Ahead1, Ahead2],
        [Whole64, Strings, Strings, Whole64],
        [Whole64, Strings, Strings, Whole64],
        [Whole64, Strings, Strings, Memcpy],
    ],
    ask_far_reads: false,
    ask_far_writes: false,
    few_far_writes: true,
    few_far_reads: true,
    ask_close: false,
    permute_in_second: true,
    masked_far: true,
    vectors_from_32: true,
    slow_strings: false,
    pairs_far: true,
    masked_lists: false,
    remembered: 8192,
    cut: [13; 2],
};

/// AMD's before Zen 5: without string instructions. On Zen 3, `rep movsb` takes half as long again
/// as vectors where the target is aligned, and many times as long where it is not; on Zen 4 it
/// gains nothing (glibc's bug 30994, for which glibc 2.40 does without it on both).
const AMD_BEFORE_ZEN_5: CpuProfile = CpuProfile {
    few_far_writes: false,
    long: [
        AMD.long[0],
        AMD.long[1],
        [Whole64, Whole64, Whole64, Whole64],
        [Whole64, Whole64, Whole64, Whole64],
        [Whole64, Whole64, Whole64, Memcpy],
    ],
    slow_strings: true,
    masked_lists: true,
    remembered: 4096,
    cut: [20, 26],
    ..AMD
};

/// Zen 4 remembers the branches of 16,384 pieces and more, and has masks for the others.
const ZEN_4: CpuProfile = CpuProfile {
    remembered: 16384,
    cut: AMD.cut,
    ..AMD_BEFORE_ZEN_5
};

/// The family of Zen 5, as `cpuid` says it; Zen to Zen 4 are 0x17 to 0x19.
const ZEN_5: u32 = 0x1a;

/// Where the profile in force is; null until somebody asked or installed one.
static INSTALLED: AtomicPtr<CpuProfile> = AtomicPtr::new(std::ptr::null_mut());

impl CpuProfile {
    /// The built-in table for the processor that we run on: AMD's for AMD's and Hygon's, else
    /// Intel's.
    pub fn of_vendor() -> &'static CpuProfile {
        static VENDOR: OnceLock<&CpuProfile> = OnceLock::new();
        VENDOR.get_or_init(|| {
            let (vendor, family) = vendor();
            let has_512 = InstructionSet::of_processor() == InstructionSet::Avx512;
            CpuProfile::of(&vendor, family, has_512)
        })
    }

    /// Before Zen 5, only AMD's Zen 4 has AVX-512.
    fn of(vendor: &[u8; 12], family: u32, has_512: bool) -> &'static CpuProfile {
        match vendor {
            b"AuthenticAMD" | b"HygonGenuine" if family >= ZEN_5 => &AMD,
            b"AuthenticAMD" if has_512 => &ZEN_4,
            b"AuthenticAMD" | b"HygonGenuine" => &AMD_BEFORE_ZEN_5,
            _ => &INTEL,
        }
    }

    /// The one in force: what was installed, else [`CpuProfile::of_vendor`].
    pub fn here() -> &'static CpuProfile {
        // SAFETY: null, or what `install` leaked.
        unsafe { INSTALLED.load(Ordering::Acquire).as_ref() }.unwrap_or_else(CpuProfile::of_vendor)
    }

    /// Puts it in force for the layouts that are made from now on. Its memory is never freed, so
    /// call it once or twice in a process.
    pub fn install(self) {
        let leaked: &'static mut CpuProfile = Box::leak(Box::new(self));
        INSTALLED.store(leaked, Ordering::Release);
    }

    /// Has blocks of the class of `len` bytes, in caches of this level (0: the first), moved by the
    /// kernel that [`CpuProfile::calibrate`] named so. Another name changes nothing.
    pub fn choose(&mut self, len: usize, level: usize, name: &str) {
        if let Some(block) = Block::parse(name) {
            self.blocks_mut(len)[level] = block;
        }
    }

    /// Sets what [`CpuProfile::calibrate`] calls so. Another name changes nothing.
    pub fn set_flag(&mut self, name: &str, value: bool) {
        if let Some((_, flag)) = FLAGS.iter().find(|(known, _)| *known == name) {
            *flag(self) = value;
        }
    }

    /// Has lists of up to as many pieces moved in their own order where that depends on how many
    /// branches the processor remembers, which [`CpuProfile::calibrate`] measures.
    pub fn set_remembered(&mut self, pieces: usize) {
        self.remembered = pieces;
    }

    /// Has pieces cut into their units up to as many quarters of it on average, of lists whose
    /// branches the processor remembers and of longer ones, which [`CpuProfile::calibrate`]
    /// measures.
    pub fn set_cut_quarters(&mut self, quarters: [usize; 2]) {
        self.cut = quarters.map(|some| some.min(MOST_QUARTERS));
    }

    /// Up to how many quarters of their unit the pieces of a list of `n` have on average if they
    /// are cut.
    pub(in super::super) fn cut_quarters(&self, n: usize) -> usize {
        self.cut[usize::from(n > self.remembered)]
    }

    /// As lines `name = value`.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (name, levels) in self.rows() {
            let words = levels.map(Block::name).join(" ");
            let _ = writeln!(text, "{name} = {words}");
        }
        // Not the last line: half a number is one, too, and half a word is none.
        let mut copy = self.clone();
        for (name, _, number) in NUMBERS {
            let _ = writeln!(text, "{name} = {}", number(&mut copy));
        }
        for (name, flag) in FLAGS {
            let _ = writeln!(
                text,
                "{name} = {}",
                if *flag(&mut copy) { "yes" } else { "no" }
            );
        }
        text
    }

    /// Reads what [`CpuProfile::to_text`] wrote: every line once, nothing else. `None` for anything
    /// else.
    pub fn from_text(text: &str) -> Option<CpuProfile> {
        let mut profile = INTEL.clone();
        let mut names: Vec<String> = profile.rows().map(|(name, _)| name).collect();
        names.extend(FLAGS.iter().map(|(name, _)| (*name).to_owned()));
        names.extend(NUMBERS.iter().map(|(name, ..)| (*name).to_owned()));
        for line in text.lines() {
            let (name, value) = line.split_once(" = ")?;
            let at = names.iter().position(|known| known == name)?;
            // Each once.
            names[at].clear();
            let medium = profile.medium.len();
            let rows = medium + profile.long.len();
            if at < rows {
                let blocks: Option<Vec<Block>> = value.split(' ').map(Block::parse).collect();
                let levels = Levels::try_from(blocks?).ok()?;
                if at < medium {
                    profile.medium[at] = levels;
                } else {
                    profile.long[at - medium] = levels;
                }
            } else if let Some((_, flag)) = FLAGS.get(at - rows) {
                *flag(&mut profile) = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return None,
                };
            } else {
                let (_, most, number) = NUMBERS[at - rows - FLAGS.len()];
                *number(&mut profile) = value.parse().ok().filter(|said| *said <= most)?;
            }
        }
        names.iter().all(String::is_empty).then_some(profile)
    }

    /// The classes of lengths by name, with their kernels.
    fn rows(&self) -> impl Iterator<Item = (String, Levels)> + '_ {
        let medium = (0..).zip(self.medium).map(|(i, levels)| {
            let name = MEDIUM.get(i).map_or("other".to_owned(), usize::to_string);
            (format!("blocks.{name}"), levels)
        });
        let long = (0..).zip(self.long).map(|(i, levels)| {
            let name = LONG.get(i).map_or("more".to_owned(), usize::to_string);
            (format!("blocks.to-{name}"), levels)
        });
        medium.chain(long)
    }

    /// The kernels for blocks of `len` bytes, at least 32.
    pub(super) fn blocks(&self, len: usize) -> &Levels {
        match class(len) {
            Class::Medium(i) => &self.medium[i],
            Class::Long(i) => &self.long[i],
        }
    }

    /// The kernels for blocks of `len` bytes, to be changed.
    pub(super) fn blocks_mut(&mut self, len: usize) -> &mut Levels {
        match class(len) {
            Class::Medium(i) => &mut self.medium[i],
            Class::Long(i) => &mut self.long[i],
        }
    }
}

/// Which row of which table is for a length.
enum Class {
    Medium(usize),
    Long(usize),
}

fn class(len: usize) -> Class {
    if len <= MEDIUM[MEDIUM.len() - 1] {
        let class = MEDIUM.iter().position(|medium| *medium == len);
        Class::Medium(class.unwrap_or(MEDIUM.len()))
    } else {
        let class = LONG.iter().position(|most| len <= *most);
        Class::Long(class.unwrap_or(LONG.len()))
    }
}

/// The processor's name of its maker, and its family (Intel's and AMD's manuals, `cpuid` leaves 0
/// and 1); zeros elsewhere than on x86-64.
#[cfg(all(target_arch = "x86_64", not(miri)))]
// Newer compilers need no block.
#[allow(unused_unsafe)]
fn vendor() -> ([u8; 12], u32) {
    use std::arch::x86_64::__cpuid;
    let mut name = [0; 12];
    // SAFETY: every x86-64 processor has the instruction and these leaves.
    let (leaf, signature) = unsafe { (__cpuid(0), __cpuid(1).eax) };
    for (to, word) in name.chunks_mut(4).zip([leaf.ebx, leaf.edx, leaf.ecx]) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    let (base, extended) = (signature >> 8 & 0xf, signature >> 20 & 0xff);
    let family = if base == 0xf { base + extended } else { base };
    (name, family)
}

/// Nothing is known of the processor's maker.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn vendor() -> ([u8; 12], u32) {
    ([0; 12], 0)
}

#[cfg(test)]
impl CpuProfile {
    /// Any table, the same for the same number.
    pub(super) fn random(seed: u64) -> CpuProfile {
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        let mut profile = INTEL.clone();
        for block in profile.medium.iter_mut().chain(&mut profile.long).flatten() {
            *block = Block::ALL[next() % Block::ALL.len()].0;
        }
        for (_, flag) in FLAGS {
            *flag(&mut profile) = next() % 2 == 1;
        }
        profile.remembered = 64 << (next() % 10);
        profile.cut = [next(), next()].map(|some| some % MOST_QUARTERS);
        profile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendors_have_their_tables() {
        assert_eq!(CpuProfile::of(b"GenuineIntel", 6, true), &INTEL);
        assert_eq!(CpuProfile::of(b"AuthenticAMD", 0x1a, true), &AMD);
        assert_eq!(CpuProfile::of(b"AuthenticAMD", 0x19, true), &ZEN_4);
        assert_eq!(
            CpuProfile::of(b"AuthenticAMD", 0x19, false),
            &AMD_BEFORE_ZEN_5
        );
        assert_eq!(
            CpuProfile::of(b"HygonGenuine", 0x18, false),
            &AMD_BEFORE_ZEN_5
        );
        assert_eq!(CpuProfile::of(&[0; 12], 0, false), &INTEL);
        assert!([&INTEL, &AMD, &AMD_BEFORE_ZEN_5, &ZEN_4].contains(&CpuProfile::of_vendor()));
    }

    /// Zen 3 says that its string instructions are fast, and they are not.
    #[test]
    fn amd_before_zen_5_copies_without_string_instructions() {
        let blocks = AMD_BEFORE_ZEN_5.medium.iter().chain(&AMD_BEFORE_ZEN_5.long);
        assert!(!blocks.flatten().any(|block| *block == Strings));
        const { assert!(AMD_BEFORE_ZEN_5.slow_strings && !AMD.slow_strings && !INTEL.slow_strings) };
    }

    #[test]
    fn names_are_those_of_the_kernels() {
        for (i, (block, name)) in Block::ALL.into_iter().enumerate() {
            assert_eq!((block as usize, block.name()), (i, name));
        }
    }

    #[test]
    fn lengths_have_classes() {
        let of = |len| INTEL.blocks(len);
        assert_eq!(of(47), &INTEL.medium[4]);
        assert_eq!(of(512), &INTEL.medium[3]);
        assert_eq!(of(513), &INTEL.long[0]);
        assert_eq!(of(1365), &INTEL.long[1]);
        assert_eq!(of(4096), &INTEL.long[3]);
        assert_eq!(of(1 << 20), &INTEL.long[4]);
    }

    #[test]
    fn text_says_everything_and_nothing_else_is_read() {
        for profile in [&INTEL, &AMD, &AMD_BEFORE_ZEN_5, &ZEN_4] {
            let text = profile.to_text();
            assert_eq!(
                CpuProfile::from_text(&text).as_ref(),
                Some(profile),
                "{text}"
            );
            let lines: Vec<&str> = text.lines().collect();
            for i in 0..lines.len() {
                let mut less = lines.clone();
                less.remove(i);
                assert_eq!(CpuProfile::from_text(&less.join("\n")), None, "{i} missing");
                let mut twice = lines.clone();
                twice.push(lines[i]);
                assert_eq!(CpuProfile::from_text(&twice.join("\n")), None, "{i} twice");
                let mut damaged = lines.clone();
                let cut = lines[i].replace(" = ", " = -");
                damaged[i] = &cut;
                assert_eq!(CpuProfile::from_text(&damaged.join("\n")), None, "{cut}");
            }
        }
        assert_eq!(CpuProfile::from_text(""), None);
        assert_eq!(CpuProfile::from_text("\0\u{1}garbage"), None);
    }
}
