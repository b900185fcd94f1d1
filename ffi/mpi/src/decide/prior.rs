// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is faster with libcopy than with an MPI library, as measured: the prior of all that is
//! learned while a program runs, and all that is known where nothing is. `scripts/bench mpi` found
//! it; the figures for messages come from two ranks, vectors of 512 bytes to 64 KiB in pieces of 8
//! bytes to 4 KiB, and the layouts of applications (`--ops typed-pingpong`).

use std::ops;
use std::sync::OnceLock;

use libcopy::collective::Op;
use libcopy::p2p::header::wire_size;
use libcopy::plan::{MOST_IN_CHUNKS, MOST_MEMBERS};
use libcopy::policy::Oversubscription;

use crate::bootstrap;
use crate::decide::environment;
use crate::library::abi::{Abi, MpiImplementation, function};
use crate::library::pmpi;
use crate::library::stats::{FUNCTIONS, Function, Outcome};

/// From how many bytes on, and up to how many.
type Range = (u64, u64);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const NEVER: Range = (u64::MAX, 0);

const fn from(bytes: u64) -> Range {
    (bytes, u64::MAX)
}

/// Messages per rank (for reductions, what each rank contributes) inside a machine that are faster
/// here, by oversubscription: none, moderate, heavy. The same on every rank of every machine,
/// because all ranks of a communicator must decide alike.
fn faster(library: MpiImplementation, function: Function) -> [Range; 3] {
    use MpiImplementation::{Mpich, OpenMpi};
    let Some(op) = function.op() else {
        return [NEVER; 3];
    };
    if function.is_nonblocking() {
        // The rank that waits does the work: of two and four ranks on two processors of Zen 4
        // (`tests/peers/mpi_coll.c` with `LIBCOPY_MPI_MIN=1`).
        let (alone, shared) = match (op, library) {
            (Op::Allgather | Op::Reduce | Op::Allreduce | Op::ReduceScatter, _) => {
                (from(64 * KIB), from(64 * KIB))
            }
            (Op::Gather, _) | (Op::Scatter, Mpich) => (from(256 * KIB), from(256 * KIB)),
            (Op::Scatter, OpenMpi) => (from(256 * KIB), from(MIB)),
            // A request of our own costs more than a short message saves. MPICH polls, which hurts
            // it wherever ranks share a processor.
            (Op::Bcast, Mpich) => (from(256 * KIB), from(256 * KIB)),
            (Op::Bcast, OpenMpi) => (from(256 * KIB), from(MIB)),
            // MPICH's regular ones are faster than its others.
            (Op::Alltoall, Mpich) => match function {
                Function::Ialltoall | Function::AlltoallInit => (NEVER, from(256 * KIB)),
                _ => (from(256 * KIB), from(256 * KIB)),
            },
            (Op::Scan | Op::Exscan, Mpich) => (from(64 * KIB), from(64 * KIB)),
            (Op::Scan, OpenMpi) => ((64 * KIB, 512 * KIB), NEVER),
            (Op::Alltoall | Op::Exscan, OpenMpi) | (Op::Control | Op::Barrier, _) => (NEVER, NEVER),
        };
        return [alone, shared, shared];
    }
    match (op, library) {
        (Op::Gather | Op::ReduceScatter, _) => [from(64 * KIB); 3],
        // Where leaves wait for one root, context switches count until the bytes do.
        (Op::Scatter, OpenMpi) => [from(64 * KIB), from(128 * KIB), from(256 * KIB)],
        (Op::Scatter, Mpich) => [from(64 * KIB), from(512 * KIB), from(512 * KIB)],
        // Those of few ranks go in large chunks where ranks share processors.
        (Op::Allgather, _) => [from(64 * KIB); 3],
        // Of 32 and 64 ranks on two processors 64 KiB took 0.55 and 1.6 ms, plain 1.9 and 4.8,
        // 1 MiB 8.9 and 26, plain 11 and 29.
        (Op::Allreduce, _) => [from(64 * KIB), from(32 * KIB), from(32 * KIB)],
        // MPICH polls, which hurts it wherever ranks share a processor.
        (Op::Alltoall | Op::Reduce, Mpich) | (Op::Bcast, _) => [from(64 * KIB); 3],
        // What does not fit into a chunk of each: 256 KiB took eight and 16 ranks on two processors
        // 1.15 and 1.22 times as long. Four gain up to 1 MiB.
        (Op::Alltoall, OpenMpi) => [from(64 * KIB), from(64 * KIB), NEVER],
        // In chunks; with a processor for each rank its root fetches and combines while the leaves
        // go on.
        (Op::Reduce, OpenMpi) => [NEVER, from(64 * KIB), from(256 * KIB)],
        // Its ranks wait for each other in a chain.
        (Op::Scan | Op::Exscan, Mpich) => [from(64 * KIB); 3],
        (Op::Scan, OpenMpi) => [(64 * KIB, 256 * KIB), from(64 * KIB), from(64 * KIB)],
        (Op::Exscan, OpenMpi) => [NEVER, from(64 * KIB), from(64 * KIB)],
        (Op::Control | Op::Barrier, _) => [NEVER; 3],
    }
}

/// The same of more ranks than a team without groups has, where that is less: of these allgathers
/// and alltoalls do not go in chunks ([`libcopy::plan::MOST_MEMBERS`]).
fn faster_of_many(library: MpiImplementation, function: Function) -> Option<[Range; 3]> {
    use MpiImplementation::{Mpich, OpenMpi};
    match (function, library) {
        // The more ranks, the more switches; Open MPI's ring has few of them.
        (Function::Allgather | Function::Allgatherv, OpenMpi) => {
            Some([from(64 * KIB), (64 * KIB, 512 * KIB), (64 * KIB, 128 * KIB)])
        }
        (Function::Allgather | Function::Allgatherv, Mpich) => {
            Some([from(64 * KIB), (64 * KIB, MIB), (64 * KIB, MIB)])
        }
        // Of 64 and 256 KiB neither is faster.
        (Function::Scatter | Function::Scatterv, OpenMpi) => {
            Some([from(64 * KIB), from(512 * KIB), from(512 * KIB)])
        }
        (Function::Alltoall | Function::Alltoallv | Function::Alltoallw, OpenMpi) => {
            Some([from(64 * KIB), NEVER, NEVER])
        }
        // In chunks all ranks wait for all, while the library's leaves run ahead: 64 KiB took 32
        // and 64 ranks 0.42 and 1.1 ms, plain 0.32 and 0.67.
        (Function::Reduce, OpenMpi) => Some([NEVER, from(MIB), NEVER]),
        _ => None,
    }
}

/// Short calls that are faster, by oversubscription: a rank publishes its bytes, and the others
/// read them. In microseconds, for two ranks of an AMD EPYC (Zen 4) with a processor each, plain
/// and with everything intercepted, with roots in turn: under Open MPI 4.1 512 bytes take in a
/// broadcast 0.72 and 0.50, a gather 0.74 and 0.49, a scatter 0.74 and 0.54, an allgather 1.03 and
/// 0.55, an alltoall 1.00 and 0.58, an allreduce 1.06 and 0.73, a reduce 0.76 and 0.72; 4 KiB 4.4
/// and 1.6, 3.2 and 1.5, 3.1 and 1.6, 3.9 and 2.1, 3.9 and 2.4, 3.6 and 2.1, 3.2 and 1.8. Of 8
/// bytes an allreduce takes 0.22 and 0.18, an allgather 0.47 and 0.41, an alltoall 0.56 and 0.39
/// (all ranks come to them together); with a root that stays the same, as processors that share a
/// cache, a broadcast 0.08 and 0.07, a gather 0.09 and 0.08, a scatter 0.07 and 0.08, and with
/// roots in turn 0.16 and 0.11, 0.17 and 0.11, 0.14 and 0.12; a reduce 0.11 and 0.10, but of 128
/// bytes 0.12 and 0.13.
/// Under MPICH 4.0 8 bytes take 0.81 and 0.36, 0.73 and 0.35, 0.69 and 0.40, 0.73 and 0.42, 0.81
/// and 0.39, 0.92 and 0.52, 0.95 and 0.53; reduces of 128 bytes to 1 KiB to one root, whose leaves
/// run ahead, take longer here, which the governor finds out.
///
/// Ranks that share processors: four and 32 on two, in microseconds, under Open MPI, roots the same
/// (`scripts/bench mpi --ops short` with `LIBCOPY_MPI_MIN=1`). Of 512 bytes a broadcast took 4.3
/// and 0.4, 59 and 3.3, a gather 4.2 and 2.2, 67 and 40, a scatter 6.7 and 0.9, 51 and 10, an
/// allgather 8.4 and 2.9, 445 and 116, an alltoall 5.5 and 3.1, 350 and 228, an allreduce 8.3 and
/// 3.4, 344 and 171, a reduce 4.0 and 2.0, but 67 and 125; of 16 KiB 11 and 2.7, 146 and 14; 16 and
/// 3.8, 207 and 132; 20 and 5.1, 127 and 186; 34 and 9.6, 3,110 and 1,085; 26 and 13, 3,420 and
/// 2,640; 46 and 15, 1,016 and 341; 13 and 14, 168 and 223. Of 8 bytes those without a root gain as
/// much (0.7 to 0.25 of plain); with a root that stays the same plain ones run farther ahead: a
/// broadcast 0.34 and 0.30, 2.7 and 1.3, a gather 0.4 and 0.8, 1.9 and 11, a scatter 0.34 and 0.42,
/// 5.4 and 3.4, a reduce 0.3 and 0.7, 1.1 and 11. MPICH polls, which hurts it there: milliseconds,
/// where ours take one or two, but for broadcasts and scatters of less than 8 KiB. Scans
/// (`mpi_coll` in `tests/peers`): of 8 KiB with Open MPI 3.1 and 1.2, exclusive ones 2.4 and 0.9;
/// of 8 bytes and of 8 KiB with MPICH 2.3 and 0.7, and 12 and 4.4, exclusive ones 0.9 and 0.65, and
/// 4.2 and 3.5.
///
/// From 8 to 64 KiB the bytes go piece by piece, in chunks past the caches, or by the kernel's
/// copy (`mpi_coll --min 4096`): 16 KiB take under Open MPI in a broadcast 4.0 and 2.5, a gather
/// 4.0 and 2.5, a scatter 4.6 and 3.0, an allgather 5.5 and 3.3, an alltoall 5.6 and 3.3, a reduce
/// 4.0 and 3.3, an allreduce 18 and 5.1, a reduce_scatter 11 and 2.9; under MPICH 4.1 and 2.6, 4.6
/// and 2.7, 4.5 and 2.8, 7.7 and 3.4, 10 and 3.4, 5.0 and 3.5, 5.8 and 6.0, 3.9 and 3.2.
///
/// Of irregular ones only alltoalls, whose parts go through the rings, and allgathers, which take
/// what an allgather takes and some 0.5 us to look at the lengths: 4 KiB 3.4 and 1.3 under Open
/// MPI, 1.2 and 1.1 under MPICH, 16 KiB 6.1 and 3.4, 8.4 and 3.9. Scans of 512 bytes take 0.42 and
/// 0.24 under Open MPI (of 256 bytes 0.29 and 0.41), exclusive ones the same; reduce_scatters of
/// 256 bytes for each rank 1.17 and 0.77 under MPICH. Where 4 MiB of other memory are written
/// between two calls, these gain up to 5.1 times, and none takes longer.
fn faster_if_short(library: MpiImplementation, function: Function) -> [Range; 3] {
    use MpiImplementation::{Mpich, OpenMpi};
    const LEAST_SCATTER: u64 = 128;
    const LEAST_REDUCE: u64 = 512;
    const BELOW_LONG: u64 = 64 * KIB - 1;
    let short = |least| (least, BELOW_LONG);
    match (function, library) {
        (Function::Allreduce, _) => [short(1), (1, 32 * KIB), (1, 32 * KIB)],
        (Function::Reduce, OpenMpi) => [short(LEAST_REDUCE), short(512), NEVER],
        (Function::Bcast, OpenMpi) => [short(1), short(64), short(64)],
        (Function::Alltoall, OpenMpi) => [short(1), short(1), (1, 32 * KIB)],
        (Function::Gather, OpenMpi) => [short(1), short(256), short(128)],
        (Function::Scatter, OpenMpi) => [short(LEAST_SCATTER), (256, 32 * KIB), (128, 8 * KIB)],
        // Of 32 ranks on two processors a broadcast of 8 KiB took 13 us plain and 16 here.
        (Function::Bcast, Mpich) => [short(1), short(8 * KIB), short(8 * KIB + 1)],
        (Function::Scatter, Mpich) => [short(1), short(8 * KIB), short(8 * KIB)],
        (Function::Allgather, _)
        | (Function::Gather | Function::Alltoall | Function::Reduce, Mpich) => [short(1); 3],
        (Function::ReduceScatter | Function::ReduceScatterBlock, OpenMpi) => {
            [short(4 * KIB), NEVER, NEVER]
        }
        (Function::ReduceScatter | Function::ReduceScatterBlock, Mpich) => {
            [short(64), NEVER, NEVER]
        }
        (Function::Allgatherv, OpenMpi) => [short(4000), NEVER, NEVER],
        (Function::Allgatherv, Mpich) => [short(256), NEVER, NEVER],
        (Function::Alltoallv | Function::Alltoallw, OpenMpi) => [(4000, 8 * KIB), NEVER, NEVER],
        (Function::Alltoallv | Function::Alltoallw, Mpich) => [(8 * KIB, 32 * KIB); 3],
        (Function::Scan | Function::Exscan, Mpich) => [short(1); 3],
        (Function::Scan, OpenMpi) => [short(512), short(1), short(1)],
        (Function::Exscan, OpenMpi) => [(512, 16 * KIB), short(1), short(1)],
        _ => [NEVER; 3],
    }
}

/// Bytes of all parts together up to which a short call is faster where many ranks share processors
/// heavily. Of 32 and 64 ranks on two processors, roots the same, scatters of 8 KiB took 169 us
/// (441 plain) and 304 (308), of 16 KiB 134 (128) and 330 (322); alltoalls of 16 KiB 2.5 ms (3.4)
/// and 16 (19), of 32 KiB 6.6 (6.5) and 32 (26).
fn most_together(library: MpiImplementation, function: Function) -> u64 {
    match (function, library) {
        (Function::Scatter, MpiImplementation::OpenMpi) => 256 * KIB,
        (Function::Alltoall, MpiImplementation::OpenMpi) => MIB,
        _ => u64::MAX,
    }
}

/// The most ranks that gain by a call of `bytes` bytes where they share processors. An allreduce of
/// 64 KiB that goes neither through slots nor in chunks, as those of more ranks, took 64 ranks on
/// two processors 8.2 ms where plain took 4.8.
fn most_ranks(library: MpiImplementation, function: Function, bytes: u64) -> usize {
    let is_between = (32 * KIB + 1..2 * MIB).contains(&bytes);
    match (function, library) {
        (Function::Allreduce, MpiImplementation::OpenMpi) if is_between => MOST_IN_CHUNKS,
        _ => usize::MAX,
    }
}

/// Of each function: [`faster_if_short`], [`faster`], and that of many ranks.
type Ranges = [[[Range; 3]; 3]; FUNCTIONS];

/// What is asked for each call, put together once.
fn ranges(library: MpiImplementation) -> &'static Ranges {
    static RANGES: [OnceLock<Ranges>; 2] = [const { OnceLock::new() }; 2];
    RANGES[library as usize].get_or_init(|| {
        let mut ranges = [[[NEVER; 3]; 3]; FUNCTIONS];
        for function in Function::all() {
            let of_few = faster(library, function);
            ranges[function as usize] = [
                faster_if_short(library, function),
                of_few,
                faster_of_many(library, function).unwrap_or(of_few),
            ];
        }
        ranges
    })
}

/// Whether the answer is the same for all broadcasts whose length has this logarithm, whatever the
/// communicator.
pub fn is_uniform(library: MpiImplementation, power: u32) -> bool {
    let (first, last) = (1u64 << power.min(62), (2u64 << power.min(62)) - 1);
    let ranges = ranges(library)[Function::Bcast as usize].iter().flatten();
    let ends = ranges.flat_map(|(least, most)| [*least, most.saturating_add(1)]);
    let mut ends = ends.chain([LEAST_OF_PAIRS]).chain(environment::least());
    ends.all(|end| end <= first || end > last)
}

/// Bytes from which on two ranks that share processors with others gain by what is short, under
/// Open MPI. Of four ranks on two processors, pairs that are rows and columns in turn took for
/// broadcasts of 128 bytes 1.88 us plain and 1.97 with all of them intercepted, reduces 1.83 and
/// 2.06, allreduces 2.18 and 2.08, which is more processor time for all; of 512 bytes 2.7 and 2.2,
/// 2.4 and 2.0, 4.9 and 2.5 (EPYC of Zen 4). What the governor times is inside a call, and such a
/// difference is mostly in what comes behind it.
const LEAST_OF_PAIRS: u64 = 512;

/// Bytes from which on such a reduction gains on one processor and loses on another (Zen 4 and Zen
/// 3) where each rank has one; where ranks share them, context switches decide.
const UNCLEAR: u64 = MIB;

/// Short and long messages of a function that may be faster here, for what is known of how ranks
/// and processors go together.
fn may_be_faster(
    library: MpiImplementation,
    function: Function,
    known: Option<Oversubscription>,
) -> [[Range; 3]; 2] {
    let long = faster(library, function);
    let of = |all: [Range; 3]| known.map_or(all, |under| [all[under as usize]; 3]);
    [faster_if_short(library, function), long].map(of)
}

/// The smallest message that may be faster here, for what is known of how ranks and processors go
/// together; `u64::MAX` if none is.
pub fn least(
    library: MpiImplementation,
    function: Function,
    known: Option<Oversubscription>,
) -> u64 {
    let all = may_be_faster(library, function, known)
        .into_iter()
        .flatten();
    all.map(|range| range.0).min().unwrap_or(u64::MAX)
}

/// The messages that are longer than any short one and shorter than any long one that may be faster
/// here, for what is known of how ranks and processors go together; empty where there are none.
pub fn between(
    library: MpiImplementation,
    function: Function,
    known: Option<Oversubscription>,
) -> ops::Range<u64> {
    let [short, long] = may_be_faster(library, function, known);
    let most = short.into_iter().map(|range| range.1).max().unwrap_or(0);
    let least = long.into_iter().map(|range| range.0).min().unwrap_or(0);
    // Without short ones, what is shorter than long ones is shorter than all.
    if most == 0 {
        return 0..0;
    }
    most.saturating_add(1)..least.max(most.saturating_add(1))
}

/// Whether a collective over several machines is faster here, where the MPI library goes on moving
/// the bytes between these: as far as `scripts/mpi-nodes` with `tests/peers/mpi_coll.c` found,
/// whose network is no slower than memory, so that only what is copied inside the nodes counts.
pub fn is_faster_across(function: Function, bytes: u64) -> bool {
    let least = match function.op() {
        Some(Op::Bcast | Op::Gather) => 4 * MIB,
        Some(Op::Allgather | Op::Reduce) => MIB,
        _ => u64::MAX,
    };
    environment::least().is_some() || bytes >= least
}

/// What may become of the calls of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Results are the same either way: whatever costs less.
    Free,
    /// The same way from the first call on.
    Fixed,
}

/// Where collectives with `bytes` bytes are faster here: what is asked once for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prior {
    /// By oversubscription, of as many ranks as there may be, and of many.
    faster: [bool; 3],
    faster_of_many: [bool; 3],
    /// Of the call.
    pub bytes: u64,
    /// [`most_together`]
    most_together: u64,
    /// [`most_ranks`]
    most_ranks: usize,
    is_long: bool,
    /// Whether it may be faster since it is short.
    is_short: bool,
    /// Whether two ranks that share processors with others gain by it, too.
    suits_pairs: bool,
}

impl Prior {
    /// For a function of this library's, or what `LIBCOPY_MPI_MIN` asks for.
    pub fn of(library: MpiImplementation, function: Function, bytes: u64) -> Prior {
        let mut prior = Prior::of_known(library, function, bytes, bootstrap::known());
        prior.suits_pairs |= !bootstrap::all_share_processors();
        prior
    }

    /// The same where it is `known` how the ranks of each communicator and processors go together,
    /// or not: what [`least`] and [`between`] say for that has to go the same way, whether a rank
    /// has asked these first or not.
    pub fn of_known(
        library: MpiImplementation,
        function: Function,
        bytes: u64,
        known: Option<Oversubscription>,
    ) -> Prior {
        let [short, ranges, of_many] = &ranges(library)[function as usize];
        let contains = |(least, most): Range| (least..=most).contains(&bytes);
        let may_be = |under| known.is_none_or(|known| known as usize == under);
        let faster = |long: &[Range; 3]| match environment::least() {
            Some(least) => [bytes >= least; 3],
            None => [0, 1, 2].map(|under: usize| {
                may_be(under) && (contains(short[under]) || contains(long[under]))
            }),
        };
        Prior {
            faster: faster(ranges),
            faster_of_many: faster(of_many),
            bytes,
            most_together: match environment::least() {
                None if bytes < 64 * KIB => most_together(library, function),
                _ => u64::MAX,
            },
            most_ranks: match environment::least() {
                None => most_ranks(library, function, bytes),
                Some(_) => usize::MAX,
            },
            is_long: ranges.iter().any(|range| bytes >= range.0),
            is_short: short.iter().copied().any(contains),
            suits_pairs: bytes >= LEAST_OF_PAIRS
                || library == MpiImplementation::Mpich
                || environment::least().is_some(),
        }
    }

    /// The same for a communicator of so many ranks.
    #[inline]
    pub fn among(self, ranks: usize) -> Prior {
        if ranks <= MOST_MEMBERS {
            return self;
        }
        let mut faster = self.faster_of_many;
        let all = self.bytes.saturating_mul(ranks as u64);
        faster[Oversubscription::Heavy as usize] &= all <= self.most_together;
        if ranks > self.most_ranks {
            faster = [faster[0], false, false];
        }
        Prior { faster, ..self }
    }

    /// Whether that may be so for a communicator of so many ranks.
    #[inline]
    pub fn suits(self, ranks: usize) -> bool {
        ranks > 2 || self.suits_pairs
    }

    /// Whether that is so for any number of ranks.
    #[inline]
    pub fn is_anywhere(self) -> bool {
        self.faster.contains(&true)
    }

    /// Whether it is for this one, as far as the oversubscription is known. Where the calls all
    /// have to go one way, no trial mends a wrong choice: only what is faster on each processor
    /// that it was measured on, and short ones of many ranks with a processor each were not.
    pub fn is_under(self, known: Option<Oversubscription>, order: Order) -> bool {
        let is_measured = self.bytes < UNCLEAR && !self.is_short;
        let is_clear = order == Order::Free || is_measured || environment::least().is_some();
        let is_faster =
            |under| (is_clear || under != Oversubscription::None) && self.faster[under as usize];
        match known {
            Some(under) => is_faster(under),
            None => Oversubscription::ALL.into_iter().any(is_faster),
        }
    }

    /// Why it is forwarded where it is not: what is long enough for some number of ranks may be too
    /// long for this one.
    pub fn why_not(self) -> Outcome {
        if self.is_long {
            Outcome::NoGain
        } else {
            Outcome::Small
        }
    }
}

/// Nanoseconds that it takes here to find out what to do with a message.
const FIXED: u64 = 20;

/// Which messages are intercepted, which are packed here and moved by the library as bytes, and
/// which it moves as fast as we do; and what it says of those that are too long.
#[derive(Debug)]
pub struct Choice {
    /// Bytes from which on a message that is not dense is intercepted.
    least: u64,
    /// Bytes from which on a dense one is: what the library does not send at once. Measured from 2
    /// to 256 KiB on an AMD EPYC (Zen 4), as far as two processors were from each other, plain and
    /// preloaded in turns: half a round trip, both directions at once by `MPI_Sendrecv`, four
    /// messages each way by `MPI_Isend` and `MPI_Irecv`, sixteen in a row one way; two ranks, and
    /// under Open MPI four on two processors (`docs/performance/mpi.md`).
    least_dense: u64,
    /// Bytes below which such a message may be packed here and moved as bytes. Never more than the
    /// library sends at once: what is longer, Open MPI writes into the receiver's memory as a whole
    /// if both sides are dense, whether there is room for it or not.
    packed: u64,
    /// What it takes longer to move packed bytes than elements, apart from packing, in nanoseconds
    /// per KiB: packing has to make up for that.
    toll: u64,
    /// Pieces of at least this many bytes it moves as fast in short messages.
    long_piece: u64,
    /// Pieces of fewer bytes, if they follow a rule, as well, in messages of fewer bytes than
    /// these.
    tiny: (u64, u64),
    /// This many pieces, of this many bytes at least, it has the kernel copy at once.
    few_pieces: (u64, u64),
    truncated: Truncated,
}

/// How many bytes a status names whose message is longer than its receive.
#[derive(Debug)]
enum Truncated {
    /// Those of the message.
    Total,
    /// Those that there was room for, unless the message is not dense and longer than this: then
    /// those of the message.
    Room(u64),
    /// None: what an earlier operation has left there, which is 1 for most.
    Unset,
}

pub(super) const OPEN_MPI_4: Choice = Choice {
    least: 4000,
    least_dense: 4 * KIB,
    packed: 4000,
    toll: 15,
    long_piece: 4 * KIB,
    tiny: (0, 0),
    few_pieces: (0, 0),
    truncated: Truncated::Total,
};

pub(super) const OPEN_MPI_5: Choice = Choice {
    tiny: (16, 12 * KIB),
    ..OPEN_MPI_4
};

pub(super) const MPICH_4: Choice = Choice {
    least: 12 * KIB,
    // With 8 KiB half a round trip takes 1.28 us plain and 1.32 here where two processors share a
    // cache, four messages each way 5.7 and 6.8; where they share none 4.6 and 2.5, 19 and 20.
    least_dense: 8 * KIB + 1,
    packed: 8000,
    toll: 60,
    long_piece: 256,
    truncated: Truncated::Unset,
    ..OPEN_MPI_4
};

pub(super) const MPICH_5: Choice = Choice {
    least: 8000,
    least_dense: 8 * KIB,
    toll: 90,
    long_piece: 1024,
    few_pieces: (64, 2 * KIB),
    // Up to here it sends elements that are not dense without asking the receiver first.
    truncated: Truncated::Room(16 * KIB),
    ..MPICH_4
};

impl Choice {
    /// For this library.
    pub fn of(abi: &Abi) -> &'static Choice {
        // What Open MPI has from 5.0 on.
        function!(NEW = c"PMPI_Isendrecv");
        if abi.is_open_mpi() {
            [&OPEN_MPI_4, &OPEN_MPI_5][usize::from(NEW.if_any() != 0)]
        } else {
            [&MPICH_4, &MPICH_5][usize::from(pmpi::is_mpi_5())]
        }
    }

    /// From how many bytes on messages are intercepted, dense ones and others, or what
    /// `LIBCOPY_MPI_MIN` asks for; never fewer than the shortest header has.
    pub fn least(&self) -> [u64; 2] {
        let floor = wire_size(0) as u64;
        [self.least_dense, self.least].map(|usual| environment::least().unwrap_or(usual).max(floor))
    }

    /// How many bytes the library says of a message of `total` bytes that came where there was room
    /// for `capacity`.
    pub fn truncated(&self, is_dense: bool, total: u64, capacity: u64) -> u64 {
        match self.truncated {
            Truncated::Room(eager) if is_dense || total <= eager => capacity,
            Truncated::Room(_) | Truncated::Total => total,
            Truncated::Unset => 1,
        }
    }

    /// Whether the library delivers the bytes of a message that is too long which there is room
    /// for.
    pub fn delivers_beginnings(&self) -> bool {
        !matches!(self.truncated, Truncated::Unset)
    }

    /// Whether the library moves `bytes` in `pieces` pieces, which follow a rule or do not, as fast
    /// as we do together.
    pub fn is_fast(&self, is_regular: bool, bytes: u64, pieces: u64) -> bool {
        /// Bytes below which pieces have to be long.
        const SHORT: u64 = 32 * KIB;
        let each = bytes / pieces.max(1);
        let is_tiny = each < self.tiny.0 && bytes < self.tiny.1 && is_regular;
        let is_few = (2..=self.few_pieces.0).contains(&pieces) && each >= self.few_pieces.1;
        let is_long = bytes < SHORT && each >= self.long_piece;
        environment::least().is_none() && (is_long || is_tiny || is_few)
    }

    /// Whether `bytes` in `pieces` pieces are packed here, if they stay on this machine and packing
    /// pays; from `LIBCOPY_MPI_MIN` bytes on everything is intercepted, for tests.
    pub fn packs(&self, bytes: u64, pieces: u64) -> bool {
        let asked = environment::packed().or_else(environment::least);
        let below = asked.map_or(self.packed, |asked| asked.min(self.packed));
        pieces >= 2 && (1..below).contains(&bytes)
    }

    /// Nanoseconds that packing `bytes` has to take less, on both sides together, than in the
    /// library; `None` if the environment says what is packed.
    pub fn toll(&self, bytes: u64) -> Option<u64> {
        (!environment::is_packing_asked()).then(|| FIXED + bytes * self.toll / 1024)
    }
}

/// Bytes from which on `MPI_Pack` and `MPI_Unpack` are not slower here (`packing time` in
/// `ffi/mpi/tests` measures it).
pub const LEAST_PACKED: u64 = 64;

/// Whether the library packs pieces of this length, on average, as fast.
pub fn packs_as_fast(library: MpiImplementation, bytes: u64, pieces: u64) -> bool {
    let long_piece = match library {
        MpiImplementation::OpenMpi => 2 * KIB,
        MpiImplementation::Mpich => 8 * KIB,
    };
    bytes >= pieces.saturating_mul(long_piece)
}
