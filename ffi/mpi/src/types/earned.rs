// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether a derived datatype has earned a layout.
//!
//! To ask the MPI library what a type is and to make its layout takes microseconds, more than many
//! types are ever worth: BLACS makes one for each call. So the calls that use a type are forwarded
//! until what they would have gained together has reached what the layout costs: then no program
//! can lose more than it would have gained (the argument for renting skis, and buying them when the
//! rent has reached their price: Karlin, Manasse, Rudolph, Sleator, "Competitive snoopy caching",
//! 1988).
//!
//! Nothing of that is a constant of a machine. What a layout costs, and what packing with it gains,
//! is measured once per process by two types, when the first type is used for the second time; what
//! layouts have cost since corrects the price. Before a layout is made, the MPI library packs the
//! elements once, so that types that it packs well have to wait longer.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::decide::worth::{EARNED, Entry, ONCE};
use crate::decide::{environment, threshold, worth};
use crate::library::abi::{Abi, Word};
use crate::library::pmpi;
use crate::types::{datatype, type_size};

/// Calls that are forwarded since their types have not earned a layout, those that are not first
/// uses.
static FORWARDED: AtomicU64 = AtomicU64::new(0);

/// Such calls.
pub fn forwarded() -> u64 {
    FORWARDED.load(Ordering::Relaxed)
}

/// Elements that a call uses.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// Where they are.
    pub buffer: *const c_void,
    /// How many.
    pub count: usize,
    /// Of which type.
    pub datatype: Word,
    /// A communicator to pack them for, to measure that; `None` where they are not to be packed.
    pub comm: Option<Word>,
}

/// Whether the environment asks for layouts from the first use on: what tests intercept.
fn is_asked() -> bool {
    static ASKED: OnceLock<bool> = OnceLock::new();
    *ASKED.get_or_init(environment::are_asked)
}

/// Counts a use of a type; whether it has earned a layout. Predefined types have.
#[inline]
pub fn by(abi: &Abi, what: Use) -> bool {
    if threshold::size(what.datatype).is_some() {
        return true;
    }
    let Some(entry) = worth::find(what.datatype & abi.handle) else {
        return first(abi, what.datatype);
    };
    match entry.worth() {
        EARNED.. => true,
        _ if entry.spares() => false,
        worth => again(abi, what, entry, worth),
    }
}

/// The type is to be kept: its layout is made with the first use.
pub fn keep(abi: &Abi, datatype: Word) {
    if abi.is_type(datatype) && !is_asked() {
        worth::insert(datatype & abi.handle, EARNED);
    }
}

/// The first use of a handle.
#[cold]
fn first(abi: &Abi, datatype: Word) -> bool {
    if is_asked() || !abi.is_type(datatype) {
        return true;
    }
    let mut combiner = 0;
    // SAFETY: a writable output; the library checks the datatype.
    if unsafe { pmpi::type_combiner(datatype, &mut combiner) } != 0 {
        return true;
    }
    let is_predefined = combiner == abi.named;
    if is_predefined {
        // A few comparisons do from now on.
        let _ = type_size::bytes(abi, 1, datatype);
    }
    let worth = if is_predefined { EARNED } else { ONCE };
    worth::insert(datatype & abi.handle, worth);
    is_predefined
}

/// The worth of a type's uses, as an entry has it: nanoseconds, and once the MPI library has packed
/// elements of the type, by how much less than others it gains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Worth {
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

    fn read(word: u64) -> Worth {
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

    /// Counts a further use, of so many bytes; how many more are spared a closer look, or `None` if
    /// the layout is earned. `parts` asks for what the layout is made of, and `theirs` for the time
    /// in which the MPI library packs the elements, each if it matters.
    fn count(
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
    fn word(self, spared: u64) -> u64 {
        // Neither never nor once.
        let nanoseconds = self.nanoseconds.clamp(2, (1 << Self::BITS) - 1);
        let measured = if self.measured { Self::MEASURED } else { 0 };
        nanoseconds | measured | u64::from(self.less) << Self::LESS | spared << worth::SPARED
    }
}

/// A further use of a type without a layout.
fn again(abi: &Abi, what: Use, entry: &Entry, word: u64) -> bool {
    let Some(prices) = prices(abi, what.comm) else {
        // Nobody can tell: a second use is a sign that there will be more.
        entry.set(EARNED);
        return true;
    };
    let Some(bytes) = datatype::size(what.datatype, what.count) else {
        return false;
    };
    let mut worth = match word {
        // The first use counts as this one does.
        ONCE => Worth {
            nanoseconds: prices.gain(bytes),
            measured: false,
            less: 0,
        },
        word => Worth::read(word),
    };
    let mut parts = None;
    let ask = || {
        parts = parts_of(what.datatype);
        parts
    };
    let spared = worth.count(prices, bytes, ask, || packed_by_library(what, bytes));
    if let Some(spared) = spared {
        entry.set(worth.word(spared));
        FORWARDED.fetch_add(1 + spared, Ordering::Relaxed);
        return false;
    }
    if let Some(parts) = parts {
        make(abi, prices, what, parts);
    }
    entry.set(EARNED);
    true
}

/// What the calls that describe a type give, to which most of a layout's cost is due.
fn parts_of(datatype: Word) -> Option<u64> {
    let mut envelope = pmpi::Envelope::default();
    // SAFETY: a writable output; the library checks the datatype.
    if unsafe { pmpi::type_envelope(datatype, &mut envelope) } != 0 {
        return None;
    }
    let counts = [
        envelope.integers,
        envelope.addresses,
        envelope.large,
        envelope.types,
    ];
    Some(counts.iter().map(|count| (*count).max(0) as u64).sum())
}

/// Makes a layout, from which is learnt what that costs.
#[cold]
fn make(abi: &Abi, prices: &Prices, what: Use, parts: u64) {
    let start = processor_time();
    if let Some(known) = datatype::of(abi, what.datatype) {
        if let Some(datatype) = &known.datatype {
            let _ = datatype::layout(datatype, what.count as u64);
        }
    }
    prices.learn(parts, since(start));
}

/// Nanoseconds in which the MPI library packs the elements, which may be those of a receive: what
/// is in them does not matter. `None` where that cannot be tried, or takes long.
fn packed_by_library(what: Use, bytes: u64) -> Option<u64> {
    /// Bytes that are packed to find out.
    const MOST: u64 = 256 << 10;
    /// What a library may want beyond the bytes.
    const MORE: usize = 256;
    let comm = what
        .comm
        .filter(|_| !what.buffer.is_null() && bytes <= MOST)?;
    let count = c_int::try_from(what.count).ok()?;
    let mut room: Vec<u8> = Vec::with_capacity(bytes as usize + MORE);
    let mut shortest = u64::MAX;
    // The first time, memory is touched and read.
    for _ in 0..2 {
        let mut end = 0;
        let start = Instant::now();
        // SAFETY: the program's elements, which this call may use; room for more.
        let code = unsafe {
            let (to, room) = (room.as_mut_ptr().cast(), (bytes as usize + MORE) as c_int);
            pmpi::pack(what.buffer, count, what.datatype, to, room, &mut end, comm)
        };
        if code != 0 {
            return None;
        }
        shortest = shortest.min(start.elapsed().as_nanos() as u64);
    }
    Some(shortest)
}

/// What layouts cost, and what they gain, in nanoseconds.
#[derive(Debug)]
struct Prices {
    /// A layout of few parts.
    layout: AtomicU64,
    /// A part of one with many, in 1/256.
    part: AtomicU64,
    /// Packing in the MPI library, and here: of no bytes, and of a KiB more.
    theirs: [u64; 2],
    ours: [u64; 2],
}

/// What the calls that describe a type give as `parts`, below which their number does not matter.
const FEW: u64 = 64;

impl Prices {
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
    fn learn(&self, parts: u64, took: u64) {
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

/// The prices in this process, measured with a communicator; `None` if there is none, or the
/// library makes no types for us.
fn prices(abi: &Abi, comm: Option<Word>) -> Option<&'static Prices> {
    static PRICES: OnceLock<Option<Prices>> = OnceLock::new();
    match PRICES.get() {
        Some(prices) => prices.as_ref(),
        None => {
            let comm = comm?;
            PRICES.get_or_init(|| measure(abi, comm)).as_ref()
        }
    }
}

/// A type of our own, freed in the end.
struct Sample {
    datatype: Word,
    memory: Vec<u8>,
}

/// Bytes of a piece of a sample, of which every second one is there.
const PIECE: usize = 8;

impl Sample {
    fn new(abi: &Abi, pieces: usize, is_regular: bool) -> Option<Sample> {
        let mut datatype = 0;
        // SAFETY: as many offsets as pieces; a word has room for either kind of handle.
        let answers = unsafe {
            let (count, length) = (pieces as c_int, PIECE as c_int);
            let made = if is_regular {
                pmpi::type_vector(count, length, 2 * length, abi.byte, &mut datatype)
            } else {
                let lengths = vec![length; pieces];
                let place = |i: usize| ((2 * i + i * i / 3 % 2) * PIECE) as isize;
                let places: Vec<isize> = (0..pieces).map(place).collect();
                let (lengths, places) = (lengths.as_ptr(), places.as_ptr());
                pmpi::type_create_hindexed(count, lengths, places, abi.byte, &mut datatype)
            };
            match made {
                0 => pmpi::type_commit(&mut datatype),
                code => code,
            }
        };
        (answers == 0).then(|| Sample {
            datatype,
            memory: vec![0; 3 * pieces * PIECE],
        })
    }

    /// The layout, and what it took.
    fn layout(&self, abi: &Abi) -> Option<(std::sync::Arc<datatype::Prepared>, u64)> {
        let start = processor_time();
        let known = datatype::of(abi, self.datatype)?;
        let prepared = datatype::layout(known.datatype.as_ref()?, 1)?;
        Some((prepared, since(start)))
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        // SAFETY: a type of our own.
        unsafe { pmpi::type_free(&mut self.datatype) };
    }
}

/// Processor time of this thread (clock_gettime(2), `CLOCK_THREAD_CPUTIME_ID`). A layout is made
/// once, so there is no shortest of several times; and by a clock that runs on while another rank
/// has the processor, a layout would seem to cost milliseconds, and types would never earn one.
fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a writable output.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Nanoseconds of processor time since then.
fn since(start: Duration) -> u64 {
    processor_time().saturating_sub(start).as_nanos() as u64
}

/// The shortest of several times.
fn shortest(mut work: impl FnMut() -> bool) -> Option<u64> {
    const TIMES: usize = 3;
    let mut times = (0..TIMES).map(|_| {
        let start = Instant::now();
        work().then(|| start.elapsed().as_nanos() as u64)
    });
    times.try_fold(u64::MAX, |least, time| Some(least.min(time?)))
}

/// What making and using layouts of two types takes here: some ten microseconds.
#[cold]
fn measure(abi: &Abi, comm: Word) -> Option<Prices> {
    /// Pieces of a short type, and of a long one.
    const PIECES: [usize; 2] = [64, 1024];
    let mut layout = u64::MAX;
    let (mut theirs, mut ours) = ([0; 2], [0; 2]);
    for (i, pieces) in PIECES.into_iter().enumerate() {
        let sample = Sample::new(abi, pieces, true)?;
        let (prepared, took) = sample.layout(abi)?;
        layout = layout.min(took);
        let (from, bytes) = (sample.memory.as_ptr(), pieces * PIECE);
        let mut room = vec![0u8; bytes + 256];
        theirs[i] = shortest(|| {
            let (mut end, to, size) = (0, room.as_mut_ptr().cast(), room.len() as c_int);
            // SAFETY: elements and room of our own.
            unsafe { pmpi::pack(from.cast(), 1, sample.datatype, to, size, &mut end, comm) == 0 }
        })?;
        ours[i] = shortest(|| {
            // SAFETY: elements and room of our own.
            unsafe {
                prepared
                    .layout
                    .pack_raw(from, 0..bytes as u64, room.as_mut_ptr())
            };
            true
        })?;
    }
    // The first one took longer, since code was new.
    let mut again = Sample::new(abi, PIECES[0], true)?;
    layout = layout.min(again.layout(abi)?.1);
    again = Sample::new(abi, FEW as usize * 4, false)?;
    let irregular = again.layout(abi)?.1;
    // An offset and a length for each piece.
    let parts = 8 * FEW - FEW;
    let kib = |times: [u64; 2]| {
        let more = ((PIECES[1] - PIECES[0]) * PIECE / 1024) as u64;
        let each = times[1].saturating_sub(times[0]).div_ceil(more);
        let first = each * (PIECES[0] * PIECE) as u64 / 1024;
        [times[0].saturating_sub(first), each]
    };
    Some(Prices {
        layout: AtomicU64::new(layout.max(1)),
        part: AtomicU64::new((irregular.saturating_sub(layout) * 256 / parts).max(1)),
        theirs: kib(theirs),
        ours: kib(ours),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prices() -> Prices {
        Prices {
            layout: AtomicU64::new(3000),
            part: AtomicU64::new(256 * 5),
            theirs: [20, 200],
            ours: [10, 10],
        }
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
    /// earned. A row has the bytes of a use, the parts of the type, and the nanoseconds in which the
    /// MPI library packs the elements, if it does.
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
            let mut worth = Worth {
                nanoseconds: prices.gain(bytes),
                measured: false,
                less: 0,
            };
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
    fn what_a_layout_costs_does_not_depend_on_who_has_the_processor() {
        let (start, wall) = (processor_time(), Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        assert!(wall.elapsed() >= Duration::from_millis(50));
        assert!(since(start) < 25_000_000);
        // It does run.
        while since(start) < 1_000_000 {}
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
}
