// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether a derived datatype has earned a layout.
//!
//! To ask the MPI library what a type is and to make its layout takes microseconds, more than many
//! types are ever worth: BLACS makes one for each call. So the calls that use a type are forwarded
//! until they have paid for it ([`crate::decide::price`]).
//!
//! Nothing of that is a constant of a machine. What a layout costs, and what packing with it gains,
//! is measured once per process by two types, when the first type is used for the second time; what
//! layouts have cost since corrects the price. Before a layout is made, the MPI library packs the
//! elements once, so that types that it packs well have to wait longer.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::decide::price::{FEW, Prices, Worth};
use crate::decide::worth::{EARNED, Entry, ONCE};
use crate::decide::{environment, threshold, worth};
use crate::library::abi::{Abi, Word};
use crate::library::pmpi;
use crate::types::{datatype, trial, type_size};

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
        ONCE => Worth::once(prices, bytes),
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
    let comm = what
        .comm
        .filter(|_| !what.buffer.is_null() && bytes <= MOST)?;
    let elements = (c_int::try_from(what.count).ok()?, what.datatype);
    let mut room: Vec<u8> = Vec::with_capacity(bytes as usize + trial::MORE);
    let to = (room.as_mut_ptr(), bytes);
    // The first time, memory is touched and read.
    // SAFETY: the program's elements, which this call may use; room for more.
    trial::shortest(2, || unsafe {
        trial::pack(what.buffer, elements, to, comm)
    })
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

/// What making and using layouts of two types takes here: some ten microseconds.
#[cold]
fn measure(abi: &Abi, comm: Word) -> Option<Prices> {
    /// Pieces of a short type, and of a long one.
    const PIECES: [usize; 2] = [64, 1024];
    const TIMES: u32 = 3;
    let mut layout = u64::MAX;
    let (mut theirs, mut ours) = ([0; 2], [0; 2]);
    for (i, pieces) in PIECES.into_iter().enumerate() {
        let sample = Sample::new(abi, pieces, true)?;
        let (prepared, took) = sample.layout(abi)?;
        layout = layout.min(took);
        let (from, bytes) = (sample.memory.as_ptr(), pieces * PIECE);
        let mut room = vec![0u8; bytes + trial::MORE];
        let (elements, to) = ((1, sample.datatype), (room.as_mut_ptr(), bytes as u64));
        theirs[i] = trial::shortest(TIMES, || {
            // SAFETY: elements and room of our own.
            unsafe { trial::pack(from.cast(), elements, to, comm) }
        })?;
        ours[i] = trial::shortest(TIMES, || {
            // SAFETY: elements and room of our own.
            unsafe { prepared.layout.pack_raw(from, 0..bytes as u64, to.0) };
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
    let part = irregular.saturating_sub(layout) * 256 / parts;
    Some(Prices::new(layout, part, kib(theirs), kib(ours)))
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_a_layout_costs_does_not_depend_on_who_has_the_processor() {
        let (start, wall) = (processor_time(), Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        assert!(wall.elapsed() >= Duration::from_millis(50));
        assert!(since(start) < 25_000_000);
        // It does run.
        while since(start) < 1_000_000 {}
    }
}
