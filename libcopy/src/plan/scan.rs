// SPDX-License-Identifier: MIT OR Apache-2.0

//! Scans, in the order of ranks: a chain for long ones, doubled distances for short ones (Hillis,
//! Steele, "Data Parallel Algorithms", CACM 29(12), 1986).

use super::call::{Call, Operation, Prefix};
use super::signal::ended;
use super::stage::{After, Buffer, Piece, Plan, Progress, Source, Span, Stage};

fn source(span: Span, after: Option<After>) -> Source {
    Source {
        span,
        after: after.filter(|after| after.rank == span.rank),
        in_order: true,
    }
}

pub(super) fn scan(size: usize, call: &Call<'_>, rank: usize, how: Prefix) -> Plan {
    match how {
        Prefix::Chain => chain(size, call, rank),
        Prefix::Doubling => doubling(size, call, rank),
    }
}

fn chain(size: usize, call: &Call<'_>, rank: usize) -> Plan {
    let bytes = call.lengths.total(1);
    let exclusive = call.operation == Operation::Exscan;
    let span = |rank, buffer| Span {
        rank,
        buffer,
        at: 0,
    };
    // Where a rank keeps what it and those before it combine to.
    let sums = |rank| {
        span(
            rank,
            if exclusive {
                Buffer::Scratch
            } else {
                Buffer::Receive
            },
        )
    };
    let whole = |rank| After {
        rank,
        progress: Progress { stage: 0, bytes },
    };
    let own = source(span(rank, Buffer::Send), None);
    let before = rank
        .checked_sub(1)
        .map(|before| source(sums(before), Some(whole(before))));
    // Nobody asks the last one.
    let is_asked = !exclusive || rank + 1 < size;
    let sum = is_asked.then(|| Piece {
        to: sums(rank),
        bytes,
        from: before.into_iter().chain([own]).collect(),
    });
    let mut stages = vec![Stage::moving(sum)];
    let results = before.filter(|_| exclusive).map(|before| Piece {
        to: span(rank, Buffer::Receive),
        bytes,
        from: vec![before],
    });
    stages.push(Stage::moving(results));
    let next = (rank + 1 < size).then(|| ended(rank + 1, 2));
    stages.push(Stage::waiting(next));
    Plan { stages }
}

fn doubling(size: usize, call: &Call<'_>, rank: usize) -> Plan {
    let bytes = call.lengths.total(1);
    let exclusive = call.operation == Operation::Exscan;
    // Steps in which a rank learns something.
    let steps = |rank: usize| (usize::BITS - rank.leading_zeros()) as usize;
    // What it knows after some steps. Each has its own place, as others read it at any time.
    let known = |rank: usize, step: usize| match step.min(steps(rank)) {
        0 => source(
            Span {
                rank,
                buffer: Buffer::Send,
                at: 0,
            },
            None,
        ),
        step => {
            let at = (step - 1) * bytes;
            let progress = Progress {
                stage: step - 1,
                bytes,
            };
            source(
                Span {
                    rank,
                    buffer: Buffer::Scratch,
                    at,
                },
                Some(After { rank, progress }),
            )
        }
    };
    let mut stages = Vec::new();
    for step in 0..steps(rank) {
        let piece = Piece {
            to: known(rank, step + 1).span,
            bytes,
            from: vec![known(rank - (1 << step), step), known(rank, step)],
        };
        stages.push(Stage::moving([piece]));
    }
    let distances = (0..usize::BITS)
        .map(|step| 1usize << step)
        .take_while(|it| *it < size);
    let readers = distances.enumerate().filter_map(|(step, distance)| {
        let reader = rank + distance;
        (reader < size).then(|| ended(reader, step + 1))
    });
    let readers: Vec<After> = readers.collect();
    let result = if exclusive {
        rank.checked_sub(1).map(|before| known(before, usize::MAX))
    } else {
        Some(known(rank, usize::MAX))
    };
    let pieces = result.map(|from| Piece {
        to: Span {
            rank,
            buffer: Buffer::Receive,
            at: 0,
        },
        bytes,
        from: vec![from],
    });
    // The contribution may be where the result goes.
    stages.push(Stage {
        after: readers,
        pieces: pieces.into_iter().collect(),
    });
    let next = (exclusive && rank + 1 < size).then(|| ended(rank + 1, steps(rank + 1) + 1));
    stages.push(Stage::waiting(next));
    Plan { stages }
}
