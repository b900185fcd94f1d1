// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs the plans of a collective with a thread for each rank: what a machine does with them,
//! beside what is simulated.
//!
//! All memory is that of one process, as if ranks had attached each other's. It is read and written
//! in words that are atomic and not ordered, so a wrong plan gives a wrong result and no undefined
//! behaviour; what orders them is the progress of ranks, a line each. An element has two words, and
//! combining adds them.

use anyhow::{Context, Result, anyhow, bail};
use libcopy::plan::check::{contributed, expected};
use libcopy::plan::{
    After, Buffer, Call, Execution, Operation, Piece, Plan, Progress, Span, Step, Transport,
};
use libcopy::topology;
use std::convert::Infallible;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Barrier, PoisonError, RwLock};
use std::time::Instant;

/// Bytes of an element: two words.
pub const ELEMENT: usize = 16;

/// Polls without success after which a thread lets others run.
const SPINS: usize = 200;

/// A line that one rank writes and others read. Processors fetch two lines of 64 bytes at once.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

impl Line {
    fn word(progress: Progress) -> u64 {
        // The call has begun once it is not 0.
        1 + ((progress.stage as u64) << 48 | progress.bytes as u64)
    }
}

/// A rank's buffers, in words.
struct Memory {
    send: Vec<AtomicU64>,
    receive: Vec<AtomicU64>,
    scratch: Vec<AtomicU64>,
}

impl Memory {
    fn words(&self, buffer: Buffer) -> &[AtomicU64] {
        match buffer {
            Buffer::Send => &self.send,
            Buffer::Receive => &self.receive,
            Buffer::Scratch => &self.scratch,
        }
    }
}

struct Ranks {
    lines: Vec<Line>,
    memory: Vec<Memory>,
    chunk: usize,
}

impl Ranks {
    /// The words of a part of a span.
    fn words(&self, span: Span, start: usize, bytes: usize) -> &[AtomicU64] {
        let first = (span.at + start) / 8;
        &self.memory[span.rank].words(span.buffer)[first..first + bytes / 8]
    }
}

/// The ranks as one of them sees them.
struct Thread<'a> {
    ranks: &'a Ranks,
    rank: usize,
}

impl Transport for Thread<'_> {
    type Error = Infallible;

    fn has_begun(&self, rank: usize) -> bool {
        self.ranks.lines[rank].0.load(Acquire) > 0
    }

    fn has_come(&self, after: &After) -> bool {
        self.ranks.lines[after.rank].0.load(Acquire) >= Line::word(after.progress)
    }

    fn tell(&mut self, progress: Progress) {
        self.ranks.lines[self.rank]
            .0
            .store(Line::word(progress), Release);
    }

    fn chunk(&mut self, piece: &Piece, start: usize) -> usize {
        self.ranks.chunk.min(piece.bytes - start)
    }

    fn transfer(&mut self, piece: &Piece, start: usize, bytes: usize) -> Result<(), Infallible> {
        let to = self.ranks.words(piece.to, start, bytes);
        let sources = piece.from.iter();
        let sources = sources.map(|it| self.ranks.words(it.span, start, bytes));
        match &sources.collect::<Vec<_>>()[..] {
            [from] => {
                for (to, from) in to.iter().zip(*from) {
                    to.store(from.load(Relaxed), Relaxed);
                }
            }
            all => {
                for (index, to) in to.iter().enumerate() {
                    let words = all.iter().map(|from| from[index].load(Relaxed));
                    to.store(words.fold(0, u64::wrapping_add), Relaxed);
                }
            }
        }
        Ok(())
    }
}

fn words(bytes: usize) -> Vec<AtomicU64> {
    (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect()
}

fn fill(words: &[AtomicU64], rank: usize) {
    for (at, pair) in words.chunks_exact(2).enumerate() {
        let (a, b) = contributed(rank, at).unwrap_or_default();
        pair[0].store(a, Relaxed);
        pair[1].store(b, Relaxed);
    }
}

/// Seconds that a call takes, from when all ranks begin until the last one has ended, once for each
/// time. Before each, the ranks write what they contribute; behind the last, every element of every
/// result is compared with what it must be. The plans must have passed
/// [`check::run`](libcopy::plan::check::run): ranks whose plans wait for each other wait for ever.
///
/// # Errors
///
/// Threads that cannot be started, a thread that panics,
/// a call that combines in the order of ranks, lengths that are no multiples of [`ELEMENT`], and a
/// result that is wrong.
pub fn run(plans: &[Plan], call: &Call<'_>, chunk: usize, times: usize) -> Result<Vec<f64>> {
    let size = plans.len();
    if call.in_rank_order {
        bail!("threads combine by adding, which has no order");
    }
    let lengths = |rank| call.buffers(rank, size);
    if let Some(rank) = (0..size).find(|rank| call.lengths.block(*rank).len() % ELEMENT > 0) {
        let bytes = call.lengths.block(rank).len();
        bail!("{bytes} bytes: a length must be a multiple of {ELEMENT}");
    }
    let memory = plans.iter().enumerate().map(|(rank, plan)| Memory {
        send: words(lengths(rank).0),
        receive: words(lengths(rank).1),
        scratch: words(plan.scratch(rank).end),
    });
    let ranks = Ranks {
        memory: memory.collect(),
        lines: (0..size).map(|_| Line::default()).collect(),
        chunk: chunk.next_multiple_of(ELEMENT),
    };
    let (barrier, cpus) = (Barrier::new(size), topology::affinity());
    // Nobody begins before all are there: they would wait for one that could not be started.
    let gate = RwLock::new(false);
    let spans: Result<Vec<Vec<(Instant, Instant)>>> = std::thread::scope(|scope| {
        let mut is_open = gate.write().unwrap_or_else(PoisonError::into_inner);
        let start = |(rank, plan)| {
            let (ranks, barrier, cpus, gate) = (&ranks, &barrier, &cpus, &gate);
            std::thread::Builder::new().spawn_scoped(scope, move || {
                if !gate.read().is_ok_and(|is_open| *is_open) {
                    return Vec::new();
                }
                topology::pin(cpus, rank);
                let times = 0..times;
                times
                    .map(|_| once(ranks, plan, call, rank, barrier))
                    .collect()
            })
        };
        let threads: std::io::Result<Vec<_>> = plans.iter().enumerate().map(start).collect();
        *is_open = threads.is_ok();
        drop(is_open);
        let threads = threads.with_context(|| format!("{size} threads cannot be started"))?;
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|of_rank| of_rank.map_err(|_| anyhow!("a thread has panicked")))
            .collect()
    });
    let spans = spans?;
    compare(&ranks, call, size)?;
    let seconds = (0..times).map(|time| {
        let begin = spans
            .iter()
            .filter_map(|of_rank| of_rank.get(time))
            .map(|it| it.0)
            .max();
        let end = spans
            .iter()
            .filter_map(|of_rank| of_rank.get(time))
            .map(|it| it.1)
            .max();
        begin
            .zip(end)
            .map_or(0.0, |(begin, end)| end.duration_since(begin).as_secs_f64())
    });
    Ok(seconds.collect())
}

/// One call of one rank.
fn once(
    ranks: &Ranks,
    plan: &Plan,
    call: &Call<'_>,
    rank: usize,
    barrier: &Barrier,
) -> (Instant, Instant) {
    let memory = &ranks.memory[rank];
    ranks.lines[rank].0.store(0, Relaxed);
    fill(&memory.send, rank);
    if call.operation == Operation::Bcast && rank == call.root {
        fill(&memory.receive, rank);
    }
    barrier.wait();
    let begin = Instant::now();
    let mut execution = Execution::new(plan);
    let mut thread = Thread { ranks, rank };
    thread.tell(execution.progress());
    let mut waits = 0;
    loop {
        let Ok(step) = execution.poll(&mut thread);
        match step {
            Step::Moved => waits = 0,
            Step::Waits if waits < SPINS => {
                waits += 1;
                std::hint::spin_loop();
            }
            Step::Waits => std::thread::yield_now(),
            Step::Ended => break,
        }
    }
    let end = Instant::now();
    // Nobody writes what others may still read.
    barrier.wait();
    (begin, end)
}

fn compare(ranks: &Ranks, call: &Call<'_>, size: usize) -> Result<()> {
    let pairs = Call {
        element: ELEMENT,
        ..*call
    };
    let expected = expected(&pairs, size);
    for (rank, memory) in ranks.memory.iter().enumerate() {
        if call.operation == Operation::Exscan && rank == 0 {
            continue;
        }
        for (at, pair) in memory.receive.chunks_exact(2).enumerate() {
            let found = Some((pair[0].load(Relaxed), pair[1].load(Relaxed)));
            let wanted = expected(rank, at);
            if found != wanted {
                bail!("rank {rank}: element {at} of the result is wrong");
            }
        }
    }
    Ok(())
}
